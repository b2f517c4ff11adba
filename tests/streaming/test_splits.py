"""The head of a part gives val its share, and not much more than the share is encoded."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest

from niels_cache_assets.base.documents import Document, DocumentBatch, DropReport, SourceReport
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.streaming.splits import UNLIMITED, BudgetSplitter, encoded_head
from niels_cache_assets.streaming.types import Chunks, EncodedDocuments
from niels_cache_runtime.format.meta import read_meta
from tests.helpers.parts_project import PartsProject, build

POSITION = Feed.of((), SourceReport()).position(0)
KINDS: dict[str, Callable[[int], str]] = {
    "five bytes for a token": lambda number: "abcd " * 20,
    "a byte for a token": lambda number: "." * 100,
    "five, then one": lambda number: "abcd " * 20 if number < 40 else "." * 100,
    "one, then five": lambda number: "." * 100 if number < 40 else "abcd " * 20,
    "long and short by turns": lambda number: "." * (2_000 if number % 7 == 3 else 3),
    "three bytes for a character and a token": lambda number: "\u4e2d" * 30,
    "no text": lambda number: "",
}


def tokens_of(text: str) -> int:
    """The tokens of a tokenizer that knows one word, and has a token for each other character. With EOT."""
    return text.count("abcd ") + len(text.replace("abcd ", "")) + 1


class Counting:
    """Encodes batches, and counts the tokens."""

    def __init__(self) -> None:
        self.tokens = self.longest = 0

    def __call__(self, documents: Iterable[DocumentBatch]) -> Generator[EncodedDocuments]:
        for batch in documents:
            lengths = np.array([tokens_of(text) for text in batch.text], np.int64)
            self.tokens += int(lengths.sum())
            self.longest = max(self.longest, int(lengths.max()))
            tokens, hashes = np.zeros(lengths.sum(), np.uint16), np.zeros(len(batch), np.int64)
            yield EncodedDocuments(batch, tokens, lengths, hashes, DropReport(), Chunks.of(batch, POSITION))


def test_chunks_are_yielded_with_their_positions() -> None:
    chunks = Chunks()
    for size in (1, 3, 2):
        chunks.add(DocumentBatch.of([Document(f"{size}")] * size))
        chunks.end_chunk(POSITION)
    assert [(len(batch), position) for batch, position in chunks] == [(1, POSITION), (3, POSITION), (2, POSITION)]
    assert chunks.size == 6


def stream(kind: str, *, at_a_time: int) -> Iterable[DocumentBatch]:
    documents = [Document(KINDS[kind](number), source_id=str(number)) for number in range(3_000)]
    return (DocumentBatch.of(documents[first : first + at_a_time]) for first in range(0, len(documents), at_a_time))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [1, 7, 100, 1_001, 2_999])
def test_at_most_twice_the_budget_is_encoded_and_one_document(kind: str, budget: int) -> None:
    found = set()
    for at_a_time in (1, 256, 3_000):
        counting, splitter = Counting(), BudgetSplitter(max_train_tokens=UNLIMITED, max_val_tokens=budget, eot=0)
        val = [splitter.assign(batch)["val"] for batch in encoded_head(stream(kind, at_a_time=at_a_time), counting, splitter)]
        assert sum(len(part.tokens) for part in val) == budget
        assert budget <= counting.tokens <= 2 * budget + counting.longest
        found.add(tuple(source_id for part in val for source_id in part.lineage["source_id"]))
    assert len(found) == 1


def test_a_stream_that_ends_early_is_taken_whole() -> None:
    counting, splitter = Counting(), BudgetSplitter(max_train_tokens=UNLIMITED, max_val_tokens=10**6, eot=0)
    taken = [len(splitter.assign(batch)["val"].lengths) for batch in encoded_head(stream("no text", at_a_time=256), counting, splitter)]
    assert sum(taken) == 3_000
    assert splitter.remaining["val"] == 10**6 - 3_000


def test_the_stack_stays_small_however_many_batches_are_cut() -> None:
    """A tokenizer that drops every document makes a round of each."""
    splitter = BudgetSplitter(max_train_tokens=UNLIMITED, max_val_tokens=1, eot=0)
    pair = DocumentBatch.of([Document("x" * 40)] * 2)
    nothing = replace(next(Counting()([pair])), tokens=np.zeros(0, np.uint16))
    rounds = encoded_head(repeat(pair, 10_000), lambda batches: (nothing for _ in batches), splitter)
    before = threading.stack_size(1 << 18)
    try:
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(lambda: sum(1 for _ in rounds)).result() == 20_000
    finally:
        threading.stack_size(before)


def test_documents_that_a_tokenizer_drops_after_the_end_of_val_belong_to_the_part(tmp_path: Path, tiny_model: Path) -> None:
    """Wherever the share ends, every document is taken or left, and every dropped one is counted once."""
    project = PartsProject(tmp_path, tiny_model)
    project.write([20] * 3)
    for path in (project.folder / "texts").iterdir():
        rows = path.read_text().splitlines()
        bad = json.dumps({"id": "bad", "text": "a \ud800 b"})
        path.write_text("".join(f"{bad}\n{row}\n" if number % 3 else f"{row}\n{bad}\n" for number, row in enumerate(rows)))
    for val_tokens in range(60, 120, 7):
        build(project.graph(3, f"val_tokens = {val_tokens}"))
        meta = read_meta(str(project.cache() / "meta.json"))
        assert meta["val_tokens"] == val_tokens
        assert meta["dropped"] == {"invalid_unicode": 60}
        assert sum(meta["documents"].values()) == 60
