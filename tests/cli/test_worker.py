"""`niels-cache part` and `part --seal`: a data set in parts without Dagster, by processes that may be killed, frozen or stopped."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.cli import command as exit_codes
from niels_cache_assets.cli import main
from niels_cache_assets.cli.commands.part import NUMBER_VARIABLES
from niels_cache_assets.disk.attempts import recorded_attempts
from niels_cache_assets.disk.journal import BYTES_VARIABLE
from niels_cache_assets.parts.lease import request_stop
from niels_cache_runtime.verify import verify_cache
from tests.build_cache.test_determinism import digests
from tests.helpers.parts_project import NAME, PartsProject, build
from tests.helpers.programs import Program

SETTINGS = "train_tokens = 30000\nval_tokens = 600\nshuffle_buffer = 50"
QUICK = "[cluster]\nrenew_seconds = 0.1\nlease_seconds = 1"
PART = 1
REPOSITORY = Path(__file__).parents[2]
# A worker that stops after each batch until a file says that it may go on. So tests find it in the middle of a part.
SLOWLY = """
import os, sys, time
from niels_cache_assets.base import processes
from niels_cache_assets.cli import worker, main
processes.STOP_SECONDS = 60
progress = worker.JsonLines.progress
def slowly(self, told):
    progress(self, told)
    open("started", "w").close()
    deadline = time.monotonic() + 60
    while not os.path.exists("go") and time.monotonic() < deadline:
        time.sleep(0.01)
worker.JsonLines.progress = slowly
sys.exit(main(sys.argv[1:]))
"""


class Workers:
    """A project, and the command in it. `expected`: the digests of the sealed cache of an undisturbed build."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.project = PartsProject(folder, model)
        self.project.write([9, 2, 700, 14, 7, 1, 21, 900, 800])
        build(self.project.graph(3, SETTINGS, root="sound"))
        self.expected = digests(self.project.cache("sound"))
        before = self.graph("before")
        order = before.order()
        build(before, order[: order.index(f"part/{NAME}/part-00000")])
        build(before, [f"part/{NAME}/part-00000", f"part/{NAME}/part-00002"])

    def graph(self, root: str) -> Any:
        return self.project.graph(3, SETTINGS, root=root, build=QUICK)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Workers:
    return Workers(tmp_path_factory.mktemp("workers"), tiny_model)


class Root:
    """A new root in which everything but part 1 and the seal is built, and commands for it."""

    def __init__(self, workers: Workers, folder: Path) -> None:
        self.workers, self.folder = workers, folder
        self.root = folder / "cache"
        shutil.copytree(workers.project.folder / "before", self.root)
        self.config = workers.project.folder / f"{folder.name}.toml"
        workers.graph(folder.name)
        self.target = self.root / f"pretrain/.parts/{NAME}/part-00001"
        self.env = {**os.environ, BYTES_VARIABLE: "1", "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"}
        self.env = {key: value for key, value in self.env.items() if key not in NUMBER_VARIABLES}
        self.where = ["--config", str(self.config), "--cache-dir", str(self.root)]
        self.running: list[Program] = []

    def slow(self, *options: str) -> tuple[Program, Path]:
        """Start a worker that stands in the middle of part 1. Return it and its stdout."""
        number = len(self.running)
        for name in ("started", "go"):
            (self.folder / name).unlink(missing_ok=True)
        output = self.folder / f"{number}.out"
        with open(output, "wb") as out, open(self.folder / f"{number}.err", "wb") as errors:
            streams = (0, out.fileno(), errors.fileno())
            arguments = ("-c", SLOWLY, "part", NAME, str(PART), *self.where, *options)
            program = Program(*arguments, cwd=self.folder, env=self.env, streams=streams)
        self.running.append(program)
        wait_for((self.folder / "started").exists, program)
        wait_for(lambda: any(self.target.parent.glob(f".{self.target.name}.partial.*/journal.json")), program)
        return program, output

    def go(self) -> None:
        (self.folder / "go").touch()

    def start(self, *options: str) -> tuple[Program, Path]:
        """Start the command as a process. Return it and its stdout."""
        output = self.folder / "retry.out"
        with open(output, "wb") as out, open(self.folder / "retry.err", "wb") as errors:
            arguments = ("-m", "niels_cache_assets.cli", "part", NAME, str(PART), *self.where, *options)
            program = Program(*arguments, cwd=self.folder, env=self.env, streams=(0, out.fileno(), errors.fileno()))
        self.running.append(program)
        return program, output

    def retry(self, *options: str) -> tuple[int, list[dict[str, Any]]]:
        """Run the command as a process, and return its exit code and its lines."""
        program, output = self.start(*options)
        return program.wait(60), lines_of(output)

    def seal_and_compare(self) -> None:
        assert main(["part", NAME, "--seal", *self.where]) == 0
        assert digests(self.root / "pretrain" / NAME) == self.workers.expected
        assert verify_cache(self.root) == []
        beside = {path.name for path in self.target.parent.glob(f".{self.target.name}.*")}
        assert beside == {f".{self.target.name}.lock", f".{self.target.name}.lease"}


