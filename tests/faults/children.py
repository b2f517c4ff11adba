"""Functions run in processes of their own that may be killed.

Each is a fork of a server that has the heavy imports, so that one starts in milliseconds.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

_PRELOADED = [
    "torch",
    "numpy",
    "pyarrow.parquet",
    "sentencepiece",
    "pandas",
    "niels_cache_assets.cleaning.language",
    "niels_cache_assets.corpus.counts",
    "niels_cache_assets.corpus.duplicates",
    "niels_cache_assets.streaming.val_index",
    "tests.exports",
    "tests.faults.warm",
    "tests.faults.builds",
]
_PATIENCE_SECONDS = 120.0  # a child that takes so long hangs

# Starting a process also reads the exit codes of all others that ended; of two threads that read one, the later gets 255.
_exit_codes = threading.Lock()


def run(function: Callable[..., object], *args: Any, kill_after: float | None = None, with_signal: int = signal.SIGKILL) -> int:
    """Exit code of a process that calls a module-level `function` with these (picklable) arguments: 0, 1 after an exception (its traceback
    goes to stderr), or less the signal's number. kill_after: seconds after which it gets `with_signal`, if it still runs.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    child = context.Process(target=function, args=args)
    with _exit_codes:
        child.start()
    assert child.pid is not None
    if kill_after is not None and not wait([child.sentinel], kill_after):
        with suppress(ProcessLookupError):  # it ended in this moment
            os.kill(child.pid, with_signal)
    hangs = not wait([child.sentinel], _PATIENCE_SECONDS)
    with _exit_codes:
        if hangs:
            child.kill()
        child.join()
    if hangs:
        raise AssertionError(f"{function.__name__}{args}: still running {_PATIENCE_SECONDS:.0f} s after it was to end")
    assert child.exitcode is not None
    return child.exitcode
