"""Pages of a MediaWiki XML dump, streamed: `read_pages`.

Format: the export schema, mediawiki.org/xml/export-0.11, in any version: the namespace is not looked at. Read by the standard library's
expat, event by event: memory is one page and a block of the file, whatever the dump's size; of a page with a history the last revision
stays. What wikitext means is not known here.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import IO, NamedTuple
from xml.parsers import expat

from niels_cache_assets.sources.compressed import DamagedFile, OnDamage
from niels_cache_assets.sources.files import SourceFile, open_bytes, reading
from niels_cache_runtime.errors import NielsCacheError

_BLOCK = 1 << 18
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # characters that XML cannot hold
_KEPT = {"page/title": "title", "page/ns": "namespace", "page/id": "id", "revision/model": "model", "revision/text": "text"}


class Page(NamedTuple):
    """A page of a dump; `row` counts pages from 0. `text` is None where the dump holds none (deleted revisions, dumps of titles)."""

    row: int
    id: str
    title: str
    namespace: int
    redirect: bool
    model: str
    text: str | None


class _Handler:
    """Collects the pages that expat's events tell of."""

    def __init__(self) -> None:
        self.pages: list[Page] = []
        self.ended = False  # the root element is closed
        self._path: list[str] = []
        self._values: dict[str, str] = {}
        self._parts: list[str] | None = None  # of the element that is being collected
        self._redirect = False
        self._row = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition(" ")[2]
        if not self._path and name != "mediawiki":
            raise ValueError(f"the outermost element is <{name}>, not <mediawiki>")
        parent = self._path[-1] if self._path else ""
        self._path.append(name)
        if name == "page":
            self._values, self._redirect = {}, False
        elif parent == "page" and name == "redirect":
            self._redirect = True
        elif name == "revision":
            self._values.pop("text", None)
        self._parts = [] if f"{parent}/{name}" in _KEPT and "deleted" not in attributes else None

    def data(self, text: str) -> None:
        if self._parts is not None:
            self._parts.append(text)

    def end(self, tag: str) -> None:
        name = self._path.pop()
        if self._parts is not None:
            self._values[_KEPT[f"{self._path[-1]}/{name}"]] = "".join(self._parts)
            self._parts = None
        if name == "page":
            values = self._values
            namespace = values.get("namespace", "0").strip()
            self.pages.append(
                Page(
                    row=self._row,
                    id=values.get("id", "").strip(),
                    title=values.get("title", "").strip(),
                    namespace=int(namespace) if re.fullmatch(r"-?\d{1,9}", namespace) else 0,
                    redirect=self._redirect,
                    model=values.get("model", "wikitext").strip(),
                    text=values.get("text"),
                )
            )
            self._row += 1
            self._values = {}
        self.ended = not self._path


def _refuse_doctype(*_: object) -> None:
    raise ValueError("it declares a document type, which no dump does")


def read_pages(file: SourceFile, on_damage: OnDamage | None = None) -> Iterator[Page]:
    """The pages in the order of the dump. Bytes that are not UTF-8, and characters that XML cannot hold (NULs), become U+FFFD.

    A dump that is damaged, cut or no XML raises NielsCacheError with file and offset; with `on_damage` it ends before the damage.
    """
    handler = _Handler()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.buffer_size = _BLOCK
    parser.StartElementHandler = handler.start
    parser.EndElementHandler = handler.end
    parser.CharacterDataHandler = handler.data
    parser.StartDoctypeDeclHandler = _refuse_doctype
    damaged: list[DamagedFile] = []

    def remember(error: DamagedFile) -> None:
        damaged.append(error)
        on_damage(error)  # type: ignore[misc]

    with reading(file), open_bytes(file, remember if on_damage else None) as stream:
        problem = ""
        for text in _decoded(stream):
            problem = _parse(parser, text, file.name)
            yield from handler.pages
            handler.pages.clear()
            if problem:
                break
        else:
            problem = _parse(parser, "", file.name, last=True)  # expat may have kept the end of a block for later
            yield from handler.pages
            problem = problem if handler.ended else "the dump ends before </mediawiki>"
        if problem and not damaged:
            where = f"near byte {max(parser.CurrentByteIndex, 0)}"
            error = DamagedFile(f"{file.name}: not a whole MediaWiki dump ({where}: {problem}); replace it, or set keep_damaged = true")
            if on_damage is None:
                raise error
            on_damage(error)


def _parse(parser: expat.XMLParserType, text: str, name: str, *, last: bool = False) -> str:
    """What is wrong with this piece of the dump, or nothing."""
    try:
        parser.Parse(text, last)
    except expat.ExpatError as error:
        return expat.ErrorString(error.code) or str(error)
    except ValueError as error:
        raise NielsCacheError(f"{name}: not a MediaWiki dump: {error}; name the dump of pages (pages-articles.xml)") from error
    return ""


def _decoded(stream: IO[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
    while block := stream.read(_BLOCK):
        yield _NOT_XML.sub("\ufffd", decoder.decode(block))
    yield decoder.decode(b"", final=True)
