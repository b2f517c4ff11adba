"""The excerpts of places: the text that was found, with some text of the same document before and after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from niels_cache_inspection.find.pieces import PieceTable
from niels_cache_inspection.find.queries import Hits, SearchedStream
from niels_cache_runtime.format.layout import Ints

_CONTEXT_TOKENS = 32  # on each side
_CONTEXT_CHARACTERS = 60
_HIT_CHARACTERS = 400
_END_CHARACTERS = 100  # of a longer hit, whose middle is left out
_ROLE_TOKENS = 1 << 16  # before a place in which its role is looked for


class Excerpt(NamedTuple):
    """An excerpt.

    Attributes:
        text: The text.
        hit: The characters of it that were searched for: the first one, and the one after the last.
        role: The role of the message, or None.
    """

    text: str
    hit: tuple[int, int]
    role: str | None


def excerpts(stream: SearchedStream, hits: Hits, entries: Ints, table: PieceTable | None, *, size: int) -> Iterator[Excerpt]:
    """Yield the excerpt of each place.

    Args:
        stream: The split.
        hits: The places.
        entries: The document, example or side of each.
        table: The table of pieces; without it, and for ids that it lacks, ids are shown.
        size: The number of bytes of the text, or 0 for whole tokens.
    """
    for start, end, skipped, entry in zip(*(each.tolist() for each in (*hits, entries)), strict=True):
        begin, stop = stream.start_of(entry), int(stream.ends[entry])
        stop -= int(stop > end and int(stream.tokens.read(stop - 1, 1)[0]) == stream.eot)  # which says nothing at the end
        first, last = max(begin, start - _CONTEXT_TOKENS), min(stop, end + _CONTEXT_TOKENS)
        tokens = stream.tokens.read(first, last - first)
        if table is None or not table.has(tokens):
            before, hit, after = (" ".join(map(str, part)) for part in np.split(tokens, [start - first, end - first]))
            before, after = (f"{before} " if before else ""), (f" {after}" if after else "")
        else:
            spelled = table.spell(tokens, stream.text_starts(first, last, table))
            found = b"".join(spelled[start - first : end - first])
            size_here = size or len(found)
            before = (b"".join(spelled[: start - first]) + found[:skipped]).decode(errors="ignore")
            hit = found[skipped : skipped + size_here].decode(errors="replace")
            after = (found[skipped + size_here :] + b"".join(spelled[end - first :])).decode(errors="ignore")
        before = before if first == begin and len(before) <= _CONTEXT_CHARACTERS else f"…{before[-_CONTEXT_CHARACTERS:]}"
        after = after if last == stop and len(after) <= _CONTEXT_CHARACTERS else f"{after[:_CONTEXT_CHARACTERS]}…"
        if len(hit) > _HIT_CHARACTERS:
            hit = f"{hit[: _HIT_CHARACTERS - _END_CHARACTERS]} … {hit[-_END_CHARACTERS:]}"
        yield Excerpt(f"{before}{hit}{after}", (len(before), len(before) + len(hit)), _role(stream, begin, start))


def _role(stream: SearchedStream, begin: int, start: int) -> str | None:
    """Return the role of the message with a token: that of the last sentinel before it."""
    if not stream.roles:
        return None
    first = max(begin, start - _ROLE_TOKENS)
    tokens = stream.tokens.read(first, start + 1 - first)
    sentinels = np.flatnonzero(np.isin(tokens, list(stream.roles)))
    return stream.roles[int(tokens[sentinels[-1]])] if len(sentinels) else None
