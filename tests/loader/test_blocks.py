"""The order in blocks: its mathematics against a naive copy, the same values in every version, and the blocks that a machine needs."""

import math
from collections import Counter
from itertools import islice, takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.loader.blend import Blend
from niels_cache_runtime.loader.blocks import BLOCK_ORDER_VERSION, BlockOrder, block_visits, resolve_machines
from niels_cache_runtime.loader.order import Order
from niels_cache_runtime.loader.source import SourceBlocks

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any)
LANES = st.integers(1, 7)


def starts_of(sizes: list[int]) -> np.ndarray:
    return np.cumsum([0, *sizes])


def naive(sizes: list[int], *, seed: int, name: str, lanes: int, epoch: int) -> list[int]:
    """The samples of an epoch in their order, by the four steps of the module, with lists."""
    starts, total = starts_of(sizes).tolist(), sum(sizes)
    row = []
    used = [block for block, size in enumerate(sizes) if size]
    for number in Order(len(used), seed=seed, name=f"{name}\0blocks").at(np.arange(len(used)), epoch).tolist():
        block = used[number]
        inside = Order(sizes[block], seed=seed, name=f"{name}\0block {block}").at(np.arange(sizes[block]), epoch)
        row += [starts[block] + cell for cell in inside.tolist()]
    lane_of_place = [(epoch * total + place) % lanes for place in range(total)]
    queues = []
    for lane in range(lanes):
        run, row = row[: lane_of_place.count(lane)], row[lane_of_place.count(lane) :]
        queues.append(iter(run if lane % 2 == 0 else run[::-1]))
    return [next(queues[lane]) for lane in lane_of_place]


def whole_epoch(sizes: list[int], *, epoch: int = 0, **settings: object) -> list[int]:
    return BlockOrder(starts_of(sizes), **{"seed": 0, **settings}).at(np.arange(sum(sizes)), epoch).tolist()


# fmt: off
GOLDEN = [  # sizes of blocks, seed, name, lanes, epoch, the first numbers
    ([4, 0, 5, 3], 0, "", 1, 0, [9, 11, 10, 2, 1, 0, 3, 5, 7, 8, 6, 4]),
    ([4, 0, 5, 3], 0, "", 1, 1, [4, 7, 6, 8, 5, 10, 11, 9, 1, 0, 3, 2]),
    ([4, 0, 5, 3], 0, "", 2, 0, [9, 4, 11, 6, 10, 8, 2, 7, 1, 5, 0, 3]),
    ([4, 0, 5, 3], 0, "", 2, 1, [4, 2, 7, 3, 6, 0, 8, 1, 5, 9, 10, 11]),
    ([4, 0, 5, 3], 0, "", 5, 1, [5, 0, 3, 4, 8, 10, 1, 2, 7, 6, 11, 9]),
    ([4, 0, 5, 3], 2**32, "wikitext", 1, 0, [8, 6, 4, 7, 5, 11, 9, 10, 0, 2, 3, 1]),
    ([300, 7, 2000, 64], 42, "fineweb_edu", 4, 3, [1706, 1081, 719, 2332, 1118, 470, 1581, 2335]),
    ([2**40, 2**41, 5, 2**40], 7, "web", 3, 10**9,
     [3298534883329, 3333820970763, 3810902360012, 3298534883332, 4022625496700, 3353917037168, 3298534883331, 3565865756957]),
]
# fmt: on


def test_the_order_is_the_one_that_saved_states_mean() -> None:
    """If this fails, BLOCK_ORDER_VERSION must count up: runs that resume would silently read other samples."""
    assert BLOCK_ORDER_VERSION == 1
    for sizes, seed, name, lanes, epoch, numbers in GOLDEN:
        order = BlockOrder(starts_of(sizes), seed=seed, name=name, lanes=lanes)
        assert len(set(numbers)) >= 8
        assert order.at(np.arange(len(numbers)), epoch).tolist() == numbers


@given(sizes=SIZES, seed=st.integers(0, 2**64 - 1), lanes=LANES, epoch=st.integers(0, 1000))
def test_every_epoch_is_that_of_the_four_steps_and_visits_every_sample_once(sizes: list[int], seed: int, lanes: int, epoch: int) -> None:
    found = whole_epoch(sizes, seed=seed, name="web", lanes=lanes, epoch=epoch)
    assert sorted(found) == list(range(sum(sizes)))
    assert found == naive(sizes, seed=seed, name="web", lanes=lanes, epoch=epoch)


