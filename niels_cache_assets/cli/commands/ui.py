"""The command `ui`, which serves the web UI on this machine until Ctrl-C.

defs/ui/server.py is the server, and defs/ui/guard.py refuses requests of foreign web pages. The port is opened before the slow imports, so
that a used port is reported at once.
"""

import argparse
import errno
import os
import signal
import socket
from types import FrameType
from typing import NoReturn

from niels_cache_assets.cli.command import Command, option, switch
from niels_cache_assets.cli.console import diagnostics, display, stdout
from niels_cache_runtime.errors import NielsCacheError

DEFAULT_PORT = 3000

HOST = "127.0.0.1"  # the UI has no login
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give 1 to 65535, or 0 for any free port")
    return int(text)


COMMAND = Command(
    options=(
        option("--port", "N", f"port to listen on (default: {DEFAULT_PORT})", type=_port, default=DEFAULT_PORT),
        switch("--read-only", "allow no changes; can run alongside another UI"),
    ),
    description="""\
Start the Dagster UI on this machine, with assets, lineage, counts, sha256, checks, live logs, and
buttons to start builds. The UI requires no login, but other web pages in the same browser can neither
start nor read anything. docs/ui.md explains this protection, and how to reach the UI from a different
machine.""",
    examples="""\
  niels-cache ui                        on http://127.0.0.1:3000, until Ctrl-C
  niels-cache ui --read-only            watch a build from the command line; all buttons are inactive

Ctrl-C cancels the runs that you started in this UI; the next build resumes them.""",
    has_json=False,
)


class _Stopped(BaseException):
    """The normal end of the server, after Ctrl-C, SIGTERM or the end of the terminal."""


def run(arguments: argparse.Namespace) -> int:
    """Serve the UI until a signal ends it."""
    from niels_cache_assets.project.registry import CONFIG_VARIABLE, PROFILE_VARIABLE, ROOT_VARIABLE, load_registry

    with _listen(arguments.port) as listener:
        registry = load_registry(profile=arguments.profile, config=arguments.config)  # report a wrong configuration before anything starts
        if arguments.cache_dir is not None and registry.profile == "quickstart":
            raise NielsCacheError(f"--cache-dir: the UI shows this profile in the folder quickstart of {ROOT_VARIABLE}; set this variable")
        for variable, value in (
            (PROFILE_VARIABLE, arguments.profile),
            (CONFIG_VARIABLE, arguments.config),
            (ROOT_VARIABLE, arguments.cache_dir),
        ):
            if value is not None:
                os.environ[variable] = value  # for the processes that load the definitions
        address = f"http://{HOST}:{listener.getsockname()[1]}"
        diagnostics().print("starting the UI ...")
        for number in SIGNALS:
            # the web server handles SIGTERM; an exception raised in a callback would not end it
            signal.signal(number, (lambda *_: os.kill(os.getpid(), signal.SIGTERM)) if number == signal.SIGHUP else _stop)
        try:
            from niels_cache_assets.cli.context import open_registry
            from niels_cache_assets.defs.keys import names_of  # takes seconds: dagster
            from niels_cache_assets.defs.ui.server import serve

            mode = " (read-only)" if arguments.read_only else ""
            message = f"{address}{mode}; graph: {address}/asset-groups; search: {address}/search; press Ctrl-C to stop"
            serve(
                listener,
                names_of(registry),
                read_only=arguments.read_only,
                ready=lambda: display(message),
                open_caches=lambda: open_registry(arguments),
            )
        except _Stopped:
            display("stopped")
            stdout().flush()
            os._exit(0)  # everything is closed, and threads of gRPC would delay the exit by a second
    return 0


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except OSError as error:
        listener.close()
        what = "in use" if error.errno == errno.EADDRINUSE else f"not available: {error.strerror}"
        raise NielsCacheError(f"port {port} is {what}; choose another one: --port {port + 1}") from None
    return listener


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    for each in SIGNALS:  # a second signal ends this process at once; the services of Dagster end by themselves
        signal.signal(each, lambda second, _: os._exit(128 + second))
    raise _Stopped
