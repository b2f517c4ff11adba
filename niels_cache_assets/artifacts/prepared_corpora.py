"""Functions that open prepared data sets and check that the corpus, its drop list and its cuts fit the configuration.

Opening costs two small reads, and one more for each data set with "dedup". The drop list is the list of duplicates. corpus/prepared.py
reads the documents. The documented import path of `open_prepared` is here; it is in artifacts/repeats.py, because cuts are found in opened
data sets.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from niels_cache_assets.artifacts.parts.plan import MemberPlanOnDisk, PartsPlan
from niels_cache_assets.artifacts.repeats import open_prepared as open_prepared
from niels_cache_assets.base.documents import DocumentBatch
from niels_cache_assets.corpus.prepared import PreparedMember
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.types import PretrainSource, SourceWithParts


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
