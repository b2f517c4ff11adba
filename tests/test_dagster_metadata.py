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
from tests.dagster_tools import Project, checks, materializations, metadata, rows
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
