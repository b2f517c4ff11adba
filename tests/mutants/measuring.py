"""The measurement of which test ran which line, in every process of an environment. A .pth file starts it, so that no process is missed.
This module imports nothing of the project.

Each process writes a file of coverage.py in FOLDER, with the test as the context. pytest writes its present test to FOLDER/current
(`plugin`). Other processes take the test of their nearest ancestor there. A process that a signal kills writes nothing.
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
        if _measuring is not None:  # after a fork, this is the parent's
            _measuring.stop()
        _measuring = coverage.Coverage(data_file=f"{folder}/data/lines", data_suffix=True, config_file=False, include=include)
        _measuring.set_option("run:disable_warnings", _WARNINGS)  # a test may read the output of its process
        _measuring.set_option("run:core", "ctrace")  # sys.monitoring, the default of Python 3.14, has no contexts
        _measuring.start()
        _measuring.switch_context(_of_ancestors(folder))

    def save_and_end(status: int) -> NoReturn:
        save()
        end(status)

    begin()
    atexit.register(save)
    os.register_at_fork(after_in_child=begin)
    os._exit = save_and_end  # children of multiprocessing end in this way


def save() -> None:
    """Write the measurement, and stop measuring."""
    global _measuring
    if _measuring is not None:
        measured, _measuring = _measuring, None
        with contextlib.suppress(Exception):  # for example, in a test of a full disk
            measured.stop()
            measured.save()


def switch(folder: Path, context: str) -> None:
    """Let this process, and later child processes, run for `context` from now on."""
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
