"""Pages of a MediaWiki XML dump, streamed: `read_pages`.

Format: the export schema, mediawiki.org/xml/export-0.11, in any version: the namespace is not looked at. Read by the standard library's
expat, event by event: memory is one page and a block of the file, whatever the dump's size; of a page with a history the last revision
stays. A pass that starts in the middle of a dump seeks to a page where the file is not compressed, else it parses up to there: expat is
faster than decompression. What wikitext means is not known here.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import IO, NamedTuple
from xml.parsers import expat

from niels_cache_assets.sources.compressed import DamagedFile, OnDamage
from niels_cache_assets.sources.files import SourceFile, open_bytes, reading
from niels_cache_assets.sources.limits import MAX_DOCUMENT_BYTES, refuse_length
from niels_cache_assets.sources.places import FilePosition
from niels_cache_runtime.errors import NielsCacheError

_BLOCK = 1 << 18
_MAX_DEPTH = 64  # of elements; a dump has five
_MAX_MARKUP_BYTES = 1 << 20  # of one tag, or one comment: expat scans it from its beginning with every block
_MAX_NAME = 1000  # characters of an element's name, its namespace included
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
    """Collects the pages that expat's events tell of; the first of them is page `row` of the dump."""

    def __init__(self, where: str, limit: int, row: int) -> None:
        self.pages: list[Page] = []
        self.starts: list[int] = []  # of each of them, in bytes that expat was given
        self.ended = False  # the root element is closed
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.buffer_text = True
        self.parser.buffer_size = _BLOCK
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.data
        self.parser.StartDoctypeDeclHandler = _refuse_doctype
        self._where = where
        self._limit = limit
        self._path: list[str] = []
        self._values: dict[str, str] = {}
        self._parts: list[str] | None = None  # of the element that is being collected
        self._collected = 0  # characters in them
        self._redirect = False
        self._start = 0
        self._row = row

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition(" ")[2]
        if not self._path and name != "mediawiki":
            raise ValueError(f"the outermost element is <{name[:_MAX_NAME]}>, not <mediawiki>")
        if len(self._path) >= _MAX_DEPTH or len(tag) > _MAX_NAME:
            raise ValueError("its elements are nested deeper, or have longer names, than those of any dump")
        parent = self._path[-1] if self._path else ""
        self._path.append(name)
        if name == "page":
            self._values, self._redirect = {}, False
            self._start = self.parser.CurrentByteIndex
        elif parent == "page" and name == "redirect":
            self._redirect = True
        elif name == "revision":
            self._values.pop("text", None)
        self._parts = [] if f"{parent}/{name}" in _KEPT and "deleted" not in attributes else None
        self._collected = 0

    def data(self, text: str) -> None:
        if self._parts is not None:
            self._parts.append(text)
            self._collected += len(text)
            if self._collected > self._limit:
                refuse_length(f"{self._where}: page {self._row}", self._limit)

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
            self.starts.append(self._start)
            self._row += 1
            self._values = {}
        self.ended = not self._path


def _refuse_doctype(*_: object) -> None:
    raise ValueError("it declares a document type, which no dump does")


