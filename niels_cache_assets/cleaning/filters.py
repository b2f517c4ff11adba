"""Filters, each of which looks at one normalized document and returns a rejection or None.

The first rejection counts, so cheap filters run first. To add a filter, write a function that takes the facts about a document, and add one
line to `_JUDGES`. The name of a filter is also the reason of its rejections. Add this name to the cleaning stage of base/reasons.py, at the
position that the filter has in `_JUDGES`. The threshold of a filter is in settings.py. If Gopher has a rule (Rae et al. 2021,
https://arxiv.org/abs/2112.11446, table A1 of the appendix), the threshold is that of Gopher.

Some definitions hold for all filters. Words are separated by white space (str.split). A letter is a character with str.isalpha. Empty lines
do not count. If more than half of a text is in a script without blanks (base/scripts.py), its filters count characters: two of them count
as a word. The module `languages` identifies the language.

A document that passes all filters costs about 0.1 ms per kilobyte. Half of this time is spent on words and pairs of words.
"""

import re
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from itertools import filterfalse, pairwise
from typing import NamedTuple

from niels_cache_assets.base.documents import Document
from niels_cache_assets.base.scripts import unspaced_characters
from niels_cache_assets.cleaning.languages import STOP_WORDS, Language, language_of, stop_words_in
from niels_cache_assets.cleaning.settings import REASONS, CleaningSettings

JUDGED_CHARACTERS = 1_000_000  # a list of words takes twenty times the memory of the text; more text would hardly change the result

_REDIRECT = re.compile(r"#redirect\b", re.IGNORECASE)
_MAY_REFER_TO = re.compile(
    r"\b(?:may|can|could|might|commonly|usually) (?:\w+ )?(?:refers?|stands?) (?:to|for)\b[^\n:]{0,80}:$", re.MULTILINE
)
_DISAMBIGUATION_CHARACTERS = 500  # a disambiguation page has the phrase in its first sentence
_SENTENCE_CHARACTERS = 100  # a longer line with a bullet is a paragraph
_PARAGRAPH_CHARACTERS = 80  # a shorter line is a heading, or a list item without its bullet
_SCRIPT_CHARACTERS = 2_000  # the beginning shows whether a text is written without blanks
_RUN_OF_LETTERS = re.compile(r"\w+")
BULLETS = (*"*•‣◦⁃∙▪●·・", "- ", "– ", "— ", "+ ")
_PARAGRAPH_END = re.compile(r"\n\s*\n")


class Rejection(NamedTuple):
    """A rejection, with the measured value (None if the filter measures nothing)."""

    value: float | None = None


class DocumentFacts:
    """A document, the settings of [cleaning], and values that several filters need, each computed when it is first used.

    `text` has the first JUDGED_CHARACTERS of the document, so a document of hundreds of megabytes does not need gigabytes of memory.
    """

    def __init__(self, document: Document, settings: CleaningSettings) -> None:
        self.document, self.settings = document, settings
        self.text = document.text[:JUDGED_CHARACTERS]
        self.identified_language: Language | None = None  # None if no filter has needed it

    @cached_property
    def words(self) -> list[str]:
        return self.text.split()

    @cached_property
    def lower_words(self) -> list[str]:
        return self.text.lower().split()

    @cached_property
    def lines(self) -> list[str]:
        """Non-empty lines, without surrounding white space."""
        return [line for line in map(str.strip, self.text.split("\n")) if line]

    @cached_property
    def is_unspaced(self) -> bool:
        """Whether more than half of the text's beginning, without white space, is in a script without blanks."""
        start = self.text[:_SCRIPT_CHARACTERS]
        unspaced = unspaced_characters(start)
        return bool(unspaced) and 2 * unspaced > sum(map(len, start.split()))

    @property
    def word_count(self) -> int:
        """Number of words. In a script without blanks, two characters count as a word."""
        return sum(map(len, self.words)) // 2 if self.is_unspaced else len(self.words)

    @cached_property
    def units(self) -> list[str]:
        """Words in lower case, or pairs of neighbouring characters in a script without blanks."""
        return list(map("".join, pairwise("".join(self.lower_words)))) if self.is_unspaced else self.lower_words

    @cached_property
    def pairs(self) -> Counter[tuple[str, str]]:
        """Number of occurrences of each pair of neighbouring units."""
        return Counter(pairwise(self.units))

    def language(self) -> Language:
        """Return the language of the text, which is identified only once."""
        if self.identified_language is None:
            self.identified_language = language_of(self.text, characters=self.settings.language_characters, wanted=self.settings.languages)
        return self.identified_language


Filter = Callable[[DocumentFacts], Rejection | None]


def redirect(facts: DocumentFacts) -> Rejection | None:
    """Reject a text that begins with `#REDIRECT`."""
    return Rejection() if _REDIRECT.match(facts.text) else None


