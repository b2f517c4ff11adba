"""The program `python -m niels_cache_runtime.verify`. It finds nothing in a sound cache, and one finding in the right file for each kind of
damage.
"""

import errno
import functools
import io
import os
import pickle
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_runtime import (
    DatasetLoader,
    NielsCacheError,
    PretrainTokenStreamDataset,
    SFTExampleDataset,
    TokenLoader,
    read_meta,
    verify,
)
from niels_cache_runtime.cache import opening
from niels_cache_runtime.format import reading
from niels_cache_runtime.format.layout import IDX_DTYPE, META_NAME
from niels_cache_runtime.verify import verify_cache, verify_dataset
from niels_cache_runtime.verify.__main__ import main
from tests.helpers.hand_made import (
    ASST,
    EOT,
    IDS,
    SYS,
    USR,
    VOCAB_SIZE,
    rewrite_meta,
    write_cache,
    write_meta_of,
    write_pair,
    write_pretrain,
    write_sft,
    write_tokens,
)
from tests.helpers.messages import missing
from tests.helpers.saying import Saying

CHANGED, MISSING, UNLISTED = Saying("sha256", "meta.json"), Saying("missing", "meta.json"), Saying("not listed", "meta.json")


def problems(folder: Path) -> list[tuple[str, str]]:
    return [(finding.path, finding.problem) for finding in verify_dataset(folder)]


def test_a_good_cache_has_no_findings_and_progress_ends_at_its_size(tmp_path: Path) -> None:
    root = write_cache(tmp_path / "cache")
    seen: list[tuple[int, int]] = []
    assert verify_cache(root, progress=lambda done, total: seen.append((done, total))) == []
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and path.name != "meta.json")
    assert seen[-1] == (size, size)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_names_select_data_sets_and_unfinished_builds_are_ignored(tmp_path: Path) -> None:
    root = write_cache(tmp_path / "cache")
    (root / "pretrain" / "notes" / "train" / "shard_00000.bin").unlink()
    (root / "sft" / ".chats.partial").mkdir()
    (root / "sft" / "chats" / ".DS_Store").touch()
    assert verify_cache(root, names=["chats", "tokenizer"]) == []
    for name in ("notes", "pretrain/notes"):
        assert verify_cache(root, names=[name])
    with pytest.raises(NielsCacheError, match=r"sft/notes.* tokenizer, pretrain/notes"):
        verify_cache(root, names=["sft/notes"])


def rehash(folder: Path, **fields: object) -> None:
    """Compute every hash again, including that of meta.json, as somebody would do to hide a change."""
    kept = {key: value for key, value in read_meta(str(folder / "meta.json")).items() if key not in ("files", "content_sha256")}
    write_meta_of(folder, **{**kept, **fields})


def damage_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("path", "damage", "expected"),
    [
        ("pretrain/notes/train/shard_00001.bin", damage_byte, CHANGED),
        ("pretrain/notes/train/shard_00001.bin", Path.unlink, MISSING),
        ("pretrain/notes/train/shard_00002.bin", lambda path: path.write_bytes(b"123"), Saying("3 bytes", "uint16")),
        ("pretrain/notes/train/shard_00002.bin", lambda path: path.write_bytes(b"1"), Saying("1 bytes", "uint16")),
        ("pretrain/notes/train/extra.bin", Path.touch, UNLISTED),
        ("pretrain/notes/val_doc_ends.npy", damage_byte, CHANGED),
        ("pretrain/notes/val_doc_ends.npy", lambda path: path.write_bytes(b""), Saying("has 0 bytes", "says 136")),
        ("pretrain/notes/meta.json", lambda path: path.write_bytes(path.read_bytes()[:80]), Saying("JSON")),
        ("pretrain/notes/meta.json", Path.unlink, Saying("no such file")),
        ("sft/chats/meta.json", lambda path: path.write_text("[1]"), Saying("not a niels-cache meta.json")),
        ("sft/chats/train_tokens.bin", damage_byte, CHANGED),
        ("sft/chats/train_idx.npy", lambda path: path.write_text("hello"), Saying(".npy")),
        ("sft/chats/train_idx.npy", lambda path: os.truncate(path, path.stat().st_size - 2), Saying("bytes", "says")),
        ("sft/chats/train_tokens.bin", lambda path: os.truncate(path, 1), Saying("1 bytes", "says")),
        ("sft/chats/val_tokens.bin", Path.unlink, MISSING),
        ("tokenizer/spm.model", lambda path: path.write_text("another"), Saying("has 7 bytes", "says 11")),
        ("tokenizer/spm.model", damage_byte, CHANGED),
        ("tokenizer/spm.model", Path.unlink, MISSING),
    ],
)
def test_damage_on_disk_is_a_finding_in_that_file(tmp_path: Path, path: str, damage: Callable[[Path], object], expected: Saying) -> None:
    root = write_cache(tmp_path / "cache")
    damage(root / path)
    findings = verify_cache(root)
    hits = [finding for finding in findings if finding.path and Path(finding.folder) / finding.path == root / path]
    assert expected in [finding.problem for finding in hits], findings
    assert not any("cannot be checked" in finding.problem for finding in findings)
    assert all("\n" not in str(finding) for finding in findings)


