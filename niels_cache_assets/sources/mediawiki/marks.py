"""The marks of wikitext that the scan of `markup` handles: braces, brackets, tags, tables and ends of lines, in the function `next_mark`.

One search for the few characters that begin a mark, and then a look at this place, takes a fifth of the time of one pattern for all marks.
"""

from __future__ import annotations

import re

from niels_cache_assets.sources.mediawiki.names import TAGS

_NEXT = re.compile(r"[\[\]{}<\n]")
_BRACES = re.compile(r"\{{2,}|\}{2,}")
_TABLE_LINE = re.compile(r"[ \t:*#]{0,20}\{\||[ \t]{0,20}\|\}(?!\})")  # at the start of a line
_TAG = re.compile(rf"(?P<table><table\b[^<>]{{0,2000}}>|</table\s{{0,9}}>)|(?P<tag></?(?:{TAGS})(?:[\s/][^<>]{{0,2000}})?>)", re.IGNORECASE)
_ADDRESS_START = re.compile(r"\[(?=(?:https?:|ftp:|mailto:)?//|mailto:)", re.IGNORECASE)


def next_mark(text: str, position: int) -> tuple[int, str, str] | None:
    """Return the start, the kind and the text of the first mark from `position` on, or None. After a mark, `position` is its end."""
    if (not position or text[position - 1] == "\n") and (table := _TABLE_LINE.match(text, position)):
        return position, "table", table[0]
    while found := _NEXT.search(text, position):
        start, character = found.start(), found[0]
        if character == "\n":
            return start, "line", "\n"
        if character in "[]":
            if text.startswith(character, start + 1):
                return start, "link", character * 2
            if character == "]":
                return start, "end", "]"
            if _ADDRESS_START.match(text, start):
                return start, "address", "["
        elif character == "<":
            tag = _TAG.match(text, start)
            return (start, tag.lastgroup or "", tag[0]) if tag else (start, "less", "<")
        elif braces := _BRACES.match(text, start):
            return start, "braces", braces[0]
        position = start + 1
    return None
