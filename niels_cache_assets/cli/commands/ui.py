"""`ui`: the web UI on this machine, until Ctrl-C. What is served, and what is refused, is decided in defs/web.py and web_guard.py.

The address is taken before anything else is loaded: that a port is in use is known at once.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import socket
import sys
from types import FrameType
from typing import NoReturn

from niels_cache_assets.cli.console import diagnostics, output
from niels_cache_assets.registry import CONFIG_VARIABLE, PROFILE_VARIABLE, load_registry
from niels_cache_runtime.errors import NielsCacheError

LOOPBACK = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Stopped(BaseException):
    """By Ctrl-C, SIGTERM or the end of the terminal: how a server ends that does what it should."""


def run(arguments: argparse.Namespace) -> int:
    with _listen(arguments.host, arguments.port) as listener:
        load_registry(profile=arguments.profile, config=arguments.config)  # what is wrong in it, before anything starts
        for variable, value in ((PROFILE_VARIABLE, arguments.profile), (CONFIG_VARIABLE, arguments.config)):
            if value is not None:
                os.environ[variable] = value  # for the processes that load the definitions
        name = "[::1]" if listener.family == socket.AF_INET6 else arguments.host
        address = f"http://{name}:{listener.getsockname()[1]}"
        console = output()
        diagnostics().print("starting the UI ...", soft_wrap=True)
        for number in SIGNALS:
            signal.signal(number, _hang_up if number == signal.SIGHUP else _stop)
        try:
            from niels_cache_assets.defs.web import serve  # takes seconds: dagster

            watching = " (read-only)" if arguments.read_only else ""
            said = f"{address}{watching}; the graph: {address}/asset-groups; Ctrl-C stops it"
            serve(listener, read_only=arguments.read_only, ready=lambda: console.print(said, soft_wrap=True))
        except _Stopped:
            console.print("stopped")
            sys.stdout.flush()
            os._exit(0)  # all is closed; threads of gRPC's would hold up the exit by a second
    return 0


def _listen(host: str, port: int) -> socket.socket:
    if host not in LOOPBACK:
        raise NielsCacheError(
            f"--host {host}: the UI has no login, so it listens on this machine only (127.0.0.1); from afar, ssh -L "
            f"{port}:127.0.0.1:{port} this-machine, or put a proxy that asks who you are in front of it (docs/ui.md)"
        )
    listener = socket.socket(LOOPBACK[host])
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        what = "in use" if error.errno == errno.EADDRINUSE else f"not to be had: {error.strerror}"
        raise NielsCacheError(f"port {port} is {what}; take another: --port {port + 1}") from None
    return listener


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    for each in SIGNALS:
        signal.signal(each, _leave)
    raise _Stopped


def _hang_up(number: int, frame: FrameType | None) -> None:
    """As SIGTERM, which the web server waits for: an exception out of one of its callbacks would end nothing."""
    os.kill(os.getpid(), signal.SIGTERM)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Someone does not want to wait. The services end by themselves."""
    os._exit(128 + number)
