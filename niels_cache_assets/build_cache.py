"""The public builders: an iterable of texts or conversations in, a finished cache directory out, in one streaming pass.

They work in a notebook as in an asset; there is no second implementation. Memory is bounded by the shuffle buffer and a few chunks of
about a megabyte, whatever the size of the input. The same input, settings and seed give the same bytes, on any number of threads.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from niels_cache_assets.defaults import ROLE_KEYS, ROLE_TO_KEY
from niels_cache_assets.documents import Conversation, Document, Message, SourceReport
from niels_cache_assets.streaming.decontaminate import Decontaminate, decontamination_identity, open_guard
from niels_cache_assets.streaming.directories import atomic_directory
from niels_cache_assets.streaming.encode import (
    COLLISION,
    available_threads,
    encode_documents,
    encode_texts,
    has_special,
    in_chunks,
    map_in_order,
    require_ids_fit,
)
from niels_cache_assets.streaming.intake import as_documents, require_whole_numbers, valid_conversations
from niels_cache_assets.streaming.pretrain_writer import PretrainWriter
from niels_cache_assets.streaming.sft_spool import SftSpool
from niels_cache_assets.streaming.shuffle import shuffled
from niels_cache_assets.streaming.splits import BudgetSplitter
from niels_cache_assets.streaming.writers import require_shard_bytes
from niels_cache_assets.tokenization import BuildTokenizer, view_tokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import META_NAME, SPLITS, TOKEN_DTYPE, TOKEN_DTYPE_NAME
from niels_cache_runtime.meta import Meta, canonical_json, content_sha256, sha256_text, write_meta

CODE_VERSIONS = {"pretrain": "1", "sft": "1"}  # bumped by hand when the bytes change for the same input


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What meta.json says about where a cache came from. `fingerprint` None: it is taken over the builder's own settings."""

    dataset_name: str | None = None
    dataset_config: str | None = None
    dataset_revision: str | None = None
    source: dict[str, Any] = field(default_factory=lambda: {"kind": "iterable", "streaming": True})
    split_rule: str | None = None
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a build is. `share` (0 to 1) is of the token budgets, or of the documents where their number is known; else None."""

    documents: int  # or conversations
    tokens: int
    share: float | None


OnProgress = Callable[[Progress], None]


def fingerprint_of(settings: dict[str, Any]) -> str:
    """sha256 over the canonical JSON of everything that decides a cache's bytes."""
    return sha256_text(canonical_json(settings))


