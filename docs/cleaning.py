"""Generate the tables of docs/cleaning.md from the code; the text around them is written by hand.

python docs/cleaning.py            (a test fails while the file is out of date)
"""

import json
import re
from pathlib import Path
from types import FunctionType

import numpy as np

from niels_cache_assets.cleaning.settings import CleaningSettings
from niels_cache_assets.dedup.bands import choose_bands
from niels_cache_assets.dedup.settings import DedupSettings
from niels_cache_cleaning.filters import FILTERS, RULES
from niels_cache_cleaning.languages import STOP_WORDS
from niels_cache_cleaning.normalizers import NORMALIZERS

TARGET = Path(__file__).with_suffix(".md")

# Per filter without a limit: the keys that decide it, and where the rule comes from.
FILTER_ORIGINS: dict[str, tuple[tuple[str, ...], str]] = {
    "redirect": ((), "MediaWiki"),
    "empty": ((), "pages that contain only markup"),
    "disambiguation": ((), "MediaWiki"),
    "language_error": (("language_characters",), "as for `not_english`"),
    "not_english": (
        ("languages", "language_characters"),
        "C4 uses langdetect; we use langdetect-rs, which implements the same algorithm",
    ),
}

# Per filter with limits, which are in RULES: what it rejects, and where the rule comes from.
LIMITED: dict[str, tuple[str, str]] = {
    "too_short": (
        "Reject a text with too few characters or too few words. The value is the number of characters or words.",
        "50 words: Gopher; 400 characters (about 70 English words): our own",
    ),
    "list_page": (
        "Reject a text in which too many lines begin with a bullet: *, •, or one of - – — + followed by a space. The value is the share of "
        "bulleted lines or of characters in bulleted lines of fewer than 100 characters, whichever is smaller.",
        "Gopher allows 90%; stricter here because encyclopedias contain many lists",
    ),
    "bad_mean_word_len": (
        "Reject a text whose mean word length is too low or too high. Scripts without spaces are exempt.",
        "Gopher allows 10; wider here to allow for technical terms",
    ),
    "high_symbol_ratio": (
        "Reject a text with too many symbols per word. The symbols are `#` and ellipses (three dots or U+2026).",
        "Gopher measures the two symbols separately",
    ),
    "low_alpha_ratio": (
        "Reject a text in which too few words contain a letter. In a script without spaces, punctuation separates words.",
        "Gopher",
    ),
    "no_stopwords": (
        "Reject a text with too few distinct stop words of its language, ignoring case. If the language is unknown, the one of `languages` "
        "with the most stop words in the text is used. Languages without a stop word list are exempt.",
        f"English: Gopher ({', '.join(sorted(STOP_WORDS['en']))}); our own lists for {', '.join(sorted(STOP_WORDS.keys() - {'en'}))}",
    ),
    "repetitive": (
        "Reject a text in which one word pair accounts for too large a share of all pairs. Pairs ignore case and must occur at least "
        "twice. In a script without spaces, runs of three characters are counted instead. Further rules of Gopher apply if their "
        "limits are set: the share of characters in the most frequent 2-, 3- and 4-gram, and the share of repeated lines and repeated "
        "paragraphs.",
        "word pairs: our own rule, similar to Gopher's top 2-gram; other limits: Gopher",
    ),
}


def rule_text(function: object) -> str:
    """Return the docstring of a rule as a cell."""
    assert isinstance(function, FunctionType)
    return cell(" ".join((function.__doc__ or "").split()))


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def normalizer_table() -> str:
    rows = [f"| `{name}` | {rule_text(function)} |" for name, function in NORMALIZERS]
    return "\n".join(["| normalizer | effect |", "| --- | --- |", *rows])


def rule_table() -> str:
    """Return the table of filters in order. Every filter needs an origin; one without raises KeyError."""
    defaults = CleaningSettings().model_dump(mode="json")
    rows = []
    for reason, judge in FILTERS:
        if reason in LIMITED:
            keys, (text, origin) = tuple(rule.key for rule in RULES if rule.reason == reason), map(cell, LIMITED[reason])
        else:
            text, (keys, origin) = rule_text(judge), FILTER_ORIGINS[reason]
        settings = "<br>".join(f"`{key} = {json.dumps(defaults[key])}`" if defaults[key] is not None else f"`{key}` (off)" for key in keys)
        rows.append(f"| `{reason}` | {text} | {settings} | {cell(origin)} |")
    return "\n".join(["| reason | rule | keys and defaults | source |", "| --- | --- | --- | --- |", *rows])


def bands_text() -> str:
    settings = DedupSettings()
    bands, rows = choose_bands(settings.threshold, settings.num_perm)
    return f"{bands} bands of {rows} rows ({settings.num_perm} slots, threshold {settings.threshold})"


def s_curve(bands: int, rows: int, similarity: np.ndarray) -> np.ndarray:
    """Return the probability that two documents of a given similarity share at least one band (dedup/bands.py)."""
    return 1 - (1 - similarity**rows) ** bands


def curve_table() -> str:
    settings = DedupSettings()
    similarities = np.array([0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0])
    found = s_curve(*choose_bands(settings.threshold, settings.num_perm), similarities)
    heading = "| similarity of a pair | " + " | ".join(f"{similarity:.2f}" for similarity in similarities) + " |"
    rule = "| --- " * (len(similarities) + 1) + "|"
    return "\n".join([heading, rule, "| probability of being found | " + " | ".join(f"{share:.1%}" for share in found) + " |"])


def page(text: str) -> str:
    """Return the page with its tables generated again."""
    for name, made in (
        ("normalizers", f"\n{normalizer_table()}\n"),
        ("rules", f"\n{rule_table()}\n"),
        ("bands", bands_text()),
        ("curve", f"\n{curve_table()}\n"),
    ):
        text, count = re.subn(
            rf"(<!-- {name} -->).*?(<!-- /{name} -->)", lambda marks, made=made: f"{marks[1]}{made}{marks[2]}", text, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"{TARGET.name}: has {count} places for {name}, not one")
    return text


if __name__ == "__main__":
    TARGET.write_text(page(TARGET.read_text(encoding="utf-8")), encoding="utf-8")
