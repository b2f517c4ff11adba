"""A data set in parts in Dagster: one run for each part, and the assets of today unchanged without parts."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver  # what the UI's "unsynced" is made of
from dagster._core.loader import LoadingContextForTest

from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.defs import keys
from niels_cache_assets.defs.assembly import build_defs
from niels_cache_assets.defs.assets.upstream import observe_revision
from niels_cache_assets.defs.launcher import LaunchResult, launch_builds
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_runtime.verify import verify_cache
from tests.launches import Recorder, launch_in_memory, states
from tests.parts_project import NAME, PartsProject

PARTS = [f"part/{NAME}/part-{number:05d}" for number in range(3)]


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> PartsProject:
    project = PartsProject(tmp_path, tiny_model)
    project.write([9, 2, 30, 14])
    return project


@pytest.fixture
def instance(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> dg.DagsterInstance:
    """The instance of launches, in memory."""
    return launch_in_memory(SimpleNamespace(folder=project.folder, instance=dg.DagsterInstance.ephemeral()), monkeypatch)


def launch(found: Graph) -> dict[str, LaunchResult]:
    results = launch_builds(found.registry, root=found.root, listener=Recorder())
    return {result.name: result for result in results}


def test_a_launch_builds_plan_val_parts_and_seal_in_order(project: PartsProject, instance: dg.DagsterInstance) -> None:
    found = project.graph(3, "val_tokens = 60")
    results = launch(found)
    assert list(results) == ["tokenizer", f"plan/{NAME}", f"val_part/{NAME}", *PARTS, NAME]
    assert set(states(results).values()) == {"built"}, [result.message for result in results.values()]
    assert verify_cache(found.root) == []
    assert instance.get_materialized_partitions(keys.PARTS) == {key.removeprefix("part/") for key in PARTS}
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
    assert not assets(project.graph(1)) & {keys.PLAN, keys.VAL_PART, keys.PARTS}
    assert assets(project.graph(2)) >= {keys.PLAN, keys.PARTS}
    assert keys.VAL_PART not in assets(project.graph(2))
    assert keys.VAL_PART in assets(project.graph(2, "val_tokens = 60"))


MOST_BYTES = 200_000  # of Dagster's database for one part: a data set may have thousands


def test_a_part_adds_little_to_the_database(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(project.folder / "home"))
    sizes: list[int] = []

    class Weighing(Recorder):
        def finished(self, result: LaunchResult) -> None:
            if result.name.startswith("part/"):
                sizes.append(sum(path.stat().st_size for path in (project.folder / "home").rglob("*") if path.is_file()))

    found = project.graph(4)
    launch_builds(found.registry, root=found.root, listener=Weighing())
    assert len(sizes) == 4
    assert 1_000 < (sizes[-1] - sizes[0]) / 3 <= MOST_BYTES


def assets(found: Graph) -> set[dg.AssetKey]:
    return set(build_defs(registry=found.registry).get_repository_def().asset_graph.get_all_asset_keys())


def test_partitions_of_parts_lead_to_their_data_set(project: PartsProject) -> None:
    definitions = build_defs(registry=project.graph(3, "val_tokens = 60").registry)
    dg.Definitions.validate_loadable(definitions)
    graph = definitions.get_repository_def().asset_graph
    node = graph.get(keys.PARTS)
    assert node.partitions_def is not None
    assert node.partitions_def.get_partition_keys() == [key.removeprefix("part/") for key in PARTS]
    assert node.pools == {keys.PARTS_POOL}
    assert node.parent_keys == {keys.TOKENIZER, keys.PLAN, keys.VAL_PART}
    assert keys.PARTS in graph.get(keys.TRAIN_KEYS["pretrain"]).parent_keys


def test_old_partitions_of_a_grown_data_set_stay_fresh(project: PartsProject, instance: dg.DagsterInstance) -> None:
    launch(project.graph(3, "val_tokens = 60"))
    project.write([12, 8], first=8, folder="more")
    grown = project.graph(3, f'val_tokens = 60\n[[pretrain.{NAME}.added]]\nfiles = ["more/*"]\nparts = 2\n')
    new = [f"{NAME}/part-00003", f"{NAME}/part-00004"]
    old = [key.removeprefix("part/") for key in PARTS]
    for _ in range(2):
        assert partition_states(grown, instance) == dict.fromkeys(old, "FRESH") | dict.fromkeys(new, "MISSING")
        plan(grown, instance)
        assert instance.get_materialized_partitions(keys.PARTS) == set(old)
    results = states(launch(grown))
    assert [name for name, state in results.items() if state == "built"] == [*(f"part/{name}" for name in new), NAME]
    assert partition_states(grown, instance) == dict.fromkeys([*old, *new], "FRESH")


def plan(found: Graph, instance: dg.DagsterInstance) -> None:
    job = build_defs({"cache_root": CacheRoot(root=str(found.root))}, registry=found.registry).resolve_job_def(keys.PLAN_JOB)
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
    assert status_in(changed, instance)(keys.PLAN, NAME) == "STALE"
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
    part = found.sealed(NAME).plan.parts[1]
    assert set(partition_states(found, instance).values()) == {"FRESH"}
    ids.write_text(f"{int(part.files[0].name[1:4])}-0\n")
    instance.report_runless_asset_event(observe_revision(found.registry, NAME, root=found.root))
    assert status_in(found, instance)(keys.PLAN, NAME) == "STALE"
    plan(found, instance)
    assert set(partition_states(found, instance).values()) == {"STALE"}
    results = states(launch(found))
    assert {name for name, state in results.items() if state == "built"} == {f"part/{NAME}/{part.name}", NAME}
    assert {*partition_states(found, instance).values(), status_in(found, instance)(keys.PLAN, NAME)} == {"FRESH"}


def partition_states(found: Graph, instance: dg.DagsterInstance) -> dict[str, str]:
    """Whether each partition of the parts is fresh, stale or missing, as the UI tells it."""
    status = status_in(found, instance)
    return {part: status(keys.PARTS, part) for part in keys.parts_of_datasets(found.registry)[NAME]}


def status_in(found: Graph, instance: dg.DagsterInstance) -> Callable[[dg.AssetKey, str], str]:
    graph = build_defs(registry=found.registry).resolve_asset_graph()
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    return lambda key, partition: str(resolver.get_status(key, partition).value)
