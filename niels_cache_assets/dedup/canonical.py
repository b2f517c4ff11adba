"""The canonical text of a document, which defines "the same text". It is in lower case, without punctuation, and with collapsed white
space.

Each code point has one rule. All rules are in one table (`code_points`), which the pure Python code and the compiled kernel share:

* removed: Unicode's punctuation (P*), the ASCII symbols of `string.punctuation` ($+<=>^`|~), control characters except white space (NULs),
  format characters (soft hyphen, zero width joiners, byte order mark), lone surrogates. Nothing replaces them: `don't` becomes `dont`.
* blank: white space, the separators Zs, Zl, Zp and the white space among the control characters. A run of them becomes one blank. At the
  beginning and the end of a text they are removed.
* All other code points stay: other symbols, digits, combining marks, emoji. A code point becomes lower case if its lower case is also one
  code point.

Categories and case are those of Unicode 3.2 (`unicodedata.ucd_3_2_0`), which every Python has. So digests and signatures do not depend on
the Python version. Code points that Unicode added later stay unchanged. There is no normalization (NFC), so composed and decomposed accents
stay different.

The table takes about 0.1 s, once in each process. In pure Python, ASCII text takes 6 us/KB, and other text takes 60 us/KB. For many
documents use `signatures.Signer`, whose kernel computes the same text. This module computes no hashes.
"""

import string
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

REMOVED = 0
BLANK = ord(" ")
CODE_POINTS = 0x110000
# Most code points are here: ideographs, Hangul, private use, unassigned. All of them stay. A test checks this.
_UNCHANGED = (
    (0x3400, 0xD800),
    (0xE000, 0xFB00),
    (0x10450, 0x1D100),
    (0x1D800, 0xE0000),
    (0xE0080, CODE_POINTS),
)
_CONTROL_BLANKS = frozenset("\t\n\v\f\r\x1c\x1d\x1e\x1f\x85")


def canonical_code_point(code_point: int) -> int:
    """Return the replacement of a code point, which is REMOVED, BLANK, the code point itself or its lower case. `code_points` stores all
    results.
    """
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
    """Return a table with `canonical_code_point` of every code point: (0x110000,) uint32, read-only. It is computed once a process."""
    table = np.arange(CODE_POINTS, dtype=np.uint32)
    start = 0
    for first, end in _UNCHANGED:
        table[start:first] = [canonical_code_point(code_point) for code_point in range(start, first)]
        start = end
    table.flags.writeable = False
    return table


class _Translation(dict[int, str | None]):
    """The table in the form that `str.translate` takes. It contains only the code points that have occurred so far."""

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
    """Return the canonical form of a text, which is words with one blank between them, or "" if nothing remains."""
    if text.isascii():
        table, removed = _ascii_translation()
        return b" ".join(text.encode("ascii").translate(table, removed).split()).decode("ascii")
    return " ".join(word for word in text.translate(_translation).split(" ") if word)
