"""What the UI can plot over partitions, and the table that says what is unsynced and why."""

import re
from pathlib import Path

import dagster as dg
import pytest

from niels_cache_assets.defs.assets.upstream import REVISION, observe_revision
from niels_cache_assets.defs.metadata import MOST_ENTRIES, said_of_dropped
from niels_cache_assets.defs.sync_checks import IN_SYNC
from niels_cache_assets.pipeline import BuildOutcome
from niels_cache_assets.registry import cache_root
from niels_cache_runtime.formats import FAMILIES
from niels_cache_runtime.meta import read_meta, sha256_file
from tests.built_project import Built
from tests.dagster_tools import Project, checks, data_versions, files_of, materializations, metadata, rows
from tests.tiny import sentences


@pytest.fixture
def project(built_project: Built, tmp_path: Path) -> Project:
    return built_project.project.copied(tmp_path)


def observe(project: Project, name: str) -> None:
    project.instance.report_runless_asset_event(observe_revision(project.registry, name, root=project.root))


def shown(project: Project) -> dict[str, dict[str, object]]:
    """The metadata of all that is built, by asset."""
    runs = [
        materializations(project.build_tokenizer(force=True), "tokenizer"),
        materializations(project.build("notes")),
        materializations(project.build("chats", family="sft"), "stream_sft_dataset"),
    ]
    return {key: metadata(event) for events in runs for key, event in events.items()}


def test_whichever_output_is_opened_shows_at_once_what_one_looks_for(tmp_path: Path, tiny_model: Path) -> None:
    project = Project(tmp_path, tiny_model)
    toml = project.folder / "niels_cache.toml"
    toml.write_text(toml.read_text().replace("plots = false", "plots = true"))
    project.write_notes(["", *sentences(10)])
    found = shown(project)
    for family, splits in (("pretrain", ("train_shards", "val_shards")), ("sft", ("train_pair", "val_pair"))):
        for split in splits:
            assert list(found[f"{family}/{split}"])[:4] == ["plots", "samples", "open_it", "state"]
        assert list(found[f"{family}/meta_json"])[:5] == ["sha256", "plots", "samples", "open_it", "state"]
        assert len({found[f"{family}/{part}"]["plots"] for part in (*splits, "meta_json")}) == 1
        assert max(len(line.rstrip()) for line in str(found[f"{family}/meta_json"]["open_it"]).splitlines()) <= 72 + len(str(project.root))
    assert list(found["tokenizer"])[:2] == ["sha256", "plots"]


def test_entries_are_few_and_a_number_is_one_that_means_something_over_partitions(project: Project) -> None:
    project.write_notes(["", *sentences(10)])
    found = shown(project)
    assert len(found) == 7
    numbers = {"tokens", "chars_per_token", "dagster/row_count"}
    for key, entries in found.items():
        assert len(entries) <= MOST_ENTRIES, (key, list(entries))
        assert {name for name, value in entries.items() if isinstance(value, int | float)} <= numbers, key
        assert [name for name in entries if name == "meta_sha256"] == ([] if key.endswith(("shards", "pair")) else ["meta_sha256"])
    notes, chats = found["pretrain/meta_json"], found["sft/meta_json"]
    assert notes["dropped"] == "9.1% of 11 documents: empty 1"
    assert re.match(r"[\d.]+ kB: [\d,]+ tokens of train, [\d,]+ tokens of val; \d+ of 400 pieces are used$", str(notes["contents"]))
    assert re.search(r"[\d.]+% of the tokens are targets; T = 1,024 cuts none of the examples$", str(chats["contents"]))


def test_a_table_without_a_row_is_not_shown(project: Project) -> None:
    run = project.build("notes")
    entries = [*materializations(run).values(), *run.get_asset_check_evaluations()]
    tables = [value for entry in entries for value in entry.metadata.values() if isinstance(value, dg.TableMetadataValue)]
    assert tables, "caches_in_sync has one"
    assert all(table.records for table in tables)


def test_what_came_of_a_build_is_one_line_of_its_log_and_a_hit_says_hit(project: Project) -> None:
    for first_word in ("built", "hit"):
        run = project.build("notes")
        logged = [entry.user_message for entry in project.instance.all_logs(run.run_id) if entry.dagster_event is None]
        said = [line for line in logged if line.startswith(f"notes: {first_word}")]
        assert len(said) == 1, logged
        assert "tokens of train" in said[0]
        assert metadata(materializations(run)["pretrain/meta_json"])["state"].startswith(first_word)


