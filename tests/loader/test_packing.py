"""Packing. Every example is packed once, whole, in as few rows as best fit decreasing needs."""

import hashlib
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from niels_cache_runtime.loader.packing.plan import PACKING_VERSION, place_examples, shape_rows


class Packing(NamedTuple):
    row_starts: np.ndarray
    examples: np.ndarray


def drawn(n: int, low: int, high: int, *, seed: int = 0) -> np.ndarray:
    return torch.randint(low, high + 1, (n,), generator=torch.Generator().manual_seed(seed)).numpy()


def rows_of(packing: Packing) -> list[list[int]]:
    return [row.tolist() for row in np.split(packing.examples, packing.row_starts[1:-1])] if len(packing.examples) else []


def best_fit_decreasing(lengths: list[int], capacity: int) -> list[int]:
    """The tokens in each row, one example after the other, the room of every row looked at."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [(room, row) for row, room in enumerate(rooms) if room >= length]
        if fitting:
            rooms[min(fitting)[1]] -= length
        else:
            rooms.append(capacity - length)
    return sorted(capacity - room for room in rooms)


def plan_packing(lengths: np.ndarray, *, capacity: int, seed: int | None, epoch: int) -> Packing:
    shapes = shape_rows(lengths, capacity=capacity)
    return Packing(shapes.row_starts, place_examples(shapes, lengths, seed=seed, epoch=epoch))


cases = st.integers(1, 60).flatmap(
    lambda capacity: st.tuples(st.just(capacity), st.lists(st.integers(1, capacity), max_size=120), st.none() | st.integers())
)


@given(cases, st.integers(0, 5))
def test_every_example_is_in_one_row_and_no_row_holds_more_than_its_capacity(case: tuple[int, list[int], int | None], epoch: int) -> None:
    capacity, listed, seed = case
    lengths = np.array(listed, dtype=np.int64)
    packing = plan_packing(lengths, capacity=capacity, seed=seed, epoch=epoch)
    assert (packing.examples.dtype, packing.row_starts.dtype) == (np.int64, np.int64)
    assert sorted(packing.examples.tolist()) == list(range(len(lengths)))
    assert (packing.row_starts[0], packing.row_starts[-1]) == (0, len(lengths))
    assert (np.diff(packing.row_starts) > 0).all()
    fills = [int(lengths[row].sum()) for row in rows_of(packing)]
    assert max(fills, default=0) <= capacity
    assert sorted(fills) == best_fit_decreasing(listed, capacity)


@pytest.mark.parametrize(("n", "low", "high", "capacity"), [(3000, 1, 200, 1000), (2000, 300, 340, 1000), (1500, 1, 1000, 1000)])
def test_rows_are_those_of_best_fit_decreasing(n: int, low: int, high: int, capacity: int) -> None:
    lengths = drawn(n, low, high)
    fills = sorted(int(lengths[row].sum()) for row in rows_of(plan_packing(lengths, capacity=capacity, seed=1, epoch=0)))
    assert len(fills) > 50
    assert fills == best_fit_decreasing(lengths.tolist(), capacity)


def test_an_epoch_has_rows_of_the_same_shapes_and_other_examples_in_them() -> None:
    lengths = drawn(2000, 1, 30)
    plans = [plan_packing(lengths, capacity=100, seed=seed, epoch=epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0), (1 << 32, 0))]
    for plan in plans[1:]:
        assert np.array_equal(plan.row_starts, plans[0].row_starts)
        assert np.array_equal(lengths[plan.examples], lengths[plans[0].examples])
        assert (plan.examples == plans[0].examples).mean() < 0.1
    again = plan_packing(lengths, capacity=100, seed=0, epoch=1)
    assert np.array_equal(again.examples, plans[1].examples)


def test_every_example_of_a_length_is_equally_often_at_each_of_its_places() -> None:
    lengths = np.array([5, 3, 5, 3, 5])
    shapes = shape_rows(lengths, capacity=8)
    places = Counter(
        (int(place), int(example))
        for epoch in range(3000)
        for place, example in enumerate(place_examples(shapes, lengths, seed=7, epoch=epoch))
    )
    assert len(places) == 3 * 3 + 2 * 2
    for (_, example), count in places.items():
        equals = 3 if lengths[example] == 5 else 2
        assert abs(count - 3000 / equals) < 5 * (3000 / equals) ** 0.5


def test_without_a_seed_examples_of_a_length_stay_in_order() -> None:
    lengths = drawn(500, 1, 20)
    plan = plan_packing(lengths, capacity=50, seed=None, epoch=3)
    for length in range(1, 21):
        placed = plan.examples[lengths[plan.examples] == length]
        assert len(placed) > 1
        assert (np.diff(placed) > 0).all()


def test_rows_are_pinned_for_this_version() -> None:
    """The rows are part of the format: a change of this test is a change of PACKING_VERSION."""
    assert PACKING_VERSION == 1
    assert rows_of(plan_packing(np.array([6, 4, 4, 3, 3, 2, 2, 1]), capacity=10, seed=0, epoch=0)) == [[0, 2], [1, 4, 3], [5, 6, 7]]
    plan = plan_packing(drawn(10_000, 1, 1025), capacity=1025, seed=42, epoch=3)
    digest = hashlib.sha256(plan.row_starts.astype("<i8").tobytes() + plan.examples.astype("<i8").tobytes()).hexdigest()
    assert digest[:16] == "572902c5576764c7"


def test_lengths_beyond_16_bits_are_not_taken_for_short_ones() -> None:
    """In 16 bits, 1 and 65,537 are one number, and so are 2 and 65,538."""
    assert rows_of(plan_packing(np.array([1, 65_537, 2, 65_538]), capacity=65_538, seed=0, epoch=0)) == [[3], [1, 0], [2]]
