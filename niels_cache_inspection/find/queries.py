"""How a block of tokens is searched for a text or for tokens.

Text is searched as bytes, because the tokens of a phrase differ with what stands around it. There are three ways:

- "scan": every token becomes its bytes, and the bytes are searched.
- "candidates": the tokens are searched for those that the text has in any context (`certain`), and the bytes around each are searched.
- "index": like "candidates", but an index has the candidates.

Tokens are compared at several GB a second on one core, and bytes searched at several hundred MB of text a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from niels_cache_assets.facts.split_tokens import SplitTokens
from niels_cache_inspection.find.caches import SearchableCache
from niels_cache_inspection.find.certain import CertainTokens
from niels_cache_inspection.find.pieces import SEPARATOR, PieceTable
from niels_cache_runtime.cache.mmap import Offsets
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Ints, Split, Tokens, doc_ends_name, entries_per_example

Way = Literal["index", "candidates", "scan", "skipped"]

_MANY_TOKENS = 1 << 26  # for which compiling a loop pays
_MOST_WINDOWS = 200  # in a block; searching the whole block is faster than more of them
_NEEDLE_BYTES = 4096  # of a longer text, which are searched first
_SLACK_TOKENS = 2  # for tokens without bytes: the blank at the start of a text


class SearchedStream(NamedTuple):
    """The tokens of a split, and where its texts begin and end.

    Attributes:
        tokens: The tokens.
        ends: The end of each entry: a document, an example, or a side of a preference pair.
        entries: How many entries a document or example has: 2 for preference pairs, otherwise 1.
        restarts: Whether a text starts after each special token, so that the tokenizer put a blank there. With a chat template, a
            conversation is one text.
        eot: The id of EOT, or None.
        roles: The roles of messages, by the id of the sentinel with which a message begins.
        positions: Returns the positions of consecutive tokens, ascending, from an index of the split. None: there is no index.
    """

    tokens: SplitTokens
    ends: Offsets
    entries: int
    restarts: bool
    eot: int | None
    roles: dict[int, str]
    positions: Callable[[Sequence[int]], Ints] | None = None

    @classmethod
    def of(cls, cache: SearchableCache, tokens: SplitTokens, split: Split) -> SearchedStream:
        """Return the stream of a split. Without document ends, all of it is one document."""
        is_bare = cache.family == "pretrain" and not (cache.directory / doc_ends_name(split)).exists()
        ends: Offsets = np.array([len(tokens)]) if is_bare else tokens.entry_ends
        ids, has_template = cache.meta.get("special_token_ids") or {}, "template" in cache.meta
        has_roles = cache.family == "sft" and not has_template
        roles = {ids[role]: role for role in ("sys", "usr", "asst") if has_roles and ids.get(role) is not None}
        positions = None if cache.index is None else partial(cache.index.positions, split)
        return cls(tokens, ends, entries_per_example(cache.meta), not has_template, ids.get("eot"), roles, positions)

    def entries_at(self, positions: Ints) -> Ints:
        """Return the number of the entry that contains each position."""
        ends: Any = self.ends
        return np.searchsorted(ends, positions.astype(ends.dtype), side="right")  # with the same dtype, nothing is copied

    def start_of(self, entry: int) -> int:
        """Return the first token of an entry."""
        return int(self.ends[entry - 1]) if entry else 0

    def read_known(self, first: int, stop: int, table: PieceTable) -> Tokens:
        """Return tokens first..stop-1.

        Raises:
            NielsCacheError: If the table lacks one of them.
        """
        tokens = self.tokens.read(first, stop - first)
        if not table.has(tokens):
            where = f"{self.tokens.lineage.parent}: token id {int(tokens.max()):,} is beyond the {len(table.pieces):,} ids of its tokenizer"
            raise NielsCacheError(f"{where}; run `niels-cache verify`, or search with --tokens")
        return tokens

    def text_starts(self, first: int, stop: int, table: PieceTable) -> Ints:
        """Return the positions at which a text starts, relative to `first`."""
        if not table.strips:
            return np.empty(0, np.int64)
        low, high = self.entries_at(np.array([max(first - 1, 0), stop - 1])) * [first > 0, 1]
        starts = self.ends[low:high].astype(np.int64)
        starts = np.append(starts, 0) if first == 0 else starts
        before = max(first - 1, 0)
        special = np.flatnonzero(table.is_special.take(self.tokens.read(before, stop - 1 - before), mode="clip")) + before + 1
        return np.union1d(starts, special if self.restarts else special[np.isin(special - 1, starts)]) - first


class Hits(NamedTuple):
    """Places in the tokens of a split, each array (n,).

    Attributes:
        starts: The first token.
        ends: The token after the last one.
        skipped: The number of bytes of the first token that are before the text.
    """

    starts: Ints
    ends: Ints
    skipped: Ints


class Query(Protocol):
    """What is searched.

    Attributes:
        ids: The tokens that lead to the places: those that are searched, or the certain ones of a text. None searches all bytes.
        before: The most tokens from the start of a place to these.
        size: The number of bytes of the text, or 0 for tokens.
        note: What the reader of the result should know, or None.
    """

    @property
    def ids(self) -> Sequence[int] | None: ...
    @property
    def before(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def note(self) -> str | None: ...

    def prepare(self, tokens: int) -> None:
        """Prepare for a search in so many more tokens."""

    def way(self, *, indexed: bool) -> Way:
        """Return how a split is searched, with or without an index."""

    def find(self, stream: SearchedStream, first: int, stop: int, candidates: Ints | None) -> Hits:
        """Return the places whose first token is in first..stop-1, also those that cross the end of an entry.

        Args:
            stream: The split.
            first: The first token.
            stop: The token after the last one.
            candidates: Where `ids` are, at least from `first` to `stop` + `before`. None: they are not known yet.
        """


class TokenQuery:
    """Consecutive tokens."""

    before, size, note = 0, 0, None

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = ids

    def prepare(self, tokens: int) -> None:
        """Do nothing."""

    def way(self, *, indexed: bool) -> Way:
        return "index" if indexed else "scan"

    def find(self, stream: SearchedStream, first: int, stop: int, candidates: Ints | None) -> Hits:
        starts = positions_of(stream.tokens, self.ids, first, stop) if candidates is None else candidates[candidates < stop]
        return Hits(starts, starts + len(self.ids), np.zeros_like(starts))


def positions_of(tokens: SplitTokens, ids: Sequence[int], first: int, stop: int) -> Ints:
    """Return the positions in first..stop-1 at which these tokens are in a split."""
    block = tokens.read(first, stop - first + len(ids) - 1)
    usable = min(stop - first, len(block) - len(ids) + 1)
    if usable <= 0 or max(ids) > np.iinfo(block.dtype).max:
        return np.empty(0, np.int64)
    order = sorted(range(len(ids)), key=lambda place: -ids[place])  # a high id is usually a rare one
    found = np.flatnonzero(block[order[0] : order[0] + usable] == ids[order[0]])
    for place in order[1:]:
        found = found[block[found + place] == ids[place]]
    return found + first


class TextQuery:
    """A text.

    Args:
        table: The table of pieces.
        text: The text in UTF-8, as the tokenizer normalizes it.
        certain: Its certain tokens; None searches all bytes.
        note: What the reader of the result should know.
    """

    def __init__(self, table: PieceTable, text: bytes, certain: CertainTokens | None, *, note: str | None) -> None:
        self._table, self._text, self._tokens = table, text, 0
        self.ids = None if certain is None else certain.ids
        self.before = 0 if certain is None else certain.before + _SLACK_TOKENS  # a token has a byte or more
        self.size, self.note = len(text), note

    def prepare(self, tokens: int) -> None:
        self._tokens += tokens
        if self.ids is None and self._tokens > _MANY_TOKENS:
            self._table.compile()

    def way(self, *, indexed: bool) -> Way:
        return "scan" if self.ids is None else "index" if indexed else "candidates"

    def find(self, stream: SearchedStream, first: int, stop: int, candidates: Ints | None) -> Hits:
        is_possible = self._text and SEPARATOR not in self._text  # which would be any special token; no text would be everywhere
        windows = [(first, stop)] if is_possible else []
        if self.ids is not None:
            if candidates is None:
                candidates = positions_of(stream.tokens, self.ids, first, min(stop + self.before, len(stream.tokens)))
            around = [*self._windows(candidates.tolist(), first, stop)]
            windows = around if len(around) <= _MOST_WINDOWS else windows
        none = np.empty(0, np.int64)
        found = [self._search(stream, *window) for window in windows]
        return Hits(*(np.concatenate(each) for each in zip((none, none, none), *found, strict=True)))

    def _windows(self, candidates: list[int], first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of tokens in which the text may begin. They ascend and do not overlap."""
        begin = end = first
        for position in candidates:
            if position - self.before > end:
                if begin < end:
                    yield begin, end
                begin = position - self.before
            end = min(position + 1, stop)
        if begin < end:
            yield begin, end

    def _search(self, stream: SearchedStream, first: int, stop: int) -> Hits:
        """Search the bytes of tokens."""
        needle = self._text[:_NEEDLE_BYTES]
        content, offsets = self._bytes(stream, first, stop + len(needle) + _SLACK_TOKENS)
        end = int(offsets[min(stop - first, len(offsets) - 1)]) - 1 + len(needle)
        found, position = list[int](), content.find(needle, 0, end)
        while position >= 0:
            found.append(position)
            position = content.find(needle, position + 1, end)
        places = np.array(found, dtype=np.int64)
        starts = np.searchsorted(offsets, places, side="right") - 1
        skipped = places - offsets[starts]
        if self.size <= _NEEDLE_BYTES:
            return Hits(starts + first, np.searchsorted(offsets, places + self.size) + first, skipped)
        ends = [self._end_of_rest(stream, *place) for place in zip((starts + first).tolist(), skipped.tolist(), strict=True)]
        whole = np.array([end > 0 for end in ends], dtype=np.bool_)
        return Hits(starts[whole] + first, np.array(ends, dtype=np.int64)[whole], skipped[whole])

    def _end_of_rest(self, stream: SearchedStream, start: int, skipped: int) -> int:
        """Return the end of a long text that begins at a token, or 0 if only its beginning is there."""
        content, offsets = self._bytes(stream, start, start + self.size + _SLACK_TOKENS)
        if content[skipped : skipped + self.size] != self._text:
            return 0
        return int(np.searchsorted(offsets, skipped + self.size)) + start

    def _bytes(self, stream: SearchedStream, first: int, stop: int) -> tuple[bytes, Ints]:
        """Return the bytes of tokens, and where the bytes of each begin."""
        stop = min(stop, len(stream.tokens))
        tokens = stream.read_known(first, stop, self._table)
        return self._table.join(tokens, stream.text_starts(first, stop, self._table))
