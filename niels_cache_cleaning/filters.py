"""Filters, each of which looks at one normalized document and returns a rejection or None.

The first rejection counts, so cheap filters run first. The name of a filter is also the reason of its rejections, and its position in the
cleaning stage of `base.reasons` decides when it runs. To add a filter that compares a measure with a limit, add a row to RULES; the limit
is in the settings of cleaning. To add any other filter, write a function that takes the facts about a document, and add it to
`_WITHOUT_LIMIT`. If Gopher has a rule (Rae et al. 2021, https://arxiv.org/abs/2112.11446, table A1 of the appendix), the limit
is that of Gopher.

Some definitions hold for all filters. Words are separated by white space (str.split). A letter is a character with str.isalpha. Empty lines
do not count. If more than half of a text is in a script without blanks (`base.scripts`), its filters count characters: two of them count
as a word. The module `languages` identifies the language.

A document that passes all filters costs about 0.1 ms per kilobyte. Half of this time is spent on words and pairs of words.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import filterfalse, pairwise
from typing import Literal, NamedTuple

from niels_cache_assets.base.documents import Document
from niels_cache_assets.base.scripts import unspaced_characters
from niels_cache_assets.cleaning.measures import Side
from niels_cache_assets.cleaning.settings import REASONS, CleaningSettings
from niels_cache_cleaning.languages import STOP_WORDS, Language, language_of, stop_words_in

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


def language_error(facts: DocumentFacts) -> Rejection | None:
    """Reject a text whose language cannot be identified, even from a longer excerpt."""
    return Rejection() if facts.language().code is None else None


def not_english(facts: DocumentFacts) -> Rejection | None:
    """Reject a text unless its beginning, its middle or a longer excerpt is in one of `languages`.

    The value is the probability of the identified language.
    """
    code, share = facts.language()
    return Rejection(share) if code is not None and code not in facts.settings.languages else None


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
    return _repeated([paragraph for paragraph in map(str.strip, _PARAGRAPH_END.split(facts.text)) if paragraph])


def _ratio(count: float, total: int) -> float | None:
    return count / total if total > 0 else None


def _top_ngram_characters(size: int, facts: DocumentFacts) -> float | None:
    """Return the share of the characters of all words in the most frequent n-gram, 0 if no n-gram occurs twice, or None without words.

    Of several n-grams that are equally frequent, the longest is used.
    """
    counts = Counter(zip(*(facts.units[start:] for start in range(size)), strict=False))
    most = max(counts.values(), default=0)
    longest = max(sum(map(len, ngram)) for ngram, count in counts.items() if count == most) if most > 1 else 0
    return _ratio(most * longest, sum(map(len, facts.units)))


def _repeated(parts: list[str]) -> float | None:
    return _ratio(len(parts) - len(set(parts)), len(parts))


class FilterRule(NamedTuple):
    """A limit of [cleaning].

    Attributes:
        key: The setting. If it is None, the rule is switched off.
        reason: The filter.
        side: On which side of the limit documents are dropped.
        form: A count is a whole number, and a share is between 0 and 1.
        measure: Returns the value of a document, or None if there is nothing to measure; then the document is kept.
    """

    key: str
    reason: str
    side: Side
    form: Literal["count", "share", "number"]
    measure: Callable[[DocumentFacts], float | None]

    def drops(self, value: float, limit: float) -> bool:
        """Return whether a value is beyond a limit."""
        return value > limit if self.side == "above" else value < limit


# The rules of a filter stand together, in the order in which they are tried.
RULES: tuple[FilterRule, ...] = (
    FilterRule("min_characters", "too_short", "below", "count", lambda facts: float(len(facts.text))),
    FilterRule("min_words", "too_short", "below", "count", lambda facts: float(facts.word_count)),
    FilterRule("max_bullet_share", "list_page", "above", "share", bullet_share),
    FilterRule("min_mean_word_length", "bad_mean_word_len", "below", "number", mean_word_length),
    FilterRule("max_mean_word_length", "bad_mean_word_len", "above", "number", mean_word_length),
    FilterRule("max_symbols_per_word", "high_symbol_ratio", "above", "number", symbols_per_word),
    FilterRule("min_alpha_word_share", "low_alpha_ratio", "below", "share", alpha_share),
    FilterRule("min_stopwords", "no_stopwords", "below", "count", stop_words_found),
    FilterRule("max_bigram_share", "repetitive", "above", "share", pair_share),
    FilterRule("max_top_2gram_characters", "repetitive", "above", "share", partial(_top_ngram_characters, 2)),
    FilterRule("max_top_3gram_characters", "repetitive", "above", "share", partial(_top_ngram_characters, 3)),
    FilterRule("max_top_4gram_characters", "repetitive", "above", "share", partial(_top_ngram_characters, 4)),
    FilterRule("max_duplicate_lines", "repetitive", "above", "share", lambda facts: _repeated(facts.lines)),
    FilterRule("max_duplicate_paragraphs", "repetitive", "above", "share", _repeated_paragraphs),
)


def _beyond_limit(rules: Sequence[FilterRule], facts: DocumentFacts) -> Rejection | None:
    """Reject a document for the first of these rules whose limit its value is beyond."""
    for rule in rules:
        limit = getattr(facts.settings, rule.key)
        value = None if limit is None else rule.measure(facts)
        if value is not None and rule.drops(value, limit):
            return Rejection(value)
    return None


_WITHOUT_LIMIT: dict[str, Filter] = {judge.__name__: judge for judge in (redirect, empty, disambiguation, not_english, language_error)}
FILTERS: tuple[tuple[str, Filter], ...] = tuple(  # (name, filter)
    (reason, _WITHOUT_LIMIT.get(reason) or partial(_beyond_limit, [rule for rule in RULES if rule.reason == reason])) for reason in REASONS
)
