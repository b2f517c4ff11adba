"""The source `epub`, for pretrain data sets from books in EPUB 2 and 3. One book is in memory."""

import re
from collections.abc import Iterator
from html import unescape
from typing import Any, ClassVar, Literal
from urllib.parse import quote, unquote, urljoin
from xml.etree import ElementTree
from zipfile import ZipFile

from niels_cache_assets.sources.html import Html
from niels_cache_assets.sources.reading.compressed import DamagedFileError
from niels_cache_assets.sources.reading.encodings import TextOptions, refuse_length
from niels_cache_assets.sources.reading.files import SourceFile, file_errors, open_seekable
from niels_cache_runtime.errors import NielsCacheError

_NAMED = re.compile(rb"&(?!(?:amp|lt|gt|quot|apos);)\w+;")  # entities that XML lacks


class Epub(Html):
    """Books in EPUB: one document per book, with its pages in the order of the spine (extra `documents`).

    All unpacked files of a book together may have `max_document_mib`. A book with DRM is an error, as damage is.
    """

    endings = (".epub",)
    skipped: ClassVar[list[str]] = []  # an aside of a book is text

    source: Literal["epub"] = "epub"  # type: ignore[assignment]

    def pages(self, file: SourceFile, options: TextOptions) -> Iterator[bytes]:
        try:
            with file_errors(file), open_seekable(file) as stream, ZipFile(stream) as book:
                yield from _spine(book, file.name, options.limit)
        except NielsCacheError:
            raise
        except Exception as error:  # zipfile, its decompressors and ElementTree raise many kinds
            damage = DamagedFileError(f"{file.name}: damaged or not an EPUB ({error}); replace the file, or set keep_damaged = true")
            if options.on_damage is None:
                raise damage from error
            options.on_damage(damage)


def _spine(book: ZipFile, name: str, limit: int) -> Iterator[bytes]:
    """Yield the pages of a book in their order, each once. Of a picture, the fallback is read, if there is one.

    Raises:
        NielsCacheError: If all unpacked files together have more than `limit` bytes.
        ValueError: If pages are encrypted, or, after all pages, if the manifest lacks some.
    """
    if sum(info.file_size for info in book.infolist()) > limit:  # zipfile reads no more than that
        refuse_length(f"{name}: the unpacked book", limit)

    def read(path: str) -> bytes:
        return book.open(path).read(limit)  # not `book.read`, which decompresses up to 2 GiB if the size is a lie

    def parse(path: str) -> Any:
        """Parse XML, which may name HTML's entities without declaring them."""
        text = _NAMED.sub(lambda found: unescape(found[0].decode()).encode("ascii", "xmlcharrefreplace"), read(path))
        return ElementTree.fromstring(text)

    root = parse("META-INF/container.xml").find(".//{*}rootfile")
    package = parse(root.get("full-path"))
    items = package.findall(".//{*}item")
    pages = {
        item.get("id"): unquote(urljoin(root.get("full-path"), item.get("href")))
        for item in items
        if "ml" in item.get("media-type", "xml")  # XHTML, HTML, SVG
    }
    for item in items:
        pages.setdefault(item.get("id"), pages.get(item.get("fallback"), ""))  # "" for a picture
    names = [reference.get("idref") for reference in package.findall(".//{*}itemref")]
    encrypted = read("META-INF/encryption.xml").decode() if "META-INF/encryption.xml" in book.namelist() else ""  # may name only fonts
    for path in dict.fromkeys(filter(None, map(pages.get, names))):
        if f'URI="{quote(path)}"' in encrypted:
            raise ValueError("its pages are encrypted by DRM")
        yield read(path)
    if unknown := set(names).difference(pages):  # at the end, because keep_damaged keeps the other pages
        raise ValueError(f"its spine names {min(unknown, key=str)}, which its manifest does not hold")
