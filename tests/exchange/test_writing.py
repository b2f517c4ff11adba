"""An export appears as a whole or not at all. It replaces an older export only on request, and takes little memory."""

import errno
import os
import re
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from niels_cache_assets.base.processes import InterruptRequested
from niels_cache_assets.cli import main
from niels_cache_assets.disk import space
from niels_cache_assets.exchange import FORMATS, writing
from niels_cache_assets.exchange.writing import write_export
from niels_cache_runtime import NielsCacheError
from tests.helpers.exports import contents, export, planned, random_documents, write_documents_cache
from tests.helpers.hand_made import EOT, exchange, write_cache
from tests.helpers.messages import missing

DOCUMENTS = {"train": random_documents(100, seed=1), "val": random_documents(20, seed=2)}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return write_documents_cache(tmp_path / "cache" / "notes", DOCUMENTS, shard_tokens=500)


@pytest.mark.parametrize("format", FORMATS)
def test_what_interrupts_an_export_leaves_what_was_there(cache: Path, tmp_path: Path, format: str) -> None:
    out = tmp_path / "data" / "out"
    calls = 0

    def interrupt(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise InterruptRequested(2)

    with pytest.raises(InterruptRequested):
        write_export(planned(cache, format, out), progress=interrupt)
    assert not (out.parent if format == "megatron" else out).exists()
    export(cache, format, out)
    before, calls = contents(tmp_path / "data"), 0
    assert before
    with pytest.raises(InterruptRequested):
        write_export(planned(cache, format, out), force=True, progress=interrupt)
    assert contents(tmp_path / "data") == before


def test_what_a_killed_export_left_is_cleared_by_the_next(cache: Path, tmp_path: Path) -> None:
    left = tmp_path / "data" / ".notes.npy.partial" / "train"
    left.mkdir(parents=True)
    (left / "notes_train_000000.npy").write_bytes(b"half")
    (left.parent / "train.bin").write_bytes(b"half")
    export(cache, "npy", tmp_path / "data")
    names = {f"{split}/notes_{split}_000000.npy" for split in ("train", "val")}
    assert set(contents(tmp_path / "data")) == {*names, "notes_train.npy.files", "notes_val.npy.files"}


def test_two_exports_to_one_place_do_not_meet(cache: Path, tmp_path: Path) -> None:
    plan, refused = planned(cache, "nanogpt", tmp_path / "data"), []

    def again(done: int, total: int) -> None:
        if not refused:
            with pytest.raises(NielsCacheError, match="another export"):
                write_export(plan)
            refused.append(True)

    write_export(plan, progress=again)
    assert refused
    assert set(contents(tmp_path / "data")) == {"train.bin", "val.bin"}


def test_a_cache_that_is_rebuilt_meanwhile_is_not_exported_from_both_builds(cache: Path, tmp_path: Path) -> None:
    rebuilt = write_documents_cache(tmp_path / "rebuilt", {"train": DOCUMENTS["train"][::-1], "val": DOCUMENTS["val"]}, shard_tokens=500)
    plan, done = planned(cache, "llmc", tmp_path / "data"), []

    def rebuild(*_: int) -> None:
        if not done:
            exchange(cache, rebuilt)
            done.append(True)

    with pytest.raises(NielsCacheError, match="rebuilt while"):
        write_export(plan, progress=rebuild)
    assert not (tmp_path / "data").exists()


def test_a_folder_in_the_way_a_shard_that_is_cut_meanwhile_and_a_missing_eot_are_named(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "data" / "train.bin").mkdir(parents=True)
    with pytest.raises(NielsCacheError, match=r"train\.bin: is a folder"):
        export(cache, "nanogpt", tmp_path / "data", force=True)
    shard = cache / "train" / "shard_00001.bin"
    with pytest.raises(NielsCacheError, match=r"shard_00001\.bin: .*cut short"):
        write_export(planned(cache, "nanogpt", tmp_path / "other"), progress=lambda *_: os.truncate(shard, 0))
    without = write_documents_cache(tmp_path / "cache" / "without", {"train": [[10, 11]], "val": [[12, EOT]]})
    with pytest.raises(NielsCacheError, match=rf"token 11 .*EOT \({EOT}\).*verify without"):
        export(without, "llmc", tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("format", FORMATS)
def test_memory_does_not_grow_with_tokens_or_documents(cache: Path, tmp_path: Path, format: str) -> None:
    export(cache, format, tmp_path / "small" / "x")  # imports what the format needs
    tokens = np.full(8_000_000, EOT, dtype=np.uint16)  # 16 MB; a document every other token
    tokens[::2] = 7
    large = write_documents_cache(tmp_path / "cache" / "large", {"val": [[7, EOT]]}, shard_tokens=len(tokens), train_tokens=len(tokens))
    tokens.tofile(large / "train" / "shard_00000.bin")
    np.save(large / "train_doc_ends.npy", np.arange(2, len(tokens) + 1, 2, dtype="<u8"))
    (large / "meta.json").unlink()
    plan = planned(large, format, tmp_path / "out" / "x")
    tracemalloc.start()
    write_export(plan)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert plan.bytes > 16_000_000
    assert peak < 10_000_000


# the command


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache root with the pretrain data set `notes`, and the SFT data set `chats`, in an empty folder to work in."""
    for variable in ("NIELS_CACHE_CONFIG", "NIELS_CACHE_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NIELS_CACHE_PROFILE", "quickstart")
    monkeypatch.chdir(tmp_path)
    return write_cache(tmp_path / "cache")


def run(*arguments: str) -> int:
    return main(["export", *arguments, "--cache-dir", "cache"])


def test_the_command_writes_and_prints_files_sizes_and_where_eot_stands(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("megatron", "notes", "--split", "train", "--out", "data/notes", "--key", "text") == 0
    output, errors = capsys.readouterr()
    assert not errors
    assert re.search(r"^data/notes_text_document\.bin +4 +20 +40 B$", output, flags=re.MULTILINE)
    assert missing(output, "3 files, 210 bytes, ", "for megatron", f"EOT ({EOT}) is after") == []
    names = ["notes_text_document.bin", "notes_text_document.idx"]
    assert sorted(path.name for path in Path("data").iterdir()) == [*names, "notes_text_document.megatron.files"]
    assert Path("data/notes_text_document.megatron.files").read_text().splitlines() == names


def test_a_dry_run_says_the_same_and_writes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("datatrove", "notes", "--out", "data", "--dry-run") == 0
    dry = capsys.readouterr().out
    assert missing(dry, "would be written", "datatrove") == []
    assert not Path("data").exists()
    assert run("datatrove", "notes", "--out", "data") == 0
    assert capsys.readouterr().out == dry.replace("would be written", "written")
    assert run("datatrove", "notes", "--out", "data", "--dry-run") == 0
    assert missing(capsys.readouterr().out, "8 files", "--force") == []
    assert run("megatron", "notes", "--out", "m/notes", "--split", "train", "--max-bytes", "18") == 0
    capsys.readouterr()
    assert run("megatron", "notes", "--out", "m/notes", "--split", "train", "--dry-run") == 0
    deleted = [line for line in capsys.readouterr().out.splitlines() if line.startswith("--force would delete")]
    parts = sorted(path.name for path in Path("m").iterdir() if not path.name.endswith(".files"))
    assert len(parts) >= 4
    assert deleted == [f"--force would delete m/{name}" for name in parts]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nanogtp", "notes", "--out", "data"), "did you mean 'nanogpt'?"),
        (("nanogpt", "note", "--out", "data"), "did you mean 'notes'?"),
        (("nanogpt", "chats", "--out", "data"), "chats: "),
        (("nanogpt", "tokenizer", "--out", "data"), "tokenizer: "),
        (("nanogpt", "off", "--out", "data"), "was never built"),
        (("nanogpt", "notes", "--out", "data", "--split", "tran"), "did you mean 'train'?"),
        (("nanogpt", "notes", "--out", "data", "--key", "text"), "--key: only megatron"),
        (("megatron", "notes", "--out", "data", "--link", "hard"), "did you mean 'hardlink'?"),
        *(
            (("megatron", "notes", "--out", out), (f"--out {out}: ", f" {prefix}\n"))
            for out, prefix in (("data/", "data/notes"), (".", "./notes"), ("data/..", "data/../notes"))
        ),
        *((("megatron", "notes", "--out", "data/x", "--key", key), f"key={key!r}: ") for key in ("a/b", "", "..", "a b")),
        (("nanogpt", "notes", "--out", "cache/pretrain/notes"), "is inside cache/pretrain"),
        (("text", "notes", "--out", "cache/corpus/notes"), "is inside cache/corpus"),
        (("text", "notes", "--out", "cache/duplicates"), "is inside cache/duplicates"),
        (("megatron", "notes", "--out", "cache/pretrain/notes/x"), "is inside cache/pretrain"),
        (("npy", "notes", "--out", "taken"), "taken/train/notes_train_000000.npy: "),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str | tuple[str, ...]
) -> None:
    Path("taken/train").mkdir(parents=True)
    Path("taken/train/notes_train_000000.npy").write_bytes(b"older")
    assert run(*arguments) == 2
    output, errors = capsys.readouterr()
    assert not output
    assert errors.startswith("niels-cache: error: ")
    assert errors.count("\n") == 1
    assert missing(errors, *([message] if isinstance(message, str) else message)) == []
    assert not Path("data").exists()
    assert Path("taken/train/notes_train_000000.npy").read_bytes() == b"older"


def test_a_full_disk_is_one_line_and_exit_1(root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writing.os, "fsync", full)
    monkeypatch.setattr(space.shutil, "disk_usage", lambda path: SimpleNamespace(free=10**9))
    assert run("llmc", "notes", "--out", "data") == 1
    output, errors = capsys.readouterr()
    assert not output
    assert missing(errors, "niels-cache: error: data: ", "No space left", "(1.0 GB are free", "2.1 kB") == []
    assert errors.count("\n") == 1
    assert not Path("data").exists()


def test_a_place_that_is_no_folder_is_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("a file")
    assert run("npy", "notes", "--out", "file/data") == 1
    assert missing(capsys.readouterr().err, "file/data: ", "Not a directory") == []
