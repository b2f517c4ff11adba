"""The findings of the checks and their severity. Each check also runs alone."""

from collections.abc import Sequence
from pathlib import Path

import dagster as dg
import pytest

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.defs.checks.cache import BUDGETS_MET, CHECK_NAMES
from niels_cache_assets.defs.checks.sync import IN_SYNC
from niels_cache_assets.defs.checks.tokenizer import ROUND_TRIP, SPECIAL_TOKENS
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import read_meta, write_meta
from tests.helpers.built_project import Built
from tests.helpers.dagster_tools import TRAIN_HERE, Project, checks, failure, materializations, metadata, rows
from tests.helpers.messages import missing

META = dg.AssetKey(["pretrain", "meta_json"])
ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN


@pytest.fixture
def project(built_project: Built, tmp_path: Path) -> Project:
    return built_project.project.copied(tmp_path)


def execute_checks(
    project: Project, names: Sequence[str], *, asset: dg.AssetKey = META, partition: str | None = "notes"
) -> dict[str, dg.AssetCheckEvaluation]:
    """Only these checks, as the UI's Execute button runs them."""
    run = dg.materialize(
        [*(project.defs.assets or []), *(project.defs.asset_checks or [])],  # type: ignore[list-item]
        selection=dg.AssetSelection.checks(*(dg.AssetCheckKey(asset, name) for name in names)),
        instance=project.instance,
        resources=project.defs.resources,
        tags={"dagster/partition": partition} if partition else None,
        raise_on_error=False,
    )
    return checks(run)


def test_a_sound_cache_passes_every_check_one_by_one(project: Project) -> None:
    assert len(CHECK_NAMES) == 3
    for name in CHECK_NAMES.values():
        found = execute_checks(project, [name])
        assert {name: check.passed for name, check in found.items()} == {name: True}
        assert found[name].partition == "notes"


def test_a_changed_byte_is_an_error_of_the_files(project: Project) -> None:
    shard = project.root / "pretrain/notes/train/shard_00000.bin"
    data = bytearray(shard.read_bytes())
    data[0] ^= 1
    shard.write_bytes(data)
    found = execute_checks(project, list(CHECK_NAMES.values()))
    assert {name: check.passed for name, check in found.items()} == {
        "files_match_meta": False,
        "invariants_hold": True,
        "tokenizer_is_current": True,
    }
    check = found["files_match_meta"]
    assert (check.severity, check.blocking) == (ERROR, True)
    assert missing(check.description, "train/shard_00000.bin: ", "sha256", META_NAME) == []
    assert [row["file"] for row in rows(check.metadata["problems"].value)] == ["train/shard_00000.bin"]


def test_the_folder_of_another_data_set_is_an_error_of_the_content(project: Project) -> None:
    path = project.root / "pretrain/notes" / META_NAME
    write_meta(str(path), {**read_meta(str(path)), "dataset_name": "books"})
    found = execute_checks(project, [*CHECK_NAMES.values(), "splits_disjoint"])
    assert [name for name, check in found.items() if not check.passed] == ["invariants_hold", "splits_disjoint"]
    assert missing(found["invariants_hold"].description, "dataset_name", "'books'", "'notes'") == []
    assert "not compared" in (found["splits_disjoint"].description or "")
    in_sync = execute_checks(project, [IN_SYNC], partition=None)[IN_SYNC]
    assert (in_sync.passed, in_sync.severity) == (False, ERROR)
    (row,) = (row for row in rows(in_sync.metadata["states"].value) if row["data_set"] == "notes")
    assert row["state"] == "other data set"
    assert missing(row["files"], "dataset_name", "'books'", "'notes'") == []
    run = project.build("notes")
    assert not run.success
    assert "--force" in failure(run)
    assert project.build("notes", force=True).success


def test_a_cache_of_another_tokenizer_is_an_error_and_shows_on_the_graph(project: Project) -> None:
    project.import_other_tokenizer()
    assert project.build_tokenizer().success
    check = execute_checks(project, ["tokenizer_is_current"])["tokenizer_is_current"]
    assert (check.passed, check.severity) == (False, ERROR)
    assert "built with tokenizer" in (check.description or "")
    state = graph(project.registry, project.root).dataset_state("notes")
    assert (state.state, state.needs_build) == ("other tokenizer", True)
    assert states(project)["notes"] == "other tokenizer"
    project.build("notes")
    assert execute_checks(project, ["tokenizer_is_current"])["tokenizer_is_current"].passed


def test_a_source_that_ended_before_its_budget_is_a_warning_that_blocks_nothing(project: Project) -> None:
    run = project.build("notes", train_tokens=10_000_000, val_tokens=100)
    check = checks(run)[BUDGETS_MET]
    assert (run.success, check.passed, check.severity, check.blocking) == (True, False, WARN, False)
    assert missing(check.description, "<0.1% of train_tokens", "ended") == []
    assert metadata(materializations(run)["pretrain/meta_json"])["contents"].endswith(f"; {check.description}")
    assert execute_checks(project, [BUDGETS_MET])[BUDGETS_MET].description == check.description
    run = project.build("notes", train_tokens=200, val_tokens=100)
    assert checks(run)[BUDGETS_MET].passed
    assert "ended" not in metadata(materializations(run)["pretrain/meta_json"])["contents"]


