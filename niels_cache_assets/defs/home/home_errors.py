"""Messages for errors of the disk or the database of a Dagster home. A message is one line with the problem, the place and the repair.

Dagster writes an event for nearly everything that it does. So with a full disk, an error of the database comes from the middle of Dagster's
code. Nothing is written to the disk while the message is made. Errors with a different cause are left unchanged.
"""

import errno
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from sqlalchemy.exc import DBAPIError

from niels_cache_assets.base.wording import file_size
from niels_cache_assets.disk.space import free_bytes
from niels_cache_runtime.errors import NielsCacheError, NotWrittenError

_VARIABLE = "DAGSTER_HOME"
_ELSEWHERE = f"point {_VARIABLE} at a folder on another disk"
_DISK_ADVICE = {
    errno.ENOSPC: f"make room, or {_ELSEWHERE}",
    errno.EDQUOT: f"raise the quota, make room, or {_ELSEWHERE}",
    errno.EIO: f"the disk may be failing: look at the system's log, or {_ELSEWHERE}",
    errno.EROFS: f"{_ELSEWHERE} that can be written",
    errno.EACCES: f"make it writable for you, or {_ELSEWHERE}",
    errno.EPERM: f"make it writable for you, or {_ELSEWHERE}",
}
# Texts that occur in messages of SQLite.
_SQLITE_ADVICE = {
    "full": f"make room, or {_ELSEWHERE}",
    "disk I/O error": f"the disk or its quota may be full, or failing: make room, or {_ELSEWHERE}",
    "readonly": f"make its files writable for you, or {_ELSEWHERE}",
    "unable to open": f"make room and its files writable for you, or {_ELSEWHERE}",
    "locked": "another program holds the database: try again after it has ended",
    "malformed": f"move the damaged home away (only its history is lost, no cache), or {_ELSEWHERE}",
    "not a database": f"move the damaged home away (only its history is lost, no cache), or {_ELSEWHERE}",
}
_SERVER_ADVICE = "check that the database in its dagster.yaml runs and has room, then try again"
_CUT_DATABASE_ADVICE = "its first start was cut; name a new, empty database in its dagster.yaml (the records in the old one are lost)"


class _Refused(BaseException):
    """An error that ends a run after it could not record an event.

    The class does not derive from Exception, because code that catches Exception would print the error and try to record it.
    """


@contextmanager
def home_errors(home: Path) -> Iterator[None]:
    """Turn errors of the home inside the `with` block into NotWrittenError. `home` need not exist yet."""
    try:
        yield
    except _Refused as refused:
        raise NotWrittenError(str(refused)) from refused
    except NotWrittenError:
        raise
    except Exception as error:
        message = _home_error_message(error, home)
        if message is None:
            raise
        raise NotWrittenError(message) from error


@contextmanager
def end_runs_that_cannot_record(instance: dg.DagsterInstance, home: Path) -> Iterator[None]:
    """End a run of this thread at the first event that the home cannot record. Dagster then prints nothing about the error."""
    record: Callable[..., Any] = instance.handle_new_event
    running = threading.get_ident()

    def record_or_end(*event: Any, **settings: Any) -> Any:
        try:
            return record(*event, **settings)
        except Exception as error:
            message = _home_error_message(error, home)
            if message is None or threading.get_ident() != running:
                raise
            raise _Refused(message) from error

    instance.handle_new_event = record_or_end  # type: ignore[method-assign]
    try:
        yield
    finally:
        del instance.handle_new_event


def _home_error_message(error: BaseException, home: Path) -> str | None:
    """Return the message for an error, or None if the error does not come from the disk or the database."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DBAPIError):
            cause = cause.orig or cause
        if isinstance(cause, sqlite3.Error):
            return _sqlite_error_message(str(cause), home)
        if isinstance(cause, DBAPIError) or type(cause).__module__.split(".")[0] in ("psycopg2", "psycopg", "pymysql", "MySQLdb"):
            advice = _CUT_DATABASE_ADVICE if type(cause).__name__ == "UndefinedTable" else _SERVER_ADVICE
            return _line(home, f"the database of the Dagster home: {' '.join(str(cause).split())}", advice)
        if isinstance(cause, OSError) and cause.errno in _DISK_ADVICE and not _is_invalid_home(error, cause):
            return _line(Path(cause.filename) if isinstance(cause.filename, str) else home, f"{cause.strerror}", _DISK_ADVICE[cause.errno])
        cause = cause.__cause__ or cause.__context__
    return None


def recorded_error_message(message: str, home: Path) -> str | None:
    """Return the message for an error of SQLite that Dagster recorded as text, or None if the text is not such an error."""
    found = re.search(r"sqlite3\.\w+\) ([^\n\[(]+)", message)
    return _sqlite_error_message(found[1].strip(), home) if found else None


def _sqlite_error_message(reason: str, home: Path) -> str | None:
    advice = next((advice for words, advice in _SQLITE_ADVICE.items() if words in reason), None)
    return None if advice is None else _line(home, f"the database of the Dagster home: {reason}", advice)


def _is_invalid_home(error: BaseException, cause: OSError) -> bool:
    """Return whether the error already has a message that the home can never be written, which is wrong use and no temporary problem."""
    return isinstance(error, NielsCacheError) and cause.errno in (errno.EROFS, errno.EACCES, errno.EPERM)


def _line(where: Path, reason: str, advice: str) -> str:
    room = f" ({file_size(free_bytes(where))} are free there)" if "room" in advice else ""
    return f"{where}: {reason}{room}; {advice}; finished caches are unchanged"