def empty(facts: DocumentFacts) -> Rejection | None:
    """Reject a document that is empty after normalization."""
    return None if facts.text and not facts.text.isspace() else Rejection(0.0)


def disambiguation(facts: DocumentFacts) -> Rejection | None:
    """Reject a page whose title ends with "(disambiguation)", or that introduces a list with a phrase such as "may refer to:".

    The phrase, which may also be "can stand for:", must end a line near the beginning. A bullet, a line of fewer than 80 characters, or the
    end of the text must follow this line.
    """
    has_title = (facts.document.title or "").strip().lower().endswith("(disambiguation)")
    start = facts.text[:_DISAMBIGUATION_CHARACTERS]
    introduces_list = (" refer" in start or " stand" in start) and any(
        _is_followed_by_list(facts.text, found.end()) for found in _MAY_REFER_TO.finditer(start)
    )
    return Rejection() if has_title or introduces_list else None


def too_short(facts: DocumentFacts) -> Rejection | None:
    """Reject a text with too few characters or too few words. The value is the number of characters or words."""
    if len(facts.text) < facts.settings.min_characters:
        return Rejection(float(len(facts.text)))
    return Rejection(float(facts.word_count)) if facts.word_count < facts.settings.min_words else None


def list_page(facts: DocumentFacts) -> Rejection | None:
    """Reject a text in which too many lines begin with a bullet: *, •, or one of - – — + followed by a space.

    The value is the share of bulleted lines or of characters in bulleted lines of fewer than 100 characters, whichever is smaller.
    """
    return _above(bullet_share(facts), facts.settings.max_bullet_share)


def low_alpha_ratio(facts: DocumentFacts) -> Rejection | None:
    """Reject a text in which too few words contain a letter. In a script without spaces, punctuation separates words."""
    return _below(alpha_share(facts), facts.settings.min_alpha_word_share)


def bad_mean_word_len(facts: DocumentFacts) -> Rejection | None:
    """Reject a text whose mean word length is too low or too high. Scripts without spaces are exempt."""
    mean = mean_word_length(facts)
    return _below(mean, facts.settings.min_mean_word_length) or _above(mean, facts.settings.max_mean_word_length)


def high_symbol_ratio(facts: DocumentFacts) -> Rejection | None:
    """Reject a text with too many symbols per word. The symbols are `#` and ellipses (three dots or U+2026)."""
    return _above(symbols_per_word(facts), facts.settings.max_symbols_per_word)


def no_stopwords(facts: DocumentFacts) -> Rejection | None:
    """Reject a text with too few distinct stop words of its language, ignoring case.

    If the language is unknown, the one of `languages` with the most stop words in the text is used. Languages without a stop word list are
    exempt.
    """
    return _below(stop_words_found(facts), facts.settings.min_stopwords)


def repetitive(facts: DocumentFacts) -> Rejection | None:
    """Reject a text in which one word pair accounts for too large a share of all pairs.

    Pairs ignore case and must occur at least twice. In a script without spaces, runs of three characters are counted instead.

    Further rules of Gopher apply if their limits are set: the share of characters in the most frequent 2-, 3- and 4-gram, and the share of
    repeated lines and repeated paragraphs.
    """
    rejection = _above(pair_share(facts), facts.settings.max_bigram_share)
    for key, share in REPEATED.items():
        limit = getattr(facts.settings, key)
        if not rejection and limit is not None:
            rejection = _above(share(facts), limit)
    return rejection


def language_error(facts: DocumentFacts) -> Rejection | None:
    """Reject a text whose language cannot be identified, even from a longer excerpt."""
    return Rejection() if facts.language().code is None else None


def not_english(facts: DocumentFacts) -> Rejection | None:
    """Reject a text unless its beginning, its middle or a longer excerpt is in one of `languages`.

    The value is the probability of the identified language.
    """
    code, share = facts.language()
    return Rejection(share) if code is not None and code not in facts.settings.languages else None


_JUDGES: tuple[Filter, ...] = (
    redirect,
    empty,
    disambiguation,
    too_short,
    not_english,
    list_page,
    bad_mean_word_len,
    high_symbol_ratio,
    low_alpha_ratio,
    no_stopwords,
    repetitive,
    language_error,
)
FILTERS: tuple[tuple[str, Filter], ...] = tuple(zip(REASONS, _JUDGES, strict=True))  # (name, filter)


def _is_followed_by_list(text: str, position: int) -> bool:
    """Return whether the next non-empty line begins with a bullet, or is too short for a paragraph."""
    line = text[position : position + 2 * _PARAGRAPH_CHARACTERS].lstrip().partition("\n")[0]
    return line.startswith(BULLETS) or len(line) < _PARAGRAPH_CHARACTERS


