"""Steps of parts on the workers of Celery, as the files in deploy/ start them. A worker is killed with its part."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest

from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_assets.defs.part_slots import limit_parts
from niels_cache_assets.disk.attempts import staged_attempts
from niels_cache_assets.disk.journal import read_journal
from niels_cache_assets.parts.lease import latest
from tests.helpers.cluster_walk import (
    LONG,
    ROOT,
    Output,
    Walk,
    at_a_time,
    attempts,
    build_all,
    parent_of,
    running,
    stop,
    wait_until,
)
from tests.helpers.parts_project import NAME, build, parts_of
from tests.helpers.servers import free_port, redis, wait_for_port
from tests.helpers.ui.running import LAUNCH, RUNS, TERMINATE, ask, is_alive

pytestmark = pytest.mark.cluster

PARTS = 4
VISIBILITY_SECONDS = 20.0
TERMINATED_SECONDS = 60.0
# Without its queue, a run begins at once. The daemon frees the slots of ended runs.
DAEMON = """
run_coordinator: {module: dagster._core.run_coordinator, class: DefaultRunCoordinator}
run_monitoring: {enabled: true, poll_interval_seconds: 1, free_slots_after_run_end_seconds: 1}
"""
CELERY, LOCAL = ROOT / "deploy/celery/definitions.py", ROOT / "niels_cache_assets/definitions.py"


@pytest.fixture
def walk(tmp_path: Path, tiny_model: Path, database: str) -> Walk:
    """A walk whose tokenizer and plan are there."""
    walk = Walk(tmp_path, tiny_model, database, parts=PARTS, cluster="at_once = 2")
    build(walk.graph, ["tokenizer", f"plan/{NAME}"])
    with ensure_instance(walk.home) as instance:
        limit_parts(instance, walk.graph.registry)
    return walk


def materialize(walk: Walk, definitions: Path, number: int) -> None:
    """Run the step of a part, as the daemon does for each partition of a backfill."""
    partition = parts_of(walk.graph)[number].removeprefix("part/")
    selected = ["--select", 'key:"pretrain/parts"', "--partition", partition]
    output = walk.start("-m", "dagster", "asset", "materialize", *selected, "-f", str(definitions))
    with running(output):
        output.wait()


def build_and_kill(walk: Walk, definitions: Path, kill: Callable[[int], None]) -> None:
    """Build all parts, two at a time, and call `kill` with the process of the long part after its first record."""
    killers = [partial(walk.kill_in_mid_part, kill)]
    at_a_time(3, [*killers, *(partial(materialize, walk, definitions, number) for number in range(PARTS))])
    seal = walk.start("-m", "niels_cache_assets.cli", "part", NAME, "--seal")
    with running(seal):
        seal.wait()


def has_pending_signals(pid: int) -> bool:
    masks = re.findall(r"^(?:Sig|Shd)Pnd:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert len(masks) == 2
    return any(int(mask, 16) for mask in masks)


def has_resumed(walk: Walk) -> bool:
    """Return whether a run has logged that the long part goes on from its records."""
    with ensure_instance(walk.home) as instance:
        found = [run.run_id for run in instance.get_runs()]
    assert len(found) >= PARTS
    return any(resumed_in(walk, run) for run in found)


def resumed_in(walk: Walk, run: str) -> bool:
    """Return whether this run has logged that the long part goes on from its records."""
    with ensure_instance(walk.home) as instance:
        found = [event.user_message for event in instance.all_logs(run)]
    assert len(found) > 1
    assert any("resuming" in message and walk.long.name in message for message in found) == any("skipped the" in line for line in found)
    return any(re.search(r"skipped the \d+,\d{3} ", message) for message in found)


@contextmanager
def celery(walk: Walk, folder: Path, visibility_seconds: float = VISIBILITY_SECONDS) -> Iterator[list[Output]]:
    """Run a broker and two workers, and yield the outputs of the workers. They are stopped after the block.

    visibility_seconds: after these, redis gives the task of a worker that has not ended it to the other worker too.
    """
    pytest.importorskip("dagster_celery")
    with redis(folder) as broker:
        walk.env |= {"NIELS_CACHE_BROKER": broker, "NIELS_CACHE_VISIBILITY_SECONDS": str(int(visibility_seconds))}
        walk.env["PYTHONPATH"] += os.pathsep + str(CELERY.parent)
        command = ["-m", "celery", "-A", "worker", "worker", "--concurrency", "1", "--loglevel", "info", "-Q", "dagster"]
        workers = [walk.start(*command, "-n", f"worker{number}@%h") for number in range(2)]
        with running(*workers):
            for worker in workers:
                worker.find("ready")
            yield workers
            stop(*(worker for worker in workers if worker.process.poll() is None))


def test_celery(walk: Walk, tmp_path_factory: pytest.TempPathFactory) -> None:
    with celery(walk, tmp_path_factory.mktemp("redis")) as workers:

        def kill(pid: int) -> None:
            mine = next(worker for worker in workers if worker.process.pid == os.getsid(parent_of(pid)))
            os.killpg(mine.process.pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: attempts(walk) > 1, VISIBILITY_SECONDS + 60)

        build_and_kill(walk, CELERY, kill)
        assert has_resumed(walk)
    walk.check()


@pytest.mark.parametrize("engine", ["celery", "local"])
def test_terminate_in_the_ui_stops_the_worker(walk: Walk, tmp_path_factory: pytest.TempPathFactory, engine: str) -> None:
    """The commands of the README files start the UI and the daemon. A second run of the part resumes, and the bytes are equal."""
    with open(walk.home / "dagster.yaml", "a") as settings:
        settings.write(DAEMON)
    of_celery = partial(celery, folder=tmp_path_factory.mktemp("redis"), visibility_seconds=3_600)
    with {"celery": of_celery, "local": nullcontext}[engine](walk):
        definitions, port = {"celery": CELERY, "local": LOCAL}[engine], free_port()
        server = walk.start("-m", "dagster", "dev", "-f", str(definitions), "-h", "127.0.0.1", "-p", str(port))
        with running(server):
            wait_for_port(port, server.process)
            url = f"http://127.0.0.1:{port}"
            partition = parts_of(walk.graph)[LONG].removeprefix("part/")
            run = launch(url, definitions, partition)
            walk.wait_for_records()
            pid = walk.worker()
            assert is_alive(pid)
            assert walk.held_slots() == 1
            os.kill(
                pid, signal.SIGSTOP
            )  # so that the part does not end first: a step on Celery asks for the status of its run every 5 seconds
            assert ask(url, TERMINATE, {"id": run})["terminateRun"]["__typename"] == "TerminateRunSuccess"
            wait_until(lambda: has_pending_signals(pid), TERMINATED_SECONDS)
            os.kill(pid, signal.SIGCONT)
            wait_until(lambda: not is_alive(pid), TERMINATED_SECONDS)
            wait_until(lambda: status_of(url, run) == "CANCELED", TERMINATED_SECONDS)
            wait_until(lambda: walk.held_slots() == 0, TERMINATED_SECONDS, pause=0.5)
            assert not (walk.long / "meta.json").exists(), "the part was too short"
            last = latest(walk.long)
            assert last.attempt
            assert last.is_over
            staged = staged_attempts(walk.long)
            assert [read_journal(folder) is not None for folder in staged] == [True], "the next run cannot resume"
            again = launch(url, definitions, partition)
            wait_until(lambda: status_of(url, again) in ("SUCCESS", "FAILURE", "CANCELED"), pause=0.5)
            assert status_of(url, again) == "SUCCESS"
            assert resumed_in(walk, again)
            stop(server)
    rest = build_all(walk)
    with running(rest):
        rest.wait()
    walk.check()


def launch(url: str, definitions: Path, partition: str) -> str:
    """Start the run of a part, as the button of the UI does. Return its id."""
    parameters = {
        "mode": "default",
        "runConfigData": "{}",
        "executionMetadata": {"tags": [{"key": "dagster/partition", "value": partition}]},
        "selector": {"repositoryLocationName": definitions.name, "repositoryName": "__repository__", "jobName": "build_parts"},
    }
    launched = ask(url, LAUNCH, {"p": parameters})["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    run: str = launched["run"]["runId"]
    return run


def status_of(url: str, run: str) -> str:
    return next(each["status"] for each in ask(url, RUNS)["runsOrError"]["results"] if each["runId"] == run)
