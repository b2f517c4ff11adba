"""The asset index/gpt, with its partitions, its dependencies, the records of a run, and the changes that make it stale."""

from pathlib import Path

import dagster as dg
import pytest

from niels_cache_assets.defs.keys import INDEX, INDEX_JOB
from niels_cache_assets.defs.metadata.builds import state_in
from niels_cache_runtime.megatron import IndexCache, open_blend
from tests.built_project import Built
from tests.dagster_tools import Project, failure, materializations, metadata, rows
from tests.tiny import sentences

BLENDS = """
[blend.mix]
weights = { notes = 3, books = 1 }
sequence_length = 16
num_samples = 40

[blend.alone]
weights = { books = 1 }
sequence_length = 16
num_samples = 10
"""
OP = "index__gpt"


@pytest.fixture
def project(built_project: Built, tmp_path: Path) -> Project:
    project = built_project.project.copied(tmp_path)
    project.configure(extra=BLENDS)
    return project


def build_index(project: Project, name: str) -> dg.ExecuteInProcessResult:
    return project.run(INDEX_JOB, name)


def test_a_blend_is_a_partition_below_the_train_shards_of_its_members(project: Project) -> None:
    graph = project.defs.resolve_asset_graph()
    node = graph.get(INDEX)
    assert node.group_name == "index"
    assert node.partitions_def is not None
    assert node.partitions_def.get_partition_keys() == ["mix", "alone"]
    above = {
        name: {(key.asset_key.to_user_string(), key.partition_key) for key in graph.get_parents_partitions(INDEX, name).parent_partitions}
        for name in ("mix", "alone")
    }
    books = ("pretrain/train_shards", "books")
    assert above == {"mix": {("pretrain/train_shards", "notes"), books}, "alone": {books}}
    project.configure()
    assert INDEX not in project.defs.resolve_asset_graph().get_all_asset_keys(), "without a blend there is no index"


def test_a_run_builds_what_training_finds_and_only_other_tokens_or_settings_make_it_stale(project: Project) -> None:
    notes = project.root / "pretrain/notes"
    away = notes.rename(notes.with_name("away"))
    assert "pretrain/notes/train.idx" in failure(build_index(project, "mix"))
    away.rename(notes)
    for name in ("mix", "alone"):
        run = build_index(project, name)
        assert run.success
    recorded = metadata(materializations(build_index(project, "mix"), OP)["index/gpt"])
    assert state_in(recorded) == "cache_hit"
    assert [row["index"] for row in rows(recorded["indices"])] == ["notes", "books", "blend"]
    folders = [path for path in (project.root / "index").iterdir() if path.is_dir()]
    assert len(folders) == 4, "both blends take 11 samples of books: one index"

    blend = open_blend(
        [project.root / "pretrain" / name / "train" for name in ("notes", "books")],
        [3, 1],
        num_samples=40,
        sequence_length=16,
        seed=1234,
        index_cache=IndexCache(project.root / "index"),
    )
    assert len(blend) == recorded["samples"] == 40
    assert sorted(path for path in (project.root / "index").iterdir() if path.is_dir()) == sorted(folders)

    assert (project.status(INDEX, "mix"), project.status(INDEX, "alone")) == ("FRESH", "FRESH")
    project.write_notes(sentences(61))
    assert project.build("notes").success
    assert (project.status(INDEX, "mix"), project.status(INDEX, "alone")) == ("STALE", "FRESH")
    rebuilt = build_index(project, "mix")
    other = metadata(materializations(rebuilt, OP)["index/gpt"])
    assert state_in(other) == "built"
    assert other["hash"] != recorded["hash"]
    assert project.status(INDEX, "mix") == "FRESH"
    project.configure(extra=BLENDS.replace("num_samples = 40", "num_samples = 41"))
    assert project.status(INDEX, "mix") == "STALE"
