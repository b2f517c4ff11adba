"""Messages about builds: to a webhook on loopback and to a command. A fault of the other side changes no byte of the build."""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.cli import main
from niels_cache_assets.config.registry import load_registry
from niels_cache_assets.config.running import NotifySettings
from niels_cache_assets.notify.sending import Messenger
from niels_cache_assets.notify.watch import Watch
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import writer_lock
from tests.launches import Recorder
from tests.parts_project import NAME, PartsProject, build, stream_of

SECRET = "T0K3N-of-the-webhook"
PART = f"part/{NAME}/part-00001"


class Webhook:
    """A server on 127.0.0.1. `lines`: the texts that it got. `answer`: called before each answer; it returns the status."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.answer: Callable[[], int] = lambda: 200
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path == f"/{SECRET}"
                webhook.lines.append(body["text"])
                self.send_response(webhook.answer())
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/{SECRET}"


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    webhook = Webhook()
    yield webhook
    webhook.server.shutdown()
    webhook.server.server_close()


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> PartsProject:
    project = PartsProject(tmp_path, tiny_model)
    project.write([9, 12])
    return project


def telling(found: Graph, **settings: Any) -> Graph:
    return graph(replace(found.registry, notify=NotifySettings(**settings)), found.root)


def broken(found: Graph) -> Graph:
    """Put a file in the way of a part, so that its build fails."""
    build(found, ["tokenizer", f"plan/{NAME}"])
    folder = found[PART].directory
    folder.mkdir(parents=True)
    (folder / "notes of mine").write_text("")
    return found


def fail(found: Graph) -> list[str]:
    """Return the log of the build of a part that fails."""
    log: list[str] = []
    with pytest.raises(NielsCacheError):
        materialize(found[PART], log=log.append)
    return log


def test_a_failure_tells_the_part_and_the_reason_in_one_line(project: PartsProject, webhook: Webhook) -> None:
    log = fail(telling(broken(project.graph(2)), webhook=webhook.address))
    [line] = webhook.lines
    assert f"{NAME}/part-00001" in line
    assert "notes of mine" in line
    assert os.uname().nodename in line
    assert "\n" not in line
    assert not any("notify" in each for each in log)


def test_only_a_data_set_tells_that_it_is_done(project: PartsProject, webhook: Webhook) -> None:
    found = telling(project.graph(2), webhook=webhook.address)
    build(found)
    build(found)
    [line] = webhook.lines
    assert "done" in line
    assert NAME in line
    assert "part" not in line


def test_only_the_chosen_events_are_told(project: PartsProject, webhook: Webhook) -> None:
    fail(telling(broken(project.graph(2)), webhook=webhook.address, on=["done"]))
    assert webhook.lines == []


def test_a_command_gets_the_line_on_stdin_and_in_its_arguments(project: PartsProject, tmp_path: Path) -> None:
    script = "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + '|' + sys.stdin.read())"
    fail(telling(broken(project.graph(2)), command=[sys.executable, "-c", script, str(tmp_path / "told"), "{text}"]))
    argument, _, given = (tmp_path / "told").read_text().partition("|")
    assert f"{NAME}/part-00001" in argument
    assert given == f"{argument}\n"


def test_a_build_that_another_process_makes_is_no_failure(project: PartsProject, webhook: Webhook) -> None:
    found = telling(project.graph(2), webhook=webhook.address)
    build(found, ["tokenizer", f"plan/{NAME}"])
    with writer_lock(found[PART].directory), pytest.raises(NielsCacheError, match="another build"):
        materialize(found[PART])
    assert webhook.lines == []


@pytest.mark.parametrize("fault", ["down", "slow", "refuses", "no command", "command fails", "command hangs", "no variable"])
def test_a_message_that_cannot_be_sent_costs_one_warning_and_no_byte(
    project: PartsProject, webhook: Webhook, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("niels_cache_assets.notify.sending.PATIENCE_SECONDS", 0.3)
    hanging = threading.Event()
    settings: dict[str, Any] = {"webhook": webhook.address}
    if fault == "down":
        webhook.server.shutdown()
        webhook.server.server_close()
    elif fault == "slow":
        webhook.answer = lambda: 200 if hanging.wait(30) else 500
    elif fault == "refuses":
        webhook.answer = lambda: 403
    elif fault == "no variable":
        settings = {"webhook": "$NO_SUCH_VARIABLE"}
    else:
        programs = {"no command": ["no-such-program"], "command fails": ["false", SECRET], "command hangs": ["sleep", "30", SECRET]}
        settings = {"command": programs[fault]}
        monkeypatch.setattr("niels_cache_assets.notify.sending._SECONDS", 0.1)
    silent, found = project.graph(2, root="silent"), telling(project.graph(2), **settings)
    build(silent)
    log: list[str] = []
    began = time.monotonic()
    build(found, log=log.append)
    build(graph(found.registry, found.root), [f"pretrain/{NAME}"])
    waited = time.monotonic() - began
    hanging.set()
    assert stream_of(project.cache()) == stream_of(project.cache("silent"))
    assert sum("[notify]" in line for line in log) == 1
    assert SECRET not in "".join(log)
    assert waited < 20, "the patience of a process, and the build"


def test_many_messages_share_the_patience_of_one_process(webhook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_cache_assets.notify.sending.PATIENCE_SECONDS", 0.4)
    hanging, log = threading.Event(), list[str]()
    webhook.answer = lambda: 200 if hanging.wait(30) else 500
    messenger = Messenger(NotifySettings(webhook=webhook.address))
    began = time.monotonic()
    for number in range(40):
        messenger.send(f"line {number}")
        messenger.settle(log.append)
    assert time.monotonic() - began < 8, "not 40 times the patience"
    assert len(log) == 1
    assert len(webhook.lines) < 40
    hanging.set()


def test_a_standstill_is_told_once_until_there_is_progress(webhook: Webhook) -> None:
    watch = Watch(NotifySettings(webhook=webhook.address, stall_minutes=0.15 / 60), f"part/{NAME}/part-00002", lambda line: None)

    def told(count: int) -> None:
        deadline = time.monotonic() + 20
        while len(webhook.lines) < count and time.monotonic() < deadline:
            time.sleep(0.01)

    watch.log("WARNING: hub: no answer")
    with watch.standstill(None) as progressed:
        assert progressed is not None
        told(1)
        time.sleep(0.4)
        assert len(webhook.lines) == 1
        progressed(object())
        told(2)
    time.sleep(0.3)
    assert len(webhook.lines) == 2
    assert all(f"{NAME}/part-00002" in line and "hub" in line for line in webhook.lines)


def test_progress_keeps_a_standstill_away_and_is_passed_on(webhook: Webhook) -> None:
    passed: list[object] = []
    watch = Watch(NotifySettings(webhook=webhook.address, stall_minutes=1.0 / 60), f"pretrain/{NAME}", lambda line: None)
    with watch.standstill(passed.append) as progressed:
        assert progressed is not None
        for number in range(30):
            progressed(number)
            time.sleep(0.05)
    assert passed == list(range(30))
    assert webhook.lines == []


def test_bare_commands_tell_a_failure_and_done(project: PartsProject, webhook: Webhook, capsys: pytest.CaptureFixture[str]) -> None:
    found = broken(project.graph(2, build=f"[notify]\nwebhook = {webhook.address!r}"))
    where = ["--config", found.registry.origin, "--cache-dir", str(found.root)]
    assert main(["part", NAME, "1", *where]) == 1
    assert [f"{NAME}/part-00001" in line and "failed" in line for line in webhook.lines] == [True]
    (found[PART].directory / "notes of mine").unlink()
    assert main(["part", NAME, "1", *where]) == main(["part", NAME, "0", *where]) == 0
    assert len(webhook.lines) == 1, "parts that are done tell nobody"
    assert main(["part", NAME, "--seal", *where]) == 0
    assert ["done" in line and NAME in line for line in webhook.lines[1:]] == [True]
    assert SECRET not in "".join(capsys.readouterr())


def test_a_launch_through_dagster_tells_a_failure_and_done(
    project: PartsProject, webhook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from niels_cache_assets.defs.launcher import launch_builds

    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WHERE_TO_TELL", webhook.address)
    found = telling(broken(project.graph(2)), webhook="$WHERE_TO_TELL")
    recorder = Recorder()
    launch_builds(found.registry, root=found.root, listener=recorder)
    assert [f"{NAME}/part-00001" in line and "failed" in line for line in webhook.lines] == [True]
    (found[PART].directory / "notes of mine").unlink()
    found[PART].directory.rmdir()
    launch_builds(found.registry, root=found.root, listener=recorder)
    assert ["done" in line and NAME in line for line in webhook.lines[1:]] == [True]
    home = b"".join(path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert len(home) > 100_000
    assert SECRET.encode() not in home


@pytest.mark.parametrize(
    "line",
    [
        f'webhook = "ftp://host/{SECRET}"',
        f'webhook = "{SECRET}"',
        f'webhook = ["https://host/{SECRET}"]',
        f'webhook = "https://user:{SECRET}@host/"',
        f'webhook = "https://host/{SECRET} "',
        f'webhok = "https://host/{SECRET}"',
    ],
)
def test_no_message_shows_the_address(tmp_path: Path, line: str) -> None:
    for text in (f"[notify]\n{line}\n", f'notify = "https://host/{SECRET}"\n'):
        (tmp_path / "niels_cache.toml").write_text(text)
        with pytest.raises(NielsCacheError, match="notify") as caught:
            load_registry(config=str(tmp_path / "niels_cache.toml"))
        assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_the_registry_shows_no_address(tmp_path: Path) -> None:
    (tmp_path / "niels_cache.toml").write_text(f'[notify]\nwebhook = "https://host/{SECRET}"\n')
    registry = load_registry(config=str(tmp_path / "niels_cache.toml"))
    assert registry.notify.tells("failure")
    assert SECRET not in f"{registry!r}{registry.notify.model_dump()}{registry.notify.model_dump_json()}"


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", "logger '{text}'"],
        ["/bin/bash", "-lc", 'mail -s "{text}" me'],
        ["sudo", "-n", "sh", "-c", "{text}"],
        ["python3", "-c", "print('{text}')"],
        ["perl", "-e", "print q({text})"],
        ["ssh", "host", "logger", "{text}"],
    ],
)
def test_a_line_inside_a_script_is_a_warning_when_the_configuration_is_loaded(
    tmp_path: Path,
    command: list[str],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "niels_cache.toml"
    secret = ["curl", SECRET]
    path.write_text(f"[notify]\ncommand = {json.dumps([*command, *secret])}\n")
    assert main(["status", "--quiet", "--config", str(path), "--cache-dir", str(tmp_path / "cache")]) == 0
    said = capsys.readouterr().err
    assert "WARNING" in said
    assert f"{path}: [notify] command" in said
    assert SECRET not in said
    monkeypatch.setenv("NIELS_CACHE_CONFIG", str(path))
    from niels_cache_assets.defs.assembly import build_defs

    build_defs()
    assert f"{path}: [notify] command" in caplog.text


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["curl", "-s", "-d", "{text}", "https://ntfy.sh/topic"],
        ["notify-send", "{text}"],
        ["sh", "-c", 'logger "$1"', "sh", "{text}"],
        ["sh", "-c", "cat >> builds.log"],
        ["mail", "-c", "{text}"],
    ],
)
def test_a_line_as_a_word_of_its_own_is_no_warning(command: list[str]) -> None:
    assert NotifySettings(command=command).warnings("niels_cache.toml") == []
