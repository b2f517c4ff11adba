"""Parts of corpora, and ranges of the search for duplicates, as assets with partitions. Without them, there are no such assets."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from niels_cache_assets.artifacts import corpus as parts_corpus
from niels_cache_assets.artifacts import duplicates
from niels_cache_assets.artifacts.base import Artifact, Outcome
from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.corpus.layout import corpus_parts_dir, ranges_dir
from niels_cache_assets.defs import keys
from niels_cache_assets.defs.assembly import build_defs
from niels_cache_assets.defs.assets import parts as assets_parts
from niels_cache_assets.defs.finished_parts import finished_parts_sensor
from niels_cache_assets.defs.launcher import LaunchResult, launch_builds
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_runtime.format.commit import remove
from niels_cache_runtime.verify import verify_cache
from tests.launches import Recorder, launch_in_memory, states
from tests.messages import missing
from tests.parts_project import NAME, PartsProject, build, stream_of
from tests.test_dagster_parts import assets, status_in

TABLE = 'prepare = ["dedup"]\nval_frac = 0.1\n'
RANGES = "[dedup]\nranges = 2\n"
PARTITIONS = [f"{NAME}/part-0000{number}" for number in range(3)]
RANGE_PARTITIONS = ["range-00000", "range-00001"]
PARTS = [f"corpus_part/{NAME}/part-0000{number}" for number in range(3)]
STEPS = [f"plan/{NAME}", *PARTS, f"corpus/{NAME}", "hashes", "range/range-00000", "range/range-00001", "corpus/duplicates"]


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> PartsProject:
    project = PartsProject(tmp_path, tiny_model)
    project.write([30, 12, 30, 14])
    return project


@pytest.fixture(autouse=True)
def instance(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> dg.DagsterInstance:
    """The instance of launches, in memory."""
    return launch_in_memory(SimpleNamespace(folder=project.folder, instance=dg.DagsterInstance.ephemeral()), monkeypatch)


def launch(found: Graph, *, force: bool = False) -> dict[str, LaunchResult]:
    results = launch_builds(found.registry, root=found.root, force=force, listener=Recorder())
    return {result.name: result for result in results}


def test_the_assets_depend_on_one_another_as_the_graph_says(project: PartsProject) -> None:
    found = project.graph(3, TABLE, build=RANGES)
    definitions = build_defs(registry=found.registry)
    dg.Definitions.validate_loadable(definitions)
    graph = definitions.get_repository_def().asset_graph
    parents = {key: graph.get(key).parent_keys for key in (keys.CORPUS_PARTS, keys.DOCUMENTS, keys.HASHES, keys.RANGES, keys.DUPLICATES)}
    assert parents == {
        keys.CORPUS_PARTS: {keys.PLAN},
        keys.DOCUMENTS: {keys.CORPUS_PARTS, keys.UPSTREAM_KEYS["pretrain"]},
        keys.HASHES: {keys.DOCUMENTS},
        keys.RANGES: {keys.HASHES},
        keys.DUPLICATES: {keys.DOCUMENTS, keys.RANGES},
    }
    for key, names in (
        (keys.CORPUS_PARTS, [key.removeprefix("corpus_part/") for key in PARTS]),
        (keys.RANGES, ["range-00000", "range-00001"]),
    ):
        node = graph.get(key)
        assert node.partitions_def is not None
        assert node.partitions_def.get_partition_keys() == names
        assert node.pools == {keys.PARTS_POOL}
    above = graph.get_parents_partitions(keys.DOCUMENTS, NAME).parent_partitions
    assert {part.partition_key for part in above if part.asset_key == keys.CORPUS_PARTS} == {
        key.removeprefix("corpus_part/") for key in PARTS
    }
    assert [key for key in found.keys if key in STEPS] == STEPS
    assert set(found[f"corpus/{NAME}"].inputs()) == {f"plan/{NAME}", *PARTS}


def test_without_parts_and_ranges_there_are_none_of_these_assets(project: PartsProject) -> None:
    assert not assets(project.graph(1, TABLE)) & {keys.PLAN, keys.CORPUS_PARTS, keys.HASHES, keys.RANGES}
    assert keys.CORPUS_PARTS not in assets(project.graph(3))


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
    assert instance.get_materialized_partitions(keys.CORPUS_PARTS) == set(PARTITIONS)
    assert instance.get_materialized_partitions(keys.RANGES) == set(RANGE_PARTITIONS)
    status = status_in(found, instance)
    assert {status(keys.DOCUMENTS, NAME), status(keys.CORPUS_PARTS, f"{NAME}/part-00001")} == {"FRESH"}
    remove(corpus_parts_dir(found.root, NAME))  # takes room, and is not needed any more
    again = states(launch(found))
    assert not set(again) & {*PARTS, "hashes", "range/range-00000"}
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


def test_a_corpus_with_a_part_that_failed_is_left_out(project: PartsProject) -> None:
    found = project.graph(3, TABLE)
    broken = found[PARTS[1]].directory
    broken.mkdir(parents=True)
    (broken / "notes of mine").write_text("")
    results = launch(found)
    assert missing(results[PARTS[1]].message or "", "notes of mine") == []
    assert {results[PARTS[1]].state, results[PARTS[2]].state} == {"failed", "built"}
    assert results[f"corpus/{NAME}"].state == "skipped"
    assert results[NAME].state == "skipped"


def test_without_a_corpus_no_range_is_launched(project: PartsProject) -> None:
    found = project.graph(1, TABLE, build=RANGES)
    broken = found[f"corpus/{NAME}"].directory
    broken.mkdir(parents=True)
    (broken / "notes of mine").write_text("")
    results = states(launch(found))
    assert (results[f"corpus/{NAME}"], results[NAME]) == ("failed", "skipped")
    assert not {"hashes", "range/range-00000", "range/range-00001", "corpus/duplicates"} & set(results)


def test_a_launch_goes_on_if_another_process_finishes_the_search(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    found = project.graph(1, TABLE, build=RANGES)

    def overtaken(artifact: Artifact, **options: Any) -> Outcome:
        if artifact.key == "range/range-00001" and not found.is_done(artifact.key):
            materialize(found["corpus/duplicates"])
        return materialize(artifact, **options)

    monkeypatch.setattr(assets_parts, "materialize", overtaken)
    results = states(launch(found))
    assert [results[key] for key in STEPS[-4:]] == ["built", "built", "cache_hit", "cache_hit"]
    assert results[NAME] == "built"
    assert not ranges_dir(found.root).exists()


def test_a_range_that_is_removed_after_its_run_is_no_failure(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    found = project.graph(1, TABLE, build=RANGES)

    def overtaken(artifact: Artifact, **options: Any) -> Outcome:
        outcome = materialize(artifact, **options)
        if artifact.key == "range/range-00001":
            materialize(found["corpus/duplicates"])
        return outcome

    monkeypatch.setattr(assets_parts, "materialize", overtaken)
    results = launch(found)
    assert (results["range/range-00001"].meta, states(results)[NAME]) == (None, "built")


def test_the_sensor_records_parts_of_a_corpus_that_other_programs_have_built(project: PartsProject, instance: dg.DagsterInstance) -> None:
    found = project.graph(3, TABLE)
    for key in (f"plan/{NAME}", PARTS[0], PARTS[2]):
        materialize(found[key])
    resources = {"cache_root": CacheRoot(root=str(found.root))}
    definitions, sensor = build_defs(resources, registry=found.registry), finished_parts_sensor(found.registry)
    cursor = None
    for recorded in (0, 3, 0):
        context = dg.build_sensor_context(instance=instance, cursor=cursor, definitions=definitions, resources=resources)
        tick = sensor.evaluate_tick(context)
        assert len(tick.asset_events) == recorded
        for event in tick.asset_events:
            instance.report_runless_asset_event(event)
        cursor = tick.cursor
    assert instance.get_materialized_partitions(keys.CORPUS_PARTS) == {f"{NAME}/part-00000", f"{NAME}/part-00002"}