def bullet_share(facts: DocumentFacts) -> float | None:
    """Return the smaller of two shares: lines that begin with a bullet, and characters in such lines that are short.

    None without lines. A tree of forty short names does not make a list of an article with two pages of prose.
    """
    items = [len(line) for line in facts.lines if line.startswith(BULLETS)]
    if not items:
        return _ratio(0, len(facts.lines))
    short = sum(size for size in items if size < _SENTENCE_CHARACTERS)
    return min(len(items) / len(facts.lines), short / sum(map(len, facts.lines)))


def alpha_share(facts: DocumentFacts) -> float | None:
    """Return the share of words that contain a letter, or None without words."""
    if facts.is_unspaced:
        runs = _RUN_OF_LETTERS.findall(facts.text)
        return sum(any(map(str.isalpha, run)) for run in runs) / max(len(runs), 1)
    mixed = list(filterfalse(str.isalpha, facts.words))  # most words have nothing but letters, which one call tells
    return _ratio(len(facts.words) - len(mixed) + sum(any(map(str.isalpha, word)) for word in mixed), len(facts.words))


def mean_word_length(facts: DocumentFacts) -> float | None:
    """Return the mean number of characters of a word, or None without words and in a script without blanks."""
    return None if facts.is_unspaced else _ratio(sum(map(len, facts.words)), len(facts.words))


def symbols_per_word(facts: DocumentFacts) -> float | None:
    """Return the number of `#` and ellipses per word, or None without words."""
    return _ratio(facts.text.count("#") + facts.text.count("...") + facts.text.count("…"), facts.word_count)


def stop_words_found(facts: DocumentFacts) -> float | None:
    """Return the number of distinct stop words, or None for a language without a list of them."""
    identified = facts.identified_language
    codes = (identified.code,) if identified is not None and identified.code in facts.settings.languages else facts.settings.languages
    if any(code not in STOP_WORDS for code in codes):
        return None
    return float(max(stop_words_in(facts.text, facts.lower_words, code) for code in codes if code is not None))


def pair_share(facts: DocumentFacts) -> float | None:
    """Return the share of the most frequent pair of words among all pairs, 0 if no pair occurs twice, or None without pairs."""
    most = max(facts.pairs.values(), default=0)
    return _ratio(most if most > 1 else 0, len(facts.units) - 1)


def most_frequent_pair(facts: DocumentFacts) -> str | None:
    """Return the most frequent pair of words, the alphabetically first of several, or None if no pair occurs twice."""
    most = max(facts.pairs.values(), default=0)
    return min(" ".join(pair) for pair, count in facts.pairs.items() if count == most) if most > 1 else None


def _repeated_paragraphs(facts: DocumentFacts) -> float | None:
    return _ratio(*_repeated([paragraph for paragraph in map(str.strip, _PARAGRAPH_END.split(facts.text)) if paragraph]))


# Further measures of `repetitive`, by the setting that limits them. A limit of None switches the rule off.
REPEATED: dict[str, Callable[[DocumentFacts], float | None]] = {
    **{
        f"max_top_{size}gram_characters": lambda facts, size=size: _ratio(*_top_ngram_characters(facts.units, size))  # type: ignore[misc]
        for size in (2, 3, 4)
    },
    "max_duplicate_lines": lambda facts: _ratio(*_repeated(facts.lines)),
    "max_duplicate_paragraphs": _repeated_paragraphs,
}


def _ratio(count: float, total: int) -> float | None:
    return count / total if total > 0 else None


def _above(value: float | None, limit: float) -> Rejection | None:
    """Return a rejection if the value is above the limit. None, which means that there is nothing to measure, is not rejected."""
    return Rejection(value) if value is not None and value > limit else None


def _below(value: float | None, limit: float) -> Rejection | None:
    """Return a rejection if the value is below the limit. None is not rejected."""
    return Rejection(value) if value is not None and value < limit else None


def _top_ngram_characters(words: list[str], size: int) -> tuple[int, int]:
    """Return (number of characters in the most frequent n-gram, number of characters in all words).

    Of several n-grams that are equally frequent, the longest is used. The first number is 0 if no n-gram occurs twice.
    """
    counts = Counter(zip(*(words[start:] for start in range(size)), strict=False))
    most = max(counts.values(), default=0)
    longest = max(sum(map(len, ngram)) for ngram, count in counts.items() if count == most) if most > 1 else 0
    return most * longest, sum(map(len, words))


def _repeated(parts: list[str]) -> tuple[int, int]:
    return len(parts) - len(set(parts)), len(parts)


class RejectedDocument(NamedTuple):
    """A rejected document.

    Attributes:
        document: The document after normalization.
        reason: Name of the filter.
        value: Value that the filter measured, or None.
    """

    document: Document
    reason: str
    value: float | None
