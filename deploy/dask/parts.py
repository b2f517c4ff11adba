"""Build a data set without Dagster: python parts.py SCHEDULER NAME PARTS, in the folder of niels_cache.toml."""

import os
import subprocess
import sys

from distributed import Client

scheduler, name, parts = sys.argv[1], sys.argv[2], int(sys.argv[3])
config = os.path.abspath(os.environ.get("NIELS_CACHE_CONFIG", "niels_cache.toml"))


def build(option: str) -> None:
    """Run one command on the machine of a worker."""
    subprocess.run(["niels-cache", "part", name, option, "--config", config], check=True)


with Client(scheduler) as client:
    client.submit(build, "0", pure=False, retries=3).result()  # or --val; makes the tokenizer and the plan
    client.gather(client.map(build, [str(number) for number in range(parts)], pure=False, retries=3))  # the next try of a part resumes it
    client.submit(build, "--seal", pure=False, retries=3).result()
