"""Filters. Each filter looks at one normalized document, and returns a rejection or None.

The first rejection counts, so cheap filters run first. To add a filter, write a function that takes the facts about a document and the
settings, and add one line to `_JUDGES`. The name of a filter is also the reason of its rejections. Add this name to REASONS in
config/tables.py, at the position that the filter has in `_JUDGES`. The threshold of a filter is in config/tables.py, too. If Gopher has a
rule (Rae et al. 2021, https://arxiv.org/abs/2112.11446, table A1 of the appendix), the threshold is that of Gopher. Some definitions hold
for all filters. Words are separated by white space (str.split). A letter is a character with str.isalpha. Empty lines do not count.

Compact Language Detector 2 (CLD2; Sites, 2013) identifies the language; the package `pycld2` contains its model. docs/log.md compares CLD2
with other identifiers.

The cost of a document that passes all filters is about 0.1 ms a kilobyte. Half of this time is spent on words and pairs of words.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, pairwise
from operator import and_
from typing import NamedTuple

from niels_cache_assets.cleaning.normalizers import collapse_blanks, replace_unreadable
from niels_cache_assets.config.tables import REASONS, CleaningSettings
from niels_cache_assets.documents import Document

STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))  # as in Gopher

JUDGED_CHARACTERS = 1_000_000  # a list of words takes twenty times the memory of the text; more text would hardly change the result

_REDIRECT = re.compile(r"#redirect\b", re.IGNORECASE)
_MAY_REFER_TO = re.compile(
    r"\b(?:may|can|could|might|commonly|usually) (?:\w+ )?(?:refers?|stands?) (?:to|for)\b[^\n:]{0,80}:$", re.MULTILINE
)
_DISAMBIGUATION_CHARACTERS = 500  # a disambiguation page has the phrase in its first sentence
_PARAGRAPH_CHARACTERS = 80  # a shorter line is a heading, or a list item without its bullet
BULLETS = (*"*•‣◦⁃∙▪●·", "- ", "– ", "— ", "+ ")
_ASCII_BLANKS = b"\t\n\v\f\r\x1c\x1d\x1e\x1f "
_LETTERS_AND_BLANKS = bytes.maketrans(_ASCII_BLANKS, b" " * len(_ASCII_BLANKS))
_NEITHER = bytes(code for code in range(256) if not bytes((code,)).isalpha() and code not in _ASCII_BLANKS)
_PARAGRAPH_END = re.compile(r"\n\s*\n")
_OLD_CODES = {"iw": "he", "jw": "jv"}  # CLD2 still uses codes that ISO 639-1 withdrew


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """The reason for a rejection, and the measured value (None if the filter measures nothing)."""

    reason: str
    value: float | None = None


class Facts:
    """A document, and values that several filters need. Each value is computed when it is first used.

    `text` holds the first JUDGED_CHARACTERS of the document, so a document of hundreds of megabytes does not need gigabytes of memory.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.text = document.text[:JUDGED_CHARACTERS]
        self._language: tuple[str | None, float] | None = None

    @cached_property
    def words(self) -> list[str]:
        return self.text.split()

    @cached_property
    def lower_words(self) -> list[str]:
        return self.text.lower().split()

    @cached_property
    def lines(self) -> list[str]:
        """The non-empty lines, without surrounding white space."""
        return [line for line in map(str.strip, self.text.split("\n")) if line]

    @property
    def language_asked(self) -> bool:
        return self._language is not None

    def language(self, characters: int) -> tuple[str | None, float]:
        """Return (language code or None, share of the text in this language) for the first `characters` characters.

        All filters pass the same number of `characters`.
        """
        if self._language is None:
            self._language = identify_language(self.text[:characters])
        return self._language


Filter = Callable[[Facts, CleaningSettings], Rejection | None]


def redirect(facts: Facts, settings: CleaningSettings) -> Rejection | None:
    """Reject a redirect. Upstream marks the document as a redirect, or the text begins with the mark of a redirect."""
    return Rejection(reason="redirect") if facts.document.redirect or _REDIRECT.match(facts.text) else None


def empty(facts: Facts, settings: CleaningSettings) -> Rejection | None:
    """Reject a document that is empty after normalization."""
    return None if facts.text and not facts.text.isspace() else Rejection(reason="empty", value=0.0)


