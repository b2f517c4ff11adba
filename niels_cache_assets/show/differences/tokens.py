"""The first token that differs between two splits, and the document that it is in on each side.

Tokens are mapped and compared in blocks, in the order of the stream, whatever sizes the shards have. Cost: one pass over both up to the
first difference. Memory: a few blocks. How the place is shown is the command line's business.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.show.lineage import Lineage, read_lineage
from niels_cache_runtime.cache.mmap import MappedTokens, Offsets, map_offsets
from niels_cache_runtime.format.layout import (
    DOC_ENDS_DTYPE,
    IDX_DTYPE,
    TOKEN_BYTES,
    Family,
    Split,
    doc_ends_name,
    documents_name,
    examples_name,
    idx_name,
    list_shards,
    tokens_name,
)

_BLOCK_TOKENS = 1 << 20
AROUND = 24  # tokens that are shown on either side


@dataclass(frozen=True, kw_only=True)
class TokenPlace:
    """Where a token lies. file, offset: of its tokens, from the file's start. document: its number in the split; document_offset: in
    tokens from the document's start, document_tokens: how many it has. lineage: None where the build has none. before, token, after: ids;
    those around it are of the same document.
    """

    file: str
    offset: int
    document: int
    document_offset: int
    document_tokens: int
    lineage: Lineage | None
    before: list[int]
    token: int
    after: list[int]


@dataclass(frozen=True, kw_only=True)
class TokenDifference:
    """position: in tokens from the split's start. a, b: None for the side that has ended there."""

    position: int
    a: TokenPlace | None
    b: TokenPlace | None


class SplitTokens:
    """The tokens of a split as one stream, and where its documents or examples begin. Raises NielsCacheError for files that do not fit."""

    def __init__(self, folder: Path, family: Family, split: Split) -> None:
        self._folder, self._family, self._split = folder, family, split
        self._paths = list_shards(folder / split) if family == "pretrain" else [folder / tokens_name(split)]
        self._shards = MappedTokens(self._paths).shards
        self._ends = list(accumulate(len(shard) for shard in self._shards))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def bytes(self) -> int:
        return len(self) * TOKEN_BYTES

    def read(self, start: int, count: int) -> NDArray[np.uint16]:
        """(count,) uint16, fewer at the end; a view where they lie in one file."""
        pieces: list[NDArray[np.uint16]] = []
        number = bisect_right(self._ends, start)
        while count > 0 and number < len(self._shards):
            begin = start - (self._ends[number] - len(self._shards[number]))
            piece = self._shards[number][begin : begin + count]
            pieces.append(piece)
            start, count, number = start + len(piece), count - len(piece), number + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, dtype=np.uint16), *pieces])

    def place(self, position: int) -> TokenPlace:
        document, start, end = self._document_at(position)
        number = bisect_right(self._ends, position)
        path = self._folder / (documents_name(self._split) if self._family == "pretrain" else examples_name(self._split))
        first = max(start, position - AROUND)
        around = self.read(first, min(end, position + 1 + AROUND) - first).tolist()
        return TokenPlace(
            file=self._paths[number].relative_to(self._folder).as_posix(),
            offset=position - (self._ends[number] - len(self._shards[number])),
            document=document,
            document_offset=position - start,
            document_tokens=end - start,
            lineage=read_lineage(path, [document])[document] if path.exists() else None,
            before=around[: position - first],
            token=around[position - first],
            after=around[position - first + 1 :],
        )

    def _document_at(self, position: int) -> tuple[int, int, int]:
        """Its number, its first token, its end."""
        if self._family == "pretrain":
            ends: Offsets = map_offsets(self._folder / doc_ends_name(self._split), DOC_ENDS_DTYPE)
            number = _first_above(ends, position)
            return number, int(ends[number - 1]) if number else 0, int(ends[number])
        starts: Offsets = map_offsets(self._folder / idx_name(self._split), IDX_DTYPE)
        number = _first_above(starts, position) - 1
        return number, int(starts[number]), int(starts[number + 1]) if number + 1 < len(starts) else len(self)


def _first_above(offsets: Any, position: int) -> int:
    """Of offsets that increase, without a copy of them."""
    return int(np.searchsorted(offsets, np.array(position, dtype=offsets.dtype), side="right"))


def first_difference(a: SplitTokens, b: SplitTokens, *, progress: Callable[[int], None] = lambda tokens: None) -> TokenDifference | None:
    """None where both are the same. `progress`: told how many tokens were compared."""
    shared = min(len(a), len(b))
    for start in range(0, shared, _BLOCK_TOKENS):
        ours, theirs = (side.read(start, min(_BLOCK_TOKENS, shared - start)) for side in (a, b))
        differs = ours != theirs
        if differs.any():
            position = start + int(differs.argmax())
            return TokenDifference(position=position, a=a.place(position), b=b.place(position))
        progress(len(ours))
    if len(a) == len(b):
        return None
    return TokenDifference(position=shared, a=a.place(shared) if len(a) > shared else None, b=b.place(shared) if len(b) > shared else None)
