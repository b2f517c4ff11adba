"""Parquet is decoded by bytes, and in the same rows however they are encoded; columns of one name are refused by every reader."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from niels_cache_assets.base import parallel as in_flight
from niels_cache_assets.base.parallel import results_in_order
from niels_cache_assets.sources.chat_jsonl import ChatJsonl
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.reading import parquet_files
from niels_cache_assets.sources.reading.parquet_files import ParquetTable, join_batches, prefetch_batches
from niels_cache_assets.sources.types import Source
from niels_cache_corpora.dolly15k import Dolly15k
from niels_cache_corpora.gutenberg import Gutenberg
from niels_cache_corpora.oasst1 import Oasst1
from niels_cache_corpora.roam import Roam
from niels_cache_corpora.wikitext import Wikitext
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers import programs
from tests.helpers.read_sources import read

MEGABYTE = 1_000_000
MEMORY = """
import json, sys
from pathlib import Path
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.reading import parquet_files
from niels_cache_assets.sources.types import StreamContext

def mebibytes(key):
    return int(Path("/proc/self/status").read_text().partition(f"{key}:")[2].split()[0]) >> 10

def read(file):
    files = [str(Path(sys.argv[1]) / file)]
    for source in (Parquet(files=files), Huggingface(dataset="a/b", files=files, shuffle_buffer=0)):
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM is the peak from here on
        yield sum(map(len, source.documents(StreamContext(seed=1)))), mebibytes("VmHWM")

