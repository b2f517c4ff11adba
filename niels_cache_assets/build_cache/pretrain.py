"""The builder of pretrain caches: texts in; shards, document ends and lineage out, in one streaming pass."""

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from niels_cache_assets.build_cache.outcome import OnProgress, Provenance, common_meta, dropped_note
from niels_cache_assets.build_cache.pretrain_stream import PretrainStream, State
from niels_cache_assets.build_cache.resuming import Counts, Resume, answer_if_asked, open_journal
from niels_cache_assets.documents import Document, SourceReport
from niels_cache_assets.streaming.decontaminate import Decontaminate, decontamination_identity, open_guard
from niels_cache_assets.streaming.directories import atomic_directory
from niels_cache_assets.streaming.encode import encode_documents
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.streaming.intake import require_whole_numbers
from niels_cache_assets.streaming.pretrain_writer import PretrainWriter
from niels_cache_assets.streaming.splits import BudgetSplitter
from niels_cache_assets.streaming.writers import require_shard_bytes
from niels_cache_assets.tokenization import view_tokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import content_sha256, write_meta
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
    require_whole_numbers(
        max_train_tokens=max_train_tokens,
        max_val_tokens=max_val_tokens,
        shard_bytes=shard_bytes,
        seed=seed,
        shuffle_buffer=shuffle_buffer,
        threads=threads,
    )
    require_shard_bytes(shard_bytes)
    if shuffle_buffer is not None and shuffle_buffer < 1:
        raise NielsCacheError(f"shuffle_buffer is {shuffle_buffer}; give at least 1, or None to keep the input order")
    view = view_tokenizer(tokenizer)
    new_splitter = functools.partial(
        BudgetSplitter, max_train_tokens=max_train_tokens, max_val_tokens=max_val_tokens, eot=view.eot if append_eot else None
    )
    new_splitter()  # refuses budgets that cannot work
    provenance = provenance or Provenance()
    feed: Feed[Any] = texts if isinstance(texts, Feed) else Feed.of(texts, report or SourceReport())
    # Nothing where it is off: older caches stay good.
    identity = decontamination_identity(decontaminate, decontaminate_threshold, val_is_given=val_texts is not None)
    settings = {
        "max_train_tokens": max_train_tokens,
        "max_val_tokens": max_val_tokens,
        "shard_bytes": shard_bytes,
        "seed": seed,
        "shuffle_buffer": shuffle_buffer,
        "append_eot": append_eot,
        **identity,
    }
    meta = {
        **common_meta("pretrain", view, provenance, seed, settings),
        "append_eot": append_eot,
        "shard_bytes": shard_bytes,
        **identity,
        "split_rule": provenance.split_rule or f"val until {max_val_tokens} tokens, then train until {max_train_tokens}",
    }
    middle = PretrainStream(
        feed=feed,
        shuffle_buffer=shuffle_buffer,
        seed=seed,
        encode=functools.partial(
            encode_documents,
            tokenizer=view,
            threads=threads or available_threads(),
            append_eot=append_eot,
            raise_on_collision=on_collision == "raise",
        ),
        new_splitter=new_splitter,
        val_texts=val_texts,
        progress=progress,
        log=resume.log if resume is not None else lambda message: None,
    )
    known = {"settings": settings, "meta": meta, "on_collision": on_collision}
    answer_if_asked(resume, identity=known)
    with atomic_directory(out_dir, resumable=resume is not None) as partial:
        journal = open_journal(partial, resume, name=provenance.dataset_name or Path(out_dir).name, identity=known, state=State)
        state: State | None = journal.state if journal is not None else None
        finished = journal.finished if journal is not None else {}
        splitter = new_splitter(remaining=state.remaining) if state is not None else new_splitter()
        with (
            PretrainWriter(partial, shard_bytes=shard_bytes, state=state.writer if state else None, files=finished) as writer,
            open_guard(decontaminate, decontaminate_threshold, partial, val_is_full=lambda: splitter.val_is_full) as guard,
        ):
            counts = middle.write(writer, splitter, guard, journal)
            if not writer.tokens("train"):
                raise NielsCacheError(_why_no_train(out_dir, writer.tokens("val"), max_val_tokens, counts, feed.report.hints))
            writer.seal()
            meta |= {
                **writer.totals(),
                "dropped": counts.dropped,
                "facts": counts.facts,
                "files": writer.files,
                "content_sha256": content_sha256(writer.files),
            }
            write_meta(str(partial / META_NAME), meta)
    return sum(split.tokens for split in state.writer.splits.values()) if state is not None else 0


def _why_no_train(out_dir: str, val_tokens: int, max_val_tokens: int, counts: Counts, hints: Sequence[str]) -> str:
    if val_tokens:
        return (
            f"{out_dir}: the source ended after {val_tokens:,} tokens, all of them for val (max_val_tokens={max_val_tokens:,}, "
            "in a file val_tokens), so train has none; lower it, or give val_frac in its place"
        )
    return f"{out_dir}: the source gave no usable document{dropped_note(counts, hints)}; nothing was written"
