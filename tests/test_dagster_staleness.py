"""What makes a partition stale, and what does not: other bytes of the tokenizer or another revision upstream, nothing else."""

from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver  # what the UI's "unsynced" is made of
from dagster._core.loader import LoadingContextForTest

from niels_cache_assets.defs.assets.upstream import observe_revision
from tests.dagster_tools import Project, failure
from tests.tiny import sentences

META = dg.AssetKey(["pretrain", "meta_json"])
TRAIN = dg.AssetKey(["pretrain", "train_shards"])


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> Project:
    project = Project(tmp_path, tiny_model)
    assert project.build_tokenizer().success
    return project


def status(project: Project, name: str, key: dg.AssetKey = TRAIN) -> str:
    graph = project.defs.resolve_asset_graph()
    resolver = CachingStaleStatusResolver(project.instance, graph, LoadingContextForTest(project.instance))
    return resolver.get_status(key, name).value


def observe(project: Project, name: str) -> None:
    for observation in observe_revision(project.registry, "pretrain", name):
        project.instance.report_runless_asset_event(observation)


def test_a_fresh_build_is_fresh_when_its_upstream_was_observed_before_it(project: Project) -> None:
    assert status(project, "notes") == "MISSING"
    observe(project, "notes")
    project.build("notes")
    assert status(project, "notes") == "FRESH"
    observe(project, "notes")
    assert status(project, "notes") == "FRESH"


def test_another_revision_upstream_makes_that_partition_stale_until_it_is_built(project: Project) -> None:
    for name in ("notes", "books"):
        observe(project, name)
        project.build(name)
    project.write_notes(sentences(61))
    observe(project, "notes")
    assert (status(project, "notes"), status(project, "books")) == ("STALE", "FRESH")
    project.build("notes")
    assert status(project, "notes") == "FRESH"


def test_the_same_tokenizer_again_makes_nothing_stale_and_another_one_does(project: Project) -> None:
    project.build("notes")
    project.build_tokenizer(force=True)
    assert status(project, "notes") == "FRESH"
    project.import_other_tokenizer()
    project.build_tokenizer()
    assert status(project, "notes") == "STALE"
    project.build("notes")
    assert status(project, "notes") == "FRESH"
    assert status(project, "notes", META) == "FRESH"


def test_a_cache_hit_clears_a_stale_partition(project: Project) -> None:
    observe(project, "notes")
    project.build("notes")
    project.write_notes(sentences(61))
    observe(project, "notes")
    project.write_notes(sentences(60))
    observe(project, "notes")
    project.build("notes")
    assert status(project, "notes") == "FRESH"


def test_the_job_observes_every_data_set_and_passes_over_what_cannot_be_asked(project: Project) -> None:
    (project.folder / "notes.jsonl").unlink()
    run = project.defs.resolve_job_def("observe_upstream").execute_in_process(instance=project.instance)
    observed = [(event.asset_key.to_user_string(), event.partition) for event in run.asset_observations_for_node("observe_revisions")]
    assert observed == [("upstream/pretrain", "books"), ("upstream/sft", "chats")]
    assert "notes.jsonl" in failure(project.build("notes"))