def test_shares_are_of_all_that_came(tmp_path: Path) -> None:
    meta = {"documents": {"train": 6, "val": 2}, "dropped": {"exact_duplicate": 5, "near_duplicate": 3, "empty": 4}}
    outcome = BuildOutcome(family="pretrain", name="notes", state="built", meta=meta, directory=tmp_path, seconds=1.0)
    reasons = "60.0% of 20 documents: exact_duplicate 5, empty 4, near_duplicate 3"
    assert said_of_dropped(outcome, deduplicated=True) == f"{reasons} (40.0% as duplicates)"
    assert said_of_dropped(outcome, deduplicated=False) == reasons


def test_every_sha256_that_is_shown_is_that_of_a_file(project: Project) -> None:
    runs = {
        "tokenizer/spm.model": project.instance.get_latest_materialization_event(dg.AssetKey("tokenizer")),
        **{f"pretrain/notes/{part}": event for part, event in recorded(project.build("notes"), "stream_pretrain_dataset").items()},
        **{f"sft/chats/{part}": event for part, event in recorded(project.build("chats", family="sft"), "stream_sft_dataset").items()},
    }
    assert len(runs) == 7
    shown = {}
    for place, event in runs.items():
        assert event is not None
        found = metadata(event.asset_materialization if isinstance(event, dg.EventLogEntry) else event)
        if "sha256" in found:
            shown[place] = found["sha256"]
        for path, sha256 in (files_of(found) if "files" in found else {}).items():
            shown[f"{Path(place).parent}/{path}"] = sha256
    assert {"tokenizer/spm.model", "pretrain/notes/meta.json", "sft/chats/meta.json"} <= shown.keys()
    assert len(shown) > 10
    assert shown == {path: sha256_file(str(project.root / path)) for path in shown}


def test_a_data_version_is_shown_under_its_own_name(project: Project) -> None:
    run = project.build("notes")
    events, versions = materializations(run), data_versions(run)
    for part, name in (("train_shards", "content_sha256"), ("val_shards", "content_sha256"), ("meta_json", "meta_sha256")):
        assert metadata(events[f"pretrain/{part}"])[name] == versions[f"pretrain/{part}"]
    meta = read_meta(str(project.root / "pretrain/notes/meta.json"))
    assert versions["pretrain/meta_json"] == meta["meta_sha256"] != metadata(events["pretrain/meta_json"])["sha256"]


def recorded(run: dg.ExecuteInProcessResult, op: str) -> dict[str, dg.AssetMaterialization]:
    """By the file that the asset is, for meta_json."""
    return {key.rpartition("/")[2].replace("_json", ".json"): event for key, event in materializations(run, op).items()}


def test_what_is_copied_from_a_description_opens_what_was_built(project: Project) -> None:
    project.build("notes")
    project.build("chats", family="sft")
    ran = []
    for spec in project.defs.resolve_all_asset_specs():
        if spec.group_name in ("tokenizer", *FAMILIES):
            code = (spec.description or "").split("```python\n")[1].removesuffix("```")
            assert f'"{cache_root(project.registry)}/' in code
            name = {"pretrain": "notes", "sft": "chats"}.get(spec.group_name, "")
            exec(code.replace(str(cache_root(project.registry)), str(project.root)).replace("<data set>", name).replace("1024", "64"), {})
            ran.append(spec.key.path[-1])
    assert sorted(ran) == ["meta_json", "meta_json", "tokenizer", "train_pair", "train_shards", "val_pair", "val_shards"]


def test_what_upstream_has_moved_on_from_is_in_the_table_with_both_revisions(project: Project) -> None:
    project.build("books")
    observe(project, "notes")
    built = checks(project.build("notes"))[IN_SYNC]
    assert built.passed
    project.write_notes(sentences(5))
    still = checks(project.build("books"))[IN_SYNC]
    assert still.passed, "nobody has looked"
    observe(project, "notes")
    found = checks(project.build("books"))[IN_SYNC]
    assert not found.passed
    assert found.severity == dg.AssetCheckSeverity.WARN
    row = next(row for row in rows(found.metadata["states"].value) if row["data_set"] == "notes")
    assert row["state"] == "other revision"
    last = observe_revision(project.registry, "notes", root=project.root).metadata[REVISION].value
    assert row["advice"].startswith(f"build it again: upstream was observed at {last}, the cache is of ")
    project.build("notes")
    assert checks(project.build("books"))[IN_SYNC].passed
