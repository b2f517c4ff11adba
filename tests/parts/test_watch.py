"""What `status --watch` and the sensor see of the steps of a data set: from leases alone, whoever builds."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from niels_cache_assets.artifacts.base import BuildJob, ReportedProgress, WriteResult
from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.parts import plan
from niels_cache_assets.artifacts.parts.watch import WatchedStep, summarize_steps
from niels_cache_assets.base.processes import Process
from niels_cache_assets.cli import main
from niels_cache_assets.defs.assembly import build_defs
from niels_cache_assets.defs.finished_parts import finished_parts_sensor
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.disk.attempts import attempt_record
from niels_cache_assets.parts.layout import PLAN_NAME
from niels_cache_assets.parts.lease import LeaseHolder, hold_lease, latest
from niels_cache_runtime.format.meta import read_meta
from tests.helpers.parts_project import NAME, PartsProject, build, parts_of
from tests.parts.test_lease import TIMES, die


def begin(target: Path, *, how: str | BaseException = "runs", stack: ExitStack | None = None) -> None:
    """Begin an attempt that uses 0.05 s of CPU time, and end it with an error, kill it, or leave it to the stack."""
    with suppress(Exception, KeyboardInterrupt), ExitStack() as own:
        lease = (stack or own).enter_context(hold_lease(target, times=TIMES, wait=False, log=lambda line: None))
        end = time.process_time() + 0.05
        lease.report(ReportedProgress(counts={"tokens": 10}, share=0.25))
        while time.process_time() < end:
            pass
        lease.report(ReportedProgress(counts={"tokens": 20}, share=0.5))
        lease._write()
        if isinstance(how, BaseException):
            raise how
        if how == "killed":
            die(lease)


def record_of(target: Path) -> LeaseHolder:
    seen = latest(target)
    assert seen.holder is not None
    return seen.holder


def test_a_record_says_how_an_attempt_ended_and_what_all_attempts_cost(tmp_path: Path) -> None:
    target = tmp_path / "part-00003"
    begin(target, how=ValueError("the disk is full\nand more"))
    assert record_of(target).ended == "the disk is full"
    begin(target, how=KeyboardInterrupt())
    assert record_of(target).ended == "stopped"
    with ExitStack() as stack:
        begin(target, how="killed", stack=stack)
        killed = record_of(target)
        assert (killed.ended, killed.share, killed.counts) == (None, 0.5, {"tokens": 20})
        begin(target)
    found = record_of(target)
    assert (found.attempt, found.ended) == (4, "done")
    finished, lost = found.all_cpu_seconds()
    assert (finished >= 0.03, lost >= 0.12) == (True, True), "the clock has steps of 0.01 s"
    long = LeaseHolder(attempt=1, writer=found.writer, token="", boot="", ended="é" * 2_000).encoded()
    assert LeaseHolder.decoded(found.encoded() + long[len(found.encoded()) :]) == found, "what a longer record leaves is ignored"


def test_a_corpus_that_builds_its_parts_itself_counts_their_time_once(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, prepare = PartsProject(tmp_path, tiny_model), Corpus._write_all
    project.write([3, 4])
    clock = [0.0]
    monkeypatch.setattr("niels_cache_assets.parts.lease.cpu_seconds", lambda: clock[0])

    def write(corpus: Corpus, work: BuildJob) -> WriteResult:
        clock[0] += 100
        return prepare(corpus, work)

    monkeypatch.setattr(Corpus, "_write_all", write)
    found = project.graph(2, 'prepare = ["dedup"]')
    build(found, [f"corpus/{NAME}"])
    records = {step.key: step.attempt for step in found.watch(NAME) if step.key.startswith("corpus")}
    assert [each.cpu_seconds for each in records.values() if each] == [100, 100, 0]
    joined = records[f"corpus/{NAME}"]
    assert joined is not None
    assert (joined.counts["documents"], joined.share) == (7, 1.0)


@pytest.fixture
def found(tmp_path: Path, tiny_model: Path) -> Iterator[Graph]:
    """Part 0 is built, part 1 has failed, part 2 is running, part 3 was killed, and part 4 waits."""
    project = PartsProject(tmp_path, tiny_model)
    project.write([3, 4, 5, 6, 7])
    found = project.graph(5, build="[cluster]\nrenew_seconds = 0.1")
    built, failed, running, killed, _ = parts_of(found)
    build(found, ["tokenizer", f"plan/{NAME}", built])
    begin(found[failed].directory, how=OSError("stale file handle"))
    with ExitStack() as stack:
        begin(found[running].directory, stack=stack)
        begin(found[killed].directory, how="killed", stack=stack)
        yield found


def steps_of(found: Graph) -> dict[str, WatchedStep]:
    return {step.key.rpartition("/")[2]: step for step in found.watch(NAME) if step.key.startswith("part/")}


def test_each_state_is_seen_from_this_machine_and_from_another(found: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = steps_of(found)
    assert [step.state for _, step in sorted(steps.items())] == ["done", "failed", "running", "silent", "waiting"]
    assert "stale file handle" in steps["part-00001"].reason
    assert all(os.uname().nodename in steps[name].reason and "50%" in steps[name].reason for name in ("part-00002", "part-00003"))
    facts = summarize_steps([*steps.values()])
    assert facts["core_hours"]["lost"] * 3600 >= 0.06
    assert facts["seconds_left"] > 0
    here = Process.current()
    monkeypatch.setattr(Process, "current", lambda: Process(**{**vars(here), "boot": "another kernel"}))
    killed = found[parts_of(found)[3]].directory
    assert steps_of(found)["part-00003"].state == "running", "its lease has not expired yet"
    os.utime(attempt_record(killed, 1), (time.time() - 200,) * 2)
    assert "last renewed 3:20" in steps_of(found)["part-00003"].reason


def test_a_look_reads_a_stale_plan_once(found: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    _, failed, _, _, waiting = parts_of(found)
    build(found, [failed, waiting])
    stale = replace(found, registry=replace(found.registry, build=found.registry.build.model_copy(update={"seed": 8})))
    reads = list[Path]()
    monkeypatch.setattr(plan, "read_meta", lambda path: reads.append(path) or read_meta(path))
    assert summarize_steps(stale.watch(NAME))["states"]["stale"] == 4, "the plan and three parts"
    assert "3 stale" in "".join(state.advice for state in stale.states())
    assert sum(path.name == PLAN_NAME for path in reads) == 2


def test_the_command_ends_when_all_steps_are_done(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = PartsProject(tmp_path, tiny_model)
    project.write([3, 4])
    found = project.graph(2)
    monkeypatch.setattr(time, "sleep", lambda seconds: build(found))
    where = ["--config", found.registry.origin, "--cache-dir", str(found.root)]
    assert main(["status", "--watch", NAME, "--json", *where]) == 0
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["states"], last["states"], last["steps"]) == ({"waiting": 5}, {"done": 5}, [])
    assert last["core_hours"]["finished"] > 0
    assert main(["status", "--watch", NAME, *where]) == 0
    assert "5 done" in capsys.readouterr().out
    for names in ([], [NAME, NAME], ["nobody"]):
        assert main(["status", "--watch", *names, *where]) == 2


def test_the_sensor_observes_what_runs_and_each_change(found: Graph) -> None:
    resources = {"cache_root": CacheRoot(root=str(found.root))}
    definitions, sensor = build_defs(resources, registry=found.registry), finished_parts_sensor(found.registry)
    assert sensor.default_status == dg.DefaultSensorStatus.RUNNING
    cursor, seen = None, list[list[str]]()
    for _ in range(4):
        context = dg.build_sensor_context(
            instance=dg.DagsterInstance.ephemeral(), cursor=cursor, definitions=definitions, resources=resources
        )
        tick = sensor.evaluate_tick(context)
        cursor = tick.cursor
        seen.append([str(dict(event.metadata)) for event in tick.asset_events if isinstance(event, dg.AssetObservation)])
        if len(seen) == 2:
            os.utime(attempt_record(found[parts_of(found)[2]].directory, 1), (time.time() - 200,) * 2)
    assert [len(each) for each in seen] == [1, 1, 1, 0], "nothing runs any more, and nothing has changed"
    assert ["2 silent" in text for [text] in seen[:3]] == [False, False, True]
