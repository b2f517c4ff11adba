"""Measures of a tokenizer's quality: the characters per token of each source, and the pieces of long words.

When a tokenizer is trained, the beginning of each source's text at that time is measured, and the results are stored in the tokenizer's
meta.json. This text is measured with its newlines, because each newline is a token. The training sample of the tokenizer consists of single
lines, so it is not measured. Cost: a tenth of a second for each source, and the beginning of its text in memory. For an imported tokenizer,
the caches that were built with it are measured instead.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from niels_cache_assets.base.defaults import BOS
from niels_cache_assets.tokenizer.kinds import TextTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, SPLITS, built_names, dataset_dir
from niels_cache_runtime.format.meta import Meta, check_location, is_foreign, read_meta

MEASURED_CHARACTERS = 1 << 18  # number of characters of each source that are measured
LONGEST_WORDS = 9

_WORD = re.compile(r"[^\W\d_]+")
_LONGEST = 32  # number of letters; longer runs of letters are rarely words
_LAST_LETTER = "\u052f"  # the last letter of Latin, Greek and Cyrillic, which every font has


def characters_per_token(characters: int, tokens: int) -> float | None:
    """Return the characters per token of whole texts, or None without text.

    Newlines and blanks count; special tokens such as EOT do not.
    """
    return characters / tokens if tokens else None


def cache_characters_per_token(meta: Meta) -> float | None:
    """Return the characters per token of a pretrain cache, rounded, without EOT and BOS.

    Returns None if meta.json counts no characters, as for SFT.
    """
    if "characters" not in meta:
        return None
    special = meta["append_eot"] + (meta["special_token_ids"].get(BOS) is not None)  # special tokens of each document
    tokens = sum(meta[f"{split}_tokens"] - special * meta["documents"][split] for split in SPLITS)
    return _rounded(characters_per_token(sum(meta["characters"][split] for split in SPLITS), tokens))


def keep_beginning(texts: Iterable[str], beginning: list[str]) -> Iterator[str]:
    """Yield the texts unchanged, and add their first MEASURED_CHARACTERS to `beginning`, for `measure_texts`."""
    room = MEASURED_CHARACTERS
    for text in texts:
        if room > 0 and text:
            beginning.append(text[:room])
            room -= len(text)
        yield text


def measure_texts(beginnings: Mapping[str, Sequence[str]], tokenizer: TextTokenizer) -> dict[str, Any]:
    """Return the keys of `trained_on` in meta.json that measure a tokenizer.

    Args:
        beginnings: Texts of each source.
        tokenizer: The tokenizer.

    Returns:
        `characters_per_token`, the ratio for each source that has text, and `longest_words`, the longest words of all sources together.
    """
    ratios: dict[str, float] = {}
    words: set[str] = set()
    for name, texts in beginnings.items():
        tokens = sum(len(ids) for ids in tokenizer.encode_unchecked(texts))
        ratio = _rounded(characters_per_token(sum(map(len, texts)), tokens))
        if ratio is not None:
            ratios[name] = ratio
        for run in (run for text in texts for run in _WORD.findall(text)):
            if 1 < len(run) <= _LONGEST and run[1:].islower() and max(run) <= _LAST_LETTER:  # not CamelCase, and no long run of letters
                words.add(run)
    return {"characters_per_token": ratios, "longest_words": sorted(words, key=lambda word: (-len(word), word))[:LONGEST_WORDS]}


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 3)


def characters_per_token_by_source(root: Path, meta: Meta) -> dict[str, float]:
    """Return the characters per token of each source.

    For a source that the tokenizer was trained on, its training texts are measured. For any other source, its pretrain cache is measured,
    if it was built with this tokenizer.
    """
    ratios: dict[str, float] = dict(meta.get("trained_on", {}).get("characters_per_token", {}))
    for name in built_names(root / "pretrain"):
        try:
            folder = dataset_dir(root, "pretrain", name)
            built = check_location(read_meta(folder / META_NAME), folder)
        except NielsCacheError:  # the checks report this error
            continue
        ratio = cache_characters_per_token(built) if built.get("tokenizer_sha256") == meta["sha256"] and not is_foreign(built) else None
        if ratio is not None:
            ratios.setdefault(name, ratio)
    return ratios
