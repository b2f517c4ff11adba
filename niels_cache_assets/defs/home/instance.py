"""One Dagster home for the UI, the command line and CI. This module creates the home, writes its dagster.yaml, and opens it.

`python -m niels_cache_assets.defs.home.instance` opens the home and prints its path. A file lock is held meanwhile, because two processes
that create the same SQLite home at the same time could damage it permanently. After dagster.yaml is written, it belongs to the user. If an
interrupted start left an empty dagster.yaml, the file is written again. A truncated dagster.yaml is rejected. Dagster's telemetry is off
unless dagster.yaml turns it on.
"""

import fcntl
import os
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import dagster as dg

from niels_cache_assets.defs.home.found import HOME_VARIABLE, dagster_home
from niels_cache_assets.defs.private import InstanceRef, sqlite_event_log
from niels_cache_assets.disk.journal import write_atomically
from niels_cache_runtime.errors import NielsCacheError

CONFIG_NAME = "dagster.yaml"
LOCK_NAME = ".first_start.lock"
_TRIES, _WAIT_SECONDS = 6, 0.5
_NEW_TABLE_ERRORS = ("already exists", "UndefinedTable", "retries for DB creation")  # in errors of Postgres, and in one of Dagster
_NO_TELEMETRY = "DAGSTER_DISABLE_TELEMETRY"  # keeps Dagster's own processes, which read dagster.yaml themselves, from sending data
_create_engine, _engines = sqlite_event_log.create_engine, dict[str, Any]()


def _kept_engine(url: str, **settings: Any) -> Any:
    """Return the engine of a SQLite file. Dagster would create one for each event, and compile its statements again, which takes 5 ms."""
    if len(_engines) > 8:  # each run has a file of its own
        _engines.clear()
    return _engines.get(url) or _engines.setdefault(url, _create_engine(url, **settings))


sqlite_event_log.create_engine = _kept_engine  # type: ignore[assignment]


def ensure_instance(home: Path | None = None, *, overrides: Mapping[str, Any] | None = None) -> dg.DagsterInstance:
    """Open the instance of a home, create the home if it is missing, and set DAGSTER_HOME to it. Use the result in a `with` statement.

    Args:
        home: The Dagster home; by default that of `dagster_home`.
        overrides: Replacements for top-level tables of its dagster.yaml in this process; by default none.

    Raises:
        NielsCacheError: If the home cannot be written, or if its dagster.yaml is truncated or invalid.
    """
    home = dagster_home(home)
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)  # its files can be read by everyone
        with open(home / LOCK_NAME, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _write_config(home / CONFIG_NAME)
            instance = _open(_read_config(home, overrides or {}))
    except OSError as error:
        raise NielsCacheError(f"{error.filename or home}: {error.strerror}; point {HOME_VARIABLE} at a writable folder") from error
    os.environ[HOME_VARIABLE] = str(home)
    if not instance.telemetry_enabled:
        os.environ.setdefault(_NO_TELEMETRY, "yes")
    return instance


def _open(ref: InstanceRef) -> dg.DagsterInstance:
    """Open an instance, and retry if another home of a new database creates the same tables at this moment.

    Dagster also retries, but not if Postgres has the type of a table and not yet the table, or only some of the tables.
    """
    failures = 0
    while True:
        try:
            instance = dg.DagsterInstance.from_ref(ref)
            instance.get_runs_count()  # the storages create their tables on the first query
            instance.get_asset_keys(limit=1)
            return instance
        except Exception as error:  # of SQLAlchemy, and one of dagster-postgres that has no base class
            failures += 1
            if not any(text in str(error) for text in _NEW_TABLE_ERRORS) or failures == _TRIES:
                raise
            time.sleep(_WAIT_SECONDS)


def _write_config(path: Path) -> None:
    """Write the default dagster.yaml in one step if it is missing or empty.

    Raises:
        NielsCacheError: If it is a truncated copy of the default.
    """
    default = resources.files(__package__).joinpath(CONFIG_NAME).read_bytes()
    content = path.read_bytes().strip(b"\0 \t\r\n") if path.exists() else b""  # a power loss may leave a file of zeros
    if not content:
        write_atomically(path, default)
    elif content != default.strip() and default.startswith(content):
        raise NielsCacheError(
            f"{path}: is cut short: it has only the first {len(content)} of {len(default)} bytes; "
            "remove it to get the default again, or remove its first line if you shortened it yourself"
        )


def _read_config(home: Path, overrides: Mapping[str, Any]) -> InstanceRef:
    try:
        config = InstanceRef.from_dir(str(home), overrides=dict(overrides))
        telemetry = config.settings.get("telemetry")
        if isinstance(telemetry, dict) and "enabled" in telemetry:
            return config
        return config._replace(settings={**config.settings, "telemetry": {"enabled": False}})
    except OSError:
        raise
    except Exception as error:  # errors of the YAML parser, the decoder and Dagster, because this call only reads and checks the file
        reason = " ".join(str(error).split())
        raise NielsCacheError(f"{home / CONFIG_NAME}: not valid: {reason}; correct it, or remove it to get the default again") from error


def main(arguments: Sequence[str] = ()) -> None:
    """Create the Dagster home for Dagster's own programs, and print its path, or end with status 2. It takes no arguments."""
    try:
        with ensure_instance():
            print(f"Dagster home: {os.environ[HOME_VARIABLE]}")
    except NielsCacheError as error:
        print(f"niels-cache: error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
