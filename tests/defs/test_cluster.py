"""Parts in Dagster: the step that starts a child, the sensor that records parts of array jobs, and the number of places."""

import json
import shutil
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from niels_cache_assets.artifacts.base import Artifact
from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.defs import keys
from niels_cache_assets.defs.assembly import build_defs
from niels_cache_assets.defs.assets.parts import RunEndCheck
from niels_cache_assets.defs.finished_parts import finished_parts_sensor
from niels_cache_assets.defs.part_slots import limit_parts
from niels_cache_assets.defs.private import PoolClaims
from niels_cache_assets.defs.progress import ProgressSink
from niels_cache_assets.defs.resources import CacheRoot, _RecordedExecutor
from niels_cache_assets.project.registry import load_registry
from tests.helpers.dagster_tools import metadata
from tests.helpers.names import NAMES
from tests.helpers.parts_project import NAME, PartsProject, build, parts_of

_CHILD = """
import json, os, sys, time
from pathlib import Path
made, words = Path(sys.argv[1]), sys.argv[2:]
name = "part-%05d" % int(words[2])
print(json.dumps({"event": "log", "message": "resuming it"}))
if os.path.exists(made / "slow"):
    time.sleep(60)
if os.path.exists(made / "broken"):
    print(json.dumps({"event": "error", "message": "row 12 is not JSON", "exit_code": 1}))
    sys.exit(1)
os.rename(made / name, made.parent / "cache/pretrain/.parts" / words[1] / name)
print(json.dumps({"event": "result", "state": "built", "resumed": 0, "seconds": 2.5, "warning": None}))
"""


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> PartsProject:
    project = PartsProject(tmp_path, tiny_model)
    project.write([9, 12])
    return project


class Home:
    """The definitions of a project, with an instance in memory."""

    def __init__(self, found: Graph, *, builds_parts_here: bool = False) -> None:
        self.graph, self.instance = found, dg.DagsterInstance.ephemeral()
        sink = ProgressSink()
        sink.builds_parts_here = builds_parts_here
        self.resources = {"cache_root": CacheRoot(root=str(found.root)), "progress_sink": sink}
        self.defs = build_defs(self.resources, registry=found.registry)
        self.cursor: str | None = None

    def run(self, number: int) -> dg.ExecuteInProcessResult:
        partition = parts_of(self.graph)[number].removeprefix("part/")
        job = self.defs.resolve_job_def("build_parts")
        return job.execute_in_process(instance=self.instance, partition_key=partition, raise_on_error=False)

    def tick(self) -> dict[str, dg.AssetMaterialization]:
        """Return the events of a tick, by partition."""
        before = events_after(self.instance)
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            definitions=self.defs,
            resources={"cache_root": self.resources["cache_root"]},
        )
        done = finished_parts_sensor(self.graph.registry).evaluate_tick(context)
        self.cursor = done.cursor
        return {str(event.partition): event for event in events_after(self.instance, before)}


def events_after(instance: dg.DagsterInstance, before: Sequence[dg.AssetMaterialization] = ()) -> list[dg.AssetMaterialization]:
    """Return the events of the plan and of the parts in order, without the first ones."""
    records = [record for key in (NAMES.plan, NAMES.parts) for record in instance.fetch_materializations(key, limit=100).records]
    events = [record.asset_materialization for record in sorted(records, key=lambda record: record.storage_id)]
    return [event for event in events if event is not None][len(before) :]


def recorded(run: dg.ExecuteInProcessResult) -> dg.AssetMaterialization:
    [event] = run.asset_materializations_for_node(NAMES.parts.to_python_identifier())
    return event


def by_child(project: PartsProject) -> Graph:
    """Build the parts, put them aside, and return a graph whose children put them back."""
    found = project.graph(2)
    build(found)
    made = project.folder / "made"
    made.mkdir()
    for key in parts_of(found):
        found[key].directory.rename(made / found[key].directory.name)
    program = json.dumps([sys.executable, "-c", _CHILD, str(made)])
    return project.graph(2, build=f"[cluster]\nprogram = {program}")


