"""Document boundaries of a batch: what is found in doc_ends, and the arrays made of it, against counting token by token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.loader.documents import (
    cross_document_targets,
    cu_seqlens,
    document_ids,
    find_boundaries,
    max_seqlen,
    position_ids,
)
from niels_cache_runtime.loader.source import DocumentStarts

NO_BOUNDARIES = np.empty(0, dtype=np.int64)


@st.composite
def windows(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """doc_ends of a stream, starts of windows in it (any order, also twice the same), and T."""
    lengths = draw(st.lists(st.integers(1, 6) | st.integers(1, 40), min_size=1, max_size=30))
    tokens = sum(lengths)
    if tokens == 1:
        lengths, tokens = [1, 1], 2
    T = draw(st.integers(1, min(20, tokens - 1)))
    positions = draw(st.lists(st.integers(0, tokens - T - 1), max_size=6))
    return np.cumsum(lengths).astype(np.uint64), np.array(positions, dtype=np.int64), T


def documents_of(doc_ends: np.ndarray, positions: np.ndarray, T: int) -> list[list[int]]:
    """The ordinal of every token's document in each row of T + 1, counted one by one."""
    return [[sum(int(end) <= p + j for end in doc_ends) for j in range(T + 1)] for p in positions.tolist()]


@given(windows())
def test_every_array_is_what_counting_token_by_token_gives(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    doc_ends, positions, T = case
    rows = len(positions)
    boundaries = find_boundaries(doc_ends, positions, T=T)
    cu = cu_seqlens(boundaries, rows=rows, T=T)
    ids, ordinals, crosses, starts = [], [], [], [r * T for r in range(rows + 1)]
    for r, row in enumerate(documents_of(doc_ends, positions, T)):
        ids.append([row[j] - row[0] for j in range(T)])
        ordinals.append([j - row.index(row[j]) for j in range(T)])
        crosses.append([row[j] != row[j + 1] for j in range(T)])
        starts += [r * T + j for j in range(1, T) if row[j] != row[j - 1]]
    assert cu.tolist() == sorted(starts)
    assert max_seqlen(cu) == max(np.diff(cu).tolist(), default=0)
    results = {
        "ids": (document_ids(cu, rows=rows, T=T), ids),
        "positions": (position_ids(cu, rows=rows, T=T), ordinals),
        "crosses": (cross_document_targets(boundaries, rows=rows, T=T), crosses),
    }
    for name, (result, expected) in results.items():
        assert result.shape == (rows, T), name
        assert result.tolist() == expected, name
    assert cu.dtype == results["ids"][0].dtype == results["positions"][0].dtype == np.int32
    assert results["crosses"][0].dtype == np.bool_


@pytest.mark.parametrize(
    ("lengths", "position", "columns", "continues"),
    [
        pytest.param([3, 20], 5, [], True, id="a window inside one document"),
        pytest.param([5, 20], 5, [], True, id="a document that begins with the window"),
        pytest.param([9, 5], 4, [], False, id="a document that begins at the last target"),
        pytest.param([10, 5], 4, [], True, id="a document that ends with the last target"),
        pytest.param([8, 1, 1, 9], 4, [4], False, id="one token, then the last target begins another document"),
        pytest.param([5, 1, 9], 4, [1, 2], True, id="a boundary at the first column that is listed"),
        pytest.param([4, 1, 1, 1, 1, 1, 1], 4, [1, 2, 3, 4], False, id="documents of one token"),
    ],
)
def test_a_boundary_at_the_edge_of_a_window(lengths: list[int], position: int, columns: list[int], continues: bool) -> None:
    found = find_boundaries(np.cumsum(lengths).astype(np.uint64), np.array([position]), T=5)
    assert found.columns.tolist() == columns
    assert found.continues.tolist() == [continues]


def test_boundaries_are_exact_where_float64_is_not() -> None:
    base = 2**60
    doc_ends = np.array([base + 1, base + 2, base + 5, base + 8, base + 100], dtype=np.uint64)
    found = find_boundaries(doc_ends, np.array([base, base + 3, base + 1]), T=4)
    assert (found.rows.tolist(), found.columns.tolist()) == ([0, 0, 1, 2], [1, 2, 2, 1])
    assert found.continues.tolist() == [True, True, False]


def test_a_batch_that_int32_cannot_count_is_refused() -> None:
    boundaries = DocumentStarts(rows=NO_BOUNDARIES, columns=NO_BOUNDARIES, continues=np.ones(0, dtype=np.bool_))
    with pytest.raises(NielsCacheError, match="2147483647"):
        cu_seqlens(boundaries, rows=2**15, T=2**16)


def test_an_empty_batch_has_no_documents() -> None:
    boundaries = find_boundaries(np.array([10], dtype=np.uint64), np.empty(0, dtype=np.int64), T=4)
    cu = cu_seqlens(boundaries, rows=0, T=4)
    assert (cu.tolist(), max_seqlen(cu)) == ([0], 0)
    assert document_ids(cu, rows=0, T=4).shape == position_ids(cu, rows=0, T=4).shape == (0, 4)
