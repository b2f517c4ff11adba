"""The pages that `niels-cache ui` serves under /search: a search in all caches, a document, and the report.

    /search?q=TEXT&state=FILE            the places of a text, with their excerpts
    /search/document?cache=pretrain/NAME&split=train&number=12&state=FILE
                                         where a document is, which copies were dropped for it, and which steps read it
    /search/report                       the last report of the cache root, if there is one

The pages are HTML without scripts (niels_cache_pages/search.py), from GET requests that change nothing. `WebGuard` has checked who asks.
One search runs at a time, on a thread, so the UI goes on answering; a search that takes too long is given up, with the command to use.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import numpy as np

from niels_cache_assets.artifacts.prepared_corpora import open_prepared
from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.corpus.layout import DUPLICATES, duplicates_dir, duplicates_file
from niels_cache_assets.inspection.corpora import column, corpus_names, documents_at, find_corpus, ordinal_of, rows_at
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.reports import page_path
from niels_cache_assets.tokenizer.decoding import as_text
from niels_cache_inspection.find.caches import SearchableCache, caches_of
from niels_cache_inspection.find.places import Place, find_text
from niels_cache_inspection.find.steps import RunSteps, steps_of_documents
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, SPLITS

PREFIX = "/search"
MOST_PLACES = 50
MOST_CHARACTERS = 2_000  # of a text to find
SHOWN_TOKENS = 20_000  # of a document
MOST_COPIES = 50
SECONDS = 60.0
_COPY_BYTES = 4_000  # of a document's text by which its copies are found
_NUMBER_DIGITS = 18  # of a document
_ORIGIN = ("source_id", "title", "file", "row")


class Response(NamedTuple):
    """The answer to a request: the HTTP status and the page."""

    status: int
    page: str


class _TooSlow(Exception):
    pass


@dataclass(frozen=True, kw_only=True)
class ShownDocument:
    """A document as its page shows it.

    Attributes:
        place: Where it is, as a place that covers the whole document.
        kept: The values of the columns in `keep`, as JSON, or None.
        text: Its text, or the first part of it. Special tokens have labels such as <|eot|>.
        passage: The beginning of the longest part of it without special tokens.
        is_cut: Whether the text goes on.
        tokens: Its number of tokens.
    """

    place: Place
    kept: str | None
    text: str
    passage: str
    is_cut: bool
    tokens: int


class SearchPages:
    """The ASGI app of the pages.

    Args:
        open_caches: Returns the configuration and the cache root.
        seconds: How long a search may take.
    """

    def __init__(self, open_caches: Callable[[], tuple[Registry, Path]], *, seconds: float = SECONDS) -> None:
        self._open_caches, self._seconds = open_caches, seconds
        self._busy = asyncio.Lock()

    async def __call__(self, scope: MutableMapping[str, Any], receive: object, send: Callable[[Any], Awaitable[None]]) -> None:
        query = parse_qs(scope["query_string"].decode("latin-1"), errors="replace")
        if self._busy.locked():
            response = self._failed(query, "another search is running; try again when it is done", status=503)
        else:
            async with self._busy:
                response = await asyncio.to_thread(self.answer, scope["path"], query)
        body = response.page.encode(errors="replace")
        headers = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def answer(self, path: str, query: dict[str, list[str]]) -> Response:
        """Return the answer to a request.

        Args:
            path: The path.
            query: The parameters of the address.
        """
        pages = {"": self._search, "/document": self._document, "/report": self._report}
        page = pages.get(path.rstrip("/").removeprefix(PREFIX))
        if page is None:
            return self._failed(query, "there is no such page", status=404)
        try:
            return page(query)
        except NielsCacheError as error:
            return self._failed(query, str(error))
        except _TooSlow:
            text = query.get("q", ["TEXT"])[0]
            return self._failed(query, f"stopped after {self._seconds:g} s; in a terminal: niels-cache find {shlex.quote(text)}")
        except OSError as error:
            return self._failed(query, f"{error.filename}: cannot be read: {error.strerror}")

    def _failed(self, query: dict[str, list[str]], problem: str, *, status: int = 400) -> Response:
        return Response(status, self._render("search", query, problem=problem))

    def _render(self, template: str, query: dict[str, list[str]], **values: Any) -> str:
        shown: str = load_beside("pages", "search").render(template, text=query.get("q", [""])[0], states=query.get("state", []), **values)
        return shown

    def _progress(self) -> Callable[[str, int, int], None]:
        end = time.monotonic() + self._seconds

        def check(*_: Any) -> None:
            if time.monotonic() > end:
                raise _TooSlow

        return check

    def _search(self, query: dict[str, list[str]]) -> Response:
        _, root = self._open_caches()
        text = query.get("q", [""])[0]
        if len(text) > MOST_CHARACTERS:
            raise NielsCacheError(
                f"the text has {len(text):,} characters, more than {MOST_CHARACTERS:,}; search with niels-cache find --file"
            )
        has_report = page_path(root).is_file()
        if not text:
            return Response(200, self._render("search", query, root=str(root), has_report=has_report))
        search = find_text(caches_of(root), text.replace("\r\n", "\n").encode(), limit=MOST_PLACES, progress=self._progress())
        places = list(search)
        steps = self._steps(query, places)
        found = {"places": places, "count": search.count, "searched": search.searched, "complete": search.is_complete, "steps": steps}
        return Response(200, self._render("search", query, root=str(root), has_report=has_report, found=found))

    def _steps(self, query: dict[str, list[str]], places: Sequence[Place]) -> RunSteps | None:
        states = [state for given in query.get("state", []) for state in given.split("\n") if state.strip()]
        return steps_of_documents([state.strip() for state in states], places) if states else None

    def _document(self, query: dict[str, list[str]]) -> Response:
        registry, root = self._open_caches()
        shown = _shown(root, *(query.get(key, [""])[0] for key in ("cache", "split", "number")))
        place, copies = shown.place, []
        if shown.passage:
            search = find_text(caches_of(root), shown.passage.encode(), limit=MOST_PLACES, copies=True, progress=self._progress())
            own = (place.directory, place.split, place.document)
            copies = [each for each in search if (each.directory, each.split, each.document) != own]
        dropped, note = _dropped_for(registry, root, place)
        steps = self._steps(query, [place])
        return Response(200, self._render("document", query, shown=shown, copies=copies, dropped=dropped, note=note, steps=steps))

    def _report(self, query: dict[str, list[str]]) -> Response:
        _, root = self._open_caches()
        path = page_path(root)
        if not path.is_file():
            raise NielsCacheError(f"{path}: no report yet; niels-cache report writes one")
        return Response(200, path.read_text(encoding="utf-8"))


def _shown(root: Path, name: str, split: str, number: str) -> ShownDocument:
    """Return a document.

    Raises:
        NielsCacheError: If there is no such document, or if its text cannot be read.
    """
    cache = next((each for each in caches_of(root) if _name_of(each) == name), None)
    if cache is None:
        raise NielsCacheError(f"{name!r:.200}: no cache of {root}")
    is_number = number.isdecimal() and len(number) <= _NUMBER_DIGITS
    if split not in SPLITS or (tokens := cache.open(split)) is None or not is_number or int(number) >= len(tokens.ends):
        raise NielsCacheError(f"{name}: there is no document {number[:30]} in {split[:30]!r}")
    start, end = tokens.bounds(int(number))
    shown_end = min(end, start + SHOWN_TOKENS)
    if isinstance(cache.tokenizer, str):
        raise NielsCacheError(f"{name}: {cache.tokenizer}, so its text cannot be shown")
    ids = tokens.read(start, shown_end - start)
    special = np.flatnonzero(np.isin(ids, [each for each in (cache.meta.get("special_token_ids") or {}).values() if each is not None]))
    passage = max(np.split(ids, np.union1d(special, special + 1)), key=len)
    beginning = as_text(passage.tolist(), cache.tokenizer).strip().encode()[:_COPY_BYTES].decode(errors="ignore")
    origin = cache.lineage(split, [int(number)]).get(int(number))
    place = Place(
        dataset=cache.dataset,
        family=cache.family,
        directory=cache.directory,
        split=split,
        document=int(number),
        source_id=origin and origin.source_id,
        file=origin and origin.file,
        row=origin and origin.row,
        start=0,
        end=end - start,
        excerpt="",
    )
    return ShownDocument(
        place=place,
        kept=origin and origin.kept,
        text=as_text(ids.tolist(), cache.tokenizer),
        passage=beginning,
        is_cut=shown_end < end,
        tokens=end - start,
    )


def _name_of(cache: SearchableCache) -> str:
    return f"{cache.family}/{cache.dataset}"


def _dropped_for(registry: Registry, root: Path, place: Place) -> tuple[list[dict[str, Any]], str]:
    """Return the documents that deduplication dropped because this one is kept, and a line if this is not known."""
    if place.family != "pretrain" or place.source_id is None or place.dataset not in corpus_names(registry, root):
        return [], "its data set has no corpus, so no list of dropped copies"
    try:
        ordinal = ordinal_of(open_prepared(registry, place.dataset, root=root), place.source_id)
    except NielsCacheError as error:
        return [], str(error)
    if not (duplicates_dir(root) / META_NAME).exists() or ordinal is None:
        return [], "there is no list of dropped copies"
    found: list[tuple[str, dict[str, Any]]] = []
    for name in corpus_names(registry, root):
        path = duplicates_dir(root) / duplicates_file(name)
        if path.exists():
            because = (column(path, "because_dataset") == place.dataset) & (column(path, "because_ordinal") == ordinal)
            rows = np.flatnonzero(because)[: MOST_COPIES - len(found)]
            found += [(name, row) for row in rows_at([path], rows.tolist(), list(DUPLICATES)).values()]
    metas = {name: find_corpus(registry, root, name)[1] for name, _ in found}
    keys = [(name, row["ordinal"]) for name, row in found]
    documents = documents_at(root, keys, metas, _ORIGIN)
    return [{"dataset": name, **row, **documents[name, row["ordinal"]]} for name, row in found], ""
