"""Parts that a child process builds. A small program takes the place of `niels-cache part`, so that it can fail in every way."""

import json
import shlex
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts.base import Outcome, ReportedProgress
from niels_cache_assets.artifacts.dataset import PretrainCache
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.cluster.child import TRIES, BuildInChild, LostChildError, PartCommand, build_in_child
from niels_cache_assets.defs.part_processes import build_in_children, build_part_in_child
from niels_cache_assets.defs.part_slots import HostSlot
from niels_cache_assets.parts.lease import StopRequested
from niels_cache_assets.project.running import ClusterSettings
from niels_cache_assets.tokenizer.encoder import EngineUse
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.launches import Recorder
from tests.helpers.parts_project import NAME, PartsProject, build, parts_of

_BUILD = """
import json, os, signal, sys, time
from pathlib import Path
folder = Path(FOLDER)
words = sys.argv[1:]
with open(folder / "calls", "a") as calls:
    calls.write(json.dumps(words) + "\\n")
count = len((folder / "calls").read_text().splitlines())
def say(event, **keys):
    print(json.dumps({"event": event, "key": "k", **keys}), flush=True)
def build():
    os.rename(folder / "made" / ("part-%05d" % int(words[2])), folder / "cache/pretrain/.parts" / words[1] / ("part-%05d" % int(words[2])))
"""


class Worker:
    """A program in place of `niels-cache part`: `script` decides what it does. The parts that it `build`s were made before."""

    def __init__(self, project: PartsProject, script: str, **cluster: Any) -> None:
        self.folder = project.folder
        made = project.graph(2)
        build(made)
        found = project.folder / "cache/pretrain/.parts" / NAME
        (self.folder / "made").mkdir()
        self.directories = [made[key].directory for key in parts_of(made)]
        for directory in self.directories:
            directory.rename(self.folder / "made" / directory.name)
        assert not [path for path in found.iterdir() if path.name.startswith("part-")]
        program = (sys.executable, "-c", _BUILD.replace("FOLDER", repr(str(self.folder))) + script)
        self.registry = replace(made.registry, cluster=ClusterSettings(program=program, **cluster))
        self.graph = graph(self.registry, made.root)
        self.log: list[str] = []
        self.progress: list[Any] = []

    def part(self, number: int = 0) -> PretrainCache:
        part = self.graph[parts_of(self.graph)[number]]
        assert isinstance(part, PretrainCache)
        return part

    def build(self, *, is_stopping: Callable[[], bool] = lambda: False) -> Outcome:
        return build_in_child(self.part(), lambda: None, on_progress=self.progress.append, log=self.log.append, is_stopping=is_stopping)

    @property
    def calls(self) -> list[list[str]]:
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> PartsProject:
    monkeypatch.setattr("niels_cache_assets.cluster.child._PAUSES", (0.0, 0.0))
    project = PartsProject(tmp_path, tiny_model)
    project.write([9, 12])
    return project


_REPORTS = """
print("Welcome to node7")
say("log", message="resuming it")
say("progress", documents=3, tokens=40, share=0.25)
say("news", about="something that no reader knows")
build()
engines = [{"name": "hasty", "version": "1.2", "texts": 8, "checked": 4}]
say("result", state="built", resumed=7, seconds=1.5, warning="a remark", engines=engines)
"""


def test_the_outcome_is_that_of_the_child(project: PartsProject) -> None:
    worker = Worker(project, _REPORTS)
    outcome = worker.build()
    assert (outcome.state, outcome.resumed, outcome.seconds, outcome.warning) == ("built", 7, 1.5, "a remark")
    assert outcome.engines == [EngineUse(name="hasty", version="1.2", texts=8, checked=4)]
    assert outcome.meta["part"]["number"] == 0
    assert worker.progress == [ReportedProgress(counts={"documents": 3, "tokens": 40}, share=0.25)]
    assert worker.log == ["resuming it"]
    [words] = worker.calls
    assert words[:3] == ["part", NAME, "0"]
    assert words[words.index("--config") + 1] == str(project.folder / "cache.toml")
    assert words[words.index("--cache-dir") + 1] == str(project.folder / "cache")


