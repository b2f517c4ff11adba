"""Tables of a page as Markdown, in the class `Tables`. `markup` finds where a table begins and ends, and uses this only if tables are kept.

The first row is the header. A cell that spans columns or rows stands in its first place, and the other places are empty, so nothing is said
twice. Columns and rows without text are left out. Text of a table that is in no cell stands before it, as in a browser. A table in a cell
becomes text: commas between its cells, semicolons between its rows. Infoboxes, navigation boxes and notices are no tables of facts that a
sentence announces, and are dropped. Time and output are linear in the table: if its spans would make the output much longer than the table,
they are ignored. Grammar: mediawiki.org, Help:Tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

CELL_TAGS = frozenset(("tr", "td", "th", "caption"))
MARK = "\x10"  # around the number of an HTML tag of a table
BREAK = "\x1e"  # a line break inside a table that is no end of a line in the wikitext
_BAR = "\x11"  # a bar inside a link, which separates no cells
_MARKS = re.compile(f"{MARK}(\\d+){MARK}")
_RAW = re.compile("\x02(\\d+)\x02")
_LINKS = re.compile("\x05[^\x05\x06]*\x06")
_SPAN = r"\b{}span\s{{0,9}}=\s{{0,9}}[\"']?\s{{0,9}}(\d{{1,4}})"
_COLUMNS, _ROWS = (re.compile(_SPAN.format(kind), re.IGNORECASE) for kind in ("col", "row"))
_NO_FACTS = re.compile(
    r"\bclass\s{0,9}=\s{0,9}(?:\"[^\"]{0,200}|'[^']{0,200}|\S{0,200})\b(?:infobox|navbox|sidebar|metadata|ambox|mbox|toc|toccolours)\b",
    re.IGNORECASE,
)
_LONGEST_SPAN = 1000
_GROWTH, _ALWAYS = 10, 1000  # the spans of a table of n cells may make at most _GROWTH * n + _ALWAYS cells


class _Cell(NamedTuple):
    attributes: str
    lines: list[str]


class Tables:
    """The tables of one page.

    `raw`: the finished texts of the page, by their index; the text of a table becomes one of them. `line_text`: returns the text of a line
    of a cell.
    """

    def __init__(self, raw: list[str], line_text: Callable[[str], str]) -> None:
        self._raw = raw
        self._line_text = line_text
        self._tags: list[tuple[str, str]] = []  # name and attributes of each HTML tag of a table
        self._flat: dict[int, str] = {}  # the text of a table inside a cell, by the index in `raw`

    def tag(self, name: str, attributes: str) -> str:
        """Return the mark for a tag of a cell, row or caption. name: in lower case."""
        self._tags.append((name, attributes))
        return f"{MARK}{len(self._tags) - 1}{MARK}"

    def without_tags(self, text: str) -> str:
        """Return the text of a page without the marks of tags whose table never closed."""
        text = text.replace(BREAK, "\n")
        return _MARKS.sub(lambda found: "" if self._tags[int(found[1])][0] in ("td", "th") else "\n", text)

    def taken(self, content: str, attributes: str | None) -> str:
        """Return what stands for a table in the text of the page. attributes: of an HTML table, or None for a table of wikitext."""
        content = _LINKS.sub(lambda found: found[0].replace("|", _BAR), content)
        if attributes is None:
            attributes, _, content = content.partition("\n")
            caption, rows, outside = self._of_wikitext(content)
        else:
            caption, rows, outside = self._of_html(content)
        if _NO_FACTS.search(attributes):
            return "\n"
        title = self._text(caption)
        grid = _compact(_spread([[(cell, self._text(cell)) for cell in row] for row in rows if row]))
        before = self._text(_Cell("", outside))
        parts = [before, title, _markdown(grid)]
        shown = "\n\n".join(part for part in parts if part)
        if not shown:
            return "\n"
        self._raw.append(shown)
        flat = "; ".join(", ".join(text for text in row if text) for row in grid)
        self._flat[len(self._raw) - 1] = ": ".join(part for part in (before, title, flat) if part)
        return f"\n\n\x02{len(self._raw) - 1}\x02\n\n"

    def _of_wikitext(self, content: str) -> tuple[_Cell, list[list[_Cell]], list[str]]:
        """Return the caption, the cells of each row, and the lines in no cell."""
        caption = _Cell("", [])
        outside: list[str] = []
        rows: list[list[_Cell]] = [[]]
        in_caption = False
        for line in content.split("\n"):
            stripped = line.strip()
            if stripped.startswith("|-"):
                rows.append([])
                in_caption = False
            elif stripped.startswith("|+"):
                caption, in_caption = _cell(stripped[2:]), True
            elif stripped.startswith(("|", "!")):
                in_caption = False
                between = r"\|\||!!" if stripped[0] == "!" else r"\|\|"
                rows[-1] += map(_cell, re.split(between, stripped[1:]))
            elif in_caption:
                caption.lines.append(line)
            elif rows[-1]:
                rows[-1][-1].lines.append(line)
            else:
                outside.append(line)
        return caption, rows, outside

    def _of_html(self, content: str) -> tuple[_Cell, list[list[_Cell]], list[str]]:
        """Return the caption, the cells of each row, and the lines in no cell."""
        caption = _Cell("", [])
        rows: list[list[_Cell]] = [[]]
        pieces = _MARKS.split(content)
        outside = pieces[0].split("\n")
        for number, text in zip(pieces[1::2], pieces[2::2], strict=True):
            name, attributes = self._tags[int(number)]
            if name == "tr":
                rows.append([])
                outside += text.split("\n")
            elif name == "caption":
                caption = _Cell(attributes, text.split("\n"))
            else:
                rows[-1].append(_Cell(attributes, text.split("\n")))
        return caption, rows, outside

    def _text(self, cell: _Cell) -> str:
        """Return the text of a cell in one line, with commas between the items of a list."""
        pieces: list[str] = []
        before_is_item = False
        for number, line in enumerate("\n".join(cell.lines).replace(BREAK, "\n").split("\n")):
            begun = "" if number else " "  # after the mark of a cell, `#1` is no item of a list
            text = self._line_text(begun + line.replace(_BAR, "|"))
            if not text:
                continue
            is_item = number > 0 and text.lstrip().startswith("- ")
            text = text.lstrip().removeprefix("- " if is_item else "")
            pieces.append((", " if is_item and before_is_item else " ") + text)
            before_is_item = is_item
        shown = _RAW.sub(lambda found: self._flat.get(int(found[1]), self._raw[int(found[1])]), "".join(pieces))
        return " ".join(shown.split())


def _cell(piece: str) -> _Cell:
    """Return the cell of a piece between two marks. Text before a single bar is attributes, unless a link or a formula is in it."""
    attributes, bar, text = piece.partition("|")
    return _Cell(attributes, [text]) if bar and "\x05" not in attributes and "\x02" not in attributes else _Cell("", [piece])


def _span(pattern: re.Pattern[str], cell: _Cell) -> int:
    found = pattern.search(cell.attributes)
    return min(max(int(found[1]), 1), _LONGEST_SPAN) if found else 1


def _spread(rows: list[list[tuple[_Cell, str]]]) -> list[list[str]]:
    """Return the texts of the rows in their columns, with empty texts where a cell spans. Without spans if these would be too many."""
    bound = _GROWTH * sum(map(len, rows)) + _ALWAYS
    grid: list[list[str]] = []
    taken: dict[int, int] = {}  # the number of further rows that a cell above takes, by column
    places = 0
    for row in rows:
        texts: list[str] = []
        below: dict[int, int] = {}
        for cell, text in row:
            while len(texts) in taken:
                texts.append("")
            columns, lines = _span(_COLUMNS, cell), _span(_ROWS, cell)
            if lines > 1:
                below |= dict.fromkeys(range(len(texts), len(texts) + columns), lines - 1)
            texts += [text, *[""] * (columns - 1)]
            if places + len(texts) + len(taken) > bound:
                return [[text for _, text in row] for row in rows]
        places += len(texts) + len(taken)
        taken = {column: left - 1 for column, left in taken.items() if left > 1} | below
        grid.append(texts)
    return grid


def _compact(grid: list[list[str]]) -> list[list[str]]:
    """Return the rows without those rows and columns that have no text, and without empty texts at their ends."""
    columns = sorted({column for row in grid for column, text in enumerate(row) if text})
    compact = []
    for row in grid:
        texts = [row[column] for column in columns if column < len(row)]
        while texts and not texts[-1]:
            texts.pop()
        if texts:
            compact.append(texts)
    return compact


def _markdown(grid: list[list[str]]) -> str:
    """Return the table in Markdown, of which the first row is the header. One cell alone is a paragraph."""
    if not grid:
        return ""
    if len(grid) == 1 and len(grid[0]) == 1:
        return grid[0][0]
    width = max(map(len, grid))
    header = grid[0] + [""] * (width - len(grid[0]))
    return "\n".join(f"| {' | '.join(text.replace('|', chr(92) + '|') for text in row)} |" for row in (header, ["---"] * width, *grid[1:]))
