"""The canonical text of a document, which defines "the same text". It is in lower case, without punctuation, and with single blanks between
words.

First the text is read as a browser shows it (`as_seen`): HTML entities become characters, an accent that follows its letter becomes one
character with it, and ligatures become letters. Then each code point has one rule. All rules are in one table (`code_points`), which the
pure Python code and the compiled kernel share:

* removed: Unicode's punctuation (P*), the ASCII symbols of `string.punctuation` ($+<=>^`|~) and characters that stand for an apostrophe or
  a minus, control characters except white space (NULs), format characters (Cf: soft hyphen, zero width blank, marks of direction),
  variation selectors, accents that have no character together with their letter, lone surrogates. Nothing replaces them: `don't` becomes
  `dont`.
* blank: white space, the separators Zs, Zl, Zp and the white space among the control characters. A run of them becomes one blank. At the
  beginning and the end of a text they are removed.
* All other code points stay: other symbols, digits, combining marks, emoji. A code point becomes its compatible form (NFKC: full-width
  digits and letters, letters of formulas, superscripts) and its lower case, if that is also one code point.
* A character of a script without blanks (scripts.py) becomes a word of its own: blanks are put around it. So a shingle of such a text is a
  run of characters.

Categories, case and forms are those of Unicode 3.2 (`unicodedata.ucd_3_2_0`), which every Python has. The format characters are those of
Unicode 16. So digests and signatures do not depend on the Python version. Other code points that Unicode added after 3.2 stay unchanged.

The table takes about 0.2 s, once in each process. In pure Python, ASCII text takes 6 us/KB, and other text takes 60 us/KB. For many
documents use `signatures.Signer`, whose kernel computes the same text. This module computes no hashes.
"""

import html
import re
import string
from functools import lru_cache
from html.entities import html5

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.scripts import UNSPACED

REMOVED = 0
BLANK = ord(" ")
ALONE = 1 << 24  # added to an entry of the table: the character is a word of its own
COMPOSE = 1 << 25  # added to an entry of the marked table: the text has to be composed first
CODE_POINTS = 0x110000
# Most code points are here: ideographs, Hangul, private use, unassigned. All of them stay. A test checks this.
_UNCHANGED = (
    (0x3400, 0xD800),
    (0xE000, 0xF900),
    (0x13460, 0x1BC00),
    (0x1D800, 0x2F800),
    (0x2FA20, 0xE0000),
    (0xE0200, CODE_POINTS),
)
_CONTROL_BLANKS = frozenset("\t\n\v\f\r\x1c\x1d\x1e\x1f\x85")
_LIKE_PUNCTUATION = frozenset(string.punctuation + "\u00b4\u02b9\u02bb\u02bc\u2212")  # acute, letters used as apostrophes, minus
# Ranges (first, end) of characters that are not seen. Format characters (Cf) of Unicode 16:
_FORMAT = (
    (0x00AD, 0x00AE),
    (0x0600, 0x0606),
    (0x061C, 0x061D),
    (0x06DD, 0x06DE),
    (0x070F, 0x0710),
    (0x0890, 0x0892),
    (0x08E2, 0x08E3),
    (0x180E, 0x180F),
    (0x200B, 0x2010),
    (0x202A, 0x202F),
    (0x2060, 0x2070),
    (0xFEFF, 0xFF00),
    (0xFFF9, 0xFFFC),
    (0x110BD, 0x110BE),
    (0x110CD, 0x110CE),
    (0x13430, 0x13440),
    (0x1BCA0, 0x1BCA4),
    (0x1D173, 0x1D17B),
    (0xE0000, 0xE0080),
)
_SELECTORS = ((0x180B, 0x180E), (0x180F, 0x1810), (0xFE00, 0xFE10), (0xE0100, 0xE01F0))  # variation selectors
# Accents. Those that have a character together with their letter are gone after `as_seen`.
_ACCENTS = ((0x0300, 0x0370), (0x0653, 0x0656), (0x3099, 0x309B), (0xFF9E, 0xFFA0))
_VANISHING = frozenset(code_point for limits in (*_FORMAT, *_SELECTORS, *_ACCENTS) for code_point in range(*limits))

