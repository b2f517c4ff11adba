"""The documents that the options --good, --bad and --on of `niels-cache classifier` name: files, folders, and data sets.

A data set with a corpus is read from its corpus, another one from its source, as a member of a mixture is.
"""

import os
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from niels_cache_assets.artifacts.prepared_corpora import with_corpus_readers
from niels_cache_assets.base.documents import Document, DropReport
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.types import PretrainSource, Siblings, StreamContext
from niels_cache_runtime.errors import NielsCacheError

OpenFiles = Callable[[Sequence[str]], Sequence[PretrainSource]]  # returns the sources of files and folders


@dataclass(frozen=True, kw_only=True)
class Given:
    """Documents that an option names.

    Attributes:
        option: The option.
        names: What it names.
        sources: The sources of these documents.
        siblings: The data sets of the configuration.
        limit: The number of documents to read. None: all.
    """

    option: str
    names: Sequence[str]
    sources: Sequence[PretrainSource]
    siblings: Siblings
    limit: int | None = None

    @property
    def bytes(self) -> int:
        """The size of the files, as far as it is known."""
        files = chain.from_iterable(getattr(source, "files", ()) for source in self.sources)
        return sum(os.path.getsize(file) for file in files if os.path.isfile(file))

    def documents(self, report: DropReport) -> Iterator[Document]:
        """Yield the documents, and add those that cannot be read to the report.

        Raises:
            NielsCacheError: If there is none.
        """
        hints, is_empty = [], True

        def all_sources() -> Iterator[Document]:
            for source in self.sources:
                context = StreamContext(seed=0, siblings=self.siblings)
                yield from chain.from_iterable(source.documents(context))
                report.join(context.report)
                hints.extend(context.report.hints)

        for document in islice(all_sources(), self.limit):
            is_empty = False
            yield document
        if is_empty:
            dropped = [f"{reason} {count:,}" for reason, count in report.dropped.items()]
            why = "; ".join([*hints, *dropped]) or "name other files"
            raise NielsCacheError(f"{self.option} {' '.join(self.names)}: holds no document; {why}")


def documents_given(arguments: Namespace, registry: Registry, root: Path, open_files: OpenFiles) -> dict[str, Given]:
    """Return the documents of each option that is given.

    Raises:
        NielsCacheError: If a file or a data set is missing.
    """
    readers = with_corpus_readers(registry, root)

    def sources_of(names: Sequence[str]) -> list[PretrainSource]:
        files = [name for name in names if name not in readers]
        for name in files:
            if re.fullmatch(r"[\w-]+", name) and not os.path.exists(name):
                registry.refuse_data_set("command line", "no file and no pretrain data set", name, readers)
        return [*(readers[name] for name in names if name in readers), *open_files(files)]

    given = {name: getattr(arguments, name) for name in ("good", "bad", "on")}
    return {
        name: Given(option=f"--{name}", names=names, sources=sources_of(names), siblings=readers, limit=arguments.limit)
        for name, names in given.items()
        if names
    }