def disambiguation(facts: Facts, settings: CleaningSettings) -> Rejection | None:
    """Reject a disambiguation page. Its title says so, or a line near its beginning ends with "may refer to:" or similar words ("can",
    "might"; "stand for"; "... in Y:"). Such a line counts only if the next line has a bullet or fewer than 80 characters, or if the text
    ends there.
    """
    titled = (facts.document.title or "").strip().lower().endswith("(disambiguation)")
    start = facts.text[:_DISAMBIGUATION_CHARACTERS]
    says_so = (" refer" in start or " stand" in start) and any(
        _is_followed_by_list(facts.text, found.end()) for found in _MAY_REFER_TO.finditer(start)
    )
    return Rejection(reason="disambiguation") if titled or says_so else None


def too_short(facts: Facts, settings: CleaningSettings) -> Rejection | None:
    """Reject a text with too few characters or too few words. The value is the number of characters or the number of words."""
    if len(facts.text) < settings.min_characters:
        return Rejection(reason="too_short", value=float(len(facts.text)))
    return Rejection(reason="too_short", value=float(len(facts.words))) if len(facts.words) < settings.min_words else None


def list_page(facts: Facts, settings: CleaningSettings) -> Rejection | None:
    """Reject by the share of lines that begin with a bullet: *, •, or one of - – — + and a blank."""
    return _above("list_page", sum(line.startswith(BULLETS) for line in facts.lines), len(facts.lines), settings.max_bullet_share)


def low_alpha_ratio(facts: Facts, settings: CleaningSettings) -> Rejection | None:
    """Reject by the share of words that contain a letter."""
    words = len(facts.words)
    # Words with an ASCII letter are quick to count. Usually they are enough to pass.
    at_least = len(facts.text.encode("ascii", "replace").translate(_LETTERS_AND_BLANKS, _NEITHER).split())
    if not words or at_least / words >= settings.min_alpha_word_share:
        return None
    share = sum(any(map(str.isalpha, word)) for word in facts.words) / words
    return Rejection(reason="low_alpha_ratio", value=share) if share < settings.min_alpha_word_share else None


def bad_mean_word_len(facts: Facts, settings: CleaningSettings) -> Rejection | None:
    """Reject by the mean number of characters per word, without white space."""
    if not facts.words:
        return None
    mean = sum(map(len, facts.words)) / len(facts.words)
    outside = not settings.min_mean_word_length <= mean <= settings.max_mean_word_length
    return Rejection(reason="bad_mean_word_len", value=mean) if outside else None


def high_symbol_ratio(facts: Facts, settings: CleaningSettings) -> Rejection | None:
    """Reject a text with too many symbols per word. The symbols are `#` and ellipses (three dots or U+2026)."""
    symbols = facts.text.count("#") + facts.text.count("...") + facts.text.count("…")
    return _above("high_symbol_ratio", symbols, len(facts.words), settings.max_symbols_per_word)


def no_stopwords(facts: Facts, settings: CleaningSettings) -> Rejection | None:
    """Reject by the number of different STOP_WORDS that occur as words, in upper or lower case."""
    found = len(STOP_WORDS.intersection(facts.lower_words))
    return Rejection(reason="no_stopwords", value=float(found)) if found < settings.min_stopwords else None


def repetitive(facts: Facts, settings: CleaningSettings) -> Rejection | None:
    """Reject a text in which one pair of words makes too large a share of all pairs. Pairs are in lower case, and must occur twice.

    Further rules of Gopher apply if their limits are set: the share of characters in the most frequent 2-, 3- and 4-gram, and the share of
    repeated lines and repeated paragraphs.
    """
    pairs = len(facts.words) - 1
    found = _above("repetitive", _most_frequent_pair(facts.lower_words, settings.max_bigram_share), pairs, settings.max_bigram_share)
    if found:
        return found
    for size, limit in (
        (2, settings.max_top_2gram_characters),
        (3, settings.max_top_3gram_characters),
        (4, settings.max_top_4gram_characters),
    ):
        if limit is not None and (found := _above("repetitive", *_top_ngram_characters(facts.lower_words, size), limit)):
            return found
    if settings.max_duplicate_lines is not None:
        found = _above("repetitive", *_repeated(facts.lines), settings.max_duplicate_lines)
    if not found and settings.max_duplicate_paragraphs is not None:
        paragraphs = [paragraph for paragraph in map(str.strip, _PARAGRAPH_END.split(facts.text)) if paragraph]
        found = _above("repetitive", *_repeated(paragraphs), settings.max_duplicate_paragraphs)
    return found


