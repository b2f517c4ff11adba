"""Fill-in-the-middle (FIM): documents are rearranged in packed rows, so that a model learns to fill a gap from what stands around it.

    document    p p p | m m | s s s s EOT         cut at two places between tokens, which seed, epoch and document decide
    PSM         <pre> p p p <suf> s s s s <mid> m m EOT
    SPM         <pre> <suf> s s s s <mid> p p p m m EOT

This is the transformation of Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle" (arXiv 2207.14255). They
apply it to documents before these are cut to the length of a context (document level), where a cut may lose a prefix or a suffix, or to the
documents and pieces in each context after the cut (context level). Here, the rows are known before a token is read. So every document, and
every piece of a long one, is rearranged by itself inside one row, and is three tokens longer there. `FIM.level` says what is chosen:

    "document"  each document or piece, as Megatron-LM does for the segments between EOT tokens of a sample
    "row"       all documents and pieces of a row, or none of them

`document_plan` decides which documents are rearranged in an epoch, and keeps three columns for each. `documents` reads the rows.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np

from niels_cache_runtime.cache.checks import NamesArguments, check_choice, check_whole
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Array, Bools, Ints, tokenizer_dir
from niels_cache_runtime.format.safe_open import read_regular
from niels_cache_runtime.loader.packing.document_plan import GROWTH, EpochKeys

_KEYS = ("pre", "suf", "mid")
SENTINEL_NAMES = (  # of pre, suf and mid
    "<fim_prefix> <fim_suffix> <fim_middle>",  # StarCoder
    "<|fim_prefix|> <|fim_suffix|> <|fim_middle|>",  # Qwen, CodeGemma
    "<fim-prefix> <fim-suffix> <fim-middle>",  # SantaCoder
    "<｜fim▁begin｜> <｜fim▁hole｜> <｜fim▁end｜>",  # DeepSeek
    "▁<PRE> ▁<SUF> ▁<MID>",  # CodeLlama
)
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class FIM(NamesArguments):
    """Settings of `TokenLoader(fim=...)`: documents in packed rows are rearranged to fill in the middle.

    Attributes:
        rate: The share of the documents that are rearranged in each epoch, 0 to 1.
        spm_rate: The share of them in the order suffix, prefix, middle. The others have the order prefix, suffix, middle.
        level: "document" chooses documents, and pieces of long documents, one by one. "row" chooses rows, and all documents in them.
        pre: The token before the prefix, by its id or its text. None means that the three are found by the names that StarCoder, Qwen,
            DeepSeek and CodeLlama give them.
        suf: The token before the suffix.
        mid: The token before the middle.

    Raises:
        NielsCacheError: For a value out of range.
    """

    rate: float = 0.5
    spm_rate: float = 0.5
    level: Literal["document", "row"] = "document"
    pre: int | str | None = None
    suf: int | str | None = None
    mid: int | str | None = None

    def __post_init__(self) -> None:
        for name in ("rate", "spm_rate"):
            value = getattr(self, name)
            if not isinstance(value, Real) or not 0 <= float(value) <= 1:
                raise NielsCacheError(f"{name}={value!r:.60}: must be a number from 0 to 1")
            object.__setattr__(self, name, float(value))
        check_choice("level", self.level, ("document", "row"))
        if len({self.pre, self.suf, self.mid} - {None}) not in (0, 3):
            raise NielsCacheError(f"pre={self.pre!r}, suf={self.suf!r}, mid={self.mid!r}: must be three different tokens; give all or none")


def find_sentinels(fim: Mapping[str, Any], dataset: Path, vocab_size: int) -> tuple[int, ...]:
    """Return the ids of pre, suf and mid.

    Args:
        fim: The attributes of FIM.
        dataset: The folder of a data set. tokenizer/tokenizer.json is looked for in it, beside it, and in the root of a cache.
        vocab_size: The number of ids of tokens.

    Raises:
        NielsCacheError: If the tokenizer is unknown, damaged or without such tokens, and for an id out of range.
    """
    given = tuple(fim[name] for name in _KEYS)
    ids = {each: each for each in given if not isinstance(each, str | None)}
    paths = [tokenizer_dir(root) / "tokenizer.json" for root in (dataset, *dataset.parents[:2]) if len(ids) < 3]
    for path in filter(Path.is_file, paths):
        try:
            content = json.loads(read_regular(path, most_bytes=_MOST_BYTES))
            ids |= {token["content"]: token["id"] for token in content["added_tokens"]}
        except (ValueError, TypeError, LookupError) as error:
            raise NielsCacheError(f"{path}: cannot be read ({error!r:.80}); restore it, or give FIM(pre=..., suf=..., mid=...)") from error
    for names in map(str.split, SENTINEL_NAMES) if given[0] is None else [given]:
        if ids.keys() >= {*names}:
            return tuple(check_whole(f"fim: {key}", ids[name], most=vocab_size - 1) for key, name in zip(_KEYS, names, strict=True))
    raise NielsCacheError(
        f"fim: no tokenizer/tokenizer.json near {dataset} has the tokens "
        f"{'of StarCoder, Qwen, DeepSeek or CodeLlama' if given[0] is None else given}; give their ids, FIM(pre=..., suf=..., mid=...)"
    )


def rearrange(
    pieces: Sequence[Ints], chosen: Bools, ends: Ints, *, keys: EpochKeys, bos: int, eot: int, spm_rate: float, T: int
) -> tuple[list[Array], Ints, Ints]:
    """Return pieces in rows with the chosen ones in parts, in their new order. A sentinel has the first token of its piece in its place.

    Args:
        pieces: The padding, first token in the stream, length and row of each piece. A chosen one is `GROWTH` longer than in the stream.
        chosen: Which pieces to rearrange.
        ends: The ends of documents.
        keys: What decides the cuts.
        bos: How many tokens at the start of each document stay there.
        eot: How many tokens at the end of each document stay there.
        spm_rate: As in FIM.
        T: Inputs per row.

    Returns:
        The pieces, and whether each is a part of a chosen one; the places of the sentinels in the flattened rows; and the places, in the
        flattened targets, of the first tokens of those that continue a document: the piece before has them as targets.
    """
    starts, lengths = pieces[1][chosen], pieces[2][chosen] - GROWTH
    documents = ends.searchsorted(starts, side="right")
    is_first = starts == np.where(documents > 0, ends[documents - 1], 0)
    head, tail = is_first * bos, (starts + lengths == ends[documents]) * eot
    content, first, one = lengths - head - tail, starts + head, np.ones_like(starts)
    draws = keys.draw(starts)
    low, high = np.sort(draws[:2] * (content + 1) >> 32, axis=0)
    prefix = np.where(draws[2] < spm_rate * 2**32, 0, low)
    # BOS, <pre>, prefix, <suf>, suffix, <mid>, middle, EOT. In SPM, the prefix is the beginning of the middle.
    begins = np.array([starts, starts, first, starts, first + high, starts, first + prefix, starts + lengths - 1]).T
    sizes = np.array([head, one, prefix, one, content - high, one, high - prefix, tail]).T
    is_part, is_sentinel = sizes > 0, np.isin(np.arange(8), [1, 3, 5])
    is_repeated = (begins == starts[:, None]) & ~(is_sentinel | is_first[:, None])
    counts = np.ones_like(pieces[0])
    counts[chosen] = is_part.sum(axis=1)
    pads, *columns = (each.repeat(counts) for each in pieces)
    parts = chosen.repeat(counts)
    columns[0][parts], columns[1][parts] = begins[is_part], sizes[is_part]
    pads[:] = 0
    pads[counts.cumsum() - 1] = pieces[0]
    widths = columns[1] + pads
    places = (widths.cumsum() - widths)[parts]
    repeated = places[is_repeated[is_part]]
    return [pads, *columns, parts], places[(is_sentinel & is_part)[is_part]], repeated - repeated // (T + 1) - 1
