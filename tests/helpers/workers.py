"""The processes of pytest-xdist, as forks of one server, which has imported and collected the tests.

Otherwise, each of these processes would import torch, Dagster, Lightning and all test files for itself, and would start its own servers for
the programs of its tests (tests/helpers/programs.py). The servers belong to the process that starts the others, and end with it.
"""

import os
import shlex
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from tests.helpers import children, programs

COLLECTED = "NIELS_CACHE_TEST_FILES"  # for the server: the files that it collects, one a line, or nothing for all files
# What tests import while they run, without packages that are not installed.
_IMPORTED = (
    "dagster_webserver.app",
    "datasets",
    "lightning.pytorch",
    "matplotlib.pyplot",
    "megatron.core.datasets.gpt_dataset",
    "playwright.sync_api",
    "tests.helpers.sqlite_engines",
    "torch._dynamo",
)
_FORK = """
import signal, sys
sys.path.insert(0, {repository!r})
from tests.helpers.programs import Program
program = Program("-c", sys.argv[-1], imported={imported!r})
signal.signal(signal.SIGINT, signal.SIG_IGN)  # the fork takes it
sys.exit(program.wait())
"""

if "-n" in sys.argv and "PYTEST_XDIST_WORKER" not in os.environ and "tests.mutants.plugin" not in sys.argv:
    programs.begin()  # the other imports of conftest.py take seconds


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Let the processes begin as forks. Under the mutation check they do not, because it looks for the test among the ancestors of a
    process.
    """
    if config.pluginmanager.hasplugin("tests.mutants.plugin"):
        return
    imported: tuple[str, ...] = ()
    servers = []
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        imported = tuple(module for module in _IMPORTED if find_spec(module.partition(".")[0]) is not None)
        servers.append(children.IMPORTED)
    else:
        os.environ[COLLECTED] = "\n".join(config.args)
    if config.getoption("hypothesis_profile", None) is None:  # a module that is imported already would keep the profile of `make test`
        imported += ("tests.helpers.collected",)
    if imported:
        servers.append(imported)
    programs.share(*servers)
    os.environ.pop(COLLECTED, None)
    fork = _FORK.format(repository=str(config.rootpath), imported=imported)
    for spec in specs:
        if spec.popen and not spec.python:
            spec.python = shlex.join([sys.executable, "-c", fork])
