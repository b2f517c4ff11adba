"""Builds whose sources are on the loopback hub, one after the other in one process: `python -m tests.helpers.hub_builds '{...}'`.

`HF_ENDPOINT` counts only before the first import, and importing takes longer than a small build. The request is {root, builds} and `set`,
which changes constants of network and transport. Printed is a list of {files: {name: sha256}, meta, log}, or {error, unavailable, log,
traceback} of a build that failed, which leaves what it had for the next of that name.
"""

import json
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple

from niels_cache_assets.disk.journal import BYTES_VARIABLE
from tests.helpers import programs
from tests.helpers.loopback_hub import LoopbackHub

PATIENCE_VARIABLE = "NIELS_CACHE_NETWORK_PATIENCE"
QUICK = {"STALL_SECONDS": 0.15, "STALL_BYTES": 1000, "READ_SECONDS": 0.5, "FIRST_WAIT": 0.002, "LONGEST_WAIT": 0.05}


class Build(NamedTuple):
    """A data set to build, for how many seconds its requests are repeated, and the tables of other data sets."""

    table: dict[str, Any]
    name: str = "built"
    patience: float = 60
    others: dict[str, Any] = {}  # noqa: RUF012


def build_from(hub: LoopbackHub, root: Path, builds: list[Build], **constants: Any) -> tuple[list[dict[str, Any]], str]:
    """Run builds in a child process whose hub is the loopback one; and all that it wrote to stderr. `root` has a tokenizer."""
    request = {"root": str(root), "builds": builds, "set": {**QUICK, **constants}}
    env = {name: value for name, value in hub.env.items() if name != PATIENCE_VARIABLE} | {BYTES_VARIABLE: "500"}
    done = programs.run("-m", "tests.helpers.hub_builds", input=json.dumps(request), env=env, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def _build(root: Path, table: dict[str, Any], name: str, patience: float, others: dict[str, Any]) -> dict[str, Any]:
    from huggingface_hub import HfFileSystem

    from niels_cache_assets.project.registry import load_registry
    from niels_cache_assets.sources import PRETRAIN_SOURCES
    from niels_cache_assets.sources.errors import SourceUnavailableError
    from niels_cache_runtime.errors import NielsCacheError
    from tests.helpers.builds import build_dataset

    HfFileSystem.clear_instance_cache()  # lists of an earlier build are requested again
    family = "pretrain" if table["source"] in PRETRAIN_SOURCES else "sft"
    registry = load_registry(
        profile="quickstart",
        overrides={
            family: {**others, name: {key: value for key, value in table.items() if value is not None}},
            "build": {"network_patience": patience},
        },
    )
    log: list[str] = []
    try:
        outcome = build_dataset(registry, name, root=root, log=log.append)
    except NielsCacheError as error:
        everything = "".join(traceback.format_exception(error))
        return {"error": str(error), "unavailable": isinstance(error, SourceUnavailableError), "log": log, "traceback": everything}
    text = (outcome.directory / "meta.json").read_text(encoding="utf-8")
    shutil.rmtree(outcome.directory)
    return {"files": {path: entry["sha256"] for path, entry in json.loads(text)["files"].items()}, "meta": text, "log": log}


def _main() -> None:
    from niels_cache_assets.sources.net import retries as network
    from niels_cache_assets.sources.net import transport
    from niels_cache_runtime.remote import store

    asked = json.load(sys.stdin)
    for constant, value in asked["set"].items():
        for module in (network, store, transport):
            if hasattr(module, constant):
                setattr(module, constant, value)
    json.dump([_build(Path(asked["root"]), *build) for build in asked["builds"]], sys.stdout)


if __name__ == "__main__":
    _main()