def states(project: Project) -> dict[str, str]:
    check = execute_checks(project, [IN_SYNC], partition=None)[IN_SYNC]
    assert check.severity == WARN
    assert check.passed == (check.metadata["not_in_sync"].value == 0)
    return {row["data_set"]: row["state"] for row in rows(check.metadata["states"].value)}


def test_caches_in_sync_says_how_each_data_set_stands(project: Project) -> None:
    assert list(states(project).items()) == [("notes", "in sync"), ("books", "in sync")]
    project.configure(extra='val_frac = 0.5\n[pretrain.later]\nsource = "roam"\n')
    assert states(project) == {"notes": "in sync", "books": "other settings", "later": "not configured"}
    project.remove("books")
    project.configure()
    assert list(states(project).items()) == [("books", "missing"), ("notes", "in sync")], "what needs something comes first"
    project.configure(extra="enabled = false\n")
    assert states(project) == {"notes": "in sync"}, "what is switched off is left out"
    off = graph(project.registry, project.root).dataset_state("books")
    assert (off.state, off.needs_build) == ("disabled", False)
    (project.root / "pretrain/notes" / META_NAME).write_text("{")
    assert states(project)["notes"] == "unreadable"


def test_what_was_never_built_is_not_called_otherwise_configured(project: Project) -> None:
    project.remove("notes")
    project.configure(extra="val_frac = 0.5\n")
    check = execute_checks(project, [IN_SYNC], partition=None)[IN_SYNC]
    otherwise, never = str(check.description).split("; ")
    assert missing(otherwise, "configured", "books") == missing(never, "built", "notes") == []


def test_executed_alone_it_reads_every_file_and_in_a_build_it_does_not(project: Project) -> None:
    shard = project.root / "pretrain/notes/train/shard_00000.bin"
    shard.write_bytes(bytes(shard.stat().st_size))
    alone = execute_checks(project, [IN_SYNC], partition=None)[IN_SYNC]
    assert (alone.passed, alone.severity, alone.description) == (False, ERROR, "damaged: notes")
    assert metadata_of(alone)["verified"] == "every file of 2 data sets"
    files = {row["data_set"]: row["files"] for row in rows(metadata_of(alone)["states"])}
    assert files["books"] == "sound"
    assert "train/shard_00000.bin" in files["notes"]
    in_a_build = checks(project.build("books"))[IN_SYNC]
    assert in_a_build.passed
    assert str(metadata_of(in_a_build)["verified"]).startswith("no file")
    columns = {"data_set", "state", "advice", "train", "val", "size"}
    assert [row.keys() for row in rows(metadata_of(in_a_build)["states"])] == [columns, columns], (
        "no word of problems where none was looked for"
    )


def metadata_of(check: dg.AssetCheckEvaluation) -> dict[str, object]:
    return {key: value.value for key, value in check.metadata.items()}


def test_a_meta_json_that_lacks_a_key_is_unreadable(project: Project) -> None:
    path = project.root / "pretrain/notes" / META_NAME
    whole = read_meta(str(path))
    for key in ("built", "fingerprint", "tokenizer_sha256", "dataset_revision", "train_tokens"):
        write_meta(str(path), {name: value for name, value in whole.items() if name != key})
        state = graph(project.registry, project.root).dataset_state("notes")
        assert (key, state.state) == (key, "unreadable")
        assert f"has no {key};" in state.advice


LOST = {"a\tb": "a b"}


@pytest.mark.parametrize(("settings", "severity", "success"), [(None, WARN, True), (TRAIN_HERE, ERROR, False)])
def test_lost_text_is_a_warning_for_an_imported_tokenizer_and_an_error_for_our_own(
    project: Project, monkeypatch: pytest.MonkeyPatch, settings: str | None, severity: dg.AssetCheckSeverity, success: bool
) -> None:
    monkeypatch.setattr("niels_cache_assets.defs.checks.tokenizer.round_trip_losses", lambda tokenizer: LOST)
    project.configure(tokenizer=settings)
    run = project.build_tokenizer()
    assert run.success == success
    found = checks(run)
    assert found[SPECIAL_TOKENS].passed
    check = found[ROUND_TRIP]
    assert (check.passed, check.severity) == (False, severity)
    assert (check.description or "").startswith("1 of 8 ")
    assert rows(metadata(check)["losses"]) == [{"text": "'a\\tb'", "decoded": "'a b'"}]  # type: ignore[arg-type]


def test_special_tokens_that_are_not_one_id_each_are_an_error(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"sys": 3, "usr": 4, "asst": 5, "eot": 5}
    monkeypatch.setattr("niels_cache_assets.tokenizer.kinds.SentencePieceTokenizer.special_token_ids", lambda self: wrong)
    check = execute_checks(project, [SPECIAL_TOKENS], asset=dg.AssetKey("tokenizer"), partition=None)[SPECIAL_TOKENS]
    assert (check.passed, check.severity) == (False, ERROR)
    assert "share an id" in (check.description or "")
