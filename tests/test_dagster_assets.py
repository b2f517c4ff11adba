"""Materializing assets. The tests check the records, cache hits, and the files after a failure."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.artifacts.corpus import CorpusProgress
from niels_cache_assets.build_cache import Progress
from niels_cache_assets.defs.metadata.builds import state_in, state_of
from niels_cache_assets.defs.metadata.entries import fenced
from niels_cache_assets.defs.progress import BuildReporter, ProgressSink
from niels_cache_assets.show.progress import HowFar
from niels_cache_assets.sources.errors import SourceUnavailable
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_runtime.format.layout import META_NAME, dataset_dir
from niels_cache_runtime.format.meta import read_meta, sha256_file
from tests.built_project import Built
from tests.dagster_tools import Project, checks, data_versions, failure, files_of, json_of, materializations, metadata
from tests.messages import missing
from tests.test_cache_determinism import digests
from tests.test_foreign_cache import prepare_pretrain
from tests.tiny import sentences

NOTES = "pretrain/notes"


@pytest.fixture
def project(built_project: Built, tmp_path: Path) -> Project:
    return built_project.project.copied(tmp_path)


def test_a_run_records_three_assets_whose_versions_are_their_content(built_project: Built) -> None:
    project, run = built_project.project, built_project.runs["notes"]
    meta = read_meta(str(project.root / NOTES / META_NAME))
    events = materializations(run)
    assert list(events) == ["pretrain/train_shards", "pretrain/val_shards", "pretrain/meta_json"]
    assert {event.partition for event in events.values()} == {"notes"}
    versions = data_versions(run)
    assert versions["pretrain/meta_json"] == meta["meta_sha256"]
    assert versions["pretrain/train_shards"] != versions["pretrain/val_shards"]
    tokenizer = project.instance.get_latest_materialization_event(dg.AssetKey("tokenizer"))
    assert tokenizer is not None
    assert tokenizer.asset_materialization is not None
    assert (tokenizer.asset_materialization.tags or {})["dagster/data_version"] == sha256_file(str(project.root / "tokenizer/spm.model"))


def test_metadata_shows_counts_files_and_how_the_text_reads(built_project: Built) -> None:
    project, run = built_project.project, built_project.runs["notes"]
    meta = read_meta(str(project.root / NOTES / META_NAME))
    train = metadata(materializations(run)["pretrain/train_shards"])
    assert train["tokens"] == train["dagster/row_count"] == meta["train_tokens"]
    assert train["contents"].endswith(f": {meta['train_tokens']:,} tokens, 54 documents, 3 files")
    assert train["dagster/uri"] == (project.root / NOTES / "train").as_uri()
    assert files_of(train) == {path: entry["sha256"] for path, entry in meta["files"].items() if path.startswith("train")}
    (spec,) = (spec for spec in project.defs.resolve_all_asset_specs() if spec.key.path == ["pretrain", "train_shards"])
    column = spec.metadata["dagster/column_schema"].columns[0]
    assert (column.name, column.type, column.constraints.other) == ("token", "uint16 or uint32", ["< vocab_size"])
    whole = metadata(materializations(run)["pretrain/meta_json"])
    assert re.fullmatch(r"built in \d\.\d s, .* tokens per second", whole["state"])
    assert missing(whole["samples"], "niels-cache sample notes --notable", str(project.root)) == []
    assert whole["tokens"] == meta["train_tokens"] + meta["val_tokens"]
    made_from = json_of(whole["made_from"])
    assert made_from["dataset_revision"] == meta["dataset_revision"]
    assert made_from["fingerprint"] == meta["fingerprint"]
    assert made_from["settings"]["source"] == "jsonl"
    assert 1 < whole["chars_per_token"] < 10


def test_sft_records_examples_with_their_role_tokens(built_project: Built) -> None:
    run = built_project.runs["chats"]
    train = metadata(materializations(run, "stream_sft_dataset")["sft/train_pair"])
    assert train["dagster/row_count"] == 18
    assert "18 examples" in train["contents"]
    assert all(check.passed for check in checks(run).values() if check.check_name != "caches_in_sync")


def test_dropped_documents_are_counted_by_reason(project: Project) -> None:
    project.write_notes(["", *sentences(10)])
    event = materializations(project.build("notes"))["pretrain/meta_json"]
    assert metadata(event)["dropped"] == "9.1% of 11 documents: empty 1"
    assert json_of(metadata(event)["made_from"])["dropped"] == {"empty": 1}


def test_a_second_run_builds_nothing_and_records_the_same_versions(built_project: Built, project: Project) -> None:
    written = {path: path.stat().st_mtime_ns for path in (project.root / NOTES).rglob("*")}
    second = project.build("notes")
    assert state_in(metadata(materializations(second)["pretrain/meta_json"])) == "cache_hit"
    assert data_versions(second) == data_versions(built_project.runs["notes"])
    assert {path: path.stat().st_mtime_ns for path in (project.root / NOTES).rglob("*")} == written
    assert state_in(metadata(materializations(project.build_tokenizer(), "tokenizer")["tokenizer"])) == "cache_hit"


def test_force_builds_the_same_bytes_again(built_project: Built, project: Project) -> None:
    before, inode = digests(project.root / NOTES), (project.root / NOTES).stat().st_ino
    second = project.build("notes", force=True)
    assert state_in(metadata(materializations(second)["pretrain/meta_json"])) == "built"
    assert (project.root / NOTES).stat().st_ino != inode
    assert digests(project.root / NOTES) == before
    assert data_versions(second) == data_versions(built_project.runs["notes"])


def test_run_configuration_replaces_the_registry_for_one_run(project: Project) -> None:
    run = project.build("notes", train_tokens=100, val_tokens=20, shard_bytes=64)
    assert metadata(materializations(run)["pretrain/train_shards"])["tokens"] == 100
    assert len(list((project.root / NOTES / "train").glob("*.bin"))) == 4
    assert json_of(metadata(materializations(run)["pretrain/meta_json"])["made_from"])["settings"]["train_tokens"] == 100


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"train_tokens": 10, "val_frac": 0.1}, ("train_tokens", "val_frac", "not both")),
        ({"shard_bytes": 3}, ("[run] shard_bytes = 3: ", "multiple of 2")),
        ({"train_tokens": 0}, ("[run] train_tokens = 0: ", "write")),
        ({"shuffle_buffer": -1}, ("[run] shuffle_buffer = -1: ",)),  # only for a budget it is as the file says
    ],
)
def test_a_wrong_setting_fails_the_run_in_one_line(project: Project, config: Mapping[str, Any], named: tuple[str, ...]) -> None:
    text = failure(project.build("notes", **config))
    assert missing(text, *named) == []
    assert "\n" not in text


def test_a_failed_build_keeps_the_last_good_cache_and_records_nothing(project: Project) -> None:
    before = digests(project.root / NOTES)
    project.write_notes([])
    run = project.build("notes")
    assert missing(failure(run), f"{project.root / NOTES}: ", "no usable document") == []
    assert not run.asset_materializations_for_node("stream_pretrain_dataset")
    assert digests(project.root / NOTES) == before
    assert not (project.root / "pretrain/.notes.partial").exists()


def test_a_source_that_cannot_be_reached_keeps_its_finished_cache_with_a_warning(
    built_project: Built, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(self: Jsonl, siblings: object) -> str:
        raise SourceUnavailable("the hub sleeps")

    monkeypatch.setattr(Jsonl, "revision", unreachable)
    run = project.build("notes")
    assert run.success
    assert "the hub sleeps" in metadata(materializations(run)["pretrain/meta_json"])["warning"]
    assert data_versions(run) == data_versions(built_project.runs["notes"])
    assert "the hub sleeps" in failure(project.build("notes", force=True))


def test_a_data_set_that_is_switched_off_has_no_partition_and_a_run_of_it_is_refused(project: Project) -> None:
    project.configure(extra="enabled = false\n")
    asset = project.defs.resolve_assets_def(dg.AssetKey(["pretrain", "train_shards"]))
    assert asset.partitions_def == dg.StaticPartitionsDefinition(["notes"])
    run = dg.materialize(
        [definition for definition in project.defs.assets or [] if isinstance(definition, dg.AssetsDefinition)],
        selection=dg.AssetSelection.groups("pretrain"),
        instance=project.instance,
        resources=project.defs.resources,
        tags={"dagster/partition": "books"},
        raise_on_error=False,
    )
    assert missing(failure(run), "[pretrain.books]", "enabled = true") == []


def test_a_home_with_partitions_of_data_sets_that_the_file_no_longer_names_goes_on(project: Project) -> None:
    toml = project.folder / "niels_cache.toml"
    before, _, rest = toml.read_text().partition("[pretrain.books]")
    toml.write_text(before + "[sft." + rest.partition("[sft.")[2])
    dg.Definitions.validate_loadable(project.defs)
    key = dg.AssetKey(["pretrain", "meta_json"])
    assert project.defs.resolve_assets_def(key).partitions_def == dg.StaticPartitionsDefinition(["notes"])
    assert project.instance.get_materialized_partitions(key) == {"notes", "books"}, "history is history"
    run = project.build("notes")
    assert run.success
    assert checks(run)["caches_in_sync"].passed


def test_a_cache_of_another_program_is_kept_where_the_data_set_is_switched_off(project: Project) -> None:
    project.remove("books")
    project.configure(extra="enabled = false\n")
    prepare_pretrain(project.root / "pretrain/books")
    before = digests(project.root / "pretrain/books")
    run = project.build("notes")
    assert run.success
    assert digests(project.root / "pretrain/books") == before
    assert all(check.passed for check in checks(run).values()), "of what is switched off nothing is asked"


def test_a_build_without_a_tokenizer_says_what_to_do(tmp_path: Path, tiny_model: Path) -> None:
    assert "asset 'tokenizer'" in failure(Project(tmp_path, tiny_model).build("notes"))


def test_a_partition_of_the_other_family_is_refused(project: Project) -> None:
    """Dagster launches a run for any partition key that a client sends."""
    project.remove("chats")
    run = dg.materialize(
        [definition for definition in project.defs.assets or [] if isinstance(definition, dg.AssetsDefinition)],
        selection=dg.AssetSelection.groups("pretrain"),
        instance=project.instance,
        resources=project.defs.resources,
        tags={"dagster/partition": "chats"},
        raise_on_error=False,
    )
    assert missing(failure(run), "pretrain", "'chats'", "notes, books") == []
    assert not dataset_dir(project.root, "sft", "chats").exists()


def test_definitions_load_when_a_family_has_no_data_set(project: Project) -> None:
    toml = project.folder / "niels_cache.toml"
    toml.write_text(toml.read_text().split("[sft.")[0])
    defs = project.defs
    assert defs.resolve_assets_def(dg.AssetKey(["sft", "meta_json"])).partitions_def == dg.StaticPartitionsDefinition([])
    dg.Definitions.validate_loadable(defs)


def test_a_code_block_cannot_be_left_by_the_text_in_it() -> None:
    assert fenced("a ``` b ```` c").startswith("`````text\n")
    assert fenced("a ``` b ```` c").endswith("\n`````")


class _Context:
    """The part of Dagster's context that a reporter uses."""

    partition_key = "notes"

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.events: list[dg.AssetObservation] = []
        self.log = self

    def info(self, line: str) -> None:
        self.lines.append(line)

    def log_event(self, event: dg.AssetObservation) -> None:
        self.events.append(event)


