"""The changes that make a partition stale. They are other bytes of its inputs, another revision or other settings, and nothing else."""

import shutil
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver  # what the UI's "unsynced" is made of
from dagster._core.loader import LoadingContextForTest

from niels_cache_assets.defs.assets.upstream import built_versions, observe_revision, version_of
from niels_cache_assets.defs.checks.sync import IN_SYNC
from niels_cache_assets.sources.jsonl import Jsonl
from tests.helpers.built_project import Built
from tests.helpers.dagster_tools import TRAIN_HERE, Project, checks, failure, materializations, metadata, state_in
from tests.helpers.names import NAMES
from tests.helpers.tiny import sentences

TRAIN = dg.AssetKey(["pretrain", "train_shards"])


@pytest.fixture
def project(built_project: Built, tmp_path: Path) -> Project:
    return built_project.project.copied(tmp_path)


@pytest.fixture
def prepared(built_corpora: Built, tmp_path: Path) -> Project:
    return built_corpora.project.copied(tmp_path)


def observe_all(project: Project) -> None:
    project.observe(*project.registry.pretrain, *project.registry.sft)


def stale(project: Project) -> set[str]:
    """Everything that was built and is stale: key and partition."""
    graph = project.defs.resolve_asset_graph()
    resolver = CachingStaleStatusResolver(project.instance, graph, LoadingContextForTest(project.instance))
    found = {}
    for key in graph.materializable_asset_keys:
        partitions_def = graph.get(key).partitions_def
        for partition in partitions_def.get_partition_keys() if partitions_def else [None]:
            label = f"{key.to_user_string()} {partition}" if partition else key.to_user_string()
            found[label] = resolver.get_status(key, partition).value
    assert list(found.values()).count("FRESH") > 5
    return {label for label, value in found.items() if value == "STALE"}


def caches(family: str, *names: str) -> set[str]:
    """The labels of data sets' three assets."""
    keys = {"pretrain": ("train_shards", "val_shards", "meta_json"), "sft": ("train_pair", "val_pair", "meta_json")}[family]
    return {f"{family}/{key} {name}" for key in keys for name in names}


def test_what_a_build_has_read_is_there_and_a_look_at_upstream_leaves_it_there(tmp_path: Path, tiny_model: Path) -> None:
    """The UI shows partitions that were only observed as missing, in orange."""
    project = Project(tmp_path, tiny_model)
    assert project.build_tokenizer().success

    def there() -> set[str]:
        return project.instance.get_materialized_partitions(NAMES.upstream["pretrain"])

    project.observe("notes")
    assert (there(), project.status(TRAIN, "notes")) == (set(), "MISSING")
    project.build("notes")
    assert there() == {"notes"}
    project.write_notes(sentences(61))
    project.observe("notes")  # a sensor, say
    assert project.status(TRAIN, "notes") == "STALE"
    for _ in ("built", "hit"):
        project.build("notes")
        assert (there(), project.status(TRAIN, "notes")) == ({"notes"}, "FRESH")
    read = project.instance.fetch_materializations(NAMES.upstream["pretrain"], limit=10).records
    assert len(read) == 2, "one for each version that was read"
    project.build("books")
    project.observe("books")
    assert there() == {"notes", "books"}
    assert (project.status(TRAIN, "notes"), project.status(TRAIN, "books")) == ("FRESH", "FRESH")


def test_a_cache_hit_clears_a_stale_partition(project: Project) -> None:
    """A step's provenance points at the newest materialization of upstream, whichever partition that is of."""
    project.write_notes(sentences(61))
    project.observe("notes")
    (project.folder / "books/0.txt").write_text("Another book.", encoding="utf-8")
    project.build("books")
    project.write_notes(sentences(60))
    project.observe("notes")
    project.build("notes")
    assert project.status(TRAIN, "notes") == "FRESH"
    assert built_versions(project.instance, project.registry, "notes") == {
        version_of(observe_revision(project.registry, "notes", root=project.root))
    }


def test_the_job_observes_every_data_set_and_passes_over_what_cannot_be_asked_or_breaks(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Jsonl, siblings: object) -> None:
        raise KeyError("text")

    for name in ("books", "chats"):
        project.remove(name)
    shutil.rmtree(project.folder / "books")
    with monkeypatch.context() as patch:
        patch.setattr(Jsonl, "revision", broken)
        run = project.run("observe_upstream")
    observed = [(event.asset_key.to_user_string(), event.partition) for event in run.asset_observations_for_node("observe_revisions")]
    assert observed == [("upstream/sft", "chats")]
    logged = [entry.user_message for entry in project.instance.all_logs(run.run_id)]
    assert "notes: KeyError: 'text'" in logged
    assert any(text.startswith("Traceback") and "in broken\n" in text for text in logged)
    assert "books/*.txt" in failure(project.build("books"))


# Settings before the corpus and after the corpus decide the documents of a data set. Dagster gets all of them as one version.
_CORPUS = {name: {f"corpus/documents {name}"} | caches("pretrain", name) for name in ("books", "letters")}


def test_settings_of_one_data_set_make_that_partition_stale_and_no_other(prepared: Project) -> None:
    for old, new, expected in (
        ('files = ["chats.jsonl"]', 'files = ["chats.jsonl"]\nval_frac = 0.25', caches("sft", "chats")),
        ('files = ["notes.jsonl"]', 'files = ["notes.jsonl"]\ntext_field = "title"', caches("pretrain", "notes")),
        ('files = ["letters.jsonl"]', 'files = ["letters.jsonl"]\ntrain_tokens = 500', _CORPUS["letters"]),
        ("min_words = 3", "min_words = 4", _CORPUS["books"]),
        ("threads = 1", "threads = 2", set()),
    ):
        prepared.edit(old, new)
        observe_all(prepared)
        assert (new, stale(prepared)) == (new, expected)
        prepared.edit(new, old)
    observe_all(prepared)
    assert stale(prepared) == set(), "they are what it was built with"


def test_a_new_revision_of_the_same_documents_is_in_sync_when_its_corpus_was_looked_at(prepared: Project) -> None:
    file = prepared.folder / "letters.jsonl"
    file.write_text(file.read_text().replace('{"text"', '{"mood": 1, "text"'))
    observe_all(prepared)
    assert stale(prepared) == _CORPUS["letters"]
    assert not checks(prepared.build("letters"))[IN_SYNC].passed
    assert prepared.run("build_corpus", "letters").success
    again = prepared.build("letters")
    assert state_in(metadata(materializations(again)["pretrain/meta_json"])) == "cache_hit"
    assert checks(again)[IN_SYNC].passed
    assert stale(prepared) == set()


def test_changed_settings_of_the_tokenizer_mark_it_before_it_is_trained(prepared: Project) -> None:
    prepared.edit("vocab_size = 330", "vocab_size = 340")
    assert stale(prepared) == {"tokenizer"}
    prepared.edit("vocab_size = 340", "vocab_size = 330")
    assert stale(prepared) == set()


def test_a_tokenizer_trained_to_the_same_bytes_makes_nothing_stale_and_to_others_exactly_the_caches(prepared: Project) -> None:
    assert stale(prepared) == set()
    trained = prepared.build_tokenizer(force=True)
    assert state_in(metadata(materializations(trained, "tokenizer")["tokenizer"])) == "built"
    assert stale(prepared) == set()
    prepared.edit(TRAIN_HERE, f'model = "{prepared.tokenizer_model}"')
    assert prepared.build_tokenizer().success
    assert stale(prepared) == caches("pretrain", "notes", "books", "letters") | caches("sft", "chats")
