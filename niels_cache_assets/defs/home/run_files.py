"""The file of a run's events in a Dagster home with SQLite.

Dagster makes 25 tables and indices for each run, most of which stay empty, and each takes at least one page. With SQLite's own 4 KiB, these
are 100 kB, and a data set may have thousands of parts. So the process that creates the file of a run gives it small pages. A file keeps the
size of its pages, whoever writes to it later.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import dagster as dg
from dagster._core.storage.event_log import SqliteEventLogStorage  # it has no public name
from sqlalchemy import event
from sqlalchemy.engine import Engine

_SMALL_PAGES = "PRAGMA page_size = 512"


def make_small_run_file(instance: dg.DagsterInstance, run_id: str) -> None:
    """Create the file of a run with few events before Dagster creates it, with small pages. Do nothing for other kinds of databases."""
    storage = instance.event_log_storage
    if isinstance(storage, SqliteEventLogStorage):
        with suppress(sqlite3.Error), closing(sqlite3.connect(storage.path_for_shard(run_id))) as connection:
            connection.execute(_SMALL_PAGES)
            connection.execute("VACUUM")  # writes the header of the empty database


@contextmanager
def small_run_files() -> Iterator[None]:
    """Give small pages to every SQLite database that Dagster creates in this process during the block.

    This is for processes that create the runs of others: the web server and the daemon. In a home that exists, only the files of runs are
    new.
    """
    event.listen(Engine, "connect", _give_small_pages)
    try:
        yield
    finally:
        event.remove(Engine, "connect", _give_small_pages)


def _give_small_pages(connection: object, record: object) -> None:
    """Choose small pages for a database that is still empty. This changes no other database."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute(_SMALL_PAGES)
