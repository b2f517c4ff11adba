"""A pretrain cache against the tokenizer's own output: order, EOT, document ends, budgets, splits, lineage, what is dropped."""

from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

from niels_cache_assets.base.defaults import SPECIAL_TOKENS
from niels_cache_assets.base.documents import Document, SourceReport
from niels_cache_assets.build_cache import build_pretrain_cache
from niels_cache_assets.sources.val_share import FractionSplitter, val_mask
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_DTYPE, list_shards
from niels_cache_runtime.format.meta import Meta, read_meta
from niels_cache_runtime.verify import verify_dataset
from tests.helpers.tiny import sentences

PLENTY = 10**9


def build(folder: Path, texts: object, tokenizer: object, **changes: object) -> Meta:
    settings = {"max_train_tokens": PLENTY, "max_val_tokens": 0, "shard_bytes": 1024, "seed": 1, "shuffle_buffer": None, **changes}
    build_pretrain_cache(texts, str(folder), tokenizer=tokenizer, **settings)  # type: ignore[arg-type]
    assert verify_dataset(folder) == []
    return read_meta(str(folder / "meta.json"))


def stream(folder: Path, split: str = "train") -> np.ndarray:
    return np.concatenate([np.fromfile(path, TOKEN_DTYPE) for path in list_shards(folder / split)])


def documents_on_disk(folder: Path, split: str = "train") -> list[list[int]]:
    ends = np.load(folder / f"{split}_doc_ends.npy")
    return [ids.tolist() for ids in np.split(stream(folder, split), ends[:-1].astype(np.int64))]


