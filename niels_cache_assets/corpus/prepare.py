"""`prepare_corpus`: stream a data set's source through cleaning and signing, on every core, into its corpus on disk.

One pass over all of the source: token budgets are for the cache that is built of the corpus. Memory: a few chunks of about a megabyte per
worker process and one row group, whatever the size of the source. A document that is larger than a chunk takes about ten times its size
here and fifteen times in its worker, words and copies on the way included. The same source and settings give the same bytes, for any
number of processes, and for a run that was ended anywhere and run again: that goes on behind the last complete file of documents.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from niels_cache_assets.build_cache.resuming import Reached, Resume, open_journal
from niels_cache_assets.corpus.chunks import ChunkWork
from niels_cache_assets.corpus.identity import (
    cleaning_identity,
    corpus_made_of,
    corpus_tokenizer,
    require_prepared,
    signature_identity,
)
from niels_cache_assets.corpus.layout import corpus_dir
from niels_cache_assets.corpus.member import with_prepared
from niels_cache_assets.corpus.source_chunks import SourceChunks
from niels_cache_assets.corpus.store import CorpusWriter, Written, is_corpus_file, write_rejected
from niels_cache_assets.corpus.workers import map_in_processes
from niels_cache_assets.documents import SourceReport
from niels_cache_assets.fingerprint import fingerprint_of
from niels_cache_assets.held_out import HeldOut
from niels_cache_assets.registry import Registry
from niels_cache_assets.sources.base import SourceUnavailable, StreamContext
from niels_cache_assets.sources.encodings import decoding_warning, nothing_is_text
from niels_cache_assets.streaming.directories import atomic_directory, finished_meta, sweep_beside_hit
from niels_cache_assets.streaming.encode import INVALID_UNICODE
from niels_cache_assets.streaming.space import corpus_need, file_bytes, require_room, telling
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import Meta, read_meta, write_meta
from niels_cache_runtime.format.place import check_place
from niels_cache_runtime.format.reading import available_threads

Log = Callable[[str], None]
State = Literal["built", "cache_hit", "disabled"]


@dataclass(frozen=True, slots=True)
class CorpusProgress:
    """How far a corpus is. `share` (0 to 1): of the bytes of the source's files, or of the number of remote ones; None where not known."""

    documents: int  # given by the source so far
    kept: int
    characters: int  # of all that were given
    share: float | None

    @property
    def counts(self) -> dict[str, int]:
        """All but the share."""
        return {"documents": self.documents, "kept": self.kept, "characters": self.characters}


@dataclass(frozen=True, kw_only=True)
class CorpusOutcome:
    """What happened to one corpus. `meta` is empty where the data set is switched off and was never prepared.

    `warning` is set where an old corpus was kept because its upstream could not be reached, and where bytes of files were replaced or
    documents are no text. seconds: of this run. resumed_characters: those
    that an earlier, stopped run had read already.
    """

    name: str
    state: State
    meta: Meta
    directory: Path
    seconds: float
    warning: str | None = None
    resumed_characters: int = 0


@dataclass(frozen=True, kw_only=True)
class _Done:
    """What the journal keeps, behind each file of documents: what is `written`, the state of CorpusCounts, how far the source was read."""

    written: Written
    counts: dict[str, Any]
    reached: Reached


def prepare_corpus(
    registry: Registry,
    name: str,
    *,
    root: Path,
    force: bool = False,
    processes: int | None = None,
    progress: Callable[[CorpusProgress], None] | None = None,
    log: Log = lambda message: None,
    before_streaming: Callable[[], None] = lambda: None,
) -> CorpusOutcome:
    """Make `corpus/<name>` under `root`, or find that the corpus there is what that would make.

    `processes`: workers; None: as many as [build] threads, or every core; 1 works in this process. Raises NielsCacheError for a data set
    without `prepare`, a source of which nothing is left, and a worker that was killed; the last good corpus then stays. Resumes an
    interrupted run unless `force` is set. `before_streaming` as of build_dataset.
    """
    started = time.monotonic()
    source = require_prepared(registry, name)
    if processes is not None and processes < 1:
        raise NielsCacheError(f"processes is {processes}; give at least 1, or None")
    directory = corpus_dir(root, name)
    old = finished_meta(directory)
    if old is not None and not force:
        check_place(old, directory)

    def outcome(state: State, meta: Meta, warning: str | None = None, resumed_characters: int = 0) -> CorpusOutcome:
        return CorpusOutcome(
            name=name,
            state=state,
            meta=meta,
            directory=directory,
            seconds=time.monotonic() - started,
            warning=warning,
            resumed_characters=resumed_characters,
        )

    if not source.enabled:
        return outcome("disabled", old or {})
    siblings = with_prepared(registry, root)
    tokenizer = corpus_tokenizer(registry, name, root=root)

    def made_of_at(revision: str | None) -> dict[str, Any]:
        return corpus_made_of(registry, name, revision=revision, tokenizer_sha256=tokenizer.model_sha256 if tokenizer else None)

    try:
        revision = source.revision(siblings)
    except SourceUnavailable as error:
        if old is not None and not force:
            kept = old["dataset_revision"]
            if old["fingerprint"] == fingerprint_of(made_of_at(kept)):
                return outcome("cache_hit", old, warning=f"{error}; kept the finished corpus of revision {kept}")
        raise
    made_of = made_of_at(revision)
    fingerprint = fingerprint_of(made_of)
    if old is not None and not force and old["fingerprint"] == fingerprint:
        sweep_beside_hit(directory)
        return outcome("cache_hit", old)
    before_streaming()
    log(f"preparing {name}: {', '.join(source.prepare)}")
    if source.train_tokens is not None or source.val_tokens is not None:
        log(f"warning: all of {name} is prepared, to its end: token budgets (train_tokens, val_tokens) count when its cache is built")
    workers = processes or registry.build.threads or available_threads()
    need = corpus_need(file_bytes(getattr(source, "files", None), source.endings))
    require_room(directory, need, log=log)
    with telling(need), HeldOut(registry, root=root, siblings=siblings, tokenizer=tokenizer) as held_out:
        context = StreamContext(seed=registry.build.seed, revision=revision, log=log, siblings=siblings, held_out=held_out)
        resumed_characters = _write(registry, name, directory, context, made_of, workers, progress, afresh=force)
    meta = read_meta(str(directory / META_NAME))
    return outcome("built", meta, warning=decoding_warning(meta), resumed_characters=resumed_characters)


