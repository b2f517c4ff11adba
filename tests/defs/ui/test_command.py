"""Refusals of `niels-cache ui` before it starts anything. It refuses addresses, ports, configurations, and a Dagster that the guard does
not fit.
"""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from starlette.routing import Route

from niels_cache_assets.cli import main
from niels_cache_assets.defs.ui import server as web
from niels_cache_assets.defs.ui import services
from niels_cache_assets.defs.ui.guard import WebGuard
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.messages import missing
from tests.helpers.ui.running import is_alive, wait_until


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the message that the command line prints."""
    assert main(["ui", *words]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    return text


def test_a_port_that_is_in_use_or_no_port_is_said_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert missing(refusal(capsys, "--port", str(port)), f"port {port} ", "in use", f"--port {port + 1}\n") == []
    for wrong in ("65536", "-1", "http", "²"):
        assert "not a port" in refusal(capsys, f"--port={wrong}")


def test_a_wrong_configuration_is_said_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong.toml").write_text("[pretrain.x]\nsource = 'jsonk'\n")
    monkeypatch.setenv("NIELS_CACHE_CONFIG", "")  # the command sets it for its children; this takes it back after the test
    assert "jsonk" in refusal(capsys, "--config", str(tmp_path / "wrong.toml"), "--port", "0")


def test_a_temporary_folder_whose_path_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(NielsCacheError, match=f"{services.MAX_SOCKET_BYTES} bytes.*TMPDIR"):
        services.Services(instance, tmp_path / ("x" * services.MAX_SOCKET_BYTES), "here")


def other_signature(context: Any) -> None:
    """The function that makes the app, after an update."""


@pytest.mark.parametrize(
    ("target", "replacement", "what"),
    [
        ("dagster_webserver.app.create_app_from_workspace_process_context", other_signature, "takes 1 positional argument"),
        ("dagster_webserver.app.DagsterWebserver.build_static_routes", lambda _: [Route("/run", print)], "not cover: ANY /run;"),
        ("dagster._core.workspace.context.WorkspaceProcessContext", None, "'NoneType' object"),
    ],
)
def test_what_the_guard_does_not_fit_is_not_served(
    target: str, replacement: Any, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services: Any = SimpleNamespace(workspace=tmp_path / "workspace.yaml")
    services.workspace.write_text("load_from: []")
    settings: dict[str, Any] = {"name": "127.0.0.1", "port": 3000, "read_only": False, "open_caches": None}
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        with web._guarded(instance, services, **settings) as guard:
            assert isinstance(guard, WebGuard)
        monkeypatch.setattr(target, replacement)
        with pytest.raises(NielsCacheError) as raised, web._guarded(instance, services, **settings):
            pass
    assert missing(raised.value, "guard", f"installed Dagster {dg.__version__}", what, "(constraints.txt)") == []


def test_a_service_that_cannot_be_started_is_the_error_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **keys: Any) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(services.subprocess, "Popen", refuse)
    with (
        dg.DagsterInstance.ephemeral() as instance,
        pytest.raises(NielsCacheError, match=r"code server .*: .*Cannot allocate memory"),
        services.Services(instance, tmp_path, "here"),
    ):
        pass


def test_the_end_of_the_terminal_in_the_middle_of_a_request_ends_the_server() -> None:
    """In a callback of the event loop, only exceptions of the system (such as SystemExit) end the loop."""
    code = """\
import argparse, asyncio, os, signal, socket, sys, types
import uvicorn
from niels_cache_assets.cli.commands import ui

def serve(listener, names, *, read_only, ready, open_caches):
    async def run():
        loop = asyncio.get_running_loop()
        loop.call_later(0.2, os.kill, os.getpid(), signal.SIGHUP)
        loop.call_later(45, os._exit, 3)
        await uvicorn.Server(uvicorn.Config(lambda *_: None, lifespan="off", log_level="critical")).serve(sockets=[listener])
    asyncio.run(run())

sys.modules["niels_cache_assets.defs.ui.server"] = types.SimpleNamespace(serve=serve)
ui.load_registry = lambda **_: None
ui.run(argparse.Namespace(host="127.0.0.1", port=0, profile=None, config=None, cache_dir=None, read_only=False))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "stopped\n"), ended.stderr


def test_an_attended_module_ends_with_who_started_it_and_so_does_all_that_it_started(tmp_path: Path) -> None:
    """The starter ends by SIGKILL, which leaves it no time for a message, and the others ignore SIGINT."""
    wait = "import os, signal, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    child = f"{wait}; print(os.getpid(), flush=True); time.sleep(300)"
    (tmp_path / "patient.py").write_text(
        f"{wait}\nimport subprocess\nprint(os.getpid(), sys.argv[1:], flush=True)\nsubprocess.run([sys.executable, '-c', {child!r}])\n"
    )
    starter = f"""
import os, subprocess, sys, time
read_end, write_end = os.pipe()
command = [sys.executable, "-m", "niels_cache_assets.base.processes", str(read_end), "patient", "an argument"]
subprocess.Popen(command, pass_fds=[read_end], start_new_session=True, cwd={str(tmp_path)!r})
time.sleep(300)
"""
    process = subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    module, _, arguments = process.stdout.readline().partition(" ")
    assert arguments == "['an argument']\n"
    started = [int(module), int(process.stdout.readline())]
    assert all(map(is_alive, started))
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(is_alive, started)), seconds=30, what="what was attended still runs")