def test_a_child_that_is_lost_is_started_again_and_the_third_is_the_last(project: PartsProject, tmp_path: Path) -> None:
    lost = "print('Connection reset by peer', file=sys.stderr)\n    sys.exit(255)"
    steps = f"if count > {TRIES}:\n    {lost}\nif count < {TRIES}:\n    os.kill(os.getpid(), signal.SIGKILL)"
    worker = Worker(project, f"{steps}\nbuild()\nsay('result', state='built')")
    assert worker.build().state == "built"
    assert len(worker.calls) == TRIES
    assert ["SIGKILL" in line for line in worker.log] == [True] * (TRIES - 1)
    with pytest.raises(LostChildError, match=r"255.*Connection reset"):
        worker.build()
    assert len(worker.calls) == 2 * TRIES


def test_an_error_of_the_child_is_told_once(project: PartsProject) -> None:
    worker = Worker(project, "say('error', message='row 12 is not JSON', exit_code=1)\nsys.exit(1)")
    with pytest.raises(NielsCacheError, match=r"^row 12 is not JSON$"):
        worker.build()
    assert len(worker.calls) == 1


def test_a_stop_reaches_the_child_and_its_lease(project: PartsProject) -> None:
    worker = Worker(project, "say('progress', documents=1, tokens=1, share=None)\ntime.sleep(60)")
    with pytest.raises(KeyboardInterrupt):
        worker.build(is_stopping=lambda: bool(worker.progress))
    [words] = worker.calls
    assert stops(worker) == [f"stop-{words[words.index('--launch') + 1]}"]


def stops(worker: Worker) -> list[str]:
    return [path.name for path in worker.part().directory.parent.rglob("stop*")]


