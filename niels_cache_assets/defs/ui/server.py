"""The web UI: Dagster's own web server behind ui/guard.py (a filter of requests), in this process, and Dagster's services (services.py).

Dagster has no hook for a layer in front of its server. So this module calls the functions behind Dagster's own command line. An update may
change these functions, or the guard may no longer fit the server. Then nothing is served, and a NielsCacheError says so before the port
answers.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import dagster as dg
import uvicorn

from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.defs.home.abandoned import ending_abandoned_runs
from niels_cache_assets.defs.home.home_errors import home_errors
from niels_cache_assets.defs.home.instance import dagster_home, ensure_instance
from niels_cache_assets.defs.keys import DefinitionNames
from niels_cache_assets.defs.private import web_context
from niels_cache_assets.defs.ui.guard import WebGuard, refuse_unknown_routes
from niels_cache_assets.defs.ui.services import Services
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import BusyError, hold_lock, lock_owner

_NAME = "ui"  # name of the lock in the home
_REFRESH_MILLISECONDS = 2_000  # the interval at which the page asks for new states; `dagster dev` has the same interval
_DATABASE = {"statement_timeout": 15_000, "pool_recycle": 3_600, "max_overflow": 20}  # Dagster's own defaults; SQLite ignores them
_CHECK_SECONDS = 1.0


def serve(
    listener: socket.socket,
    names: DefinitionNames,
    *,
    read_only: bool,
    ready: Callable[[], None],
    open_caches: Callable[[], tuple[Registry, Path]],
) -> None:
    """Serve the UI on a bound socket until an exception ends the server, for example the exception of a signal.

    Args:
        listener: The bound socket.
        names: The names of the definitions.
        read_only: Whether the UI can change nothing, and no daemon is started. Otherwise, there can be only one UI for each Dagster home.
        ready: Called when the UI answers.
        open_caches: Returns the configuration and the cache root, for the pages of the search.

    Raises:
        NielsCacheError: If a different process runs a UI on this home, if the home cannot be used, if the guard does not fit the web
            server, or if a service ends by itself.
        NotWrittenError: If the home's disk or database fails.
    """
    host, port = listener.getsockname()[:2]
    with (
        home_errors(dagster_home()),
        ensure_instance() as instance,
        TemporaryDirectory(prefix="niels-cache-ui-") as folder,  # not in the home, because the path of a socket is limited
        _exclusive_home(Path(instance.root_directory), shared=read_only),
        Services(instance, Path(folder), names.location) as services,
        _guarded(instance, services, name=host, port=port, read_only=read_only, open_caches=open_caches) as guard,
        ExitStack() as stack,
    ):
        if not read_only:
            stack.enter_context(ending_abandoned_runs(instance))  # because queued runs wait for the slots of abandoned runs
            services.start_daemon()
        asyncio.run(_serve(guard, listener, services, ready))


@contextmanager
def _exclusive_home(home: Path, *, shared: bool) -> Iterator[None]:
    """Lock the home, because two daemons on one home would launch every queued run twice."""
    with ExitStack() as stack:
        if not shared:
            try:
                stack.enter_context(hold_lock(home / _NAME))
            except BusyError:
                who = lock_owner(home / _NAME) or "which has just ended"
                raise NielsCacheError(
                    f"{home}: another UI already uses this home: {who}; open that one, or start this one with --read-only"
                ) from None
        yield


@contextmanager
def _guarded(
    instance: dg.DagsterInstance,
    services: Services,
    *,
    name: str,
    port: int,
    read_only: bool,
    open_caches: Callable[[], tuple[Registry, Path]],
) -> Iterator[WebGuard]:
    """Yield the guard in front of the web server.

    Raises:
        NielsCacheError: If the server has a route without a rule.
    """
    with _explain_incompatible_dagster():
        from dagster_webserver.app import create_app_from_workspace_process_context
        from dagster_webserver.version import __version__

        instance.optimize_for_webserver(**_DATABASE)
        context = web_context(instance, services.workspace, version=__version__, read_only=read_only)
    with context:
        with _explain_incompatible_dagster():
            app = create_app_from_workspace_process_context(context, "", _REFRESH_MILLISECONDS)
            refuse_unknown_routes(app.routes)
        pages = load_beside("inspection", "web").SearchPages(open_caches)
        yield WebGuard(app, port=port, name=name, read_only=read_only, search=pages)


@contextmanager
def _explain_incompatible_dagster() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise NielsCacheError(
            f"the UI does not start: its guard does not fit the installed Dagster {dg.__version__}: {error}; "
            "install the tested version (constraints.txt)"
        ) from error


async def _serve(guard: WebGuard, listener: socket.socket, services: Services, ready: Callable[[], None]) -> None:
    config = uvicorn.Config(
        guard, lifespan="off", log_level="warning", timeout_graceful_shutdown=1, proxy_headers=False, server_header=False
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if not serving.done():
        ready()
    try:
        while not serving.done():
            services.check()
            await asyncio.wait([serving], timeout=_CHECK_SECONDS)
    finally:
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await serving
