"""Common documents of train and val: all exact copies by hashes, near copies by texts or by a sample, with their origin."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from niels_cache_assets.base.documents import Document
from niels_cache_assets.build_cache import build_pretrain_cache
from niels_cache_assets.facts import disjoint
from niels_cache_assets.facts.disjoint import SplitOverlap
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.overlaps import overlap_of
from tests.helpers.tiny import sentences


def build(folder: Path, documents: list[Document], tokenizer: object, **changes: object) -> Path:
    settings = {"max_train_tokens": 10**9, "max_val_tokens": 0, "shard_bytes": 1024, "seed": 1, "shuffle_buffer": None, **changes}
    build_pretrain_cache(documents, str(folder), tokenizer=tokenizer, **settings)  # type: ignore[arg-type]
    return folder


def documents_of(texts: list[str], split: str, file: str) -> list[Document]:
    return [Document(text, f"{file}-{row}", file, row, split=split) for row, text in enumerate(texts)]  # type: ignore[arg-type]


@pytest.fixture
def leaky(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> Path:
    """400 documents of train; of the 30 of val, every third is also in train, in capitals, and every third plus one with a new ending."""
    val, train = sentences(30, words=40), sentences(400, seed=1, words=40)
    train[100:110] = [text.upper() for text in val[::3]]
    train[300:310] = [f"{text}\n\nAnd so on, – 日本語 😀." for text in val[1::3]]
    return build(tmp_path / "leaky", documents_of(train, "train", "a.txt") + documents_of(val, "val", "b.txt"), tokenizer)


def counts(overlap: SplitOverlap) -> tuple[int, int]:
    return overlap.record["exact"], overlap.record["near"]


def origin(row: int, file: str) -> dict[str, Any]:
    return {"ordinal": row, "source_id": f"{file}-{row}", "file": file, "row": row}


def test_every_overlap_is_found_with_where_both_come_from(leaky: Path, tokenizer: SentencePieceTokenizer) -> None:
    overlap = overlap_of(leaky, tokenizer)
    assert (counts(overlap), overlap.is_disjoint, overlap.documents, overlap.record["compared"]) == ((10, 10), False, 400, 400)
    pairs = overlap.record["pairs"]
    assert [pair["kind"] for pair in pairs] == ["exact"] * 10 + ["near"] * 10
    assert [pair["train"] for pair in pairs] == [origin(row, "a.txt") for row in (*range(100, 110), *range(300, 310))]
    assert [pair["val"] for pair in pairs] == [origin(row, "b.txt") for row in (*range(0, 30, 3), *range(1, 30, 3))]
    assert {pair["similarity"] for pair in pairs[:10]} == {1.0}
    assert {pair["similarity"] for pair in pairs[10:]} == {round(36 / 43, 6)}  # seven more words, because each ideograph is one


def test_the_threshold_says_what_near_is_and_none_looks_for_equal_ones_only(leaky: Path, tokenizer: SentencePieceTokenizer) -> None:
    found = {threshold: counts(overlap_of(leaky, tokenizer, threshold=threshold)) for threshold in (0.83, 0.84, None)}
    assert found == {0.83: (10, 10), 0.84: (10, 0), None: (10, 0)}


def test_pairs_are_limited_and_counts_are_not_on_any_number_of_threads(
    leaky: Path, tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = overlap_of(leaky, tokenizer, threads=1)
    monkeypatch.setattr(disjoint, "MAX_PAIRS", 3)
    few = overlap_of(leaky, tokenizer, threads=5)
    assert few.record["pairs"] == everything.record["pairs"][:3]
    assert counts(few) == counts(everything)


def test_a_sample_gives_an_estimate_with_its_interval_and_equal_texts_are_all_found(
    leaky: Path, tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disjoint, "SAMPLE_TOKENS", 1)
    assert counts(overlap_of(leaky, tokenizer, everything=False)) == (10, 10), "few documents are all compared"
    monkeypatch.setattr(disjoint, "MIN_SAMPLED", 100)
    sampled = overlap_of(leaky, tokenizer, everything=False)
    assert sampled == overlap_of(leaky, tokenizer, everything=False, threads=3)
    exact, near = counts(sampled)
    assert 60 < sampled.record["compared"] < 140
    assert (exact, 0 < near < 10) == (10, True)
    assert sampled.near_estimate is not None
    estimate, low, high, compared = (int(number) for number in re.findall(r"(\d+)(?!\d*%)", sampled.near_estimate))
    assert low < 10 < high
    assert (near, compared, estimate) == (sampled.record["near"], sampled.record["compared"], round(400 * near / compared))
    assert sampled.near_estimate in (sampled.describe() or "")
    assert overlap_of(leaky, tokenizer).near_estimate is None


def test_texts_are_compared_if_the_lineage_has_no_hashes(leaky: Path, tokenizer: SentencePieceTokenizer) -> None:
    expected = overlap_of(leaky, tokenizer)
    path = leaky / "val_documents.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["text_hash"]), path)
    assert overlap_of(leaky, tokenizer) == expected


def test_each_document_is_compared_once_whatever_the_chunks(
    tmp_path: Path, tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both splits have six documents more than a chunk takes, with near copies on both sides of its end."""
    count = disjoint._DOCUMENTS_PER_CHUNK + 6
    val, train = (
        [f"{name} {number} is one of {number} words for {name} of {number}" for number in range(count)] for name in ("val", "train")
    )
    copies = {0: count - 1, count - 7: count - 6, count - 6: count - 7, count - 1: 0}
    for ordinal, of in copies.items():
        train[ordinal] = f"{val[of]} more"
    folder = build(tmp_path / "x", documents_of(train, "train", "a") + documents_of(val, "val", "b"), tokenizer)
    overlap = overlap_of(folder, tokenizer)
    assert (overlap.documents, *counts(overlap)) == (count, 0, 4)
    assert {pair["train"]["ordinal"]: pair["val"]["ordinal"] for pair in overlap.record["pairs"]} == copies
    for tokens in (1, 100):  # a document of more tokens is a chunk of its own
        monkeypatch.setattr(disjoint, "_TOKENS_PER_CHUNK", tokens)
        assert overlap_of(folder, tokenizer) == overlap


