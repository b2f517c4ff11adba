"""What happened to one document of a data set with a corpus: which step dropped it and why, and what was cut out of it.

A document in the corpus costs one pass over the column of ids. Any other one is read from the source again, from its file if its id begins
with the name of a file, and passes through the steps alone.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.prepared_corpora import open_prepared, with_corpus_readers
from niels_cache_assets.base.documents import Document
from niels_cache_assets.cleaning.report import CleaningReport, RejectedDocument
from niels_cache_assets.corpus.chunks import ChunkWork
from niels_cache_assets.corpus.identity import require_prepared
from niels_cache_assets.corpus.layout import DUPLICATES, corpus_dir, duplicates_file
from niels_cache_assets.corpus.prepared import EMPTIED, PreparedCorpus
from niels_cache_assets.inspection.corpora import documents_at, find_corpus, ordinal_of, rows_at
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.reading.file_source import GroupedFiles
from niels_cache_assets.sources.types import SourceReport, StreamContext
from niels_cache_assets.steps.chain import ChainRun
from niels_cache_assets.steps.identity import is_stateful
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS

_SHOWN = ("source_id", "title", "file", "row", "text")


def explain_document(registry: Registry, name: str, source_id: str, *, root: Path) -> dict[str, Any]:
    """Return what happened to a document, as plain data.

    The keys are `reason` (None: it is kept), `value` (what the step measured, or None), `document` (`title`, `file`, `row` and `text`),
    `split`, `because` (the copy that is kept, with its `dataset`), `steps` (each step that it has passed, with the `characters` after it)
    and `cuts` (the `bytes` and `places` of each step that cuts repeated text). Those that do not apply are missing.

    Args:
        registry: The configuration.
        name: The name of the data set.
        source_id: The id of the document. Of several documents with this id, the first is explained.
        root: The cache root.

    Raises:
        NielsCacheError: If there is no current corpus, or no such document.
    """
    require_prepared(registry, name)
    prepared = open_prepared(registry, name, root=root)
    ordinal = ordinal_of(prepared, source_id)
    if ordinal is None:
        return _dropped_by_step(Corpus(registry, root, name=name), prepared, source_id)
    (document,) = prepared.select(np.array([ordinal]))
    split = prepared.splits[ordinal]
    found = {"reason": None, "document": _shown(document), "split": SPLITS[split] if split >= 0 else None}
    dropped = prepared.drop_list[0]
    if ordinal in dropped:
        path = prepared.duplicates_directory / duplicates_file(name)
        row = rows_at([path], [int(np.searchsorted(dropped, ordinal))], list(DUPLICATES)).popitem()[1]
        key = row["because_dataset"], row["because_ordinal"]
        kept = documents_at(root, [key], {key[0]: find_corpus(registry, root, key[0])[1]}, _SHOWN)[key]
        value = row["similarity"] if row["kind"] == "near" else None
        return {**found, "reason": f"{row['kind']}_duplicate", "value": value, "because": {"dataset": key[0], **kept}}
    cuts = {cut.step: cut.within(ordinal, ordinal + 1) for cut in prepared.cuts}
    sizes = {step: {"places": len(starts), "bytes": int((ends - starts).sum())} for step, (_, starts, ends) in cuts.items()}
    emptied = any(ordinal in cut.emptied for cut in prepared.cuts)
    return {**found, "reason": EMPTIED if emptied else None, "cuts": sizes}


def _dropped_by_step(corpus: Corpus, prepared: PreparedCorpus, source_id: str) -> dict[str, Any]:
    """Read a document from the source again, and return which step drops it."""
    source = corpus.source
    if is_stateful(source):
        raise NielsCacheError(f"{corpus.name}: a step depends on earlier documents, so one document cannot be explained")
    work = ChunkWork(
        source=source,
        seed=prepared.seed,
        cleaning=corpus.registry.cleaning_of(corpus.name) if "clean" in source.prepare else None,
        signer=None,
    )
    given = next((each for each in _documents(corpus, prepared, source_id) if each.source_id == source_id), None)
    if given is None:
        by_source = ", ".join(prepared.meta["dropped_by_source"]) or "none"
        raise NielsCacheError(
            f"{corpus.name}: the source gives no document with the id {source_id!r}; it is misspelled, or was dropped when it was read, "
            f"of which only counts are kept (reasons here: {by_source})"
        )
    converted, dropped, _ = source.convert([given])
    if not converted:
        return {"reason": next(iter(dropped.dropped)), "document": _shown(given)}
    run = ChainRun(report=CleaningReport(prepared.seed), outcomes=list(converted))
    passed: list[dict[str, Any]] = []
    for title in work.chain.each_step(run):
        outcome = run.outcomes[0]
        if isinstance(outcome, RejectedDocument):
            shown = work.chain.readable(outcome.document)
            return {"reason": outcome.reason, "value": outcome.value, "document": _shown(shown), "steps": passed}
        passed.append({"step": title, "characters": len(outcome.text)})
    raise NielsCacheError(
        f"{corpus.name}: {source_id!r} passes all steps, but is not in {corpus_dir(corpus.root, corpus.name)}; "
        "the source has changed since the corpus was built, so build it again"
    )


def _documents(corpus: Corpus, prepared: PreparedCorpus, source_id: str) -> Iterator[Document]:
    """Yield the documents of the files whose names occur in an id, and then, or without such files, all."""
    source = corpus.source
    context = StreamContext(
        seed=prepared.seed,
        revision=prepared.meta.get("dataset_revision"),
        siblings=with_corpus_readers(corpus.registry, corpus.root),
    )
    if isinstance(source, GroupedFiles):
        files = source.input_files()
        if named := [each for each in files if Path(each.name).name in source_id]:
            only = replace(context, files=named, text_field=source.text_field_of(files), report=SourceReport())
            yield from chain.from_iterable(source.kept_unconverted(only))
    yield from chain.from_iterable(corpus.stream(context))


def _shown(document: Document) -> dict[str, Any]:
    return {key: getattr(document, key) for key in _SHOWN}
