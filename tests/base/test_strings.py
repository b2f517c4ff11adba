"""Columns in Arrow's form: they behave like lists of Python strings, and a build with them has the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from niels_cache_assets.base.documents import Document, DocumentBatch
from niels_cache_assets.base.random_numbers import TorchRandom
from niels_cache_assets.base.strings import Strings, as_objects, join_columns, repeat_string
from niels_cache_assets.build_cache import build_pretrain_cache
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.reading import columns
from niels_cache_assets.sources.types import StreamContext
from niels_cache_assets.streaming import shuffle_buffers
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.streaming.shuffle import shuffled
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from tests.build_cache.test_determinism import digests
from tests.helpers.tiny import sentences

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=9)
ODD = ["a\r\nb\rc\n", "\r", "naïve ▁ word", "日本語\r\n", "a\0b", " x", "é" * 50, "Ω", "\u2581"]


def column(texts: Sequence[str]) -> Strings:
    made = Strings.of(texts)
    assert made is not None
    return made


# ---- one column


@given(TEXTS, st.data())
def test_a_column_has_the_items_of_a_list(texts: list[str], data: st.DataObject) -> None:
    whole = column(texts)
    assert whole.tolist() == list(whole) == texts
    places = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=12)) if texts else []
    for strings, expected in ((whole, texts), (whole[np.array(places, np.int64)], [texts[place] for place in places])):
        start, stop, step = data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 3)))
        assert strings[start:stop:step].tolist() == expected[start:stop:step]
        mask = np.array([bool(number % 3) for number in range(len(expected))], dtype=bool)
        assert strings[mask].tolist() == [text for text, chosen in zip(expected, mask, strict=True) if chosen]
        assert [strings[number] for number in range(-len(expected), len(expected))] == [*expected, *expected]
        content, offsets = strings.buffers()
        assert content.tobytes() == "".join(expected).encode()
        assert np.diff(offsets).tolist() == [len(text.encode()) for text in expected]
        assert len(strings) == len(expected)


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_joined_columns_have_all_strings_in_order(parts: list[list[str]]) -> None:
    flat = [text for part in parts for text in part]
    whole = column(flat)
    ends = np.cumsum([len(part) for part in parts]).tolist()
    rows = [whole[np.arange(start, end)] for start, end in zip([0, *ends], ends, strict=False)]  # of one array
    for columns_ in (rows, [column(part) for part in parts], [rows[0], *map(column, parts[1:])]):
        assert join_columns(columns_).tolist() == flat
    mixed = join_columns([rows[0], *(as_objects(column(part)) for part in parts[1:])])
    assert mixed.tolist() == flat


def test_a_string_that_is_not_valid_unicode_makes_no_column() -> None:
    assert Strings.of(["a", "\ud800"]) is None
    assert repeat_string("\ud800", 2).tolist() == ["\ud800"] * 2
    assert repeat_string("a", 3).tolist() == ["a"] * 3


@given(TEXTS)
def test_line_ends_become_line_feeds(texts: list[str]) -> None:
    texts = [*texts, *(f"{text}\r\n\r{text}\n\r" for text in texts)]
    assert column(texts).with_line_feeds().tolist() == [text.replace("\r\n", "\n").replace("\r", "\n") for text in texts]


@pytest.mark.parametrize("plain", [0, 50])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("judged", [False, True])
def test_columns_of_parquet_are_checked_like_python_strings(plain: int, kind: pa.DataType, judged: bool) -> None:
    texts = [*ODD, *["plain" * 20] * plain, "", " ", "\n\t", "plain", "long" * 30, "\u00a0", "\x7f"]
    _, found, _ = columns.texts_of_column(pa.array(["x", *texts], kind)[1:], encoding="utf-8", limit=100, judged=judged)
    expected = columns.texts_of(texts, limit=100, judged=judged, damaged=())
    assert isinstance(found.text, Strings)
    assert found.text.tolist() == texts
    assert found.characters.tolist() == expected.characters.tolist()
    assert [*found.odd] == [*expected.odd]


# ---- batches of a source


def rows_of_batches(tmp_path: Path, **keys: Any) -> list[list[int]]:
    source = Parquet.model_validate({"source": "parquet", "files": [str(tmp_path / "a.parquet")], **keys})
    return [batch.row.tolist() for batch in source.documents(StreamContext(seed=1))]


@pytest.mark.parametrize("row_group", [100, 900, 5_000])
def test_small_row_groups_become_large_batches_of_whole_groups(tmp_path: Path, row_group: int) -> None:
    texts = [f"text {number}" if number != 1_000 else " " for number in range(5_000)]
    pq.write_table(pa.table({"text": texts, "score": [1] * 5_000}), tmp_path / "a.parquet", row_group_size=row_group)
    batches = rows_of_batches(tmp_path)
    assert [row for batch in batches for row in batch] == [row for row in range(5_000) if row != 1_000]
    sizes = [len(batch) for batch in batches]
    assert all(size % 256 == 0 for size in sizes[:-1])
    assert max(sizes) >= 1_024
    assert len(sizes) <= 8
    parts = rows_of_batches(tmp_path, where="score == 1")
    assert [row for batch in parts for row in batch] == [row for batch in batches for row in batch]
    assert {len(batch) for batch in parts[:-1]} == {256}  # what `where` leaves out is counted for each group


def test_groups_of_many_characters_stay_apart(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["x" * 3_000] * 1_500}), tmp_path / "a.parquet")
    batches = rows_of_batches(tmp_path)
    assert sum(map(len, batches)) == 1_500
    assert max(map(len, batches)) * 3_000 <= 2 << 20


# ---- the shuffle


def batches_of(documents: list[Document], *, of: int, objects: Sequence[int] = ()) -> list[DocumentBatch]:
    """Return the documents in batches of columns. The batches with a number in `objects` have Python strings."""
    made = []
    for number, start in enumerate(range(0, len(documents), of)):
        batch = DocumentBatch.of(documents[start : start + of])
        if number not in objects:
            batch = replace(batch, **{name: column(getattr(batch, name).tolist()) for name in ("text", "source_id", "file")})
        made.append(batch)
    return made


def some_documents(count: int) -> list[Document]:
    return [
        Document(f"{number} {ODD[number % 9]}" * (number % 5), f"id {number}", f"file {number // 70}", number) for number in range(count)
    ]


@pytest.mark.parametrize("buffer_size", [1, 7, 64, 300, 2_000])
@pytest.mark.parametrize("room", [0, 1 << 20])
def test_the_order_of_a_shuffle_does_not_depend_on_the_form_of_its_columns(
    buffer_size: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shuffle_buffers, "_ROOM_BYTES", room)
    monkeypatch.setattr(shuffle_buffers, "_ROOM_ROWS", room >> 10)
    documents = some_documents(1_000)
    expected = [each for batch in shuffled([DocumentBatch.of(documents)], buffer_size=buffer_size, seed=3) for each in batch]
    assert sorted(expected, key=lambda each: each.row) == documents
    assert buffer_size == 1 or expected != documents
    for of, objects in ((17, ()), (256, ()), (17, (0, 3)), (17, (40,))):
        given = batches_of(documents, of=of, objects=objects)
        found = list(shuffled(given, buffer_size=buffer_size, seed=3))  # batches are read after later ones took their place
        assert [each for batch in found for each in batch] == expected


def rows_in_torchs_order(count: int, buffer_size: int, seed: int) -> list[int]:
    """Return the row of each document of a shuffle, which exchanges one document after the other."""
    generator = torch.Generator().manual_seed(seed)
    buffer, order, draws = list(range(min(buffer_size, count))), [], list[int]()
    for row in range(buffer_size, count):
        if not draws:
            draws = torch.randint(buffer_size, (8_192,), generator=generator).tolist()
        slot = draws.pop()
        order.append(buffer[slot])
        buffer[slot] = row
    return [*order, *(buffer[slot] for slot in torch.randperm(len(buffer), generator=generator).tolist())]


@pytest.mark.parametrize(("count", "buffer_size"), [(12_000, 300), (700, 1), (700, 2_000), (700, 700)])
def test_the_order_of_a_shuffle_is_that_of_torchs_numbers(count: int, buffer_size: int) -> None:
    documents = [Document("text", str(number), "file", number) for number in range(count)]
    found = shuffled(batches_of(documents, of=256, objects=(30,)), buffer_size=buffer_size, seed=7)
    assert [row for batch in found for row in batch.row.tolist()] == rows_in_torchs_order(count, buffer_size, 7)


@pytest.mark.parametrize("most", [0, 3_000, 9_000])
def test_a_buffer_of_columns_becomes_one_of_python_strings(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle_buffers, "_MAX_BYTES", most)
    monkeypatch.setattr(shuffle_buffers, "_ROOM_BYTES", 0)
    documents = some_documents(600)
    documents[400] = documents[400]._replace(text="broken \ud800")
    expected = [each for batch in shuffled([DocumentBatch.of(documents)], buffer_size=90, seed=1) for each in batch]
    given = [*batches_of(documents[:391], of=17), DocumentBatch.of(documents[391:408]), *batches_of(documents[408:], of=17)]
    assert [each for batch in shuffled(given, buffer_size=90, seed=1) for each in batch] == expected


# ---- random numbers


@pytest.mark.parametrize("seed", [0, 1, 42, 2**32 - 1, 2**32 + 5, 2**63 - 1, 2**64 - 1, -1, -(2**63)])
def test_random_numbers_are_those_of_torch(seed: int) -> None:
    ours, theirs = TorchRandom(seed), torch.Generator().manual_seed(seed)
    for limit, count in ((10_000, 700), (3, 5), (1 << 40, 9), (1, 2), ((1 << 28) - 1, 4), (1 << 28, 3), (1 << 33, 3)):
        assert ours.below(limit, count).tolist() == torch.randint(limit, (count,), generator=theirs).tolist()
    for count in (0, 1, 2, 1_000):
        assert ours.permutation(count).tolist() == torch.randperm(count, generator=theirs).tolist()
    assert ours.below(77, 3).tolist() == torch.randint(77, (3,), generator=theirs).tolist()


def test_long_permutations_come_from_torch_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = []
    for most in (1_000, 10):
        monkeypatch.setattr("niels_cache_assets.base.random_numbers._MAX_OWN", most)
        monkeypatch.setattr("niels_cache_assets.base.random_numbers._SKIPPED_TOGETHER", 4)
        random = TorchRandom(5)
        random.below(10, 9)
        ours.append(random.permutation(50).tolist())
    assert ours[0] == ours[1]


# ---- whole builds


@pytest.mark.parametrize("ids", [{"id": "text"}, {"id": "number"}, {}])
@pytest.mark.parametrize("shuffle_buffer", [None, 50])
def test_a_build_from_columns_has_the_bytes_of_a_build_from_python_strings(
    ids: dict[str, str], shuffle_buffer: int | None, tokenizer: SentencePieceTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [
        each for pair in zip(sentences(700), [f"{odd} {number}" for number, odd in enumerate(ODD * 78)], strict=False) for each in pair
    ]
    texts[500] = ""
    numbers: list[Any] = [number if ids.get("id") == "number" else f"n{number}" for number in range(len(texts))]
    for name, start in (("a", 0), ("b", 600)):
        table = {"text": texts[start : start + 600], **({"id": numbers[start : start + 600]} if ids else {})}
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet", row_group_size=150)
    source = Parquet.model_validate({"source": "parquet", "files": [str(tmp_path / "*.parquet")]})

    def build(folder: str) -> dict[str, str]:
        build_pretrain_cache(
            Feed(source.documents, StreamContext(seed=1)),
            str(tmp_path / folder),
            tokenizer=tokenizer,
            max_train_tokens=20_000,
            max_val_tokens=1_000,
            shard_bytes=4_096,
            seed=1,
            shuffle_buffer=shuffle_buffer,
        )
        return digests(tmp_path / folder)

    (first, *_) = source.documents(StreamContext(seed=1))
    assert isinstance(first.text, Strings)
    found = build("columns")
    monkeypatch.setattr(columns, "_SHORT_BYTES", -1)
    (first, *_) = source.documents(StreamContext(seed=1))
    assert not isinstance(first.text, Strings)
    assert build("objects") == found