@pytest.fixture
def root(workers: Workers, tmp_path: Path) -> Iterator[Root]:
    root = Root(workers, tmp_path)
    yield root
    for program in root.running:
        program.kill()


def wait_for(condition: Callable[[], bool], program: Program | None = None) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert program is None or program.poll() is None, "the worker has ended"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def test_a_worker_that_is_killed_is_resumed(root: Root, capsys: pytest.CaptureFixture[str]) -> None:
    worker, _ = root.slow()
    worker.kill()
    assert worker.wait(30) == -signal.SIGKILL
    code, lines = root.retry()
    assert (code, lines[-1]["event"], lines[-1]["state"]) == (0, "result", "built")
    assert lines[-1]["resumed"] > 0
    assert lines[-1]["seconds"] < 30
    assert recorded_attempts(root.target) == [2]
    root.seal_and_compare()


def test_a_frozen_worker_is_overtaken_and_wakes_up_to_a_finished_part(root: Root) -> None:
    worker, output = root.slow()
    worker.send_signal(signal.SIGSTOP)
    code, lines = root.retry()
    assert (code, lines[-1]["state"]) == (0, "built")
    assert lines[-1]["resumed"] > 0
    root.go()
    worker.send_signal(signal.SIGCONT)
    assert worker.wait(60) == 0
    said = lines_of(output)
    assert said[-1]["state"] == "cache_hit"
    assert any("taken over" in line.get("message", "") for line in said)
    root.seal_and_compare()


def test_a_busy_part_is_reported_or_waited_for(root: Root) -> None:
    worker, _ = root.slow()
    code, lines = root.retry("--no-wait")
    assert code == exit_codes.BUSY == 75
    assert (lines[-1]["event"], lines[-1]["exit_code"]) == ("error", 75)
    assert str(worker.pid) in lines[-1]["message"]
    waiting, output = root.start()
    wait_for(lambda: "waiting" in output.read_text(), waiting)
    root.go()
    found = root.workers.graph(root.folder.name)
    graph = type(found)(registry=found.registry, root=root.root)
    assert materialize(graph[f"part/{NAME}/part-00001"], wait=True).state == "cache_hit", "a build in this process takes the same lease"
    assert (waiting.wait(60), lines_of(output)[-1]["state"]) == (0, "cache_hit")
    assert worker.wait(60) == 0
    root.seal_and_compare()


@pytest.mark.parametrize("how", ["a signal", "stop"])
def test_a_signal_or_stop_ends_the_worker_and_a_retry_resumes(root: Root, how: str) -> None:
    worker, output = root.slow()
    if how == "stop":
        request_stop(root.target)
    else:
        worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 143
    assert lines_of(output)[-1]["exit_code"] == 143
    found, lines = root.retry()
    assert found == 0
    assert lines[-1]["resumed"] > 0
    root.seal_and_compare()


def test_a_stop_of_its_launch_ends_a_worker_that_begins_later(root: Root, capsys: pytest.CaptureFixture[str]) -> None:
    request_stop(root.target, "ab12")
    words = ["part", NAME, str(PART), *root.where, "--launch"]
    assert main([*words, "ab12"]) == 143
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["exit_code"] == 143
    assert main([*words, "../x"]) == 2
    assert main([*words, "cd34"]) == 0


