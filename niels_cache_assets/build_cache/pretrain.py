"""The builder of pretrain caches, which writes texts as shards, document ends and lineage in one streaming pass.

Documents are read from the source, encoded, compared with val, split and written, chunk by chunk. A build can be interrupted between two
chunks and resumed later. For that, it needs its `_State` and the writer's files on disk. The guard that keeps val out of train is not
recorded: a resumed build reads val again for the guard, which takes little time.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from niels_cache_assets.base.documents import Document, DocumentBatch, DropReport, SourceReport
from niels_cache_assets.build_cache.base import CacheBuild, OnProgress, Progress, Provenance, describe_dropped_items
from niels_cache_assets.build_cache.pretrain_writer import PretrainWriter, WriterState
from niels_cache_assets.build_cache.resume import Resume, resume_stream
from niels_cache_assets.disk.journal import Journal
from niels_cache_assets.disk.write_behind import WriteBehind
from niels_cache_assets.disk.writers import require_shard_bytes
from niels_cache_assets.streaming.decontaminate import Decontaminate, ReferenceTexts, TrainGuard, decontamination_identity, open_guard
from niels_cache_assets.streaming.encode import DocumentEncoder
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.streaming.intake import as_documents, in_lists, require_whole_numbers
from niels_cache_assets.streaming.shuffle import shuffled
from niels_cache_assets.streaming.splits import BudgetSplitter, SplitPart
from niels_cache_assets.streaming.types import BuildPosition, EncodedDocuments, ResumePoint, StreamPosition
from niels_cache_assets.tokenizer.kinds import find_fim_tokens
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, Split
from niels_cache_runtime.format.meta import Meta, content_sha256

MAX_OVERLAP_EXAMPLES = 50  # the most documents dropped because of `references` that meta.json names
_LONG_COUNT_SECONDS = 1.0  # if counting the source takes longer, record the number in the journal


def build_pretrain_cache(
    texts: Iterable[str | Document] | Feed[Document],
    out_dir: str,
    *,
    tokenizer: Any,
    max_train_tokens: int,
    max_val_tokens: int,
    shard_bytes: int,
    seed: int,
    shuffle_buffer: int | None,
    append_eot: bool = True,
    on_collision: Literal["drop", "raise"] = "drop",
    threads: int | None = None,
    token_dtype: str | None = None,
    decontaminate: Decontaminate = "off",
    decontaminate_threshold: float = 0.8,
    val_texts: Iterable[str | Document] | None = None,
    provenance: Provenance | None = None,
    report: SourceReport | None = None,
    progress: OnProgress | None = None,
    resume: Resume | None = None,
) -> None:
    """Build the pretrain cache `out_dir` from a stream of `str` or `Document`.

    The folder contains `train/`, `val/`, `*_doc_ends.npy`, `*_documents.parquet` and meta.json.

    Whole documents go to val until it has `max_val_tokens` tokens, then to train until it has `max_train_tokens`. A document that exceeds a
    budget is cut at the budget. Reading stops when both budgets are met. A Document with a `split` goes to that split and uses no budget.
    `out_dir` is replaced in one step at the end. If the build fails, the last good cache stays unchanged.

    Args:
        texts: The documents. A Feed can also be opened at a later position, which makes resuming faster.
        out_dir: The folder to build.
        tokenizer: The tokenizer, which is duck-typed: see `view_tokenizer`.
        max_train_tokens: The token budget of train.
        max_val_tokens: The token budget of val. 0: no val.
        shard_bytes: The size of a shard in bytes, a multiple of the size of a token. Only the last shard of a split may be shorter.
        seed: The seed of the shuffle buffer.
        shuffle_buffer: The number of documents in the shuffle buffer. None: documents keep the order of the input.
        append_eot: Whether each document ends with one EOT.
        on_collision: What happens to a text that contains a special token: "drop" drops and counts it, "raise" raises NielsCacheError.
        threads: The number of threads that encode. None: one for each available core. The bytes do not depend on it.
        token_dtype: The type of a token on disk, "uint16-le" or "uint32-le". None: uint16-le for a vocabulary of at most 65,536 ids,
            uint32-le for a larger one.
        decontaminate: Which documents of train are dropped and counted because they are in val. A dropped document uses no budget. "off"
            drops none. "exact" drops a document whose canonical text equals that of a document of val (`in_val`). "near" also drops a
            document whose word 5-grams have a Jaccard similarity of at least `decontaminate_threshold` with those of a document of val
            (`near_val`; compared exactly). Val must be known before train begins. So every document of val must come before the first
            document of train, whether it has a split or goes to val by budget. Alternatively, pass the documents of val as `val_texts`.
        decontaminate_threshold: The Jaccard similarity from which a document is dropped, for "near".
        val_texts: The documents of val, for `decontaminate`. They are encoded and indexed before the build, but not written. None: the
            documents of `texts` that go to val.
        provenance: The entries of meta.json about the origin. None: those of an unnamed iterable.
        report: The counts of documents that the source dropped. None: no counts. A Feed has its own report.
        progress: Called after every chunk. None: no reports.
        resume: A request to keep a journal, so that the next build after an interruption continues and gives the same bytes. `texts` must
            then yield the same documents again. An iterable yields them from the beginning, and those that are done are skipped. A Feed
            can also begin at a later position. `resume.resumed_tokens` is then the number of tokens that the interrupted build had
            written. None: no journal.

    Raises:
        NielsCacheError: If the budgets, `shard_bytes`, `token_dtype` or the tokenizer cannot work, if the source ends before train has a
            document, if a text contains a special token and `on_collision` is "raise", if a document of val comes too late to be kept out
            of train, or if the disk reports an error.
    """
    settings = {**locals(), "provenance": provenance or Provenance()}
    del settings["texts"], settings["resume"]
    PretrainBuild(items=texts, **settings).build(resume)


@dataclass(frozen=True, kw_only=True)
class _State:
    """The state of a build between two chunks. The default is that of a new build.

    Attributes:
        documents: The number of documents so far that were not dropped.
        drops: The documents that the builder dropped (DropReport.state).
        ended: The final counts (DropReport.state), set after everything was read. None before that.
        overlaps: The examples so far of documents that were dropped because of `references`.
    """

    reached: BuildPosition = field(default_factory=BuildPosition)
    documents: int = 0
    expected: int | None = None
    remaining: dict[Split, int] | None = None
    drops: dict[str, dict[str, Any]] = field(default_factory=dict)
    writer: WriterState = field(default_factory=WriterState)
    ended: dict[str, dict[str, Any]] | None = None
    overlaps: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class PretrainBuild(CacheBuild):
    """A build of a pretrain cache. Its fields are the arguments of `build_pretrain_cache`."""

    family = "pretrain"

    max_train_tokens: int
    max_val_tokens: int
    shard_bytes: int
    shuffle_buffer: int | None
    append_eot: bool = True
    decontaminate: Decontaminate = "off"
    decontaminate_threshold: float = 0.8
    val_texts: Iterable[str | Document] | None = None
    references: "ReferenceTexts | None" = None
    needs_train: bool = True  # False: a part of a data set, whose files may hold no document for train
    keep: tuple[str, ...] = ()  # columns whose values are kept in lineage
    edges: Any = None  # see DocumentEncoder
    fim: Any = None  # what makes the copies of train (`CopyMaker` in niels_cache_corpora/fim.py)

    def __post_init__(self) -> None:
        require_whole_numbers(
            max_train_tokens=self.max_train_tokens,
            max_val_tokens=self.max_val_tokens,
            shard_bytes=self.shard_bytes,
            seed=self.seed,
            shuffle_buffer=self.shuffle_buffer,
            threads=self.threads,
        )
        require_shard_bytes(self.shard_bytes, self.dtype)
        if self.shuffle_buffer is not None and self.shuffle_buffer < 1:
            raise NielsCacheError(f"shuffle_buffer is {self.shuffle_buffer}; give at least 1, or None to keep the input order")
        self._new_splitter()  # checks the tokenizer and the budgets

    def _new_splitter(self, remaining: dict[Split, int] | None = None) -> BudgetSplitter:
        eot = self.view.eot if self.append_eot else None
        return BudgetSplitter(max_train_tokens=self.max_train_tokens, max_val_tokens=self.max_val_tokens, eot=eot, remaining=remaining)

    @cached_property
    def _decontamination(self) -> dict[str, Any]:
        """The settings of decontamination, empty if it is off (the default)."""
        against = {} if self.references is None else {"decontaminate_against": self.references.identity}
        kind, threshold = self.decontaminate, self.decontaminate_threshold
        return {**decontamination_identity(kind, threshold, val_is_given=self.val_texts is not None), **against}

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "max_train_tokens": self.max_train_tokens,
            "max_val_tokens": self.max_val_tokens,
            "shard_bytes": self.shard_bytes,
            "seed": self.seed,
            "shuffle_buffer": self.shuffle_buffer,
            "append_eot": self.append_eot,
            **self._decontamination,
        }

    @cached_property
    def _meta(self) -> Meta:
        split_rule = f"val until {self.max_val_tokens} tokens, then train until {self.max_train_tokens}"
        keep = {"keep": list(self.keep)} if self.keep else {}
        keep |= {"fim": self.fim.settings} if self.fim else {}
        return {**self.meta(split_rule), "append_eot": self.append_eot, "shard_bytes": self.shard_bytes, **self._decontamination, **keep}

    @property
    def identity(self) -> dict[str, Any]:
        return {"settings": self.settings, "meta": self._meta, "on_collision": self.on_collision}

    def _write(self, partial: Path, resume: Resume | None) -> Meta:
        journal, state = self.open_journal(partial, resume, _State())
        finished = journal.finished if journal is not None else {}
        splitter = self._new_splitter(state.remaining)
        with (
            PretrainWriter(
                partial,
                dtype=self.dtype,
                shard_bytes=self.shard_bytes,
                state=state.writer,
                files=finished,
                has_kept_values=bool(self.keep),
                has_edges=self.edges is not None,
                fim=self.fim,
            ) as writer,
            open_guard(
                self.decontaminate,
                self.decontaminate_threshold,
                partial,
                val_is_full=lambda: splitter.val_is_full,
                references=self.references,
            ) as guard,
        ):
            if resume is not None:
                resume.resumed_tokens = sum(map(writer.tokens, SPLITS))
            overlaps = list(state.overlaps)
            if state.ended is None:
                counts = self._write_documents(writer, splitter, guard, journal, state, resume, overlaps)
            else:
                counts = DropReport(**state.ended)
            if self.needs_train and not writer.tokens("train"):
                message = _no_train_message(self.out_dir, writer.tokens("val"), self.max_val_tokens, counts, self.feed.report.hints)
                raise NielsCacheError(message)
            writer.seal()
            meta = {
                **self._meta,
                **writer.totals(),
                "dropped": dict(counts.dropped),
                **({} if self.references is None else {"decontaminated_examples": overlaps}),
                "facts": counts.facts,
                **({"fim_tokens": found} if (found := find_fim_tokens(self.tokenizer)) else {}),
                "files": writer.files,
                "content_sha256": content_sha256(writer.files),
            }
        return meta

    @cached_property
    def document_encoder(self) -> DocumentEncoder:
        """The encoder of documents. The reference encodes before `open_journal` has chosen an engine."""
        return DocumentEncoder(
            tokenizer=self.encoding_view,
            dtype=self.dtype,
            threads=self.threads,
            append_eot=self.append_eot,
            raise_on_collision=self.on_collision == "raise",
            edges=self.edges,
            fim=self.fim,
        )

    def _encode_until_budgets_met(self, batches: Iterator[EncodedDocuments], splitter: BudgetSplitter) -> Iterator[EncodedDocuments]:
        """Yield the encoded documents in batches.

        If a batch may meet the budgets, its chunks are yielded one by one, so that the build ends at the end of a chunk.
        """
        for batch in batches:
            if len(batch.chunks.positions) > 1 and splitter.may_meet_budgets(batch):
                yield from self.document_encoder.encode_separately(batch.chunks)
            else:
                yield batch
            del batch

    def _write_documents(
        self,
        writer: PretrainWriter,
        splitter: BudgetSplitter,
        guard: TrainGuard | None,
        journal: Journal | None,
        state: _State,
        resume: Resume | None,
        overlaps: list[dict[str, Any]],
    ) -> DropReport:
        """Write the documents of the stream that come after the state.

        The caller has already restored `splitter`, `writer` and `overlaps` to that state. The first examples of documents that were dropped
        because of `references` are added to `overlaps`.
        """
        has_counted = self.feed.count(state.expected)
        seen, drops = state.documents, DropReport(**state.drops)
        tokens = sum(map(writer.tokens, SPLITS))

        def share(position: StreamPosition) -> float | None:
            if self.feed.expected:
                return seen / self.feed.expected
            return position.reached.share if splitter.share is None else splitter.share

        def record_at(position: StreamPosition, *, ended: DropReport | None = None) -> Callable[[], None]:
            """Return a function that records the build at this position. Call it when the writer has reached this position."""
            state = _State(
                reached=position.reached if self.shuffle_buffer is None else replace(position.reached, mark=None),
                documents=seen,
                expected=self.feed.expected,
                remaining=dict(splitter.remaining),
                drops=drops.state(),
                ended=None if ended is None else ended.state(),
                overlaps=list(overlaps),
            )
            assert journal is not None
            return partial(journal.record_writer, writer, state, "writer", share=share(position), documents=seen)

        if guard is not None and self.val_texts is not None:
            with closing(self.document_encoder.encode(as_documents(in_lists(self.val_texts)), Feed.of((), SourceReport()))) as val_batches:
                for batch in val_batches:
                    guard.read_val(batch)
        position = StreamPosition(BuildPosition(), Counter(), {})
        if journal is not None and has_counted and journal.due(writer.bytes, finished=len(writer.files), seconds=_LONG_COUNT_SECONDS):
            record_at(position)()
        documents = self._documents(state, guard, resume)
        screen = guard.screen if guard else None
        with (
            WriteBehind() as writes,
            closing(self.document_encoder.encode(documents, self.feed, first=state.reached.items, screen=screen)) as batches,
        ):
            for batch in self._encode_until_budgets_met(batches, splitter):
                position = batch.position
                if guard is not None:
                    batch = guard.admit(batch, is_val=splitter.val_mask(batch))
                drops.join(batch.drops)
                overlaps += batch.overlaps[: MAX_OVERLAP_EXAMPLES - len(overlaps)]
                parts = splitter.assign(batch)
                seen += len(batch.documents)
                tokens += sum(len(part.tokens) for part in parts.values())
                record = None if journal is None or splitter.are_budgets_met else record_at(position)
                writes.submit(partial(_write, writer, parts, journal, record), size=sum(part.tokens.nbytes for part in parts.values()))
                if self.progress is not None:
                    self.progress(Progress(seen, tokens, share(position)))
                if splitter.are_budgets_met:
                    source_dropped, facts = position.dropped, position.facts  # these exclude documents that were read ahead
                    break
                del batch, parts, record  # frees a long text before the next is encoded
            else:
                source_dropped, facts = self.feed.report.dropped, self.feed.report.facts
            writes.finish()
        ended = DropReport(source_dropped, facts)
        ended.join(drops)
        if journal is not None and journal.recorded:
            record_at(position, ended=ended)()  # the remaining steps take time, too
        return ended

    def _documents(self, state: _State, guard: TrainGuard | None, resume: Resume | None) -> Iterator[DocumentBatch]:
        """Return the documents to encode. For a resumed build, also restore the guard."""

        def stream(mark: ResumePoint | None) -> Iterator[DocumentBatch]:
            documents = as_documents(self.feed.open(mark), first=mark.items if mark else 0)
            return documents if self.shuffle_buffer is None else shuffled(documents, buffer_size=self.shuffle_buffer, seed=self.seed)

        def replay_val(documents: Iterator[DocumentBatch]) -> None:
            """Give the guard the documents from the beginning until val is complete. Each document gets the same split as before."""
            assert guard is not None
            splitter = self._new_splitter()
            with closing(self.document_encoder.encode(documents, Feed.of((), SourceReport()))) as batches:
                for batch in batches:
                    guard.admit(batch, is_val=splitter.val_mask(batch))
                    if guard.val_is_known:
                        return
                    splitter.assign(batch)

        if resume is None or not state.reached.items:
            return stream(None)
        replays_val = guard is not None and not guard.val_is_known
        return resume_stream(stream, state.reached, log=resume.log, replay=replay_val if replays_val else None)


def _write(writer: PretrainWriter, parts: dict[Split, SplitPart], journal: Journal | None, record: Callable[[], None] | None) -> None:
    """Write the parts of a batch. Then call `record` if the journal is due for a record; `record` saves the state after this batch."""
    writer.write(parts)
    if journal is not None and record is not None and journal.due(writer.bytes, finished=len(writer.files)):
        record()


def _no_train_message(out_dir: str, val_tokens: int, max_val_tokens: int, counts: DropReport, hints: Sequence[str]) -> str:
    if val_tokens:
        return (
            f"{out_dir}: the source ended after {val_tokens:,} tokens, all of them for val (max_val_tokens={max_val_tokens:,}, "
            "in a file val_tokens), so train is empty; lower it, or use val_frac instead"
        )
    return f"{out_dir}: the source gave no usable document{describe_dropped_items(counts, hints)}; nothing was written"