for name in ("BATCH_BYTES", "_AVERAGE_BYTES", "_WORST_BYTES"):
    setattr(parquet_files, name, getattr(parquet_files, name) // 16)
[*read("little.parquet")]  # which imports all that the others need
before = mebibytes("VmRSS")
print(json.dumps([(rows, peak - before) for file in ("dictionary.parquet", "plain.parquet") for rows, peak in read(file)]))
"""
READERS: dict[str, tuple[Callable[[list[str]], Source], str]] = {
    "parquet": (lambda files: Parquet(files=files), "text"),
    "messages": (lambda files: ChatJsonl(files=files), "messages"),
    "wikitext": (lambda files: Wikitext(files=files), "text"),
    "gutenberg": (lambda files: Gutenberg(files=files), "text"),
    "dolly15k": (lambda files: Dolly15k(files=files), "response"),
    "oasst1": (lambda files: Oasst1(files=files), "text"),
    "hub": (lambda files: Huggingface(dataset="a/b", files=files, shuffle_buffer=0), "text"),
    "hub, shuffled": (lambda files: Huggingface(dataset="a/b", files=files), "text"),
}


def write_long_rows(path: Path, *, rows: int, size: int, dictionary: bool = True) -> None:
    """One text in all rows, in a file of a few kilobytes; or, without a dictionary, one that begins later in each row."""
    text = "word " * (size // 5)
    if dictionary:
        column = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))
        pq.write_table(pa.table({"text": column}), path, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=False)
        assert path.stat().st_size < 100_000
    else:
        data, offsets = pa.py_buffer(text.encode()), pa.array([0, size - rows], pa.int32()).buffers()[1]
        pieces = [pa.StringArray.from_buffers(1, offsets, data.slice(row)) for row in range(rows)]  # which share their memory
        table = pa.table({"text": pa.chunked_array(pieces)})
        pq.write_table(table, path, compression="zstd", use_dictionary=False, row_group_size=rows)
    assert pq.read_metadata(path).num_row_groups == 1


def test_of_many_long_rows_few_are_in_memory(tmp_path: Path) -> None:
    """A sixteenth of the usual size, as are the bounds: rows of half a megabyte, and few megabytes of them decoded at once."""
    pq.write_table(pa.table({"text": ["a few words"] * 9}), tmp_path / "little.parquet")
    write_long_rows(tmp_path / "dictionary.parquet", rows=200, size=MEGABYTE // 2)
    write_long_rows(tmp_path / "plain.parquet", rows=200, size=MEGABYTE // 2, dictionary=False)
    read = json.loads(programs.run("-c", MEMORY, tmp_path, check=True).stdout)
    assert [count for count, _ in read] == [200] * 4
    assert max(mebibytes for _, mebibytes in read) < 130, "about 35, and 83 once; 220 and more where batches are of rows"


def decoded(path: Path, **settings: Any) -> list[tuple[int, int]]:
    """(rows, bytes) of every batch of a file's texts, which are checked to be all of them, in order."""
    batches = list(ParquetTable(str(path), path.name).batches(["text"], most_rows=1024, **settings))
    assert [row for first, batch in batches for row in range(first, first + len(batch))] == list(range(pq.read_metadata(path).num_rows))
    assert [text for _, batch in batches for text in batch["text"].to_pylist()] == pq.read_table(path)["text"].to_pylist()
    return [(len(batch), batch.nbytes) for _, batch in batches]


TABLES: dict[str, tuple[list[str | None], dict[str, Any]]] = {
    "a long one many times among short ones": (["short"] * 3000 + ["long " * 5_000] * 300 + ["short"] * 3000, {}),
    "no text, then a long one many times": ([None] * 5 + ["long " * 5_000] * 300, {}),
    "long texts, no dictionary": ([f"{row} " + "long " * 5_000 for row in range(300)], {"use_dictionary": False}),
    "each text repeats the one before": (
        ["long " * 5_000 + str(row) for row in range(300)],
        {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
    ),
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_batch_holds_no_more_than_its_bytes_or_one_row(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, settings = TABLES[kind]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", compression="zstd", **settings)
    ((rows, whole),) = {(sum(rows for rows, _ in sizes), sum(size for _, size in sizes)) for sizes in [decoded(tmp_path / "a.parquet")]}
    limit = 250_000
    assert (rows, whole > 20 * limit) == (len(texts), True)
    monkeypatch.setattr(parquet_files, "BATCH_BYTES", limit)
    monkeypatch.setattr(parquet_files, "_WORST_BYTES", limit)
    monkeypatch.setattr(parquet_files, "_AVERAGE_BYTES", limit // 64)
    assert max(size for _, size in decoded(tmp_path / "a.parquet")) < 1.1 * limit


def test_short_rows_are_decoded_by_the_thousand(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [f"text {row}" for row in range(20_000)]}), tmp_path / "a.parquet", row_group_size=10_000)
    sizes = decoded(tmp_path / "a.parquet")
    assert [rows for rows, _ in sizes[:10]] == [2**power for power in range(10)], "carefully at first"
    assert [rows for rows, _ in sizes].count(1024) >= 16


def test_rows_begin_anywhere(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [str(row) for row in range(20)]}), tmp_path / "a.parquet", row_group_size=6)
    for start in range(20):
        batches = ParquetTable(str(tmp_path / "a.parquet"), "a").batches(most_rows=4, start=start)
        found = [(first + index, text) for first, batch in batches for index, text in enumerate(batch["text"].to_pylist())]
        assert found == [(row, str(row)) for row in range(start, 20)]


class Batches:
    """Batches of one row: its number, and this many characters. It counts the decoded ones. `error`: raised after the last one."""

    def __init__(self, lengths: list[int], error: Exception | None = None) -> None:
        self._lengths, self._error = lengths, error
        self.decoded = 0
        self.changed = threading.Condition()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for number, length in enumerate(self._lengths):
            with self.changed:
                self.decoded += 1
                self.changed.notify()
            yield pa.record_batch({"text": ["x" * length], "number": [number]})
        if self._error is not None:
            raise self._error


def number_of(batch: pa.RecordBatch) -> int:
    return int(batch["number"][0].as_py())


def test_a_large_batch_is_decoded_alone_and_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "_AHEAD_BYTES", 1000)
    batches = Batches([1, 1, 2000, 1, 2000, 2000, 1, 1])
    read = []
    for batch in prefetch_batches(iter(batches)):
        number = number_of(batch)
        read.append(number)
        if batch.nbytes > 1000:
            assert batches.decoded == number + 1
    assert read == [*range(8)]


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_an_error_comes_after_the_batches_before_it(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "_AHEAD_BYTES", most)
    read = prefetch_batches(iter(Batches([1, 1, 1], NielsCacheError("damaged"))))
    assert [number_of(next(read)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(NielsCacheError, match="damaged"):
        next(read)


def rows_of(first: int, count: int, size: int = 1) -> tuple[int, pa.RecordBatch]:
    return first, pa.record_batch({"row": [*range(first, first + count)], "text": ["x" * size] * count})


def require_rows(found: list[tuple[np.ndarray, pa.RecordBatch]], counts: list[int], expected: list[int]) -> None:
    assert [len(batch) for _, batch in found] == counts
    assert [row for numbers, _ in found for row in numbers.tolist()] == expected
    assert [row for _, batch in found for row in batch["row"].to_pylist()] == expected


def test_small_batches_are_joined_and_no_row_is_lost() -> None:
    given = [rows_of(0, 3), rows_of(3, 4), rows_of(7, 2), rows_of(20, 5), rows_of(25, 1)]
    require_rows([*join_batches(given, most_rows=8, of=4)], [8, 7], [*range(9), *range(20, 26)])
    require_rows([*join_batches(given, most_rows=5, of=4)], [4, 4, 4, 3], [*range(9), *range(20, 26)])
    require_rows([*join_batches(given[:1], most_rows=3, of=4)], [3], [*range(3)])
    assert [*join_batches([], most_rows=8, of=4)] == []


@pytest.mark.parametrize("kind", READERS)
def test_two_columns_of_one_name_are_an_error_that_names_the_file_and_the_column(kind: str, tmp_path: Path) -> None:
    reader, name = READERS[kind]
    others = ["instruction", "context", "category", "response", "message_id", "parent_id", "message_tree_id", "role", "text", "messages"]
    names = [name, name, *(other for other in others if other != name)]
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * len(names), names=names), tmp_path / "twice.parquet")
    with pytest.raises(NielsCacheError, match=rf"twice\.parquet: .*column.*'{name}'"):
        read(reader([str(tmp_path / "twice.parquet")]))


