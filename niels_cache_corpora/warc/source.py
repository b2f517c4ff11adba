"""The source `warc`, for web pages of crawls in WARC files, and for texts of WET files.

`unconverted` reads records, filters them by type, status, media type and `where`, and decodes the pages. `convert` extracts the main text,
which takes most of the time, so a corpus does it in its worker processes. Before `convert`, the title of a document is its media type.

Types of records, charsets, and pages that the crawler has cut are counted in `records`, `charsets` and `cut_by_crawler` among the facts of
the report. `records` and `pages` describe the cost.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from importlib import metadata, util
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from niels_cache_assets.base.documents import Document, DropReport, describe_origin
from niels_cache_assets.base.fingerprint import Identity
from niels_cache_assets.sources.reading.columns import require_columns
from niels_cache_assets.sources.reading.compressed import DamagedFileError, endings_with_compressions
from niels_cache_assets.sources.reading.encodings import Damage, DecodingCounts
from niels_cache_assets.sources.reading.file_source import GroupedFiles, HasKeepDamaged
from niels_cache_assets.sources.reading.files import valid_unicode
from niels_cache_assets.sources.reading.keep import KeepsColumns
from niels_cache_assets.sources.reading.positions import FilePass
from niels_cache_assets.sources.reading.rows import batched
from niels_cache_assets.sources.step_use import KeptColumns
from niels_cache_assets.sources.types import CONVERT, Converted, StreamContext
from niels_cache_corpora.converting import converted
from niels_cache_corpora.warc.pages import (
    HTML,
    Extractor,
    TooLargeError,
    UnreadableError,
    charset_of,
    decode_page,
    decoded_body,
    media_type,
    split_http,
)
from niels_cache_corpora.warc.records import PAGES, Record, read_records
from niels_cache_runtime.errors import NielsCacheError

COLUMNS = ("url", "domain", "date", "status", "mime", "language", "record_id", "offset")
TEXT = "text/plain"
_EXAMPLE_CHARACTERS = 4_000  # of the markup of a page without main text


class _Page(NamedTuple):
    """The body of a record that may become a document, or the reason why it does not.

    Attributes:
        kind: What the record is counted as.
        url: The URL, or "".
        status: The status of the response, or None if there is none.
        mime: The media type, or None if it is unknown.
        content_type: The Content-Type.
        body: Returns the decoded body.
        problem: The drop reason, or None.
    """

    kind: str
    url: str = ""
    status: int | None = None
    mime: str | None = None
    content_type: str = ""
    body: Any = None
    problem: str | None = None


class Warc(HasKeepDamaged, KeepsColumns, GroupedFiles):
    """Web pages in WARC files, one document per page, with its main text, and texts in WET files (extra `web`)."""

    endings = endings_with_compressions(".warc", ".wet")

    is_watched = True
    source: Literal["warc"] = "warc"
    extractor: Literal["resiliparse", "trafilatura"] = "resiliparse"
    """What finds the main text: 'trafilatura' decides as FineWeb, and takes twenty times as long"""
    statuses: tuple[int, ...] = Field((200,), strict=False)
    """HTTP status codes of the responses to read; [] reads all"""
    keep: KeptColumns = Field((), strict=False)
    """Columns to keep: `url`, `domain` (the host of the URL in lower case, without `www.`; not the domain that was registered), `date`,
    `status`, `mime`, `language` (as the crawler has identified it), `record_id` and `offset`; `where` takes the same columns"""
    mimes: tuple[str, ...] = Field((*HTML, TEXT), min_length=1, strict=False)
    """Media types of the pages to read, as the crawler has identified them, or else the server"""
    max_document_mib: PositiveInt = 16
    """Maximum size in MiB of a record, also after decompression; larger ones are dropped (`record_too_large`)"""
    seconds_per_page: PositiveFloat = 300
    """Maximum time to extract the text of a page, in a corpus; slower ones are dropped (`page_too_slow`)"""
    encoding: str = "utf-8"
    """Python name of the encoding of pages that declare none; by default it is detected"""
    keep_damaged: bool = False
    """True leaves out damaged records (`damaged_record`) and reads what is intact after them; by default, the build fails"""

    @model_validator(mode="after")
    def _columns_exist(self) -> Self:
        for key, names in (("keep", self.keep), ("where", self.condition.columns if self.condition else ())):
            require_columns(key, names, COLUMNS, self.source)
        if unknown := set(self.mimes).difference((*HTML, TEXT)):
            raise ValueError(f"mimes has {min(unknown)!r}; text is read of {', '.join((*HTML, TEXT))}")
        return self

    def identity(self) -> Identity:
        libraries = ["resiliparse", *(["trafilatura"] if self.extractor == "trafilatura" else [])]
        found = [f"{name} {each.version}" for name in libraries for each in [*metadata.distributions(name=name)][:1]]
        return super().identity() | {"extractor": found, "max_document_mib": self.max_document_mib}

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        return converted(self, context)

    def unconverted(self, context: StreamContext) -> Iterator[list[Document]]:
        """Yield the pages with their markup as text, and their media type as title."""
        for name in ("fastwarc", "resiliparse", self.extractor):
            if util.find_spec(name) is None:
                raise NielsCacheError(f"warc needs {name}; install it: pip install 'niels-cache[web]'")
        files = FilePass(self.files_of(context), context)
        yield from batched(self._pages(files, context), files)

    def convert(self, documents: list[Document]) -> Converted:
        """Extract the main text of pages.

        A page without main text is dropped as `no_main_text`. A page for which the extractor raises an error is dropped as
        `extractor_failed`, and the title of its example is the error.
        """
        extract, dropped = Extractor(self.extractor, self.max_document_bytes), DropReport()
        converted, examples = [], []
        for document in documents:
            title, text, problem = None, document.text, "no_main_text"
            if document.title != TEXT:
                try:
                    title, text = extract(document.text, document.title or "")
                except NielsCacheError:  # the entities of XHTML
                    text, problem = "", "record_too_large"
                except (ImportError, MemoryError):  # of this machine, not of the page
                    raise
                except Exception as error:  # one page among millions must not end a build
                    title, text, problem = f"{type(error).__name__}: {error}", "", "extractor_failed"
            if text and not text.isspace():
                converted.append(document._replace(text=text, title=title and valid_unicode(title)))
            else:
                dropped.drop(problem, describe_origin(document), of_val=int(document.split == "val"))
                examples.append((problem, document._replace(text=document.text[:_EXAMPLE_CHARACTERS], title=title)))
        return converted, dropped, examples

    def convert_watched(self, documents: list[Document], skipped: Collection[tuple[int, int]], mark: Any = None) -> Converted:
        converted, dropped, examples = list[Document](), DropReport(), list[tuple[str, Document]]()
        for place, document in enumerate(documents):
            if (place, CONVERT) in skipped:
                dropped.drop("page_too_slow", describe_origin(document), of_val=int(document.split == "val"))
                examples.append(("page_too_slow", document._replace(text=document.text[:_EXAMPLE_CHARACTERS], title=None)))
                continue
            if mark is not None:
                mark(place, CONVERT, self.seconds_per_page)
            found, counts, more = self.convert([document])
            converted += found
            dropped.join(counts)
            examples += more
        if mark is not None:
            mark(0, 0, 0)
        return converted, dropped, examples

    def gives_plain_text(self, document: Document) -> bool:
        return True

    def _pages(self, files: FilePass, context: StreamContext) -> Iterator[Document]:
        report, decoding, where = context.report, DecodingCounts(self, context), self.condition

        def count_damage(error: DamagedFileError) -> None:
            report.drop_row("damaged_record", files.name, files.position.row - 1)
            context.log(f"{error}; it is left out")

        options = self.text_options._replace(on_damage=count_damage if self.keep_damaged else None)
        for file in files.files():
            name = file.name
            for record in read_records(file, files.position, options):
                page = self._page_of(record)
                _count(report, "records", page.kind)
                if page.body is None and page.problem is None:
                    continue
                values = _values_of(record, page)
                problem = page.problem or (where and where.problem(values))
                problem = problem or ("record_too_large" if record.size > options.limit else None)
                if problem is None:
                    try:
                        body = page.body()
                    except (UnreadableError, TooLargeError) as error:
                        problem = "record_too_large" if isinstance(error, TooLargeError) else "unreadable_http"
                if problem is not None:
                    report.drop_row(problem, name, record.row)
                    continue
                is_html = page.mime != TEXT
                decoded = decode_page(body, label=charset_of(page.content_type), is_html=is_html, default=self.encoding)
                _count(report, "charsets", decoded.found_by, decoded.encoding)
                if record.headers.get("WARC-Truncated") is not None:
                    report.facts["cut_by_crawler"] = report.facts.get("cut_by_crawler", 0) + 1
                text, nuls = decoded.text, decoded.text.count("\0")
                replaced = decoding.count(name, Damage(decoded.damage.size + nuls, decoded.damage.characters + nuls))
                text = text.replace("\0", "") if nuls else text  # as browsers do
                if decoding.admits(name, text, replaced=replaced, row=record.row):
                    source_id = f"{name}#{record.row}@{record.offset}"
                    yield Document(text, source_id, name, record.row, page.mime, kept=self.kept_of(values, name, record.row))

    def _page_of(self, record: Record) -> _Page:
        """Return what may be a page, without decoding its body."""
        headers, kind = record.headers, record.kind
        url, content_type = headers.get("WARC-Target-URI", "").strip("<> "), headers.get("Content-Type", "")
        if kind not in PAGES:
            return _Page(kind)
        if url.startswith("dns:") or content_type.startswith("text/dns"):
            return _Page("dns")
        if url.rpartition("://")[2].partition("/")[2].partition("?")[0] == "robots.txt":
            return _Page("robots")
        status, block, identified = None, record.block, headers.get("WARC-Identified-Payload-Type")
        body: Any = lambda: block  # noqa: E731
        if kind == "response" and url.partition(":")[0].lower() in ("http", "https", ""):
            response = split_http(block)
            if response is None:
                return _Page(kind, url, problem="unreadable_http") if block.strip() else _Page("without_body")
            status, content_type = response.status, response.headers.get("content-type", "")
            block = response.body
            is_cut = headers.get("WARC-Truncated") is not None
            body = partial(decoded_body, response, self.max_document_bytes, is_cut=is_cut)
        mime = media_type([identified, content_type]) or (_detect(block) if block else None)
        problem = None
        if self.statuses and status is not None and status not in self.statuses:
            problem = "other_status"
        elif not block:
            return _Page("without_body")
        elif mime not in self.mimes:
            problem = "other_mime"
        return _Page(kind, url, status, mime, content_type, body, problem)


def _values_of(record: Record, page: _Page) -> dict[str, Any]:
    """Return the values of COLUMNS."""
    headers = record.headers
    try:
        host = urlsplit(page.url).hostname
    except ValueError:  # such as an address of IPv6 without its bracket
        host = None
    found = (
        page.url or None,
        host and host.removeprefix("www."),
        headers.get("WARC-Date"),
        page.status,
        page.mime,
        headers.get("WARC-Identified-Content-Language"),
        headers.get("WARC-Record-ID"),
        record.offset,
    )
    return dict(zip(COLUMNS, found, strict=True))


def _detect(body: bytes) -> str | None:
    from resiliparse.parse.encoding import detect_mime

    return detect_mime(body)


def _count(report: DropReport, fact: str, *path: str) -> None:
    """Add 1 to a count among the facts of a report. The values are new objects, because positions of the stream hold the old ones."""

    def added(old: Mapping[str, Any], first: str, *rest: str) -> dict[str, Any]:
        return {**old, first: added(old.get(first, {}), *rest) if rest else old.get(first, 0) + 1}

    report.facts[fact] = added(report.facts.get(fact, {}), *path)
