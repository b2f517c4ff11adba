"""The channel between a process and its worker: what crosses, in which memory, and what keeps that memory."""

import multiprocessing
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from niels_cache_assets.base import parallel
from niels_cache_assets.base.documents import Document, DocumentBatch
from niels_cache_assets.base.strings import Strings

TEXTS = ["", "one\0", "zwei é", "three \U0001f600"]


@contextmanager
def channels() -> Iterator[tuple[parallel._Channel, parallel._Channel]]:
    """Yield both ends."""
    shared = multiprocessing.RawArray("b", 2 * parallel._SHARED_BYTES)
    here, there = multiprocessing.Pipe()
    with here, there:
        yield parallel._Channel(here, shared, is_caller=True), parallel._Channel(there, shared, is_caller=False)


def cross(caller: parallel._Channel, worker: parallel._Channel, item: Any) -> Any:
    caller.send(item)
    return worker.receive()


def batch_of(*texts: str) -> DocumentBatch:
    return DocumentBatch.of([Document(text, f"é-{row}", "a.jsonl", row, title="T" if row else None) for row, text in enumerate(texts)])


@pytest.mark.parametrize(("last", "is_column"), [("four", True), ("lone \ud800", False)])
def test_documents_cross_with_all_texts(last: str, is_column: bool) -> None:
    batch = batch_of(*TEXTS, last)
    with channels() as (caller, worker):
        found = cross(caller, worker, batch)
        assert list(found) == list(batch)
        assert isinstance(found.text, Strings) is is_column
        assert list(cross(caller, worker, batch[1:3])) == list(batch)[1:3]
        del found


def test_arrow_columns_are_views_of_shared_memory_and_results_are_not() -> None:
    with channels() as (caller, worker):
        column = cross(caller, worker, batch_of(*TEXTS)).text.arrow()
        places = [buffer.address for buffer in column.buffers()[1:]]
        caller.send(batch_of(*TEXTS[::-1]))
        assert column.to_pylist() != TEXTS, "the memory is used again"
        assert [buffer.address for buffer in worker.receive().text.arrow().buffers()[1:]] == places
        worker.send(batch_of("a result"))
        result = caller.receive()
        worker.send(batch_of("another "))
        assert (result.text.tolist(), caller.receive().text.tolist()) == (["a result"], ["another "])


def test_a_column_that_a_step_keeps_is_noticed_and_never_changes() -> None:
    with channels() as (caller, worker):
        first = cross(caller, worker, batch_of("first"))
        assert worker.is_in_use()
        kept = first.text.arrow().slice(0, 1)
        del first
        assert worker.is_in_use()
        caller.may_share = False
        assert [cross(caller, worker, batch_of(text)).text.tolist() for text in ("other", "third")] == [["other"], ["third"]]
        assert kept.to_pylist() == ["first"]
    with channels() as (caller, worker):
        assert cross(caller, worker, batch_of("first")).text.tolist() == ["first"]
        assert not worker.is_in_use()
        loop: list[Any] = [cross(caller, worker, batch_of("first")).text.arrow()]
        loop.append(loop)
        del loop
        assert not worker.is_in_use(), "garbage that refers to itself"


def test_items_that_do_not_fit_cross_in_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    with channels() as (caller, worker):
        monkeypatch.setattr(parallel, "_SHARED_BYTES", 100)
        found = cross(caller, worker, batch_of(*TEXTS))
        assert (list(found), worker.is_in_use()) == (list(batch_of(*TEXTS)), False)


def test_a_column_of_few_rows_crosses_without_the_others() -> None:
    whole = Strings(pa.array([f"text {row}" for row in range(1000)], pa.large_string()))
    sizes = [len(pickle.dumps(column)) for column in (whole, whole[10:12], whole[[3, 5]])]
    assert max(sizes[1:]) < 500 < 5000 < sizes[0]
