"""The command `niels-cache diff`. Two builds are equal or not, and the command names the change, in any place of the files."""

import errno
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from niels_cache_assets.base.documents import Document
from niels_cache_assets.cli import main
from niels_cache_assets.disk.lineage_files import LineageWriter
from niels_cache_assets.facts.split_tokens import SplitTokens
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_inspection.differences import documents as documents_module
from niels_cache_inspection.differences import tokens as tokens_module
from niels_cache_inspection.differences.documents import compare_documents
from niels_cache_runtime.format.layout import META_NAME, SPLITS, Split
from niels_cache_runtime.format.meta import load_meta, write_meta
from tests.helpers.depth import cases
from tests.helpers.messages import missing
from tests.helpers.tiny import sentences
from tests.helpers.traced_root import build_chats, build_notes, build_root, rows_of

TEXTS = [" ".join(sentences(1 + number % 4, seed=number)) for number in range(120)]
ANSWERS = sentences(30, seed=1_000)
SHARD_BYTES = 1024


@pytest.fixture(scope="module")
def a(tmp_path_factory: pytest.TempPathFactory, tokenizer: SentencePieceTokenizer) -> Path:
    return build_root(tmp_path_factory.mktemp("diff") / "a", tokenizer, texts=TEXTS, answers=ANSWERS, shard_bytes=SHARD_BYTES)


@pytest.fixture
def b(tmp_path: Path, a: Path) -> Path:
    return Path(shutil.copytree(a, tmp_path / "b"))


def diff(capsys: pytest.CaptureFixture[str], *arguments: object, code: int) -> Any:
    """The JSON that it prints; what it prints for people must have a row for all that differs too."""
    assert main(["diff", *map(str, arguments), "--json"]) == code
    out, errors = capsys.readouterr()
    assert not errors
    found = json.loads(out)
    assert found["equal"] is (code == 0)
    return found


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 1) -> str:
    assert main(["diff", *map(str, arguments)]) == code
    out, errors = capsys.readouterr()
    assert not errors
    return out


