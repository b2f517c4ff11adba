"""The thresholds of cleaning: table [cleaning], and `cleaning = {...}` of a data set for what it needs otherwise."""

import difflib
import re
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from niels_cache_assets.cleaning.reasons import REASONS

_NEVER_SKIPPED = {
    "empty": "a document without text has nothing to keep",
    "unreadable": "a document with lone surrogates cannot be written",
}


class CleaningSettings(BaseModel):
    """[cleaning]: thresholds of the filters, for every data set with `prepare = ["clean", ...]`.

    A data set's own `cleaning = {...}` replaces keys. Where a threshold comes from: docs/cleaning.md.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    skip: tuple[str, ...] = Field(
        (), strict=False, description="Reasons that are not looked for ('not_english'), and normalizers that do not run ('tags', 'blanks')"
    )
    min_characters: int = Field(400, ge=0, description="too_short: fewer characters than this")
    min_words: int = Field(50, ge=0, description="too_short: fewer words than this")
    max_bullet_share: float = Field(0.5, ge=0, le=1, description="list_page: a larger share of the lines are bullets")
    min_alpha_word_share: float = Field(0.8, ge=0, le=1, description="low_alpha_ratio: a smaller share of the words has a letter")
    min_mean_word_length: float = Field(3, ge=0, description="bad_mean_word_len: shorter words on average, in characters")
    max_mean_word_length: float = Field(12, ge=0, description="bad_mean_word_len: longer words on average, in characters")
    max_symbols_per_word: float = Field(0.1, ge=0, description="high_symbol_ratio: more # and ellipses per word")
    min_stopwords: int = Field(2, ge=0, description="no_stopwords: fewer different English stop words")
    max_bigram_share: float = Field(0.05, ge=0, le=1, description="repetitive: one pair of words makes a larger share of all pairs")
    max_top_2gram_characters: float | None = Field(None, ge=0, le=1, description="repetitive: share of characters in the top word pair")
    max_top_3gram_characters: float | None = Field(None, ge=0, le=1, description="The same for three words")
    max_top_4gram_characters: float | None = Field(None, ge=0, le=1, description="The same for four words")
    max_duplicate_lines: float | None = Field(None, ge=0, le=1, description="repetitive: share of lines that were there before")
    max_duplicate_paragraphs: float | None = Field(None, ge=0, le=1, description="repetitive: share of paragraphs that were there before")
    languages: tuple[str, ...] = Field(("en",), strict=False, min_length=1, description="Languages that stay, as ISO 639-1 codes")
    language_characters: int = Field(400, ge=1, description="The language is told from this many first characters")
    max_reason_share: float = Field(0.5, gt=0, le=1, description="A reason that takes more of the documents is a warning")
    min_language_share: float = Field(0.5, ge=0, le=1, description="A smaller share in `languages`, of those asked, is a warning")

    @field_validator("skip")
    @classmethod
    def _skips_what_there_is(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        from niels_cache_assets.cleaning.normalizers import NORMALIZERS  # compiles its patterns, for those alone who skip something

        skippable = [name for name in (*REASONS, *dict(NORMALIZERS)) if name not in _NEVER_SKIPPED]
        for name in value:
            if name in _NEVER_SKIPPED:
                raise ValueError(f"{name!r} cannot be skipped: {_NEVER_SKIPPED[name]}")
            if name not in skippable:
                near = difflib.get_close_matches(name, skippable, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(skippable)}"
                raise ValueError(f"no reason or normalizer {name!r}; {hint}")
        return value

    @field_validator("languages")
    @classmethod
    def _are_codes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for code in value:
            if not re.fullmatch("[a-z]{2,3}", code):
                raise ValueError(f"{code!r} is no language code; write ISO 639 codes such as 'en', 'de', 'zh'")
        return value

    @model_validator(mode="after")
    def _word_lengths_in_order(self) -> Self:
        if self.min_mean_word_length > self.max_mean_word_length:
            raise ValueError("min_mean_word_length is above max_mean_word_length")
        return self

    def with_changes(self, changes: dict[str, Any]) -> Self:
        """These settings with the keys of a data set's own table in them, checked again (pydantic.ValidationError)."""
        return type(self).model_validate({**self.model_dump(), **changes})