def test_a_step_reports_what_its_child_built(project: PartsProject) -> None:
    plain = Home(project.graph(2), builds_parts_here=True)
    build(plain.graph, ["tokenizer", f"plan/{NAME}"])
    expected = recorded(plain.run(1))
    shutil.rmtree(plain.graph.root)
    home = Home(by_child(project))
    run = home.run(1)
    assert run.success
    event = recorded(run)
    assert event.tags is not None
    assert expected.tags is not None
    assert event.tags["dagster/data_version"] == expected.tags["dagster/data_version"]
    told, wanted = metadata(event), metadata(expected)
    assert told.pop("state").startswith("built in 2.5 s")
    assert told.pop("seconds") == 2.5
    assert {key: value for key, value in wanted.items() if key not in ("state", "seconds", "encoded_by")} == told
    assert any("resuming" in each.user_message for each in home.instance.all_logs(run.run_id))
    assert metadata(recorded(home.run(1)))["state"].startswith("hit")


def test_a_step_fails_with_the_words_of_its_child(project: PartsProject) -> None:
    home = Home(by_child(project))
    (project.folder / "made/broken").touch()
    run = home.run(0)
    [failure] = [event.step_failure_data for event in run.all_events if event.is_step_failure]
    assert failure.user_failure_data is not None
    assert failure.user_failure_data.description == "row 12 is not JSON"


def test_the_sensor_records_each_finished_part_once(project: PartsProject) -> None:
    home = Home(project.graph(2))
    assert home.tick() == {}
    build(home.graph)
    parts = [key.removeprefix("part/") for key in parts_of(home.graph)]
    assert home.tick() == {}, "a run may follow, and record them"
    events = home.tick()
    assert list(events) == [NAME, *parts]
    assert home.instance.get_materialized_partitions(NAMES.parts) == set(parts)
    assert home.tick() == {}
    home.cursor = None
    assert [home.tick(), home.tick()] == [{}, {}], "the records of Dagster decide"
    assert metadata(events[parts[0]])["meta_sha256"]


def test_the_sensor_leaves_a_part_to_the_run_that_builds_it(project: PartsProject) -> None:
    home = Home(project.graph(2))
    build(home.graph)
    partition = parts_of(home.graph)[0].removeprefix("part/")
    job = home.defs.resolve_job_def("build_parts")
    run = home.instance.create_run_for_job(job, tags={keys.PARTITION_TAG: partition}, status=dg.DagsterRunStatus.STARTED)
    assert partition not in home.tick()
    home.tick()
    home.instance.report_run_failed(run)
    home.tick()
    assert list(home.tick()) == [partition]


def test_the_sensor_leaves_a_part_to_the_run_that_follows_its_child(project: PartsProject) -> None:
    """`build-all` builds the part in a child first, and then runs the step that records it."""
    home = Home(project.graph(2))
    build(home.graph)
    partition = parts_of(home.graph)[0].removeprefix("part/")
    assert home.tick() == {}
    assert home.defs.resolve_job_def("plan_parts").execute_in_process(instance=home.instance, partition_key=NAME).success
    assert home.run(0).success
    assert partition not in home.tick()
    assert len(home.instance.fetch_materializations(NAMES.parts, limit=9).records) == 2, "one by the run, one by the sensor"


