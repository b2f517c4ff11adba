"""Cleanup of abandoned runs: if the process of a run was killed, the run and its step workers are ended.

Otherwise the run would show as running. The coordinator of a run is a launcher or our executor (resources.py). It records itself in the
Dagster home, in a locked file with the name of the run (base/processes.py). Each step worker of the run adds its own file. If
the record of a run is no longer locked, the run is ended. If a coordinator has ended, its step workers are ended. A run without a record in
this home, or with a record of a different machine, is left alone. If several homes share one database, such a run belongs to a different
home. The search takes one database query and a look at a folder of small files, every few seconds.
"""

import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg

from niels_cache_assets.base.processes import claim_record, end_with_parent, is_locked, lock_record, read_record
from niels_cache_assets.defs.home.found import RUN_RECORDS
from niels_cache_runtime.errors import NielsCacheError

_ABANDONED_MESSAGE = "The process of this run has ended (it was killed, or the machine stopped)."
_WATCH_SECONDS = 5.0
_JOIN_SECONDS = 1.0


@contextmanager
def ending_abandoned_runs(instance: dg.DagsterInstance) -> Iterator[None]:
    """End abandoned runs before the `with` block, and regularly while the block runs."""
    end_abandoned_runs(instance)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_WATCH_SECONDS):
            with suppress(Exception):  # errors of the database, such as a lock; the next attempt may succeed
                end_abandoned_runs(instance)

    watcher = threading.Thread(target=watch, name="abandoned runs", daemon=True)
    if not instance.is_ephemeral:  # only this process can see an instance in memory
        watcher.start()
    try:
        yield
    finally:
        ended.set()
        if watcher.is_alive():
            watcher.join(_JOIN_SECONDS)  # a limit for the wait, because a database may hang


@contextmanager
def recorded_run(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Record this process as the coordinator of a run that begins and ends in the `with` block.

    If an exception ends the block, the record stays for the next search, because the run may not have ended.
    """
    descriptor = _lock_record(_record(_home(instance), run_id))
    try:
        yield
        _clear(_home(instance), run_id)
    finally:
        os.close(descriptor)


def record_run(instance: dg.DagsterInstance, run_id: str) -> None:
    """Record this process as the coordinator of a run until the process ends.

    The record must last until then, because Dagster reports the result of the run after all of our code.
    """
    _lock_record(_record(_home(instance), run_id))


def begin_step(instance: dg.DagsterInstance, run_id: str) -> None:
    """Record this process as a step worker of a recorded run, and end the process when the coordinator of the run ends.

    Do nothing in any other process.
    """
    home, parent = _home(instance), multiprocessing.parent_process()
    coordinator = read_record(_record(home, run_id))
    if parent is not None and coordinator is not None and parent.pid == coordinator.pid:
        _lock_record(_record(home, run_id, step=os.getpid()))
        end_with_parent()


def end_abandoned_runs(instance: dg.DagsterInstance) -> None:
    """End the runs of this home whose process has ended, and free the slots that ended runs hold in any pool of the instance."""
    home, is_own = _home(instance), _has_own_database(instance)
    for path in (home / RUN_RECORDS).glob("*"):
        run_id, _, step = path.name.partition(".")
        if run_id and not step:
            with claim_record(path, copies=is_own) as is_gone:  # in a copied home, the database is a copy too
                if is_gone:
                    _end_steps(home, run_id)  # before `_end`, because step workers of an ended run must not write any more
                    _end(instance, run_id)
                    _clear(home, run_id)
    if instance.event_log_storage.supports_global_concurrency_limits:
        for pool in map(instance.event_log_storage.get_concurrency_info, instance.event_log_storage.get_concurrency_keys()):
            for run_id in pool.active_run_ids | pool.pending_run_ids:
                holder = instance.get_run_by_id(run_id)
                if holder is None or holder.is_finished:
                    instance.event_log_storage.free_concurrency_slots_for_run(run_id)


def _home(instance: dg.DagsterInstance) -> Path:
    """Return the folder of the instance's files: the Dagster home, unless dagster.yaml names a different folder for artifacts."""
    return Path(instance.root_directory)


def _record(home: Path, run_id: str, *, step: int | None = None) -> Path:
    return home / RUN_RECORDS / (run_id if step is None else f"{run_id}.{step}")


def _lock_record(path: Path) -> int:
    try:
        return lock_record(path)
    except OSError as error:
        raise NielsCacheError(
            f"{path}: cannot be written and locked: {error.strerror}; free space on its disk, or point DAGSTER_HOME at a writable "
            "folder on a disk that supports locks"
        ) from error


def _end_steps(home: Path, run_id: str) -> None:
    """End the step workers of a run whose coordinator has ended. Step workers also end themselves, unless they hang."""
    for path in (home / RUN_RECORDS).glob(f"{run_id}.*"):
        worker = read_record(path)
        if worker is not None and is_locked(path):
            worker.end()


def _end(instance: dg.DagsterInstance, run_id: str) -> None:
    """End a run whose process has ended, unless the process reported the result of the run before."""
    run = instance.get_run_by_id(run_id)
    if run is None or run.is_finished:
        return
    if run.status == dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, message=_ABANDONED_MESSAGE)
    else:
        instance.report_run_failed(run, message=_ABANDONED_MESSAGE)


def _clear(home: Path, run_id: str) -> None:
    """Remove the records of an ended run, that of the coordinator last, because the step workers are found through it."""
    steps = list((home / RUN_RECORDS).glob(f"{run_id}.*"))
    for path in steps:
        if not is_locked(path):
            path.unlink(missing_ok=True)
    if not any(path.exists() for path in steps):
        _record(home, run_id).unlink(missing_ok=True)


def _has_own_database(instance: dg.DagsterInstance) -> bool:
    """Return whether the database belongs to this home alone, as Dagster's default, a file in the home, does."""
    if instance.is_ephemeral:
        return False
    storage = instance.get_ref().run_storage_data
    folder = None if storage is None else storage.config_dict.get("base_dir")
    return isinstance(folder, str) and Path(folder).resolve().is_relative_to(_home(instance).resolve())
