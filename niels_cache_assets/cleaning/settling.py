"""Repeating a step until nothing changes, in bounded time: `settled`. Its callers say what a step does, and which marks begin something."""

import re
from bisect import bisect_left
from collections.abc import Callable

PASSES = 4  # real pages need one, and one more to see that nothing is left
REGIONS = 2  # places that unfold in one text
_MARGIN = 10  # characters before the first that changes: what went may begin like what comes after it


def settled(text: str, step: Callable[[str], str], marks: re.Pattern[str]) -> str:
    """The text after as many steps as change something. Time: a fixed number of steps.

    What unfolds more than PASSES times is made up: then blanks take the place of the marks in the region that still changes, and, where
    that does not help, of all. Without marks, nothing begins and nothing joins across the blanks, so two more steps leave nothing to do.
    """
    for _ in range(PASSES):
        before, text = text, step(text)
        if text == before:
            return text
    for _ in range(REGIONS):
        after = step(text)
        if after == text:
            return text
        start, end = _changing(text, after)
        text = step(text[:start] + marks.sub(" ", text[start:end]) + text[end:])
    return step(step(marks.sub(" ", text)))


def _changing(before: str, after: str) -> tuple[int, int]:
    """(start, end) in `before` of what is not in `after` as well, at the beginning or at the end."""
    shared = min(len(before), len(after))
    start = bisect_left(range(shared), True, key=lambda place: before[: place + 1] != after[: place + 1])
    behind = bisect_left(range(shared - start), True, key=lambda place: before[-place - 1 :] != after[-place - 1 :])
    return max(0, start - _MARGIN), len(before) - behind
