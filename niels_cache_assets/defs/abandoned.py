"""Runs whose process was killed: end them, so that they do not show as running and hold their place in a pool for ever.

A launcher holds a file lock for its lifetime, and its runs carry the lock's name as a tag; a run whose lock is free has no process any
more. Runs that the UI started are the daemon's (run monitoring).
"""

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

LAUNCHER_TAG = "niels_cache/launcher"

_LOCKS = ".launchers"
_UNFINISHED = [
    dg.DagsterRunStatus.NOT_STARTED,  # created, then killed before the first event
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


@contextmanager
def launcher_identity(instance: dg.DagsterInstance, home: Path) -> Iterator[str]:
    """The value of LAUNCHER_TAG for this process's runs, after the runs of dead launchers were ended."""
    folder = home / _LOCKS
    folder.mkdir(exist_ok=True)
    _end_abandoned_runs(instance, folder)
    identity = uuid.uuid4().hex
    with open(folder / identity, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield identity
        finally:
            os.unlink(folder / identity)


def _end_abandoned_runs(instance: dg.DagsterInstance, folder: Path) -> None:
    for run in instance.get_runs(filters=dg.RunsFilter(statuses=_UNFINISHED)):
        identity = run.tags.get(LAUNCHER_TAG)
        if identity is not None and not _is_alive(folder / identity):
            instance.report_run_failed(run, message="The process of this run is gone (killed, or the machine stopped).")
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
            (folder / identity).unlink(missing_ok=True)


def _is_alive(lock: Path) -> bool:
    try:
        with open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
