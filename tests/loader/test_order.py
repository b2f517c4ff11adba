"""Order, which is a permutation for each epoch. It never changes between versions, and it is well shuffled even for few samples."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.loader.order import _ROUNDS, MAX_SAMPLES, ORDER_VERSION, Order

SEEDS = st.integers(0, 2**64 - 1)
EPOCHS = st.integers(0, 10**6)


def whole_epoch(n: int, *, seed: int = 0, name: str = "", epoch: int = 0) -> np.ndarray:
    return Order(n, seed=seed, name=name).at(np.arange(n), epoch)


def surprise(observed: np.ndarray, expected: np.ndarray | float, *, degrees: int) -> float:
    """Pearson's chi square, in standard deviations above its mean."""
    return float((((observed - expected) ** 2 / expected).sum() - degrees) / math.sqrt(2 * degrees))


# fmt: off
GOLDEN = [  # n, seed, name, epoch, positions, numbers
    (1, 5, "a", 9, [0], [0]),
    (10, 0, "", 0, range(10), [2, 5, 9, 1, 0, 8, 3, 7, 6, 4]),
    (10, 0, "", 1, range(10), [2, 1, 9, 6, 5, 4, 0, 8, 7, 3]),
    (10, 0, "wikitext", 0, range(10), [8, 9, 4, 2, 5, 1, 6, 7, 0, 3]),
    (10, 2**32, "", 0, range(10), [5, 1, 3, 7, 6, 9, 4, 0, 2, 8]),
    (1000, 42, "", 0, range(8), [553, 698, 27, 322, 969, 853, 610, 662]),
    (781_250, 42, "fineweb_edu", 3, range(6), [457587, 696211, 563326, 206173, 219014, 386835]),
    (2**32 + 1, 7, "", 0, range(4), [3321546835, 1791939276, 1219518709, 1598307549]),
    (2**62 - 57, 42, "", 0, range(3), [2952236444946512916, 1182134542782573782, 981530770905044224]),
    (2**62, 2**64 - 1, "wikitext", 10**12, [0, 1, 2, 2**62 - 2, 2**62 - 1],
     [2487185492854335652, 769382520515481989, 3061265009068281220, 3174855222802455577, 1334619584622326997]),
]
# fmt: on


def test_the_order_is_the_one_that_saved_states_mean() -> None:
    """If this fails, ORDER_VERSION must count up: runs that resume would silently read other samples."""
    assert ORDER_VERSION == 1
    for n, seed, name, epoch, positions, numbers in GOLDEN:
        assert Order(n, seed=seed, name=name).at(np.array(positions), epoch).tolist() == numbers


@given(n=st.integers(1, 5000), seed=SEEDS, epoch=EPOCHS)
def test_every_epoch_visits_every_sample_once(n: int, seed: int, epoch: int) -> None:
    found = whole_epoch(n, seed=seed, epoch=epoch)
    assert np.array_equal(np.sort(found), np.arange(n))


@pytest.mark.parametrize("n", [2**16 - 1, 2**16, 2**16 + 1, 99_991, 300_000])
def test_every_epoch_of_many_samples_visits_every_sample_once(n: int) -> None:
    assert np.array_equal(np.sort(whole_epoch(n, seed=n)), np.arange(n))


@given(n=st.integers(1, MAX_SAMPLES), seed=SEEDS, epoch=EPOCHS, data=st.data())
def test_different_positions_have_different_samples(n: int, seed: int, epoch: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20, unique=True)))
    order = Order(n, seed=seed, name="some")
    numbers = order.at(positions, epoch)
    assert numbers.dtype == np.int64
    assert 0 <= numbers.min() <= numbers.max() < n
    assert len(set(numbers.tolist())) == len(positions)


@pytest.mark.parametrize("n", range(2, 11))
def test_few_samples_come_in_every_order_about_equally_often(n: int) -> None:
    seeds = 300
    orders = np.stack([whole_epoch(n, seed=seed) for seed in range(seeds)])
    visits = np.zeros((n, n))
    np.add.at(visits, (np.broadcast_to(np.arange(n), orders.shape), orders), 1)
    assert visits.sum() == n * seeds
    assert surprise(visits, seeds / n, degrees=(n - 1) ** 2) < 5
    if n <= 4:
        times = np.array([*Counter(map(tuple, orders.tolist())).values()])
        assert len(times) == math.factorial(n)
        assert surprise(times, seeds / math.factorial(n), degrees=len(times) - 1) < 5


@pytest.mark.parametrize("n", [100, 1001, 50_000])
def test_another_seed_epoch_or_name_is_another_order(n: int) -> None:
    orders = [
        whole_epoch(n),
        whole_epoch(n, seed=1),
        whole_epoch(n, seed=2**32),  # torch's generator alone would take it for seed 0
        whole_epoch(n, epoch=1),
        whole_epoch(n, seed=1, epoch=1),
        whole_epoch(n, name="wikitext"),
        whole_epoch(n, name="wikitext", epoch=1),
    ]
    for i, left in enumerate(orders):
        for right in orders[:i]:
            assert (left == right).sum() < 12  # a random permutation agrees in 1 place on average
            assert abs(np.corrcoef(left, right)[0, 1]) < 5 / math.sqrt(n)


def test_the_order_of_many_samples_does_not_take_the_rounds_of_few() -> None:
    """Both sides of the change at 1000 are pinned: the number of rounds is part of the order."""
    assert (Order(1000, seed=0)._rounds, Order(1001, seed=0)._rounds) == (24, _ROUNDS)


@pytest.mark.parametrize("n", [0, -1, 2**62 + 1, 2.0, True, None])
def test_a_number_of_samples_that_is_none_is_refused(n: int) -> None:
    with pytest.raises(NielsCacheError, match=r"n=.*from 1 to 4611686018427387904"):
        Order(n, seed=0)


@pytest.mark.parametrize("seed", [-1, 2**64, 0.5, "0", None])
def test_a_seed_that_is_none_is_refused(seed: int) -> None:
    with pytest.raises(NielsCacheError, match=r"seed=.*from 0 to"):
        Order(3, seed=seed)
