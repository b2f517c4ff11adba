"""The tokens of a split of a finished cache as one stream, and the bounds of its documents or examples.

Files are mapped, so only the tokens that you use are read.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np

from niels_cache_runtime.cache.mmap import MappedTokens, Offsets, map_example_starts, map_offsets, slice_pieces
from niels_cache_runtime.format.layout import (
    DOC_ENDS_DTYPE,
    SIDES,
    Family,
    Ints,
    Tokens,
    doc_ends_name,
    documents_name,
    entries_per_example,
    examples_name,
    idx_name,
    list_shards,
    token_dtype_of,
    tokens_name,
)
from niels_cache_runtime.format.meta import Meta

_BLOCK_OFFSETS = 1 << 20
_GAP_TOKENS, _REQUESTS = 1 << 15, 16  # ranges in a store with smaller gaps are read by one request, and so many requests at a time


def lengths_of(ends: Offsets) -> Iterator[Ints]:
    """Yield the lengths of documents or examples in blocks, given where each ends."""
    for first in range(0, len(ends), _BLOCK_OFFSETS):
        before = int(ends[first - 1]) if first else 0
        yield np.diff(ends[first : first + _BLOCK_OFFSETS].astype(np.int64), prepend=before)


class SplitTokens:
    """The tokens of one split.

    Args:
        folder: The folder of the data set.
        family: The family of the data set.
        split: The split, or the name of a copy of train (`copies_of`), which has no lineage.
        meta: The meta.json of the data set.
        shards: The token files in order, if they are not in the folder: anything with a length that gives an array for a slice.

    Attributes:
        dtype: The dtype of the tokens.
        shards: The token files in order, each an array (n,) of this dtype.
        paths: Their paths, if they are in the folder.

    Raises:
        NielsCacheError: If files are missing or inconsistent.
    """

    def __init__(self, folder: Path, family: Family, split: Any, meta: Meta, *, shards: Sequence[Any] | None = None) -> None:
        self._folder, self._family, self._split = folder, family, split
        self.paths: Sequence[Path] = ()
        if shards is None:
            self.paths = list_shards(folder / split) if family == "pretrain" else [folder / tokens_name(split)]
        self.dtype, self._entries = token_dtype_of(meta), entries_per_example(meta)
        self.shards = MappedTokens(self.paths, dtype=self.dtype).shards if shards is None else shards
        self._shard_ends = list(accumulate(len(shard) for shard in self.shards))

    def __len__(self) -> int:
        return self._shard_ends[-1] if self._shard_ends else 0

    @property
    def lineage(self) -> Path:
        """The lineage file of its documents or examples, which may be missing."""
        return self._folder / (documents_name(self._split) if self._family == "pretrain" else examples_name(self._split))

    @cached_property
    def ends(self) -> Offsets:
        """The end of each document or example, in tokens from the start of the split."""
        return self.entry_ends[self._entries - 1 :: self._entries]

    @cached_property
    def entry_ends(self) -> Offsets:
        """The end of each document, example, or side of a preference pair."""
        if self._family == "pretrain":
            return map_offsets(self._folder / doc_ends_name(self._split), DOC_ENDS_DTYPE)
        starts = map_example_starts(self._folder / idx_name(self._split), token_count=len(self))
        return np.append(starts[1:], len(self)) if len(starts) else starts

    def number_at(self, position: int) -> int:
        """Return the number of the document or example that contains this token."""
        ends: Any = self.ends
        return int(np.searchsorted(ends, np.array(position, dtype=ends.dtype), side="right"))  # with the same dtype, nothing is copied

    def bounds(self, number: int) -> tuple[int, int]:
        """Return the start and the end of a document or example, in tokens."""
        return int(self.ends[number - 1]) if number else 0, int(self.ends[number])

    def sides(self, number: int) -> list[tuple[str, int, int]]:
        """Return the name, the start and the end of each side of a preference pair. Any other item is one side without a name."""
        start, end = self.bounds(number)
        if self._entries == 1:
            return [("", start, end)]
        middle = int(self.entry_ends[self._entries * number])
        return [*zip(SIDES, (start, middle), (middle, end), strict=True)]

    def file_at(self, position: int) -> tuple[str, int]:
        """Return the file of this token, relative to the folder of the data set, and the token's offset in it, in tokens."""
        number, begin = self._shard_at(position)
        return self.paths[number].relative_to(self._folder).as_posix(), position - begin

    def read(self, start: int, count: int) -> Tokens:
        """Return (count,) tokens, or fewer at the end of the split.

        The result is a view if all tokens are in one file, otherwise a copy.
        """
        number, begin = self._shard_at(start)
        pieces = [*slice_pieces(self.shards[number:], start - begin, start - begin + count)]
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, dtype=self.dtype), *pieces])

    def read_ranges(self, starts: Ints, stops: Ints) -> list[Tokens]:
        """Return the tokens of ranges, which ascend. Ranges beside each other are read at once, in a store also those with small gaps."""
        gap = 0 if self.paths else _GAP_TOKENS
        edges = [0, *(np.flatnonzero(starts[1:] - stops[:-1] > gap) + 1).tolist(), len(starts)]

        def read(first: int, last: int) -> list[Tokens]:
            begin = int(starts[first])
            found = self.read(begin, int(stops[last - 1]) - begin)
            return [found[start - begin : stop - begin] for start, stop in zip(starts[first:last], stops[first:last], strict=True)]

        with ThreadPoolExecutor(_REQUESTS) as pool:
            return [*chain.from_iterable((map if self.paths else pool.map)(read, edges, edges[1:]))]

    def _shard_at(self, position: int) -> tuple[int, int]:
        """Return the number of the shard with this token, and where that shard starts."""
        number = bisect_right(self._shard_ends, position)
        return number, self._shard_ends[number - 1] if number else 0
