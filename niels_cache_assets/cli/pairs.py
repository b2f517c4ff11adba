"""Two texts side by side, with the words that only one of them has marked: below each other where the terminal is narrow.

Marked is underlined on a terminal, [[ ]] elsewhere. Shown is the place of the first difference, since near duplicates often begin alike.
Costs a comparison of the words that are shown, which is quadratic in them at worst.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import takewhile

from rich.console import Console
from rich.table import Table
from rich.text import Text

from niels_cache_assets.decoding import spell_controls

SIDE_BY_SIDE_COLUMNS = 90  # narrower than that, a column of text is no pleasure to read
CONTEXT_WORDS = 12  # shown of what both share before they first differ
DIFFERENCE_STYLE = "underline yellow"
_LOOKED_THROUGH = 100_000  # characters in which the first difference is looked for
_ELLIPSIS = "…"

Part = tuple[bool, list[str]]  # words, and whether the other side lacks them


def print_pair(console: Console, titles: tuple[str, str], texts: tuple[str, str], *, characters: int) -> None:
    """Two titled texts, `characters` of each."""
    marked = mark_differences(*texts, characters=characters, styled=console.is_terminal)
    if console.width < SIDE_BY_SIDE_COLUMNS:
        for title, text in zip(titles, marked, strict=True):
            console.print(title, style="bold")
            console.print(text)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, expand=True, header_style="bold")
    for title in titles:
        table.add_column(Text(title), ratio=1, overflow="fold")
    table.add_row(*marked)
    console.print(table)


def mark_differences(left: str, right: str, *, characters: int, styled: bool) -> tuple[Text, Text]:
    """Both texts, white space collapsed, from shortly before their first difference on; words that the other lacks there are marked."""
    ours, theirs = (spell_controls(text[:_LOOKED_THROUGH]).split() for text in (left, right))
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
    begin = 0 if shared == len(ours) == len(theirs) else max(0, shared - CONTEXT_WORDS)
    shown = [_fitting(words[begin:], characters) for words in (ours, theirs)]
    cut = [begin + len(part) < len(words) for part, words in zip(shown, (ours, theirs), strict=True)]
    matches = SequenceMatcher(a=shown[0], b=shown[1], autojunk=False).get_opcodes()
    parts: tuple[list[Part], list[Part]] = ([], [])
    for number, (tag, first, last, other_first, other_last) in enumerate(matches, start=1):
        # What only one side shows at the very end, because the other was cut there, is no difference.
        by_the_cut = number == len(matches) and ((tag == "delete" and cut[1]) or (tag == "insert" and cut[0]))
        parts[0].append((tag != "equal" and not by_the_cut, shown[0][first:last]))
        parts[1].append((tag != "equal" and not by_the_cut, shown[1][other_first:other_last]))
    joined = [_joined(part, begin > 0, ends_early, styled) for part, ends_early in zip(parts, cut, strict=True)]
    return joined[0], joined[1]


def excerpt(text: str, characters: int) -> str:
    """The beginning of a text, on its own lines, cut at `characters`; runs of blank lines become one."""
    shown = re.sub(r"\n\s*\n", "\n\n", spell_controls(text[: characters + 1]).strip())
    return shown if len(text) <= characters else shown[:characters].rstrip() + f" {_ELLIPSIS}"


def _fitting(words: list[str], characters: int) -> list[str]:
    """As many words as fit, at least the beginning of one."""

    def ends() -> Iterator[int]:
        end = -1
        for word in words:
            end += 1 + len(word)
            yield end

    count = sum(1 for _ in takewhile(lambda end: end <= characters, ends()))
    return words[:count] or [words[0][:characters]] if words else []


def _joined(parts: list[Part], starts_late: bool, ends_early: bool, styled: bool) -> Text:
    text = Text(f"{_ELLIPSIS} " if starts_late else "")
    pieces = [(differs, " ".join(words)) for differs, words in parts if words]
    for index, (differs, piece) in enumerate(pieces):
        if index:
            text.append(" ")
        text.append(piece if styled or not differs else f"[[{piece}]]", style=DIFFERENCE_STYLE if differs else "")
    if ends_early:
        text.append(f" {_ELLIPSIS}")
    return text