def test_a_long_build_is_observed_every_ten_seconds_and_its_sink_always() -> None:
    class Sink(ProgressSink):
        calls = 0

        def progressed(self, name: str, progress: HowFar) -> None:
            self.calls += 1

    context, sink, now = _Context(), Sink(), [0.0]
    key = dg.AssetKey(["pretrain", "train_shards"])
    reporter = BuildReporter(context, sink, name="notes", observed=key, clock=lambda: now[0])  # type: ignore[arg-type]
    for second in range(26):
        now[0] = float(second)
        reporter.progress(Progress(documents=second, tokens=1000 * second, share=0.5 + second / 100))
    assert sink.calls == 26
    assert [event.partition for event in context.events] == ["notes", "notes"]
    assert {name: value.value for name, value in context.events[0].metadata.items()} == {
        "tokens": 10_000,
        "documents": 10,
        "tokens_per_second": 1000,
        "share": 0.6,
        "eta_seconds": 40,
    }
    assert context.lines[0] == "notes: 60%, 10 documents, 10.0k tokens, 1.0k tokens/s, 0:40 left"


def test_a_long_cleaning_is_observed_on_its_corpus_with_speed_share_and_time_left() -> None:
    context, now = _Context(), [0.0]
    reporter = BuildReporter(
        context,  # type: ignore[arg-type]
        ProgressSink(),
        name="corpus/notes",
        observed=dg.AssetKey(["corpus", "documents"]),
        clock=lambda: now[0],
    )
    for second in (0, 5, 10):
        now[0] = float(second)
        reporter.progress(CorpusProgress(documents=10 * second, kept=9 * second, characters=2000 * second, share=second / 50))
    assert [(event.asset_key.to_user_string(), event.partition) for event in context.events] == [("corpus/documents", "notes")]
    assert {name: value.value for name, value in context.events[0].metadata.items()} == {
        "documents": 100,
        "kept": 90,
        "characters": 20_000,
        "characters_per_second": 2000,
        "share": 0.2,
        "eta_seconds": 40,
    }
    assert context.lines == ["corpus/notes: 20%, 100 documents, 90 kept, 20.0k characters, 2.0k characters/s, 0:40 left"]


def test_the_speed_of_a_build_that_was_resumed_is_of_its_last_run(tmp_path: Path) -> None:
    meta = {"train_tokens": 900, "val_tokens": 100}
    outcome = Outcome(key="pretrain/notes", state="built", meta=meta, directory=tmp_path, seconds=2.0, resumed=800)
    assert state_of(outcome)["state"] == "built in 2.0 s, 100 tokens per second"
