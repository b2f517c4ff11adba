"""The source of every sample of a run: several sources are mixed by weights, as evenly as whole samples allow.

    global sample --Blend.at--> source, how many samples of that source came before --Blend.position--> global sample

A segment is a part of the run with constant weights. After any number of samples of a segment, each source's count is its exact share,
rounded down or up. The greedy rule, to take the source that is most behind, does not achieve this. With one source of weight 40 and 60
sources of weight 1, a count of the greedy rule is 1.2 samples off.

A new blend computes one period of each segment. This costs about a microsecond and 9 bytes per sample of the period, and a period has at
most 2**20 samples. Every lookup is then O(1), vectorized, and exact at any position. If the source of any sample changes in a new version
of this code, a new order.ORDER_VERSION is needed. Nothing is random here. `order` orders the samples inside a source, and the loader
decides when a source ends.
"""

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from niels_cache_runtime.cache.checks import as_int
from niels_cache_runtime.errors import NielsCacheError, did_you_mean
from niels_cache_runtime.format.layout import Array, Int32s, Ints

Schedule = Sequence[tuple[int, Mapping[str, float]]]  # (first sample, weight per name) of every segment
MAX_PERIOD = 2**20
_PERIOD_OF_COUNTS = 2**16  # short, because it serves one stretch of a run only
_MAX_SAMPLES = 2**60  # the most samples of a run, so that counts fit into int64


