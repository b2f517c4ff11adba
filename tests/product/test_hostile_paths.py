"""Names and links that lead out of a cache, an export or an index. All readers refuse them, and nothing outside is touched."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.cli import main
from niels_cache_assets.cli.command import WRONG_USE
from niels_cache_assets.disk.staging import atomic_directory, finished_meta
from niels_cache_assets.exchange.replacing import ExportTarget
from niels_cache_runtime import DatasetLoader, NielsCacheError, PretrainTokenStreamDataset, SFTExampleDataset, TokenLoader
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.format.safe_open import link_problem
from niels_cache_runtime.megatron import write_indexed
from niels_cache_runtime.verify import verify_dataset
from tests.helpers.exports import export
from tests.helpers.hand_made import EOT, rewrite_meta, write_cache, write_pretrain
from tests.helpers.messages import missing

LEAVING = ["../x", "a/../../x", "/etc/passwd", "..", ".", "./a", "a//b", "a/", "a/./b", "a\\..\\b", "a\0b", "a\nb", "\ud800", "", 5, None]


@pytest.mark.parametrize("name", [name for name in LEAVING if isinstance(name, str) and name not in ("\ud800",)])
def test_a_meta_json_that_lists_such_a_name_is_refused_by_all_who_open(tmp_path: Path, name: str) -> None:
    folder = write_pretrain(tmp_path / "pretrain" / "notes")
    meta = read_meta(str(folder / "meta.json"))
    rewrite_meta(folder, files={**meta["files"], name: {"bytes": 0, "sha256": "0" * 64}})
    openers: list[Callable[[], Any]] = [
        lambda: PretrainTokenStreamDataset(str(folder / "train"), T=3, device="cpu"),
        lambda: DatasetLoader(1, 3, 0, 1, str(folder / "train"), "cpu"),
        lambda: TokenLoader(str(folder / "train"), T=3, B=1, seed=1),
        lambda: export(folder, "npy", tmp_path / "out"),
        lambda: write_indexed(tmp_path / "out", folder / "train"),
    ]
    for opener in openers:
        with pytest.raises(NielsCacheError, match="`files` lists") as caught:
            opener()
        assert len(str(caught.value).splitlines()) == 1
    assert finished_meta(folder) is None
    assert verify_dataset(folder)
    assert not list(tmp_path.glob("out*"))


def link_out(path: Path, outside: Path) -> None:
    """Move the file, or the folder, out of the cache and leave a link to it."""
    outside.parent.mkdir(exist_ok=True)
    path.rename(outside)
    path.symlink_to(outside)


@pytest.mark.parametrize("name", ["train", "train/shard_00001.bin", "train_doc_ends.npy"])
def test_a_link_out_of_a_pretrain_cache_is_followed_by_nobody(tmp_path: Path, name: str) -> None:
    folder = write_pretrain(tmp_path / "pretrain" / "notes")
    link_out(folder / name, tmp_path / "outside" / "file")
    openers: list[Callable[[], Any]] = [
        lambda: TokenLoader(str(folder / "train"), T=3, B=1, seed=1),
        lambda: export(folder, "npy", tmp_path / "out"),
        lambda: write_indexed(tmp_path / "out", folder / "train", link="hardlink"),
    ]
    if name != "train_doc_ends.npy":  # these two do not read it
        openers.append(lambda: PretrainTokenStreamDataset(str(folder / "train"), T=3, device="cpu"))
        openers.append(lambda: DatasetLoader(1, 3, 0, 1, str(folder / "train"), "cpu"))
    for opener in openers:
        with pytest.raises(NielsCacheError, match="link out of"):
            opener()
    assert any("link" in str(finding) for finding in verify_dataset(folder))
    assert finished_meta(folder) is None


@pytest.mark.parametrize("name", ["train_tokens.bin", "train_idx.npy"])
def test_a_link_out_of_an_sft_cache_is_followed_by_nobody(tmp_path: Path, name: str) -> None:
    chats = write_cache(tmp_path / "cache") / "sft" / "chats"
    link_out(chats / name, tmp_path / "outside" / "file")
    with pytest.raises(NielsCacheError, match="link out of"):
        SFTExampleDataset(str(chats / "train_tokens.bin"), str(chats / "train_idx.npy"), T=16, device="cpu", eot_id=EOT)
    assert any("link" in str(finding) for finding in verify_dataset(chats))


def test_where_a_cache_lies_may_be_a_link(tmp_path: Path) -> None:
    write_pretrain(tmp_path / "large disk" / "notes")
    (tmp_path / "notes").symlink_to(tmp_path / "large disk" / "notes")
    assert PretrainTokenStreamDataset(str(tmp_path / "notes" / "train"), T=3, device="cpu").total_windows
    assert verify_dataset(tmp_path / "notes") == []
    assert finished_meta(tmp_path / "notes") is not None


def test_a_shard_that_is_a_link_inside_its_data_set_is_read(tmp_path: Path) -> None:
    folder = write_pretrain(tmp_path / "notes")
    (folder / "train" / "shard_00000.bin").rename(folder / "moved.bin")
    (folder / "train" / "shard_00000.bin").symlink_to("../moved.bin")
    assert PretrainTokenStreamDataset(str(folder / "train"), T=3, device="cpu").total_windows


def test_a_link_that_stays_inside_is_no_problem_and_one_that_leads_nowhere_is(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "file").touch()
    (tmp_path / "cache" / "inside").symlink_to("file")
    (tmp_path / "cache" / "outside").symlink_to("../nowhere")
    assert link_problem(tmp_path / "cache", ["file", "inside", "missing"]) is None
    assert link_problem(tmp_path / "cache", ["inside", "outside"]) is not None


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_stage_that_is_a_link_is_not_emptied(tmp_path: Path) -> None:
    """Somebody who may write where exports go could else have the exporting user delete what is theirs."""
    folder, home = write_pretrain(tmp_path / "pretrain" / "notes"), tmp_path / "home"
    (home / "new").mkdir(parents=True)
    (home / "new" / "thesis").write_bytes(b"years of work")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".notes.npy.partial").symlink_to(home)
    with pytest.raises(NielsCacheError):
        export(folder, "npy", tmp_path / "out", force=True)
    assert contents(home) == {"new/thesis": b"years of work"}


def test_a_list_of_an_older_export_reaches_nothing_behind_a_link(tmp_path: Path) -> None:
    folder, home = write_pretrain(tmp_path / "pretrain" / "notes"), tmp_path / "home"
    home.mkdir()
    (home / "thesis").write_bytes(b"years of work")
    out = tmp_path / "out"
    export(folder, "npy", out)
    [written] = out.glob("notes_train.npy.files")
    (out / "below").symlink_to(home)
    written.write_text("below/thesis\n")
    with pytest.raises(NielsCacheError, match="link out of"):
        export(folder, "npy", out, force=True)
    assert contents(home) == {"thesis": b"years of work"}


@pytest.mark.parametrize("name", ["../thesis", "/thesis", "a/b/c", "a\0b", ".", ""])
def test_a_list_with_a_name_that_no_export_has_deletes_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "c4.files").write_text(f"{name}\n")
    with pytest.raises(NielsCacheError, match=r"c4\.files: .*list"):
        ExportTarget(list_name="c4.files").older(tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["c4.files"]


def test_a_folder_that_is_not_utf8_is_refused_before_anything_is_built_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    root = os.fsdecode(b"caches\xff")
    assert main(["build-all", "--profile", "quickstart", "--cache-dir", root]) == WRONG_USE
    said = capsys.readouterr().err
    assert missing(said, "not UTF-8", "--cache-dir") == []
    assert said.count("\n") == 1
    with pytest.raises(NielsCacheError, match="is not UTF-8"), atomic_directory(tmp_path / root / "x"):
        pass
    assert not (tmp_path / root).exists()
