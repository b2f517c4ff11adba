"""Materializing assets: the records, their metadata, cache hits, and the files after a failure."""

import base64
import calendar
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from niels_cache_assets.artifacts.base import Outcome, ReportedProgress
from niels_cache_assets.build_cache import Progress
from niels_cache_assets.defs.assets.upstream import REVISION, observe_revision
from niels_cache_assets.defs.checks.sync import IN_SYNC
from niels_cache_assets.defs.launch_events import LaunchListener
from niels_cache_assets.defs.metadata.builds import describe_dropped, state_of
from niels_cache_assets.defs.metadata.entries import MAX_TABLE_ROWS, code_block, table
from niels_cache_assets.defs.progress import BuildReporter, ProgressSink
from niels_cache_assets.facts.progress import BuildProgress
from niels_cache_assets.project.registry import cache_root
from niels_cache_assets.sources.errors import SourceUnavailableError
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_runtime import Batch
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES, META_NAME, SPLITS, dataset_dir
from niels_cache_runtime.format.meta import read_meta, sha256_file
from tests.build_cache.test_determinism import digests
from tests.helpers.built_project import Built
from tests.helpers.dagster_tools import (
    Project,
    checks,
    data_versions,
    failure,
    files_of,
    json_of,
    materializations,
    metadata,
    rows,
    state_in,
)
from tests.helpers.messages import missing
from tests.helpers.tiny import sentences

NOTES = "pretrain/notes"
OTHER_UNITS = ("bytes", "seconds", "tokens_per_second", "chars_per_token")


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
    assert (train["train_tokens"], train["train_documents"]) == (meta["train_tokens"], 54)
    assert train["bytes"] == sum(entry["bytes"] for path, entry in meta["files"].items() if path.startswith("train"))
    assert train["contents"].endswith(f": {meta['train_tokens']:,} tokens, 54 documents, 3 files")
    assert train["dagster/uri"] == (project.root / NOTES / "train").as_uri()
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


