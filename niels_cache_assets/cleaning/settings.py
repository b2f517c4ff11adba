"""The schema of [cleaning], and the names of filters, normalizers, masks and languages."""

import re
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from niels_cache_assets.base.reasons import reasons_of
from niels_cache_assets.base.schema import Share, Table, Words
from niels_cache_runtime.errors import did_you_mean

LANGUAGES = (  # that cleaning/languages.py can identify
    "af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr ne nl no pa pl pt ro ru sk sl so sq sv "
    "sw ta te th tl tr uk ur vi zh"
)
REASONS = reasons_of("cleaning")  # names of the filters, in the order in which they run
NORMALIZERS = (  # names of the steps from markup to text, in the order in which they run
    "unreadable",
    "entities",
    "file_links",
    "templates",
    "tables",
    "tags",
    "links",
    "external_links",
    "headings",
    "blanks",
)
MASKS = ("email", "ip", "phone", "key")  # kinds of personal data and secrets that `mask` finds
_NEVER_SKIPPED = {"empty": "a document without text has nothing to keep", "unreadable": "a document with lone surrogates cannot be written"}


class CleaningSettings(Table):
    """[cleaning]: filter thresholds, with drop reasons in parentheses, for every data set with `prepare = ["clean", ...]`.

    `cleaning = {...}` in the table of a data set replaces keys. docs/cleaning.md names the source of each threshold.
    """

    skip: Words = ()
    """Filters to skip, by drop reason, such as 'not_english', and normalizers, such as 'tags' and 'blanks'"""
    mask: tuple[Literal["email", "ip", "phone", "key"], ...] = Field((), strict=False)
    """Personal data and secrets to mask: 'email' replaces addresses with [email]; 'ip', 'phone' and 'key' work the same way"""
    min_characters: int = Field(400, ge=0)
    """Drop documents with fewer characters (too_short)"""
    min_words: int = Field(50, ge=0)
    """Drop documents with fewer words (too_short)"""
    max_bullet_share: Share = 0.5
    """Drop documents in which bulleted lines make up a larger share of both lines and characters (list_page)"""
    min_alpha_word_share: Share = 0.8
    """Drop documents in which a smaller share of words contains a letter (low_alpha_ratio)"""
    min_mean_word_length: float = Field(3, ge=0)
    """Drop documents with a lower mean word length, in characters (bad_mean_word_len)"""
    max_mean_word_length: float = Field(12, ge=0)
    """Drop documents with a higher mean word length, in characters (bad_mean_word_len)"""
    max_symbols_per_word: float = Field(0.1, ge=0)
    """Drop documents with more # signs and ellipses per word (high_symbol_ratio)"""
    min_stopwords: int = Field(2, ge=0)
    """Drop documents with fewer distinct stop words of their language (no_stopwords)"""
    max_bigram_share: Share = 0.05
    """Drop documents in which a single word pair makes up a larger share of all word pairs (repetitive)"""
    max_top_2gram_characters: Share | None = None
    """Drop documents in which the most frequent word pair makes up a larger share of characters (repetitive)"""
    max_top_3gram_characters: Share | None = None
    """Drop documents in which the most frequent three-word phrase makes up a larger share of characters (repetitive)"""
    max_top_4gram_characters: Share | None = None
    """Drop documents in which the most frequent four-word phrase makes up a larger share of characters (repetitive)"""
    max_duplicate_lines: Share | None = None
    """Drop documents in which duplicate lines make up a larger share of all lines (repetitive)"""
    max_duplicate_paragraphs: Share | None = None
    """Drop documents in which duplicate paragraphs make up a larger share of all paragraphs (repetitive)"""
    languages: Words = Field(("en",), min_length=1)
    """Languages to keep, as ISO 639-1 codes"""
    language_characters: int = Field(400, ge=1, le=1_000)
    """Number of characters at the start of a document from which to identify its language. If that language is not in `languages`, the
    middle and ten times as many characters are also tried"""
    max_reason_share: float = Field(0.5, gt=0, le=1)
    """Warn if a single reason drops a larger share of the documents"""
    min_language_share: Share = 0.5
    """Warn if `languages` covers a smaller share of the documents whose language was identified"""

    @field_validator("skip")
    @classmethod
    def _check_skip(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        skippable = [name for name in (*REASONS, *NORMALIZERS) if name not in _NEVER_SKIPPED]
        for name in value:
            if name in _NEVER_SKIPPED:
                raise ValueError(f"{name!r} cannot be skipped: {_NEVER_SKIPPED[name]}")
            if name not in skippable:
                hint = did_you_mean(name, skippable, f"choose from {', '.join(skippable)}")
                raise ValueError(f"no reason or normalizer {name!r}; {hint}")
        return value

    @field_validator("languages")
    @classmethod
    def _check_language_codes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for code in value:
            if not re.fullmatch("[a-z]{2,3}", code):
                raise ValueError(f"{code!r} is not a language code; write ISO 639 codes such as 'en', 'de', 'zh'")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        unknown = [code for code in self.languages if code not in LANGUAGES.split()]
        if unknown and "not_english" not in self.skip:
            raise ValueError(
                f"languages: {unknown[0]!r} is a language that cannot be identified; choose from {LANGUAGES}, or skip not_english"
            )
        if self.min_mean_word_length > self.max_mean_word_length:
            raise ValueError("min_mean_word_length is above max_mean_word_length")
        return self

    def with_changes(self, changes: dict[str, Any]) -> Self:
        """Return these settings with some keys replaced.

        Raises:
            pydantic.ValidationError: If the new settings are invalid.
        """
        return type(self).model_validate({**self.model_dump(), **changes})
