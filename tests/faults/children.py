"""Functions run in processes of their own that may be killed.

Each is a fork of a server that has the heavy imports, so that one starts in milliseconds.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable
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


def run(function: Callable[..., object], *args: Any, kill_after: float | None = None, with_signal: int = signal.SIGKILL) -> int:
    """Exit code of a process that calls a module-level `function` with these (picklable) arguments: 0, 1 after an exception (its traceback
    goes to stderr), or less the signal's number. kill_after: seconds after which it gets `with_signal`, if it still runs.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    child = context.Process(target=function, args=args)
    child.start()
    assert child.pid is not None
    child.join(kill_after)
    if kill_after is not None and child.is_alive():
        os.kill(child.pid, with_signal)
    child.join(_PATIENCE_SECONDS)
    if child.is_alive():
        child.kill()
        child.join()
        raise AssertionError(f"{function.__name__}{args}: still running {_PATIENCE_SECONDS:.0f} s after it was to end")
    assert child.exitcode is not None
    return child.exitcode
