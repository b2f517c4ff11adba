"""The canonical text of a document, which defines "the same text".

It keeps what distinguishes numbers, formulas and code, and drops what differs between copies of the same prose. Exact and near duplicates,
`decontaminate`, `decontaminate_against` and the check of the splits of a cache use this form, and no other. The rules, in order:

1. The text is read as a browser shows it: HTML entities become characters, an accent that follows its letter becomes one
   character with it, and ligatures become letters. `&lt;b&gt;` is `<b>`.
2. A code point becomes its compatible form (NFKC: full-width digits and letters, letters of formulas) and its lower case, if that is also
   one code point. Superscripts and subscripts are kept: `10²` is not `102`.
3. Removed: control characters except white space (NULs), format characters (Cf: soft hyphen, zero width blank, marks of direction),
   variation selectors, lone surrogates, and `¡ ¿`. A mark that forms no character with its letter is kept: `x̄` is not `x`.
4. Quotes (`"`, `'`, the backtick, the acute, primes, Pi, Pf, low quotes, letters used as apostrophes) are removed. Directly between two
   digits, they become one `'`: `5'10"` is not `510`.
5. White space (Zs, Zl, Zp and white space among the control characters) becomes a blank. A run of blanks is one blank, and there is none at
   the beginning and at the end.
6. Dashes (Pd, U+2212) become `-`. Two or more in a row become one between words, with a blank on both sides or on none: `a--b`, `a — b`
   and `a - b` are the same. In `ls --all` and `i--`, both dashes are kept.
7. Sentence marks (`. , ; : ! ?`; those of other scripts become one of these; `…` is `...`): one mark, or several equal ones in a row, is a
   blank after a letter, a digit or a closing bracket, if white space or the end of the text follows. It is always a blank beside a
   character of a script without blanks. Anywhere else, it is a sign: `1.5`, `.5`, `a.b`, `12:30`, `x[1:]`, `!!!`.
8. Signs (all other P*, Sm, Sc, Sk except `_`) are kept. A sign begins a word, and no blank follows it: `x=y+z` and `x = y + z` are
   `x =y +z`. So a shingle covers as much text as one of prose.
9. A character of a script without blanks (base/scripts.py) is a word of its own: blanks are put around it, but none after a sign. So a
   shingle of such a text is a run of characters.
10. All other code points are letters of words: `_`, digits, combining marks, other symbols, emoji.

So these are equal: `5! = 120` and `5 = 120`, `6'` and `6"`, `x="a"` and `x=a`, `foo(1, 2)` and `foo(1 2)`, `1--2` and `1-2`. These are not
equal, but near in a longer text: `re-open` and `reopen`, `**bold**` and `bold`, `(see x)` and `see x`, `etc.,` and `etc.`. A text of which
nothing is left (only quotes, say) equals only an identical text (signatures.py).

Rules 4 to 9 depend on a code point, the visible ones before it and those after it. All facts about code points are in one table
(`code_points`). Categories, case and forms are those of Unicode 3.2 (`unicodedata.ucd_3_2_0`), which every Python has. The format
characters are those of Unicode 16. So digests and signatures do not depend on the Python version. Other code points that Unicode added
after 3.2 are left unchanged.

The table takes about 0.2 s, once in each process. `signatures.Signer` computes the canonical text of documents (`canonical_kernels`);
tests/helpers/plain_signatures.py does the same in plain Python.
"""

import html
import re
from functools import lru_cache
from html.entities import html5
from unicodedata import ucd_3_2_0

import numpy as np

from niels_cache_assets.base.scripts import UNSPACED
from niels_cache_runtime.format.layout import Uint32s

REMOVED = 0
BLANK = ord(" ")
# Kinds of code points, added to an entry of the table. Without a kind, a code point is a letter of a word, BLANK or REMOVED.
ALONE = 1 << 24  # a character that is a word of its own
SIGN = 2 << 24
CLOSING = 3 << 24  # a closing bracket, which is a sign
DASH = 4 << 24
MARK = 5 << 24  # a sentence mark
QUOTE = 6 << 24
COMPOSE = 1 << 28  # added to an entry of the marked table: the text has to be composed first
CODE_POINTS = 0x110000
ELLIPSIS = 0x2026
# Most code points are here: ideographs, Hangul, private use, unassigned. All of them are unchanged. A test checks this.
_UNCHANGED = ((0x3400, 0xD800), (0xE000, 0xF900), (0x13460, 0x1BC00), (0x1D800, 0x2F800), (0x2FA20, 0xE0000), (0xE0200, CODE_POINTS))
_CONTROL_BLANKS = frozenset("\t\n\v\f\r\x1c\x1d\x1e\x1f\x85")
# Quotes that are neither Pi nor Pf: ASCII, acute, letters used as apostrophes, Armenian and Hebrew marks, low quotes, primes.
_QUOTES = frozenset(
    "'\"`\u00b4\u02b9\u02ba\u02bb\u02bc\u02ee\u055a\u05f3\u05f4\u201a\u201e\u2032\u2033\u2034\u2035\u2036\u2037\u2057\u301d\u301e\u301f"
)
# Sentence marks: ASCII, Armenian, Arabic, Devanagari, Tibetan, Burmese, Ethiopic, Khmer, Chinese and Japanese.
_MARKS = {mark: mark for mark in ".,;:!?"} | {
    mark: ascii_mark
    for ascii_mark, marks in {
        ".": "\u0589\u06d4\u0964\u0965\u0f0d\u0f0e\u104b\u1362\u17d4\u17d5\u3002",
        ",": "\u055d\u060c\u104a\u1363\u3001",
        ";": "\u061b\u1364",
        ":": "\u1365\u1366",
        "!": "\u055c",
        "?": "\u055e\u061f\u1367",
        chr(ELLIPSIS): chr(ELLIPSIS),
    }.items()
    for mark in marks
}
_OPENING_MARKS = "\u00a1\u00bf"
_SYLLABLE_MARKS = "\u0f0b\u0f0c"  # Tibetan
# Invisible characters: format characters (Cf) of Unicode 16, variation selectors, and the combining grapheme joiner.
_INVISIBLE = re.compile(
    "[\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef\u034f]"
)