def test_two_columns_of_a_name_that_is_not_read_are_no_error(tmp_path: Path) -> None:
    columns = [pa.array(["a"]), pa.array(["b"]), pa.array(["c"])]
    pq.write_table(pa.Table.from_arrays(columns, names=["url", "text", "url"]), tmp_path / "a.parquet")
    assert [document.text for document in read(Parquet(files=[str(tmp_path / "a.parquet")]))[0]] == ["b"]


def test_a_message_with_two_fields_of_one_name_or_a_value_that_python_cannot_hold_is_an_error(tmp_path: Path) -> None:
    message = pa.StructArray.from_arrays([pa.array([text]) for text in ("user", "a", "b")], names=["role", "content", "content"])
    pq.write_table(pa.table({"messages": pa.ListArray.from_arrays([0, 1], message)}), tmp_path / "a.parquet")
    with pytest.raises(NielsCacheError, match=r"a\.parquet: .*column.*'messages\.content'"):
        read(ChatJsonl(files=[str(tmp_path / "a.parquet")]))
    late = pa.array([2**62], pa.timestamp("us"))
    pq.write_table(pa.table({"messages": [[]], "at": late}), tmp_path / "a.parquet")
    with pytest.raises(NielsCacheError, match=r"^a\.parquet: .*value"):
        read(ChatJsonl(files=[str(tmp_path / "a.parquet")]))


@pytest.mark.parametrize(
    ("name", "line", "reader"),
    [
        ("a.jsonl", '{"text": "a", "text": "b"}', lambda path: Jsonl(files=[path])),
        ("a.jsonl", '{"text": "a", "meta": {"n": 1, "n": 2}}', lambda path: Jsonl(files=[path])),
        ("a.jsonl", '{"messages": [{"role": "user", "content": "a", "content": "b"}]}', lambda path: ChatJsonl(files=[path])),
        ("a.jsonl", '{"text": "a", "text": "b"}', lambda path: Huggingface(dataset="a/b", files=[path])),
        ("a.json", '[{"title": "a", "title": "b"}]', lambda path: Roam(path=path)),
    ],
)
def test_a_json_object_with_a_key_twice_is_an_error(tmp_path: Path, name: str, line: str, reader: Callable[[str], Source]) -> None:
    (tmp_path / name).write_text(line + "\n", encoding="utf-8")
    with pytest.raises(NielsCacheError, match=rf"{name}: .*(has the key '(text|n|content|title)' twice|specified twice)"):
        read(reader(str(tmp_path / name)))


def most_in_flight(sizes: list[int], *, most: int = 10) -> tuple[int, int]:
    """The most items, and characters, that were in flight at once, and were read ahead."""
    futures: list[Late] = []
    peak = [0, 0]

    def submit(size: int) -> Future[int]:
        futures.append(Late(size))
        waiting = [future.size for future in futures if not future.asked]
        peak[:] = max(peak[0], len(waiting)), max(peak[1], sum(waiting))
        return futures[-1]

    results = results_in_order(submit, iter(sizes), most=most, size_of=lambda size: size)
    assert list(results) == sizes
    return peak[0], peak[1]


class Late(Future[int]):
    """Done when it is asked for."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.asked = size, False

    def result(self, timeout: float | None = None) -> int:
        self.asked = True
        return self.size


def test_few_long_items_are_in_flight_and_a_very_long_one_is_alone() -> None:
    long, most = in_flight.LONG_CHARACTERS, in_flight.MAX_LONG_CHARACTERS
    assert most_in_flight([long] * 50)[0] == 11, "short ones are bounded by their number"
    assert most_in_flight([most // 4] * 50) == (4, most)
    assert most_in_flight([most * 6] * 5) == (1, most * 6)
    assert most_in_flight([1, most * 6, 1, 1, most * 6])[1] <= most * 6 + 3
