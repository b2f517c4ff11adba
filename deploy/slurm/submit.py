"""Submit what is missing of a data set in parts to Slurm, with the memory and time that build-all estimates: `python submit.py NAME`."""

import json
import math
import os
import subprocess
import sys

name, jobs, program, task = sys.argv[1], [], os.environ.get("NIELS_CACHE", "niels-cache"), os.path.join(sys.path[0], "part.sbatch")
forecast = subprocess.run([program, "build-all", "--only", name, "--dry-run", "--json"], stdout=subprocess.PIPE, check=False)
steps = json.loads(forecast.stdout or '{"steps": []}')["steps"]
if forecast.returncode:  # code 1 has its reasons in the steps, the others on stderr
    sys.exit("\n".join(f"{step['key']}: {step['why']}" for step in steps if step["action"] == "fail") or forecast.returncode)
left = {step["key"]: step["estimate"] or {} for step in steps if step["action"] == "build"}
corpus = [key for key in left if key.startswith(f"corpus_part/{name}/")]  # it comes first; submit again when build-all has deduplicated it
parts, option = corpus or [key for key in left if key.startswith(f"part/{name}/")], ["--corpus"] if corpus else []
numbers = ",".join(str(int(key.rpartition("-")[2])) for key in parts)
seconds, memory = (max((each.get(what) or 0 for each in left.values()), default=0) for what in ("core_seconds", "memory_bytes"))
limits = ["--cpus-per-task=8", f"--mem={math.ceil((memory or 8e9) * 1.5 / 2**30)}G"]
limits += [f"--time={60 + math.ceil(seconds / 60)}"] if seconds else []


def submit(*words: str, rule: str = "afterok") -> None:  # a job that waits for the one before it
    waits = [f"--dependency={rule}:{jobs[-1]}", "--kill-on-invalid-dep=yes"] if jobs else []
    command = ["sbatch", "--parsable", f"--output=niels-cache-{name}-%A_%a.log", *limits, *waits, *words]
    jobs.append(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.strip())


if f"val_part/{name}" in left or f"plan/{name}" in left:  # first what all parts would wait for
    submit(task, name, *(["--val"] if f"val_part/{name}" in left else [numbers.partition(",")[0], *option]))
if parts:
    submit(f"--array={numbers}", task, name, *option)
submit("--wrap", f"{program} part {name} --seal", rule="afterany")  # also after failed parts, which it names
print(f"submitted the jobs {', '.join(jobs)}")
