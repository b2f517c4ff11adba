"""The values that the UI can plot over partitions, and the table of unsynced partitions with the reasons."""

import base64
import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.config.registry import cache_root
from niels_cache_assets.defs.assets.upstream import REVISION, observe_revision
from niels_cache_assets.defs.checks.sync import IN_SYNC
from niels_cache_assets.defs.metadata.builds import said_of_dropped
from niels_cache_runtime import Batch
from niels_cache_runtime.format.layout import FAMILIES
from niels_cache_runtime.format.meta import read_meta, sha256_file
from tests.built_project import Built
from tests.dagster_tools import Project, checks, data_versions, files_of, materializations, metadata, rows
from tests.messages import missing
from tests.tiny import sentences

MOST_ENTRIES = 14  # of what is made once, before a warning: more than a person reads


@pytest.fixture
def project(built_project: Built, tmp_path: Path) -> Project:
    return built_project.project.copied(tmp_path)


@pytest.fixture(scope="module")
def shown(built_project: Built, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The metadata of all that is built, by asset, with plots. One of the notes is empty."""
    project = built_project.project.copied(tmp_path_factory.mktemp("shown"))
    project.edit("plots = false", "plots = true")
    project.write_notes(["", *sentences(10)])
    runs = [
        materializations(project.build_tokenizer(force=True), "tokenizer"),
        materializations(project.build("notes")),
        materializations(project.build("chats", family="sft", force=True), "stream_sft_dataset"),
    ]
    return {key: metadata(event) for events in runs for key, event in events.items()}


def test_the_output_of_a_data_set_shows_at_once_what_one_looks_for(shown: dict[str, dict[str, Any]]) -> None:
    for family, splits in (("pretrain", ("train_shards", "val_shards")), ("sft", ("train_pair", "val_pair"))):
        for split in splits:
            assert list(shown[f"{family}/{split}"])[:2] == ["contents", "tokens"]
        whole = shown[f"{family}/meta_json"]
        assert list(whole)[:5] == ["sha256", "plots", "samples", "open_it", "state"]
        root = str(whole["dagster/uri"]).removeprefix("file://").partition(f"/{family}/")[0]
        assert max(len(line.rstrip()) for line in whole["open_it"].splitlines()) <= 72 + len(root)
    assert list(shown["tokenizer"])[:2] == ["sha256", "plots"]


def test_the_ui_is_given_plots_samples_and_what_opens_the_cache(shown: dict[str, dict[str, Any]]) -> None:
    whole = shown["sft/meta_json"]
    images = whole["plots"].split("\n\n")
    assert len(images) == 4
    assert all(base64.b64decode(image.split("base64,")[1].rstrip(")")).startswith(b"\x89PNG") for image in images)
    assert whole["dropped"] == "none of 20 examples"
    scope: dict[str, object] = {}
    exec(whole["open_it"].rstrip().removeprefix("```python\n").removesuffix("```"), scope)
    batch = scope["batch"]
    assert isinstance(batch, Batch)
    assert batch.x.shape == (4, 256)
    assert "niels-cache sample chats --notable" in whole["samples"]


def test_entries_are_few_and_a_number_is_one_that_means_something_over_partitions(shown: dict[str, dict[str, Any]]) -> None:
    assert len(shown) == 7
    numbers = {"tokens", "chars_per_token", "dagster/row_count"}
    for key, entries in shown.items():
        assert len(entries) <= MOST_ENTRIES, (key, list(entries))
        assert {name for name, value in entries.items() if isinstance(value, int | float)} <= numbers, key
        assert [name for name in entries if name == "meta_sha256"] == ([] if key.endswith(("shards", "pair")) else ["meta_sha256"])
    notes = shown["pretrain/meta_json"]
    assert notes["dropped"] == "9.1% of 11 documents: empty 1"
    assert re.match(r"[\d.]+ kB: [\d,]+ tokens of train, [\d,]+ tokens of val$", notes["contents"])


def test_a_table_without_a_row_is_not_shown(built_project: Built) -> None:
    run = built_project.runs["notes"]
    entries = [*materializations(run).values(), *run.get_asset_check_evaluations()]
    tables = [value for entry in entries for value in entry.metadata.values() if isinstance(value, dg.TableMetadataValue)]
    assert tables, "caches_in_sync has one"
    assert all(table.records for table in tables)


def test_what_came_of_a_build_is_one_line_of_its_log_and_a_hit_says_hit(built_project: Built, project: Project) -> None:
    for first_word, run in (("built", built_project.runs["notes"]), ("hit", project.build("notes"))):
        logged = [entry.user_message for entry in project.instance.all_logs(run.run_id) if entry.dagster_event is None]
        said = [line for line in logged if line.startswith(f"notes: {first_word}")]
        assert len(said) == 1, logged
        assert "tokens of train" in said[0]
        assert metadata(materializations(run)["pretrain/meta_json"])["state"].startswith(first_word)


def test_shares_are_of_all_that_came(tmp_path: Path) -> None:
    meta = {"documents": {"train": 6, "val": 2}, "dropped": {"exact_duplicate": 5, "near_duplicate": 3, "empty": 4}}
    outcome = Outcome(key="pretrain/notes", state="built", meta=meta, directory=tmp_path, seconds=1.0)
    reasons = "60.0% of 20 documents: exact_duplicate 5, empty 4, near_duplicate 3"
    assert said_of_dropped(outcome, deduplicated=True) == f"{reasons} (40.0% as duplicates)"
    assert said_of_dropped(outcome, deduplicated=False) == reasons


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


def test_a_data_version_is_shown_under_its_own_name(built_project: Built) -> None:
    run = built_project.runs["notes"]
    events, versions = materializations(run), data_versions(run)
    for part, name in (("train_shards", "content_sha256"), ("val_shards", "content_sha256"), ("meta_json", "meta_sha256")):
        assert metadata(events[f"pretrain/{part}"])[name] == versions[f"pretrain/{part}"]
    meta = read_meta(str(built_project.project.root / "pretrain/notes/meta.json"))
    assert versions["pretrain/meta_json"] == meta["meta_sha256"] != metadata(events["pretrain/meta_json"])["sha256"]


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
