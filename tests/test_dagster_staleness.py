"""What makes a partition stale, and what does not: other bytes of what is above it, another revision or other settings, nothing else."""

from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver  # what the UI's "unsynced" is made of
from dagster._core.loader import LoadingContextForTest

from niels_cache_assets.defs.assets.upstream import built_versions, observe_revision, version_of
from niels_cache_assets.defs.keys import CORPUS_JOB, DUPLICATES_JOB, REPORT_JOB, UPSTREAM_KEYS
from niels_cache_assets.defs.metadata import state_in
from niels_cache_assets.defs.sync_checks import IN_SYNC
from niels_cache_assets.sources.row_files import Jsonl
from tests.dagster_tools import TRAIN_HERE, Project, checks, failure, materializations, metadata
from tests.prepared_project import prepare_project
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
    project.instance.report_runless_asset_event(observe_revision(project.registry, name, root=project.root))


def observe_all(project: Project) -> None:
    for name in [*project.registry.pretrain, *project.registry.sft]:
        observe(project, name)


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


def test_another_revision_upstream_makes_that_partition_stale_until_it_is_built(project: Project) -> None:
    assert status(project, "notes") == "MISSING"
    for name in ("notes", "books"):
        observe(project, name)
        project.build(name)
    observe(project, "notes")
    assert status(project, "notes") == "FRESH"
    project.write_notes(sentences(61))
    observe(project, "notes")
    assert (status(project, "notes"), status(project, "books")) == ("STALE", "FRESH")
    project.build("notes")
    assert status(project, "notes") == "FRESH"


def test_what_a_build_has_read_is_there_and_a_look_at_upstream_leaves_it_there(project: Project) -> None:
    """The UI shows what was only observed as missing, in orange."""

    def there() -> set[str]:
        return project.instance.get_materialized_partitions(UPSTREAM_KEYS["pretrain"])

    observe(project, "notes")
    assert there() == set()
    project.build("notes")
    assert there() == {"notes"}
    project.write_notes(sentences(61))
    observe(project, "notes")  # a sensor, say
    assert status(project, "notes") == "STALE"
    for _ in ("built", "hit"):
        project.build("notes")
        assert (there(), status(project, "notes")) == ({"notes"}, "FRESH")
    read = project.instance.fetch_materializations(UPSTREAM_KEYS["pretrain"], limit=10).records
    assert len(read) == 2, "one for each version that was read"
    project.build("books")
    observe(project, "books")
    assert (there(), status(project, "notes"), status(project, "books")) == ({"notes", "books"}, "FRESH", "FRESH")


def test_what_was_built_before_anyone_looked_upstream_is_compared_with_what_it_was_built_from(project: Project) -> None:
    for run in (project.build("notes"), project.build("notes")):  # the second is a cache hit
        assert status(project, "notes") == "FRESH"
        seen = run.asset_observations_for_node("stream_pretrain_dataset")
    assert [event for event in seen if event.asset_key == UPSTREAM_KEYS["pretrain"]] == [], "what is known is not recorded again"
    observe(project, "notes")
    assert status(project, "notes") == "FRESH"
    edit(project, 'files = ["notes.jsonl"]', 'files = ["notes.jsonl"]\nshuffle_buffer = 7')
    observe(project, "notes")
    assert status(project, "notes") == "STALE"
    project.build("notes")
    assert status(project, "notes") == "FRESH"


def test_a_build_of_what_nobody_has_looked_at_since_it_changed_is_not_stale_afterwards(project: Project) -> None:
    project.build("notes")
    project.write_notes(sentences(61))
    project.build("notes")
    assert status(project, "notes") == "FRESH"
    observe(project, "notes")
    assert status(project, "notes") == "FRESH"


def test_a_cache_hit_clears_a_stale_partition(project: Project) -> None:
    observe(project, "notes")
    project.build("notes")
    project.write_notes(sentences(61))
    observe(project, "notes")
    project.write_notes(sentences(60))
    observe(project, "notes")
    project.build("notes")
    assert status(project, "notes") == "FRESH"


def test_a_cache_hit_clears_a_stale_partition_also_when_another_was_built_meanwhile(project: Project) -> None:
    """A step's provenance points at the newest materialization of upstream, whichever partition that is of."""
    project.build("notes")
    project.write_notes(sentences(61))
    observe(project, "notes")
    project.build("books")
    project.write_notes(sentences(60))
    observe(project, "notes")
    project.build("notes")
    assert status(project, "notes") == "FRESH"
    assert built_versions(project.instance, project.registry, "notes") == {
        version_of(observe_revision(project.registry, "notes", root=project.root))
    }


