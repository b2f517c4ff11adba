"""The corpus of a data set: the documents of its source, cleaned and signed on every core, and stored on disk.

To sign a document is to compute its signature for the search for duplicates. A build makes one pass over the whole source. Token budgets
apply later, when the cache is built from the corpus. Memory does not depend on the size of the source. A build needs a few chunks of about
a megabyte for each worker process, and one row group (a block of rows) of the Parquet file. A document may be larger than a chunk. It then
takes about ten times its size in this process and fifteen times its size in its worker. The same source and settings give the same bytes,
for any number of processes. An interrupted run repeats at most 16 MB of text for each worker process, and its final bytes are the same.

Each part of a corpus in parts is cleaned and signed by a process of its own, and the parts are joined in the order of the plan. The
documents of the joined corpus are hard links. Digests and signatures are copied in blocks (532 bytes a document with 128 slots). The joined
corpus has the content of a corpus without parts, so the search for duplicates decides the same. A build makes the parts that are missing,
one after the other. `niels-cache part NAME 17 --corpus` makes one of them in advance, on any machine.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_cache_assets.artifacts.base import (
    Artifact,
    BuildJob,
    Identity,
    ReportedProgress,
    RootArtifact,
    WriteResult,
    add_unmatched_ids,
    corpus_keys,
)
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.parts.free_parts import build_free_parts_first
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.base.documents import Documents, DropReport, SourceReport, merge_facts
from niels_cache_assets.base.parallel import map_in_processes
from niels_cache_assets.corpus import identity as corpus_identity
from niels_cache_assets.corpus.identity import (
    cleaning_identity,
    identity_of_corpus,
    mixture_dependencies,
    needs_tokenizer,
    open_corpus_tokenizer,
    require_prepared,
    signature_identity,
)
from niels_cache_assets.corpus.layout import (
    CODE_VERSION,
    COUNTS_NAME,
    DIGESTS_NAME,
    HASHES_NAME,
    SIGNATURES_NAME,
    TEXT_BYTES_PER_RECORD,
    corpus_dir,
    corpus_parts_dir,
    documents_file,
)
from niels_cache_assets.corpus.prepared import document_files
from niels_cache_assets.corpus.store import CorpusWriter, CorpusWriterState, is_corpus_file, write_json, write_measures, write_rejected
from niels_cache_assets.disk.identity import differences, without_keys
from niels_cache_assets.disk.space import SpaceNeed, corpus_need, require_free_space
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.disk.writers import Files, NpyWriter
from niels_cache_assets.facts.drops import DropSummary, summarize_drops
from niels_cache_assets.parts.exclusion import ExcludeList
from niels_cache_assets.parts.layout import part_name
from niels_cache_assets.parts.plan import Plan, PlannedPart
from niels_cache_assets.parts.seal import HardLinker, write_blocks
from niels_cache_assets.sources.notes import notes_on_source
from niels_cache_assets.sources.reading.encodings import not_text_note
from niels_cache_assets.sources.reading.file_source import GroupedFiles
from niels_cache_assets.sources.reading.keep import kept_columns
from niels_cache_assets.sources.reading.part_stream import PartStream, part_stream, require_unchanged
from niels_cache_assets.sources.text_column import pass_facts, reading_warning, with_text_field
from niels_cache_assets.sources.types import PretrainSource, Siblings, SourceWithParts, StreamContext
from niels_cache_assets.steps.identity import is_stateful
from niels_cache_assets.streaming.types import BuildPosition
from niels_cache_assets.tokenizer.engines import reference_of
from niels_cache_assets.tokenizer.kinds import TextTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta, location_problem
from niels_cache_runtime.format.npy_files import map_npy
from niels_cache_runtime.format.reading import available_threads

if TYPE_CHECKING:
    from niels_cache_assets.corpus.chunks import ChunkWork, CorpusCounts


@dataclass(frozen=True, kw_only=True)
class _CorpusState:
    """The state in the journal. The default is that of a new build.

    Attributes:
        written: The state of the writer.
        counts: The state of CorpusCounts. Empty before the first chunk.
        reached: The position in the source.
    """

    written: CorpusWriterState = field(default_factory=CorpusWriterState)
    counts: dict[str, Any] = field(default_factory=dict)
    reached: BuildPosition = field(default_factory=BuildPosition)


@dataclass(frozen=True, kw_only=True)
class Corpus(RootArtifact):
    """The corpus of a data set with `prepare`, or one part of it. A data set with `parts` above 1 has a corpus that joins its parts.

    Attributes:
        siblings: Returns the pretrain tables by name, for a mixture (see `with_corpus_readers`). `current` does not call it.
        number: The number of the part. None: the whole corpus.
        given: The part in the plan, if the caller has read the plan. None: read the plan when it is needed.
    """

    name: str
    siblings: Callable[[], Siblings] = dict
    number: int | None = None
    given: PlannedPart | None = field(default=None, compare=False)

    version = CODE_VERSION
    uses_network = True
    noun = "corpus"

    @property
    def is_part(self) -> bool:
        return self.number is not None

    @property
    def is_joined(self) -> bool:
        """Whether this is a whole corpus that joins its parts."""
        return self.is_shared and not self.is_part

    @property
    def is_shared(self) -> bool:
        source = self.registry.pretrain.get(self.name)
        return source is not None and source.corpus_parts > 1

    @property
    def resumable(self) -> bool:
        return not self.is_joined  # its parts are

    @property
    def member(self) -> str | None:
        """The name of the part, or None for the whole corpus."""
        return None if self.number is None else part_name(self.number)

    @property
    def key(self) -> str:
        return f"corpus_part/{self.name}/{self.member}" if self.member else f"corpus/{self.name}"

    @property
    def directory(self) -> Path:
        return corpus_parts_dir(self.root, self.name) / self.member if self.member else corpus_dir(self.root, self.name)

    @property
    def part_arguments(self) -> list[str]:
        """The arguments of `niels-cache part` that build the part."""
        return [self.name, str(self.number), "--corpus"]

    @property
    def source(self) -> PretrainSource:
        """The table of the data set."""
        return self.registry.pretrain[self.name]

    @property
    def keep(self) -> tuple[str, ...]:
        """The columns whose values are kept with the documents."""
        return kept_columns(self.source, self.registry.pretrain)

    @property
    def parts_plan(self) -> PartsPlan:
        """The artifact of the plan of a corpus in parts."""
        assert isinstance(self.source, SourceWithParts)  # other kinds refuse `parts`
        return PartsPlan(self.registry, self.root, name=self.name, source=self.source, build=self.registry.build)

    @cached_property
    def planned(self) -> PlannedPart:
        """The part in the plan.

        Raises:
            NielsCacheError: If the plan is missing or has other settings.
        """
        assert self.number is not None
        return self.given or self.parts_plan.read().parts[self.number]

    @cached_property
    def _part_stream(self) -> PartStream:
        files, source = self.planned.files, self.source
        assert isinstance(source, SourceWithParts)
        return part_stream(source, files, revision=self.planned.revision, text_field=self.planned.text_field)

    def part(self, number: int) -> Corpus:
        """Return the artifact of a part."""
        return Corpus(self.registry, self.root, name=self.name, number=number)

    def steps(self) -> list[Artifact]:
        """Return everything that is built before a corpus that joins its parts, in order."""
        return [self.parts_plan, *map(self.part, range(self.source.corpus_parts))]

    def members(self, plan: Plan | None = None) -> list[Corpus]:
        """Return the parts of a plan, which is read once for all of them.

        Args:
            plan: The plan. None: read it.

        Raises:
            NielsCacheError: If the plan is missing or has other settings.
        """
        return [replace(self.part(planned.number), given=planned) for planned in (plan or self.parts_plan.read()).parts]

    @cached_property
    def _siblings(self) -> Siblings:
        return self.siblings()

    @cached_property
    def _tokenizer(self) -> TextTokenizer | None:
        return open_corpus_tokenizer(self.registry, self.name, root=self.root)

    @property
    def reference(self) -> str | None:
        return reference_of(self._tokenizer)

    def inputs(self) -> Sequence[str]:
        members = mixture_dependencies(self.registry, self.source)
        return [
            *(["tokenizer"] if needs_tokenizer(self.registry, self.name) else []),
            *corpus_keys(self.registry, [name for name in self.registry.prepared() if name in members]),
            *([self.parts_plan.key] if self.is_part else []),
            *([step.key for step in self.steps()] if self.is_joined else []),
        ]

    def unavailable(self) -> str | None:
        source = require_prepared(self.registry, self.name)
        return None if source.enabled else "it is switched off"

    def finished(self) -> Meta | None:
        meta = finished_meta(self.directory)
        if meta is not None and (problem := location_problem(meta, family="corpus", name=self._full_name)):
            raise NielsCacheError(f"{self.directory}: {problem}")
        return meta

    @property
    def _full_name(self) -> str:
        return f"{self.name}/{self.member}" if self.member else self.name

    def revision(self) -> str | None:
        if self.is_part:
            return self.planned.revision
        if self.is_joined:
            meta = self.parts_plan.finished()
            if meta is not None and self.parts_plan.is_frozen(meta):
                return meta["dataset_revision"]
        return self.source.revision(self._siblings)

    def identity(self, revision: str | None) -> Identity:
        if not self.is_part:
            tokenizer_sha256 = self._tokenizer.model_sha256 if self._tokenizer else None
            return identity_of_corpus(self.registry, self.name, revision=revision, tokenizer_sha256=tokenizer_sha256)
        identity = identity_of_corpus(self.registry, self.name, revision=None, tokenizer_sha256=None)
        source = without_keys(identity["source"], "parts")
        files = [list(file) for file in self.planned.files]
        return {**identity, "source": source, "files": files, "text_field": self.planned.text_field, "part": self.number}

    def current(self) -> Meta:
        source = require_prepared(self.registry, self.name)
        advice = f"materialize corpus/documents of {self.name!r} first (niels-cache build-all does)"
        if not source.enabled:
            advice = f"{self.name!r} is switched off: set enabled = true, then {advice}"
        meta = self.finished()
        if meta is None:
            raise NielsCacheError(f"{self.directory}: no finished corpus of {self.name!r} yet; {advice}")
        identity = self.identity(meta["dataset_revision"])
        if not self.matches(meta, identity):
            of_steps = differences({"steps": meta.get("steps", {})}, {"steps": identity.get("steps", {})})
            why = f"is out of date: {of_steps[0]}" if of_steps else "was made with other settings or another code version"
            raise NielsCacheError(f"{self.directory}: the corpus of {self.name!r} {why}; {advice}")
        return meta

    def matches(self, meta: Meta, identity: Identity) -> bool:
        """Return whether the corpus is current.

        For a corpus in parts, only those ids of `exclude` count that it holds or has removed, or that one of its parts holds or has
        removed: a part may have examples of dropped documents that the joined corpus does not have.
        """
        if self.is_shared:
            parts = [] if self.is_part else [self.part(number).directory for number in range(self.source.corpus_parts)]
            listed = self._exclude_list
            identity = listed.present_identity(meta, identity, self.directory, also=listed.ids_in_parts(parts))
        return super().matches(meta, identity)

    @property
    def _exclude_list(self) -> ExcludeList:
        return ExcludeList(self.source.exclude, corpus_parts_dir(self.root, self.name))

    def owns(self, name: str) -> bool:
        return is_corpus_file(name)

    def need(self) -> SpaceNeed | None:
        if self.is_joined:
            return None  # each part requests its own disk space, and `_join` requests that of the joined corpus
        if self.is_part:
            return corpus_need(sum(file.bytes for file in self.planned.files))
        return corpus_need(self.source.text_bytes())

    def stream(self, context: StreamContext) -> Iterator[Documents]:
        """Yield the documents of the source before `convert`."""
        return self._part_stream.documents(context) if self.is_part else self.source.kept_unconverted(context)

    def meta_of(self, work: BuildJob, counts: CorpusCounts, by_source: DropReport, *, files: Files, content_sha256: str) -> Meta:
        """Return the content of meta.json.

        Args:
            work: The build.
            counts: The counts of all documents that reached cleaning.
            by_source: The documents that the source dropped, and its facts.
            files: The entries of all files.
            content_sha256: The hash of the documents.
        """
        return {
            "kind": "corpus",
            "built": True,
            "dataset_name": self.name,
            "dataset_config": self.source.hub_config,
            "dataset_revision": work.revision,
            "seed": self.registry.build.seed,
            "prepare": self.source.prepare_of_corpus,
            "cleaning": cleaning_identity(self.registry, self.name),
            "signatures": signature_identity(self.registry, self.name),
            **({"keep": list(self.keep)} if self.keep else {}),
            **({"steps": work.identity["steps"]} if self.source.steps else {}),
            **counts.meta(),
            "dropped": dict(counts.report.dropped + by_source.dropped),
            "dropped_by_source": dict(+by_source.dropped),
            **with_text_field(self.source.describe(), by_source.facts),
            "files": files,
            "content_sha256": content_sha256,
            "fingerprint": work.fingerprint,
        }

    def drop_summary(self, meta: Meta) -> DropSummary:
        return DropSummary() if self.is_part else add_unmatched_ids(summarize_drops(meta), self.source, meta)

    def write(self, work: BuildJob) -> WriteResult:
        if self.is_joined:
            return self._join_parts(work)
        if not self.is_part:
            return self._write_all(work)
        require_unchanged(self._part_stream.files)
        written = self._write_all(work)
        part = {"number": self.number, "plan": self.planned.plan}
        return replace(
            written,
            meta={**self._exclude_list.with_removed_ids_only(written.meta, work.identity), "dataset_name": self._full_name, "part": part},
        )

    def _write_all(self, work: BuildJob) -> WriteResult:
        from niels_cache_assets.corpus.held_out import HeldOutDocuments

        work.log(f"preparing {self.name}: {', '.join(self.source.prepared_by)}")
        for note in notes_on_source(self.source):
            work.log(note)
        if self.source.train_tokens is not None or self.source.val_tokens is not None:
            work.log(
                f"warning: all of {self.name} is prepared; token budgets (train_tokens, val_tokens) apply only when its cache is built"
            )
        with HeldOutDocuments(self.registry, root=self.root, siblings=self._siblings, tokenizer=self._tokenizer) as held_out:
            context = StreamContext(
                seed=self.registry.build.seed, revision=work.revision, log=work.log, siblings=self._siblings, held_out=held_out
            )
            return self._write(context, work)

    def _write(self, context: StreamContext, work: BuildJob) -> WriteResult:
        from niels_cache_assets.corpus.chunks import ChunkWork, CorpusChunk, CorpusCounts, new_report, source_chunks
        from niels_cache_assets.dedup.signatures import Signer

        registry, name, source = self.registry, self.name, self.source
        processes = registry.build.threads or available_threads()
        cleaning = registry.cleaning_of(name) if "clean" in source.prepare else None
        dedup = registry.dedup
        signer = Signer(num_perm=dedup.num_perm, ngram=dedup.ngram, units=dedup.units) if "dedup" in source.prepare else None
        if is_stateful(source):  # its state is not in the journal
            processes, work = 1, replace(work, force=True)
        steps = work.identity.get("steps")
        cleaner = ChunkWork(source=source, seed=context.seed, cleaning=cleaning, signer=signer, steps=steps)
        journal = work.open_journal(name, state=_CorpusState)
        done: _CorpusState = journal.state or _CorpusState()
        has_code = any(each.is_code for each in source.steps)
        if has_code and journal.state is None:
            self._try_steps(cleaner, context)
        counts = CorpusCounts.from_state(done.counts) if done.counts else CorpusCounts(report=new_report(context.seed, cleaning=cleaning))
        resumed_characters = counts.before.characters
        recorded_bytes, most_bytes = counts.before.bytes, TEXT_BYTES_PER_RECORD * processes
        ends = deque[tuple[BuildPosition, CorpusChunk]]()
        chunks = source_chunks(self.stream, context, done.reached, ends)
        with (
            CorpusWriter(
                work.directory,
                num_perm=None if signer is None else signer.num_perm,
                state=done.written,
                files=journal.finished,
                hashes_stay=self.is_part,
                has_kept_values=bool(self.keep),
            ) as writer,
            closing(
                map_in_processes(
                    cleaner,
                    chunks,
                    processes=processes,
                    doing=f"preparing {name}",
                    size_of=attrgetter("characters"),
                    is_watched=has_code or source.is_watched,
                )
            ) as results,
        ):
            for chunk in results:
                reached, given = ends.popleft()
                finished_file = writer.write(chunk.rows(given), chunk.hashes, chunk.signatures)
                counts.add(chunk.counts)
                if journal.due(0) or finished_file or counts.before.bytes - recorded_bytes >= most_bytes:
                    recorded_bytes = counts.before.bytes
                    state = _CorpusState(counts=counts.state(), reached=reached)
                    journal.record_writer(writer, state, "written", share=reached.share, documents=counts.before.documents)
                    writer.remove_spools()
                before = counts.before
                read = {"documents": before.documents, "kept": counts.after.documents, "characters": before.characters}
                work.report(ReportedProgress(counts=read, share=reached.share))
            by_source = DropReport(context.report.dropped, context.report.facts)
            by_source.join(counts.dropped_by_source)
            if not writer.documents and not self.is_part:
                raise _empty_corpus_error(self.directory, counts.report.dropped, by_source, context.report.hints)
            writer.seal()
            write_rejected(work.directory, counts.report.rows(), writer.files)
            write_measures(work.directory, counts.report, writer.files)
            if self.is_part:
                write_json(work.directory, COUNTS_NAME, counts.state(), writer.files)
            meta = self.meta_of(work, counts, by_source, files=writer.files, content_sha256=writer.content_sha256)
        return WriteResult(meta=meta, resumed=resumed_characters, warning=reading_warning(meta))

    def _try_steps(self, work: ChunkWork, context: StreamContext) -> None:
        """Try the steps on the first documents of up to SAMPLED files, or of the stream if the source has no files that can be in parts."""
        from niels_cache_assets.steps.trial import SAMPLED, try_steps

        source, fresh = self.source, partial(replace, context, report=SourceReport(), decided={}, held_out=None)
        streams = [self.stream(fresh())]
        if isinstance(source, GroupedFiles):
            files = [each for _, each in self._part_stream.files] if self.is_part else source.input_files()
            field = source.text_field_of(files)
            streams = [source.kept_unconverted(fresh(files=[each], text_field=field)) for each in files[:: 1 + len(files) // SAMPLED]]
        most = -(-SAMPLED // len(streams))
        documents = (islice(chain.from_iterable(stream), most) for stream in streams)
        try_steps(self.name, work.chain, (each for some in documents for each in source.convert([*some])[0]))

    def _join_parts(self, work: BuildJob) -> WriteResult:
        assert work.lease is not None  # machines share the parts
        work.log(f"preparing {self.name} in {self.source.corpus_parts} parts: {', '.join(self.source.prepared_by)}")
        force = work.force and self.forces_steps
        with work.lease.uncounted():
            materialize(self.parts_plan, wait=True, force=force, log=work.log, notify=False)
        plan = self.parts_plan.read()
        if plan.revision != work.revision:
            raise NielsCacheError(f"{self.parts_plan.target}: the files have changed since this build began; run it again")
        parts = self.members(plan)
        metas = dict[Path, Meta]()

        def report(part: ReportedProgress) -> None:
            work.report(_progress_of_all(metas.values(), part, parts=len(parts)))

        def build(part: Corpus, waits: bool) -> None:
            outcome = materialize(part, wait=waits, force=force, on_progress=report, log=work.log, notify=False)
            metas[part.directory] = outcome.meta
            report(ReportedProgress(counts={}, share=None))

        with work.lease.uncounted():
            build_free_parts_first(parts, build, log=work.log)
        meta = _join(self, [(part.directory, metas[part.directory]) for part in parts], work)
        return WriteResult(meta=self._exclude_list.with_removed_ids_only(meta, work.identity), warning=reading_warning(meta))


def _empty_corpus_error(directory: Path, dropped_here: Counter[str], by_source: DropReport, hints: Sequence[str] = ()) -> NielsCacheError:
    from niels_cache_assets.streaming.encode import INVALID_UNICODE

    counts = sorted((dropped_here + by_source.dropped).items())
    reasons = ", ".join(f"{reason} {count}" for reason, count in counts) or "the source is empty"
    note = "; ".join([not_text_note(by_source.facts), *hints])
    advice = "the source and the thresholds of [cleaning]" if set(dropped_here) - {INVALID_UNICODE} else "the source"
    return NielsCacheError(f"{directory}: no document is left ({reasons}){note}; nothing was written; check {advice}")


_ROWS = 1 << 16


def _progress_of_all(finished: Collection[Meta], part: ReportedProgress, *, parts: int) -> ReportedProgress:
    """Return the progress of all parts.

    Args:
        finished: The meta.json of each finished part.
        part: The progress of the part that is being built.
        parts: The number of parts.
    """
    counts = Counter(part.counts)
    for meta in finished:
        documents = meta["documents"]
        counts.update(documents=documents["read"], kept=documents["kept"], characters=meta["characters"]["before"])
    return ReportedProgress(counts=counts, share=(len(finished) + (part.share or 0.0)) / parts)


def _join(corpus: Corpus, members: Sequence[tuple[Path, Meta]], work: BuildJob) -> Meta:
    """Write everything except meta.json, and return meta.json."""
    files: Files = {}
    digest = hashlib.sha256()
    arrays = (DIGESTS_NAME, SIGNATURES_NAME) if members[0][1]["signatures"] is not None else ()
    size = sum(meta["files"][name]["bytes"] for _, meta in members for name in arrays)
    require_free_space(corpus.directory, SpaceNeed(bytes=size, reason="the signatures of all parts"), log=work.log)
    documents = [(path, meta["files"][path.name]) for directory, meta in members for path in document_files(directory, meta)]
    links = HardLinker(sum(entry["bytes"] for _, entry in documents), target=corpus.directory, log=work.log)
    for number, (path, entry) in enumerate(documents):
        files[documents_file(number)] = dict(entry)
        links.add(path, work.directory / documents_file(number), entry["bytes"])
    for directory, _ in members:
        with open(directory / HASHES_NAME, "rb") as hashes:
            hashlib.file_digest(hashes, lambda: digest)
    for name in arrays:
        found = [map_npy(directory / name) for directory, _ in members]
        writer = NpyWriter(work.directory, name, found[0].dtype, files, width=found[0].shape[1])
        rows = (rows[start : start + _ROWS] for rows in found for start in range(0, len(rows), _ROWS))
        write_blocks(writer, map(np.asarray, rows))
    counts = _counts([directory for directory, _ in members])
    by_source = DropReport(
        sum((Counter(meta["dropped_by_source"]) for _, meta in members), Counter()), merge_facts([pass_facts(meta) for _, meta in members])
    )
    if not counts.after.documents:
        raise _empty_corpus_error(corpus.directory, counts.report.dropped, by_source)
    write_rejected(work.directory, counts.report.rows(), files)
    write_measures(work.directory, counts.report, files)
    for directory, meta in members:
        corpus_identity.require_unchanged(directory, meta)  # otherwise the links may be those of another build
    meta = corpus.meta_of(work, counts, by_source, files=files, content_sha256=digest.hexdigest())
    parts = [
        {"name": directory.name, "documents": meta["documents"]["kept"], "meta_sha256": meta["meta_sha256"]} for directory, meta in members
    ]
    return {**meta, "parts": parts}


def _counts(directories: Sequence[Path]) -> CorpusCounts:
    """Return the counts of all parts together. Examples of rejected documents come from all parts."""
    from niels_cache_assets.corpus.chunks import CorpusCounts

    total, *others = [CorpusCounts.from_state(json.loads((directory / COUNTS_NAME).read_bytes())) for directory in directories]
    for counts in others:
        total.add(counts, is_part=True)
    return total
