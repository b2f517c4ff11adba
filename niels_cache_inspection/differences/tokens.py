"""The first token that differs between two splits, and the document with this token on each side.

Tokens are mapped and compared in blocks, in their order in the split. The sizes of the shards do not matter. A comparison takes one pass
over both splits, up to the first difference. A few blocks are in memory. The command line prints the result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from niels_cache_assets.disk.table_file import lineage_files
from niels_cache_assets.facts.lineage import read_lineage
from niels_cache_assets.facts.split_tokens import SplitTokens

_BLOCK_TOKENS = 1 << 20
AROUND = 24  # tokens to show on each side


@dataclass(frozen=True, kw_only=True)
class TokenPosition:
    """The position of a token in a build.

    Attributes:
        file: The token file.
        offset: Position of the token in this file, in tokens.
        document: Number of the document in the split.
        document_offset: Position of the token in the document, in tokens.
        document_tokens: Number of tokens in the document.
        lineage: Lineage of the document, or None if the build has none.
        before: Ids of the tokens before it in the same document.
        token: Id of the token.
        after: Ids of the tokens after it in the same document.
    """

    file: str
    offset: int
    document: int
    document_offset: int
    document_tokens: int
    lineage: dict[str, Any] | None
    before: list[int]
    token: int
    after: list[int]


@dataclass(frozen=True, kw_only=True)
class TokenDifference:
    """The first difference between two splits.

    Attributes:
        position: Offset in tokens from the start of the split.
        a: Token at this position in build A, or None if the build ends before it.
        b: Token at this position in build B, or None if the build ends before it.
    """

    position: int
    a: TokenPosition | None
    b: TokenPosition | None


def _token_position(tokens: SplitTokens, position: int) -> TokenPosition | None:
    if position == len(tokens):
        return None
    number = tokens.number_at(position)
    start, end = tokens.bounds(number)
    file, offset = tokens.file_at(position)
    first = max(start, position - AROUND)
    around = tokens.read(first, min(end, position + 1 + AROUND) - first).tolist()
    return TokenPosition(
        file=file,
        offset=offset,
        document=number,
        document_offset=position - start,
        document_tokens=end - start,
        lineage=read_lineage(tokens.lineage, [number])[number]._asdict()
        if all(table.path.exists() for table in lineage_files(tokens.lineage))
        else None,
        before=around[: position - first],
        token=around[position - first],
        after=around[position - first + 1 :],
    )


def first_difference(a: SplitTokens, b: SplitTokens, *, progress: Callable[[int], None]) -> TokenDifference | None:
    """Return the first difference, or None if both splits are equal. `progress` gets the number of compared tokens."""
    position = shared = min(len(a), len(b))
    for start in range(0, shared, _BLOCK_TOKENS):
        ours, theirs = (side.read(start, min(_BLOCK_TOKENS, shared - start)) for side in (a, b))
        differs = ours != theirs
        if differs.any():
            position = start + int(differs.argmax())
            break
        progress(len(ours))
    if position == len(a) == len(b):
        return None
    return TokenDifference(position=position, a=_token_position(a, position), b=_token_position(b, position))
