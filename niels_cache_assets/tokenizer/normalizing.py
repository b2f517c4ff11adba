"""Unicode's normalization form C, for models whose own code normalizes a text before it encodes it, and positions in such texts.

The form joins letters with the marks that follow them, so characters move. `nfc_with_spans` finds where: a text is cut before characters
that join nothing before them, and the pieces are normalized one by one. Normalizing text that is already in this form costs a tenth of
encoding it. The tables are those of Python's unicodedata, as in the models' own code.
"""

import unicodedata
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Final

_FORM: Final = "NFC"
_HANGUL_VOWELS_AND_FINALS = frozenset((*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)))  # these join the syllable before them


def nfc(text: str) -> str:
    """Return the text in normalization form C."""
    return text if text.isascii() or unicodedata.is_normalized(_FORM, text) else unicodedata.normalize(_FORM, text)


def nfc_with_spans(text: str, spans: Sequence[tuple[int, int]]) -> tuple[str, list[tuple[int, int]]]:
    """Return `nfc` of a text, and where spans of its characters are in the result.

    A character of the result belongs to a span if part of it was in the span, just as a token does that is partly in a span.
    """
    normalized = nfc(text)
    if normalized is text or normalized == text:
        return normalized, list(spans)
    bounds = {position: _cuts_around(text, position) for span in spans for position in span}
    cuts = sorted({0, len(text), *(cut for pair in bounds.values() for cut in pair)})
    positions, length = {0: 0}, 0
    for start, end in pairwise(cuts):
        length += len(nfc(text[start:end]))
        positions[end] = length
    return normalized, [(positions[bounds[start][0]], max(positions[bounds[start][0]], positions[bounds[end][1]])) for start, end in spans]


def _cuts_around(text: str, position: int) -> tuple[int, int]:
    """Return the nearest positions before and after `position` where a cut does not change the result; both may be `position` itself."""
    before = after = position
    while 0 < before < len(text) and not _starts_cluster(text[before]):
        before -= 1
    while 0 < after < len(text) and not _starts_cluster(text[after]):
        after += 1
    if before < position and nfc(text[before:after]) == nfc(text[before:position]) + nfc(text[position:after]):
        return position, position
    return before, after


@cache
def _starts_cluster(character: str) -> bool:
    """Return whether a character joins nothing before it, and does not change places with it."""
    first = unicodedata.normalize("NFD", character)[0]
    return not unicodedata.combining(first) and ord(first) not in _joining()


@cache
def _joining() -> frozenset[int]:
    """Return the code points that join a character before them and have no combining class, which takes half a second."""
    forms = (unicodedata.decomposition(chr(code)).split() for code in range(0x110000))
    seconds = {int(parts[1], 16) for parts in forms if len(parts) == 2 and not parts[0].startswith("<")}
    return _HANGUL_VOWELS_AND_FINALS | seconds