def test_equal_builds_have_no_difference(a: Path, b: Path, tokenizer: SentencePieceTokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    found = diff(capsys, a, b, code=0)
    assert [each["name"] for each in found["datasets"]] == ["tokenizer", "pretrain/notes", "sft/chats"]
    assert found["datasets"][1]["tokens"]["train"]["a"] > 1000, "there is something to compare"
    assert missing(printed(capsys, a, b, code=0), "no difference: ", "tokenizer, pretrain/notes, sft/chats") == []
    shutil.rmtree(b / "pretrain/notes")
    build_notes(b, tokenizer, rows_of(TEXTS))
    diff(capsys, a, b, code=0)


def test_shards_of_another_size_hold_the_same_tokens(
    a: Path, b: Path, tokenizer: SentencePieceTokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    build_notes(b, tokenizer, rows_of(TEXTS), shard_bytes=512)
    notes = diff(capsys, a / "pretrain/notes", b / "pretrain/notes", code=1)["datasets"][0]
    assert [(each["key"], each["a"], each["b"]) for each in notes["settings"]] == [("shard_bytes", SHARD_BYTES, 512)]
    assert notes["counts"] == []
    assert notes["tokens"]["train"]["first_difference"] is None
    assert missing(printed(capsys, a, b), "shard", "bytes", "512") == []


def test_a_changed_word_is_named_with_its_document_and_the_text_around_it(
    a: Path, b: Path, tokenizer: SentencePieceTokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = 77
    texts = [text if row != changed else text.replace(".", " token.", 1) for row, text in enumerate(TEXTS)]
    build_notes(b, tokenizer, rows_of(texts))
    notes = diff(capsys, a / "pretrain/notes", b / "pretrain/notes", code=1)["datasets"][0]
    first = notes["tokens"]["train"]["first_difference"]
    before = TEXTS[changed].partition(".")[0]
    for side in "ab":
        place = first[side]
        assert (place["document"], place["lineage"]["row"], place["lineage"]["file"]) == (changed, changed, f"part{changed % 3}.jsonl")
        assert place["document_offset"] >= len(tokenizer.encode(before)) - 1
        position = (int(place["file"][-9:-4]) * SHARD_BYTES) // 2 + place["offset"]
        assert position == first["position"], "of file and offset"
    assert first["a"]["before"] == first["b"]["before"]
    assert first["a"]["token"] != first["b"]["token"]
    assert notes["documents"]["only"] == {"a": 0, "b": 0}
    assert notes["documents"]["resized"] == 1
    assert [each["row"] for each in notes["documents"]["first"]["resized"]] == [changed]
    lines = printed(capsys, a, b).splitlines()
    at = next(number for number, line in enumerate(lines) if "first token of train that differs" in line)
    assert f"part{changed % 3}.jsonl row {changed}" in lines[at + 1]
    assert "[[" in lines[at + 2]
    assert "token" in lines[at + 4].partition("[[")[2]


def test_documents_in_and_out_are_counted_and_named_and_a_full_disk_says_what_to_do(
    a: Path, b: Path, tokenizer: SentencePieceTokenizer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    new = [Document("a new stream of tokens", source_id="new", file="new.jsonl", row=0)]
    build_notes(b, tokenizer, [*rows_of(TEXTS)[5:], *new])
    found = diff(capsys, a, b, "-n", 3, code=1)["datasets"][1]["documents"]
    assert found["only"] == {"a": 5, "b": 1}
    assert [each["row"] for each in found["first"]["a"]] == [0, 1, 2]
    assert [each["source_id"] for each in found["first"]["b"]] == ["new"]
    assert missing(printed(capsys, a, b, "-n", 3), "5 documents only in A:", "... and 2 more", "new.jsonl row 0, id new") == []
    build_notes(b, tokenizer, rows_of(TEXTS)[:-1])
    first = diff(capsys, a, b, code=1)["datasets"][1]["tokens"]["train"]["first_difference"]
    assert first["b"] is None
    assert (first["a"]["document"], first["a"]["document_offset"]) == (len(TEXTS) - 1, 0)
    assert "B: ends before" in printed(capsys, a, b)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(documents_module, "_write", full)
    assert main(["diff", str(a), str(b)]) == 1
    assert missing(capsys.readouterr().err, "No space left", "TMPDIR") == []


@pytest.mark.parametrize(
    ("name", "compares_documents"), [("train_doc_ends.npy", True), ("train_documents.parquet", False), ("train/shard_00000.bin", True)]
)
def test_damage_is_named_beside_the_settings_and_the_other_data_sets(
    name: str, compares_documents: bool, a: Path, b: Path, tokenizer: SentencePieceTokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    build_notes(b, tokenizer, rows_of(TEXTS)[1:])
    (b / "pretrain/notes" / name).write_bytes(b"damaged")
    found = diff(capsys, a, b, code=1)["datasets"]
    assert name in found[1]["damage"]
    assert found[1]["counts"], "meta.json is compared in any case"
    assert found[0]["damage"] is None
    assert [*found[1]["tokens"]] == ["val"], "the other split is compared"
    assert (found[1]["documents"] is not None) == compares_documents
    assert name in (text := printed(capsys, a, b))
    assert "lineage" not in text


def test_examples_of_sft_are_compared_and_another_seed_moves_them(
    a: Path, b: Path, tokenizer: SentencePieceTokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    build_chats(b, tokenizer, ANSWERS, seed=2)
    chats = diff(capsys, a / "sft/chats", b / "sft/chats", code=1)["datasets"][0]
    assert [(each["key"], each["a"], each["b"]) for each in chats["settings"]] == [("seed", 1, 2)]
    assert chats["documents"]["only"] == {"a": 0, "b": 0}
    assert chats["documents"]["moved"] > 0
    first = chats["tokens"]["val"]["first_difference"]
    assert first["a"]["lineage"]["source_id"].startswith("chat-")
    assert first["a"]["lineage"] != first["b"]["lineage"]


def test_another_fingerprint_and_a_data_set_that_one_root_lacks_differ(a: Path, b: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = b / "pretrain/notes" / META_NAME
    write_meta(str(path), {**json.loads(path.read_text()), "fingerprint": "0" * 64})
    assert diff(capsys, a, b, code=1)["datasets"][1]["has_unrecorded_setting"]
    assert missing(printed(capsys, a, b), "fingerprint", "every setting") == []
    shutil.rmtree(b / "sft/chats")
    found = diff(capsys, a, b, code=1)
    assert (found["only_a"], found["only_b"]) == (["sft/chats"], [])
    assert "sft/chats: only in A" in printed(capsys, a, b)


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        ("a", "a/pretrain/notes", ["/a ", "cache root", "/a/pretrain/notes ", "pretrain data set"]),
        ("a/pretrain/notes/train", "a", ["split train", "data set notes", "give", "a/pretrain/notes"]),
        ("a/pretrain", "a", ["/a/pretrain", "cache root: "]),
        ("a", "nowhere", ["/nowhere: ", "no such folder"]),
    ],
)
def test_wrong_use_is_one_line(left: str, right: str, said: list[str], a: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(a.parent / left), str(a.parent / right)]) == 2
    out, errors = capsys.readouterr()
    assert not out
    assert errors.count("\n") == 1
    assert missing(errors, *said) == []


Row = tuple[str, str, int, int]
LINEAGE = {"source_id": "string", "file": "string", "row": "int64", "tokens": "int64"}


def origin_of(listed: dict[str, Any]) -> tuple[Any, ...]:
    return listed["source_id"], listed["file"], listed["row"]


def write_lineage(folder: Path, splits: dict[Split, list[Row]]) -> dict[Split, Path]:
    paths = {}
    for split, rows in splits.items():
        paths[split] = folder / f"{split}.parquet"
        writer = LineageWriter(folder, f"{split}.parquet", LINEAGE, {})
        writer.write({name: [row[number] for row in rows] for number, name in enumerate(LINEAGE)})
        writer.seal()
    return paths


ROWS = st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from(["f", "g"]), st.integers(0, 3), st.integers(1, 2)), max_size=12)


@cases(8)
@given(sides=st.lists(st.fixed_dictionaries({"train": ROWS, "val": ROWS}), min_size=2, max_size=2), at_once=st.integers(1, 5))
def test_counts_are_those_of_multisets_whatever_the_batches_and_parts(
    sides: list[dict[Split, list[Row]]], at_once: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(documents_module, "_ROWS_AT_ONCE", at_once)
        patched.setattr(documents_module, "_ROWS_OF_A_PART", 3)
        folders = [tmp_path_factory.mktemp("side") for _ in sides]
        found = compare_documents(*(write_lineage(folder, side) for folder, side in zip(folders, sides, strict=True)), shown=100)
    here = {split: [Counter(row[:3] for row in side[split]) for side in sides] for split in SPLITS}
    whole = [here["train"][side] + here["val"][side] for side in (0, 1)]
    assert (found.counts["a"], found.counts["b"]) == ((whole[0] - whole[1]).total(), (whole[1] - whole[0]).total())
    same_split = sum((here[split][0] & here[split][1]).total() for split in SPLITS)
    assert found.counts["moved"] == (whole[0] & whole[1]).total() - same_split
    tokens = [sum((Counter({row[:3]: row[3]}) for split in SPLITS for row in side[split]), Counter()) for side in sides]
    assert found.counts["resized"] == sum(tokens[0][row] != tokens[1][row] for row in whole[0] if whole[0][row] == whole[1][row])
    alone = [{split: here[split][side] - here[split][1 - side] for split in SPLITS} for side in (0, 1)]
    for what, side in (("a", 0), ("b", 1), ("moved", 0)):
        for split in SPLITS:
            listed = Counter(origin_of(each) for each in found.first[what] if each["split"] == split)
            assert listed <= alone[side][split], what
    for what, side in (("a", 0), ("b", 1)):
        assert Counter(map(origin_of, found.first[what])) == whole[side] - whole[1 - side]
    assert len(found.first["moved"]) == found.counts["moved"]


def test_a_difference_is_found_in_any_block_and_across_shards(
    a: Path, b: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tokens_module, "_BLOCK_TOKENS", 100)
    folder = b / "pretrain/notes"
    stream = SplitTokens(folder, "pretrain", "train", load_meta(folder / "meta.json"))
    whole = stream.read(0, len(stream)).copy()
    shard = SHARD_BYTES // 2
    assert len(whole) > 3 * shard
    assert (stream.read(shard - 5, 10) == whole[shard - 5 : shard + 5]).all(), "a read may cross shards"
    for position in (0, 99, 100, shard - 1, shard, 2 * shard + 7, len(whole) - 1):
        number, offset = divmod(position, shard)
        path = folder / f"train/shard_{number:05d}.bin"
        intact = path.read_bytes()
        damaged = bytearray(intact)
        damaged[2 * offset] ^= 1
        path.write_bytes(damaged)
        first = diff(capsys, a / "pretrain/notes", folder, code=1)["datasets"][0]["tokens"]["train"]["first_difference"]
        assert first["position"] == position
        assert (first["b"]["file"], first["b"]["offset"]) == (f"train/shard_{number:05d}.bin", offset)
        path.write_bytes(intact)
