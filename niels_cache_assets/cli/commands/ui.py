"""`ui`: the web UI on this machine, until Ctrl-C. What is served, and what is refused, is decided in defs/ui/server.py and ui/guard.py.

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

from niels_cache_assets.cli.command import Command, add_settings_options
from niels_cache_assets.cli.console import diagnostics, output
from niels_cache_runtime.errors import NielsCacheError

DEFAULT_PORT = 3000

LOOPBACK = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", metavar="N", type=_port, default=DEFAULT_PORT, help=f"where to listen (default: {DEFAULT_PORT})")
    parser.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help="127.0.0.1 or ::1: any other address is refused")
    parser.add_argument("--read-only", action="store_true", help="show, and change nothing; also beside another UI")
    add_settings_options(parser)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port (1 to 65535, or 0 for any that is free)")
    return int(text)


COMMAND = Command(
    description="""\
Serve the Dagster UI on this machine: assets, lineage, counts, sha256, checks, live logs, and buttons
that build. It has no login; web pages of others, though open in the same browser, can neither start
nor read anything (docs/ui.md says how, and how to reach it from afar).""",
    examples="""\
  niels-cache ui                        on http://127.0.0.1:3000, until Ctrl-C
  niels-cache ui --profile quickstart --port 3001
  niels-cache ui --read-only            to watch what a command line builds: no button works

Ctrl-C cancels the runs that were started here; the next one goes on where they were.""",
    add_options=_add_options,
    has_caches=False,
)


class _Stopped(BaseException):
    """By Ctrl-C, SIGTERM or the end of the terminal: how a server ends that does what it should."""


def run(arguments: argparse.Namespace) -> int:
    from niels_cache_assets.config.registry import CONFIG_VARIABLE, PROFILE_VARIABLE, load_registry

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
            from niels_cache_assets.defs.ui.server import serve  # takes seconds: dagster

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