def test_a_step_asks_whether_its_run_was_terminated(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = dg.DagsterInstance.ephemeral()
    job = dg.JobDefinition(name="job", graph_def=dg.GraphDefinition("job"))
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    recent = RunEndCheck(instance, run.run_id)
    monkeypatch.setattr("niels_cache_assets.defs.assets.parts.ASK_SECONDS", 0)
    ending = RunEndCheck(instance, run.run_id)
    assert not ending()
    assert not RunEndCheck(instance, "00000000-0000-0000-0000-000000000000")()
    instance.report_run_canceling(run)
    assert not recent(), "it has just been asked"
    assert ending()
    assert ending.is_true


def test_a_step_whose_run_was_terminated_fails_and_stops_its_child(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(by_child(project))
    (project.folder / "made/slow").touch()
    monkeypatch.setattr(RunEndCheck, "__call__", lambda self: setattr(self, "is_true", True) or True)
    run = home.run(0)
    [failure] = [event.step_failure_data for event in run.all_events if event.is_step_failure]
    assert failure.user_failure_data is not None
    assert "terminated" in str(failure.user_failure_data.description)
    assert not graph_part(home).directory.exists()


def graph_part(home: Home) -> Artifact:
    return home.graph[parts_of(home.graph)[0]]


@pytest.mark.parametrize(("table", "places"), [("at_once = 3", 3), ('command = ["ssh", "{host}"]\nhosts = ["a", "b"]', 2), ("", 1)])
def test_the_pool_has_as_many_places_as_the_table_says(
    project: PartsProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, places: int
) -> None:
    monkeypatch.setattr("niels_cache_assets.defs.part_slots.available_threads", lambda: 15)
    home = Home(project.graph(2, build=f"[cluster]\n{table}"))
    (tmp_path / "home").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as home.instance:
        pool = home.instance.event_log_storage
        for set_limit in (home.tick, partial(limit_parts, home.instance, home.graph.registry)):
            set_limit()
            assert pool.get_concurrency_info(NAMES.parts_pool).limit == places
            pool.set_concurrency_slots(NAMES.parts_pool, 9)


def test_the_limit_of_a_pool_that_the_table_names_stays(project: PartsProject, tmp_path: Path) -> None:
    project.graph(2, build="[cluster]\nat_once = 3")
    config = project.folder / "cache.toml"
    config.write_text(config.read_text().replace("[dagster]", '[dagster]\npools = { parts = "shared" }'))
    (tmp_path / "home").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as instance:
        instance.event_log_storage.set_concurrency_slots("shared", 7)
        limit_parts(instance, load_registry(config=str(config)))
        assert instance.event_log_storage.get_concurrency_info("shared").limit == 7


def test_a_run_sets_the_limit_of_a_pool_that_nobody_has_set_and_keeps_another_one(project: PartsProject, tmp_path: Path) -> None:
    here: Any = SimpleNamespace(execute=lambda context, plan: iter(["executed"]))
    plan: Any = SimpleNamespace(get_steps_to_execute_in_topo_order=lambda: [SimpleNamespace(pool=NAMES.parts_pool)])
    executor = _RecordedExecutor(project.graph(2, build="[cluster]\nat_once = 3").registry, here=here, apart=here)
    (tmp_path / "home").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as instance:
        context: Any = SimpleNamespace(instance=instance, run_id="0123")
        pool = instance.event_log_storage
        for places in (3, 7):
            assert list(executor.execute(context, plan)) == ["executed"]
            assert pool.get_concurrency_info(NAMES.parts_pool).limit == places
            pool.set_concurrency_slots(NAMES.parts_pool, 7)


def test_the_runs_of_parts_wait_with_patience(project: PartsProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run holds the only place, and gives it back when this one is about to sleep."""
    home = Home(project.graph(2), builds_parts_here=True)
    build(home.graph, ["tokenizer", f"plan/{NAME}"])
    (tmp_path / "home").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as home.instance:
        pool, pauses, pause_of = home.instance.event_log_storage, [], PoolClaims.interval_to_next_pending_claim_check
        pool.set_concurrency_slots(NAMES.parts_pool, 1)
        assert pool.claim_concurrency_slot(NAMES.parts_pool, "other", "step").is_claimed

        def give_back(claims: PoolClaims) -> float:
            pauses.append(pause_of(claims))
            pool.free_concurrency_slots_for_run("other")
            return pauses[-1]

        monkeypatch.setattr(PoolClaims, "interval_to_next_pending_claim_check", give_back)
        late = threading.Timer(30, pool.free_concurrency_slots_for_run, ["other"])  # for a run that never sleeps
        late.start()
        assert home.run(0).success
        late.cancel()
        assert all(0 <= pause <= 1 for pause in pauses)
        assert 0 < len(pauses) < 10