@pytest.mark.walk  # a build of all parts in processes of their own
def test_a_whole_data_set_is_built_without_dagster(workers: Workers, tmp_path: Path) -> None:
    """By real interpreters, whose output is closed or a full device for some of them."""
    workers.graph(tmp_path.name)
    config = workers.project.folder / f"{tmp_path.name}.toml"
    where = ["--config", str(config), "--cache-dir", str(tmp_path / "cache")]
    steps = [["part", NAME, "--val"], *(["part", NAME, str(number)] for number in range(3)), ["part", NAME, "--seal"]]
    code = f"""
import os, sys
sys.stdout.flush()
if {{closed}}: os.close(1); os.close(2); sys.stdout = sys.stderr = None
from niels_cache_assets.cli import main
assert all(main([*step, *{where!r}]) == 0 for step in {{steps}})
heavy = [name for name in sys.modules if name.partition(".")[0] in ("dagster", "sqlalchemy", "celery", "redis", "dask")]
os._exit(7 if heavy else 0)
"""
    for closed in (True, False):
        chosen = steps[:2] if closed else steps[2:]
        program = code.format(closed=closed, steps=chosen)
        done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "cache/pretrain" / NAME) == workers.expected


def told(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    output, errors = capsys.readouterr()
    return json.loads(output.splitlines()[-1]), errors


def test_the_number_comes_from_the_scheduler(root: Root, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in NUMBER_VARIABLES:
        monkeypatch.setenv(variable, "2")
        assert main(["part", NAME, *root.where]) == 0
        assert told(capsys)[0]["key"].endswith("part-00002")
        monkeypatch.setenv(variable, "two")
        assert main(["part", NAME, *root.where]) == 2
        assert variable in told(capsys)[1]
        monkeypatch.delenv(variable)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["pagse", "1"], NAME),
        ([NAME, "3"], "0 to 2"),
        ([NAME], "SLURM_ARRAY_TASK_ID"),
        (["--val", NAME, "1"], "--val"),
    ],
)
def test_wrong_use_is_told_on_both_streams(
    root: Root, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], named: str
) -> None:
    for variable in NUMBER_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    assert main(["part", *arguments, *root.where]) == 2
    line, errors = told(capsys)
    assert (line["event"], line["exit_code"]) == ("error", 2)
    assert named in line["message"]
    assert named in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "said"), [("parts = 2", r"plan\.json.*parts"), ("parts = 3\nenabled = false", "enabled"), ("parts = 1", "in parts")]
)
def test_settings_that_do_not_go_with_the_plan_are_refused(
    root: Root, capsys: pytest.CaptureFixture[str], settings: str, said: str
) -> None:
    plan = root.root / f"pretrain/.parts/{NAME}/plan.json"
    before = plan.read_bytes()
    root.config.write_text(root.config.read_text().replace("parts = 3", settings))
    assert main(["part", NAME, "1", *root.where]) == 2
    assert re.search(said, told(capsys)[0]["message"])
    assert plan.read_bytes() == before


def test_missing_inputs_are_named(root: Root, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(root.root / f"pretrain/.parts/{NAME}/val")
    assert main(["part", NAME, "1", *root.where]) == 2
    assert "--val" in told(capsys)[0]["message"]
    assert main(["part", NAME, "--seal", *root.where]) == 1
    message = told(capsys)[0]["message"]
    assert ("--val" in message, f"{root.config}" in message) == (True, True)
    assert main(["part", NAME, "--val", *root.where]) == 0
    shutil.rmtree(root.target.with_name("part-00000"))
    capsys.readouterr()
    assert main(["part", NAME, "--seal", *root.where]) == 1
    *reasons, error = map(json.loads, capsys.readouterr().out.splitlines())
    [*sbatch, wrapped] = shlex.split(error["message"].partition("with ")[2])
    assert sbatch == ["sbatch", "--array=0-1", "--wrap"]
    command = ["niels-cache", "part", NAME, *root.where]
    assert (command[:3], {*command}) == (shlex.split(wrapped)[:3], {*shlex.split(wrapped)})
    again, begun = (line["message"] for line in reasons if line["event"] == "log")
    assert ("parts 0:" in again, "again" in again, "parts 1:" in begun, "never begun" in begun) == (True,) * 4


def test_a_source_that_fails_is_a_failed_build(root: Root, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    copy = tmp_path / "texts"
    shutil.copytree(root.workers.project.folder / "texts", copy)
    root.config.write_text(root.config.read_text().replace('"texts/*"', json.dumps(f"{copy}/*")))
    shutil.rmtree(root.root / "pretrain")
    assert main(["part", NAME, "--val", *root.where]) == 0
    for path in copy.iterdir():
        path.unlink()
    capsys.readouterr()
    assert main(["part", NAME, "1", *root.where]) == 1
    line, errors = told(capsys)
    assert (line["event"], line["exit_code"]) == ("error", 1)
    assert "no file" in errors
    shutil.rmtree(root.root / "pretrain")
    assert main(["part", NAME, "--val", *root.where]) == 1  # no plan, and nothing to plan
