"""Data sets and corpora in parts, and ranges of the search for duplicates, in Dagster: one run for each of them."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver  # what the UI's "unsynced" is made of
from dagster._core.loader import LoadingContextForTest

from niels_cache_assets.artifacts import corpus as parts_corpus
from niels_cache_assets.artifacts import duplicates
from niels_cache_assets.artifacts.base import Artifact, Outcome
from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.corpus.layout import corpus_parts_dir, ranges_dir
from niels_cache_assets.defs.assembly import build_defs
from niels_cache_assets.defs.assets import building
from niels_cache_assets.defs.assets.upstream import observe_revision
from niels_cache_assets.defs.finished_parts import finished_parts_sensor
from niels_cache_assets.defs.launcher import LaunchResult, launch_builds
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_runtime.format.commit import remove
from niels_cache_runtime.verify import verify_cache
from tests.helpers.launches import Recorder, launch_in_memory, states
from tests.helpers.messages import missing
from tests.helpers.names import NAMES
from tests.helpers.parts_project import NAME, PartsProject, build, stream_of

pytestmark = pytest.mark.usefixtures("no_drawing")
PARTS = [f"part/{NAME}/part-{number:05d}" for number in range(3)]


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> PartsProject:
    project = PartsProject(tmp_path, tiny_model)
    project.write([30, 12, 30, 14])
    return project


@pytest.fixture
def instance(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> dg.DagsterInstance:
    """The instance of launches, in memory."""
    return launch_in_memory(SimpleNamespace(folder=project.folder, instance=dg.DagsterInstance.ephemeral()), monkeypatch)


def launch(found: Graph, *, force: bool = False) -> dict[str, LaunchResult]:
    results = launch_builds(found.registry, root=found.root, force=force, listener=Recorder())
    return {result.name: result for result in results}


def test_a_launch_builds_plan_val_parts_and_seal_in_order(project: PartsProject, instance: dg.DagsterInstance) -> None:
    found = project.graph(3, "val_tokens = 60")
    results = launch(found)
    assert list(results) == ["tokenizer", f"plan/{NAME}", f"val_part/{NAME}", *PARTS, NAME]
    assert set(states(results).values()) == {"built"}, [result.message for result in results.values()]
    assert verify_cache(found.root) == []
    assert instance.get_materialized_partitions(NAMES.parts) == {key.removeprefix("part/") for key in PARTS}
    assert set(states(launch(found)).values()) == {"cache_hit"}


@pytest.mark.usefixtures("instance")
def test_a_failed_part_leaves_the_others_and_skips_the_seal(project: PartsProject) -> None:
    found = project.graph(3)
    launch(found)
    broken = found[PARTS[1]].directory
    (broken / "meta.json").unlink()
    (broken / "notes of mine").write_text("")
    results = states(launch(found))
    assert results[PARTS[1]] == "failed"
    assert results[PARTS[2]] == "cache_hit"
    assert results[NAME] == "skipped"
    (broken / "notes of mine").unlink()
    assert states(launch(found))[NAME] == "cache_hit"
    assert verify_cache(found.root) == []


def test_assets_of_parts_exist_only_with_parts(project: PartsProject) -> None:
    assert not assets(project.graph(1)) & {NAMES.plan, NAMES.val_part, NAMES.parts}
    assert assets(project.graph(2)) >= {NAMES.plan, NAMES.parts}
    assert NAMES.val_part not in assets(project.graph(2))
    assert NAMES.val_part in assets(project.graph(2, "val_tokens = 60"))


MOST_BYTES = 200_000  # of Dagster's database for one part: a data set may have thousands


def test_a_part_adds_little_to_the_database(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(project.folder / "home"))
    sizes: list[int] = []

    class Weighing(Recorder):
        def finished(self, result: LaunchResult) -> None:
            if result.name.startswith("part/"):
                sizes.append(sum(path.stat().st_size for path in (project.folder / "home").rglob("*") if path.is_file()))

    found = project.graph(3)
    launch_builds(found.registry, root=found.root, listener=Weighing())
    assert len(sizes) == 3
    assert 1_000 < (sizes[-1] - sizes[0]) / 2 <= MOST_BYTES


def assets(found: Graph) -> set[dg.AssetKey]:
    return set(build_defs(registry=found.registry).get_repository_def().asset_graph.get_all_asset_keys())


def test_old_partitions_of_a_grown_data_set_stay_fresh(project: PartsProject, instance: dg.DagsterInstance) -> None:
    launch(project.graph(3, "val_tokens = 60"))
    project.write([12, 8], first=8, folder="more")
    grown = project.graph(3, f'val_tokens = 60\n[[pretrain.{NAME}.added]]\nfiles = ["more/*"]\nparts = 2\n')
    new = [f"{NAME}/part-00003", f"{NAME}/part-00004"]
    old = [key.removeprefix("part/") for key in PARTS]
    for _ in range(2):
        assert partition_states(grown, instance) == dict.fromkeys(old, "FRESH") | dict.fromkeys(new, "MISSING")
        plan(grown, instance)
        assert instance.get_materialized_partitions(NAMES.parts) == set(old)
    results = states(launch(grown))
    assert [name for name, state in results.items() if state == "built"] == [*(f"part/{name}" for name in new), NAME]
    assert partition_states(grown, instance) == dict.fromkeys([*old, *new], "FRESH")


def plan(found: Graph, instance: dg.DagsterInstance) -> None:
    job = build_defs({"cache_root": CacheRoot(root=str(found.root))}, registry=found.registry).resolve_job_def("plan_parts")
    assert job.execute_in_process(instance=instance, partition_key=NAME).success


def test_another_table_of_added_files_makes_the_parts_stale(project: PartsProject, instance: dg.DagsterInstance) -> None:
    project.write([12, 8], first=8, folder="more")
    project.write([5, 6], first=18, folder="again")

    def grown(*tables: tuple[str, int]) -> Graph:
        added = (f'[[pretrain.{NAME}.added]]\nfiles = ["{folder}/*"]\nparts = {parts}\n' for folder, parts in tables)
        return project.graph(1, "".join(added))

    first, second, third = (f"{NAME}/part-0000{number}" for number in range(3))
    launch(grown(("more", 2)))
    assert set(partition_states(grown(("more", 2)), instance).values()) == {"FRESH"}
    changed = grown(("more", 1))
    instance.report_runless_asset_event(observe_revision(changed.registry, NAME, root=changed.root))
    assert status_in(changed, instance)(NAMES.plan, NAME) == "STALE"
    plan(changed, instance)
    assert partition_states(changed, instance)[second] == "STALE"
    results = states(launch(changed))
    assert {name for name, state in results.items() if state == "built"} == {f"part/{second}", NAME}
    assert set(partition_states(changed, instance).values()) == {"FRESH"}
    both = grown(("more", 1), ("again", 1))
    plan(both, instance)
    assert partition_states(both, instance) == {first: "FRESH", second: "FRESH", third: "STALE"}  # that of the old table


def test_a_list_of_documents_to_leave_out_makes_the_parts_stale_and_builds_one(project: PartsProject, instance: dg.DagsterInstance) -> None:
    ids = project.folder / "ids.txt"
    ids.write_text("not-there\n")
    found = project.graph(3, 'exclude = "ids.txt"')
    launch(found)
    part = found.sealed(NAME).spec.plan.parts[1]
    assert set(partition_states(found, instance).values()) == {"FRESH"}
    ids.write_text(f"{int(part.files[0].name[1:4])}-0\n")
    instance.report_runless_asset_event(observe_revision(found.registry, NAME, root=found.root))
    assert status_in(found, instance)(NAMES.plan, NAME) == "STALE"
    plan(found, instance)
    assert set(partition_states(found, instance).values()) == {"STALE"}
    results = states(launch(found))
    assert {name for name, state in results.items() if state == "built"} == {f"part/{NAME}/{part.name}", NAME}
    assert {*partition_states(found, instance).values(), status_in(found, instance)(NAMES.plan, NAME)} == {"FRESH"}


def partition_states(found: Graph, instance: dg.DagsterInstance) -> dict[str, str]:
    """Whether each partition of the parts is fresh, stale or missing, as the UI tells it."""
    status = status_in(found, instance)
    return {part: status(NAMES.parts, part) for part in found.readers("plan", "part")[NAME]}


def status_in(found: Graph, instance: dg.DagsterInstance) -> Callable[[dg.AssetKey, str], str]:
    graph = build_defs(registry=found.registry).resolve_asset_graph()
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    return lambda key, partition: str(resolver.get_status(key, partition).value)


TABLE = 'prepare = ["dedup"]\nval_frac = 0.1\n'
RANGES = "[dedup]\nranges = 2\n"
PARTITIONS = [f"{NAME}/part-0000{number}" for number in range(3)]
RANGE_PARTITIONS = ["range-00000", "range-00001"]
CORPUS_PARTS = [f"corpus_part/{NAME}/part-0000{number}" for number in range(3)]
STEPS = [f"plan/{NAME}", *CORPUS_PARTS, f"corpus/{NAME}", "hashes", "range/range-00000", "range/range-00001", "corpus/duplicates"]


def test_without_parts_and_ranges_there_are_none_of_these_assets(project: PartsProject) -> None:
    assert not assets(project.graph(1, TABLE)) & {NAMES.plan, NAMES.corpus_parts, NAMES.hashes, NAMES.ranges}
    assert NAMES.corpus_parts not in assets(project.graph(3))


def test_a_launch_builds_parts_and_ranges_once_and_force_builds_each_again(
    project: PartsProject, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = project.graph(1, TABLE, root="plain")
    build(plain)
    found = project.graph(3, TABLE, build=RANGES)
    results = launch(found)
    assert list(results)[: len(STEPS) + 1] == ["tokenizer", *STEPS]
    assert set(states(results).values()) == {"built"}, [result.message for result in results.values()]
    assert stream_of(project.cache()) == stream_of(project.cache("plain"))
    assert not ranges_dir(found.root).exists()
    assert verify_cache(found.root) == []
    assert instance.get_materialized_partitions(NAMES.corpus_parts) == set(PARTITIONS)
    assert instance.get_materialized_partitions(NAMES.ranges) == set(RANGE_PARTITIONS)
    status = status_in(found, instance)
    assert {status(NAMES.documents, NAME), status(NAMES.corpus_parts, f"{NAME}/part-00001")} == {"FRESH"}
    remove(corpus_parts_dir(found.root, NAME))  # takes room, and is not needed any more
    again = states(launch(found))
    assert not set(again) & {*CORPUS_PARTS, "hashes", "range/range-00000"}
    assert set(again.values()) == {"cache_hit"}

    made: list[str] = []

    def counted(artifact: Artifact, **options: Any) -> Outcome:
        outcome = materialize(artifact, **options)
        made.append(f"{artifact.key}: {outcome.state}")
        return outcome

    monkeypatch.setattr(parts_corpus, "materialize", counted)
    monkeypatch.setattr(duplicates, "materialize", counted)
    forced = states(launch(found, force=True))
    assert [forced[key] for key in STEPS] == ["built"] * len(STEPS)
    assert made == [f"{key}: cache_hit" for key in STEPS if key not in (f"corpus/{NAME}", "corpus/duplicates")]


@pytest.mark.usefixtures("instance")
def test_a_corpus_with_a_part_that_failed_is_left_out(project: PartsProject) -> None:
    found = project.graph(3, TABLE)
    broken = found[CORPUS_PARTS[1]].directory
    broken.mkdir(parents=True)
    (broken / "notes of mine").write_text("")
    results = launch(found)
    assert missing(results[CORPUS_PARTS[1]].message or "", "notes of mine") == []
    assert {results[CORPUS_PARTS[1]].state, results[CORPUS_PARTS[2]].state} == {"failed", "built"}
    assert results[f"corpus/{NAME}"].state == "skipped"
    assert results[NAME].state == "skipped"


@pytest.mark.usefixtures("instance")
def test_a_launch_goes_on_if_another_process_finishes_the_search(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    found = project.graph(1, TABLE, build=RANGES)

    def overtaken(artifact: Artifact, **options: Any) -> Outcome:
        if artifact.key == "range/range-00001" and not found.is_done(artifact.key):
            materialize(found["corpus/duplicates"])
        return materialize(artifact, **options)

    monkeypatch.setattr(building, "materialize", overtaken)
    results = states(launch(found))
    assert [results[key] for key in STEPS[-4:]] == ["built", "built", "cache_hit", "cache_hit"]
    assert results[NAME] == "built"
    assert not ranges_dir(found.root).exists()


def test_the_sensor_records_parts_of_a_corpus_that_other_programs_have_built(project: PartsProject, instance: dg.DagsterInstance) -> None:
    found = project.graph(3, TABLE)
    for key in (f"plan/{NAME}", CORPUS_PARTS[0], CORPUS_PARTS[2]):
        materialize(found[key])
    resources = {"cache_root": CacheRoot(root=str(found.root))}
    definitions, sensor = build_defs(resources, registry=found.registry), finished_parts_sensor(found.registry)
    cursor = None
    for recorded in (0, 3, 0):
        context = dg.build_sensor_context(instance=instance, cursor=cursor, definitions=definitions, resources=resources)
        tick = sensor.evaluate_tick(context)
        assert f"recorded {recorded}" in (tick.skip_message or "") or not recorded
        cursor = tick.cursor
    assert instance.get_materialized_partitions(NAMES.corpus_parts) == {f"{NAME}/part-00000", f"{NAME}/part-00002"}
