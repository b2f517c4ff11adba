"""Functions that run in separate processes, which may be killed. Each process is a program (tests/helpers/programs.py) that calls one
function.

The modules that builds need are already imported and compiled, so that a process starts in milliseconds.
"""

import base64
import os
import pickle
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.helpers.programs import Program

IMPORTED = (
    "niels_cache_cleaning.chain",
    "niels_cache_assets.corpus.chunks",
    "tests.helpers.builds",
    "niels_cache_assets.dedup.text_set",
    "tests.helpers.exports",
    "tests.helpers.warm",
    "tests.helpers.fault_builds",
)
_CALL = "import base64, pickle, sys; function, args = pickle.loads(base64.b64decode(sys.argv[1])); function(*args)"
_PATIENCE_SECONDS = 120.0  # a child that takes so many seconds hangs


def run(function: Callable[..., object], *args: Any, kill_after: float | None = None, with_signal: int = signal.SIGKILL) -> int:
    """Exit code of a process that calls a module-level `function` with these (picklable) arguments: 0, 1 after an exception (its traceback
    goes to stderr), or less the signal's number. kill_after: seconds after which it gets `with_signal`, if it still runs.
    """
    child = Program("-c", _CALL, base64.b64encode(pickle.dumps((function, args))).decode(), imported=IMPORTED)
    if kill_after is not None:
        with suppress(subprocess.TimeoutExpired):
            return child.wait(kill_after)
        with suppress(ProcessLookupError):  # the child ended in this moment
            child.send_signal(with_signal)
    try:
        return child.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        raise AssertionError(f"{function.__name__}{args}: still running {_PATIENCE_SECONDS:.0f} s after it was to end") from None


def here(seconds: float) -> float:
    """Return the seconds on this machine for so many seconds on a machine with free cores. On a busy machine, they are more."""
    return seconds * max(1, os.getloadavg()[0] / (os.cpu_count() or 1))
