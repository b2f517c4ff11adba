"""Functions that open prepared data sets and check that the corpus and its drop list fit the configuration.

Opening costs two small reads, and one more for each data set with "dedup". The drop list is the list of duplicates. corpus/prepared.py
reads the documents.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.duplicates import Duplicates
from niels_cache_assets.artifacts.parts.plan import MemberPlanOnDisk, PartsPlan
from niels_cache_assets.base.documents import DocumentBatch
from niels_cache_assets.corpus.prepared import PreparedCorpus, PreparedMember
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.project.tables import BuildSettings
from niels_cache_assets.sources.types import PretrainSource, SourceWithParts


def open_prepared(
    registry: Registry,
    name: str,
    *,
    root: Path,
    source: PretrainSource | None = None,
    build: BuildSettings | None = None,
    minus_duplicates: bool = True,
) -> PreparedCorpus:
    """Return the prepared data set of this configuration.

    Args:
        registry: The configuration.
        name: The name of the data set.
        root: The folder of the caches.
        source: The table of the data set with the settings for this run. None: the table of the registry.
        build: The table [build] with the settings for this run. None: the table of the registry.
        minus_duplicates: Whether the documents in the drop list are left out.

    Raises:
        NielsCacheError: If the corpus or (with "dedup") the drop list is missing or out of date. The message names the artifact to
            materialize.
    """
    source, build = source or registry.pretrain[name], build or registry.build
    corpus, duplicates = Corpus(registry, root, name=name), Duplicates(registry, root)
    meta = corpus.current()
    looks_for_duplicates = "dedup" in source.prepare and minus_duplicates
    return PreparedCorpus(
        name=name,
        directory=corpus.directory,
        meta=meta,
        source=source,
        seed=build.seed,
        duplicates=duplicates.current_of(name, source=source, seed=build.seed) if looks_for_duplicates else None,
        duplicates_directory=duplicates.directory,
    )


def prepared_documents(registry: Registry, name: str, *, root: Path) -> Iterator[DocumentBatch]:
    """Return the kept documents of a prepared data set, in batches. Each document has its split.

    Raises:
        NielsCacheError: If the data set cannot be opened (see `open_prepared`).
    """
    return open_prepared(registry, name, root=root).documents()


def with_corpus_readers(registry: Registry, root: Path) -> dict[str, PretrainSource]:
    """Return all pretrain tables by name, for `siblings` of a StreamContext.

    If a table has a corpus, a reader of this corpus replaces the table. A table in parts gets its plan.
    """

    def sibling(name: str, source: PretrainSource) -> PretrainSource:
        if source.has_corpus:
            return PreparedMember.of(partial(open_prepared, registry, name, root=root), against=source.decontaminate_against)
        if source.parts == 1 or not isinstance(source, SourceWithParts):
            return source
        return source.with_plan(MemberPlanOnDisk(PartsPlan(registry, root, name=name, source=source, build=registry.build)))

    return {name: sibling(name, source) for name, source in registry.pretrain.items()}