def _write(
    registry: Registry,
    name: str,
    directory: Path,
    context: StreamContext,
    made_of: dict[str, Any],
    processes: int,
    progress: Callable[[CorpusProgress], None] | None,
    *,
    afresh: bool,
) -> int:
    """Build the corpus; how many characters of it an earlier run had read. `made_of`: what decides its bytes."""
    from niels_cache_assets.cleaning.counting import CleaningReport
    from niels_cache_assets.corpus.counts import CorpusCounts

    source, fingerprint = registry.pretrain[name], fingerprint_of(made_of)
    signatures = signature_identity(registry, name) or {}
    cleaning = registry.cleaning_of(name) if "clean" in source.prepare else None
    work = ChunkWork(
        source=source, seed=context.seed, cleaning=cleaning, num_perm=signatures.get("num_perm"), ngram=signatures.get("ngram")
    )
    with atomic_directory(directory, is_ours=is_corpus_file, resumable=True) as partial:
        resume = Resume(fingerprint=fingerprint, log=context.log, afresh=afresh, made_of=made_of)
        journal = open_journal(partial, resume, name=name, identity={}, state=_Done)
        assert journal is not None
        done: _Done | None = journal.state
        there = done.written if done else None
        counts = CorpusCounts.from_state(done.counts) if done else CorpusCounts(report=CleaningReport(context.seed))
        resumed_characters = counts.before.characters
        chunks = SourceChunks(source, context, done.reached if done else None)
        doing = f"preparing {name}"
        with (
            CorpusWriter(partial, num_perm=signatures.get("num_perm"), there=there, files=journal.finished) as writer,
            closing(map_in_processes(work, chunks, processes=processes, doing=doing, size_of=attrgetter("characters"))) as results,
        ):
            for chunk in results:
                finished_file = writer.write(chunk.rows, chunk.hashes, chunk.digests, chunk.slots)
                counts.add(chunk)
                reached = chunks.next_reached()
                if finished_file:
                    written, sizes = writer.checkpoint()
                    now = _Done(written=written, counts=counts.state(), reached=reached)
                    share, documents = reached.share, counts.before.documents
                    journal.record(asdict(now), finished=writer.files, files=sizes, sums=sizes.sums, share=share, documents=documents)
                if progress is not None:
                    before, after = counts.before, counts.after
                    progress(CorpusProgress(before.documents, after.documents, before.characters, reached.share))
            dropped_by_source = counts.dropped_by_source + context.report.dropped
            if not writer.documents:
                raise NielsCacheError(_why_empty(directory, counts.report.dropped, dropped_by_source, context.report))
            writer.seal()
            write_rejected(partial, counts.report.rows(), writer.files)
            meta = {
                "kind": "corpus",
                "built": True,
                "dataset_name": name,
                "dataset_config": source.hub_config,
                "dataset_revision": context.revision,
                "source": source.describe(),
                "seed": context.seed,
                "prepare": sorted(source.prepare),
                "cleaning": cleaning_identity(registry, name),
                "signatures": signature_identity(registry, name),
                **counts.meta(),
                "dropped": dict(counts.report.dropped + dropped_by_source),
                "dropped_by_source": dict(+dropped_by_source),
                "facts": context.report.facts,
                "files": writer.files,
                "content_sha256": writer.content_sha256,
                "fingerprint": fingerprint,
            }
            write_meta(str(partial / META_NAME), meta)
    return resumed_characters


def _why_empty(directory: Path, dropped_here: Counter[str], dropped_by_source: Counter[str], report: SourceReport) -> str:
    counts = sorted((dropped_here + dropped_by_source).items())
    reasons = ", ".join(f"{reason} {count}" for reason, count in counts) or "the source is empty"
    hints = "".join(f"; {hint}" for hint in report.hints)
    advice = "the source and the thresholds of [cleaning]" if set(dropped_here) - {INVALID_UNICODE} else "the source"
    return f"{directory}: no document is left ({reasons}){nothing_is_text(report.facts)}{hints}; nothing was written; check {advice}"
