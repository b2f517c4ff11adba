"""Matching of pairs of marks, and removal of the text that they enclose. `normalizers` defines which marks are markup.

Matching uses a stack, so it takes time linear in the length of the text. A pair may enclose at most `bound` characters, not counting the
characters of removed inner pairs. If a pair encloses more, both marks count as unmatched and are kept. So two stray marks cannot remove the
prose between them.
"""

import re
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from io import StringIO

DEEPEST = 1_000  # maximum number of marks that may be open at a time; if more are open, the outer ones count as unmatched

Span = tuple[int, int]  # (start, end)


# A mark of a pair: start, end, whether it opens the pair, and a name that both marks of a pair share.
Mark = tuple[int, int, bool, str]


def find_marks(text: str, opening: str, closing: str, start: int = 0) -> Iterator[Mark]:
    """Yield every occurrence of the two marks from `start` on, in order and without overlaps.

    `str.find` is many times as fast as a pattern for this.
    """
    opened, closed = text.find(opening, start), text.find(closing, start)
    while opened >= 0 or closed >= 0:
        if closed < 0 or 0 <= opened < closed:
            end = opened + len(opening)
            yield opened, end, True, ""
            opened = text.find(opening, end)
            closed = text.find(closing, end) if 0 <= closed < end else closed
        else:
            end = closed + len(closing)
            yield closed, end, False, ""
            closed = text.find(closing, end)
            opened = text.find(opening, end) if 0 <= opened < end else opened


def match_pairs(text: str, marks: Iterable[Mark], bound: int, beginning: re.Pattern[str] | None = None) -> Iterator[Span]:
    """Yield every pair of an opening mark and its closing mark, inner pairs before outer pairs.

    A closing mark closes the last opened mark only if both names are equal.

    Args:
        text: The text.
        marks: Its marks in order.
        bound: Maximum number of characters that a pair may enclose.
        beginning: Pattern that must match at the start of a pair; by default any pair is yielded.
    """
    opened: deque[tuple[int, str, int]] = deque(maxlen=DEEPEST)  # (start, name, characters removed before)
    removed = 0
    for position, end, opens, name in marks:
        if opens:
            opened.append((position, name, removed))
        elif opened and opened[-1][1] == name:
            start, _, before = opened.pop()
            length = end - start
            if length - (removed - before) <= bound and (beginning is None or beginning.match(text, start)):
                removed = before + length
                yield start, end


def _runs_of_braces(text: str) -> Iterator[Mark]:
    """Yield every run of two or more opening braces, and every run of two or more closing braces, in order."""
    end = 0
    for start, stop, opens, _ in find_marks(text, "{{", "}}"):
        if start < end:  # in the run before
            continue
        end = stop
        while text.startswith(text[start], end):
            end += 1
        yield start, end, opens, ""


def templates(text: str, bound: int, name: re.Pattern[str]) -> Iterator[Span]:
    """Yield the spans of {{...}} and {{{...}}}, inner spans before outer spans.

    In a longer run of braces, the braces next to the content belong to the span.

    Args:
        text: The text.
        bound: Maximum number of characters that a pair may enclose.
        name: Pattern that must match after the opening braces.
    """
    opened: deque[tuple[int, int, int, bool]] = deque(maxlen=DEEPEST)  # (start, braces, characters removed before, a name follows)
    removed = 0
    for position, stop, opens, _ in _runs_of_braces(text):
        end, braces = position, stop - position
        if opens:
            opened.append((end, braces, removed, name.match(text, stop) is not None))
            continue
        while braces >= 2 and opened:
            start, available, before, is_named = opened.pop()
            used = 2 if 4 in (available, braces) else min(3, available, braces)
            end, braces = end + used, braces - used
            if available - used >= 2:
                opened.append((start, available - used, before, True))
            start += available - used
            if is_named and end - start - (removed - before) <= bound:
                removed = before + end - start
                yield start, end


def remove_spans(text: str, spans: Iterable[Span]) -> str:
    """Return the text without some spans.

    Args:
        text: The text.
        spans: Disjoint or nested spans (start, end) in the order of their ends, so inner spans before outer spans.
    """
    starts, ends = array("q"), array("q")
    for start, end in spans:
        while starts and starts[-1] > start:
            starts.pop()
            ends.pop()
        starts.append(start)
        ends.append(end)
    if not starts:
        return text
    kept = StringIO()
    position = 0
    for start, end in zip(starts, ends, strict=True):
        kept.write(text[position:start])
        position = end
    kept.write(text[position:])
    return kept.getvalue()


def substitute(text: str, pattern: re.Pattern[str], replacement: Callable[[re.Match[str]], str]) -> str:
    """Return the result of `pattern.sub` with less memory.

    `sub` keeps every piece of the text until the end, and each piece takes fifty bytes more.
    """
    kept = StringIO()
    position = 0
    for found in pattern.finditer(text):
        kept.write(text[position : found.start()])
        kept.write(replacement(found))
        position = found.end()
    if not position:
        return text
    kept.write(text[position:])
    return kept.getvalue()
