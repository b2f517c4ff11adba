"""Runs whose process was killed: end them, so that they do not show as running and hold their place in a pool for ever.

A launcher holds a file lock for its lifetime, and its runs carry the lock's name as a tag; a run whose lock is free has no process any
more. A run that a UI started carries the socket of its code server, which answers while that lives; where it lives, it ends the runs whose
process was killed itself. What other machines run is not looked at: a Dagster home in files belongs to one.
"""

import fcntl
import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
from dagster._core.storage.tags import (  # the former: where the default launcher says which code server holds a run
    GRPC_INFO_TAG,
    HIDDEN_TAG_PREFIX,
)

from niels_cache_assets.defs.keys import STREAM_POOL

LAUNCHER_TAG = f"{HIDDEN_TAG_PREFIX}niels_cache_launcher"  # the UI does not show it
_FORMER_TAG = "niels_cache/launcher"  # of runs in homes from before 22 November 2026

_LOCKS = ".launchers"
_GONE = "The process of this run is gone (killed, or the machine stopped)."
_UNFINISHED = [
    dg.DagsterRunStatus.NOT_STARTED,  # created, then killed before the first event
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_WATCH_SECONDS = 5.0
_JOIN_SECONDS = 1.0


@contextmanager
def launcher_identity(instance: dg.DagsterInstance, home: Path) -> Iterator[str]:
    """The value of LAUNCHER_TAG for this process's runs, after abandoned runs were ended; those of the time of the block are as well, so
    that nobody waits for the place of a process that is gone.
    """
    (home / _LOCKS).mkdir(exist_ok=True)
    end_abandoned_runs(instance, home)
    identity, ended = uuid.uuid4().hex, threading.Event()
    path = home / _LOCKS / identity

    def watch() -> None:
        while not ended.wait(_WATCH_SECONDS):
            with suppress(Exception):  # of the database, such as one that is locked: there is a next time
                end_abandoned_runs(instance, home)

    watcher = threading.Thread(target=watch, name="abandoned runs", daemon=True)
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not instance.is_ephemeral:  # what is only in memory is this process's
            watcher.start()
        try:
            yield identity
        finally:
            ended.set()
            if watcher.is_alive():
                watcher.join(_JOIN_SECONDS)  # longer only where the database hangs
            os.unlink(path)


def end_abandoned_runs(instance: dg.DagsterInstance, home: Path) -> None:
    """End the runs of this home that have no process any more, and give back what they, and runs that have ended, hold of the pool."""
    for run in instance.get_runs(filters=dg.RunsFilter(statuses=_UNFINISHED)):
        if _is_abandoned(run, home):
            if run.status == dg.DagsterRunStatus.CANCELING:
                instance.report_run_canceled(run, message=_GONE)
            else:
                instance.report_run_failed(run, message=_GONE)
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    pool = instance.event_log_storage.get_concurrency_info(STREAM_POOL)
    for run_id in pool.active_run_ids | pool.pending_run_ids:
        holder = instance.get_run_by_id(run_id)
        if holder is None or holder.is_finished:
            instance.event_log_storage.free_concurrency_slots_for_run(run_id)


def _is_abandoned(run: dg.DagsterRun, home: Path) -> bool:
    identity = run.tags.get(LAUNCHER_TAG, run.tags.get(_FORMER_TAG))
    if identity is not None:
        return not _is_alive(home / _LOCKS / identity)
    server = json.loads(run.tags.get(GRPC_INFO_TAG, "{}")).get("socket")
    return server is not None and not _answers(server)


def _is_alive(lock: Path) -> bool:
    try:
        with open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    lock.unlink(missing_ok=True)  # left by a kill
    return False


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            pass  # it is there, and does not want us
    return True
