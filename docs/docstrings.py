"""Docstrings as Markdown, for the API pages of the site: an extension of griffe, which mkdocstrings reads the code with.

Our docstrings explain a parameter in a line that begins with its name and a colon. Such lines become a list.
"""

import re
import textwrap
from collections.abc import Iterator
from typing import Any

from griffe import Extension, Object

_PARAMETER = re.compile(r"^(?:[a-z]\w*|[A-Z])(?:, [a-zA-Z]\w*)*: ")  # a sentence begins with a word in capitals


class MarkdownDocstrings(Extension):
    """Turns each docstring into Markdown as soon as griffe has read its object."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = "\n".join(as_markdown(obj.docstring.value)).strip()


def as_markdown(text: str) -> Iterator[str]:
    """Yield the lines of a docstring as Markdown: explained parameters as a list, indented paragraphs as blocks of code."""
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.split("\n")
        yield ""
        if lines[0].startswith("    "):
            yield from ["```text", *textwrap.dedent(paragraph).split("\n"), "```"]
            continue
        in_list = bool(_PARAMETER.match(lines[0]))
        for line in lines:
            if in_list and line.startswith(("Raise ", "Raises ")):
                in_list = False
                yield ""
            begins = in_list and not line.startswith(" ") and _PARAMETER.match(line)
            yield escaped(f"* {line}" if begins else f"  {line.strip()}" if in_list else line.strip())


def escaped(line: str) -> str:
    """Escape stars, brackets and angle brackets outside of inline code."""
    bullet, rest = ("* ", line[2:]) if line.startswith("* ") else ("", line)
    parts = rest.split("`")
    plain = [re.sub(r"([*<\[])", r"\\\1", part) if number % 2 == 0 else part for number, part in enumerate(parts)]
    return bullet + "`".join(plain)
