"""The places of a text or of tokens in caches: `find_text` and `find_tokens`, which search every split from front to back.

Blocks of tokens are searched on several threads (see `queries` for the ways). A place belongs to the block with its first token, so none is
lost or found twice. A place never crosses the border of a document, an example, a side of a preference pair, or a special token. Places may
overlap: "aa" is twice in "aaa". Memory: about 16 MB a thread, and 32 bytes for each place of the current
split that is described; places beyond the limit are only counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from niels_cache_assets.base.parallel import map_in_order
from niels_cache_assets.tokenizer.decoding import open_tokenizer
from niels_cache_inspection.find.caches import SearchableCache
from niels_cache_inspection.find.caches import caches_of as caches_of
from niels_cache_inspection.find.certain import certain_tokens
from niels_cache_inspection.find.excerpts import excerpts
from niels_cache_inspection.find.pieces import SEPARATOR, PieceTable
from niels_cache_inspection.find.queries import Hits, Query, SearchedStream, TextQuery, TokenQuery, Way
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SIDES, SPLITS, Ints, Split

OnBytes = Callable[[str, int, int], None]
"""Called with the split that is searched, such as `web/train`, and its number of bytes that are done and of all bytes."""

SAME = "has the same tokens as"
_BLOCK_TOKENS = 1 << 20
_DESCRIBED_AT_ONCE = 1 << 12  # places whose lineage is read together
_MOST_THREADS = 8
_NONE: Ints = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place where a text or tokens were found.

    Attributes:
        dataset: The name of the data set. For a part of a data set, `NAME/PART`.
        family: "pretrain" or "sft".
        directory: The folder of the cache. For a published cache, a temporary folder with its meta.json, document ends and lineage.
        split: "train" or "val".
        document: The number of the document or example in the split.
        source_id: Its id at the source, or None without lineage.
        file: Its file at the source, or None.
        row: Its row in this file, or None.
        start: The first token of the place, counted from the start of the document, or of its side in a preference pair.
        end: The token after the last one.
        excerpt: The text of the place, with some text before and after it. Without a tokenizer, the ids.
        hit: The characters of the excerpt that were searched for: the first one, and the one after the last.
        role: In an SFT example whose messages begin with sentinels: the role of the message, such as "asst". Otherwise None.
        side: In a preference pair: "chosen" or "rejected". Otherwise None.
        address: The address of a published cache, or None.
    """

    dataset: str
    family: str
    directory: Path
    split: str
    document: int
    source_id: str | None
    file: str | None
    row: int | None
    start: int
    end: int
    excerpt: str
    hit: tuple[int, int] = (0, 0)
    role: str | None = None
    side: str | None = None
    address: str | None = None


@dataclass(frozen=True, kw_only=True)
class SearchedSplit:
    """How a split was searched.

    Attributes:
        dataset: As in Place.
        family: As in Place.
        directory: As in Place.
        split: The split.
        tokens: Its number of tokens.
        way: How it was searched; "skipped" if it was not.
        places: The number of places that were found.
        documents: The number of documents or examples with a place.
        note: What the reader should know, such as why it was skipped, or None.
        address: As in Place.
    """

    dataset: str
    family: str
    directory: Path
    split: str
    tokens: int
    way: Way
    places: int = 0
    documents: int = 0
    note: str | None = None
    address: str | None = None


