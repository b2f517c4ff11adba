"""`python -m niels_cache_runtime.verify`: a clean cache is clean, and each kind of damage is one finding in the right file."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from niels_cache_runtime import NielsCacheError, invariants, verify
from niels_cache_runtime.formats import IDX_DTYPE
from niels_cache_runtime.verify import main, verify_cache, verify_dataset
from tests.hand_made import (
    ASST,
    EOT,
    IDS,
    SYS,
    USR,
    rewrite_meta,
    write_cache,
    write_meta_of,
    write_pair,
    write_pretrain,
    write_sft,
    write_tokens,
)


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
    with pytest.raises(NielsCacheError, match="holds no sft/notes; it has tokenizer, pretrain/notes"):
        verify_cache(root, names=["sft/notes"])


def damage_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("path", "damage", "expected"),
    [
        ("pretrain/notes/train/shard_00001.bin", damage_byte, "its sha256 is not the one in meta.json"),
        ("pretrain/notes/train/shard_00001.bin", Path.unlink, "missing, though meta.json lists it"),
        ("pretrain/notes/train/shard_00002.bin", lambda path: path.write_bytes(b"123"), "3 bytes is no whole number of uint16 tokens"),
        ("pretrain/notes/train/extra.bin", Path.touch, "not listed in meta.json"),
        ("pretrain/notes/val_doc_ends.npy", damage_byte, "its sha256 is not the one in meta.json"),
        ("pretrain/notes/val_doc_ends.npy", lambda path: path.write_bytes(b""), "has 0 bytes, meta.json says 136"),
        ("pretrain/notes/meta.json", lambda path: path.write_bytes(path.read_bytes()[:80]), "not valid JSON"),
        ("pretrain/notes/meta.json", Path.unlink, "no such file"),
        ("sft/chats/meta.json", lambda path: path.write_text("[1]"), "not a niels-cache meta.json"),
        ("sft/chats/train_tokens.bin", damage_byte, "its sha256 is not the one in meta.json"),
        ("sft/chats/train_idx.npy", lambda path: path.write_text("hello"), "not a readable .npy file"),
        ("sft/chats/val_tokens.bin", Path.unlink, "missing, though meta.json lists it"),
        ("tokenizer/spm.model", lambda path: path.write_text("another"), "its sha256 is not the one in meta.json"),
        ("tokenizer/spm.model", Path.unlink, "missing, though meta.json lists it"),
    ],
)
def test_damage_on_disk_is_a_finding_in_that_file(tmp_path: Path, path: str, damage: Callable[[Path], object], expected: str) -> None:
    root = write_cache(tmp_path / "cache")
    damage(root / path)
    findings = verify_cache(root)
    hits = [finding for finding in findings if finding.path and Path(finding.folder) / finding.path == root / path]
    assert any(expected in finding.problem for finding in hits), findings
    assert all("\n" not in str(finding) for finding in findings)


@pytest.mark.parametrize("name", ["pretrain/notes", "sft/chats", "tokenizer"])
def test_any_cut_file_is_a_finding_and_never_an_exception(tmp_path: Path, name: str) -> None:
    folder = write_cache(tmp_path / "cache") / name
    paths = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
    assert len(paths) >= 2
    for path in paths:
        whole = path.read_bytes()
        for kept in {0, 1, len(whole) // 2, len(whole) - 2}:
            path.write_bytes(whole[:kept])
            assert verify_dataset(folder), (path, kept)
        path.write_bytes(whole)
    assert verify_dataset(folder) == []


def test_pretrain_invariants_are_checked_even_where_all_hashes_agree(tmp_path: Path) -> None:
    def found(spoil: Callable[[Path], object], **fields: object) -> list[tuple[str, str]]:
        folder = write_pretrain(tmp_path / f"data{len(list(tmp_path.iterdir()))}")
        kept = {key: value for key, value in verify.read_meta(str(folder / "meta.json")).items() if key not in ("files", "content_sha256")}
        spoil(folder)
        write_meta_of(folder, **{**kept, **fields})
        return problems(folder)

    def nothing(_: Path) -> None: ...

    assert found(nothing) == []
    assert found(nothing, vocab_size=33) == [
        ("val/shard_00000.bin", "holds id 41, the vocabulary has 33"),
    ]
    assert found(nothing, train_tokens=21) == [("meta.json", "train_tokens is 21, the files hold 20")]
    assert found(nothing, documents={"train": 5, "val": 1}) == [
        ("train_doc_ends.npy", "lists 4 documents, meta.json says 5"),
        ("train/", "holds 4 EOT tokens for 5 documents"),
    ]
    assert found(nothing, shard_bytes=14) == [
        ("train/shard_00000.bin", "has 16 bytes; all shards but the last have shard_bytes=14"),
        ("train/shard_00001.bin", "has 16 bytes; all shards but the last have shard_bytes=14"),
    ]
    assert found(nothing, kind="other") == [("meta.json", "kind is 'other', expected pretrain, sft or tokenizer")]
    assert found(nothing, vocab_size="many") == [("meta.json", "vocab_size is 'many', expected a whole number")]
    assert found(nothing, content_sha256="0") == [("meta.json", "content_sha256 does not follow from `files`")]
    assert found(nothing, documents=7)[0][1].startswith("cannot be checked: AttributeError")

    def save_ends(*ends: int) -> Callable[[Path], None]:
        return lambda folder: np.save(folder / "train_doc_ends.npy", np.array(ends, dtype=np.uint64))

    assert found(save_ends(5, 8, 16, 20)) == [("train_doc_ends.npy", "1 documents do not end with EOT")]
    assert found(save_ends(5, 7, 16, 19))[0][1].startswith("the last document ends at 19, the split has 20 tokens")
    assert found(save_ends(5, 16, 7, 20))[0][1].startswith("not strictly increasing: entry 2 is 7 after 16")
    assert found(save_ends(0, 7, 16, 20))[0][1].startswith("the first document is empty")
    assert found(lambda folder: np.save(folder / "train_doc_ends.npy", np.array([20])))[0][1].startswith("holds int64")
    assert found(lambda folder: write_tokens(folder / "train" / "shard_00000.bin", [10, 11, EOT, 13, EOT, 14, EOT, 20])) == [
        ("train/", "holds 5 EOT tokens for 4 documents")
    ]
    assert found(lambda folder: write_tokens(folder / "train" / "shard_00001.bin", [20, ASST, USR, 20, ASST, 20, 20, EOT])) == [
        ("train/shard_00001.bin", "holds 3 role sentinels, which belong into SFT data only")
    ]
    assert found(nothing, special_token_ids={"eot": EOT, "sys": None}) == []
    without_eot = {"append_eot": False}
    assert found(save_ends(5, 8, 16, 20), **without_eot) == []


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
    no_role = "1 examples do not begin with a role sentinel"
    inside = "1 role sentinels stand inside a message, neither first in an example nor after EOT"
    after_eot = "1 EOT tokens are followed by neither a role sentinel nor the end of the example"
    unanswered = "1 examples have no assistant message"
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
                monkeypatch.setattr(invariants, "BLOCK_BYTES", size)
                assert found(examples) == [("train_tokens.bin", problem) for problem in expected]
    assert found([good[0][:-1], good[1][:-1]]) == [("train_tokens.bin", "2 examples do not end with EOT")]
    assert found(good, vocab_size=12) == [("train_tokens.bin", "holds id 13, the vocabulary has 12")]
    assert found(good, train_examples=3) == [("meta.json", "train_examples is 3, the files hold 2")]
    assert found(good, val_tokens=3) == [("meta.json", "val_tokens is 3, the files hold 0")]
    assert found(good, special_token_ids={"eot": EOT})[0] == ("meta.json", "sys is None, expected a whole number")

    folder = write_sft(tmp_path / "moved")  # the second example's offset now points into its first message, or to its second
    np.save(folder / "train_idx.npy", np.array([0, 8], dtype=IDX_DTYPE))
    write_meta_of(folder, kind="sft", train_examples=2, val_examples=0)
    assert ("train_tokens.bin", no_role) in problems(folder)
    assert ("train_tokens.bin", "1 examples do not end with EOT") in problems(folder)
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
        ({"token_dtype": "uint32-le"}, "token_dtype is 'uint32-le', expected 'uint16-le'"),
        ({"token_dtype": None}, "token_dtype is None, expected 'uint16-le'"),
        ({"special_token_ids": {**IDS, "sys": 50}}, "the sys id is 50, the vocabulary has 50"),
        ({"special_token_ids": {**IDS, "sys": -1}}, "the sys id is -1, the vocabulary has 50"),
        ({"special_token_ids": {**IDS, "sys": USR}}, "special tokens share an id: asst 3, eot 4, sys 2, usr 2"),
    ]:
        rewrite_meta(folder, **{"token_dtype": "uint16-le", "special_token_ids": IDS, **fields})
        assert ("meta.json", expected) in problems(folder)
    if write is write_pretrain:
        for value in (None, 1, "true"):
            folder = write(tmp_path / str(value), append_eot=value)
            assert problems(folder) == [("meta.json", f"append_eot is {value!r}, expected true or false")]


def test_files_of_a_data_set_that_was_never_built_are_findings(tmp_path: Path) -> None:
    root = write_cache(tmp_path / "cache")
    write_tokens(root / "pretrain" / "off" / "train" / "shard_00000.bin", [1])
    rewrite_meta(root / "sft" / "chats", built=False)
    found = [(finding.path, finding.problem) for finding in verify_cache(root)]
    assert {problem for _, problem in found} == {'lies here though meta.json says "built": false'}
    names = ["train/shard_00000.bin", "train_idx.npy", "train_tokens.bin", "val_idx.npy", "val_tokens.bin"]
    assert [path for path, _ in found] == names


def test_a_cache_root_without_its_tokenizer_and_a_data_set_in_the_wrong_folder_are_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_cache(tmp_path / "cache")
    (root / "sft" / "chats").rename(root / "pretrain" / "chats")
    (finding,) = verify_cache(root)
    assert str(finding) == f"{root / 'pretrain' / 'chats' / 'meta.json'}: kind is 'sft', it lies in pretrain/"
    (root / "pretrain" / "chats").rename(root / "sft" / "chats")
    (root / "tokenizer").rename(tmp_path / "elsewhere")
    (finding,) = verify_cache(root, names=["chats"])
    assert str(finding).startswith(f"{root / 'tokenizer' / 'meta.json'}: missing, though the meta.json of chats records a tokenizer")
    assert main([str(root)]) == 1
    assert capsys.readouterr().out.count("\n") == 1
    for folder in (root / "pretrain" / "notes", root / "sft" / "chats"):
        assert verify_dataset(folder) == []
        assert verify_cache(folder) == []


def test_blocks_that_end_inside_documents_and_examples_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_cache(tmp_path / "cache")
    damaged = write_cache(tmp_path / "damaged")
    damage_byte(damaged / "sft" / "chats" / "train_tokens.bin")
    whole = [finding.problem for finding in verify_cache(damaged)]
    assert "1 examples do not end with EOT" in whole
    for size in (2, 4, 6):
        monkeypatch.setattr(invariants, "BLOCK_BYTES", size)
        assert verify_cache(root) == []
        assert [finding.problem for finding in verify_cache(damaged)] == whole


def test_a_data_set_of_another_tokenizer_is_a_finding(tmp_path: Path) -> None:
    root = write_cache(tmp_path / "cache")
    rewrite_meta(root / "sft" / "chats", tokenizer_sha256="f" * 64)
    assert ["built with tokenizer ffffffffffff" in finding.problem for finding in verify_cache(root)] == [True]
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
    assert out.count("\n") == 1
    assert err == ""  # not a terminal: no progress bar

    damage_byte(root / "pretrain" / "notes" / "val" / "shard_00000.bin")
    assert main([str(root), "notes"]) == 1
    out, err = capsys.readouterr()
    assert "val/shard_00000.bin: its sha256 is not the one in meta.json" in out
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


def test_the_module_runs_by_its_name_without_warnings(tmp_path: Path) -> None:
    root = write_cache(tmp_path / "cache")
    command = [sys.executable, "-W", "error", "-m", "niels_cache_runtime.verify", str(root)]
    done = subprocess.run(command, cwd=Path(verify.__file__).parent.parent, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_on_a_terminal_the_progress_bar_uses_plain_characters_and_leaves_an_empty_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    bar = verify._ProgressBar()
    bar(5_000_000, 10_000_000)
    bar(10_000_000, 10_000_000)
    bar.clear()
    written = terminal.getvalue()
    assert "50%  5/10 MB" in written
    assert "\x1b" not in written
    assert written.endswith("\r")
