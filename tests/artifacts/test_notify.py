"""Messages about builds, to a command. A fault of the command changes no byte of the build."""

import json
import os
import shlex
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts import notify as watching
from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.notify import BuildNotifier, notifying
from niels_cache_assets.cli import main
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.project.running import NotifySettings
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import hold_lock
from tests.helpers.launches import Recorder
from tests.helpers.parts_project import NAME, PartsProject, build, stream_of

SECRET = "T0K3N-of-the-hook"
PART = f"part/{NAME}/part-00001"


class Hook:
    """A command that appends each message to a file."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "told"
        script = folder / "hook.sh"
        script.write_text(f"#!/bin/sh\ncat >> {shlex.quote(str(self._file))}\n")
        script.chmod(0o755)
        self.command = [str(script), SECRET, "{text}"]

    @property
    def messages(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self._file.read_text("utf-8").splitlines()] if self._file.exists() else []

    @property
    def lines(self) -> list[str]:
        return [message["text"] for message in self.messages]


@pytest.fixture
def hook(tmp_path: Path) -> Hook:
    return Hook(tmp_path)


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> PartsProject:
    project = PartsProject(tmp_path, tiny_model)
    project.write([9, 12])
    return project


def telling(found: Graph, command: list[str]) -> Graph:
    return graph(replace(found.registry, notify=NotifySettings(command=command)), found.root)


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


def test_a_failure_tells_the_part_and_the_reason_in_one_line(project: PartsProject, hook: Hook) -> None:
    log = fail(telling(broken(project.graph(2)), hook.command))
    [message] = hook.messages
    assert (message["event"], message["host"], message["name"]) == ("failure", os.uname().nodename, f"{NAME}/part-00001")
    assert f"{NAME}/part-00001" in message["text"]
    assert "notes of mine" in message["text"]
    assert os.uname().nodename in message["text"]
    assert "\n" not in message["text"]
    assert not any("notify" in each for each in log)


def test_a_build_that_another_process_makes_is_no_failure(project: PartsProject, hook: Hook) -> None:
    found = telling(project.graph(2), hook.command)
    build(found, ["tokenizer", f"plan/{NAME}"])
    with hold_lock(found[PART].directory), pytest.raises(NielsCacheError, match="another build"):
        materialize(found[PART])
    assert hook.lines == []


def _panic() -> BaseException:
    """Return an exception as a panic of Rust raises it, which is no Exception."""
    return type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})("index out of bounds")


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), OSError(28, "full"), _panic()])
def test_an_error_of_any_class_is_told(hook: Hook, error: BaseException) -> None:
    with pytest.raises(Exception), notifying(NotifySettings(command=hook.command), "tokenizer", lambda line: None):  # noqa: B017, PT011
        raise error
    assert [message["event"] for message in hook.messages] == ["failure"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, GeneratorExit])
def test_an_interrupt_is_no_failure(hook: Hook, interrupt: type[BaseException]) -> None:
    with pytest.raises(interrupt), notifying(NotifySettings(command=hook.command), "tokenizer", lambda line: None):
        raise interrupt
    assert hook.messages == []


@pytest.mark.parametrize("fault", ["no command", "no program", "command fails", "command hangs", "reads nothing"])
def test_a_message_that_cannot_be_sent_costs_one_warning_and_no_byte(
    project: PartsProject, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {
        "no command": ["no-such-program", SECRET],
        "no program": ["a\0b", SECRET],
        "command fails": ["false", SECRET],
        "command hangs": ["sh", "-c", "sleep 30 & sleep 30", SECRET],
        "reads nothing": ["true", SECRET],
    }
    monkeypatch.setattr(watching, "_SECONDS", 0.2)
    silent, found = project.graph(2, root="silent"), telling(project.graph(2), programs[fault])
    build(silent)
    log: list[str] = []
    began = time.monotonic()
    build(found, log=log.append)
    assert stream_of(project.cache()) == stream_of(project.cache("silent"))
    assert sum("[notify]" in line for line in log) == (fault != "reads nothing")
    assert SECRET not in "".join(log)
    assert time.monotonic() - began < 20


def test_a_standstill_is_told_once_until_there_is_progress(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "STALL_MINUTES", 0.15 / 60)
    watch = BuildNotifier(NotifySettings(command=hook.command), f"part/{NAME}/part-00002", lambda line: None)

    def told(count: int) -> None:
        deadline = time.monotonic() + 20
        while len(hook.lines) < count and time.monotonic() < deadline:
            time.sleep(0.01)

    watch.log("WARNING: hub: no answer")
    with watch.notify_on_stall(None) as progressed:
        assert progressed is not None
        told(1)
        time.sleep(0.4)
        assert len(hook.lines) == 1
        progressed(object())
        told(2)
    time.sleep(0.3)
    assert [message["event"] for message in hook.messages] == ["stall", "stall"]
    assert all(f"{NAME}/part-00002" in line and "hub" in line for line in hook.lines)


def test_bare_commands_tell_a_failure_and_done(project: PartsProject, hook: Hook, capsys: pytest.CaptureFixture[str]) -> None:
    found = broken(project.graph(2, build=f"[notify]\ncommand = {json.dumps(shlex.join(hook.command))}"))
    where = ["--config", found.registry.origin, "--cache-dir", str(found.root)]
    assert main(["part", NAME, "1", *where]) == 1
    assert [f"{NAME}/part-00001" in line and "failed" in line for line in hook.lines] == [True]
    (found[PART].directory / "notes of mine").unlink()
    assert main(["part", NAME, "1", *where]) == main(["part", NAME, "0", *where]) == 0
    assert len(hook.lines) == 1, "parts that are done tell nobody"
    assert main(["part", NAME, "--seal", *where]) == 0
    assert ["done" in line and NAME in line for line in hook.lines[1:]] == [True]
    assert SECRET not in "".join(capsys.readouterr())


def test_a_launch_through_dagster_tells_a_failure_and_keeps_the_secret(
    project: PartsProject, hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from niels_cache_assets.defs.launcher import launch_builds

    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    found = telling(broken(project.graph(2)), hook.command)
    recorder = Recorder()
    launch_builds(found.registry, root=found.root, listener=recorder)
    assert [f"{NAME}/part-00001" in line and "failed" in line for line in hook.lines] == [True]
    home = b"".join(path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert len(home) > 100_000
    assert SECRET.encode() not in home


@pytest.mark.parametrize(
    "line", [f'command = "\'{SECRET}"', f'command = {{ a = "{SECRET}" }}', f'comand = "{SECRET}"', f'command = ["{SECRET}", 3]']
)
def test_no_message_shows_the_command(tmp_path: Path, line: str) -> None:
    for text in (f"[notify]\n{line}\n", f'notify = "{SECRET}"\n'):
        (tmp_path / "niels_cache.toml").write_text(text)
        with pytest.raises(NielsCacheError, match="notify") as caught:
            load_registry(config=str(tmp_path / "niels_cache.toml"))
        assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_the_registry_shows_no_argument_and_takes_a_line_or_a_list(tmp_path: Path) -> None:
    def loaded(command: Any) -> tuple[str, ...]:
        (tmp_path / "niels_cache.toml").write_text(f"[notify]\ncommand = {json.dumps(command)}\n")
        registry = load_registry(config=str(tmp_path / "niels_cache.toml"))
        assert SECRET not in repr(registry)
        return registry.notify.command

    assert loaded(f"curl -H 'a b' {SECRET}") == loaded(["curl", "-H", "a b", SECRET]) == ("curl", "-H", "a b", SECRET)
    assert loaded("") == loaded([]) == ()


def test_a_name_that_is_no_utf8_is_replaced(hook: Hook) -> None:
    name = os.fsdecode(b"a\xff.jsonl")
    BuildNotifier(NotifySettings(command=hook.command), "pretrain/web", pytest.fail).send("failure", f"failed: {name}")
    assert [line.rpartition(": ")[2] for line in hook.lines] == ["a?.jsonl"]