def test_a_second_run_builds_nothing_and_force_builds_the_same_bytes_again(built_project: Built, project: Project) -> None:
    folder, versions = project.root / NOTES, data_versions(built_project.runs["notes"])
    before, inode, written = digests(folder), folder.stat().st_ino, {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    second = project.build("notes")
    assert state_in(metadata(materializations(second)["pretrain/meta_json"])) == "cache_hit"
    assert data_versions(second) == versions
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == written
    assert state_in(metadata(materializations(project.build_tokenizer(), "tokenizer")["tokenizer"])) == "cache_hit"
    third = project.build("notes", force=True)
    assert state_in(metadata(materializations(third)["pretrain/meta_json"])) == "built"
    assert folder.stat().st_ino != inode
    assert (digests(folder), data_versions(third)) == (before, versions)
    said = [[entry.user_message for entry in project.instance.all_logs(run.run_id)] for run in (second, third)]
    assert [any("notes: building from jsonl: shuffle_buffer = 0" in message for message in run) for run in said] == [False, True]


def test_run_configuration_replaces_the_registry_for_one_run(project: Project) -> None:
    run = project.build("notes", train_tokens=100, val_tokens=20, shard_bytes=64)
    assert metadata(materializations(run)["pretrain/train_shards"])["train_tokens"] == 100
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
        raise SourceUnavailableError("the hub sleeps")

    monkeypatch.setattr(Jsonl, "revision", unreachable)
    run = project.build("notes")
    assert run.success
    assert "the hub sleeps" in metadata(materializations(run)["pretrain/meta_json"])["warning"]
    assert data_versions(run) == data_versions(built_project.runs["notes"])
    assert "the hub sleeps" in failure(project.build("notes", force=True))


@pytest.mark.parametrize(
    ("partition", "named"), [("books", ("[pretrain.books]", "enabled = true")), ("chats", ("pretrain", "'chats'", "notes"))]
)
def test_a_run_of_what_is_switched_off_or_of_the_other_family_is_refused(project: Project, partition: str, named: tuple[str, ...]) -> None:
    """Dagster launches a run for any partition key that a client sends."""
    project.configure(extra="enabled = false\n")
    project.remove("chats")
    asset = project.defs.resolve_assets_def(dg.AssetKey(["pretrain", "train_shards"]))
    assert asset.partitions_def == dg.StaticPartitionsDefinition(["notes"])
    run = dg.materialize(
        [definition for definition in project.defs.assets or [] if isinstance(definition, dg.AssetsDefinition)],
        selection=dg.AssetSelection.groups("pretrain"),
        instance=project.instance,
        resources=project.defs.resources,
        tags={"dagster/partition": partition},
        raise_on_error=False,
    )
    assert missing(failure(run), *named) == []
    assert not dataset_dir(project.root, "sft", "chats").exists()


def test_a_build_without_a_tokenizer_says_what_to_do(tmp_path: Path, tiny_model: Path) -> None:
    assert "asset 'tokenizer'" in failure(Project(tmp_path, tiny_model).build("notes"))


def test_a_code_block_cannot_be_left_by_the_text_in_it() -> None:
    assert code_block("a ``` b ```` c").startswith("`````text\n")
    assert code_block("a ``` b ```` c").endswith("\n`````")


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


OBSERVED: list[tuple[str, list[str], Callable[[int], BuildProgress], dict[str, float], str]] = [
    (
        "notes",
        ["pretrain", "train_shards"],
        lambda second: Progress(documents=second, tokens=1000 * second, share=0.5 + second / 100),
        {"tokens": 10_000, "documents": 10, "tokens_per_second": 1000, "share": 0.6, "eta_seconds": 40},
        "notes: 60%, 10 documents, 10.0k tokens, 1.0k tokens/s, 0:40 left",
    ),
    (
        "corpus/notes",
        ["corpus", "documents"],
        lambda second: ReportedProgress(counts={"documents": second, "kept": second, "characters": 2000 * second}, share=second / 50),
        {"documents": 10, "kept": 10, "characters": 20_000, "characters_per_second": 2000, "share": 0.2, "eta_seconds": 40},
        "corpus/notes: 20%, 10 documents, 10 kept, 20.0k characters, 2.0k characters/s, 0:40 left",
    ),
]


@pytest.mark.parametrize(("name", "key", "progress", "expected", "line"), OBSERVED)
def test_a_long_build_is_observed_every_ten_seconds_and_its_sink_always(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    key: list[str],
    progress: Callable[[int], BuildProgress],
    expected: dict[str, float],
    line: str,
) -> None:
    class Listener(LaunchListener):
        calls = 0

        def progressed(self, name: str, progress: BuildProgress) -> None:
            self.calls += 1

    context, sink, now = _Context(), ProgressSink(), [0.0]
    listener = sink.listener = Listener()
    monkeypatch.setattr("niels_cache_assets.defs.progress.monotonic", lambda: now[0])
    reporter = BuildReporter(context, sink, name=name, observed=dg.AssetKey(key))  # type: ignore[arg-type]
    for second in range(26):
        now[0] = float(second)
        reporter.progress(progress(second))
    assert listener.calls == 26
    assert [(event.asset_key.path, event.partition) for event in context.events] == [(key, "notes")] * 2
    assert {name: value.value for name, value in context.events[0].metadata.items()} == expected
    assert context.lines[0] == line


def test_the_speed_of_a_build_that_was_resumed_is_of_its_last_run(tmp_path: Path) -> None:
    meta = {"train_tokens": 900, "val_tokens": 100}
    outcome = Outcome(key="pretrain/notes", state="built", meta=meta, directory=tmp_path, seconds=2.0, resumed=800)
    assert state_of(outcome)["state"] == "built in 2.0 s, 100 tokens per second"


@pytest.fixture(scope="module")
def shown(built_project: Built, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The metadata of all that is built, by asset, with plots. One of the notes is empty."""
    project = built_project.project.copied(tmp_path_factory.mktemp("shown"))
    project.edit("plots = false", "plots = true")
    project.write_notes(["", *sentences(10)])
    project.remove("books")
    runs = [
        materializations(project.build_tokenizer(force=True), "tokenizer"),
        materializations(project.build("notes")),
        materializations(project.build("chats", family="sft", force=True), "stream_sft_dataset"),
    ]
    return {key: metadata(event) for events in runs for key, event in events.items()}


def test_metadata_that_cannot_be_read_is_a_failure_without_a_traceback(
    built_project: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*arguments: Any, **settings: Any) -> None:
        raise NielsCacheError("a file was taken away")

    project = built_project.project.copied(tmp_path)
    for name in ("cache_characters_per_token", "characters_per_token_by_source"):
        monkeypatch.setattr(f"niels_cache_assets.defs.metadata.builds.{name}", unreadable)
    for run in (project.build("notes"), project.build_tokenizer()):
        assert failure(run) == "a file was taken away"


def test_the_ui_is_given_plots_samples_and_what_opens_the_cache(shown: dict[str, dict[str, Any]]) -> None:
    whole = shown["sft/meta_json"]
    images = whole["plots"].split("\n\n")
    assert len(images) == 5
    assert "20 examples by length in tokens" in whole["histograms"]
    assert len(whole["histograms"]) < 1000, "the UI shows it without a click"
    assert all(base64.b64decode(image.split("base64,")[1].rstrip(")")).startswith(b"\x89PNG") for image in images)
    assert whole["dropped"] == "none of 20 examples"
    scope: dict[str, object] = {}
    exec(whole["open_it"].rstrip().removeprefix("```python\n").removesuffix("```"), scope)
    batch = scope["batch"]
    assert isinstance(batch, Batch)
    assert batch.x.shape == (4, 256)
    assert "niels-cache sample chats --notable" in whole["samples"]


def test_a_number_is_one_that_means_something_over_partitions(shown: dict[str, dict[str, Any]]) -> None:
    assert len(shown) == 7
    for key, entries in shown.items():
        numbers = {name for name, value in entries.items() if isinstance(value, int | float)}
        units = {"tokens", "documents", "examples"}
        assert numbers <= {*units, *(f"{split}_{unit}" for split in SPLITS for unit in units), *OTHER_UNITS}, key
    notes = shown["pretrain/meta_json"]
    assert notes["dropped"] == "9.1% of 11 documents: empty 1"
    assert json_of(notes["made_from"])["dropped"] == {"empty": 1}
    assert re.match(r"[\d.]+ kB: [\d,]+ tokens of train, [\d,]+ tokens of val$", notes["contents"])


def test_the_page_of_an_asset_lists_every_data_set_of_its_family(shown: dict[str, dict[str, Any]], built_project: Built) -> None:
    whole = shown["pretrain/meta_json"]
    first, *others = rows(whole["data_sets"])
    assert first["tokens"] == f"{whole['tokens']:,}"
    assert [first[key] for key in ("data_set", "documents", "dropped", "sha256")] == ["notes", "10", "9.1%", whole["sha256"][:8]]
    assert time.time() - calendar.timegm(time.strptime(first["built_utc"], "%Y-%m-%d %H:%M")) < 3600
    assert [(row["data_set"], row["tokens"], row["built_utc"]) for row in others] == [("books", "", "no")]
    assert shown["pretrain/train_shards"]["data_sets"] == whole["data_sets"]


def test_a_table_that_is_cut_says_so() -> None:
    shown = rows(table([{"name": f"set {number}"} for number in range(MAX_TABLE_ROWS + 5)]))
    assert len(shown) == MAX_TABLE_ROWS + 1
    assert shown[-1] == {"name": "and 5 more"}


def test_shares_are_of_all_that_came(tmp_path: Path) -> None:
    meta = {"documents": {"train": 6, "val": 2}, "dropped": {"exact_duplicate": 5, "near_duplicate": 3, "empty": 4}}
    outcome = Outcome(key="pretrain/notes", state="built", meta=meta, directory=tmp_path, seconds=1.0)
    assert describe_dropped(outcome) == "60.0% of 20 documents: exact_duplicate 5, empty 4, near_duplicate 3 (40.0% as duplicates)"


def test_every_sha256_that_is_shown_is_that_of_a_file(built_project: Built) -> None:
    root, runs = built_project.project.root, built_project.runs
    events = {
        "tokenizer/spm.model": materializations(runs["tokenizer"], "tokenizer")["tokenizer"],
        **{f"pretrain/notes/{part}": event for part, event in recorded(runs["notes"], "stream_pretrain_dataset").items()},
        **{f"sft/chats/{part}": event for part, event in recorded(runs["chats"], "stream_sft_dataset").items()},
    }
    assert len(events) == 7
    shown = {}
    for place, event in events.items():
        found = metadata(event)
        if "sha256" in found:
            shown[place] = found["sha256"]
        for path, sha256 in (files_of(found) if "files" in found else {}).items():
            shown[f"{Path(place).parent}/{path}"] = sha256
    assert {"tokenizer/spm.model", "pretrain/notes/meta.json", "sft/chats/meta.json"} <= shown.keys()
    assert len(shown) > 10
    assert shown == {path: sha256_file(str(root / path)) for path in shown}


def recorded(run: dg.ExecuteInProcessResult, op: str) -> dict[str, dg.AssetMaterialization]:
    """By the file that the asset is, for meta_json."""
    return {key.rpartition("/")[2].replace("_json", ".json"): event for key, event in materializations(run, op).items()}


def test_what_is_copied_from_a_description_opens_what_was_built(built_project: Built) -> None:
    project, ran = built_project.project, []
    for spec in project.defs.resolve_all_asset_specs():
        if spec.group_name in ("tokenizer", *FAMILIES):
            code = (spec.description or "").split("```python\n")[1].removesuffix("```")
            assert f'"{cache_root(project.registry)}/' in code
            name = {"pretrain": "notes", "sft": "chats"}.get(spec.group_name, "")
            exec(code.replace(str(cache_root(project.registry)), str(project.root)).replace("<data set>", name).replace("1024", "64"), {})
            ran.append(spec.key.path[-1])
    assert sorted(ran) == ["meta_json", "meta_json", "tokenizer", "train_pair", "train_shards", "val_pair", "val_shards"]


def test_what_upstream_has_moved_on_from_is_in_the_table_with_both_revisions(project: Project) -> None:
    project.write_notes(sentences(5))
    assert checks(project.build("books"))[IN_SYNC].passed, "nobody has looked"
    project.observe("notes")
    found = checks(project.build("books"))[IN_SYNC]
    assert not found.passed
    assert found.severity == dg.AssetCheckSeverity.WARN
    row = next(row for row in rows(found.metadata["states"].value) if row["data_set"] == "notes")
    assert row["state"] == "other revision"
    last = observe_revision(project.registry, "notes", root=project.root).metadata[REVISION].value
    first = read_meta(str(project.root / "pretrain/notes/meta.json"))["dataset_revision"]
    assert missing(row["advice"], f"at {last}", first[:20]) == []
    project.build("notes")
    assert checks(project.build("books"))[IN_SYNC].passed