def test_nothing_is_left_to_find_after_decontamination(leaky: Path, tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    texts = sentences(30, words=40) + sentences(400, seed=1, words=40) + sentences(30, words=40)
    room = sum(len(tokenizer.encode(text)) + 1 for text in texts[:30])
    documents = [Document(text) for text in texts]
    off = build(tmp_path / "off", documents, tokenizer, max_val_tokens=room)
    near = build(tmp_path / "near", documents, tokenizer, max_val_tokens=room, decontaminate="near")
    assert counts(overlap_of(off, tokenizer)) == (30, 0)
    assert overlap_of(near, object()).record == {"exact": 0, "near": 0, "compared": 400, "threshold": 0.8, "pairs": []}


def test_a_cut_document_is_compared_where_the_build_did_not_look_for_that(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    """Val's first document is cut to a half that train has almost as it is; more of val comes after it, so it is not val's last."""
    long, other, late = sentences(3, seed=5, words=120)
    half = " ".join(long.split()[:60])
    room = len(tokenizer.encode(half)) + 1
    documents = [Document(long), Document(late, split="val"), Document(f"{half} and so on", split="train"), Document(other, split="train")]
    documents.append(Document(half, split="train"))  # equals the beginning, so whole texts differ
    overlaps = {
        mode: overlap_of(build(tmp_path / mode, documents, tokenizer, max_val_tokens=room, decontaminate=mode), tokenizer)
        for mode in ("off", "exact", "near")
    }
    assert {mode: counts(overlap) for mode, overlap in overlaps.items()} == {"off": (0, 2), "exact": (0, 1), "near": (0, 0)}
    assert overlaps["exact"].record["pairs"][0]["val"]["ordinal"] == 0
    assert counts(overlap_of(tmp_path / "near", tokenizer, threshold=0.5)) == (0, 1), "nearer than the build looked for"
    assert json.loads((tmp_path / "near" / "meta.json").read_text())["cut_document"] == {"val": 0, "train": None}


@pytest.mark.parametrize("threshold", [0.0, 1.0, -0.5])
def test_a_threshold_that_means_nothing_is_refused(leaky: Path, tokenizer: SentencePieceTokenizer, threshold: float) -> None:
    with pytest.raises(NielsCacheError, match="above 0 and below 1"):
        overlap_of(leaky, tokenizer, threshold=threshold)


def test_documents_without_eot_are_compared_whole(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    documents = [*documents_of(["one two three"], "val", "v"), *documents_of(["one two", "one two three", "a one two three"], "train", "t")]
    folder = build(tmp_path / "x", documents, tokenizer, append_eot=False)
    for split in ("val", "train"):
        path = folder / f"{split}_documents.parquet"
        pq.write_table(pq.read_table(path).drop_columns(["text_hash"]), path)
    assert [(pair["kind"], pair["train"]["ordinal"]) for pair in overlap_of(folder, tokenizer).record["pairs"]] == [("exact", 1)]


def test_a_cache_without_val_is_disjoint(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    overlap = overlap_of(build(tmp_path / "x", [Document("a b c")], tokenizer), tokenizer)
    assert (overlap.is_disjoint, overlap.record["compared"], overlap.describe()) == (True, 1, None)