class Search:
    """A search, which runs while it is iterated. Its places come split by split, in order.

    Args:
        caches: The caches.
        prepare: Returns what to search in a cache, or why it cannot be searched.
        limit: The largest number of places to describe, or None.
        copies: Whether to search caches whose tokens were searched before.
        progress: Called while splits are searched.

    Attributes:
        searched: How each split was searched, so far.
    """

    def __init__(
        self,
        caches: Iterable[SearchableCache],
        prepare: Callable[[SearchableCache], Query | str],
        *,
        limit: int | None,
        copies: bool,
        progress: OnBytes | None,
    ) -> None:
        self.searched: list[SearchedSplit] = []
        self._caches, self._prepare, self._progress = caches, prepare, progress
        self._limit, self._copies = limit, copies

    @property
    def count(self) -> int:
        """The number of places that were found so far, also those beyond the limit."""
        return sum(each.places for each in self.searched)

    @property
    def is_complete(self) -> bool:
        """Whether every split so far was searched, or has the same tokens as one that was."""
        return all(each.way != "skipped" or (each.note or "").startswith(SAME) for each in self.searched)

    def __iter__(self) -> Iterator[Place]:
        seen: dict[str, str] = {}  # where the tokens of each sha256 were searched
        for cache in self._caches:
            hashes = cache.token_hashes()
            is_copy = bool(hashes) and hashes <= seen.keys() and not self._copies
            query = f"{SAME} {', '.join(sorted({seen[each] for each in hashes}))}" if is_copy else self._prepare(cache)
            for split in SPLITS:
                tokens = cache.open(split)
                if tokens is not None:
                    yield from self._search_split(cache, SearchedStream.of(cache, tokens, split), query, split)
            if not isinstance(query, str):
                seen |= dict.fromkeys(hashes - seen.keys(), cache.address or f"{cache.family}/{cache.dataset}")

    def _search_split(self, cache: SearchableCache, stream: SearchedStream, query: Query | str, split: Split) -> Iterator[Place]:
        about = SearchedSplit(
            dataset=cache.dataset,
            family=cache.family,
            directory=cache.directory,
            split=split,
            tokens=len(stream.tokens),
            way="skipped",
            address=cache.address,
        )
        if isinstance(query, str):
            self.searched.append(replace(about, note=query))
            return
        query.prepare(len(stream.tokens))
        counts, room = _Counts(), None if self._limit is None else max(0, self._limit - self.count)
        try:
            hits, entries = self._hits(stream, query, f"{cache.dataset}/{split}", counts, room)
        except BaseException:
            if cache.published is not None:
                cache.published.stop()
            raise
        way = query.way(indexed=stream.positions is not None)
        self.searched.append(replace(about, way=way, note=query.note, places=counts.places, documents=counts.documents))
        for first in range(0, len(entries), _DESCRIBED_AT_ONCE):
            chosen = slice(first, first + _DESCRIBED_AT_ONCE)
            yield from self._describe(cache, stream, split, Hits(*(each[chosen] for each in hits)), entries[chosen], query.size)

    def _hits(self, stream: SearchedStream, query: Query, name: str, counts: _Counts, room: int | None) -> tuple[Hits, Ints]:
        """Return the first `room` places in a split, and the document, example or side with each. All places are counted."""
        total, size = len(stream.tokens), stream.tokens.dtype.itemsize
        found: list[tuple[Hits, Ints]] = [(Hits(*[_NONE] * 3), _NONE)]
        candidates = None if stream.positions is None or query.ids is None else stream.positions(query.ids)
        numbers: Iterable[int] = range(-(-total // _BLOCK_TOKENS))
        if candidates is not None:  # the blocks in which a place may begin
            numbers = np.union1d(np.maximum(candidates - query.before, 0) // _BLOCK_TOKENS, candidates // _BLOCK_TOKENS).tolist()

        def search(number: int) -> tuple[Hits, Ints]:
            first = number * _BLOCK_TOKENS
            stop, inside = min(first + _BLOCK_TOKENS, total), candidates
            if candidates is not None:
                inside = candidates[slice(*np.searchsorted(candidates, [first, stop + query.before]))]
            hits = query.find(stream, first, stop, inside)
            entries = stream.entries_at(hits.starts)
            is_whole = hits.ends <= stream.ends[entries].astype(np.int64)
            return Hits(*(each[is_whole] for each in hits)), entries[is_whole]

        with closing(map_in_order(search, numbers, threads=_threads(), size_of=lambda _: 0)) as blocks:
            for done, each in enumerate(blocks, start=1):
                kept = slice(None if room is None else max(0, room - counts.places))
                counts.add(each[1] // stream.entries)
                found.append((Hits(*(array[kept].copy() for array in each[0])), each[1][kept].copy()))  # the block is not kept
                if self._progress is not None:
                    self._progress(name, min(total, done * _BLOCK_TOKENS) * size, total * size)
        hits = Hits(*(np.concatenate(each) for each in zip(*(hits for hits, _ in found), strict=True)))
        return hits, np.concatenate([entries for _, entries in found])

    def _describe(
        self, cache: SearchableCache, stream: SearchedStream, split: Split, hits: Hits, entries: Ints, size: int
    ) -> Iterator[Place]:
        table = _table_of(cache)
        numbers = entries // stream.entries
        lineage = cache.lineage(split, numbers.tolist())
        shown = excerpts(stream, hits, entries, None if isinstance(table, str) else table, size=size)
        for number, entry, start, end, excerpt in zip(numbers.tolist(), entries.tolist(), hits.starts, hits.ends, shown, strict=True):
            origin, begin = lineage.get(number), stream.start_of(entry)
            yield Place(
                dataset=cache.dataset,
                family=cache.family,
                directory=cache.directory,
                split=split,
                document=number,
                source_id=origin and origin.source_id,
                file=origin and origin.file,
                row=origin and origin.row,
                start=int(start) - begin,
                end=int(end) - begin,
                excerpt=excerpt.text,
                hit=excerpt.hit,
                role=excerpt.role,
                side=SIDES[entry % len(SIDES)] if stream.entries > 1 else None,
                address=cache.address,
            )


class _Counts:
    """The number of places in a split so far, and of documents or examples with one."""

    def __init__(self) -> None:
        self.places = self.documents = 0
        self._last = -1

    def add(self, documents: Ints) -> None:
        """Count the places of a block, given the document of each, ascending."""
        if len(documents):
            self.places += len(documents)
            self.documents += len(np.unique(documents)) - int(documents[0] == self._last)
            self._last = int(documents[-1])


def _threads() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST_THREADS, cores)


def _table_of(cache: SearchableCache) -> PieceTable | str:
    """Return the table of pieces of a cache's tokenizer, or why there is none."""
    if isinstance(cache.tokenizer, str):
        return cache.tokenizer
    return _table_at(cache.root, str(cache.meta["tokenizer_sha256"]))


@lru_cache(maxsize=2)
def _table_at(root: Path, sha256: str) -> PieceTable:
    """Return the table of the tokenizer in a root, which has this sha256."""
    return PieceTable(open_tokenizer(root))


def find_text(
    caches: Iterable[SearchableCache],
    text: bytes,
    *,
    exhaustive: bool = False,
    limit: int | None = None,
    copies: bool = False,
    progress: OnBytes | None = None,
) -> Search:
    """Search caches for a text.

    Args:
        caches: The caches, from `caches_of`.
        text: The text in UTF-8. It is normalized as the tokenizer of a cache normalizes text.
        exhaustive: Whether to search all bytes of all splits, whatever their tokens are.
        limit: The largest number of places to describe; all places are counted. None means all.
        copies: Whether to search caches whose token files are those of caches before them, too, such as parts and published copies.
        progress: Called while splits are searched.

    Raises:
        NielsCacheError: If the text is empty or is not UTF-8. While the search is iterated: if a cache cannot be read.
    """
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        raise NielsCacheError("the text is not UTF-8; give text, or tokens with --tokens") from error
    if not decoded:
        raise NielsCacheError("the text is empty; give some text, or tokens with --tokens")
    prepared = dict[int, Query | str]()

    def prepare(cache: SearchableCache) -> Query | str:
        table = _table_of(cache)
        if isinstance(table, str):
            return f"{table}, so only --tokens can search it"
        if id(table) not in prepared:
            query: Query | str = table.problem or _text_query(table, decoded, exhaustive=exhaustive)
            prepared[id(table)] = query
        return prepared[id(table)]

    return Search(caches, prepare, limit=limit, copies=copies, progress=progress)


def _text_query(table: PieceTable, text: str, *, exhaustive: bool) -> TextQuery:
    normalized, note = table.bytes_of(text), None
    if SEPARATOR in normalized:
        note = "the tokenizer has no token for a character of the text, or the text has a special token, so it is nowhere"
    elif not normalized:
        note = "the tokenizer removes all characters of the text, so it is nowhere"
    elif normalized != text.encode():
        note = f"the tokenizer changes the text to {normalized.decode(errors='replace')!r:.200}"
    certain = None if exhaustive or SEPARATOR in normalized else certain_tokens(table, normalized)
    return TextQuery(table, normalized, certain, note=note)


def find_tokens(
    caches: Iterable[SearchableCache],
    ids: Sequence[int],
    *,
    limit: int | None = None,
    copies: bool = False,
    progress: OnBytes | None = None,
) -> Search:
    """Search caches for consecutive tokens.

    Args:
        caches: The caches, from `caches_of`.
        ids: The tokens.
        limit: As in `find_text`.
        copies: As in `find_text`.
        progress: As in `find_text`.

    Raises:
        NielsCacheError: If there are no ids or a negative one. While the search is iterated: if a cache cannot be read.
    """
    if not ids:
        raise NielsCacheError("there are no tokens; give ids such as --tokens '17 3 9'")
    if min(ids) < 0:
        raise NielsCacheError(f"{min(ids)} is no id of a token; ids are 0 or more")
    return Search(caches, lambda _: TokenQuery(ids), limit=limit, copies=copies, progress=progress)
