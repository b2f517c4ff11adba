"""Matching of pairs of marks, and removal of the text that they enclose. `normalizers` defines which marks are markup.

Matching uses a stack, so it takes time linear in the text. A pair may enclose at most `bound` characters, not counting inner pairs that are
removed. If it encloses more, both marks count as unmatched and stay. So two stray marks cannot remove the prose between them.
"""

import re
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from io import StringIO

DEEPEST = 1_000  # marks that may be open at a time; if there are more, the outer ones count as unmatched

Span = tuple[int, int]  # (start, end)

_TEMPLATE_BRACES = re.compile(r"\{{2,}+|\}{2,}+")


def paired(text: str, marks: re.Pattern[str], bound: int, wanted: re.Pattern[str] | None = None) -> Iterator[Span]:
    """Yield every pair of an opening mark (group `open`) and its closing mark, inner pairs before outer ones.

    If the marks have names (groups `name` and `closed`), a closing mark closes the last opened mark only if the names are equal. `wanted`:
    a pattern that must match at the start of a pair.
    """
    opened: deque[tuple[int, str, int]] = deque(maxlen=DEEPEST)  # (start, name, characters taken out before it)
    named = "name" in marks.groupindex
    taken_out = 0
    for found in marks.finditer(text):
        if found.group("open"):
            opened.append((found.start(), found["name"].lower() if named else "", taken_out))
        elif opened and (not named or opened[-1][1] == found["closed"].lower()):
            start, _, before = opened.pop()
            length = found.end() - start
            if length - (taken_out - before) <= bound and (wanted is None or wanted.match(text, start)):
                taken_out = before + length
                yield start, found.end()


def templates(text: str, bound: int, name: re.Pattern[str]) -> Iterator[Span]:
    """Yield the spans of {{...}} and {{{...}}}, inner before outer. `name` must match after the opening braces.

    In a longer run of braces, the braces next to the content belong to the span.
    """
    opened: deque[tuple[int, int, int, bool]] = deque(maxlen=DEEPEST)  # (start, braces, characters taken out before it, has a name)
    taken_out = 0
    for found in _TEMPLATE_BRACES.finditer(text):
        end, braces = found.start(), found.end() - found.start()
        if text[end] == "{":
            opened.append((end, braces, taken_out, name.match(text, found.end()) is not None))
            continue
        while braces >= 2 and opened:
            start, available, before, is_named = opened.pop()
            used = 2 if 4 in (available, braces) else min(3, available, braces)
            end, braces = end + used, braces - used
            if available - used >= 2:
                opened.append((start, available - used, before, True))
            start += available - used
            if is_named and end - start - (taken_out - before) <= bound:
                taken_out = before + end - start
                yield start, end


def without(text: str, spans: Iterable[Span]) -> str:
    """Return the text without the spans. Spans are disjoint or nested, inner before outer, in the order of their ends."""
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
    place = 0
    for start, end in zip(starts, ends, strict=True):
        kept.write(text[place:start])
        place = end
    kept.write(text[place:])
    return kept.getvalue()


def rewritten(text: str, pattern: re.Pattern[str], replacement: Callable[[re.Match[str]], str]) -> str:
    """Return the result of `pattern.sub`, with less memory: `sub` keeps every piece of the text to the end, fifty bytes for each."""
    kept = StringIO()
    place = 0
    for found in pattern.finditer(text):
        kept.write(text[place : found.start()])
        kept.write(replacement(found))
        place = found.end()
    if not place:
        return text
    kept.write(text[place:])
    return kept.getvalue()
