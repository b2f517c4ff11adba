"""The corpus of a data set. The documents of its source are cleaned and signed on every core, and stored on disk.

To sign a document is to compute its signature for the search for duplicates. A build makes one pass over the whole source. Token budgets
apply later, when the cache is built from the corpus. Memory does not depend on the size of the source. A build needs a few chunks of about
a megabyte for each worker process, and one row group (a block of rows) of the Parquet file. A document may be larger than a chunk. It then
takes about ten times its size in this process and fifteen times its size in its worker. The same source and settings give the same bytes,
for any number of processes. An interrupted run repeats at most 16 MB of text for each worker process, and its final bytes are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import Artifact, Work, Written, with_unmatched
from niels_cache_assets.build_cache.resuming import Reached
from niels_cache_assets.config.fingerprint import fingerprint_of
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.corpus.chunks import ChunkWork, CorpusCounts, SourceChunks, new_report
from niels_cache_assets.corpus.identity import (
    cleaning_identity,
    corpus_made_of,
    corpus_tokenizer,
    needs_tokenizer,
    read_by_mixture,
    require_prepared,
    signature_identity,
)
from niels_cache_assets.corpus.layout import CODE_VERSION, TEXT_BYTES_PER_RECORD, corpus_dir, corpus_parts_dir
from niels_cache_assets.corpus.store import CorpusWriter, is_corpus_file, write_counts, write_measures, write_rejected
from niels_cache_assets.corpus.store import Written as WrittenDocuments
from niels_cache_assets.disk.space import Need, corpus_need
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.disk.writers import Files
from niels_cache_assets.documents import Documents, Drops, SourceReport
from niels_cache_assets.parts.excluded import ids_in_parts, removed_ids, with_held_ids, with_ids
from niels_cache_assets.parts.layout import part_name
from niels_cache_assets.show.drops import DropSummary, summary_of_drops
from niels_cache_assets.sources.notes import notes_on_source
from niels_cache_assets.sources.reading.encodings import nothing_is_text
from niels_cache_assets.sources.reading.files import file_bytes
from niels_cache_assets.sources.reading.keep import kept_columns
from niels_cache_assets.sources.text_column import reading_warning, with_text_field
from niels_cache_assets.sources.types import PretrainSource, StreamContext
from niels_cache_assets.streaming.encode import INVALID_UNICODE
from niels_cache_assets.streaming.held_out import HeldOut
from niels_cache_assets.streaming.in_flight import map_in_processes
from niels_cache_assets.tokenizer.engines import reference_of
from niels_cache_assets.tokenizer.kinds import TextTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.format.place import check_place
from niels_cache_runtime.format.reading import available_threads


@dataclass(frozen=True, slots=True)
class CorpusProgress:
    """The progress of a corpus.

    share: the part of the source that was read, 0 to 1, or None if it is unknown. Local files count by bytes, remote files by number.
    """

    documents: int  # number of documents received from the source so far
    kept: int
    characters: int  # number of characters of all received documents
    share: float | None

    @property
    def counts(self) -> dict[str, int]:
        """All fields except the share."""
        return {"documents": self.documents, "kept": self.kept, "characters": self.characters}


@dataclass(frozen=True, kw_only=True)
class _Done:
    """The state in the journal. It holds the state of the writer, the state of CorpusCounts, and the position
    in the source.
    """

    written: WrittenDocuments
    counts: dict[str, Any]
    reached: Reached


@dataclass(frozen=True, kw_only=True)
class Corpus(Artifact):
    """The corpus of a data set with `prepare`.

    processes: the number of worker processes. None means the value of `threads` in [build], or one worker per core if that value is not
    set. 1 means that this process does the work.
    siblings: a function that returns the pretrain tables by name, for a mixture (see `with_prepared`). `current` does not call this
        function.
    """

    registry: Registry
    root: Path
    name: str
    processes: int | None = None
    siblings: Callable[[], Mapping[str, PretrainSource]] = dict

    version = CODE_VERSION
    resumable = True
    noun = "corpus"

    @property
    def key(self) -> str:
        return f"corpus/{self.name}"

    @property
    def directory(self) -> Path:
        return corpus_dir(self.root, self.name)

    @property
    def network_patience(self) -> float:
        return self.registry.build.network_patience

    @property
    def source(self) -> PretrainSource:
        """The table of the data set."""
        return self.registry.pretrain[self.name]

    @property
    def keep(self) -> tuple[str, ...]:
        """The columns whose values stay with the documents."""
        return kept_columns(self.source, self.registry.pretrain)

    @cached_property
    def _siblings(self) -> Mapping[str, PretrainSource]:
        return self.siblings()

    @cached_property
    def _tokenizer(self) -> TextTokenizer | None:
        return corpus_tokenizer(self.registry, self.name, root=self.root)

    @property
    def reference(self) -> str | None:
        return reference_of(self._tokenizer)

    def inputs(self) -> Sequence[str]:
        members = [name for name in self.registry.prepared() if name in read_by_mixture(self.registry, self.source)]
        searched = any("dedup" in self.registry.pretrain[name].prepare for name in members)
        return [
            *(["tokenizer"] if needs_tokenizer(self.registry, self.name) else []),
            *(f"corpus/{name}" for name in members),
            *(["corpus/duplicates"] if searched else []),
        ]

    def unavailable(self) -> str | None:
        source = require_prepared(self.registry, self.name)
        if self.processes is not None and self.processes < 1:
            raise NielsCacheError(f"processes is {self.processes}; give at least 1, or None")
        return None if source.enabled else "it is switched off"

    def finished(self) -> Meta | None:
        meta = finished_meta(self.directory)
        if meta is not None:
            check_place(meta, self.directory)
        return meta

    def revision(self) -> str | None:
        return self.source.revision(self._siblings)

    def identity(self, revision: str | None) -> dict[str, Any]:
        tokenizer_sha256 = self._tokenizer.model_sha256 if self._tokenizer else None
        return corpus_made_of(self.registry, self.name, revision=revision, tokenizer_sha256=tokenizer_sha256)

    def current(self) -> Meta:
        source = require_prepared(self.registry, self.name)
        advice = f"materialize corpus/documents of {self.name!r} first (niels-cache build-all does)"
        if not source.enabled:
            advice = f"{self.name!r} is switched off: set enabled = true, then {advice}"
        meta = self.finished()
        if meta is None:
            raise NielsCacheError(f"{self.directory}: no finished corpus of {self.name!r} yet; {advice}")
        if not self.is_made_of(meta, self.identity(meta["dataset_revision"])):
            raise NielsCacheError(
                f"{self.directory}: the corpus of {self.name!r} was made with other settings or another code version; {advice}"
            )
        return meta

    def is_made_of(self, meta: Meta, made_of: Mapping[str, Any]) -> bool:
        """Return whether the corpus is current. For a corpus in parts, only those ids of `exclude` count that it holds or has removed, or
        that one of its parts holds or has removed: a part may have examples of dropped documents that the joined corpus does not have.
        """
        if self.source.corpus_parts > 1:
            beside = corpus_parts_dir(self.root, self.name)
            folders = [] if self.is_part else [beside / part_name(number) for number in range(self.source.corpus_parts)]
            also = ids_in_parts(self.source.exclude, folders, beside=beside)
            made_of = with_held_ids(made_of, self.source.exclude, meta, self.directory, beside=beside, also=also)
        return super().is_made_of(meta, made_of)

    def of_removed_ids(self, meta: Meta, work: Work) -> Meta:
        """Return the meta.json of a new corpus or part with a fingerprint for which only the removed ids of `exclude` count."""
        if self.source.exclude is None:
            return meta
        return {**meta, "fingerprint": fingerprint_of(with_ids(work.made_of, removed_ids(meta)))}

    def owns(self, name: str) -> bool:
        return is_corpus_file(name)

    def need(self) -> Need | None:
        return corpus_need(file_bytes(getattr(self.source, "files", None), self.source.endings))

    def stream(self, context: StreamContext) -> Iterator[Documents]:
        """Yield the documents before `convert`."""
        return self.source.kept_unconverted(context)

    def meta_of(self, work: Work, counts: CorpusCounts, by_source: Drops, *, files: Files, content_sha256: str) -> Meta:
        """Return meta.json."""
        return {
            "kind": "corpus",
            "built": True,
            "dataset_name": self.name,
            "dataset_config": self.source.hub_config,
            "dataset_revision": work.revision,
            "seed": self.registry.build.seed,
            "prepare": sorted(self.source.prepare),
            "cleaning": cleaning_identity(self.registry, self.name),
            "signatures": signature_identity(self.registry, self.name),
            **({"keep": list(self.keep)} if self.keep else {}),
            **counts.meta(),
            "dropped": dict(counts.report.dropped + by_source.dropped),
            "dropped_by_source": dict(+by_source.dropped),
            **with_text_field(self.source.describe(), by_source.facts),
            "files": files,
            "content_sha256": content_sha256,
            "fingerprint": work.fingerprint,
        }

    def drops(self, meta: Meta) -> DropSummary:
        return DropSummary() if self.is_part else with_unmatched(summary_of_drops(meta), self.source, meta)

    def write(self, work: Work) -> Written:
        work.log(f"preparing {self.name}: {', '.join(self.source.prepare)}")
        for note in notes_on_source(self.source):
            work.log(note)
        if self.source.train_tokens is not None or self.source.val_tokens is not None:
            work.log(
                f"warning: all of {self.name} is prepared; token budgets (train_tokens, val_tokens) apply only when its cache is built"
            )
        with HeldOut(self.registry, root=self.root, siblings=self._siblings, tokenizer=self._tokenizer) as held_out:
            context = StreamContext(
                seed=self.registry.build.seed, revision=work.revision, log=work.log, siblings=self._siblings, held_out=held_out
            )
            return self._write(context, work)

    def _write(self, context: StreamContext, work: Work) -> Written:
        registry, name, source = self.registry, self.name, self.source
        processes = self.processes or registry.build.threads or available_threads()
        signatures = signature_identity(registry, name) or {}
        cleaning = registry.cleaning_of(name) if "clean" in source.prepare else None
        cleaner = ChunkWork(
            source=source, seed=context.seed, cleaning=cleaning, num_perm=signatures.get("num_perm"), ngram=signatures.get("ngram")
        )
        journal = work.open_journal(name, state=_Done)
        done: _Done | None = journal.state
        there = done.written if done else None
        counts = CorpusCounts.from_state(done.counts) if done else CorpusCounts(report=new_report(context.seed, cleaning=cleaning))
        resumed_characters = counts.before.characters
        recorded_bytes, most_bytes = counts.before.bytes, TEXT_BYTES_PER_RECORD * processes
        chunks = SourceChunks(self.stream, context, done.reached if done else None)
        doing = f"preparing {name}"
        with (
            CorpusWriter(
                work.directory,
                num_perm=signatures.get("num_perm"),
                there=there,
                files=journal.finished,
                hashes_stay=self.is_part,
                keeps=bool(self.keep),
            ) as writer,
            closing(map_in_processes(cleaner, chunks, processes=processes, doing=doing, size_of=attrgetter("characters"))) as results,
        ):
            for chunk in results:
                finished_file = writer.write(chunk.rows, chunk.hashes, chunk.digests, chunk.slots)
                counts.add(chunk.counts)
                reached = chunks.next_reached()
                if finished_file or counts.before.bytes - recorded_bytes >= most_bytes:
                    recorded_bytes = counts.before.bytes
                    written, sizes = writer.checkpoint()
                    now = _Done(written=written, counts=counts.state(), reached=reached)
                    share, documents = reached.share, counts.before.documents
                    journal.record(asdict(now), finished=writer.files, files=sizes, sums=sizes.sums, share=share, documents=documents)
                    writer.forget_spools()
                before, after = counts.before, counts.after
                work.report(CorpusProgress(before.documents, after.documents, before.characters, reached.share))
            by_source = Drops(context.report.dropped, context.report.facts)
            by_source.join(counts.dropped_by_source)
            if not writer.documents and not self.is_part:
                raise NielsCacheError(_why_empty(self.directory, counts.report.dropped, by_source.dropped, context.report))
            writer.seal()
            write_rejected(work.directory, counts.report.rows(), writer.files)
            write_measures(work.directory, counts.report, writer.files)
            if self.is_part:
                write_counts(work.directory, counts.state(), writer.files)
            meta = self.meta_of(work, counts, by_source, files=writer.files, content_sha256=writer.content_sha256)
        return Written(meta=meta, resumed=resumed_characters, warning=reading_warning(meta))


def _why_empty(directory: Path, dropped_here: Counter[str], dropped_by_source: Counter[str], report: SourceReport) -> str:
    counts = sorted((dropped_here + dropped_by_source).items())
    reasons = ", ".join(f"{reason} {count}" for reason, count in counts) or "the source is empty"
    hints = "".join(f"; {hint}" for hint in report.hints)
    advice = "the source and the thresholds of [cleaning]" if set(dropped_here) - {INVALID_UNICODE} else "the source"
    return f"{directory}: no document is left ({reasons}){nothing_is_text(report.facts)}{hints}; nothing was written; check {advice}"