_ENTITY = re.compile(r"&(?:amp;)*(#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
# Characters that `compose` changes: accents, hamza and madda, vowels of Hangul, the two marks of kana (also of half width), ligatures.
TO_COMPOSE = ((0x0300, 0x034F), (0x0350, 0x0380), (0x0653, 0x0656), (0x1140, 0x1180), (0x3099, 0x309B), (0xFB00, 0xFB40), (0xFF9E, 0xFFA0))


def canonical_code_point(code_point: int) -> int:
    """Return the canonical form of a code point.

    This is REMOVED, BLANK, or its compatible form in lower case, plus its kind (but not ALONE).
    """
    character = chr(code_point)
    category = ucd_3_2_0.category(character)
    if _INVISIBLE.match(character) or character in _OPENING_MARKS:
        return REMOVED
    if category in {"Zs", "Zl", "Zp"} or character in _CONTROL_BLANKS or character in _SYLLABLE_MARKS:
        return BLANK
    if category in {"Cc", "Cf", "Cs"}:
        return REMOVED
    if character in _QUOTES or category in {"Pi", "Pf"}:
        return QUOTE + ord("'")
    if character in _MARKS:
        return MARK + ord(_MARKS[character])
    compatible = ucd_3_2_0.normalize("NFKC", character)
    if len(compatible) == 1 and compatible != character and not ucd_3_2_0.decomposition(character).startswith(("<super>", "<sub>")):
        return canonical_code_point(ord(compatible))
    if category == "Pd" or character == "\u2212":
        return DASH + ord("-")
    if character != "_" and (category[0] == "P" or category in {"Sm", "Sc", "Sk"}):
        return (CLOSING if category == "Pe" else SIGN) + code_point
    lower = character.lower()
    if category == "Cn" or len(lower) != 1 or ucd_3_2_0.category(lower) == "Cn":
        return code_point
    return ord(lower)


@lru_cache(maxsize=1)
def code_points() -> Uint32s:
    """Return a table with `canonical_code_point` of every code point, (0x110000,) uint32, read-only and computed once per process.

    ALONE is added to the entries that are characters of a script without blanks, except signs and marks.
    """
    table = np.arange(CODE_POINTS, dtype=np.uint32)
    start = 0
    for first, end in _UNCHANGED:
        table[start:first] = [canonical_code_point(code_point) for code_point in range(start, first)]
        start = end
    bounds = np.array([bound for limits in UNSPACED for bound in limits], dtype=np.uint32)
    table[np.searchsorted(bounds, table, side="right") % 2 == 1] += np.uint32(ALONE)  # entries with a kind are above all bounds
    table.flags.writeable = False
    return table


@lru_cache(maxsize=1)
def marked_code_points() -> Uint32s:
    """Return `code_points`, with COMPOSE added to the entries of characters that `compose` changes."""
    table = code_points().copy()
    for first, end in TO_COMPOSE:
        table[first:end] += np.uint32(COMPOSE)
    table.flags.writeable = False
    return table


def decode_entities(text: str) -> str:
    """Return a text with its HTML entities decoded."""
    return _ENTITY.sub(_decode_entity, text)


def compose(text: str) -> str:
    """Return a text with its accents composed (NFC of Unicode 3.2), and its ligatures spelled out."""
    return ucd_3_2_0.normalize("NFC", text.translate(_spelled_out()))


def _decode_entity(found: re.Match[str]) -> str:
    """Return the character that an entity stands for. An unknown name is kept."""
    name = found[1] + ";"
    return html.unescape("&" + name) if name[0] == "#" else html5.get(name, found[0])


@lru_cache(maxsize=1)
def _spelled_out() -> dict[int, str]:
    """Return the letters of ligatures, and the full-width characters for half-width katakana and their marks."""
    return {code_point: ucd_3_2_0.normalize("NFKC", chr(code_point)) for code_point in (*range(0xFB00, 0xFB07), *range(0xFF66, 0xFFA0))}
