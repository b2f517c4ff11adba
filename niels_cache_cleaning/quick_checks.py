"""Quick proofs that a text passes a filter. Normal documents pass nearly all filters, so the slow code of `filters` runs for few.

If there is no proof, the filter itself decides. So the definitions of all rules stay in `filters`, and no decision depends on this module.
A test compares the decisions. `passes` describes the cost.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.cleaning.settings import CleaningSettings
from niels_cache_cleaning.filters import BULLETS, RULES, FilterRule
from niels_cache_cleaning.languages import STOP_WORDS, stop_words_in
from niels_cache_cleaning.passes import bytes_of
from niels_cache_runtime.format.layout import Bytes

_HEAD = 500  # characters in which two stop words nearly always occur
# Code points that `passing_filters` judges besides those below U+0E00. All others may be in a script without blanks, or change with case.
_JUDGED = ((0x1E00, 0x2C00), (0xAC00, 0xD7A4), (0xFE0E, 0xFE10), (0xFEFF, 0xFF00), (0xFFFD, 0xFFFE))
_CHANGES_WITH_ITS_PLACE = "\u03a3"  # the Greek capital sigma has two lower-case forms


class Counts(NamedTuple):
    """The counts of `kernels.measure`. No pair of words is more frequent than `most`."""

    words: int
    characters: int
    with_letter: int
    lines: int
    bullets: int
    symbols: int
    most: int


def counts(text: str) -> Counts | None:
    """Return the counts of a text, or None if it contains a character that the loop does not judge."""
    from niels_cache_cleaning import kernels

    out = np.empty(len(Counts._fields), dtype=np.int64)
    found = kernels.measure(bytes_of(f"{text} "), *_classes(), np.zeros(kernels.BUCKETS, dtype=np.uint32), out)
    return Counts(*out.tolist()) if found else None


def passing_filters(text: str, settings: CleaningSettings) -> set[str]:
    """Return the names of filters that are certain not to reject this text. Any other filter must judge the text itself."""
    proven = set()
    if len(settings.languages) == 1 and _stop_words_in(text, settings.languages[0]) >= settings.min_stopwords:
        proven.add("no_stopwords")
    found = counts(text)
    if found is None or not found.words:
        return proven
    mean_length = found.characters / found.words
    measured = {
        "min_characters": len(text),
        "min_words": found.words,
        "max_bullet_share": found.bullets / found.lines,
        "min_mean_word_length": mean_length,
        "max_mean_word_length": mean_length,
        "max_symbols_per_word": found.symbols / found.words,
        "min_alpha_word_share": found.with_letter / found.words,
        "max_bigram_share": found.most / max(found.words - 1, 1),  # without a pair, `most` is 0
    }

    def passes(rule: FilterRule) -> bool:
        limit = getattr(settings, rule.key)
        return limit is None or (rule.key in measured and not rule.drops(measured[rule.key], limit))

    return proven | ({rule.reason for rule in RULES} - {rule.reason for rule in RULES if not passes(rule)})


def _stop_words_in(text: str, code: str) -> int:
    """Return how many distinct stop words of a language the beginning of the text has, 0 if the language has none."""
    if code not in STOP_WORDS:
        return 0
    head = text if len(text) <= _HEAD else text[:_HEAD].rpartition(" ")[0]  # whole words
    return stop_words_in(head, head.lower().split(), code)


@lru_cache(maxsize=1)
def _classes() -> tuple[Bytes, NDArray[np.uint16]]:
    """Return the bits and the lower case of each code point, in the form that `kernels.measure` takes."""
    from niels_cache_cleaning import kernels

    classes = np.zeros(kernels.SIZE, dtype=np.uint8)
    lower = np.arange(kernels.SIZE, dtype=np.uint32).astype(np.uint16)
    judged = np.zeros(kernels.SIZE, dtype=bool)
    judged[:0xE00] = judged[kernels.PICTURE] = True
    for first, end in _JUDGED:
        judged[first:end] = True
    for code_point in np.flatnonzero(judged[: kernels.LIMIT]).tolist():
        character = chr(code_point)
        lowered = character.lower()
        if len(lowered) != 1 or character == _CHANGES_WITH_ITS_PLACE or ord(lowered) >= kernels.LIMIT:
            judged[code_point] = False
        else:
            lower[code_point] = ord(lowered)
            classes[code_point] = kernels.LETTER if character.isalpha() else 0
    for code_point in range(kernels.LIMIT):
        if chr(code_point).isspace():
            classes[code_point] = kernels.SPACE
    for bullet in BULLETS:
        classes[ord(bullet[0])] |= kernels.BULLET if len(bullet) == 1 else kernels.DASH
    classes[~judged & (classes != kernels.SPACE)] = kernels.UNSURE
    return classes, lower