def build_pretrain_cache(
    texts: Iterable[str | Document],
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
    expected_documents: int | None = None,
) -> None:
    """Build `out_dir` (train/, val/, *_doc_ends.npy, *_documents.parquet, meta.json) from a stream of `str` or `Document`.

    Whole documents go to val until it has `max_val_tokens` tokens (0: no val), then to train until it has `max_train_tokens`; the one that
    overruns a budget is cut there, and the stream is read no further when both are met. A Document with a `split` goes there and uses no
    budget. Each document ends with one EOT (`append_eot`). `shuffle_buffer` documents are shuffled at a time (None: input order).
    `tokenizer` is duck-typed: see `view_tokenizer`. `report` brings the source's own dropped counts; `progress` is called after every
    chunk, with a share of `expected_documents` where that is known. `out_dir` is replaced in one step at the end.

    `decontaminate` keeps out of train, counts, and takes from no budget: with "exact" what has the canonical text of a document of val
    (`in_val`), with "near" also what has `decontaminate_threshold` of its word 5-grams in common with one (Jaccard, compared exactly:
    `near_val`). Val has to be known before train begins: documents whose own split is val must all come before the first of train, or be
    given a first time as `val_texts`, which are read before the build and not written.

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
    splitter = BudgetSplitter(max_train_tokens=max_train_tokens, max_val_tokens=max_val_tokens, eot=view.eot if append_eot else None)
    provenance = provenance or Provenance()
    report = report or SourceReport()
    documents: Iterator[Document] = as_documents(texts)
    if shuffle_buffer is not None:
        documents = shuffled(documents, buffer_size=shuffle_buffer, seed=seed)
    dropped: Counter[str] = Counter()
    source_dropped = report.dropped  # of the whole stream, unless the budgets end it early
    with (
        atomic_directory(out_dir) as partial,
        PretrainWriter(partial, shard_bytes=shard_bytes) as writer,
        open_guard(decontaminate, decontaminate_threshold, partial) as guard,
        closing(
            encode_documents(
                documents,
                view,
                report,
                threads=threads or available_threads(),
                append_eot=append_eot,
                raise_on_collision=on_collision == "raise",
                screen=guard.screen if guard else None,
            )
        ) as batches,
    ):
        if guard is not None:
            guard.read_val(as_documents(val_texts or ()))
        seen = 0
        for batch in batches:
            if guard is not None:
                batch = guard.admit(batch, is_val=splitter.val_mask(batch))
            dropped.update(batch.dropped)
            writer.write(splitter.place(batch))
            seen += len(batch.documents)
            if progress is not None:
                tokens = writer.tokens("train") + writer.tokens("val")
                share = seen / expected_documents if expected_documents else splitter.share
                progress(Progress(seen, tokens, share))
            if splitter.met:
                source_dropped = batch.source_dropped
                break
        if not writer.tokens("train"):
            raise NielsCacheError(_why_no_train(out_dir, writer.tokens("val"), max_val_tokens, dropped + source_dropped))
        writer.seal()
        identity = decontamination_identity(decontaminate, decontaminate_threshold)  # nothing where it is off: older caches stay good
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
            **_common_meta("pretrain", out_dir, view, provenance, seed, settings),
            **writer.totals(),
            "append_eot": append_eot,
            "shard_bytes": shard_bytes,
            **identity,
            "split_rule": provenance.split_rule or f"val until {max_val_tokens} tokens, then train until {max_train_tokens}",
            "dropped": dict(dropped + source_dropped),
            "facts": report.facts,
            "files": writer.files,
            "content_sha256": content_sha256(writer.files),
        }
        write_meta(str(partial / META_NAME), meta)


def build_sft_cache(
    examples: Iterable[list[Message] | Conversation],
    out_dir: str,
    *,
    tokenizer: Any,
    val_frac: float,
    seed: int,
    split_by: Literal["example", "group"] = "example",
    on_invalid: Literal["raise", "drop"] = "raise",
    on_collision: Literal["drop", "raise"] = "drop",
    threads: int | None = None,
    provenance: Provenance | None = None,
    report: SourceReport | None = None,
    progress: OnProgress | None = None,
) -> None:
    """Build `out_dir` ({train,val}_tokens.bin, *_idx.npy, *_examples.parquet, meta.json) from conversations.

    Each message becomes its role's sentinel, the ids of its content, EOT. val is a seeded `val_frac` of the examples (or of their groups);
    an example that is a Conversation with a `split` keeps it. `tokenizer` needs all four special ids. `out_dir` is replaced in one step.

    Raises NielsCacheError for an invalid conversation (`on_invalid="drop"` counts it instead), no example at all, a val_frac outside
    [0, 1), a tokenizer that cannot work, and for what the disk refuses. The last good cache then stays as it was.
    """
    require_whole_numbers(seed=seed, threads=threads)
    if not 0 <= val_frac < 1:
        raise NielsCacheError(f"val_frac is {val_frac}; it must be at least 0 and below 1")
    view = view_tokenizer(tokenizer)
    view.require(ROLE_KEYS)
    provenance = provenance or Provenance()
    report = report or SourceReport()
    dropped: Counter[str] = Counter()
    conversations = valid_conversations(examples, dropped, raise_on_invalid=on_invalid == "raise")

    def encode(chunk: list[Conversation]) -> tuple[list[Conversation], list[np.ndarray], Counter[str]]:
        return _encode_conversations(chunk, view, raise_on_collision=on_collision == "raise")

    def size_of(conversation: Conversation) -> int:
        return sum(len(message["content"]) for message in conversation.messages)

    encoded = map_in_order(encode, in_chunks(conversations, size_of), threads=threads or available_threads())
    with atomic_directory(out_dir) as partial, SftSpool(partial) as spool, closing(encoded) as batches:
        for kept, arrays, reasons in batches:
            dropped.update(reasons)
            spool.write(kept, arrays)
            if progress is not None:
                progress(Progress(spool.examples, spool.tokens, None))
        dropped += report.dropped
        if not spool.examples:
            raise NielsCacheError(f"{out_dir}: the source gave no usable conversation{_dropped_note(dropped)}; nothing was written")
        files: dict[str, dict[str, Any]] = {}
        counts = spool.deal(files, val_frac=val_frac, seed=seed, by_group=split_by == "group")
        settings = {"val_frac": val_frac, "seed": seed, "split_by": split_by}
        meta = {
            **_common_meta("sft", out_dir, view, provenance, seed, settings),
            **{key: count for key, count in counts.items() if key != "straddling_groups"},
            "split_rule": provenance.split_rule or f"seeded {val_frac:g} of {split_by}s to val",
            "dropped": dict(dropped),
            "facts": {**report.facts, "straddling_groups": counts["straddling_groups"]},
            "files": files,
            "content_sha256": content_sha256(files),
        }
        write_meta(str(partial / META_NAME), meta)


def write_unbuilt_cache(out_dir: str, *, family: Literal["pretrain", "sft"], provenance: Provenance) -> None:
    """The cache of a data set that is switched off: empty directories and a meta.json that says `"built": false`."""
    with atomic_directory(out_dir) as partial:
        if family == "pretrain":
            for split in SPLITS:
                (partial / split).mkdir()
        write_meta(
            str(partial / META_NAME),
            {
                "kind": family,
                "built": False,
                "dataset_name": provenance.dataset_name,
                "dataset_config": provenance.dataset_config,
                "dataset_revision": None,
                "source": provenance.source,
                "split_rule": provenance.split_rule,
                "seed": None,
                "shard_bytes": None,
                "documents": dict.fromkeys(SPLITS, 0),
                "token_dtype": TOKEN_DTYPE_NAME,
                "tokenizer_sha256": None,
                "vocab_size": None,
                "special_token_ids": dict.fromkeys(ROLE_KEYS),
                **{f"{split}_{what}": 0 for split in SPLITS for what in (("tokens",) if family == "pretrain" else ("tokens", "examples"))},
                "dropped": {},
                "fingerprint": provenance.fingerprint,
                "files": {},
                "content_sha256": content_sha256({}),
            },
        )


def _common_meta(family: str, out_dir: str, tokenizer: BuildTokenizer, provenance: Provenance, seed: int, settings: dict[str, Any]) -> Meta:
    identity = {"settings": settings, "tokenizer_sha256": tokenizer.model_sha256, "code_version": CODE_VERSIONS[family]}
    return {
        "kind": family,
        "built": True,
        "dataset_name": provenance.dataset_name or Path(out_dir).name,
        "dataset_config": provenance.dataset_config,
        "dataset_revision": provenance.dataset_revision,
        "source": provenance.source,
        "seed": seed,
        "token_dtype": TOKEN_DTYPE_NAME,
        "tokenizer_sha256": tokenizer.model_sha256,
        "vocab_size": tokenizer.vocab_size,
        "special_token_ids": tokenizer.special_ids,
        "fingerprint": provenance.fingerprint or fingerprint_of(identity),
    }


def _encode_conversations(
    chunk: list[Conversation], tokenizer: BuildTokenizer, *, raise_on_collision: bool
) -> tuple[list[Conversation], list[np.ndarray], Counter[str]]:
    """One uint16 array per conversation that survives: sentinel, content, EOT for each message."""
    encoded = iter(encode_texts([message["content"] for conversation in chunk for message in conversation.messages], tokenizer))
    kept: list[Conversation] = []
    arrays: list[np.ndarray] = []
    dropped: Counter[str] = Counter()
    for position, conversation in enumerate(chunk):
        contents = [next(encoded) for _ in conversation.messages]
        problem = next((content for content in contents if isinstance(content, str)), None)
        pieces: list[np.ndarray] = []
        for message, content in zip(conversation.messages, contents, strict=True):
            if isinstance(content, str):
                break
            require_ids_fit(content, tokenizer, "encoding")
            if len(content) and has_special(content, tokenizer):
                problem = COLLISION
                break
            pieces += [np.array([tokenizer.special_ids[ROLE_TO_KEY[message["role"]]]]), content, np.array([tokenizer.eot])]
        if problem is None:
            kept.append(conversation)
            arrays.append(np.concatenate(pieces).astype(TOKEN_DTYPE))
        elif problem == COLLISION and raise_on_collision:
            raise NielsCacheError(f"example {conversation.source_id or position}: a message contains a special token; remove it")
        else:
            dropped[problem] += 1
    return kept, arrays, dropped


def _why_no_train(out_dir: str, val_tokens: int, max_val_tokens: int, dropped: Counter[str]) -> str:
    if val_tokens:
        return (
            f"{out_dir}: the source ended after {val_tokens:,} tokens, all of them for val (budget max_val_tokens={max_val_tokens:,}), "
            "so train has none; lower the val budget or use val_frac"
        )
    return f"{out_dir}: the source gave no usable document{_dropped_note(dropped)}; nothing was written"


def _dropped_note(dropped: Counter[str]) -> str:
    return f" (dropped: {', '.join(f'{reason} {count}' for reason, count in sorted(dropped.items()))})" if dropped else ""
