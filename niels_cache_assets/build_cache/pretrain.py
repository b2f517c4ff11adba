"""The builder of pretrain caches: texts in; shards, document ends and lineage out, in one streaming pass."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from niels_cache_assets.build_cache.into_folder import build_alone
from niels_cache_assets.build_cache.outcome import OnProgress, Provenance, common_meta, dropped_note
from niels_cache_assets.build_cache.pretrain_stream import PretrainStream, State
from niels_cache_assets.build_cache.resuming import Counts, Resume, open_journal
from niels_cache_assets.disk.writers import require_shard_bytes
from niels_cache_assets.documents import Document, SourceReport
from niels_cache_assets.streaming.decontaminate import Decontaminate, decontamination_identity, open_guard
from niels_cache_assets.streaming.encode import encode_documents
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.streaming.intake import require_whole_numbers
from niels_cache_assets.streaming.pretrain_writer import PretrainWriter
from niels_cache_assets.streaming.splits import BudgetSplitter
from niels_cache_assets.tokenizer.kinds import BuildTokenizer, view_tokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta, content_sha256
from niels_cache_runtime.format.reading import available_threads


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
    decontaminate: Decontaminate = "off",
    decontaminate_threshold: float = 0.8,
    val_texts: Iterable[str | Document] | None = None,
    provenance: Provenance | None = None,
    report: SourceReport | None = None,
    progress: OnProgress | None = None,
    resume: Resume | None = None,
) -> int:
    """Build `out_dir` (train/, val/, *_doc_ends.npy, *_documents.parquet, meta.json) from a stream of `str` or `Document`.

    Whole documents go to val until it has `max_val_tokens` tokens (0: no val), then to train until it has `max_train_tokens`; the one that
    overruns a budget is cut there, and the stream is read no further when both are met. A Document with a `split` goes there and uses no
    budget. Each document ends with one EOT (`append_eot`). `shuffle_buffer` documents are shuffled at a time (None: input order).
    `tokenizer` is duck-typed: see `view_tokenizer`. `report` brings the source's own dropped counts (a Feed brings its own); `progress` is
    called after every chunk. `out_dir` is replaced in one step at the end. Returns how many of its tokens an earlier, stopped build had
    made: 0 where there was nothing to resume.

    `resume` lets a build go on where an earlier one was stopped, killed or not, and end in the same bytes: `texts` must give the same
    documents again, from the beginning (they are read again up to there) or, as a Feed, from where the source can be taken up.

    `decontaminate` keeps out of train, counts, and takes from no budget: with "exact" what has the canonical text of a document of val
    (`in_val`), with "near" also what has `decontaminate_threshold` of its word 5-grams in common with one (Jaccard, compared exactly:
    `near_val`). Val has to be known before train begins: what goes to val, by its own split or by budget, must come before the first
    document of train, or be given a first time as `val_texts`, which are encoded and checked before the build and not written.

    Raises NielsCacheError for budgets, shard_bytes or a tokenizer that cannot work, for a source that ends before train has anything, for a
    text with a special token where `on_collision="raise"`, for a document of val that comes too late to be kept out of train, and for what
    the disk refuses. The last good cache then stays as it was.
    """
    build = PretrainBuild(
        texts=texts,
        out_dir=out_dir,
        tokenizer=tokenizer,
        max_train_tokens=max_train_tokens,
        max_val_tokens=max_val_tokens,
        shard_bytes=shard_bytes,
        seed=seed,
        shuffle_buffer=shuffle_buffer,
        append_eot=append_eot,
        on_collision=on_collision,
        threads=threads,
        decontaminate=decontaminate,
        decontaminate_threshold=decontaminate_threshold,
        val_texts=val_texts,
        provenance=provenance or Provenance(),
        report=report,
        progress=progress,
    )
    return build_alone(build, out_dir, resume)


@dataclass(frozen=True, kw_only=True)
class PretrainBuild:
    """A build of a pretrain cache whose settings are checked; they are those of `build_pretrain_cache`. `out_dir`: for messages."""

    texts: Iterable[str | Document] | Feed[Document]
    out_dir: str
    tokenizer: Any
    max_train_tokens: int
    max_val_tokens: int
    shard_bytes: int
    seed: int
    shuffle_buffer: int | None
    append_eot: bool = True
    on_collision: Literal["drop", "raise"] = "drop"
    threads: int | None = None
    decontaminate: Decontaminate = "off"
    decontaminate_threshold: float = 0.8
    val_texts: Iterable[str | Document] | None = None
    provenance: Provenance
    report: SourceReport | None = None
    progress: OnProgress | None = None

    def __post_init__(self) -> None:
        require_whole_numbers(
            max_train_tokens=self.max_train_tokens,
            max_val_tokens=self.max_val_tokens,
            shard_bytes=self.shard_bytes,
            seed=self.seed,
            shuffle_buffer=self.shuffle_buffer,
            threads=self.threads,
        )
        require_shard_bytes(self.shard_bytes)
        if self.shuffle_buffer is not None and self.shuffle_buffer < 1:
            raise NielsCacheError(f"shuffle_buffer is {self.shuffle_buffer}; give at least 1, or None to keep the input order")
        self._new_splitter()  # refuses a tokenizer and budgets that cannot work

    @cached_property
    def _view(self) -> BuildTokenizer:
        return view_tokenizer(self.tokenizer)

    @cached_property
    def _feed(self) -> Feed[Any]:
        return self.texts if isinstance(self.texts, Feed) else Feed.of(self.texts, self.report or SourceReport())

    def _new_splitter(self, **remaining: Any) -> BudgetSplitter:
        eot = self._view.eot if self.append_eot else None
        return BudgetSplitter(max_train_tokens=self.max_train_tokens, max_val_tokens=self.max_val_tokens, eot=eot, **remaining)

    @cached_property
    def _decontamination(self) -> dict[str, Any]:
        """Return nothing where it is off: older caches stay good."""
        return decontamination_identity(self.decontaminate, self.decontaminate_threshold, val_is_given=self.val_texts is not None)

    @cached_property
    def _settings(self) -> dict[str, Any]:
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
        return {
            **common_meta("pretrain", self._view, self.provenance, self.seed, self._settings),
            "append_eot": self.append_eot,
            "shard_bytes": self.shard_bytes,
            **self._decontamination,
            "split_rule": self.provenance.split_rule or split_rule,
        }

    @property
    def identity(self) -> dict[str, Any]:
        """Return what it knows that decides the bytes, for its journal."""
        return {"settings": self._settings, "meta": self._meta, "on_collision": self.on_collision}

    def write(self, partial: Path, resume: Resume | None) -> tuple[Meta, int]:
        """Write all but meta.json into `partial`; return meta.json, and how many of the tokens an earlier, stopped build had made."""
        middle = PretrainStream(
            feed=self._feed,
            shuffle_buffer=self.shuffle_buffer,
            seed=self.seed,
            encode=functools.partial(
                encode_documents,
                tokenizer=self._view,
                threads=self.threads or available_threads(),
                append_eot=self.append_eot,
                raise_on_collision=self.on_collision == "raise",
            ),
            new_splitter=self._new_splitter,
            val_texts=self.val_texts,
            progress=self.progress,
            log=resume.log if resume is not None else lambda message: None,
        )
        name = self.provenance.dataset_name or Path(self.out_dir).name
        journal = open_journal(partial, resume, name=name, identity=self.identity, state=State)
        state: State | None = journal.state if journal is not None else None
        finished = journal.finished if journal is not None else {}
        splitter = self._new_splitter(remaining=state.remaining) if state is not None else self._new_splitter()
        with (
            PretrainWriter(partial, shard_bytes=self.shard_bytes, state=state.writer if state else None, files=finished) as writer,
            open_guard(self.decontaminate, self.decontaminate_threshold, partial, val_is_full=lambda: splitter.val_is_full) as guard,
        ):
            counts = middle.write(writer, splitter, guard, journal)
            if not writer.tokens("train"):
                why = _why_no_train(self.out_dir, writer.tokens("val"), self.max_val_tokens, counts, self._feed.report.hints)
                raise NielsCacheError(why)
            writer.seal()
            meta = {
                **self._meta,
                **writer.totals(),
                "dropped": counts.dropped,
                "facts": counts.facts,
                "files": writer.files,
                "content_sha256": content_sha256(writer.files),
            }
        return meta, sum(split.tokens for split in state.writer.splits.values()) if state is not None else 0


def _why_no_train(out_dir: str, val_tokens: int, max_val_tokens: int, counts: Counts, hints: Sequence[str]) -> str:
    if val_tokens:
        return (
            f"{out_dir}: the source ended after {val_tokens:,} tokens, all of them for val (max_val_tokens={max_val_tokens:,}, "
            "in a file val_tokens), so train has none; lower it, or give val_frac in its place"
        )
    return f"{out_dir}: the source gave no usable document{dropped_note(counts, hints)}; nothing was written"
