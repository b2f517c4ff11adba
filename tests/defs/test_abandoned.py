"""Runs whose process has ended. They are ended, whatever launched them. Runs of another machine, another home or a live process are never
ended.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from niels_cache_assets.base import processes
from niels_cache_assets.base.processes import Process, claim_record, is_locked, lock_record, read_record
from niels_cache_assets.defs.home.abandoned import end_abandoned_runs, recorded_run
from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_assets.defs.resources import _RecordedExecutor
from niels_cache_assets.project.registry import load_registry
from tests.helpers.messages import missing
from tests.helpers.names import NAMES

STARTING, STARTED, CANCELING = dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING

HOLDING = """
import signal, sys, time
from pathlib import Path
from niels_cache_assets.base.processes import lock_record
if sys.argv[2] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path("/proc/self/comm").write_bytes(bytes.fromhex(sys.argv[3]))
descriptor = lock_record(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@dg.job
def streaming() -> None:
    """A job to have runs of."""


@contextmanager
def holding(path: Path, *, stubborn: bool = False, name: bytes = b"holding") -> Iterator["subprocess.Popen[str]"]:
    """Start a process that has recorded itself at `path`. It is killed after the block."""
    command = [sys.executable, "-c", HOLDING, str(path), "stubborn" if stubborn else "mild", name.hex()]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


POOL = "team/source_stream"  # of another component in the same home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def instance(home: Path) -> Iterator[dg.DagsterInstance]:
    with ensure_instance() as opened:
        opened.event_log_storage.set_concurrency_slots(POOL, 5)
        yield opened


def begun_run(instance: dg.DagsterInstance, *, status: dg.DagsterRunStatus = STARTED) -> str:
    """A run that holds a place in the pool."""
    run = instance.create_run_for_job(streaming, status=status)
    instance.event_log_storage.claim_concurrency_slot(POOL, run.run_id, "step")
    return run.run_id


def states(instance: dg.DagsterInstance, *runs: str) -> list[tuple[str, bool]]:
    """Return the status of each run, and whether it holds a place in the pool."""
    holding = instance.event_log_storage.get_concurrency_info(POOL).active_run_ids
    found = [instance.get_run_by_id(run) for run in runs]
    return [(run.status.value, run.run_id in holding) for run in found if run is not None]


def record_of(home: Path, run: str) -> Path:
    return home / ".runs" / run


def write_record(path: Path, process: Process) -> None:
    os.close(lock_record(path))
    path.write_text(json.dumps(replace(process, file=path.stat().st_ino).__dict__))


def test_a_run_whose_process_was_killed_is_ended_and_one_that_lives_or_is_suspended_is_not(
    instance: dg.DagsterInstance, home: Path
) -> None:
    killed, canceling, suspended, here = (begun_run(instance, status=status) for status in (STARTED, CANCELING, STARTED, STARTED))
    with ExitStack() as stack:
        gone = [stack.enter_context(holding(record_of(home, run))) for run in (killed, canceling)]
        stack.enter_context(holding(record_of(home, suspended))).send_signal(signal.SIGSTOP)
        stack.enter_context(recorded_run(instance, here))
        end_abandoned_runs(instance)
        assert states(instance, killed, canceling) == [("STARTED", True), ("CANCELING", True)]
        for process in gone:
            process.kill()
            process.wait()
        end_abandoned_runs(instance)
        expected = [("FAILURE", False), ("CANCELED", False), ("STARTED", True), ("STARTED", True)]
        assert states(instance, killed, canceling, suspended, here) == expected
        assert sorted(path.name for path in (home / ".runs").iterdir()) == sorted([suspended, here])


def test_a_record_of_another_machine_is_never_judged_and_one_from_before_a_restart_is(instance: dg.DagsterInstance, home: Path) -> None:
    here = Process.current()
    elsewhere, restarted, container, damaged = (begun_run(instance) for _ in range(4))
    write_record(record_of(home, elsewhere), replace(here, machine="other/1", boot="another kernel's"))
    write_record(record_of(home, restarted), replace(here, boot="the last kernel's"))
    write_record(record_of(home, container), replace(here, machine="container/2", namespace="pid:[1]"))
    write_record(record_of(home, damaged), here)
    record_of(home, damaged).write_text("{")
    end_abandoned_runs(instance)
    assert states(instance, elsewhere, damaged) == [("STARTED", True)] * 2
    assert states(instance, restarted, container) == [("FAILURE", False)] * 2


@pytest.mark.parametrize("own", [True, False])
def test_a_home_that_was_copied_ends_the_runs_of_its_own_database_only(tmp_path: Path, own: bool) -> None:
    """As a home of CI that is restored on another machine; the copy of a home whose database is elsewhere shares it with the first."""
    first, copy = tmp_path / "first", tmp_path / "copy"
    first.mkdir()
    if not own:
        (first / "dagster.yaml").write_text(f"storage: {{sqlite: {{base_dir: {tmp_path / 'shared'}}}}}\n")
    with ensure_instance(first) as instance:
        instance.event_log_storage.set_concurrency_slots(POOL, 5)
        runs = [begun_run(instance) for _ in range(2)]
        with holding(record_of(first, runs[0])):
            write_record(record_of(first, runs[1]), replace(Process.current(), machine="other/1", boot="another kernel's"))
            shutil.copytree(first, copy)
            with ensure_instance(copy) as copied:
                end_abandoned_runs(copied)
                assert states(copied, *runs) == [("FAILURE", False) if own else ("STARTED", True)] * 2
            end_abandoned_runs(instance)
            assert states(instance, *runs) == [("STARTED", True)] * 2


def test_a_step_worker_that_outlives_its_coordinator_is_ended_before_its_place_is_given_back(
    instance: dg.DagsterInstance, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker ignores SIGTERM."""
    monkeypatch.setattr(processes, "_GRACE_SECONDS", 0.5)
    run = begun_run(instance)
    with holding(record_of(home, f"{run}.1"), stubborn=True) as worker:
        with recorded_run(instance, run):
            end_abandoned_runs(instance)
            assert worker.poll() is None, "its coordinator lives"
        end_abandoned_runs(instance)
        assert worker.wait(timeout=60) == -signal.SIGKILL
    assert states(instance, run) == [("FAILURE", False)]
    assert list((home / ".runs").iterdir()) == []


def test_a_process_that_only_has_the_number_of_a_recorded_one_is_left_alone(tmp_path: Path) -> None:
    with holding(tmp_path / "runs" / "x", name=b"\xff)") as process:  # a name may be no text
        recorded = read_record(tmp_path / "runs" / "x")
        assert recorded is not None
        assert recorded.pid == process.pid
        for other in (
            replace(recorded, start=recorded.start + 1),
            replace(recorded, namespace="pid:[1]"),
            replace(recorded, boot="another"),
        ):
            other.end()
        assert process.poll() is None
        recorded.end()
        assert process.wait(timeout=60) == -signal.SIGTERM


def test_of_two_who_claim_a_record_one_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "x"
    os.close(lock_record(path))
    with claim_record(path, copies=False) as first, claim_record(path, copies=False) as second:
        assert (first, second) == (True, False)
        assert is_locked(path)
    assert not is_locked(path)


def test_a_run_that_nobody_has_recorded_is_left_alone(instance: dg.DagsterInstance, home: Path) -> None:
    """Also one that is starting: its executor is about to record it, or Dagster's daemon ends it."""
    runs = [begun_run(instance), begun_run(instance, status=STARTING)]
    end_abandoned_runs(instance)
    assert states(instance, *runs) == [("STARTED", True), ("STARTING", True)]


def test_a_run_that_cannot_be_recorded_is_executed_with_a_warning(instance: dg.DagsterInstance, home: Path) -> None:
    warned: list[str] = []
    context: Any = SimpleNamespace(instance=instance, run_id="0123", log=SimpleNamespace(warning=warned.append))
    executor = recorded_executor_of()
    assert list(executor.execute(context, steps(None))) == ["apart"]
    assert (is_locked(record_of(home, "0123")), warned) == (True, [])
    shutil.rmtree(home / ".runs")
    (home / ".runs").write_text("no folder")
    assert list(executor.execute(context, steps(None))) == ["apart"]
    [warning] = warned
    assert missing(warning, "not recorded", f": {home / '.runs/0123'}: ") == []


def recorded_executor_of() -> Any:
    """An executor whose two executors only say which of them it chose."""
    here, apart = (SimpleNamespace(execute=lambda context, plan, name=name: iter([name])) for name in ("here", "apart"))
    chosen: Any = _RecordedExecutor
    return chosen(load_registry(profile="quickstart"), here=here, apart=apart)


def steps(*pools: str | None) -> Any:
    """A plan of steps in these pools."""
    return SimpleNamespace(get_steps_to_execute_in_topo_order=lambda: [SimpleNamespace(pool=pool) for pool in pools])


@pytest.mark.parametrize(
    ("pools", "where"),
    [
        ((NAMES.parts_pool,), "here"),
        ((None,), "apart"),
        ((NAMES.stream_pool,), "apart"),
        ((NAMES.parts_pool, None), "apart"),
        ((), "apart"),
    ],
)
def test_only_the_step_that_attends_a_child_needs_no_process(instance: dg.DagsterInstance, pools: Sequence[str | None], where: str) -> None:
    context: Any = SimpleNamespace(instance=instance, run_id="0123", log=SimpleNamespace(warning=print))
    assert list(recorded_executor_of().execute(context, steps(*pools))) == [where]


def test_the_place_of_a_run_that_has_ended_or_was_deleted_is_given_back(instance: dg.DagsterInstance, home: Path) -> None:
    runs = [begun_run(instance, status=status) for status in (STARTED, dg.DagsterRunStatus.FAILURE)]
    instance.event_log_storage.claim_concurrency_slot(POOL, "deleted", "step")
    end_abandoned_runs(instance)
    assert instance.event_log_storage.get_concurrency_info(POOL).active_run_ids == {runs[0]}
