"""`python_docs`: a pretrain data set that every machine has, made of the standard library's docstrings.

The quickstart profile builds it: real prose, no network. The parsing is in `reading.stdlib_docs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from niels_cache_assets.documents import Document
from niels_cache_assets.sources.reading.rows import batched
from niels_cache_assets.sources.reading.stdlib_docs import documented_objects, stdlib_revision
from niels_cache_assets.sources.types import PretrainSource, StreamContext
from niels_cache_runtime.old_paths import former_names

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = former_names(__name__, "niels_cache_assets.sources.python_help")


class PythonDocs(PretrainSource):
    """One document per module, class, function and method: its qualified name, a blank line, its docstring."""

    source: Literal["python_docs"] = "python_docs"
    min_characters: int = Field(40, ge=1, description="Docstrings shorter than this are dropped (and counted)")

    def revision(self, siblings: Mapping[str, PretrainSource]) -> str | None:
        return stdlib_revision()

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        return batched(self._documents(context))

    def _documents(self, context: StreamContext) -> Iterator[Document]:
        for found in documented_objects(frozenset({"module", "class", "function", "method"})):
            if len(found.doc) < self.min_characters:
                context.report.dropped["short_docstring"] += 1
            else:
                yield Document(f"{found.name}\n\n{found.doc}", found.name, found.file, found.line, title=found.name)
