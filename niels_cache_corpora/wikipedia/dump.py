"""Pages of a MediaWiki XML dump, streamed: `read_pages`.

Format: any version of the export schema, such as mediawiki.org/xml/export-0.11 (the XML namespace is ignored). The standard library's expat
reads the XML, event by event. One page and a block of the file are in memory, for a dump of any size. If a page has a history, only the
last revision is kept.

A pass may start in the middle of a dump. In an uncompressed dump, it seeks to the page. In a compressed dump, it parses all earlier pages,
and parsing is faster than the decompression.

Wikitext is not converted here.
"""

import codecs
import re
from collections import Counter, deque
from collections.abc import Iterator
from typing import IO, NamedTuple
from xml.parsers import expat

from niels_cache_assets.base.first_bytes import HEAD_BYTES, describe_content
from niels_cache_assets.sources.reading.compressed import DamagedFileError, is_damaged
from niels_cache_assets.sources.reading.encodings import MARKS, UTF8, TextOptions, damage_of, encoding_of, refuse_length
from niels_cache_assets.sources.reading.files import SourceFile, first_bytes, open_bytes
from niels_cache_assets.sources.reading.positions import FilePosition
from niels_cache_corpora.wikipedia.site import NO_SITE, Site, language_of
from niels_cache_runtime.errors import NielsCacheError

_BLOCK = 1 << 18
_MAX_DEPTH = 64  # maximum depth of nested elements; a dump has five
_MAX_MARKUP_BYTES = 1 << 20  # maximum size of one tag or comment, because expat scans it from its beginning with each block
_MAX_NAME = 1000  # maximum characters of an element's name, with its namespace
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\udc01-\udcff\ufffe\uffff]")  # characters that XML cannot represent, and marks
_NOT_XML_TO_TAG = re.compile(f"{_NOT_XML.pattern}[^<]*")
_TITLE, _NAMESPACE, _ID, _REDIRECT, _MODEL, _TEXT = "page/title", "page/ns", "page/id", "page/redirect", "revision/model", "revision/text"
_DATABASE, _BASE, _NAME = "siteinfo/dbname", "siteinfo/base", "namespaces/namespace"
_COLLECTED = frozenset((_TITLE, _NAMESPACE, _ID, _REDIRECT, _MODEL, _TEXT, _DATABASE, _BASE, _NAME))  # elements, each with its parent
_MAX_NAMESPACES = 1000
_LANGUAGE = "http://www.w3.org/XML/1998/namespace lang"  # an attribute of <mediawiki>


class Page(NamedTuple):
    """A page of a dump.

    Attributes:
        row: The number of the page in the dump, from 0.
        id: The id in the wiki.
        title: The title.
        namespace: The number of the namespace, 0 for articles.
        redirect: Whether the dump marks the page as a redirect.
        model: The content model, such as `wikitext`.
        text: The text, or None if the dump has no text (deleted revisions, dumps of titles).
        replaced_bytes: The number of bytes of the page that became U+FFFD.
        replaced: The number of U+FFFD in `text` that replace bytes.
        has_nul: Whether a NUL was replaced.
    """

    row: int
    id: str
    title: str
    namespace: int
    redirect: bool
    model: str
    text: str | None
    replaced_bytes: int = 0
    replaced: int = 0
    has_nul: bool = False


class _Replaced(NamedTuple):
    """The replacement characters (U+FFFD) between two tags.

    Attributes:
        at: The position of the first replacement character in the bytes that expat received.
        size: The number of replaced bytes.
        characters: The number of replacement characters.
        has_nul: Whether a NUL was replaced.
    """

    at: int
    size: int
    characters: int
    has_nul: bool


