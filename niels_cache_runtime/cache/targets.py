"""The spans of targets of an SFT split: those of files beside its tokens, or those that sentinels mark (`sft.find_spans`).

    train_targets.npy      [[3, 9], [14, 20], [25, 31], ...]     uint64: first token of a span, and the token after its last one
    train_target_ends.npy  [2, 3, ...]                           uint64: how many spans there are up to the end of each example

Both files are mapped. A mask costs two reads for each example in it. Data sets that sentinels describe fully have no such files.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from niels_cache_runtime.cache.mmap import Offsets, map_offsets
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TARGETS_DTYPE, Bools, Ints, Split, Uints, target_ends_name, targets_name

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
    """

    def __init__(self, bounds: Uints, ends: Uints) -> None:
        self.bounds, self.ends = bounds, ends

    def __len__(self) -> int:
        return len(self.bounds)

    def spans_of(self, examples: Ints) -> tuple[Ints, Ints, Ints]:
        """Return all spans of some examples, as three arrays (m,) int64. Tokens are counted from the start of the split.

        Args:
            examples: (S,) int64, the numbers of the examples.

        Returns:
            For each span, the place of its example in `examples`, its first token, and the token after its last one.
        """
        ends = self.ends[examples].astype(np.int64)
        firsts = np.where(examples > 0, self.ends[np.maximum(examples - 1, 0)].astype(np.int64), 0)
        counts = ends - firsts
        owners = np.repeat(np.arange(len(examples)), counts)
        rows = np.arange(int(counts.sum())) + np.repeat(firsts - np.cumsum(counts) + counts, counts)
        bounds = self.bounds[rows].astype(np.int64)
        return owners, bounds[:, 0], bounds[:, 1]

    def mask(self, size: int, parts: ExampleSlices, *, only_last: bool = False) -> Bools:
        """Return which tokens are targets, (size,) bool.

        The first token of a part is never a target, because no token comes before it. Tokens outside of all parts are not targets.

        Args:
            size: The number of tokens of the array in which the parts lie.
            parts: The parts of examples, in the order of their places.
            only_last: Whether only the last span of each part counts, among those with a target in this part.
        """
        owners, begins, ends = self._clipped(parts)
        if only_last and len(owners):
            is_last = np.append(owners[1:] != owners[:-1], True)
            owners, begins, ends = owners[is_last], begins[is_last], ends[is_last]
        shift = (parts.places - parts.starts)[owners]
        edges = np.stack([begins + shift, ends + shift], axis=1).ravel()
        runs = np.diff(edges, prepend=0, append=size)  # by turns outside and inside of a span
        return np.repeat(np.arange(len(runs)) % 2 == 1, runs)

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
            owners, _, _ = self._clipped(ExampleSlices(examples=examples, starts=starts[block], lengths=lengths[block], places=examples))
            found[first + owners] = True
        return found

    def _clipped(self, parts: ExampleSlices) -> tuple[Ints, Ints, Ints]:
        """Return the targets inside of the parts, in the form of `spans_of`. Spans without a target there are left out."""
        owners, begins, ends = self.spans_of(parts.examples)
        begins = np.maximum(begins, parts.starts[owners] + 1)
        ends = np.minimum(ends, (parts.starts + parts.lengths)[owners])
        kept = begins < ends
        return owners[kept], begins[kept], ends[kept]


def map_targets(folder: Path, split: Split, *, starts: Ints, token_count: int) -> TargetSpans:
    """Map the spans of a split with these example starts. This reads both files once.

    Raises:
        NielsCacheError: If a file is missing or malformed, or if spans are not in order, touch each other or leave their example.
    """
    path, ends_path = folder / targets_name(split), folder / target_ends_name(split)
    bounds, ends = map_offsets(path, TARGETS_DTYPE, row=(2,)), map_offsets(ends_path, TARGETS_DTYPE)
    check_targets(path, ends_path, bounds, ends, starts, token_count=token_count)
    return TargetSpans(bounds, ends)


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