def test_the_stream_is_each_text_encoded_and_followed_by_one_eot(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    texts = [*sentences(50), "tabs\tand\n\nnewlines  ", "日本語 😀", ""]
    meta = build(tmp_path / "x", texts, tokenizer)
    eot = tokenizer.special_token_ids()["eot"]
    assert documents_on_disk(tmp_path / "x") == [[*tokenizer.encode(text), eot] for text in texts]
    assert [tokenizer.decode(ids[:-1]) for ids in documents_on_disk(tmp_path / "x")] == texts
    assert meta["documents"] == {"train": len(texts), "val": 0}
    assert meta["train_tokens"] == len(stream(tmp_path / "x"))


def test_without_eot_the_stream_is_the_texts_alone(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    meta = build(tmp_path / "x", sentences(20), tokenizer, append_eot=False)
    assert stream(tmp_path / "x").tolist() == [token for text in sentences(20) for token in tokenizer.encode(text)]
    assert meta["append_eot"] is False


def test_without_eot_a_document_of_no_tokens_is_dropped_and_counted(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    meta = build(tmp_path / "x", ["a", "", "b"], tokenizer, append_eot=False)
    assert (meta["documents"]["train"], meta["dropped"]) == (2, {"empty": 1})


def test_val_fills_its_budget_first_and_each_split_holds_exactly_its_budget(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    texts = sentences(300)
    meta = build(tmp_path / "x", texts, tokenizer, max_val_tokens=101, max_train_tokens=1_003)
    eot = tokenizer.special_token_ids()["eot"]
    assert (meta["val_tokens"], meta["train_tokens"]) == (101, 1_003)
    assert meta["cut"] == {"val": 1, "train": 1}
    encoded = [[*tokenizer.encode(text), eot] for text in texts]
    val, train = documents_on_disk(tmp_path / "x", "val"), documents_on_disk(tmp_path / "x")
    assert val[:-1] == encoded[: len(val) - 1]
    assert val[-1] == [*encoded[len(val) - 1][: len(val[-1]) - 1], eot]
    assert train[:-1] == encoded[len(val) : len(val) + len(train) - 1]
    assert int((stream(tmp_path / "x") == eot).sum()) == len(train)


@pytest.mark.parametrize("budget", [1, 2, 3, 29, 30, 59])
def test_every_budget_is_met_to_the_token_and_counts_its_eots(tmp_path: Path, tokenizer: SentencePieceTokenizer, budget: int) -> None:
    meta = build(tmp_path / "x", sentences(8), tokenizer, max_val_tokens=budget, max_train_tokens=60)
    eots = int((stream(tmp_path / "x", "val") == tokenizer.special_token_ids()["eot"]).sum())
    assert meta["val_tokens"] == budget
    assert eots == meta["documents"]["val"]


def test_a_document_with_a_split_goes_there_and_uses_no_budget(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    documents = [Document(text, split="val" if index % 5 == 0 else "train") for index, text in enumerate(sentences(50))]
    meta = build(tmp_path / "x", documents, tokenizer, max_train_tokens=10, max_val_tokens=10)
    assert meta["documents"] == {"train": 40, "val": 10}
    assert meta["cut"] == {"train": 0, "val": 0}


def test_the_reading_stops_when_the_budgets_are_met(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    read = 0

    def endless() -> object:
        nonlocal read
        while True:
            read += 1
            yield sentences(1, seed=read % 7)[0]

    build(tmp_path / "x", endless(), tokenizer, max_train_tokens=500)
    assert read < 20_000


def test_val_frac_takes_the_first_of_a_seeded_permutation() -> None:
    order = torch.randperm(25, generator=torch.Generator().manual_seed(42)).tolist()
    assert np.flatnonzero(val_mask(25, val_frac=0.1, seed=42)).tolist() == sorted(order[:2])
    assert val_mask(2, val_frac=0.01, seed=1).sum() == 1
    assert val_mask(1, val_frac=0.5, seed=1).sum() == 0
    assert val_mask(9, val_frac=0, seed=1).sum() == 0


def batches_of(count: int) -> list[list[Document]]:
    """Documents in batches of three."""
    documents = [Document(text) for text in sentences(count)]
    return [documents[start : start + 3] for start in range(0, count, 3)]


def test_both_splits_keep_the_input_order() -> None:
    split = list(chain.from_iterable(FractionSplitter.of(40, val_frac=0.25, seed=3).batches(batches_of(40))))
    for name, count in (("val", 10), ("train", 30)):
        texts = [document.text for document in split if document.split == name]
        assert len(texts) == count
        assert texts == [text for text in sentences(40) if text in set(texts)]


def test_a_source_that_changed_since_it_was_counted_is_refused() -> None:
    for count in (3, 5):
        with pytest.raises(NielsCacheError, match="counted"):
            list(FractionSplitter.of(count, val_frac=0.25, seed=3).batches(batches_of(4)))


def test_lineage_says_where_each_document_came_from(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    documents = [Document(text, source_id=f"id{row}", file="a/b.jsonl", row=row) for row, text in enumerate(sentences(30))]
    build(tmp_path / "x", documents, tokenizer, shuffle_buffer=8)
    rows = pyarrow.parquet.read_table(tmp_path / "x" / "train_documents.parquet").to_pylist()
    assert [row["ordinal"] for row in rows] == list(range(30))
    assert [row["row"] for row in rows] != list(range(30))
    for row, ids in zip(rows, documents_on_disk(tmp_path / "x"), strict=True):
        assert row["source_id"] == f"id{row['row']}"
        assert row["tokens"] == len(ids)
        assert tokenizer.decode(ids[:-1]) == documents[row["row"]].text


def test_text_that_spells_a_special_token_is_dropped_and_counted(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    texts = [*sentences(5), f"look: {SPECIAL_TOKENS['eot']}", *sentences(5, seed=1)]
    report = SourceReport()
    report.dropped["null_text"] = 2
    meta = build(tmp_path / "x", texts, tokenizer, report=report)
    assert meta["dropped"] == {"special_token_collision": 1, "null_text": 2}
    assert meta["documents"]["train"] == 10
    with pytest.raises(NielsCacheError, match="special token"):
        build(tmp_path / "y", texts, tokenizer, on_collision="raise")


def test_text_that_no_utf8_file_can_hold_is_dropped_and_counted(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    meta = build(tmp_path / "x", ["good", "bad \ud800 half", "fine"], tokenizer)
    assert meta["dropped"] == {"invalid_unicode": 1}


def test_carriage_returns_become_newlines(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    build(tmp_path / "x", ["a\r\nb\rc\n"], tokenizer)
    assert tokenizer.decode(documents_on_disk(tmp_path / "x")[0][:-1]) == "a\nb\nc\n"


class LetterTokenizer:
    """Duck-typed, with nothing optional: one id per letter, vocab_size as a method, special ids under their strings."""

    def vocab_size(self) -> int:
        return 300

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def special_token_ids(self) -> dict[str, int]:
        return {SPECIAL_TOKENS["eot"]: 299}


def test_a_duck_typed_tokenizer_needs_encode_vocab_size_and_eot_alone(tmp_path: Path) -> None:
    meta = build(tmp_path / "x", ["ab", "c"], LetterTokenizer())
    assert stream(tmp_path / "x").tolist() == [97, 98, 299, 99, 299]
    assert meta["tokenizer_sha256"] is None
    assert meta["special_token_ids"] == {"sys": None, "usr": None, "asst": None, "eot": 299}


def test_an_id_outside_the_vocabulary_never_reaches_the_disk(tmp_path: Path) -> None:
    with pytest.raises(NielsCacheError, match="outside its vocab_size 300"):
        build(tmp_path / "x", ["ok", "日"], LetterTokenizer())
    assert not (tmp_path / "x").exists()
