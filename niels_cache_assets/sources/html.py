"""The source `html`, for pretrain data sets from HTML pages, and the base class of `epub`. A page of 50 kB takes about a millisecond."""

import re
from collections.abc import Iterator
from html import escape
from importlib import metadata
from typing import ClassVar, Literal

from niels_cache_assets.base.fingerprint import Identity
from niels_cache_assets.sources.reading.compressed import endings_with_compressions
from niels_cache_assets.sources.reading.encodings import UTF8, TextOptions, decode, encoding_at, is_text_encoding, read_whole
from niels_cache_assets.sources.reading.files import SourceFile, file_errors, open_bytes
from niels_cache_assets.sources.reading.positions import FilePosition
from niels_cache_assets.sources.text import Text
from niels_cache_runtime.errors import NielsCacheError

_DECLARED = re.compile(  # none of two bytes: it was read in ASCII
    rb"""(?i)<(?:meta|\?xml)\b[^>]*?(?:charset|encoding)\s*=\s*["']?(?!utf[_-]?(?:16|32))([\w-]+)"""
)
_AS_BROWSERS = {"us-ascii": "cp1252", "iso-8859-1": "cp1252", "gb2312": "gbk", "shift_jis": "cp932"}  # larger encodings that pages mean
_EMPTY_TAG = re.compile(
    r"<(?!(?:area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr)\b)([a-zA-Z][\w:-]*+)([^<>]*)/>"
)  # of XHTML; HTML has none
_CDATA = re.compile(r"<!\[CDATA\[((?:[^<\]]++|<(?!!\[)|](?!]>))*+)]]>")  # also of XHTML


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
            declared = _DECLARED.search(data[:2048])
            name = declared[1].decode().lower() if declared and options.encoding == UTF8 else options.encoding
            page, marked = decode(data, encoding_at(data[:4], _AS_BROWSERS.get(name, name) if is_text_encoding(name) else UTF8))
            page = _CDATA.sub(lambda found: escape(found[1]), page.removeprefix("\ufeff"))
            page = _EMPTY_TAG.sub(r"<\1\2></\1>", page)
            texts.append(extract_plain_text(page, skip_elements=self.skipped).strip())
            damaged += marked or ""
        yield 0, "\n\n".join(filter(None, texts)), damaged or None