def language_error(facts: Facts, settings: CleaningSettings) -> Rejection | None:
    """Reject a text if the identifier does not recognize the language of its first characters."""
    code, _ = facts.language(settings.language_characters)
    return Rejection(reason="language_error") if code is None else None


def not_english(facts: Facts, settings: CleaningSettings) -> Rejection | None:
    """Reject a text if the language of its first characters is not in `languages`. The value is the share of that language."""
    code, share = facts.language(settings.language_characters)
    return Rejection(reason="not_english", value=share) if code is not None and code not in settings.languages else None


_JUDGES: tuple[Filter, ...] = (
    redirect,
    empty,
    disambiguation,
    too_short,
    list_page,
    bad_mean_word_len,
    high_symbol_ratio,
    low_alpha_ratio,
    no_stopwords,
    repetitive,
    language_error,
    not_english,
)
FILTERS: tuple[tuple[str, Filter], ...] = tuple(zip(REASONS, _JUDGES, strict=True))  # (name, filter)


def identify_language(text: str) -> tuple[str | None, float]:
    """Return (ISO 639 code, share of the text in that language), or (None, 0.0) if the text is too short or its language is unknown.

    Pass the beginning of a document: the whole argument is read, in tens of microseconds for 400 characters. The code contains no script
    and no country: it is zh, not zh-Hant.
    """
    import pycld2

    encoded = collapse_blanks(replace_unreadable(text)).encode("utf-8")  # CLD2 rejects controls, surrogates and noncharacters
    _, _, ((_, code, percent, _), *_) = pycld2.detect(encoded, isPlainText=True)
    code = code.partition("-")[0]
    if not 2 <= len(code) <= 3 or code in ("un", "xx", "xxx") or code.startswith("zz"):
        return None, 0.0
    return _OLD_CODES.get(code, code), percent / 100


def _is_followed_by_list(text: str, place: int) -> bool:
    """Return whether the next non-empty line begins with a bullet, or is too short for a paragraph."""
    line = text[place : place + 2 * _PARAGRAPH_CHARACTERS].lstrip().partition("\n")[0]
    return line.startswith(BULLETS) or len(line) < _PARAGRAPH_CHARACTERS


def _above(reason: str, count: float, total: int, limit: float) -> Rejection | None:
    """Return a rejection if count / total is above the limit. A total of 0 is not rejected."""
    return Rejection(reason=reason, value=count / total) if total > 0 and count / total > limit else None


def _most_frequent_pair(words: list[str], limit: float) -> int:
    """Return how often the most frequent pair of neighbouring words occurs.

    The result is 0 if no pair can be above the limit, or if no pair occurs twice. A pair is at most as frequent as each of its two words,
    and few words are frequent enough. So only pairs of two such words are counted.
    """
    pairs = len(words) - 1
    frequent = {word for word, count in Counter(words).items() if count > 1 and count / pairs > limit}
    if not frequent:
        return 0
    flags = list(map(frequent.__contains__, words))
    counts = Counter(compress(pairwise(words), map(and_, flags, flags[1:])))
    most = max(counts.values(), default=0)
    return most if most > 1 else 0


def _top_ngram_characters(words: list[str], size: int) -> tuple[int, int]:
    """Return (number of characters in the most frequent n-gram, number of characters in all words).

    If several n-grams are the most frequent, the longest of them is used. The first number is 0 if no n-gram occurs twice.
    """
    counts = Counter(zip(*(words[start:] for start in range(size)), strict=False))
    most = max(counts.values(), default=0)
    if most < 2:
        return 0, sum(map(len, words))
    longest = max(sum(map(len, ngram)) for ngram, count in counts.items() if count == most)
    return most * longest, sum(map(len, words))


def _repeated(parts: list[str]) -> tuple[int, int]:
    """Return (number of repeated parts, number of parts)."""
    return len(parts) - len(set(parts)), len(parts)


class Rejected(NamedTuple):
    """A rejected document after normalization, and the reason. `value`: the value that the filter measured, or None."""

    document: Document
    reason: str
    value: float | None