_ENTITY = re.compile(r"&(?:amp;)*(#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
# Characters that `composed` changes: accents, hamza and madda, vowels of Hangul, the two marks of kana (also of half width), ligatures.
TO_COMPOSE = ((0x0300, 0x0380), (0x0653, 0x0656), (0x1140, 0x1180), (0x3099, 0x309B), (0xFB00, 0xFB40), (0xFF9E, 0xFFA0))
_HAS_TO_COMPOSE = re.compile("[" + "".join(f"{chr(first)}-{chr(end - 1)}" for first, end in TO_COMPOSE) + "]")


def canonical_code_point(code_point: int) -> int:
    """Return the replacement of a code point, which is REMOVED, BLANK, or the code point in compatible form and lower case."""
    from unicodedata import ucd_3_2_0

    character = chr(code_point)
    if code_point in _VANISHING:
        return REMOVED
    category = ucd_3_2_0.category(character)
    if category in {"Zs", "Zl", "Zp"} or character in _CONTROL_BLANKS:
        return BLANK
    if category[0] == "P" or category in {"Cc", "Cf", "Cs"} or character in _LIKE_PUNCTUATION:
        return REMOVED
    compatible = ucd_3_2_0.normalize("NFKC", character)
    if len(compatible) == 1 and compatible != character:
        return canonical_code_point(ord(compatible))
    lower = character.lower()
    if category == "Cn" or len(lower) != 1 or ucd_3_2_0.category(lower) == "Cn":
        return code_point
    return ord(lower)


@lru_cache(maxsize=1)
def code_points() -> NDArray[np.uint32]:
    """Return a table with `canonical_code_point` of every code point: (0x110000,) uint32, read-only. It is computed once a process.

    ALONE is added to the entries that are characters of a script without blanks.
    """
    table = np.arange(CODE_POINTS, dtype=np.uint32)
    start = 0
    for first, end in _UNCHANGED:
        table[start:first] = [canonical_code_point(code_point) for code_point in range(start, first)]
        start = end
    bounds = np.array([bound for limits in UNSPACED for bound in limits], dtype=np.uint32)
    table[np.searchsorted(bounds, table, side="right") % 2 == 1] += np.uint32(ALONE)
    table.flags.writeable = False
    return table


@lru_cache(maxsize=1)
def marked_code_points() -> NDArray[np.uint32]:
    """Return `code_points`, with COMPOSE added to the entries of characters that `composed` changes."""
    table = code_points().copy()
    for first, end in TO_COMPOSE:
        table[first:end] += np.uint32(COMPOSE)
    table.flags.writeable = False
    return table


def as_seen(text: str) -> str:
    """Return a text with its HTML entities decoded, its accents composed (NFC of Unicode 3.2), and its ligatures spelled out.

    The words of the result are those of the text: a blank stays where it is.
    """
    text = without_entities(text)
    return text if text.isascii() or _HAS_TO_COMPOSE.search(text) is None else composed(text)


def without_entities(text: str) -> str:
    """Return a text with its HTML entities decoded."""
    return _ENTITY.sub(_in_place_of_entity, text)


def composed(text: str) -> str:
    """Return a text with its accents composed (NFC of Unicode 3.2), and its ligatures spelled out."""
    from unicodedata import ucd_3_2_0

    return ucd_3_2_0.normalize("NFC", text.translate(_spelled_out()))


def _in_place_of_entity(found: re.Match[str]) -> str:
    """Return the character that an entity stands for. An unknown name stays."""
    name = found[1] + ";"
    return html.unescape("&" + name) if name[0] == "#" else html5.get(name, found[0])


@lru_cache(maxsize=1)
def _spelled_out() -> dict[int, str]:
    """Return the letters of ligatures, and the characters of full width for katakana and their marks of half width."""
    from unicodedata import ucd_3_2_0

    return {code_point: ucd_3_2_0.normalize("NFKC", chr(code_point)) for code_point in (*range(0xFB00, 0xFB07), *range(0xFF66, 0xFFA0))}


class _Translation(dict[int, str | None]):
    """The table in the form that `str.translate` takes. It contains only the code points that have occurred so far."""

    def __missing__(self, code_point: int) -> str | None:
        canonical = int(code_points()[code_point])
        if canonical >= ALONE:
            self[code_point] = f" {chr(canonical - ALONE)} "
        else:
            self[code_point] = None if canonical == REMOVED else chr(canonical)
        return self[code_point]


@lru_cache(maxsize=1)
def _ascii_translation() -> tuple[bytes, bytes]:
    """Return the table for bytes.translate, and the bytes to remove."""
    table = code_points()[:256].astype(np.uint8)  # bytes from 128 on do not occur in ASCII
    return table.tobytes(), bytes(code_point for code_point in range(128) if table[code_point] == REMOVED)


_translation = _Translation()


def canonical_text(text: str) -> str:
    """Return the canonical form of a text, which is words with one blank between them, or "" if nothing remains."""
    text = as_seen(text)
    if text.isascii():
        table, removed = _ascii_translation()
        return b" ".join(text.encode("ascii").translate(table, removed).split()).decode("ascii")
    return " ".join(word for word in text.translate(_translation).split(" ") if word)