class _Handler:
    """A collector of pages from expat's events.

    Args:
        where: The name of the file, for errors.
        limit: The maximum number of characters of a page.
        row: The number of the first page in the dump.
    """

    def __init__(self, where: str, limit: int, row: int) -> None:
        self.pages: list[tuple[Page, int]] = []  # each with its start, in bytes that expat received
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
        self._values: dict[str, str] = {}  # texts of the elements of the page, or of those before the first page
        self._parts: list[str] | None = None  # texts of the element that is being collected
        self._collected = 0  # characters in `_parts`
        self._start = 0
        self._text = (0, 0)  # begin and end of the page's text, counted like the starts of pages
        self.replaced: deque[_Replaced] = deque()  # replaced characters after the last page, in order
        self._row = row
        self.site: Site | None = None  # the wiki that the dump describes, known from the first page on
        self._language = ""
        self._namespaces: list[tuple[int, str]] = []
        self._number = ""  # number of the namespace that is being read

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition(" ")[2]
        if not self._path and name != "mediawiki":
            raise ValueError(f"the outermost element is <{name[:_MAX_NAME]}>, not <mediawiki>")
        if len(self._path) >= _MAX_DEPTH or len(tag) > _MAX_NAME:
            raise ValueError("its elements are nested deeper, or have longer names, than those of any dump")
        parent = self._path[-1] if self._path else ""
        self._path.append(name)
        if name == "page":
            if self.site is None:
                language = language_of(self._language, self._values.get(_DATABASE, ""), self._values.get(_BASE, ""))
                self.site = Site(language, tuple(self._namespaces)) if language or self._namespaces else NO_SITE
            self._values = {}
            self._start = self.parser.CurrentByteIndex
        elif name == "revision":
            self._values.pop(_TEXT, None)
        elif name == "mediawiki" and not parent:
            self._language = attributes.get(_LANGUAGE, "")
        elif name == "namespace":
            self._number = attributes.get("key", "")
        self._parts = [] if f"{parent}/{name}" in _COLLECTED and "deleted" not in attributes else None
        if name == "text":
            self._text = (self.parser.CurrentByteIndex,) * 2
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
            self._keep(f"{self._path[-1]}/{name}", "".join(self._parts))
            self._parts = None
        if name == "text":
            self._text = (self._text[0], self.parser.CurrentByteIndex)
        if name == "page":
            values = self._values
            replaced = self._replaced_in_page()
            in_text = [each for each in replaced if self._text[0] <= each.at < self._text[1]]
            title = values.get(_TITLE, "").strip()
            namespace = values.get(_NAMESPACE, "").strip()
            if _NAMESPACE not in values and self.site is not None:  # the export format before version 0.5
                namespace = str(self.site.namespace_of(title))
            page = Page(
                row=self._row,
                id=values.get(_ID, "").strip(),
                title=title,
                namespace=int(namespace) if re.fullmatch(r"-?\d{1,9}", namespace) else 0,
                redirect=_REDIRECT in values,
                model=values.get(_MODEL, "wikitext").strip(),
                text=values.get(_TEXT),
                replaced_bytes=sum(each.size for each in replaced),
                replaced=sum(each.characters for each in in_text),
                has_nul=any(each.has_nul for each in in_text),
            )
            self.pages.append((page, self._start))
            self._row += 1
            self._values = {}
        self.ended = not self._path

    def _keep(self, element: str, text: str) -> None:
        if element != _NAME:
            self._values[element] = text
        elif re.fullmatch(r"-?\d{1,9}", self._number) and len(self._namespaces) < _MAX_NAMESPACES:
            self._namespaces.append((int(self._number), text))

    def _replaced_in_page(self) -> list[_Replaced]:
        """Return the replaced characters of the page that ends here, and forget those before this page."""
        found = []
        while self.replaced and self.replaced[0].at < self.parser.CurrentByteIndex:
            each = self.replaced.popleft()
            if each.at >= self._start:
                found.append(each)
        return found


def _refuse_doctype(*_: object) -> None:
    raise ValueError("it declares a document type, which no dump does")


def read_pages(file: SourceFile, position: FilePosition, options: TextOptions) -> Iterator[Page]:
    """Yield the pages from `position` on, in the order of the dump.

    Bytes that are invalid in `encoding`, and characters that XML cannot represent (NULs), become U+FFFD, and the page has their number.

    Args:
        file: The dump.
        position: Where to begin.
        options: How to read it. `limit` is the maximum number of characters of a page.

    Raises:
        NielsCacheError: If the dump is damaged, incomplete or not XML, if a page is too long, or if tags or comments are too long or nested
            too deeply for a dump. The message has the file and the offset.
    """
    encoding, limit, on_damage = options
    with open_bytes(file, on_damage) as stream:
        encoding, kind = encoding_of(stream, encoding), describe_content(first_bytes(stream), "XML")
        head = b""  # before the first page; expat needs it first
        if position.offset and stream.seekable():
            head, page, _ = stream.read(_BLOCK).partition(b"<page")
            if not page:
                head, position.offset = b"", 0
            stream.seek(0)
        position.seek(stream)
        header = _NOT_XML.sub("\ufffd", head.decode("utf-8-sig", errors="replace"))  # only positions in UTF-8 files have an offset
        handler = _Handler(file.name, limit, position.offset_row)
        parser = handler.parser
        received, offset = len(header.encode()), position.offset  # bytes that expat received, and the offset in the file where they end
        _parse(parser, header, file.name)  # expat reports an error in the header again with the next piece
        for text, begin, end, replaced in _decoded(stream, offset, encoding):
            handler.replaced.extend(each._replace(at=received + each.at) for each in replaced)
            problem = _parse(parser, text, file.name)
            size = len(text.encode())
            # U+FFFD is never shorter than the bytes that it replaces. So if both sizes are equal, no byte has moved (only in UTF-8).
            yield from _pages_from(handler, position, after=received, offset=begin if encoding == UTF8 and size == end - begin else None)
            received, offset = received + size, end
            if problem:
                break
            if received - parser.CurrentByteIndex > _MAX_MARKUP_BYTES:
                where = f"{file.name}: the tag or comment near byte {_parser_offset(parser, received, offset)}"
                raise NielsCacheError(f"{where}: is longer than {_MAX_MARKUP_BYTES >> 20} MiB, longer than in any dump; remove it")
        else:
            problem = _parse(parser, "", file.name, last=True)  # the end of a block may still be in expat
            yield from _pages_from(handler, position, after=received, offset=None)
            problem = problem if handler.ended else "the dump ends before </mediawiki>"
        if problem and not is_damaged(stream):
            where = f"near byte {_parser_offset(parser, received, offset)}"
            error = DamagedFileError(
                f"{file.name}: not a complete MediaWiki dump ({where}: {problem}); replace it, or set keep_damaged = true{kind}"
            )
            if on_damage is None:
                raise error
            on_damage(error)


