"""How a cache reads: the first document or example of a split, decoded from the tokens on disk. Costs one small read."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from niels_cache_assets.tokenization import SentencePieceTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import (
    DOC_ENDS_DTYPE,
    IDX_DTYPE,
    TOKEN_DTYPE,
    Family,
    Split,
    doc_ends_name,
    idx_name,
    list_shards,
    tokens_name,
)
from niels_cache_runtime.mmap import map_offsets

EXCERPT_TOKENS = 300


def first_item(folder: Path, family: Family, split: Split, tokenizer: SentencePieceTokenizer) -> str | None:
    """Markdown: the start of the first document or example, special tokens visible. None where the split is empty.

    A damaged cache gives a line that says so: what is wrong with it is the checks' to report, and they run after this.
    """
    try:
        return _decoded(folder, family, split, tokenizer)
    except (NielsCacheError, OSError) as error:
        return f"cannot be shown: {error}"


def _decoded(folder: Path, family: Family, split: Split, tokenizer: SentencePieceTokenizer) -> str | None:
    if family == "pretrain":
        ends = map_offsets(folder / doc_ends_name(split), DOC_ENDS_DTYPE)
        length = int(ends[0]) if len(ends) else 0
        paths = list_shards(folder / split)
    else:
        starts = map_offsets(folder / idx_name(split), IDX_DTYPE)
        paths = [folder / tokens_name(split)]
        length = int(starts[1]) if len(starts) > 1 else paths[0].stat().st_size // TOKEN_DTYPE.itemsize
    if length < 1:
        return None
    shown = min(length, EXCERPT_TOKENS)
    note = f"{length:,} tokens" if shown == length else f"the first {shown} of {length:,} tokens"
    return f"{note}:\n\n{fenced(tokenizer.decode(_first_tokens(paths, shown)))}"


def fenced(text: str) -> str:
    """A Markdown code block that no run of backticks in the text can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _first_tokens(paths: Sequence[Path], count: int) -> np.ndarray:
    """The first `count` tokens of a stream that is cut into files."""
    pieces: list[np.ndarray] = []
    for path in paths:
        pieces.append(np.fromfile(path, TOKEN_DTYPE, count=count))
        count -= len(pieces[-1])
        if not count:
            break
    return np.concatenate(pieces)
