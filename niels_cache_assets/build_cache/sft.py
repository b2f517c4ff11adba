"""The builder of SFT caches: conversations in; tokens, where each example ends, and lineage out.

The examples' tokens are spooled as they come and dealt to the splits at the end (streaming/sft_spool.py), since val is a share of them all.
"""

from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from typing import Any, Literal

import numpy as np

from niels_cache_assets.build_cache.outcome import OnProgress, Progress, Provenance, common_meta, dropped_note
from niels_cache_assets.defaults import ROLE_KEYS, ROLE_TO_KEY
from niels_cache_assets.documents import Conversation, Message, SourceReport
from niels_cache_assets.streaming.directories import atomic_directory
from niels_cache_assets.streaming.encode import (
    COLLISION,
    available_threads,
    encode_texts,
    has_special,
    in_chunks,
    map_in_order,
    require_ids_fit,
)
from niels_cache_assets.streaming.intake import require_whole_numbers, valid_conversations
from niels_cache_assets.streaming.sft_spool import SftSpool
from niels_cache_assets.tokenization import BuildTokenizer, view_tokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import META_NAME, TOKEN_DTYPE
from niels_cache_runtime.meta import content_sha256, write_meta


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
            raise NielsCacheError(f"{out_dir}: the source gave no usable conversation{dropped_note(dropped)}; nothing was written")
        files: dict[str, dict[str, Any]] = {}
        counts = spool.deal(files, val_frac=val_frac, seed=seed, by_group=split_by == "group")
        settings = {"val_frac": val_frac, "seed": seed, "split_by": split_by}
        meta = {
            **common_meta("sft", out_dir, view, provenance, seed, settings),
            **{key: count for key, count in counts.items() if key != "straddling_groups"},
            "split_rule": provenance.split_rule or f"seeded {val_frac:g} of {split_by}s to val",
            "dropped": dict(dropped),
            "facts": {**report.facts, "straddling_groups": counts["straddling_groups"]},
            "files": files,
            "content_sha256": content_sha256(files),
        }
        write_meta(str(partial / META_NAME), meta)


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
