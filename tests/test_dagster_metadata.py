"""What the UI can plot over partitions, and the table that says what is unsynced and why."""

from pathlib import Path

import dagster as dg
import pytest

from niels_cache_assets.defs.assets.upstream import REVISION, observe_revision
from niels_cache_assets.defs.pictures import shares
from niels_cache_assets.defs.sync_checks import IN_SYNC
from niels_cache_assets.pipeline import BuildOutcome
from niels_cache_assets.registry import cache_root
from niels_cache_runtime.formats import FAMILIES
from niels_cache_runtime.meta import read_meta, sha256_file
from tests.dagster_tools import Project, checks, data_versions, materializations, metadata, rows
from tests.tiny import sentences

EVERYWHERE = {"tokens", "bytes", "characters_per_token", "tokens_per_second", "dropped", "dropped_share", "pieces_used", "seconds"}


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> Project:
    project = Project(tmp_path, tiny_model)
    assert project.build_tokenizer().success
    return project


def observe(project: Project, name: str) -> None:
    project.instance.report_runless_asset_event(observe_revision(project.registry, name, root=project.root))


def test_every_number_of_a_data_set_is_one_that_the_ui_plots(project: Project) -> None:
    project.write_notes(["", *sentences(10)])
    notes = metadata(materializations(project.build("notes"))["pretrain/meta_json"])
    chats = metadata(materializations(project.build("chats", family="sft"), "stream_sft_dataset")["sft/meta_json"])
    for found, more in ((notes, {"documents"}), (chats, {"examples", "target_share", "cut_share"})):
        assert {name for name in EVERYWHERE | more if not isinstance(found[name], int | float)} == set()
        assert "duplicates_share" not in found, "they were not looked for"
    assert notes["dropped_share"] == round(1 / 11, 4)


def test_shares_are_of_all_that_came(tmp_path: Path) -> None:
    meta = {"documents": {"train": 6, "val": 2}, "dropped": {"exact_duplicate": 5, "near_duplicate": 3, "empty": 4}}
    outcome = BuildOutcome(family="pretrain", name="notes", state="built", meta=meta, directory=tmp_path, seconds=1.0)
    assert shares(outcome, deduplicated=True) == {"dropped_share": 0.6, "duplicates_share": 0.4}
    assert shares(outcome, deduplicated=False) == {"dropped_share": 0.6}


def test_a_materialization_begins_with_what_one_looks_at(project: Project) -> None:
    events = materializations(project.build("notes"))
    assert next(iter(metadata(events["pretrain/train_shards"]))) == "samples"
    assert "plots" not in metadata(events["pretrain/meta_json"]), "switched off in this project"


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
        for row in rows(found["files"]) if "files" in found else []:
            shown[f"{Path(place).parent}/{row['path']}"] = row["sha256"]
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
