"""The canonical text of a document, which defines "the same text": lower case, no punctuation, collapsed white space.

There is one rule per code point, in one table that the pure Python path and the compiled kernel share (`code_points`):

* removed: Unicode's punctuation (P*), the ASCII symbols of `string.punctuation` ($+<=>^`|~), control characters except white space (NULs),
  format characters (soft hyphen, zero width joiners, byte order mark), lone surrogates. Nothing replaces them: `don't` becomes `dont`.
* blank: white space, the separators Zs, Zl, Zp and the white space among the control characters. A run becomes one blank, none at the ends.
* anything else stays, in lower case if that is one code point: other symbols, digits, combining marks, emoji.

Categories and case are those of Unicode 3.2 (`unicodedata.ucd_3_2_0`), which every Python has. So digests and signatures do not depend on
the Python version; later code points stay unchanged. Composed and decomposed accents stay different: there is no normalization (NFC).

Cost: about 0.1 s for the table, once a process; 6 us/KB of ASCII, 60 us/KB otherwise, in pure Python. For many documents use
`signatures.Signer`, whose kernel computes the same text. There is no hashing here.
"""

import string
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

REMOVED = 0
BLANK = ord(" ")
CODE_POINTS = 0x110000
# Ideographs, Hangul, private use, unassigned: most code points, and all of them stay. A test checks this.
_UNCHANGED = (
    (0x3400, 0xD800),
    (0xE000, 0xFB00),
    (0x10450, 0x1D100),
    (0x1D800, 0xE0000),
    (0xE0080, CODE_POINTS),
)
_CONTROL_BLANKS = frozenset("\t\n\v\f\r\x1c\x1d\x1e\x1f\x85")


def canonical_code_point(code_point: int) -> int:
    """Return what replaces a code point: REMOVED, BLANK, itself or its lower case. A lookup table is made of it."""
    from unicodedata import ucd_3_2_0

    character = chr(code_point)
    category = ucd_3_2_0.category(character)
    if category in {"Zs", "Zl", "Zp"} or character in _CONTROL_BLANKS:
        return BLANK
    if category[0] == "P" or category in {"Cc", "Cf", "Cs"} or character in string.punctuation:
        return REMOVED
    lower = character.lower()
    if category == "Cn" or len(lower) != 1 or ucd_3_2_0.category(lower) == "Cn":
        return code_point
    return ord(lower)


@lru_cache(maxsize=1)
def code_points() -> NDArray[np.uint32]:
    """Return (0x110000,) uint32, read-only: `canonical_code_point` of every code point. It is computed once a process."""
    table = np.arange(CODE_POINTS, dtype=np.uint32)
    start = 0
    for first, end in _UNCHANGED:
        table[start:first] = [canonical_code_point(code_point) for code_point in range(start, first)]
        start = end
    table.flags.writeable = False
    return table


class _Translation(dict[int, str | None]):
    """The table in the form that `str.translate` takes, with the code points that occurred."""

    def __missing__(self, code_point: int) -> str | None:
        canonical = int(code_points()[code_point])
        self[code_point] = None if canonical == REMOVED else chr(canonical)
        return self[code_point]


@lru_cache(maxsize=1)
def _ascii_translation() -> tuple[bytes, bytes]:
    """Return the table for bytes.translate, and the bytes to remove."""
    table = code_points()[:256].astype(np.uint8)  # bytes from 128 on do not occur in ASCII
    return table.tobytes(), bytes(code_point for code_point in range(128) if table[code_point] == REMOVED)


_translation = _Translation()


def canonical_text(text: str) -> str:
    """Return the canonical form of a text: words of at least one character with one blank between them, or "" if nothing remains."""
    if text.isascii():
        table, removed = _ascii_translation()
        return b" ".join(text.encode("ascii").translate(table, removed).split()).decode("ascii")
    return " ".join(word for word in text.translate(_translation).split(" ") if word)
