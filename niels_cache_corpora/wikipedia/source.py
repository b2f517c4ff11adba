"""The source `wikipedia`, for articles from the hub's plain text, or from a MediaWiki XML dump.

The name of a dump ends in `.xml`, or in `.xml-p1p41242` for a part of a dump. It may be compressed. Only articles (namespace 0) of a dump
are read, and `convert` turns their wikitext into text. The `<siteinfo>` of the dump defines the language and the namespaces. A file without
one uses that of the first file that has one, because only the first file of a divided dump may have it.

Redirects are not articles: they are counted in `redirects` among the facts of the report, not as dropped documents. `dump` and
`markup` describe the cost.
"""

import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal, Self

from pydantic import Field, model_validator

from niels_cache_assets.base.documents import Document, DropReport, describe_origin
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.reading.encodings import Damage, DecodingCounts
from niels_cache_assets.sources.reading.file_source import HasKeepDamaged
from niels_cache_assets.sources.reading.files import SourceFile, find_splits
from niels_cache_assets.sources.reading.positions import FilePass
from niels_cache_assets.sources.reading.rows import TextFieldCheck, batched, row_id, row_title, text_problem
from niels_cache_assets.sources.types import ConfigPath, PretrainSource, StreamContext
from niels_cache_corpora.converting import converted
from niels_cache_corpora.wikipedia.dump import read_pages, read_site
from niels_cache_corpora.wikipedia.site import NO_SITE, REDIRECT, Site
from niels_cache_runtime.errors import NielsCacheError

_DUMP = re.compile(r"\.xml(-p\d+p\d+)?(\.(gz|bz2|xz|zst))?$", re.IGNORECASE)


class Wikipedia(HasKeepDamaged, HubData, PretrainSource):
    """Wikipedia articles from a hub data set, or from the XML dumps (.xml, .xml.bz2) in `files`."""

    source: Literal["wikipedia"] = "wikipedia"
    dataset: str = "wikimedia/wikipedia"
    config: str | None = "20231101.en"
    files: list[ConfigPath] | None = Field(None, min_length=1)
    """Globs of XML dumps to read instead of the hub data set"""

    headings: Literal["plain", "markdown"] = "plain"
    """'markdown' preserves the heading levels of a dump: `== A ==` becomes `## A`"""
    title: bool = False
    """True puts the title before each article, as `# Title` if headings are Markdown"""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.files and "dataset" in self.model_fields_set:
            raise ValueError("give files or dataset, not both")
        if self.headings == "markdown" and not self.files:
            raise ValueError('headings = "markdown" needs XML dumps in files, because texts of the hub have no markup; remove headings')
        return self

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        return converted(self, context)

    def unconverted(self, context: StreamContext) -> Iterator[list[Document]]:
        """Yield the articles with their text as in the source. In a dump, this text is wikitext."""
        files = self.file_pass(context)
        yield from batched(self._dumps(files, context) if self.files else self._hub(files, context), files)

    def convert(self, documents: list[Document]) -> tuple[list[Document], DropReport, list[tuple[str, Document]]]:
        """Convert the wikitext of a dump's articles to text.

        An article without text is dropped as `empty`, or as `list_page` if it has only sections that list names or works.
        """
        from niels_cache_corpora.wikipedia.markup import Form, text_or_list

        converted, examples = [], []
        dropped = DropReport()
        sites = self._sites({document.file for document in documents}) if self.files else {}
        for document in documents:
            if self.files:
                form = Form(sites.get(document.file, NO_SITE), headings=self.headings == "markdown")
                text, only_lists = text_or_list(document.text, form)
                document = document._replace(text=text)
                if only_lists or not text:
                    dropped.drop("list_page" if only_lists else "empty", describe_origin(document), of_val=int(document.split == "val"))
                    if only_lists:
                        examples.append(("list_page", document))
                    continue
            if self.title and document.title:
                mark = "# " if self.headings == "markdown" else ""
                document = document._replace(text=f"{mark}{document.title}\n\n{document.text}")
            converted.append(document)
        return converted, dropped, examples

    def _sites(self, names: set[str]) -> dict[str, Site]:
        groups = tuple(tuple(part.files or ()) for part in self.upstream_splits())
        files = _find_dump_files(groups, names)
        site_of = lambda file: _site(file, self.encoding, _stamp(file))  # noqa: E731
        found = {file.name: site_of(file) for file in files if file.name in names}
        if NO_SITE in found.values():
            first = next((site for file in files if (site := site_of(file)) != NO_SITE), NO_SITE)
            found = {name: first if site == NO_SITE else site for name, site in found.items()}
        return found

    def gives_plain_text(self, document: Document) -> bool:
        return bool(self.files)

    def _dumps(self, files: FilePass, context: StreamContext) -> Iterator[Document]:
        drop, facts, decoding = context.report.drop_row, context.report.facts, DecodingCounts(self, context)
        for split in files.splits():
            for file in files.files():
                name = file.name
                if not _DUMP.search(name):
                    raise NielsCacheError(
                        f'{name}: not an XML dump, whose name ends in .xml; read rows with articles with source = "jsonl" or "parquet"'
                    )
                for page in read_pages(file, files.position, self.damage_options(context, files)):
                    replaced = decoding.count(name, Damage(page.replaced_bytes, page.replaced))
                    if page.namespace != 0:
                        drop("other_namespace", name, page.row)
                    elif page.redirect or REDIRECT.match(page.text or ""):  # not every dump has <redirect/>
                        facts["redirects"] = facts.get("redirects", 0) + 1
                    elif page.model != "wikitext":
                        drop("other_content_model", name, page.row)
                    elif problem := text_problem(page.text):
                        drop(problem, name, page.row)
                    elif decoding.admits(name, "\0" if page.has_nul else page.text or "", replaced=replaced, row=page.row):
                        yield Document(page.text or "", row_id(page.id or None, name, page.row), name, page.row, page.title, split)

    def _hub(self, files: FilePass, context: StreamContext) -> Iterator[Document]:
        decoding, check = DecodingCounts(self, context), TextFieldCheck()
        for split in files.splits():
            for file, row, values in self.rows(files, context, ["text"], ["id", "title"]):
                decoding.count_row(file, values)
                if problem := check.problem(values.get("text"), file, row):
                    context.report.drop_row(problem, file, row)
                else:
                    source_id = row_id(values.get("id"), file, row)
                    yield Document(values["text"], source_id, file, row, row_title(values.get("title")), split)
        check.report_hint(context)


def _find_dump_files(groups: tuple[tuple[str, ...], ...], names: set[str]) -> Sequence[SourceFile]:
    """Return the files of these lists of patterns.

    This is called for each batch, so it sends a request to a server only for a new name.
    """
    if not any("://" in pattern for patterns in groups for pattern in patterns):
        return _find(groups)
    if not names <= {file.name for file in _find_once(groups)}:
        _find_once.cache_clear()
    return _find_once(groups)


def _find(groups: tuple[tuple[str, ...], ...]) -> Sequence[SourceFile]:
    return [file for files in find_splits(groups) for file in files]


_find_once = lru_cache(maxsize=64)(_find)


@lru_cache(maxsize=4096)
def _site(file: SourceFile, encoding: str, stamp: tuple[int, int]) -> Site:
    """Return `read_site` of a file from a cache whose key includes `stamp`, which changes with the file."""
    return read_site(file, encoding=encoding)


def _stamp(file: SourceFile) -> tuple[int, int]:
    if file.is_remote:  # no request for each batch
        return 0, 0
    facts = os.stat(file.url)
    return facts.st_mtime_ns, facts.st_size