class Blend:
    """The sources of all samples of a run, by a schedule of weights.

    With `lanes`, one source is chosen for a whole round of samples, one sample for each lane. Round t has the samples t * lanes .. t *
    lanes + lanes - 1 of the run. If sample k of the run is sample c of its source, k and c are equal modulo `lanes`. So a lane of the run
    is a lane of every source. The count of a source is less than `lanes` samples away from its share. Weights that change within a round
    apply from the next round on.

    Each segment begins a new period. The counts of earlier samples continue from segment to segment.

    Proof that a count is always less than 1 away from the share: let a source have the whole weight a, and let P be the sum of the weights.
    The j-th sample of this source may come at slots floor(jP/a) to ceil((j+1)P/a) - 1 of the period. These slots are the window of this
    sample. Serving every source at its constant rate fits the windows. Matchings in a bipartite graph are integral, so some order of whole
    samples fits the windows too. Then one more order fits: of all open windows, always take the window that closes first. After t slots,
    the windows that have closed give at least floor(ta/P) samples, and the windows that have opened give at most ceil(ta/P). See Tijdeman
    1980, "The chairman assignment problem". P-fair scheduling (Baruah et al. 1996) uses the same windows.

    Args:
        names: The names of the sources, all different.
        schedule: (first sample, weight per name) of every segment. The first segment begins at sample 0, and each one begins after the one
            before. Each segment names every source. Weights are positive numbers of any scale. A weight of 0 excludes a source from a
            segment, and at least one segment must include each source.
        lanes: The number of lanes of an order in blocks. 1 chooses a source for every sample.

    Attributes:
        weights: (first sample, whole weights in the order of `names`) of every segment. If whole numbers in the exact ratio of the given
            decimals have a sum of at most 2**20, the weights are these numbers. Otherwise they are rounded by largest remainders to the sum
            2**20, and no positive weight becomes 0.

    Raises:
        NielsCacheError: For an invalid schedule.
    """

    def __init__(self, names: Sequence[str], schedule: Schedule, *, lanes: int = 1) -> None:
        self.weights = _whole_schedule(list(names), schedule)
        self._lanes = lanes
        of_rounds = {-(-first // lanes): shares for first, shares in self.weights}  # of two segments in one round, the later one counts
        self._firsts = np.array(list(of_rounds), dtype=np.int64)
        self._segments: list[_Segment] = []
        before = np.zeros(len(names), dtype=np.int64)
        for (first, weights), end in itertools.zip_longest(of_rounds.items(), list(of_rounds)[1:]):
            self._segments.append(_make_segment(first=first, weights=weights, before=before, length=None if end is None else end - first))
            if end is not None:
                before = self._segments[-1].counts(end)

    def at(self, samples: Ints) -> tuple[Ints, Ints]:
        """Return the source of each sample, and how many earlier samples of the run come from this source.

        Args:
            samples: (n,) int64, numbers of samples in the run.

        Returns:
            Two arrays (n,) int64: the index of the source, and the number of earlier samples of this source.
        """
        if self._lanes == 1:
            return self._of_rounds(samples)
        rounds, lanes = np.divmod(samples, self._lanes)
        sources, numbers = self._of_rounds(rounds)
        return sources, numbers * self._lanes + lanes

    def _of_rounds(self, rounds: Ints) -> tuple[Ints, Ints]:
        """Return the source of each round, and the number of earlier rounds of this source."""
        if len(self._segments) == 1:
            return self._segments[0].at(rounds)
        sources, numbers = np.empty_like(rounds, dtype=np.int64), np.empty_like(rounds, dtype=np.int64)
        segment_of_round = self._firsts.searchsorted(rounds, side="right") - 1
        for index in np.unique(segment_of_round).tolist():
            chosen = np.flatnonzero(segment_of_round == index)
            sources[chosen], numbers[chosen] = self._segments[index].at(rounds[chosen])
        return sources, numbers

    def counts(self, samples: int) -> Ints:
        """Return how many of the first `samples` global samples come from each source, (sources,) int64."""
        rounds, lanes = divmod(samples, self._lanes)
        counts = self._segments[int(self._firsts[1:].searchsorted(rounds, side="left"))].counts(rounds) * self._lanes
        if lanes:
            counts[self._of_rounds(np.array([rounds]))[0]] += lanes
        return counts

    def position(self, source: int, number: int) -> int | None:
        """Return the sample of the run that is the `number`-th sample (from 0) of a source.

        Return None if the source never reaches this sample, because the last segment excludes the source.
        """
        rounds, lane = divmod(number, self._lanes)
        earlier = (segment for segment, following in itertools.pairwise(self._segments) if rounds < following.before[source])
        segment = next(earlier, self._segments[-1])
        return segment.position(source, rounds) * self._lanes + lane if segment.weights[source] else None

    def positions(self, source: int, numbers: Ints) -> Ints:
        """Return `position` of many samples of a source, (n,) int64, with -1 in place of None. `numbers` is below 2**43."""
        rounds, lanes = np.divmod(numbers, self._lanes)
        found = np.full_like(numbers, -1)
        of_segment = np.array([segment.before[source] for segment in self._segments[1:]], dtype=np.int64).searchsorted(rounds, side="right")
        for index in np.unique(of_segment).tolist():
            segment = self._segments[index]
            if segment.weights[source]:
                own = np.flatnonzero(of_segment == index)
                periods, numbers_in_period = np.divmod(rounds[own] - segment.before[source], segment.weights[source])
                slots = segment.slots[segment.slot_starts[source] + numbers_in_period]
                found[own] = (segment.first + periods * segment.period + slots) * self._lanes + lanes[own]
        return found


@dataclass(frozen=True, kw_only=True)
class _Segment:
    """One segment of the schedule, in rounds from `first` on. Without lanes, a round is a sample.

    A slot is a place for one sample in the period.

    Attributes:
        first: The first round.
        weights: (sources,), the whole weights.
        period: The sum of the weights.
        before: (sources,), the number of samples of each source in earlier segments.
        sources: The source of every slot, at most one period long.
        numbers: The number of earlier slots of the same source, for every slot.
        slots: All slots sorted by source.
        slot_starts: (sources,). The slots of source i begin at `slots[slot_starts[i]]`.
    """

    first: int
    weights: Ints
    period: int
    before: Ints
    sources: Array
    numbers: Int32s
    slots: Int32s
    slot_starts: Ints

    def at(self, samples: Ints) -> tuple[Ints, Ints]:
        periods, slots = divmod(samples - self.first, self.period)
        sources = self.sources[slots].astype(np.int64)
        numbers = self.numbers[slots].astype(np.int64)
        numbers += self.before[sources] + periods * self.weights[sources]
        return sources, numbers

    def counts(self, samples: int) -> Ints:
        periods, slots = divmod(samples - self.first, self.period)
        of_source = np.split(self.slots, self.slot_starts[1:])
        return self.before + periods * self.weights + np.array([own.searchsorted(slots) for own in of_source], dtype=np.int64)

    def position(self, source: int, number: int) -> int:
        periods, number_in_period = divmod(int(number) - int(self.before[source]), int(self.weights[source]))
        return self.first + periods * self.period + int(self.slots[self.slot_starts[source] + number_in_period])


def _make_segment(*, first: int, weights: tuple[int, ...], before: Ints, length: int | None) -> _Segment:
    """Return a segment. At most `length` slots are computed.

    Args:
        first: The first round.
        weights: The whole weights of the sources.
        before: (sources,), the number of samples of each source in earlier segments.
        length: The number of rounds until the next segment, or None for the last segment.
    """
    period = sum(weights)
    sources = _interleave(weights, slots=period if length is None else min(period, length))
    order = sources.argsort(kind="stable")
    slots_of_source = np.bincount(sources, minlength=len(weights))
    starts = np.cumsum(slots_of_source) - slots_of_source
    numbers = np.empty(len(sources), dtype=np.int32)
    numbers[order] = np.arange(len(sources)) - starts.repeat(slots_of_source)
    return _Segment(
        first=first,
        weights=np.array(weights, dtype=np.int64),
        period=period,
        before=before,
        sources=sources,
        numbers=numbers,
        slots=order.astype(np.int32),
        slot_starts=starts,
    )


def _interleave(weights: Sequence[int], *, slots: int) -> Array:
    """Return the source of each of the first `slots` slots of a period. Each slot takes the open window that closes first (see Blend)."""
    period = sum(weights)
    # Only windows that open before `slots` are needed: those with j * period / weight < slots.
    windows = [np.arange(-(-slots * weight // period), dtype=np.int64) for weight in weights]
    opens = np.concatenate([j * period // max(weight, 1) for j, weight in zip(windows, weights, strict=True)])
    closes = np.concatenate([-(-(j + 1) * period // max(weight, 1)) for j, weight in zip(windows, weights, strict=True)])
    source = np.repeat(np.arange(len(weights)), [len(j) for j in windows])
    by_opening = opens.argsort(kind="stable")
    keys = iter((closes * len(weights) + source)[by_opening].tolist())  # a key is one number that sorts by closing slot, then by source
    chosen: list[int] = []
    is_open: list[int] = []
    for opening in np.bincount(opens, minlength=slots).tolist():
        for key in itertools.islice(keys, max(opening - 1, 0)):
            heapq.heappush(is_open, key)
        chosen.append(heapq.heappushpop(is_open, next(keys)) if opening else heapq.heappop(is_open))
    return (np.array(chosen) % len(weights)).astype(np.min_scalar_type(len(weights)))


def _whole_schedule(names: list[str], schedule: Schedule) -> tuple[tuple[int, tuple[int, ...]], ...]:
    if not schedule:
        raise NielsCacheError("schedule: empty; give at least (0, weights)")
    firsts = [as_int(first) for first, _ in schedule]
    if firsts[0] != 0:
        raise NielsCacheError(f"schedule: the first segment starts at sample {schedule[0][0]!r}; it must start at 0")
    checked: list[tuple[int, tuple[int, ...]]] = []
    used = set()
    for first, (given, weights) in zip(firsts, schedule, strict=True):
        if first is None or (checked and first <= checked[-1][0]) or first >= _MAX_SAMPLES:
            raise NielsCacheError(
                f"schedule: a segment starts at sample {given!r:.40}; starts must be increasing whole numbers below 2**60"
            )
        where = f"weights from sample {first}"
        _check_names(where, names, weights)
        fractions = [_fraction(where, name, weights[name], zero=len(schedule) > 1) for name in names]
        if not any(fractions):
            raise NielsCacheError(f"{where}: all are 0; give at least one source a positive weight")
        used |= {name for name, fraction in zip(names, fractions, strict=True) if fraction}
        checked.append((first, _whole_weights(fractions)))
    unused = [name for name in names if name not in used]
    if unused:
        raise NielsCacheError(f"weights of {', '.join(unused)}: 0 in every segment; leave out a source without a positive weight")
    return tuple(checked)


def _check_names(where: str, names: list[str], weights: Mapping[str, float]) -> None:
    unknown = [name for name in weights if name not in names]
    if unknown:
        hint = did_you_mean(unknown[0], names, f"the sources are {', '.join(names)}")
        raise NielsCacheError(f"{where}: no source is named {', '.join(map(str, unknown))}; {hint}")
    missing = [name for name in names if name not in weights]
    if missing:
        raise NielsCacheError(f"{where}: no weight for {', '.join(missing)}; every source needs one")


def _fraction(where: str, name: str, weight: Any, *, zero: bool) -> Fraction:
    """Return the weight as the fraction that its decimals say: 0.1 is a tenth, not the nearest binary number."""
    whole = as_int(weight)
    fraction = Fraction(repr(float(weight)) if whole is None else whole)
    if fraction < 0 or (fraction == 0 and not zero):
        hint = "leave out a source without a positive weight" if fraction == 0 else "give a positive number"
        raise NielsCacheError(f"{where}: {name} has {weight!r}; {hint}")
    return fraction


def _whole_weights(fractions: Sequence[Fraction]) -> tuple[int, ...]:
    """Return whole numbers in the ratio of `fractions`. The ratio is approximate if the sum would otherwise be above MAX_PERIOD."""
    scale = math.lcm(*(fraction.denominator for fraction in fractions))
    shares = _divided_by_gcd([int(fraction * scale) for fraction in fractions])
    return shares if sum(shares) <= MAX_PERIOD else _divided_by_gcd(_largest_remainder(shares, total=MAX_PERIOD))


def schedule_of_counts(names: Sequence[str], counts: Sequence[int], *, first: int = 0) -> Schedule:
    """Return a schedule under which each source has had `counts` samples after sum(counts) samples, always near its share of them.

    All weights are 1 after that, because a schedule has no end.

    Args:
        names: The names of the sources.
        counts: The number of samples of each source.
        first: The first sample.
    """
    if not any(counts):
        return [(first, dict.fromkeys(names, 1))]
    weights = _divided_by_gcd(counts if sum(counts) <= _PERIOD_OF_COUNTS else _largest_remainder(counts, total=_PERIOD_OF_COUNTS))
    periods = min(count // weight for count, weight in zip(counts, weights, strict=True) if weight)
    left = [count - periods * weight for count, weight in zip(counts, weights, strict=True)]
    return [(first, dict(zip(names, weights, strict=True))), *schedule_of_counts(names, left, first=first + periods * sum(weights))]


def _divided_by_gcd(shares: Sequence[int]) -> tuple[int, ...]:
    divisor = math.gcd(*shares)
    return tuple(share // divisor for share in shares)


def _largest_remainder(shares: Sequence[int], *, total: int) -> list[int]:
    """Divide `total` in the ratio of `shares`, with at least 1 for every positive share.

    A source whose share would be below 1 gets 1. The rest of `total` is divided among the other sources.
    """
    result = [0] * len(shares)
    divided = {index for index, share in enumerate(shares) if share}
    while True:
        left, total_shares = total - sum(result), sum(shares[index] for index in divided)
        below = {index for index in divided if shares[index] * left < total_shares}
        if not below:
            break
        for index in below:
            result[index] = 1
        divided -= below
    for index in divided:
        result[index] = shares[index] * left // total_shares
    by_remainder = sorted(divided, key=lambda index: (-(shares[index] * left % total_shares), index))
    for index in by_remainder[: total - sum(result)]:
        result[index] += 1
    return result
