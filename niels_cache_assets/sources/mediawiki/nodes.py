"""The text of a line that the scan of `markup` leaves: links and entities become what a reader of the page sees.

mwparserfromhell parses the line. It needs a hundred times the memory of its input, so a long line is cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.entities import name2codepoint
from typing import Any

# A link with a plain target and label, between the marks of `markup`, or a named entity. The parser alone knows what else may be in a link.
_PLAIN = re.compile("\x05([^\x00-\x1f\\[\\]{}<>|&:/]+)(?:\\|([^\x00-\x1f\\[\\]{}<>|&/]*))?\x06|&([A-Za-z][A-Za-z0-9]{0,30});")
_OTHER_MARKS = re.compile("[\x05\x06]|&#")
_BLOCK_MARKS = ("*", "#", ":", ";", "=", "-")  # at the start of a line, these may begin a list, a heading or a rule
_PIECE = 100_000  # characters of a line that are parsed at a time


def nodes_text(line: str) -> str:
    """Return the text of a line whose marks are all closed."""
    return "".join(_nodes_text(_parse(piece)) for piece in _pieces(line))


def simple_text(line: str) -> str | None:
    """Return the text of a line whose links are plain, without the parser, or None if the line needs the parser. The parser gives the same
    text in twenty times the time.

    line: has the marks of links that `markup` puts into the text.
    """
    if len(line) > _PIECE or line.startswith(_BLOCK_MARKS):
        return None
    shown = _PLAIN.sub(_of_plain, line)
    return None if _OTHER_MARKS.search(shown) else shown


def _of_plain(found: re.Match[str]) -> str:
    target, label, entity = found.groups()
    if entity is not None:
        code_point = name2codepoint.get(entity)
        return found[0] if code_point is None else chr(code_point)
    return target.strip() if label is None else label


def _pieces(line: str) -> Iterator[str]:
    """Yield the line in pieces for the parser. A long line is cut, because the parser needs a hundred times its memory."""
    start = 0
    while len(line) - start > _PIECE:
        end = line.rfind(" ", start, start + _PIECE) + 1
        end = end if end > start else start + _PIECE
        yield line[start:end]
        start = end
    yield line[start:]


def _parse(text: str) -> Any:
    import mwparserfromhell

    return mwparserfromhell.parse(text, skip_style_tags=True)


def _nodes_text(code: Any) -> str:
    return "".join(map(_node_text, code.nodes)) if code is not None else ""


def _node_text(node: Any) -> str:
    """Return the text that a reader of the page sees for a node."""
    kind = type(node).__name__
    if kind == "Text":
        return str(node.value)
    if kind == "Wikilink":
        return _nodes_text(node.text) if node.text is not None else _nodes_text(node.title).strip().removeprefix(":")
    if kind == "ExternalLink":  # an address without brackets; the scan has replaced all addresses with brackets
        return _nodes_text(node.url)
    if kind == "HTMLEntity":
        return _entity(node)
    if kind == "Tag":  # only list marks and rules in the middle of a line; the scan has removed all remaining tags
        return str(node.wiki_markup or "")
    if kind == "Heading":
        return _nodes_text(node.title)
    return ""


def _entity(node: Any) -> str:
    """Return the character of an entity, or the entity if it has none. Half a surrogate pair and control characters show nothing."""
    try:
        character = str(node.normalize())
    except (ValueError, OverflowError):
        return str(node)
    return "" if "\ud800" <= character <= "\udfff" or character < " " else character