@given(sizes=SIZES, lanes=LANES, data=st.data())
def test_any_places_in_any_order_are_those_of_the_whole_epoch(sizes: list[int], lanes: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, sum(sizes) - 1), max_size=10))
    order = BlockOrder(starts_of(sizes), seed=3, lanes=lanes)
    epochs = {epoch: whole_epoch(sizes, seed=3, lanes=lanes, epoch=epoch) for epoch in (0, 1, 2)}
    for epoch in (0, 1, 0, 2):
        assert order.at(np.array(places, dtype=np.int64), epoch).tolist() == [epochs[epoch][place] for place in places]


def test_without_shuffle_one_lane_is_the_stream() -> None:
    assert whole_epoch([4, 0, 5], shuffle=False) == list(range(9))
    assert whole_epoch([4, 0, 5], shuffle=False, lanes=2) == [0, 8, 1, 7, 2, 6, 3, 5, 4]


# Rounds of a blend

WEIGHTS = {"a": 5, "b": 2, "c": 0.5}


def test_weights_of_less_than_a_round_have_no_samples() -> None:
    blend = Blend("ab", [(0, {"a": 1, "b": 0}), (9, {"a": 0, "b": 1}), (11, {"a": 1, "b": 0})], lanes=8)
    sources, numbers = blend.at(np.arange(40))
    assert not sources.any()
    assert numbers.tolist() == list(range(40))
    assert blend.counts(37).tolist() == [37, 0]
    assert blend.position(1, 0) is None


@pytest.mark.parametrize("lanes", [1, 3, 8])
def test_a_round_has_one_source_and_a_lane_of_the_run_is_a_lane_of_each_source(lanes: int) -> None:
    blend = Blend("abc", [(0, WEIGHTS), (1000, {"a": 1, "b": 1, "c": 1})], lanes=lanes)
    samples = np.arange(3000)
    sources, numbers = blend.at(samples)
    assert ((samples - numbers) % lanes == 0).all()
    for source in range(3):
        assert numbers[sources == source].tolist() == list(range((sources == source).sum()))
        found = [blend.position(source, number) for number in numbers[sources == source].tolist()]
        assert found == samples[sources == source].tolist()
    for taken in (0, 1, 7, 999, 1001, 2999):
        assert blend.counts(taken).tolist() == np.bincount(sources[:taken], minlength=3).tolist()
    exact = np.arange(1, 1001)[:, None] * np.array([5, 2, 0.5]) / 7.5
    assert np.abs(np.cumsum(sources[:1000, None] == np.arange(3), axis=0) - exact).max() < lanes


def test_rounds_of_one_lane_are_the_blend_itself() -> None:
    schedule = [(0, WEIGHTS), (5, {"a": 0, "b": 1, "c": 1})]
    plain, rounds = Blend("abc", schedule), Blend("abc", schedule, lanes=1)
    assert [array.tolist() for array in plain.at(np.arange(50))] == [array.tolist() for array in rounds.at(np.arange(50))]
    assert plain.weights == rounds.weights


def test_weights_that_change_within_a_round_apply_from_the_next_round_on() -> None:
    one = {"a": 1, "b": 0}
    other = {"a": 0, "b": 1}
    blend = Blend("ab", [(0, one), (9, other), (11, one), (14, other)], lanes=8)
    assert blend.at(np.arange(24))[0].tolist() == [0] * 16 + [1] * 8
    assert [first for first, _ in blend.weights] == [0, 9, 11, 14]


# Visits


