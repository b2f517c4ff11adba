"""One Dagster home for the UI, the command line and CI: make it, write its dagster.yaml, open it once.

`python -m niels_cache_assets.defs.instance` does that and says where it is. Under a file lock, because two processes that create a
fresh SQLite home at once can leave it broken for good. dagster.yaml is the user's once it is written: an empty one, which an interrupted
start left, is written again, and one that is cut short is refused. Dagster's telemetry is off unless dagster.yaml turns it on. What a run
does with the instance is not decided here.
"""

import fcntl
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.instance.ref import InstanceRef  # the documented way to a home with overrides: none is public

from niels_cache_assets.disk.journal import write_whole
from niels_cache_runtime.errors import NielsCacheError

HOME_VARIABLE = "DAGSTER_HOME"
CONFIG_NAME = "dagster.yaml"
LOCK_NAME = ".first_start.lock"
_NO_TELEMETRY = "DAGSTER_DISABLE_TELEMETRY"  # keeps Dagster's processes that read dagster.yaml themselves from sending anything


def dagster_home(home: Path | None = None) -> Path:
    """The argument, else DAGSTER_HOME, else .dagster in the working directory; absolute, as Dagster wants it."""
    return (home or Path(os.environ.get(HOME_VARIABLE) or ".dagster")).expanduser().absolute()


def ensure_instance(home: Path | None = None, *, overrides: Mapping[str, Any] | None = None) -> dg.DagsterInstance:
    """Open the instance of a home that is made where it is missing, and point DAGSTER_HOME at it.

    `overrides` replace top-level tables of its dagster.yaml for this process. Close it by `with`. Raises NielsCacheError where the
    home cannot be written, or its dagster.yaml is cut short or not valid.
    """
    home = dagster_home(home)
    try:
        home.mkdir(parents=True, exist_ok=True)
        with open(home / LOCK_NAME, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _write_config(home / CONFIG_NAME)
            instance = dg.DagsterInstance.from_ref(_read_config(home, overrides or {}))
            instance.get_runs_count()  # the storages make their tables when first asked
            instance.get_asset_keys(limit=1)
    except OSError as error:
        raise NielsCacheError(
            f"{error.filename or home}: {error.strerror}; point {HOME_VARIABLE} at a folder that can be written"
        ) from error
    os.environ[HOME_VARIABLE] = str(home)
    if not instance.telemetry_enabled:
        os.environ.setdefault(_NO_TELEMETRY, "yes")
    return instance


def _write_config(path: Path) -> None:
    """Write the default dagster.yaml in one step if it is missing or empty. Raises NielsCacheError if the default is cut short."""
    default = resources.files(__package__).joinpath(CONFIG_NAME).read_bytes()
    content = path.read_bytes().strip(b"\0 \t\r\n") if path.exists() else b""  # a power loss may leave zeros
    if not content:
        write_whole(path, default)
    elif content != default.strip() and default.startswith(content):
        raise NielsCacheError(
            f"{path}: is cut short: it holds the first {len(content)} of the {len(default)} bytes that were to be written; "
            "remove it to get the default again, or its first line if you shortened it yourself"
        )


def _read_config(home: Path, overrides: Mapping[str, Any]) -> InstanceRef:
    try:
        read = InstanceRef.from_dir(str(home), overrides=dict(overrides))
        said = read.settings.get("telemetry")
        if isinstance(said, dict) and "enabled" in said:
            return read
        return read._replace(settings={**read.settings, "telemetry": {"enabled": False}})
    except OSError:
        raise
    except Exception as error:  # of the YAML parser, the decoder, and several of Dagster's: this call only reads and checks the file
        reason = " ".join(str(error).split())
        raise NielsCacheError(f"{home / CONFIG_NAME}: not valid: {reason}; correct it, or remove it to get the default again") from error


def main(arguments: Sequence[str] = ()) -> None:
    """Make the Dagster home for programs of Dagster's own, and say where it is. Takes no arguments."""
    with ensure_instance():
        print(f"Dagster home: {os.environ[HOME_VARIABLE]}")


if __name__ == "__main__":
    main()