def read_pages(
    file: SourceFile, position: FilePosition | None = None, *, limit: int = MAX_DOCUMENT_BYTES, on_damage: OnDamage | None = None
) -> Iterator[Page]:
    """The pages from `position` on, in the order of the dump. Bytes that are not UTF-8, and characters that XML cannot hold (NULs), become
    U+FFFD.

    A dump that is damaged, cut or no XML, has a page of more than `limit` characters, or a tag or comment that no dump has, raises
    NielsCacheError with file and offset; with `on_damage` one with damage ends before that.
    """
    position = position or FilePosition()
    damaged: list[DamagedFile] = []

    def remember(error: DamagedFile) -> None:
        damaged.append(error)
        on_damage(error)  # type: ignore[misc]

    with reading(file), open_bytes(file, remember if on_damage else None) as stream:
        header = _seek(stream, position)
        handler = _Handler(file.name, limit, position.offset_row)
        parser = handler.parser
        given, offset = len(header.encode()), position.offset  # bytes that expat has, and where in the file they end
        _parse(parser, header, file.name)  # what is wrong with it is wrong with the next piece too
        for text, begin, end in _decoded(stream, offset):
            problem = _parse(parser, text, file.name)
            size = len(text.encode())
            # U+FFFD is never shorter than what it replaces, so of equal sizes every byte is in its place.
            yield from _given(handler, position, after=given, offset=begin if size == end - begin else None)
            given, offset = given + size, end
            if problem:
                break
            if given - parser.CurrentByteIndex > _MAX_MARKUP_BYTES:
                where = f"{file.name}: the tag or comment near byte {_place(parser, given, offset)}"
                raise NielsCacheError(f"{where}: is longer than {_MAX_MARKUP_BYTES >> 20} MiB, which none of a dump is; take it out")
        else:
            problem = _parse(parser, "", file.name, last=True)  # expat may have kept the end of a block for later
            yield from _given(handler, position, after=given, offset=None)
            problem = problem if handler.ended else "the dump ends before </mediawiki>"
        if problem and not damaged:
            where = f"near byte {_place(parser, given, offset)}"
            error = DamagedFile(f"{file.name}: not a whole MediaWiki dump ({where}: {problem}); replace it, or set keep_damaged = true")
            if on_damage is None:
                raise error
            on_damage(error)


def _seek(stream: IO[bytes], position: FilePosition) -> str:
    """Bring the stream to the page that the position knows of; what expat needs before it: all that stands before the first page."""
    header = b""
    if position.offset and stream.seekable():
        header, page, _ = stream.read(_BLOCK).partition(b"<page")
        if not page:
            header, position.offset = b"", 0
        stream.seek(0)
    position.seek(stream)
    return _NOT_XML.sub("\ufffd", header.decode("utf-8-sig", errors="replace"))


def _given(handler: _Handler, position: FilePosition, *, after: int, offset: int | None) -> Iterator[Page]:
    """The collected pages that are still to be given. `offset`: where in the file what expat was given `after` so many bytes begins."""
    for page, start in zip(handler.pages, handler.starts, strict=True):
        if page.row >= position.row:
            position.row = page.row + 1
            if offset is not None and start >= after:
                position.offset, position.offset_row = offset + start - after, page.row
            yield page
    handler.pages.clear()
    handler.starts.clear()


def _place(parser: expat.XMLParserType, given: int, offset: int) -> int:
    """The byte of the file that expat is at."""
    return max(offset - given + parser.CurrentByteIndex, 0)


def _parse(parser: expat.XMLParserType, text: str, name: str, *, last: bool = False) -> str:
    """What is wrong with this piece of the dump, or nothing."""
    try:
        parser.Parse(text, last)
    except expat.ExpatError as error:
        return expat.ErrorString(error.code) or str(error)
    except NielsCacheError:
        raise
    except ValueError as error:
        raise NielsCacheError(f"{name}: not a MediaWiki dump: {error}; name the dump of pages (pages-articles.xml)") from error
    return ""


def _decoded(stream: IO[bytes], offset: int) -> Iterator[tuple[str, int, int]]:
    """(text, where in the file it begins, and ends) of the pieces of a stream that is at `offset`. A byte order mark is in none."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
    begin, read = offset, offset
    while block := stream.read(_BLOCK):
        if not read:
            begin = len(codecs.BOM_UTF8) if block.startswith(codecs.BOM_UTF8) else 0
        read += len(block)
        text = _NOT_XML.sub("\ufffd", decoder.decode(block))
        end = read - len(decoder.getstate()[0])
        yield text, begin, end
        begin = end
    yield decoder.decode(b"", final=True), begin, read
