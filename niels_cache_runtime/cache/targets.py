"""The spans of targets of an SFT split: those of files beside its tokens, or those that sentinels mark (`sft.find_spans`).

    train_targets.npy      [[3, 9], [14, 20], [25, 31], ...]     uint64: first token of a span, and the token after its last one
    train_target_ends.npy  [2, 3, ...]                           uint64: how many spans there are up to the end of each example

    train_target_weights.npy  [1.0, 0.5, ...]                    float32: the weight of each span; only if some are not 1

All files are mapped. A mask costs two reads for each example in it. Data sets that sentinels describe fully have no such files.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from niels_cache_runtime.cache.mmap import Offsets, map_offsets
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import (
    TARGETS_DTYPE,
    WEIGHTS_DTYPE,
    Array,
    Bools,
    Floats,
    Ints,
    Split,
    Uints,
    target_ends_name,
    target_weights_name,
    targets_name,
)

_BLOCK_EXAMPLES = 1 << 18


@dataclass(frozen=True, kw_only=True, eq=False)
class ExampleSlices:
    """Parts of examples that lie in an array of tokens. All arrays are (S,) int64.

    Attributes:
        examples: The number of each example in its split.
        starts: The first token of each part, in tokens of the split.
        lengths: The number of tokens of each part.
        places: Where each part begins in the array.
    """

    examples: Ints
    starts: Ints
    lengths: Ints
    places: Ints


class TargetSpans:
    """The spans of a split.

    Args:
        bounds: (spans, 2) uint64, the first token of each span and the token after its last one.
        ends: (examples,) uint64, how many spans there are up to the end of each example.
        weights: (spans,) float32, the weight of each span. None if all are 1.
    """

    def __init__(self, bounds: Uints, ends: Uints, weights: Floats | None = None) -> None:
        self.bounds, self.ends, self.weights = bounds, ends, weights

    def __len__(self) -> int:
        return len(self.bounds)

    def spans_of(self, examples: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return all spans of some examples, as four arrays (m,) int64. Tokens are counted from the start of the split.

        Args:
            examples: (S,) int64, the numbers of the examples.

        Returns:
            For each span, the place of its example in `examples`, its first token, the token after its last one, and its number.
        """
        ends = self.ends[examples].astype(np.int64)
        firsts = np.where(examples > 0, self.ends[np.maximum(examples - 1, 0)].astype(np.int64), 0)
        counts = ends - firsts
        owners = np.repeat(np.arange(len(examples)), counts)
        rows = np.arange(int(counts.sum())) + np.repeat(firsts - np.cumsum(counts) + counts, counts)
        bounds = self.bounds[rows].astype(np.int64)
        return owners, bounds[:, 0], bounds[:, 1], rows

    def mask(self, size: int, parts: ExampleSlices, *, only_last: bool = False) -> Bools:
        """Return which tokens are targets, (size,) bool: those that `weigh` gives a weight."""
        return self.weigh(size, parts, only_last=only_last) > 0

    def weigh(self, size: int, parts: ExampleSlices, *, only_last: bool = False) -> Array:
        """Return the weight of each token as a target, (size,): float32 if targets have weights, otherwise bool.

        The first token of a part is never a target, because no token comes before it. Tokens outside of all parts are not targets.

        Args:
            size: The number of tokens of the array in which the parts lie.
            parts: The parts of examples, in the order of their places.
            only_last: Whether only the last span of each part counts, among those with a target in this part.
        """
        owners, begins, ends, numbers = self._clipped(parts)
        if only_last and len(owners):
            is_last = np.append(owners[1:] != owners[:-1], True)
            owners, begins, ends, numbers = owners[is_last], begins[is_last], ends[is_last], numbers[is_last]
        shift = (parts.places - parts.starts)[owners]
        edges = np.stack([begins + shift, ends + shift], axis=1).ravel()
        runs = np.diff(edges, prepend=0, append=size)  # by turns outside and inside of a span
        values: Array = np.zeros(len(runs), dtype=np.bool_ if self.weights is None else np.float32)
        values[1::2] = True if self.weights is None else self.weights[numbers]
        return np.repeat(values, runs)

    def have_targets(self, starts: Ints, lengths: Ints) -> Bools:
        """Return which parts have a target, (K,) bool.

        Args:
            starts: (K,), the first token of the part of each example of the split, as in ExampleSlices.
            lengths: (K,), the number of tokens of these parts.
        """
        found = np.zeros(len(starts), dtype=np.bool_)
        for first in range(0, len(starts), _BLOCK_EXAMPLES):
            block = slice(first, first + _BLOCK_EXAMPLES)
            examples = np.arange(first, min(first + _BLOCK_EXAMPLES, len(starts)))
            owners, *_ = self._clipped(ExampleSlices(examples=examples, starts=starts[block], lengths=lengths[block], places=examples))
            found[first + owners] = True
        return found

    def _clipped(self, parts: ExampleSlices) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the targets inside of the parts, in the form of `spans_of`. Spans without a target there are left out."""
        owners, begins, ends, numbers = self.spans_of(parts.examples)
        begins = np.maximum(begins, parts.starts[owners] + 1)
        ends = np.minimum(ends, (parts.starts + parts.lengths)[owners])
        kept = begins < ends
        return owners[kept], begins[kept], ends[kept], numbers[kept]


def map_targets(folder: Path, split: Split, *, starts: Ints, token_count: int, with_weights: bool = False) -> TargetSpans:
    """Map the spans of a split with these example starts. This reads all files once.

    Args:
        folder: The folder of the data set.
        split: The split.
        starts: (examples,) int64, where each example begins.
        token_count: The number of tokens of the split.
        with_weights: Whether the split has weights.

    Raises:
        NielsCacheError: If a file is missing or malformed, or if spans are not in order, touch each other or leave their example.
        NielsCacheError: If there is not one valid weight for each span.
    """
    path, ends_path = folder / targets_name(split), folder / target_ends_name(split)
    bounds, ends = map_offsets(path, TARGETS_DTYPE, row=(2,)), map_offsets(ends_path, TARGETS_DTYPE)
    check_targets(path, ends_path, bounds, ends, starts, token_count=token_count)
    if not with_weights:
        return TargetSpans(bounds, ends)
    weights_path = folder / target_weights_name(split)
    weights = map_offsets(weights_path, WEIGHTS_DTYPE)
    check_weights(weights_path, weights, spans=len(bounds))
    return TargetSpans(bounds, ends, weights)


def check_weights(path: Path, weights: Offsets, *, spans: int) -> None:
    """Raise NielsCacheError unless there is one valid weight above 0 for each span."""
    if len(weights) != spans:
        raise NielsCacheError(f"{path}: has {len(weights)} weights for {spans} spans; rebuild this data set")
    for first in range(0, spans, _BLOCK_EXAMPLES):
        block = weights[first : first + _BLOCK_EXAMPLES]
        is_valid = (block > 0) & (block < np.inf)
        if not is_valid.all():
            number = int(np.argmin(is_valid))
            raise NielsCacheError(f"{path}: weight {first + number} is {block[number]}; rebuild this data set")


def check_targets(path: Path, ends_path: Path, bounds: Offsets, ends: Offsets, starts: Offsets, *, token_count: int) -> None:
    """Check the spans of all examples, block by block.

    Raises:
        NielsCacheError: If the spans break a rule of `map_targets`.
    """
    if len(ends) != len(starts):
        raise NielsCacheError(f"{ends_path}: has {len(ends)} entries for {len(starts)} examples; rebuild this data set")
    begin = 0
    for first in range(0, len(starts), _BLOCK_EXAMPLES):
        stop = min(first + _BLOCK_EXAMPLES, len(starts))
        counts = np.diff(ends[first:stop].astype(np.int64), prepend=begin)
        end = begin + int(counts.sum())
        if counts.min() < 0 or end > len(bounds):
            break
        stops = np.append(starts[first + 1 : stop], starts[stop] if stop < len(starts) else token_count)
        own, owners = bounds[begin:end].astype(np.int64), np.repeat(np.arange(len(counts)), counts)
        wrong = (own[:, 0] >= own[:, 1]) | (own[:, 0] < starts[first:stop][owners]) | (own[:, 1] > stops[owners])
        wrong[1:] |= (owners[1:] == owners[:-1]) & (own[1:, 0] <= own[:-1, 1])
        if wrong.any():
            number = int(np.argmax(wrong))
            span = " to ".join(map(str, own[number].tolist()))
            raise NielsCacheError(
                f"{path}: span {begin + number} ({span}) is empty, touches the one before it, or leaves its example; rebuild this data set"
            )
        begin = end
    else:
        if begin == len(bounds):
            return
    raise NielsCacheError(f"{ends_path}: its entries do not grow up to the {len(bounds)} spans of the split; rebuild this data set")
