"""What the disk or the database of a Dagster home refuses, as one line that says what, where and what to do.

Dagster writes an event for nearly everything it does, so a full disk shows in the middle of its code, as the database's own error. Nothing
is written on the way to the message. Errors of anything else are left as they are.
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

from niels_cache_assets.disk.space import free_bytes
from niels_cache_assets.show.wording import file_size
from niels_cache_runtime.errors import NielsCacheError, NotWrittenError

_VARIABLE = "DAGSTER_HOME"
_ELSEWHERE = f"point {_VARIABLE} at a folder on another disk"
_OF_THE_DISK = {
    errno.ENOSPC: f"make room, or {_ELSEWHERE}",
    errno.EDQUOT: f"raise the quota, make room, or {_ELSEWHERE}",
    errno.EIO: f"the disk may be failing: look at the system's log, or {_ELSEWHERE}",
    errno.EROFS: f"{_ELSEWHERE}, one that can be written",
    errno.EACCES: f"make it writable for you, or {_ELSEWHERE}",
    errno.EPERM: f"make it writable for you, or {_ELSEWHERE}",
}
# What SQLite says, in its words.
_OF_SQLITE = {
    "full": f"make room, or {_ELSEWHERE}",
    "disk I/O error": f"the disk or its quota may be full, or failing: make room, or {_ELSEWHERE}",
    "readonly": f"make its files writable for you, or {_ELSEWHERE}",
    "unable to open": f"make room and its files writable for you, or {_ELSEWHERE}",
    "locked": "another program holds the database: try again when that has ended",
    "malformed": f"move the damaged home away (only its history is lost, no cache), or {_ELSEWHERE}",
    "not a database": f"move the damaged home away (only its history is lost, no cache), or {_ELSEWHERE}",
}
_OF_A_SERVER = "see that the database of its dagster.yaml runs and has room, and try again"


class _Refused(BaseException):
    """Ends the run that could not record something: what catches Exception would print the error, and try to record that."""


@contextmanager
def home_refusals(home: Path) -> Iterator[None]:
    """What the home refuses in the block is a NotWrittenError. `home` need not be there yet."""
    try:
        yield
    except _Refused as refused:
        raise NotWrittenError(str(refused)) from refused
    except NotWrittenError:
        raise
    except Exception as error:
        said = _refusal(error, home)
        if said is None:
            raise
        raise NotWrittenError(said) from error


@contextmanager
def ending_refused_runs(instance: dg.DagsterInstance, home: Path) -> Iterator[None]:
    """In the block, a run of this thread ends with its first event that the home refuses, and Dagster prints nothing of that."""
    record: Callable[..., Any] = instance.handle_new_event
    running = threading.get_ident()

    def record_or_end(*event: Any, **settings: Any) -> Any:
        try:
            return record(*event, **settings)
        except Exception as error:
            said = _refusal(error, home)
            if said is None or threading.get_ident() != running:
                raise
            raise _Refused(said) from error

    instance.handle_new_event = record_or_end  # type: ignore[method-assign]
    try:
        yield
    finally:
        del instance.handle_new_event


def _refusal(error: BaseException, home: Path) -> str | None:
    """The whole line; None where the error is not of the disk or the database."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DBAPIError):
            cause = cause.orig or cause
        if isinstance(cause, sqlite3.Error):
            return _of_sqlite(str(cause), home)
        if isinstance(cause, DBAPIError) or type(cause).__module__.split(".")[0] in ("psycopg2", "psycopg", "pymysql", "MySQLdb"):
            return _line(home, f"the database of the Dagster home: {' '.join(str(cause).split())}", _OF_A_SERVER)
        if isinstance(cause, OSError) and cause.errno in _OF_THE_DISK and not _is_a_wrong_home(error, cause):
            return _line(Path(cause.filename) if isinstance(cause.filename, str) else home, f"{cause.strerror}", _OF_THE_DISK[cause.errno])
        cause = cause.__cause__ or cause.__context__
    return None


def recorded_refusal(message: str, home: Path) -> str | None:
    """The same for an error of SQLite that Dagster recorded; None for any other error."""
    found = re.search(r"sqlite3\.\w+\) ([^\n\[(]+)", message)
    return _of_sqlite(found[1].strip(), home) if found else None


def _of_sqlite(reason: str, home: Path) -> str | None:
    advice = next((advice for words, advice in _OF_SQLITE.items() if words in reason), None)
    return None if advice is None else _line(home, f"the database of the Dagster home: {reason}", advice)


def _is_a_wrong_home(error: BaseException, cause: OSError) -> bool:
    """Whether the message is there already, and the place can never be written: wrong use, not a disk that refuses today."""
    return isinstance(error, NielsCacheError) and cause.errno in (errno.EROFS, errno.EACCES, errno.EPERM)


def _line(where: Path, reason: str, advice: str) -> str:
    room = f" ({file_size(free_bytes(where))} are free there)" if "room" in advice else ""
    return f"{where}: {reason}{room}; {advice}; finished caches are as they were"
