"""The ranks of one training run. They are forks of one program (tests/programs.py) that imports all needed modules once."""

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests import programs
from tests.cluster.servers import free_port

WORLD_SIZE = 2
_REPOSITORY = Path(__file__).parent.parent


def run(function: Callable[..., None], **settings: Any) -> None:
    """Call a function of a module on every rank, with the environment of torchrun. The settings are values that JSON can hold.

    An optimizer imports torch._dynamo at its first step. Here, the program imports this module once.
    """
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(WORLD_SIZE)}
    arguments = (function.__module__, function.__name__, json.dumps(settings))
    done = programs.run("-m", "tests.ranks", *arguments, cwd=_REPOSITORY, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr


def _rank(rank: int, function: Callable[..., None], settings: dict[str, Any]) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0"}
    torch.set_num_threads(1)
    function(**settings)


def _main(module: str, name: str, settings: str) -> None:
    importlib.import_module("torch._dynamo")
    function = getattr(importlib.import_module(module), name)
    torch.multiprocessing.start_processes(_rank, args=(function, json.loads(settings)), nprocs=WORLD_SIZE, start_method="fork")


if __name__ == "__main__":
    _main(*sys.argv[1:])