def test_an_interrupt_between_two_tries_stops_the_workers_of_the_tries(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their connection is lost, but they may live."""
    monkeypatch.setattr("niels_cache_assets.cluster.child._PAUSES", (60.0, 60.0))
    worker = Worker(project, "sys.exit(255)")
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        worker.build(is_stopping=lambda: bool(worker.log))
    assert time.monotonic() - began < 30
    [words] = worker.calls
    assert stops(worker) == [f"stop-{words[words.index('--launch') + 1]}"]


_TOUCHES_STOP = """
lease = folder / "cache/pretrain/.parts" / words[1] / ".part-00000.lease"
lease.mkdir(exist_ok=True)
(lease / "stop").unlink(missing_ok=True)
(lease / "stop").touch()
"""


_SAYS_SO = "say('error', message='stop', exit_code=143)\n"


@pytest.mark.parametrize("said", ["", _SAYS_SO])
def test_a_child_that_obeys_stop_is_not_started_again(project: PartsProject, said: str) -> None:
    worker = Worker(project, f"{_TOUCHES_STOP}{said}sys.exit(143)")
    with pytest.raises(StopRequested, match="stop"):
        worker.build()
    assert len(worker.calls) == 1


_BUSY_PART = """
if words[2] == "0" and "--no-wait" in words:
    say('error', message='another build is writing it now', exit_code=75)
    sys.exit(75)
build()
say('result', state='built')
"""


def built_in_children(
    parts: list[BuildInChild], home: Path, *, at_once: int, recorder: Recorder | None = None
) -> tuple[Recorder, list[Outcome | NielsCacheError]]:
    """Return what the children reported, and the ends of the parts in order."""
    recorder, ends = recorder or Recorder(), list[Outcome | NielsCacheError]()
    build_in_children(parts, at_once=at_once, home=home, listener=recorder, started={}, on_end=lambda part, end: ends.append(end))
    return recorder, ends


def test_a_part_of_another_process_is_built_last(project: PartsProject, tmp_path: Path) -> None:
    worker = Worker(project, _BUSY_PART)
    _, ends = built_in_children([worker.part(0), worker.part(1)], tmp_path, at_once=1)
    assert [end.key for end in ends if isinstance(end, Outcome)] == parts_of(worker.graph)[::-1]
    assert [(words[2], "--no-wait" in words) for words in worker.calls] == [("0", True), ("1", True), ("0", False)]


def test_a_result_that_the_disk_does_not_show_is_refused(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_cache_assets.cluster.child._SIGHT_SECONDS", 0.3)
    worker = Worker(project, "build()\nsay('result', state='built', meta_sha256='0' * 64)")
    with pytest.raises(NielsCacheError, match="share"):
        worker.build()


def test_a_program_that_is_missing_is_named(project: PartsProject) -> None:
    worker = Worker(project, "", command=["no-such-srun"])
    with pytest.raises(NielsCacheError, match=r"no-such-srun.*\[cluster\]"):
        worker.build()


def test_ssh_gets_words_that_its_shell_reads_as_they_are(project: PartsProject, tmp_path: Path) -> None:
    found = project.graph(2)
    registry = replace(found.registry, cluster=ClusterSettings(command=["/usr/bin/ssh", "-p22", "{host}"], hosts=["node1"]))
    part = graph(registry, tmp_path / "a folder; rm").sealed(NAME).part(3)
    command = PartCommand(part=part, host="node1")
    ssh, port, host, *words = command.words()
    assert (ssh, port, host) == ("/usr/bin/ssh", "-p22", "node1")
    read = shlex.split(" ".join(words))
    assert read[:6] == [sys.executable, "-m", "niels_cache_assets.cli", "part", NAME, "3"]
    assert str(tmp_path / "a folder; rm") in read


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"command": ["ssh", "{host}"]}, "hosts"),
        ({"hosts": ["node1"]}, "command"),
        ({"command": ["ssh", "{host}"], "hosts": ["-oProxyCommand=x"]}, "hosts"),
        ({"command": [""]}, "command"),
    ],
)
def test_settings_that_do_not_fit_are_refused(table: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        ClusterSettings(**table)


def test_each_host_has_one_place_and_a_retry_takes_another(tmp_path: Path) -> None:
    log: list[str] = []
    hosts = ("a", "b", "b")
    with HostSlot(tmp_path, hosts, doing="x", log=log.append) as first, HostSlot(tmp_path, hosts, doing="y", log=log.append) as second:
        with HostSlot(tmp_path, hosts, doing="z", log=log.append) as third:
            assert sorted(map(str, [first.take(), second.take(), third.take()])) == ["a", "b", "b"]
            with pytest.raises(KeyboardInterrupt), HostSlot(tmp_path, hosts, doing="w", log=log.append) as fourth:
                fourth.take(lambda: True)  # a wait can be interrupted
            del log[:]
        assert first.take() is not None
        assert log == []
    with HostSlot(tmp_path, ("a", "b"), doing="x", log=log.append) as place:
        assert place.take() != place.take()
    with HostSlot(tmp_path, (), doing="x", log=log.append) as place:
        assert place.take() is None


_SLOW = """
say('progress', documents=1, tokens=1, share=None)
time.sleep(0.2)
build()
say('result', state='built')
"""


def test_parts_are_built_side_by_side(project: PartsProject, tmp_path: Path) -> None:
    worker = Worker(project, _SLOW)
    parts = [worker.part(number) for number in range(2)]
    recorder, ends = built_in_children(parts, tmp_path, at_once=2)
    assert sorted(end.key for end in ends if isinstance(end, Outcome)) == parts_of(worker.graph)
    assert sorted(recorder.progress) == parts_of(worker.graph)
    assert threading.active_count() < 10
    again = build_part_in_child(worker.part(), home=tmp_path, on_progress=lambda progress: None, log=worker.log.append)
    assert again.state == "cache_hit"
    assert len(worker.calls) == 2


def test_a_reader_that_stops_ends_all_children(project: PartsProject, tmp_path: Path) -> None:
    worker = Worker(project, "say('log', message=str(os.getpid()))\ntime.sleep(60)")
    pids: list[str] = []

    class Stopping(Recorder):
        def logged(self, name: str, message: str) -> None:
            pids.append(message)
            if len(pids) == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        built_in_children([worker.part(number) for number in range(2)], tmp_path, at_once=2, recorder=Stopping())
    assert [Path(f"/proc/{pid}").exists() for pid in pids] == [False, False]
