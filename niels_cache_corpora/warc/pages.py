"""Pages of records: HTTP messages (`split_http`), content encodings (`decoded_body`), charsets (`decode_page`) and text (`Extractor`).

A page is decoded at hundreds of megabytes per second. Extraction takes a millisecond or more for a page, so it runs in the workers of a
corpus. Nothing here reads a file.
"""

import io
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from niels_cache_assets.sources.html import declared_charset, encoding_named, from_xhtml
from niels_cache_assets.sources.reading.encodings import UTF8, Damage, damage_of, decode, encoding_at, is_text_encoding
from niels_cache_assets.sources.reading.files import valid_unicode

HTML = ("text/html", "application/xhtml+xml")
MAX_NESTED = 1_000  # elements, above which the main text is not searched: the time for that grows with the square of their number

_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_STATUS = re.compile(rb"\s*(?:HTTP/\d+(?:\.\d+)?|ICY)[ \t]+(\d{3})\b", re.IGNORECASE)
_CHUNK = re.compile(rb"\s*([0-9a-fA-F]{1,8})\b[^\n]*\n")
_CHARSET = re.compile(r"""charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_SEVEN_BITS = ("iso2022", "utf-7", "utf-16", "utf-32", "hz")  # encodings in which bytes that are valid UTF-8 may mean something else
_DEFAULT_OF_SERVERS = "cp1252"  # what browsers read for ISO-8859-1
_ASCII = bytes(range(128))
_MOST_DAMAGED = 0.1  # the share of the bytes above 127 that may be invalid in an encoding that is believed
_MANY_TAGS = 4_000  # tags, below which a page is never nested deep enough to matter
_NESTING = re.compile(  # the tags of elements that may contain one of their own kind
    r"<(/?)(?!(?:area|base|body|br|col|colgroup|d[dt]|embed|head|hr|html|img|input|li|link|meta|option|p|param|r[pt]|source|t[dhr]|tbody"
    r"|tfoot|thead|track|wbr)\b)[a-z]",
    re.IGNORECASE,
)
_IGNORED_CODINGS = ("", "identity", "none", "utf-8")


class UnreadableError(Exception):
    """A body that cannot be decoded."""


class TooLargeError(Exception):
    """A body that is larger than the limit after it was decoded."""


class HttpResponse(NamedTuple):
    """An HTTP response.

    Attributes:
        status: The status code.
        headers: The values of the headers by name, in lower case. Of a name that comes again, the first value.
        body: The body as it was sent.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


def split_http(block: bytes) -> HttpResponse | None:
    """Return the HTTP response in a block, or None if its first line is no status line.

    As in browsers, lines may end with a line feed alone, and lines without a colon are skipped.
    """
    status = _STATUS.match(block)
    if status is None:
        return None
    end = _BLANK_LINE.search(block, status.end())
    head, body = (block, b"") if end is None else (block[: end.start()], block[end.end() :])
    headers: dict[str, str] = {}
    name = ""
    for line in head.decode("latin-1").split("\n")[1:]:
        if line[:1] in (" ", "\t") and name:  # a folded line
            headers[name] += f" {line.strip()}"
            continue
        name, colon, value = line.partition(":")
        name = name.strip().lower() if colon else ""
        if name in headers:
            name = ""
        elif name:
            headers[name] = value.strip()
    return HttpResponse(int(status[1]), headers, body)


def decoded_body(response: HttpResponse, limit: int, *, is_cut: bool) -> bytes:
    """Return the body without its transfer encoding and its content encodings.

    Many archives hold the decoded body with the headers of the encoded one. So a body that is not in an encoding and begins with "<" is
    taken as it is.

    Args:
        response: The response.
        limit: The maximum size in bytes.
        is_cut: Whether the crawler has cut the body, which may then end anywhere.

    Raises:
        UnreadableError: If the body is not in these encodings, or if one of them is unknown.
        TooLargeError: If there are more than `limit` bytes.
    """
    body = response.body
    names = [response.headers.get(name, "") for name in ("content-encoding", "transfer-encoding")]
    for coding in reversed([each.strip().lower() for name in names for each in name.split(",")]):
        if coding in _IGNORED_CODINGS:
            continue
        try:
            body = _decoders().get(coding, _unknown)(body, limit, is_cut)
        except (OSError, zlib.error) as error:
            if body.lstrip()[:1] == b"<":
                continue
            raise UnreadableError(f"{coding}: {error}") from error
        if len(body) > limit:
            raise TooLargeError
    return body


def _inflate(body: bytes, limit: int, is_cut: bool, *, wbits: int) -> bytes:
    decoded = b""
    while True:
        stream = zlib.decompressobj(wbits)
        decoded += stream.decompress(body, max(1, limit + 1 - len(decoded)))
        if len(decoded) > limit or (is_cut and not stream.eof):
            return decoded
        if not stream.eof:
            raise OSError("the body is cut")
        body = stream.unused_data
        if not body.startswith(b"\x1f\x8b"):  # another member; other bytes after the last one are ignored, as in browsers
            return decoded


def _deflate(body: bytes, limit: int, is_cut: bool) -> bytes:
    try:
        return _inflate(body, limit, is_cut, wbits=zlib.MAX_WBITS)
    except zlib.error:  # many servers send it without the header of zlib
        return _inflate(body, limit, is_cut, wbits=-zlib.MAX_WBITS)


def _gzip(body: bytes, limit: int, is_cut: bool) -> bytes:
    return _inflate(body, limit, is_cut, wbits=16 + zlib.MAX_WBITS)


def _dechunk(body: bytes, limit: int, is_cut: bool) -> bytes:
    """Return the content of chunks. FastWARC's reader refuses extensions, which may follow the size of a chunk."""
    chunks, at = list[bytes](), 0
    while head := _CHUNK.match(body, at):
        size = int(head[1], 16)
        if size == 0:
            return b"".join(chunks)
        chunks.append(body[head.end() : head.end() + size])
        at = head.end() + size
    if not is_cut:
        raise OSError("a chunk is missing" if chunks else "there is no chunk")
    return b"".join(chunks)


def _unknown(body: bytes, limit: int, is_cut: bool) -> bytes:
    raise OSError("unknown encoding")


@lru_cache(maxsize=1)
def _decoders() -> Mapping[str, Callable[[bytes, int, bool], bytes]]:
    from fastwarc.stream_io import BrotliReader, ZstdReader

    def reader(kind: Any) -> Callable[[bytes, int, bool], bytes]:
        def read(body: bytes, limit: int, is_cut: bool) -> bytes:
            stream, decoded = kind(io.BytesIO(body)), b""
            try:
                while len(decoded) <= limit and (more := stream.read(1 << 16)):
                    decoded += more
            except OSError:
                if not is_cut:
                    raise
            return decoded

        return read

    return {
        "gzip": _gzip,
        "x-gzip": _gzip,
        "deflate": _deflate,
        "br": reader(BrotliReader),
        "zstd": reader(ZstdReader),
        "chunked": _dechunk,
    }


def charset_of(content_type: str) -> str | None:
    """Return the charset that a Content-Type names, or None."""
    found = _CHARSET.search(content_type)
    return found and found[1]


class DecodedPage(NamedTuple):
    """A page as text.

    Attributes:
        text: The text.
        damage: The bytes that became U+FFFD.
        encoding: Python's name of the encoding.
        found_by: How the encoding was found: `bom`, `header`, `meta`, `utf-8` (the bytes are valid UTF-8), `detected`, or `default`.
    """

    text: str
    damage: Damage
    encoding: str
    found_by: str


def decode_page(body: bytes, *, label: str | None, is_html: bool, default: str) -> DecodedPage:
    """Decode a page.

    A byte order mark comes first. Then, bytes that are valid UTF-8 and not ASCII are UTF-8, whatever is declared, because other text is
    never valid by chance. Then come the charset of the header, that of the page, and that which resiliparse detects; Latin-1 in the header
    comes after that of the page, because many servers add it to all pages. One of them is taken if at most a tenth of the bytes above 127
    are invalid in it, otherwise the one with the least of them.

    Args:
        body: The page.
        label: The charset in the header, or None.
        is_html: Whether the page may declare its charset.
        default: The encoding of pages that declare none, or UTF-8 to detect it.
    """
    marked = encoding_at(body[:4], "")
    if marked:
        return _decoded(body, marked, "bom")
    labels = {"header": label, "meta": declared_charset(body) if is_html else None}
    declared = [(_codec(name), found_by) for found_by, name in labels.items() if name]
    named = [(codec, found_by) for codec, found_by in declared if codec]
    named.sort(key=lambda each: each == (_DEFAULT_OF_SERVERS, "header"))
    if not any(codec.startswith(_SEVEN_BITS) for codec, _ in named):
        try:
            text = body.decode()
        except UnicodeDecodeError:
            pass
        else:
            if body.isascii():
                return DecodedPage(text, Damage(0, 0), *(named or [(UTF8, "default")])[0])
            return DecodedPage(text, Damage(0, 0), UTF8, dict(named).get(UTF8, "utf-8"))
    if default != UTF8 and not named:
        named = [(default, "default")]
    most = len(body.translate(None, _ASCII)) * _MOST_DAMAGED
    pages = []
    for codec, found_by in [*dict(named).items(), ("", "detected")]:
        page = _decoded(body, codec or _detect(body), found_by)
        if page.damage.size <= most:
            return page
        pages.append(page)
    return min(pages, key=lambda page: page.damage.size)


def _detect(body: bytes) -> str:
    from resiliparse.parse.encoding import detect_encoding

    return _codec(detect_encoding(body) or UTF8) or UTF8


@lru_cache(maxsize=1024)
def _codec(label: str) -> str | None:
    """Return Python's name of the encoding that browsers use for a label, or None if they know none, such as for `utf-7`."""
    from resiliparse.parse.encoding import map_encoding_to_html5

    name = encoding_named(label) if map_encoding_to_html5(label, fallback_utf8=False) else ""
    return encoding_at(b"", name) if name and is_text_encoding(name) else None


def _decoded(body: bytes, codec: str, found_by: str) -> DecodedPage:
    text, marked = decode(body, codec)
    return DecodedPage(valid_unicode(text.removeprefix("\ufeff")), Damage(0, 0) if marked is None else damage_of(marked), codec, found_by)


class Extractor:
    """A function that returns the title and the main text of a page.

    Args:
        name: "resiliparse" or "trafilatura".
        limit: The maximum number of characters of a page of XHTML after its entities were replaced.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name, self._limit = name, limit

    def __call__(self, page: str, mime: str) -> tuple[str | None, str]:
        """Return the title of a page, or None, and its main text, which may be empty.

        Raises:
            NielsCacheError: If the entities of a page take more than the limit.
        """
        from resiliparse.parse.html import HTMLTree

        if mime != HTML[0] or page.lstrip()[:5] == "<?xml":
            page = from_xhtml(page, mime, self._limit)
        tree = HTMLTree.parse(page)
        title = " ".join((tree.title or "").split()) or None
        return title, (self._by_trafilatura(page) if self._name == "trafilatura" else self._by_resiliparse(tree, page)).strip()

    def _by_resiliparse(self, tree: Any, page: str) -> str:
        from resiliparse.extract.html2text import extract_plain_text

        found: str = extract_plain_text(tree, main_content=not is_nested_deeply(page), alt_texts=False, comments=False)
        return found

    def _by_trafilatura(self, page: str) -> str:
        """Return the text with the settings of FineWeb, but compare a page only with itself, so that the order of pages changes nothing."""
        from trafilatura import extract
        from trafilatura.deduplication import LRUCache

        return extract(page, favor_precision=True, include_comments=False, deduplicate=LRUCache(maxsize=4096)) or ""


def is_nested_deeply(page: str) -> bool:
    """Return whether elements seem to be nested more than MAX_NESTED deep."""
    if page.count("<") < _MANY_TAGS:
        return False
    depth = 0
    for closing in _NESTING.findall(page):
        depth = max(0, depth - 1) if closing else depth + 1
        if depth > MAX_NESTED:
            return True
    return False


def media_type(values: Iterable[str | None]) -> str | None:
    """Return the media type in the first of these values that has one, in lower case and without parameters."""
    for value in values:
        if value and "/" in value:
            return value.partition(";")[0].strip().lower()
    return None
