"""Documents and examples of a finished cache to look at: the first, one drawn by the content's hash, the longest, the shortest.

Cost: 8 bytes read for each document or example, and the few tokens that are shown. What they look like is for whoever shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.cache.mmap import MappedTokens, Offsets, map_example_starts, map_offsets
from niels_cache_runtime.format.foreign_meta import is_foreign
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, Family, Split, doc_ends_name, idx_name, list_shards, tokens_name
from niels_cache_runtime.format.meta import Meta, build_id

SHOWN_TOKENS = 200

_BLOCK_OFFSETS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Sample:
    """`tokens` (uint16): those to show, the first of the `length` that the document or example has. `number`: its place in the split."""

    what: str
    number: int
    length: int
    tokens: NDArray[np.uint16]


def pick_samples(directory: Path, family: Family, split: Split, meta: Meta, *, shown: int = SHOWN_TOKENS) -> list[Sample]:
    """At most four different ones; none of an empty split. Raises NielsCacheError for files that are missing or cannot be read."""
    if family == "pretrain":
        shards = MappedTokens(list_shards(directory / split)).shards
        ends: Offsets = map_offsets(directory / doc_ends_name(split), DOC_ENDS_DTYPE)
    else:
        shards = MappedTokens([directory / tokens_name(split)]).shards
        starts = map_example_starts(directory / idx_name(split), token_count=len(shards[0]))
        ends = np.append(starts[1:], len(shards[0])) if len(starts) else starts
    if not len(ends):
        return []
    longest, shortest = _extremes(ends)
    numbers: dict[int, str] = {}
    drawn = int(build_id(meta) or "0" if is_foreign(meta) else meta["content_sha256"], 16) % len(ends)
    for what, number in (("first", 0), ("random", drawn), ("longest", longest), ("shortest", shortest)):
        numbers[number] = f"{numbers[number]}, {what}" if number in numbers else what
    return [_sample(what, number, ends, shards, shown) for number, what in numbers.items()]


def _extremes(ends: Offsets) -> tuple[int, int]:
    """Numbers of the longest and the shortest, the first of each."""
    longest = shortest = (0, int(ends[0]))
    for first in range(0, len(ends), _BLOCK_OFFSETS):
        before = int(ends[first - 1]) if first else 0
        lengths = np.diff(ends[first : first + _BLOCK_OFFSETS].astype(np.int64), prepend=before)
        most, least = int(lengths.argmax()), int(lengths.argmin())
        longest = max(longest, (first + most, int(lengths[most])), key=lambda found: found[1])
        shortest = min(shortest, (first + least, int(lengths[least])), key=lambda found: found[1])
    return longest[0], shortest[0]


def _sample(what: str, number: int, ends: Offsets, shards: Sequence[NDArray[np.uint16]], shown: int) -> Sample:
    start = int(ends[number - 1]) if number else 0
    length = int(ends[number]) - start
    return Sample(what=what, number=number, length=length, tokens=_tokens(shards, start, min(length, shown)))


def _tokens(shards: Sequence[NDArray[np.uint16]], start: int, count: int) -> NDArray[np.uint16]:
    """Of a stream that is cut into shards."""
    pieces: list[NDArray[np.uint16]] = []
    for shard in shards:
        if count and start < len(shard):
            pieces.append(shard[start : start + count])
            count -= len(pieces[-1])
        start = max(0, start - len(shard))
    return np.concatenate(pieces)