def test_the_job_observes_every_data_set_and_passes_over_what_cannot_be_asked(project: Project) -> None:
    (project.folder / "notes.jsonl").unlink()
    run = project.defs.resolve_job_def("observe_upstream").execute_in_process(instance=project.instance)
    observed = [(event.asset_key.to_user_string(), event.partition) for event in run.asset_observations_for_node("observe_revisions")]
    assert observed == [("upstream/pretrain", "books"), ("upstream/sft", "chats")]
    assert "notes.jsonl" in failure(project.build("notes"))


def test_the_job_passes_over_a_source_that_breaks_in_any_way(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Jsonl, siblings: object) -> None:
        raise KeyError("text")

    monkeypatch.setattr(Jsonl, "revision", broken)
    run = project.defs.resolve_job_def("observe_upstream").execute_in_process(instance=project.instance)
    assert [event.partition for event in run.asset_observations_for_node("observe_revisions")] == ["books", "chats"]
    logged = [entry.user_message for entry in project.instance.all_logs(run.run_id)]
    assert "notes: KeyError: 'text'" in logged
    assert any(text.startswith("Traceback") and "in broken\n" in text for text in logged)


def build_corpus(project: Project, name: str) -> None:
    assert project.defs.resolve_job_def(CORPUS_JOB).execute_in_process(instance=project.instance, partition_key=name).success


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Project:
    """Everything of a project is built, with a tokenizer that is trained: `books` and `letters` have a corpus, `notes` and `chats` none.

    Tests leave it as it was, but for the last one, which replaces the tokenizer.
    """
    project = prepare_project(tmp_path_factory.mktemp("built"), tiny_model)
    edit(project, f'model = "{project.tokenizer_model}"', TRAIN_HERE)
    assert project.build_tokenizer().success
    for name in ("books", "letters"):
        build_corpus(project, name)
    assert project.defs.resolve_job_def(DUPLICATES_JOB).execute_in_process(instance=project.instance).success
    for name in ("books", "letters"):
        run = project.defs.resolve_job_def(REPORT_JOB).execute_in_process(instance=project.instance, partition_key=name)
        assert run.success
    for name in ("notes", "books", "letters"):
        assert project.build(name).success
    assert project.build("chats", family="sft").success
    return project


def edit(project: Project, old: str, new: str) -> None:
    toml = project.folder / "niels_cache.toml"
    text = toml.read_text()
    assert text.count(old) == 1
    toml.write_text(text.replace(old, new))


# What a data set reads from a corpus is decided by settings before it and after it; Dagster is told of them as one version.
_CORPUS = {name: {f"corpus/documents {name}"} | caches("pretrain", name) for name in ("books", "letters")}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('files = ["chats.jsonl"]', 'files = ["chats.jsonl"]\nval_frac = 0.25', caches("sft", "chats")),
        ('files = ["notes.jsonl"]', 'files = ["notes.jsonl"]\ntext_field = "title"', caches("pretrain", "notes")),
        ('files = ["letters.jsonl"]', 'files = ["letters.jsonl"]\ntrain_tokens = 500', _CORPUS["letters"]),
        ("min_words = 3", "min_words = 4", _CORPUS["books"]),
        ("threads = 1", "threads = 2", set()),
    ],
)
def test_settings_of_one_data_set_make_that_partition_stale_and_no_other(built: Project, old: str, new: str, expected: set[str]) -> None:
    edit(built, old, new)
    observe_all(built)
    assert stale(built) == expected
    edit(built, new, old)
    observe_all(built)
    assert stale(built) == set(), "they are what it was built with"


def test_a_new_revision_of_the_same_documents_is_in_sync_when_its_corpus_was_looked_at(built: Project) -> None:
    file = built.folder / "letters.jsonl"
    file.write_text(file.read_text().replace('{"text"', '{"mood": 1, "text"'))
    observe_all(built)
    assert stale(built) == _CORPUS["letters"]
    assert not checks(built.build("letters"))[IN_SYNC].passed
    build_corpus(built, "letters")
    again = built.build("letters")
    assert state_in(metadata(materializations(again)["pretrain/meta_json"])) == "cache_hit"
    assert checks(again)[IN_SYNC].passed
    assert stale(built) == set()


def test_changed_settings_of_the_tokenizer_mark_it_before_it_is_trained(built: Project) -> None:
    edit(built, "vocab_size = 330", "vocab_size = 340")
    assert stale(built) == {"tokenizer"}
    edit(built, "vocab_size = 340", "vocab_size = 330")
    assert stale(built) == set()


def test_a_tokenizer_trained_to_the_same_bytes_makes_nothing_stale_and_to_others_exactly_the_caches(built: Project) -> None:
    assert stale(built) == set()
    trained = built.build_tokenizer(force=True)
    assert state_in(metadata(materializations(trained, "tokenizer")["tokenizer"])) == "built"
    assert stale(built) == set()
    edit(built, TRAIN_HERE, f'model = "{built.tokenizer_model}"')
    assert built.build_tokenizer().success
    assert stale(built) == caches("pretrain", "notes", "books", "letters") | caches("sft", "chats")