@given(
    sizes=st.lists(SIZES, min_size=1, max_size=2),
    layout=st.sampled_from([(1, 1), (2, 1), (2, 2), (3, 1), (4, 2), (6, 3), (6, 2), (6, 6)]),
    samples=st.integers(0, 100),
)
def test_visits_are_the_first_and_last_samples_of_each_block(sizes: list[list[int]], layout: tuple[int, int], samples: int) -> None:
    lanes, machines = layout
    names = [f"source {number}" for number in range(len(sizes))]
    blend = Blend(names, [(0, {name: 2 + number for number, name in enumerate(names)})], lanes=lanes)
    orders = [BlockOrder(starts_of(own), seed=5, name=name, lanes=lanes) for own, name in zip(sizes, names, strict=True)]
    blocks = [SourceBlocks(samples=starts_of(own), files=10 * np.arange(len(own) + 1), tails=np.arange(len(own))) for own in sizes]
    end = samples + 60
    sources, numbers = blend.at(np.arange(2 * end))
    block_of_sample = np.empty_like(sources)
    for source, own in enumerate(sizes):
        epochs = range(int(numbers[sources == source].max(initial=0)) // sum(own) + 1)
        order = np.concatenate([orders[source].at(np.arange(sum(own)), epoch) for epoch in epochs])
        block_of_sample[sources == source] = starts_of(own).searchsorted(order[numbers[sources == source]], side="right") - 1
    for machine in range(machines):
        needed: dict[tuple[str, int, int], list[int]] = {}
        for sample in range(machine, 2 * end, machines):
            source = int(sources[sample])
            key = (names[source], int(numbers[sample]) // sum(sizes[source]), int(block_of_sample[sample]))
            needed.setdefault(key, []).append(sample)
        expected = [(key, min(own), max(own) + 1) for key, own in needed.items() if max(own) >= samples and max(own) < end]
        visits = takewhile(
            lambda visit: visit.first < end,
            block_visits(names, blocks, [[order] for order in orders], blend, samples=samples, machine=machine, machines=machines),
        )
        found = list(visits)
        assert found
        assert [visit.first for visit in found] == sorted(visit.first for visit in found)
        told = [((visit.source, visit.epoch, visit.block), visit.first, visit.end) for visit in found]
        assert max(Counter(key for key, _, _ in told).values(), default=1) == 1
        assert sorted(expected) == sorted(each for each in told if each[2] <= end)
        assert all(visit.files == range(10 * visit.block, 10 * visit.block + 10) and visit.tail_tokens == visit.block for visit in found)


def test_a_source_that_is_weighed_no_more_ends_its_visits() -> None:
    names = ["a", "b"]
    blend = Blend(names, [(0, {"a": 1, "b": 1}), (10, {"a": 1, "b": 0})])
    orders = [BlockOrder(np.array([0, 3, 6]), seed=0, name=name) for name in names]
    blocks = [SourceBlocks(samples=np.array([0, 3, 6]), files=np.arange(3), tails=np.zeros(2, dtype=np.int64))] * 2
    visits = block_visits(names, blocks, [[order] for order in orders], blend, samples=0, machine=0, machines=1)
    found = [next(visits) for _ in range(10)]
    assert [visit.source for visit in found].count("b") == 2
    assert next(visit.end for visit in reversed(found) if visit.source == "b") > 10
    own = block_visits(names, blocks, [[order] for order in orders], blend, samples=0, machine=0, machines=1, chosen={"b"})
    assert [visit for visit in islice(own, 10)] == [visit for visit in found if visit.source == "b"]


# Machines


def machines_of(lanes: int, world_size: int, *, machines: int | None = None, environment: dict[str, str] | None = None) -> int:
    return resolve_machines(machines, lanes=lanes, world_size=world_size, environment=environment or {})


TORCHRUN = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2"}


def test_machines_come_from_arguments_or_from_torchrun() -> None:
    assert machines_of(4, 16) == 1
    assert machines_of(4, 16, machines=2) == 2
    assert machines_of(4, 16, environment=TORCHRUN) == 2
    assert machines_of(4, 16, environment=TORCHRUN, machines=1) == 1
    assert machines_of(4, 1, environment=TORCHRUN) == 1  # one process of a job that reads for itself
    for lanes in range(1, 13):
        for world_size in range(1, 13):
            for machines in range(1, 13):
                if math.gcd(lanes, world_size) % machines == 0:
                    assert machines_of(lanes, world_size, machines=machines) == machines
                else:
                    with pytest.raises(NielsCacheError, match=r"^machines=[^\n]*allowed"):
                        machines_of(lanes, world_size, machines=machines)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"machines": 3}, "1, 2, 4"),
        ({"machines": 8}, "lanes=8"),
        ({"environment": {**TORCHRUN, "LOCAL_WORLD_SIZE": "5"}}, "LOCAL_WORLD_SIZE=5"),
        ({"environment": {**TORCHRUN, "LOCAL_WORLD_SIZE": "x"}}, "LOCAL_WORLD_SIZE=x"),
        ({"environment": {**TORCHRUN, "WORLD_SIZE": "64"}}, "WORLD_SIZE=64"),
        ({"environment": {**TORCHRUN, "GROUP_WORLD_SIZE": "3"}}, "GROUP_WORLD_SIZE=3"),
        ({"environment": TORCHRUN, "lanes": 1}, "torchrun"),
    ],
)
def test_other_machines_are_refused_with_the_allowed_ones(given: dict, message: str) -> None:
    with pytest.raises(NielsCacheError) as caught:
        machines_of(**{"lanes": 4, "world_size": 16, **given})
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
