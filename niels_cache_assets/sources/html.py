"""The source `html`, for pretrain data sets from HTML pages, and the base class of `epub`. A page of 50 kB takes about a millisecond."""

import re
from collections.abc import Iterator
from html import escape
from importlib import metadata
from typing import ClassVar, Literal

from niels_cache_assets.base.fingerprint import Identity
from niels_cache_assets.sources.reading.compressed import endings_with_compressions
from niels_cache_assets.sources.reading.encodings import UTF8, TextOptions, decode, encoding_at, is_text_encoding, read_whole, refuse_length
from niels_cache_assets.sources.reading.files import SourceFile, file_errors, open_bytes
from niels_cache_assets.sources.reading.positions import FilePosition
from niels_cache_assets.sources.text import Text
from niels_cache_runtime.errors import NielsCacheError

_DECLARED = re.compile(  # none of two bytes: it was read in ASCII
    rb"""(?i)<(?:meta|\?xml)\b[^>]*?(?:charset|encoding)\s*=\s*["']?(?!utf[_-]?(?:16|32))([\w-]+)"""
)
_LARGER = {  # Python's encodings of names as browsers read them
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "iso8859-11": "cp874",
}
_EMPTY_TAG = re.compile(
    r"<(?!(?:area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr)\b)([a-zA-Z][\w:-]*+)([^<>]*)/>"
)  # of XHTML; HTML has none
_CDATA = re.compile(r"<!\[CDATA\[((?:[^<\]]++|<(?!!\[)|](?!]>))*+)]]>")  # also of XHTML
_COMMENT = r"<!--(?:[^-]++|-(?!->))*+-->"
_QUOTED = r""""[^"]*+"|'[^']*+'"""
_DECLARATIONS = re.compile(  # in a document type; also of XHTML
    rf"""(?i)((?:\s++|<\?[^>]*+>|{_COMMENT})*+<!DOCTYPE[^<>\[]*+)\[((?:[^\]"'<]++|{_QUOTED}|{_COMMENT}|<(?!!--))*+)\]"""
)
_ENTITY = re.compile(rf"""{_QUOTED}|{_COMMENT}|<!ENTITY\s++(?!(?:amp|lt|gt|quot|apos)\s)([\w.:-]++)\s++({_QUOTED})\s*+>""")
_REFERENCE = re.compile(r"&([\w.:-]++);")


class Html(Text):
    """HTML pages: one document per file, with its text, but without navigation, footers and asides (extra `documents`)."""

    endings = endings_with_compressions(".html", ".htm", ".xhtml")
    skipped: ClassVar[list[str]] = ["nav", "footer", "aside"]  # selectors of elements

    source: Literal["html"] = "html"  # type: ignore[assignment]
    sample_by: Literal["document"] = "document"

    def identity(self) -> Identity:
        found = [f"resiliparse {each.version}" for each in metadata.distributions(name="resiliparse")]
        return super().identity() | {"extractor": found[:1]}  # the one that is imported, or none

    def pages(self, file: SourceFile, options: TextOptions) -> Iterator[bytes]:
        """Yield the markup of each page of a file."""
        with file_errors(file), open_bytes(file, options.on_damage) as stream:
            yield read_whole(stream, file.name, options.limit)

    def _pieces(self, file: SourceFile, position: FilePosition, options: TextOptions) -> Iterator[tuple[int, str, str | None]]:
        try:
            from resiliparse.extract.html2text import extract_plain_text
        except ImportError as error:
            raise NielsCacheError("html and epub need resiliparse; install it: pip install 'niels-cache[documents]'") from error
        if position.row:
            return
        position.row = position.rows = 1
        texts, damaged = [], ""
        for data in self.pages(file, options):
            name = options.encoding
            if name == UTF8 and (label := declared_charset(data)):
                name = encoding_named(label)
            page, marked = decode(data, encoding_at(data[:4], name if is_text_encoding(name) else UTF8))
            page = from_xhtml(page.removeprefix("\ufeff"), file.name, options.limit)
            texts.append(extract_plain_text(page, skip_elements=self.skipped).strip())
            damaged += marked or ""
        yield 0, "\n\n".join(filter(None, texts)), damaged or None


def declared_charset(data: bytes) -> str | None:
    """Return the name of the encoding that a page declares in its first 2,048 bytes, outside of comments, or None."""
    declared = _DECLARED.search(re.sub(rb"(?s)<!--.*?-->", b"", data[:2048]))
    return declared and declared[1].decode()


def encoding_named(label: str) -> str:
    """Return Python's name of the encoding that browsers use for a label, or the label, if they know none."""
    from resiliparse.parse.encoding import map_encoding_to_html5

    name = map_encoding_to_html5(label, fallback_utf8=False) or label.removeprefix("x-")
    return _LARGER.get(name, name)


def from_xhtml(page: str, where: str, limit: int) -> str:
    """Return a page as HTML parsers read it: without empty tags of XHTML, sections of CDATA and declared entities.

    Raises:
        NielsCacheError: For the reason of `_with_entities`.
    """
    page = _CDATA.sub(lambda found: escape(found[1]), page)
    if declarations := _DECLARATIONS.match(page):
        page = _with_entities(declarations, where, limit)
    return _EMPTY_TAG.sub(r"<\1\2></\1>", page)


def _with_entities(declarations: re.Match[str], where: str, limit: int) -> str:
    """Return a page with the text of the entities that its document type declares. An entity may refer to those declared before it.

    Raises:
        NielsCacheError: If this takes more than `limit` characters, as in a page that is made to fill the memory.
    """
    entities: dict[str, str] = {}

    def expand(text: str) -> str:
        nonlocal limit
        limit -= len(text) + sum(len(entities.get(name, "")) for name in _REFERENCE.findall(text))
        if limit < 0:
            refuse_length(f"{where}: a page with its entities", most)
        return _REFERENCE.sub(lambda found: entities.get(found[1], found[0]), text)

    most = limit
    for name, value in _ENTITY.findall(declarations[2]):
        if name:
            entities.setdefault(name, expand(value[1:-1]))
    return expand(declarations[1] + declarations.string[declarations.end() :])
