"""The start of the process that downloads (`fetcher`). Many processes may need it at once, and one of them starts it."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.remote.ledger import Ledger, Presence

_VARIABLES = ("AWS_", "GOOGLE_", "AZURE_", "HTTP_", "HTTPS_", "NO_PROXY")  # requests depend on them
_PAUSE_SECONDS = 0.01
_START_SECONDS = 20.0  # of one start; a second fetcher ends at once if the first one was only slow
_STARTS = 3


def group_of_environment() -> str:
    """Return the group of this process: a hash of the user and of the environment that requests depend on."""
    chosen = sorted(f"{name}={value}" for name, value in os.environ.items() if name.upper().startswith(_VARIABLES))
    return hashlib.sha256("\0".join([str(os.getuid()), *chosen]).encode(errors="surrogateescape")).hexdigest()[:16]


def start_fetcher(ledger: Ledger, group: str) -> None:
    """Start a fetcher of the group, and wait until it is ready. Return at once if another process is starting it.

    If a signal has ended the fetcher before it was ready, such as that of a full memory, another one is started. Raises NielsCacheError if
    it cannot start.
    """
    with ledger.changing():
        if ledger.is_alive("fetchers", group) or ledger.is_alive("fetchers", f"{group}.starting"):
            return
        starting = Presence(ledger, "fetchers", f"{group}.starting")
    try:
        for _ in range(_STARTS):
            code = 0
            with suppress(ChildProcessError):  # if this process ignores SIGCHLD, the kernel tells it no status
                _, status = os.waitpid(_spawn(ledger.folder, group), 0)  # it forks the fetcher, and ends
                code = os.waitstatus_to_exitcode(status)
            began = time.monotonic()
            while not code and time.monotonic() - began < _START_SECONDS:
                with ledger.changing():
                    if ledger.is_alive("fetchers", group):
                        return
                time.sleep(_PAUSE_SECONDS)
            if code > 0:  # an error that comes again
                break
        raise NielsCacheError(
            f"{ledger.folder}: the process that downloads did not start (exit status {code}); its message stands above; "
            f"try {sys.executable} -m niels_cache_runtime.remote.fetcher"
        )
    finally:
        with ledger.changing():
            starting.end()


def _spawn(folder: Path, group: str) -> int:
    """Start the process in a session of its own, so that Ctrl-C in a terminal does not reach it. Return its number.

    It imports nothing from the working directory, which may have a json.py.
    """
    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-P", "-m", "niels_cache_runtime.remote.fetcher", str(folder), group]
    nothing = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return os.posix_spawn(sys.executable, command, environment, file_actions=nothing, setsid=True)
