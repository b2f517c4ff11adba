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

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np

from niels_cache_runtime.cache.checks import NamesArguments, check_choice, check_whole
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKENIZER_MODEL_NAME, TOKENIZER_MODEL_NAMES, Bools, Ints, tokenizer_dir
from niels_cache_runtime.format.safe_open import read_regular
from niels_cache_runtime.loader.packing.document_plan import GROWTH, mixed

FIM_VERSION = 1  # must change whenever the same document, seed and epoch would be cut at other places
LEVELS = ("document", "row")
_NAMES = (  # of pre, suf and mid
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
)
_SENTINELS = [1, 3, 5]  # the parts of a rearranged piece that are one
_MOST_BYTES = 1 << 30
_FIRST_FIELD = 0x0A  # of a message of Protobuf, with a length


@dataclass(frozen=True, kw_only=True)
class FIM(NamesArguments):
    """Settings of `TokenLoader(fim=...)`: documents in packed rows are rearranged to fill in the middle.

    Attributes:
        rate: The share of the documents that are rearranged in each epoch, above 0 and at most 1.
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
            if not isinstance(value, Real) or not 0 <= float(value) <= 1 or (name == "rate" and not value):
                raise NielsCacheError(f"{name}={value!r:.60}: must be a number from 0 to 1, and rate above 0; for no FIM, leave fim out")
            object.__setattr__(self, name, float(value))
        check_choice("level", self.level, LEVELS)
        if len({self.pre, self.suf, self.mid} - {None}) not in (0, 3):
            raise NielsCacheError(f"pre={self.pre!r}, suf={self.suf!r}, mid={self.mid!r}: must be three different tokens; give all or none")


def find_sentinels(fim: Mapping[str, Any], dataset: Path, vocab_size: int) -> tuple[int, ...]:
    """Return the ids of pre, suf and mid.

    Args:
        fim: `pre`, `suf` and `mid` of FIM.
        dataset: The folder of a data set. A tokenizer is looked for in it, beside it, and in the root of a cache with this data set.
        vocab_size: The ids that tokens of the data set may have.

    Raises:
        NielsCacheError: If the tokenizer is unknown or has no such tokens, and for an id out of range.
    """
    given = tuple(fim[name] for name in ("pre", "suf", "mid"))
    if any(isinstance(each, str | None) for each in given):
        where, ids = _read_ids(dataset)
        known = _NAMES if given[0] is None else [given]
        found = [names for names in known if all(name in ids or not isinstance(name, str) for name in names)]
        if not found:
            wanted = "no tokens of a known name for fill-in-the-middle" if given[0] is None else f"not all of the tokens {given}"
            raise NielsCacheError(f"fim: {where} has {wanted}; give FIM(pre=..., suf=..., mid=...), by ids or by the texts of its tokens")
        given = tuple(ids.get(name, name) for name in found[0])
    return tuple(check_whole(f"fim: {name}", each, most=vocab_size - 1) for name, each in zip(("pre", "suf", "mid"), given, strict=True))


def _read_ids(dataset: Path) -> tuple[Path, dict[Any, int]]:
    """Return the file of the tokenizer of a data set, and the ids of its tokens by their texts; none if there is no such file."""
    names = TOKENIZER_MODEL_NAMES["tokenizer.json"], TOKENIZER_MODEL_NAME
    path = dataset
    for path in (tokenizer_dir(root) / name for root in (dataset, *dataset.parents[:2]) for name in names):
        if path.is_file():
            content = read_regular(path, most_bytes=_MOST_BYTES)
            try:
                if path.name == TOKENIZER_MODEL_NAME:
                    return path, {piece: number for number, piece in enumerate(_pieces(content))}
                model = json.loads(content)
                vocab = model["model"].get("vocab")
                added = {token["content"]: token["id"] for token in model["added_tokens"]}
                return path, {**vocab, **added} if isinstance(vocab, dict) else added
            except (ValueError, TypeError, LookupError) as error:
                raise NielsCacheError(f"{path}: cannot be read ({error!r:.80}); restore the tokenizer, or give FIM ids") from error
    return dataset, {}


def _pieces(model: bytes) -> Iterator[str]:
    """Yield the pieces of a SentencePiece model: the first field of each of the messages that it begins with."""

    def length(at: int) -> tuple[int, int]:  # of the field at `at`, and where its content begins
        value = shift = 0
        while True:
            at += 1
            value |= (model[at] & 127) << shift
            shift += 7
            if model[at] < 128:
                return value, at + 1

    at = 0
    while at < len(model) and model[at] == _FIRST_FIELD:
        size, start = length(at)
        text, first = length(start)
        yield model[first : first + text].decode(errors="replace")
        at = start + size


def rearrange(
    pieces: tuple[Ints, Ints, Ints, Ints],
    chosen: Ints,
    *,
    outside: tuple[Ints, Ints],
    continues: Bools,
    secret: np.uint64,
    spm_rate: float,
    T: int,
) -> tuple[tuple[Ints, Ints, Ints, Ints], Bools, Ints, Ints]:
    """Return pieces in rows with the chosen ones in parts, in their new order. A sentinel has the first token of its piece in its place.

    Args:
        pieces: The row, first token in the stream, length and padding of each piece. A chosen one is `GROWTH` longer than in the stream.
        chosen: (n,), the indices of the pieces to rearrange.
        outside: How many tokens at the start and at the end of each of them stay there, both (n,).
        continues: (n,), whether the first token of each of them is the last one of the piece before, where it was a target.
        secret: A number that decides the cuts.
        spm_rate: As in FIM.
        T: Inputs per row.

    Returns:
        The pieces; whether each is a part of a chosen one; the places of the sentinels in the flattened rows; and the places of the first
        tokens of those that continue a document, in the flattened targets.
    """
    _, starts, lengths, pads = (each[chosen] for each in pieces)
    lengths -= GROWTH
    contents, firsts = lengths - outside[0] - outside[1], starts + outside[0]
    draws = [mixed((starts.view(np.uint64) << np.uint64(2)) + (secret + np.uint64(number))).astype(np.int64) for number in range(3)]
    one, other = ((draw * (contents + 1)) >> 32 for draw in draws[:2])
    prefix, end = np.where(draws[2] < spm_rate * 2**32, 0, np.minimum(one, other)), np.maximum(one, other)
    ones = np.ones_like(starts)
    # BOS, <pre>, prefix, <suf>, suffix, <mid>, middle, EOT; in SPM, the prefix is the beginning of the middle
    begins = np.stack([starts, starts, firsts, starts, firsts + end, starts, firsts + prefix, starts + lengths - 1], axis=1)
    sizes = np.stack([outside[0], ones, prefix, ones, contents - end, ones, end - prefix, outside[1]], axis=1)
    last = sizes.shape[1] - 1 - (sizes[:, ::-1] > 0).argmax(axis=1)
    own_pads = np.zeros_like(sizes)
    own_pads[np.arange(len(chosen)), last] = pads
    counts = np.ones_like(pieces[0])
    counts[chosen] = sizes.shape[1]
    is_part = (counts > 1).repeat(counts)
    rows, *columns = (each.repeat(counts) for each in pieces)
    for column, own in zip(columns, (begins, sizes, own_pads), strict=True):
        column[is_part] = own.ravel()
    widths = columns[1] + columns[2]
    places = (widths.cumsum() - widths)[is_part].reshape(sizes.shape)
    is_repeated = (begins == starts[:, None]) & (sizes > 0) & continues[:, None]
    is_repeated[:, _SENTINELS] = False
    repeated = places[is_repeated]
    kept = widths > 0
    left = rows[kept], columns[0][kept], columns[1][kept], columns[2][kept]
    return left, is_part[kept], places[:, _SENTINELS].ravel(), repeated - repeated // (T + 1) - 1


@lru_cache(maxsize=8)
def secret_of(seed: int | None, epoch: int) -> np.uint64:
    """Return the number that decides the cuts of an epoch."""
    return np.frombuffer(hashlib.sha256(f"niels-cache fim {FIM_VERSION} {seed} {epoch}".encode()).digest()[:8], dtype=np.uint64)[0]
