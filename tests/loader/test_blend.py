"""The Blend. Every prefix is as near to its shares as whole samples allow, and no sample is lost or repeated when the weights change."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.loader.blend import Blend
from niels_cache_runtime.loader.settings import check_shares


def names(count: int) -> list[str]:
    return [f"source_{i}" for i in range(count)]


def blend(*weights: float) -> Blend:
    return Blend(names(len(weights)), [(0, dict(zip(names(len(weights)), weights, strict=True)))])


def schedule(*segments: tuple[int, list[float]]) -> Blend:
    of = names(len(segments[0][1]))
    return Blend(of, [(first, dict(zip(of, weights, strict=True))) for first, weights in segments])


def whole_weights(of: Blend) -> list[int]:
    assert len(of.weights) == 1
    return list(of.weights[0][1])


def worst_miss(of: Blend) -> Fraction:
    """Return the largest distance of a source's count from its share, in samples, over all prefixes of one period. Check that a period is
    exact.
    """
    weights = whole_weights(of)
    period = sum(weights)
    sources, _ = of.at(np.arange(period))
    assert np.bincount(sources).tolist() == weights
    slots_of_source = np.split(sources.argsort(kind="stable"), np.cumsum(weights)[:-1])
    worst = 0
    for weight, slots in zip(weights, slots_of_source, strict=True):
        # Between two of its samples, a source falls behind slot by slot. So the distance is largest before and after each sample.
        before = np.arange(weight) * period - slots * weight
        worst = max(worst, int(np.abs(before).max()), int(np.abs(before + period - weight).max()))
    return Fraction(worst, period)


def rounded(weights: list[float]) -> list[int]:
    """The whole weights alone. A second segment leaves the first a single sample, where a period may have a million."""
    of = names(len(weights))
    return list(Blend(of, [(0, dict(zip(of, weights, strict=True))), (1, dict.fromkeys(of, 1))]).weights[0][1])


def drawn_weights(generator: torch.Generator) -> list[int]:
    """2 to 12 weights up to 1, 10, 100 or 1000, so that periods are short and long and shares even and lopsided."""
    count = int(torch.randint(2, 13, (1,), generator=generator))
    largest = 10 ** torch.randint(4, (count,), generator=generator)
    return ((torch.rand(count, generator=generator, dtype=torch.float64) * largest).long() + 1).tolist()


def test_every_prefix_of_thousands_of_blends_is_less_than_one_sample_off() -> None:
    generator = torch.Generator().manual_seed(0)
    misses = [worst_miss(blend(*drawn_weights(generator))) for _ in range(400)]
    assert len(misses) == 400
    assert Fraction(9, 10) < max(misses) < 1


@pytest.mark.parametrize(
    "weights",
    [
        [0.4, 0.1, 0.3, 0.2],
        [1, 2**20 - 1],
        [2**19, 1, 2**19 - 1],
        [1 + 0.37 * (i % 40) for i in range(200)],
        [math.pi, math.e, 1e-9, 1.0],
    ],
    ids=lambda weights: f"{weights[0]:.3g}, {weights[1]:.3g}, ... ({len(weights)})",
)
def test_every_prefix_is_less_than_one_sample_off_for_hard_weights(weights: list[float]) -> None:
    assert worst_miss(blend(*weights)) < 1


def test_the_blend_is_the_one_that_saved_states_mean() -> None:
    """If this fails, order.ORDER_VERSION must count up: runs that resume would silently read other samples."""
    sources, numbers = blend(0.4, 0.1, 0.3, 0.2).at(np.arange(20))
    assert sources.tolist() == [0, 2, 0, 3, 2, 0, 1, 0, 2, 3] * 2
    assert numbers.tolist() == [0, 0, 1, 0, 1, 2, 0, 3, 2, 1, 4, 3, 5, 2, 4, 6, 1, 7, 5, 3]


@pytest.mark.parametrize(
    ("given_weights", "whole"),
    [
        ([0.4, 0.1, 0.3, 0.2], [4, 1, 3, 2]),
        ([0.1, 0.2], [1, 2]),
        ([2, 4, 6], [1, 2, 3]),
        ([np.float64(0.7), np.int64(1)], [7, 10]),
        ([1e-3, 1], [1, 1000]),
        ([1 / 3, 2 / 3], [1, 2]),
        ([3e300, 1e300], [3, 1]),
        ([1, 2**20 - 1], [1, 2**20 - 1]),
    ],
)
def test_decimals_are_meant_as_written(given_weights: list[float], whole: list[int]) -> None:
    assert rounded(given_weights) == whole


@pytest.mark.parametrize(
    ("given_weights", "whole"),
    [
        ([1, 2**20], [1, 2**20 - 1]),
        ([1e-30, 1.0], [1, 2**20 - 1]),
        ([1.0, 1e-30, 1e-30, 1.0], [2**19 - 1, 1, 1, 2**19 - 1]),
        ([0.1234567, 0.7654321, 0.3], [54_443, 337_548, 132_297]),
    ],
)
def test_weights_that_need_a_longer_period_are_rounded_but_never_to_none(given_weights: list[float], whole: list[int]) -> None:
    assert rounded(given_weights) == whole


@st.composite
def schedules(draw: st.DrawFn) -> Blend:
    count = draw(st.integers(1, 5))
    firsts = [0, *sorted(draw(st.sets(st.integers(1, 90), max_size=3)))]
    weights = [draw(st.lists(st.integers(0, 9), min_size=count, max_size=count).filter(any)) for _ in firsts]
    used = [max(column) for column in zip(*weights, strict=True)]
    if len(firsts) == 1 or min(used) == 0:
        weights[0] = [max(weight, 1) for weight in weights[0]]
    return schedule(*zip(firsts, weights, strict=True))


@given(schedules())
def test_at_counts_and_position_tell_the_same_story_one_sample_at_a_time(of: Blend) -> None:
    total = 200
    taken = [0] * len(of.weights[0][1])
    sources, numbers = of.at(np.arange(total))
    for sample, source, number in zip(range(total), sources.tolist(), numbers.tolist(), strict=True):
        assert of.counts(sample).tolist() == taken
        assert number == taken[source]  # continues without a gap or a repetition, also at the start of a segment
        assert of.position(source, number) == sample
        taken[source] += 1
    assert sum(taken) == total


@given(schedules())
def test_every_segment_keeps_its_own_shares(of: Blend) -> None:
    ends = [first for first, _ in of.weights[1:]]
    for (first, weights), end in itertools.zip_longest(of.weights, ends, fillvalue=200):
        assert isinstance(weights, tuple)
        for samples in range(first, end + 1):
            counts = of.counts(samples) - of.counts(first)
            for count, weight in zip(counts.tolist(), weights, strict=True):
                assert abs(count * sum(weights) - (samples - first) * weight) < sum(weights)


@given(of=schedules(), far=st.integers(10**6, 2**60))
def test_far_samples_are_found_as_exactly_as_near_ones(of: Blend, far: int) -> None:
    samples = np.arange(far, far + 40)
    sources, numbers = of.at(samples)
    before = of.counts(far)
    for sample, source, number in zip(samples.tolist(), sources.tolist(), numbers.tolist(), strict=True):
        assert number == before[source]
        assert of.position(source, number) == sample
        before[source] += 1
    assert np.array_equal(of.counts(far + 40), before)


def test_a_source_that_is_left_out_at_the_end_comes_no_more() -> None:
    of = schedule((0, [1, 1]), (10, [1, 0]))
    assert of.position(1, 4) is not None
    assert of.position(1, 5) is None
    assert of.counts(10**12).tolist() == [10**12 - 5, 5]


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([], "schedule: empty"),
        ([(5, {"a": 1, "b": 1})], "starts at sample 5; "),
        ([(0, {"a": 1, "b": 1}), (0, {"a": 1, "b": 2})], "starts at sample 0; "),
        ([(0, {"a": 1, "b": 1}), (1.5, {"a": 1, "b": 2})], "starts at sample 1.5; "),
        ([(0, {"a": 1})], "no weight for b; "),
        ([(0, {"a": 1, "b": 1}), (9, {"b": 1})], "sample 9: no weight"),
        ([(0, {"a": 1, "b": 1, "wikitex": 1})], "named wikitex; "),
        ([(0, {"a": 1, "b": 0})], "b has 0; leave out"),
        ([(0, {"a": 1, "b": -0.5})], "b has -0.5; "),
        ([(0, {"a": 1, "b": 0}), (9, {"a": 1, "b": 0})], "weights of b: 0 "),
        ([(0, {"a": 1, "b": 1}), (9, {"a": 0, "b": 0})], "sample 9: all are 0"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused_in_one_line(segments: list, message: str) -> None:
    with pytest.raises(NielsCacheError) as caught:
        Blend(["a", "b"], segments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("error")
def test_a_small_float_of_numpy_is_a_weight() -> None:
    assert check_shares({"a": np.float16(3)}) == {"a": 3}


def test_a_misspelt_name_comes_with_the_likely_one() -> None:
    with pytest.raises(NielsCacheError, match=r"wikitxt; .* 'wikitext'\?"):
        Blend(["wikitext", "dolly"], [(0, {"wikitxt": 1, "dolly": 1})])