@pytest.mark.parametrize("size", [2, 6, 1 << 22])  # blocks that end inside documents
def test_pretrain_invariants_are_checked_even_where_all_hashes_agree(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", size)

    def found(spoil: Callable[[Path], object], **fields: object) -> list[tuple[str, str]]:
        folder = write_pretrain(tmp_path / f"data{len(list(tmp_path.iterdir()))}")
        spoil(folder)
        rehash(folder, **fields)
        return problems(folder)

    def nothing(_: Path) -> None: ...

    assert found(nothing) == []
    assert found(nothing, vocab_size=41) == [("val/shard_00000.bin", Saying("id 41", "has 41"))]
    assert found(nothing, train_tokens=21) == [("meta.json", Saying("train_tokens is 21", "hold 20"))]
    assert found(nothing, documents={"train": 5, "val": 1}) == [
        ("train_doc_ends.npy", Saying("4 documents", "says 5")),
        ("train/", Saying("4 EOT", "5 documents")),
    ]
    assert found(nothing, shard_bytes=14) == [
        ("train/shard_00000.bin", Saying("16 bytes", "shard_bytes=14")),
        ("train/shard_00001.bin", Saying("16 bytes", "shard_bytes=14")),
    ]
    assert found(nothing, kind="other") == [
        ("meta.json", Saying("'other'", "tokenizer", "pretrain", "sft", "corpus", "duplicates", "index"))
    ]
    assert found(nothing, vocab_size="many") == [("meta.json", Saying("vocab_size", "'many'"))]
    assert found(nothing, content_sha256="0") == [("meta.json", Saying("content_sha256", "`files`"))]
    assert found(nothing, documents=7)[0][1] == Saying("AttributeError")

    def save_ends(*ends: int) -> Callable[[Path], None]:
        return lambda folder: np.save(folder / "train_doc_ends.npy", np.array(ends, dtype=np.uint64))

    assert found(save_ends(5, 8, 16, 20)) == [("train_doc_ends.npy", Saying("1 documents", "EOT"))]
    assert found(save_ends(5, 7, 16, 19))[0][1] == Saying("ends at 19", "20 tokens")
    assert found(save_ends(5, 16, 7, 20))[0][1] == Saying("increasing", "entry 2", "7 after 16")
    assert found(save_ends(0, 7, 16, 20))[0][1] == Saying("first document", "empty")
    assert found(lambda folder: np.save(folder / "train_doc_ends.npy", np.array([20])))[0][1] == Saying("int64")
    assert found(lambda folder: write_tokens(folder / "train" / "shard_00000.bin", [10, 11, EOT, 13, EOT, 14, EOT, 20])) == [
        ("train/", Saying("5 EOT", "4 documents"))
    ]
    assert found(lambda folder: write_tokens(folder / "train" / "shard_00001.bin", [20, ASST, USR, 20, ASST, 20, 20, EOT])) == [
        ("train/shard_00001.bin", Saying("3 role sentinels", "SFT"))
    ]
    assert found(nothing, special_token_ids={"eot": EOT, "sys": None}) == []
    # Special ids in the middle and at the end of the vocabulary are found as those at its beginning are.
    assert found(nothing, vocab_size=42, special_token_ids={**IDS, "usr": 20, "asst": 41})[0][1] == Saying("role sentinels", "SFT")
    assert found(save_ends(5, 8, 16, 20), append_eot=False) == []


def test_sft_invariants_are_checked_even_where_all_hashes_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(examples: list[list[int]], **fields: object) -> list[tuple[str, str]]:
        folder = write_sft(tmp_path / f"data{len(list(tmp_path.iterdir()))}")
        write_pair(folder, "train", examples)
        tokens = sum(map(len, examples))
        totals = {"train_examples": len(examples), "val_examples": 0, "train_tokens": tokens, "val_tokens": 0}
        write_meta_of(folder, **{"kind": "sft", **totals, **fields})
        return problems(folder)

    good = [[USR, 10, EOT, ASST, 11, EOT], [USR, 12, EOT, ASST, 13, EOT]]
    assert found(good) == []
    assert found([]) == []
    no_role = Saying("1 examples", "begin", "role sentinel")
    inside = Saying("1 role sentinels", "inside")
    after_eot = Saying("1 EOT", "followed")
    unanswered = Saying("1 examples", "assistant")
    for second, expected in [
        ([9, *good[1]], [no_role, inside]),
        ([9, 9, EOT, ASST, 13, EOT], [no_role]),
        ([USR, 12, ASST, 13, EOT], [inside]),
        ([USR, ASST, 13, EOT], [inside]),
        ([USR, 12, EOT, ASST, 13, EOT, 14, EOT], [after_eot]),
        ([USR, 12, EOT, ASST, 13, EOT, EOT], [after_eot]),
        ([USR, 12, EOT, SYS, 13, EOT], [unanswered]),
        ([ASST, EOT, ASST, EOT], []),
    ]:
        for examples in ([good[0], second], [second, good[0]], [good[0], second, good[1]]):
            for size in (2, 6, 1 << 22):
                monkeypatch.setattr(reading, "BLOCK_BYTES", size)
                assert found(examples) == [("train_tokens.bin", problem) for problem in expected]
    assert found([good[0][:-1], good[1][:-1]]) == [("train_tokens.bin", Saying("2 examples", "end", "EOT"))]
    assert found(good, vocab_size=12) == [("train_tokens.bin", Saying("id 13", "has 12"))]
    assert found(good, train_examples=3) == [("meta.json", Saying("train_examples is 3", "hold 2"))]
    assert found(good, val_tokens=3) == [("meta.json", Saying("val_tokens is 3", "hold 0"))]
    assert found(good, special_token_ids={"eot": EOT})[0] == ("meta.json", Saying("sys is None"))

    folder = write_sft(tmp_path / "moved")  # the second example's offset now points into its first message, or to its second
    np.save(folder / "train_idx.npy", np.array([0, 8], dtype=IDX_DTYPE))
    write_meta_of(folder, kind="sft", train_examples=2, val_examples=0)
    assert ("train_tokens.bin", no_role) in problems(folder)
    assert ("train_tokens.bin", Saying("1 examples", "end", "EOT")) in problems(folder)
    np.save(folder / "train_idx.npy", np.array([0, 10], dtype=IDX_DTYPE))
    write_meta_of(folder, kind="sft", train_examples=2, val_examples=0)
    assert problems(folder) == []

    folder = write_sft(tmp_path / "offsets")
    for starts, expected in [
        ([0, 0], "not strictly increasing"),
        ([1, 7], "starts at 1"),
        ([0, 17], "out of range"),
        ([], "lists no example"),
    ]:
        np.save(folder / "train_idx.npy", np.array(starts, dtype=IDX_DTYPE))
        assert any(path == "train_idx.npy" and expected in problem for path, problem in problems(folder))


@pytest.mark.parametrize("write", [write_pretrain, write_sft])
def test_what_meta_says_of_tokens_is_checked(tmp_path: Path, write: Callable[..., Path]) -> None:
    folder = write(tmp_path / "data")
    for fields, expected in [
        ({"token_dtype": "uint64-le"}, Saying("token_dtype", "'uint64-le'", "'uint16-le' or 'uint32-le'")),
        ({"token_dtype": "<u2"}, Saying("token_dtype", "'<u2'", "'uint16-le'")),
        ({"token_dtype": None}, Saying("token_dtype", "None", "'uint16-le'")),
        ({"vocab_size": 65_537}, Saying("vocab_size is 65537", "uint16", "65536")),
        ({"special_token_ids": {**IDS, "sys": 50}}, Saying("sys id is 50", "has 50")),
        ({"special_token_ids": {**IDS, "sys": -1}}, Saying("sys id is -1", "has 50")),
        ({"special_token_ids": {**IDS, "sys": USR}}, Saying("asst 3, eot 4, sys 2, usr 2")),
        ({"token_dtype": "uint32-le", "forms": []}, Saying("forms", "'uint32'")),  # last: this meta.json cannot be read again
    ]:
        rewrite_meta(folder, **{"token_dtype": "uint16-le", "vocab_size": VOCAB_SIZE, "special_token_ids": IDS, **fields})
        assert ("meta.json", expected) in problems(folder)
    if write is write_pretrain:
        for value in (None, 1, "true"):
            folder = write(tmp_path / str(value), append_eot=value)
            assert problems(folder) == [("meta.json", Saying("append_eot", repr(value)))]


def test_files_of_a_data_set_that_was_never_built_are_findings(tmp_path: Path) -> None:
    root = write_cache(tmp_path / "cache")
    write_tokens(root / "pretrain" / "off" / "train" / "shard_00000.bin", [1])
    rewrite_meta(root / "sft" / "chats", built=False)
    found = [(finding.path, finding.problem) for finding in verify_cache(root)]
    assert all(problem == Saying('"built": false') for _, problem in found)
    names = ["train/shard_00000.bin", "train_idx.npy", "train_tokens.bin", "val_idx.npy", "val_tokens.bin"]
    assert [path for path, _ in found] == names


def test_a_cache_root_without_its_tokenizer_and_a_data_set_in_the_wrong_folder_are_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_cache(tmp_path / "cache")
    (root / "sft" / "chats").rename(root / "pretrain" / "chats")
    (finding,) = verify_cache(root)
    assert str(finding) == Saying(f"{root / 'pretrain' / 'chats' / 'meta.json'}: ", "'sft'", "pretrain/")
    (root / "pretrain" / "chats").rename(root / "sft" / "chats")
    (root / "tokenizer").rename(tmp_path / "elsewhere")
    (finding,) = verify_cache(root, names=["chats"])
    assert str(finding) == Saying(f"{root / 'tokenizer' / 'meta.json'}: missing", "meta.json of chats")
    assert main([str(root)]) == 1
    assert capsys.readouterr().out.count(str(root)) == 1, "one finding"
    for folder in (root / "pretrain" / "notes", root / "sft" / "chats"):
        assert verify_dataset(folder) == []
        assert verify_cache(folder) == []


def test_a_data_set_of_another_tokenizer_is_a_finding(tmp_path: Path) -> None:
    root = write_cache(tmp_path / "cache")
    rewrite_meta(root / "sft" / "chats", tokenizer_sha256="f" * 64)
    assert [finding.problem for finding in verify_cache(root)] == [Saying("tokenizer ffffffffffff")]
    assert len(verify_dataset(root / "sft" / "chats")) == 1
    rewrite_meta(root / "sft" / "chats", tokenizer_sha256=None)
    assert verify_cache(root) == []


def test_the_command_exits_0_with_a_summary_1_with_findings_and_2_for_a_wrong_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_cache(tmp_path / "cache")
    assert main([str(root)]) == 0
    out, err = capsys.readouterr()
    assert out.endswith(": no findings\n")
    table = {line.split()[0]: line for line in out.splitlines()[1:-1]}
    size = sum(path.stat().st_size for path in (root / "pretrain/notes").rglob("*") if path.is_file() and path.name != "meta.json")
    assert list(table) == ["tokenizer", "notes", "off", "chats"]
    assert missing(table["notes"], " pretrain ", f" {size:,} ", "verified") == []
    assert "switched off" in table["off"]
    assert err == ""  # not a terminal: no progress bar

    damage_byte(root / "pretrain" / "notes" / "val" / "shard_00000.bin")
    assert main([str(root), "notes"]) == 1
    out, err = capsys.readouterr()
    assert missing(out, "val/shard_00000.bin: ", "sha256") == []
    assert out.splitlines()[-2].endswith("  1 finding")
    assert out.endswith(": 1 finding\n")
    assert err == ""
    assert main([str(root), "chats"]) == 0
    assert main([str(root / "sft" / "chats")]) == 0
    capsys.readouterr()

    (tmp_path / "nothing").mkdir()
    for arguments in ([str(tmp_path / "nowhere")], [str(tmp_path / "nothing")], [str(root), "unknown"], [str(root / "sft" / "chats"), "x"]):
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1


def test_on_a_terminal_the_share_of_read_bytes_is_shown_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main([str(write_cache(tmp_path / "cache"))]) == 0
    written = terminal.getvalue()
    assert "100% of " in written
    assert written.index("\n") == len(written) - 1


def test_sizes_alone_are_compared_when_asked_and_no_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_cache(tmp_path / "cache")
    damage_byte(root / "pretrain" / "notes" / "train" / "shard_00001.bin")
    assert verify_cache(root)
    assert verify_cache(root, quick=True) == []
    monkeypatch.setattr(verify, "hash_files", lambda files, **_: dict.fromkeys(files, "read") and pytest.fail("read"))
    (root / "pretrain" / "notes" / "val_doc_ends.npy").write_bytes(b"")
    (root / "sft" / "chats" / "train_idx.npy").unlink()
    (root / "sft" / "chats" / "more").touch()
    found = [str(finding).removeprefix(f"{root}/") for finding in verify_cache(root, quick=True)]
    assert found == [
        Saying("pretrain/notes/val_doc_ends.npy: ", "has 0 bytes", "says 136"),
        Saying("sft/chats/train_idx.npy: missing"),
        Saying("sft/chats/more: not listed"),
    ]
    assert main([str(root), "--quick"]) == 1


def test_an_edited_meta_is_found_also_where_it_says_the_same(tmp_path: Path) -> None:
    folder = write_pretrain(tmp_path / "data")
    path = folder / "meta.json"
    written = path.read_text()
    for old, new, expected in [
        ('"train_tokens": 20', '"train_tokens": 21', "meta_sha256"),
        ('"train_tokens": 20', '"train_tokens":  20', "not canonical"),
        ("{", '{"train_tokens": 20,', "'train_tokens' twice"),
    ]:
        assert old in written
        path.write_text(written.replace(old, new, 1))
        ((found, problem),) = problems(folder)
        assert found == "meta.json"
        assert expected in problem


def test_links_are_findings_and_nothing_is_read_through_them(tmp_path: Path) -> None:
    root = write_cache(tmp_path / "cache")
    folder = root / "pretrain" / "notes"
    elsewhere = tmp_path / "elsewhere"
    (folder / "val").rename(elsewhere)
    (folder / "val").symlink_to(elsewhere)
    (folder / "train_doc_ends.npy").rename(elsewhere / "ends")
    (folder / "train_doc_ends.npy").symlink_to(elsewhere / "ends")
    os.mkfifo(folder / "pipe")
    found = dict(problems(folder))
    link = Saying("is a link")
    assert found["val"] == link
    assert found["train_doc_ends.npy"] == link
    assert found["pipe"] == Saying("regular file")
    assert found["val/shard_00000.bin"] == MISSING

    chats = root / "sft" / "chats"
    (chats / "meta.json").rename(elsewhere / "meta.json")
    (chats / "meta.json").symlink_to(elsewhere / "meta.json")
    assert ("meta.json", link) in problems(chats)
    (root / "sft" / "linked").symlink_to(write_sft(tmp_path / "another disk", tokenizer_sha256=None, dataset_name="linked"))
    assert verify_cache(root, names=["linked"]) == []  # where a data set lies is its owner's choice


def notes_of(*arguments: object, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(list(map(str, arguments))) == 0
    return [line.removeprefix("note: ") for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]


def test_what_harms_nothing_is_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_cache(tmp_path / "cache")
    notes, chats = root / "pretrain/notes", root / "sft/chats"
    for left in ("pretrain/.notes.partial", "sft/.chats.old", ".tokenizer.partial", "pretrain/.notes.journal"):
        (root / left).mkdir()
    for lock in ("pretrain/.notes.lock", ".tokenizer.lock"):
        (root / lock).touch()
    assert notes_of(root, capsys=capsys) == [], "unfinished builds, locks and an empty split"
    for folder in ("reports", ".dagster", "pretrain/.off.lock", "pretrain/notes/val/old/older", "sft/chats/train"):
        (root / folder).mkdir(parents=True)
    for file in ("README.md", ".duplicates.partial", "pretrain/.DS_Store", "pretrain/notes/.DS_Store"):
        (root / file).touch()
    write_pretrain(tmp_path / "large", tokenizer_sha256=None, dataset_name="linked")
    (root / "pretrain/linked").symlink_to(tmp_path / "large")
    of_data_sets = [
        Saying(f"{notes}: not part", ": .DS_Store, val/old/older/ (empty); remove"),
        Saying(f"{chats}: not part", ": train/ (empty); remove"),
    ]
    found = notes_of(root, capsys=capsys)
    assert [line for line in found if line.startswith((str(notes), str(chats)))] == of_data_sets
    assert [line for line in found if not line.startswith((str(notes), str(chats)))] == [
        Saying(f"{root}/pretrain/linked: ", "link", f"{tmp_path}/large"),
        Saying(f"{root}/.duplicates.partial: ", "remove it"),
        Saying(f"{root}/pretrain/.DS_Store: not part"),
        Saying(f"{root}/pretrain/.off.lock: ", "remove it"),
        Saying(f"{root}/reports: not verified"),
        Saying(f"{root}: not part", ": .dagster, README.md"),
    ]
    assert notes_of(root, "notes", capsys=capsys) == notes_of(notes, capsys=capsys) == of_data_sets[:1]
    for number in range(20):
        (chats / f".{number:02}").touch()
    (chats / ".00\x1b[31m").touch()
    assert notes_of(chats, "--quick", capsys=capsys) == [Saying(": .00, .00\\x1b[31m, .01, .02, .03, .04, .05, .06 and 14 more; ")]


def test_what_lies_in_the_place_of_a_data_set_and_is_none_is_a_finding(tmp_path: Path) -> None:
    root = write_cache(tmp_path / "cache")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").touch()
    (root / "pretrain/shard_00000.bin").write_bytes(b"ab")
    (root / "sft/old").mkdir()
    (root / "corpus").mkdir()
    (root / "corpus/out").symlink_to(tmp_path / "secret")
    (root / "index").write_text("no folder")
    (root / "duplicates").symlink_to(tmp_path / "nowhere")
    found = {Path(finding.folder, finding.path).relative_to(root).as_posix(): finding.problem for finding in verify_cache(root)}
    link, no_folder = Saying("is a link", "data set"), Saying("is not a folder")
    expected = {"pretrain/shard_00000.bin": no_folder, "corpus/out": link, "index": no_folder, "duplicates": link}
    assert {path: problem for path, problem in found.items() if path in expected} == expected
    assert found.keys() - expected.keys() == {"sft/old/meta.json"}, "nothing is read through a link"
    assert verify_cache(root, names=["notes"]) == [], "of the data set that was asked for there is nothing to say"


def test_a_name_in_meta_that_leaves_the_folder_is_a_finding(tmp_path: Path) -> None:
    folder = write_pretrain(tmp_path / "data")
    secret = tmp_path / "secret.bin"
    secret.write_bytes(b"ab")
    files = read_meta(str(folder / "meta.json"))["files"]
    for name in ("../secret.bin", str(secret), "train/../../secret.bin"):
        rewrite_meta(folder, files={**files, name: {"bytes": 2, "sha256": "0"}})
        ((path, problem),) = problems(folder)
        assert path == "meta.json"
        assert problem == Saying(name[:60], "folder")  # a long one is cut


def test_corpora_drop_lists_and_indices_are_verified_by_their_files(tmp_path: Path) -> None:
    root = write_cache(tmp_path / "cache")
    for place, kind in [("corpus/notes", "corpus"), ("duplicates", "duplicates"), ("index/0123", "index/gpt")]:
        (root / place).mkdir(parents=True)
        (root / place / "part.parquet").write_bytes(b"rows")
        write_meta_of(root / place, kind=kind)
    assert verify_cache(root) == []
    assert [path.name for path in verify.find_folders(root, names=["corpus/notes", "duplicates"])] == ["notes", "duplicates"]
    for place in ("corpus/notes", "duplicates", "index/0123"):
        damage_byte(root / place / "part.parquet")
        (finding,) = verify_cache(root)
        assert str(finding) == Saying(f"{root / place / 'part.parquet'}: ", "sha256")
        damage_byte(root / place / "part.parquet")
    (root / "duplicates").rename(root / "corpus" / "duplicates")
    (finding,) = verify_cache(root)
    assert finding.problem == Saying("'duplicates'", "corpus/")


def test_any_number_of_threads_finds_the_same_and_an_interrupt_ends_them(tmp_path: Path) -> None:
    root = write_cache(tmp_path / "cache")
    for path in (root / "pretrain" / "notes" / "train").iterdir():
        damage_byte(path)
    one = verify_cache(root, threads=1)
    assert len(one) == 3
    for threads in (2, 5, None):
        assert verify_cache(root, threads=threads) == one

    with pytest.raises(NielsCacheError, match="threads=0"):
        verify_cache(root, threads=0)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        verify_cache(root, progress=interrupt)
    assert threading.active_count() == before


def test_a_rebuild_during_verify_is_no_damage_and_a_pipe_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_cache(tmp_path / "cache")
    folder, other = root / "pretrain" / "notes", tmp_path / "other"
    shutil.copytree(folder, other)
    (other / "train_documents.parquet").write_bytes(b"rows")
    rehash(other, note="another build")
    rebuilds = 0

    def exchanging(*args: Any, times: int, **keys: Any) -> Any:
        nonlocal rebuilds
        if rebuilds < times:
            rebuilds += 1
            folder.rename(tmp_path / "kept")
            other.rename(folder)
            (tmp_path / "kept").rename(other)
        return reading.hash_files(*args, **keys)

    monkeypatch.setattr(verify, "hash_files", functools.partial(exchanging, times=1))
    assert (verify_cache(root), rebuilds) == ([], 1)
    damage_byte(folder / "train" / "shard_00001.bin")
    damage_byte(other / "train" / "shard_00001.bin")
    assert [finding.problem for finding in verify_cache(root)] == [CHANGED]
    rebuilds = 0
    monkeypatch.setattr(verify, "hash_files", functools.partial(exchanging, times=100))
    (finding,) = verify_cache(root)
    assert finding.problem == Saying("rebuilt 5 times", "verify it again")
    assert rebuilds == 5

    def with_a_pipe(*args: Any, **keys: Any) -> Any:
        (folder / "val/shard_00000.bin").unlink()
        os.mkfifo(folder / "val/shard_00000.bin")
        return reading.hash_files(*args, **keys)

    monkeypatch.setattr(verify, "hash_files", with_a_pipe)
    assert ("val/shard_00000.bin", Saying("regular file", "remove it")) in problems(folder)


def test_names_that_no_terminal_should_get_are_shown_as_escapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_pretrain(tmp_path / "data")
    for name in (b"\xff.bin", b"\x1b[31mred.bin", b"two\nlines.bin"):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).touch()
    assert main([str(folder)]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(str(folder))]
    shown = ["\\udcff.bin", "\\x1b[31mred.bin", "two\\nlines.bin"]
    assert sorted(lines) == [Saying(f"{folder}/{name}: not listed") for name in sorted(shown)]
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("broken", ["pretrain/notes/train/shard_00001.bin", "pretrain/notes/val_doc_ends.npy", "sft"])
def test_what_the_disk_does_not_give_is_a_finding(tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be read, and a folder that cannot be listed."""
    root = write_cache(tmp_path / "cache")

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def fail(path: Any = ".", *args: Any) -> Any:
            if path == root / broken or str(path) == str(root / broken):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return call(path, *args)

        return fail

    monkeypatch.setattr(os, "open", failing(os.open))
    monkeypatch.setattr(os, "listdir", failing(os.listdir))
    found = [str(finding) for finding in verify_cache(root)]
    assert found == [Saying(f"{root / broken}: ", "Input/output error")] * len(found) != []


def test_an_edited_meta_hides_no_damage_that_its_content_sha256_shows(tmp_path: Path) -> None:
    folder = write_pretrain(tmp_path / "data")
    meta = folder / "meta.json"
    meta.write_text(meta.read_text().replace('"train_tokens": 20', '"train_tokens": 21'))
    assert [path for path, _ in problems(folder)] == ["meta.json"]
    damage_byte(folder / "train" / "shard_00000.bin")
    (folder / "train" / "shard_00001.bin").unlink()
    (folder / "extra.txt").touch()
    (of_meta, *found) = problems(folder)
    assert found == [("train/shard_00001.bin", MISSING), ("extra.txt", UNLISTED), ("train/shard_00000.bin", CHANGED)]
    assert of_meta[1] == Saying("content_sha256", "compared")
    folder = write_pretrain(tmp_path / "with a damaged entry")
    meta = folder / "meta.json"
    sha256 = read_meta(str(meta))["files"]["train/shard_00000.bin"]["sha256"]
    meta.write_text(meta.read_text().replace(sha256, sha256[:-1] + ("0" if sha256[-1] != "0" else "1")))
    assert problems(folder) == [("meta.json", Saying("none", "compared"))], "no file is blamed"


# Opening a cache hashes nothing by default. With verification, changed files are refused.


def random_windows(root: Path, **verify: Any) -> object:
    return PretrainTokenStreamDataset(str(root / "pretrain/notes/train"), T=3, device="cpu", **verify)


def in_order(root: Path, **verify: Any) -> object:
    return DatasetLoader(1, 3, 0, 1, str(root / "pretrain/notes/train"), "cpu", **verify)


def loader(root: Path, **verify: Any) -> object:
    return TokenLoader(str(root / "pretrain/notes/train"), T=3, B=1, seed=0, **verify)


def examples(root: Path, **verify: Any) -> object:
    folder = root / "sft/chats"
    return SFTExampleDataset(str(folder / "train_tokens.bin"), str(folder / "train_idx.npy"), T=8, device="cpu", eot_id=EOT, **verify)


def packed(root: Path, **verify: Any) -> object:
    return TokenLoader(str(root / "sft/chats/train"), T=8, B=1, seed=0, **verify)


OPENED: dict[Callable[..., object], list[str]] = {
    random_windows: ["pretrain/notes/train/shard_00001.bin"],
    in_order: ["pretrain/notes/train/shard_00001.bin"],
    loader: ["pretrain/notes/train/shard_00001.bin", "pretrain/notes/train_doc_ends.npy"],
    examples: ["sft/chats/train_tokens.bin"],
    packed: ["sft/chats/train_tokens.bin"],
}


def change(path: Path) -> None:
    """Another content that is as valid: only a hash can tell."""
    if path.suffix == ".npy":
        ends = np.load(path)
        ends[0] += 1
        np.save(path, ends)
        return
    tokens = np.fromfile(path, dtype=np.uint16)
    tokens[np.flatnonzero(tokens > 9)[0]] += 1
    tokens.tofile(path)


@pytest.mark.parametrize("open_it", OPENED)
def test_changed_content_is_refused_where_hashes_are_asked_for(tmp_path: Path, open_it: Callable[..., object]) -> None:
    root = write_cache(tmp_path / "cache")
    open_it(root, verify="sha256")
    for path in OPENED[open_it]:
        kept = (root / path).read_bytes()
        change(root / path)
        open_it(root)
        open_it(root, verify="size")
        with pytest.raises(NielsCacheError, match=f"{Path(path).name}: .*sha256"):
            open_it(root, verify="sha256")
        (root / path).write_bytes(kept)
    with pytest.raises(NielsCacheError, match=r"verify='md5': "):
        open_it(root, verify="md5")
    for family in ("pretrain/notes", "sft/chats"):
        (root / family / META_NAME).unlink()
    with pytest.raises(NielsCacheError, match=r"meta\.json: no such"):
        open_it(root, verify="sha256")


@pytest.mark.parametrize("open_it", OPENED)
def test_nothing_is_hashed_unless_asked_and_a_copy_is_not_hashed_again(
    tmp_path: Path, open_it: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_cache(tmp_path / "cache")
    opened = pickle.dumps(open_it(root, verify="sha256"))
    monkeypatch.setattr(opening, "hash_files", lambda files: pytest.fail("hashed"))
    open_it(root)
    pickle.loads(opened)