def read_site(file: SourceFile, *, encoding: str = UTF8) -> Site:
    """Return the wiki that the beginning of a dump describes, or NO_SITE. `read_pages` reports damage."""
    with open_bytes(file, lambda _: None) as stream:
        handler = _Handler(file.name, _MAX_MARKUP_BYTES, 0)
        for text, _, end, _ in _decoded(stream, 0, encoding_of(stream, encoding)):
            try:
                handler.parser.Parse(text)
            except (expat.ExpatError, ValueError, NielsCacheError):  # also a page longer than this limit
                break
            if handler.site is not None or end > _MAX_MARKUP_BYTES:
                break
        return handler.site or NO_SITE


def _pages_from(handler: _Handler, position: FilePosition, *, after: int, offset: int | None) -> Iterator[Page]:
    """Yield the collected pages from the position on, and move the position.

    Args:
        handler: The collector.
        position: The position.
        after: The number of bytes that expat had received before the last text.
        offset: The offset of the last text in the file, or None if it is unknown.
    """
    for page, start in handler.pages:
        if page.row >= position.row:
            position.row = page.row + 1
            if offset is not None and start >= after:
                position.offset, position.offset_row = offset + start - after, page.row
            yield page
    handler.pages.clear()


def _parser_offset(parser: expat.XMLParserType, received: int, offset: int) -> int:
    """Return the offset in the file that expat has reached, in bytes."""
    return max(offset - received + parser.CurrentByteIndex, 0)


def _parse(parser: expat.XMLParserType, text: str, name: str, *, last: bool = False) -> str:
    """Parse a piece of the dump.

    Returns:
        The problem with the piece, or an empty string.
    """
    try:
        parser.Parse(text, last)
    except expat.ExpatError as error:
        return expat.ErrorString(error.code) or str(error)
    except NielsCacheError:
        raise
    except ValueError as error:
        kind = describe_content(text[:HEAD_BYTES].encode(errors="replace"), "XML")
        raise NielsCacheError(f"{name}: not a MediaWiki dump: {error}; name the dump of pages (pages-articles.xml){kind}") from error
    return ""


def _decoded(stream: IO[bytes], offset: int, encoding: str) -> Iterator[tuple[str, int, int, list[_Replaced]]]:
    """Yield (text, begin in the file, end in the file, replaced characters) for each piece of a stream that is at `offset`.

    A byte order mark is left out.
    """
    decoder = codecs.getincrementaldecoder(encoding)(MARKS)
    begin, read = offset, offset
    while block := stream.read(_BLOCK):
        is_first = not read
        read += len(block)
        text = decoder.decode(block)
        if is_first and encoding == UTF8 and block.startswith(codecs.BOM_UTF8):
            begin = len(codecs.BOM_UTF8)
        end = read - len(decoder.getstate()[0])
        text, replaced = _replace_invalid(text.removeprefix("\ufeff") if is_first else text)
        yield text, begin, end, replaced
        begin = end
    text, replaced = _replace_invalid(decoder.decode(b"", final=True))
    yield text, begin, read, replaced


def _replace_invalid(text: str) -> tuple[str, list[_Replaced]]:
    """Return a marked text with U+FFFD for marks and for characters that XML cannot represent, and the replaced characters.

    `at` counts bytes from the start of the text. Elements begin and end at "<", so all replaced characters between two "<" are one entry,
    which keeps the list short even if a whole page is damaged.
    """
    replaced: list[_Replaced] = []
    if not _NOT_XML.search(text):
        return text, replaced
    readable = _NOT_XML.sub("\ufffd", text)
    last = at = 0
    for found in _NOT_XML_TO_TAG.finditer(text):
        at += len(readable[last : found.start()].encode())
        last = found.start()
        characters = Counter(_NOT_XML.findall(found[0]))
        # the number of bytes in the file for each character: a mark of damaged bytes, or a character that XML cannot represent
        size = sum(count * (damage_of(character).size or len(character.encode())) for character, count in characters.items())
        replaced.append(_Replaced(at, size, characters.total(), "\0" in characters))
    return readable, replaced
