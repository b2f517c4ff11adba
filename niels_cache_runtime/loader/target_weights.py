"""Weights of targets: how much each target of a batch counts in the loss, and which do not count at all.

    weight of a target = loss_weights of its source * weight of its message * 1 or 0 of each mask

The masks are those of the targets of SFT rows and of `mask_cross_document_targets`, which `batch` knows, and two more:

* `Goldfish` leaves out about one target in k, so that a model cannot learn long passages by heart. The h tokens before a target decide. So
  a passage that occurs again, in any row, epoch or run, has the same gaps. The idea is that of the goldfish loss (Hans et al. 2024, arXiv
  2406.10209), which multiplies the ids of the tokens modulo a prime. That product does not depend on their order; the hash here does.
* `repetitive_rows` finds rows that repeat a few tokens over and over, with the rule of OLMo-core: such a row stays, with weight 0.

The hash of the tokens x_1 .. x_h is the sum of (x_i + 1) * BASE**i modulo 2**64, mixed. The sums of all windows of a row come from one
cumulative sum, so the cost does not depend on h. A source gives the tokens before its rows (`Heads`), so the result does not depend on T.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from niels_cache_runtime.format.layout import Bools, Floats, Ints, Tokens, Uints
from niels_cache_runtime.loader.source import NamedSources, SampleRows

# Hashes decide which targets are left out, so these numbers are promised.
_BASE = 0xD1342543DE82EF95
_MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_TOKENS_AT_ONCE = 1 << 15  # as many as fit into a CPU's cache with their hashes
_MARKS = 4  # of each run of equal pairs, at least


@dataclass(frozen=True, kw_only=True)
class MaskReport:
    """The targets of a source that `goldfish` and `mask_repetitive` have masked so far, in the batches of this process.

    Attributes:
        targets: The number of targets that count before `goldfish`.
        left_out: How many of them `goldfish` has left out.
        rows: The number of rows.
        repetitive: How many of them are repetitive.
    """

    targets: int
    left_out: int
    rows: int
    repetitive: int

    def __str__(self) -> str:
        share = self.left_out / max(1, self.targets)
        return f"of {self.targets:,} targets so far {share:.3%} left out; of {self.rows:,} rows {self.repetitive:,} repetitive"


class TargetWeights:
    """The weights of a loader's targets. It counts what it masks.

    Args:
        sources: The sources of the loader.
        loss_weights: The weights of sources by name. The others have weight 1.
        goldfish: k and h of Goldfish, or None.
        mask_repetitive: The longest period and the number of repetitions of `repetitive_rows`, or None.

    Attributes:
        needs_documents: Whether the weights depend on the boundaries of documents.
    """

    def __init__(
        self,
        sources: NamedSources,
        *,
        loss_weights: Mapping[str, float] | None,
        goldfish: Sequence[int] | None,
        mask_repetitive: Sequence[int] | None,
    ) -> None:
        self._names = [*sources]
        self._of_sources = np.array([(loss_weights or {}).get(name, 1) for name in sources], dtype=np.float32)
        recorded = [(source.meta or {}).get("special_token_ids") for source in sources.values()]
        exempt = {id for ids in recorded if isinstance(ids, dict) for id in ids.values() if isinstance(id, int)}
        exempt.update(*(getattr(source, "sentinels", ()) for source in sources.values()))
        self._goldfish = None if goldfish is None else Goldfish(*goldfish, exempt=exempt)
        self._repetitive = mask_repetitive
        self.needs_documents = goldfish is not None
        self._counts = np.zeros((len(sources), 4), dtype=np.int64)  # the numbers of a MaskReport, for each source

    def weigh(self, rows: SampleRows, targets: Bools | None, sources: Ints) -> Floats:
        """Return the weight of each target, (n, T) float32.

        Args:
            rows: The rows.
            targets: (n, T), the targets that may count, or None for all.
            sources: (n,), the index of each row's source.
        """
        n, width = rows.tokens.shape
        is_repetitive = np.zeros(n, dtype=np.bool_) if self._repetitive is None else repetitive_rows(rows, *self._repetitive)
        of_rows = np.where(is_repetitive, np.float32(0), self._of_sources[sources])
        counted = (np.ones((n, width - 1), dtype=np.bool_) if targets is None else targets) & (of_rows[:, None] > 0)
        before = np.count_nonzero(counted, axis=1)
        left_out = np.zeros_like(before)
        if self._goldfish is not None:
            out = self._goldfish.left_out(rows)
            out &= counted
            counted ^= out
            left_out = np.count_nonzero(out, axis=1)
        np.add.at(self._counts, sources, np.stack([before, left_out, np.ones_like(before), is_repetitive], axis=1))
        weights = np.where(counted, of_rows[:, None], np.float32(0))
        return weights if rows.weights is None else weights * rows.weights

    def report(self, name: str) -> MaskReport | None:
        """Return what was masked of a source so far, or None if neither `goldfish` nor `mask_repetitive` is set."""
        if self._goldfish is None and self._repetitive is None:
            return None
        targets, left_out, rows, repetitive = self._counts[self._names.index(name)].tolist()
        return MaskReport(targets=targets, left_out=left_out, rows=rows, repetitive=repetitive)


class Goldfish:
    """The choice of the targets that are left out, from the tokens before them in their document.

    Args:
        k: About one target in k is left out.
        h: The number of tokens that decide. A target with fewer tokens before it in its document is never left out.
        exempt: The ids of tokens that are never left out.
    """

    def __init__(self, k: int, h: int, *, exempt: Collection[int] = ()) -> None:
        self._limit, self._h = np.uint64(2**64 // k), h
        self._exempt = np.array(sorted(exempt), dtype=np.int64)

    def left_out(self, rows: SampleRows) -> Bools:
        """Return which targets are left out, (n, T) bool, for rows with boundaries."""
        tokens, h, boundaries = rows.tokens, self._h, rows.boundaries
        assert boundaries is not None
        n, width = tokens.shape
        found = np.zeros((n, width), dtype=np.bool_)  # by the column of the target
        at_once = max(1, _TOKENS_AT_ONCE // width)
        for first in range(0, n if h < width else 0, at_once):
            part = slice(first, first + at_once)
            np.less(_window_hashes(tokens[part, :-1], h), self._limit, out=found[part, h:])
        flat, steps = found.reshape(-1), np.arange(h)
        firsts_of_rows, lasts = np.arange(n) * width, np.flatnonzero(~boundaries.continues) * width + width - 1
        starts = np.sort(np.concatenate([firsts_of_rows, boundaries.rows * width + boundaries.columns, lasts]))
        near = starts[:, None] + steps  # the next row's first h columns may be among these, and nothing was found there
        flat[near[near < len(flat)]] = False
        if (heads := rows.heads) is not None:
            places = heads.rows * width + heads.columns
            ends = np.append(starts, n * width)[starts.searchsorted(places, side="right")]
            targets = places[:, None] + steps[1:]
            after = tokens[np.divmod(np.minimum(targets - 1, n * width - 1), width)]
            is_out = _window_hashes(np.concatenate([heads.tokens, after], axis=1), h) < self._limit
            decides = (targets < ends[:, None]) & (heads.lengths[:, None] + steps[1:] >= h)
            flat[targets[decides]] = is_out[decides]  # also where BOS, which is before the part, has decided
        out = found[:, 1:]
        out[out] = ~np.isin(tokens[:, 1:][out], self._exempt)
        return out


def repetitive_rows(rows: SampleRows, most_period: int, count: int) -> Bools:
    """Return which rows repeat the same 1 to `most_period` tokens at least `count` times in succession, (n,) bool. Padding does not count.

    A repetition of period p is a run of p * (count - 1) or more columns c in which tokens c and c + p are equal. Each such run contains
    several columns that are a multiple of its length / 4. Only these columns of all rows are compared, and few rows remain to be checked.
    """
    tokens = rows.tokens
    n, width = tokens.shape
    found = np.zeros(n, dtype=np.bool_)
    filled = np.full(n, width) if rows.filled is None else rows.filled
    is_content = np.arange(width) < filled[:, None]
    if rows.padding is not None:
        is_content[np.divmod(rows.padding, width - 1)] = False
    for period in range(1, most_period + 1):
        length = period * (count - 1)
        if length + period > width:
            break
        step = max(1, length // _MARKS)
        equal = tokens[:, period::step] == tokens[:, :-period:step]
        marks = length // step
        together = equal[:, : equal.shape[1] - marks + 1]
        for mark in range(1, marks):
            together = together & equal[:, mark : equal.shape[1] - marks + 1 + mark]
        maybe = np.flatnonzero(together.any(axis=1) & ~found)
        if not len(maybe):
            continue
        pairs = tokens[maybe, period:] == tokens[maybe, :-period]
        pairs &= is_content[maybe, period:]
        runs = np.cumsum(np.pad(pairs, ((0, 0), (1, 0))), axis=1)
        found[maybe] = (runs[:, length:] - runs[:, :-length] == length).any(axis=1)
    return found


def _window_hashes(tokens: Tokens, h: int) -> Uints:
    """Return the hash of every h tokens in succession of each row of (n, width) tokens, (n, width - h + 1)."""
    n, width = tokens.shape
    powers, inverse = _powers(width)
    sums = np.zeros((n, width + 1), dtype=np.uint64)
    terms = tokens.astype(np.uint64)
    terms += np.uint64(1)  # so that a token of id 0 counts
    terms *= powers
    np.cumsum(terms, axis=1, out=sums[:, 1:])
    hashes = sums[:, h:] - sums[:, :-h]
    hashes *= inverse[: width - h + 1]  # as if every window began at column 0
    for shift, factor in zip((32, 29), _MIX, strict=True):
        hashes ^= hashes >> np.uint64(shift)
        hashes *= factor
    return hashes


@cache
def _powers(width: int) -> tuple[Uints, Uints]:
    """Return the powers 0 to width - 1 of _BASE and of its inverse modulo 2**64."""
    bases = np.array([[_BASE], [pow(_BASE, -1, 2**64)]], dtype=np.uint64)
    powers = np.multiply.accumulate(np.concatenate([np.ones_like(bases), bases.repeat(width - 1, axis=1)], axis=1), axis=1)
    return powers[0], powers[1]
