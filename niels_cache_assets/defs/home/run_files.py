"""The file of a run's events in a Dagster home with SQLite."""

import sqlite3
from contextlib import closing, suppress

import dagster as dg
from dagster._core.storage.event_log import SqliteEventLogStorage  # it has no public name

_PAGE_BYTES = 512


def make_small_run_file(instance: dg.DagsterInstance, run_id: str) -> None:
    """Create the file of a run with few events before Dagster creates it, with small pages. Do nothing for other kinds of databases.

    Dagster makes 25 tables and indices for each run, most of which stay empty, and each takes at least one page. With SQLite's own 4 KiB,
    these are 100 kB, and a data set may have thousands of parts.
    """
    storage = instance.event_log_storage
    if isinstance(storage, SqliteEventLogStorage):
        with suppress(sqlite3.Error), closing(sqlite3.connect(storage.path_for_shard(run_id))) as connection:
            connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            connection.execute("VACUUM")  # writes the header of the empty database
