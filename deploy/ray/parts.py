"""Build a data set on the cluster that RAY_ADDRESS names: python parts.py NAME PARTS, in the folder of niels_cache.toml."""

import os
import subprocess
import sys

import ray

name, parts = sys.argv[1], int(sys.argv[2])
config = os.path.abspath(os.environ.get("NIELS_CACHE_CONFIG", "niels_cache.toml"))


@ray.remote(num_cpus=1, max_retries=3, retry_exceptions=True)  # the next try of a part resumes it
def build(option: str) -> None:
    """Run one command on a free core of the cluster."""
    subprocess.run(["niels-cache", "part", name, option, "--threads", "1", "--config", config], check=True)


ray.init()
ray.get(build.remote("0"))  # or --val; first, because it makes the tokenizer and the plan, for which all others would wait
ray.get([build.remote(str(number)) for number in range(parts)])
ray.get(build.remote("--seal"))
