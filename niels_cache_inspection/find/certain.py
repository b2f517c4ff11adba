"""The tokens that a text has in any context, by which candidates are found without decoding.

A blank after a character that is not white space is a certain border if no piece of the vocabulary has the last byte of that character
before a blank: then no token crosses it, in any text. BPE only joins what becomes a piece, so it joins nothing across the border, and the
tokens on each side depend only on that side. For unigram, the best path passes the border in any case, so each side is best by itself.
What a pre-tokenizer cuts between two borders depends only on the text from the first one on, because the patterns of published tokenizers
never look behind, and at most one character ahead. This is not proven for a pattern of your own. So the tokens are compared in several
contexts, and if they differ in one, there are no certain tokens.

The certain tokens are those between the first and the last certain border of a text. A text of one or two words has none, nor has a text
without blanks.
"""

from __future__ import annotations

from typing import NamedTuple

from niels_cache_inspection.find.pieces import PieceTable

_LEFT = ("", "a", " ", "\n", ".", "1", "word ", "Ünd ", "'", "  ", "文", "\t", '("', "-", "x1", "é")
_RIGHT = ("", "b", "s", " ", "\n", ".", "2", "'s", "  ", "文", "ing", ", ", "é", '"', "_", "\t\t")
_BLANK = 32
_CHARACTER_BYTES = 4  # at most
_MOST_BYTES = 2_000  # of the text in which certain tokens are looked for


class CertainTokens(NamedTuple):
    """The tokens that a text has in any context.

    Attributes:
        ids: The tokens.
        before: The number of bytes of the text before them.
    """

    ids: tuple[int, ...]
    before: int


def certain_tokens(table: PieceTable, text: bytes) -> CertainTokens | None:
    """Return the tokens that this text has in any context, or None if there are none, or if they are not certain.

    Args:
        table: The table of pieces.
        text: The text in UTF-8, normalized.
    """
    text = text[:_MOST_BYTES].decode(errors="ignore").encode()
    borders = _certain_borders(table, text)
    if len(borders) < 2:
        return None
    first, last = borders[0], borders[-1]
    decoded, found = text.decode(), set[tuple[int, ...]]()
    for ids in table.encode([f"{left}{decoded}{right}" for left, right in zip(_LEFT, _RIGHT, strict=True)]):
        tokens = ids.tolist()
        pieces = [table.pieces[token] for token in tokens]
        start = b"".join(pieces).find(text)
        inside, position = list[int](), -start
        for token, piece in zip(tokens, pieces, strict=True):
            if first <= position < last:
                inside.append(token)
            position += len(piece)
        if start < 0 or b"".join(table.pieces[token] for token in inside) != text[first:last]:
            return None
        found.add(tuple(inside))
    return CertainTokens(found.pop(), first) if len(found) == 1 else None


def _certain_borders(table: PieceTable, text: bytes) -> list[int]:
    """Return the blanks of a text before which a token ends in any context."""
    blanks = [place for place in range(1, len(text)) if text[place] == _BLANK]
    return [place for place in blanks if text[place - 1] not in table.crossed and not _ends_with_space(text[:place])]


def _ends_with_space(text: bytes) -> bool:
    return text[-_CHARACTER_BYTES:].decode(errors="ignore")[-1:].isspace()
