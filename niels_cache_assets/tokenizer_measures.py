"""How well a tokenizer fits its texts: characters per token of each source, and the long words that it cuts.

Measured when a tokenizer is trained, on the beginning of each source's part of the sample, which is gone afterwards; the figures are kept
in its meta.json. Cost: a tenth of a second for each source. An imported tokenizer has no sample: what was built with it counts then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from niels_cache_assets.tokenization import SentencePieceTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import META_NAME, SPLITS, built_names, dataset_dir
from niels_cache_runtime.meta import Meta, read_meta

MEASURED_BYTES = 1 << 18  # of each source
LONGEST_WORDS = 9

_WORD = re.compile(r"[^\W\d_]+")
_LONGEST = 32  # letters; longer runs are seldom words
_LAST_LETTER = "\u052f"  # Latin, Greek and Cyrillic, which every font has


def measure_sample(sample: Path, sources: Mapping[str, int], tokenizer: SentencePieceTokenizer) -> dict[str, Any]:
    """Keys of meta.json's `trained_on`. `sources`: bytes of each in the sample, in order.

    `characters_per_token`: of each source that has any text. `longest_words`: the longest of all that was read.
    """
    ratios: dict[str, float] = {}
    words: set[str] = set()
    with open(sample, "rb") as file:
        place = 0
        for name, size in sources.items():
            file.seek(place)
            lines = file.read(min(size, MEASURED_BYTES)).decode(errors="ignore").splitlines()
            place += size
            tokens = sum(len(ids) for ids in tokenizer.encode_unchecked(lines))
            if tokens:
                ratios[name] = round(sum(map(len, lines)) / tokens, 3)
            words.update(word for line in lines for word in _WORD.findall(line) if _is_a_word(word))
    return {"characters_per_token": ratios, "longest_words": sorted(words, key=lambda word: (-len(word), word))[:LONGEST_WORDS]}


def _is_a_word(found: str) -> bool:
    """Neither CamelCase nor a run of letters of some code, as far as can be seen."""
    return 1 < len(found) <= _LONGEST and found[1:].islower() and max(found) <= _LAST_LETTER


def characters_per_token(root: Path, meta: Meta) -> dict[str, float]:
    """By source: of the sample, and for what was not in it, of the pretrain caches below `root` that this tokenizer made."""
    found: dict[str, float] = dict(meta.get("trained_on", {}).get("characters_per_token", {}))
    for name in built_names(root / "pretrain"):
        try:
            built = read_meta(str(dataset_dir(root, "pretrain", name) / META_NAME))
        except NielsCacheError:  # the checks' to report
            continue
        tokens = sum(built.get(f"{split}_tokens", 0) for split in SPLITS)
        if built.get("tokenizer_sha256") == meta["sha256"] and tokens and "characters" in built:
            found.setdefault(name, round(sum(built["characters"][split] for split in SPLITS) / tokens, 3))
    return found


def split_words(meta: Meta, tokenizer: SentencePieceTokenizer) -> dict[str, list[str]]:
    """The longest words of the sample, each as its pieces, without the blank that begins a word. Empty where there was no sample."""
    pieces = tokenizer.piece_bytes()
    words: list[str] = meta.get("trained_on", {}).get("longest_words", [])
    cut = {word: [pieces[token].decode(errors="replace") for token in tokenizer.encode(word)] for word in words}
    return {word: [piece for piece in (parts[0].lstrip(" "), *parts[1:]) if piece] for word, parts in cut.items()}
