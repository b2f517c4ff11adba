"""The first token that differs between two splits, and the document that it is in on each side.

Tokens are mapped and compared in blocks, in the order of the stream, whatever sizes the shards have. Cost: one pass over both up to the
first difference. Memory: a few blocks. How the place is shown is the command line's business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from niels_cache_assets.show.lineage import Lineage, read_lineage
from niels_cache_assets.show.split_tokens import SplitTokens

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


def _place(tokens: SplitTokens, position: int) -> TokenPlace:
    number = tokens.number_at(position)
    start, end = tokens.bounds(number)
    file, offset = tokens.file_at(position)
    first = max(start, position - AROUND)
    around = tokens.read(first, min(end, position + 1 + AROUND) - first).tolist()
    return TokenPlace(
        file=file,
        offset=offset,
        document=number,
        document_offset=position - start,
        document_tokens=end - start,
        lineage=read_lineage(tokens.lineage, [number])[number] if tokens.lineage.exists() else None,
        before=around[: position - first],
        token=around[position - first],
        after=around[position - first + 1 :],
    )


def first_difference(a: SplitTokens, b: SplitTokens, *, progress: Callable[[int], None] = lambda tokens: None) -> TokenDifference | None:
    """None where both are the same. `progress`: told how many tokens were compared."""
    shared = min(len(a), len(b))
    for start in range(0, shared, _BLOCK_TOKENS):
        ours, theirs = (side.read(start, min(_BLOCK_TOKENS, shared - start)) for side in (a, b))
        differs = ours != theirs
        if differs.any():
            position = start + int(differs.argmax())
            return TokenDifference(position=position, a=_place(a, position), b=_place(b, position))
        progress(len(ours))
    if len(a) == len(b):
        return None
    return TokenDifference(
        position=shared, a=_place(a, shared) if len(a) > shared else None, b=_place(b, shared) if len(b) > shared else None
    )
