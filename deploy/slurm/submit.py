"""Submit what is missing of a data set in parts to Slurm, with the memory and time that build-all estimates: `python submit.py NAME`."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

name, task, jobs = sys.argv[1], Path(__file__).resolve().with_name("part.sbatch"), []
program = os.environ.get("NIELS_CACHE", "niels-cache")
forecast = subprocess.run([program, "build-all", "--only", name, "--dry-run", "--json"], stdout=subprocess.PIPE, check=False)
if forecast.returncode == 1:  # other codes have their line on stderr
    sys.exit("\n".join(f"{step['key']}: {step['why']}" for step in json.loads(forecast.stdout)["steps"] if step["action"] == "fail"))
if forecast.returncode:
    sys.exit(forecast.returncode)
left = {step["key"]: step["estimate"] or {} for step in json.loads(forecast.stdout)["steps"] if step["action"] == "build"}
corpus = [key for key in left if key.startswith(f"corpus_part/{name}/")]  # it comes first; submit again when build-all has deduplicated it
parts, option = corpus or [key for key in left if key.startswith(f"part/{name}/")], ["--corpus"] if corpus else []
numbers = [str(int(key.rpartition("-")[2])) for key in parts]
seconds, memory = (max((each.get(what) or 0 for each in left.values()), default=0) for what in ("core_seconds", "memory_bytes"))
limits = ["--cpus-per-task=8", f"--mem={math.ceil((memory or 8e9) * 1.5 / 2**30)}G"]
limits += [f"--time={60 + math.ceil(seconds / 60)}"] if seconds else []  # as if one core did everything, and an hour


def submit(*words: object, rule: str = "afterok") -> None:
    """Submit a job that waits for the one before it."""
    waits = [f"--dependency={rule}:{jobs[-1]}", "--kill-on-invalid-dep=yes"] if jobs else []
    command = ["sbatch", "--parsable", *limits, f"--output=niels-cache-{name}-%A_%a.log", *waits, *map(str, words)]
    jobs.append(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.strip())


if f"val_part/{name}" in left or f"plan/{name}" in left:  # first what all parts would wait for
    submit(task, name, *(["--val"] if f"val_part/{name}" in left else [numbers[0], *option]))
if parts:
    submit(f"--array={','.join(numbers)}", task, name, *option)
submit("--wrap", f"{program} part {name} --seal", rule="afterany")  # also after failed parts, which it names
print(f"submitted the jobs {', '.join(jobs)}")
