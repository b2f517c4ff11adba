"""Which test ran which line, in every process of an environment: started by a .pth file, so that neither a bare environment nor a fork of a
fork is missed. Imports nothing of the project.

Each process keeps a file of coverage.py's in FOLDER, with the test as the context. A process knows its test from the nearest of its
ancestors that wrote one into FOLDER/current, which the process of pytest does (`plugin`). A process that is killed by a signal leaves
nothing.
"""

import atexit
import contextlib
import os
from pathlib import Path
from typing import NoReturn

import coverage

_WARNINGS = ["no-data-collected", "module-not-measured", "already-imported", "module-not-imported"]

_measuring: coverage.Coverage | None = None


def start(folder: str, *, include: list[str]) -> None:
    """Measure this process and its forks until they end. include: patterns of files."""
    end = os._exit

    def begin() -> None:
        global _measuring
        if _measuring is not None:  # after a fork: the parent's
            _measuring.stop()
        _measuring = coverage.Coverage(data_file=f"{folder}/data/lines", data_suffix=True, config_file=False, include=include)
        _measuring.set_option("run:disable_warnings", _WARNINGS)  # a test may look at what its process says
        _measuring.set_option("run:core", "ctrace")  # sys.monitoring, the default of Python 3.14, has no contexts
        _measuring.start()
        _measuring.switch_context(_of_ancestors(folder))

    def save_and_end(status: int) -> NoReturn:
        save()
        end(status)

    begin()
    atexit.register(save)
    os.register_at_fork(after_in_child=begin)
    os._exit = save_and_end  # children of multiprocessing end so


def save() -> None:
    """Write what was measured; nothing is measured after it."""
    global _measuring
    if _measuring is not None:
        measured, _measuring = _measuring, None
        with contextlib.suppress(Exception):  # a test of a full disk, for one
            measured.stop()
            measured.save()


def switch(folder: Path, context: str) -> None:
    """From now on this process, and those that it starts, run for `context`."""
    current = folder / "current" / str(os.getpid())
    written = current.with_suffix(".new")
    written.write_text(context, encoding="utf-8")
    written.replace(current)
    if _measuring is not None:
        _measuring.switch_context(context)


def _of_ancestors(folder: str) -> str:
    process = os.getpid()
    while process > 1:
        with contextlib.suppress(OSError):
            return Path(folder, "current", str(process)).read_text(encoding="utf-8")
        try:
            status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            break
        process = int(status.rpartition(")")[2].split()[1])
    return ""
