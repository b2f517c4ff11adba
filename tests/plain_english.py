"""Find signs of English that needs a second read, in docstrings, comments, messages and pages.

    python -m tests.plain_english niels_cache_assets/sources docs

A sign is a regular expression. It finds places, not style: a page without a sign can still be hard to read.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

SIGNS = {
    "where there is": r"\bwhere there (?:is|are|was|were)\b",
    "is none": r"(?<!there )\b(?:is|are|was|were) none\b",
    "is gone on with": r"\b(?:gone|goes|go|going|went) on with\b",
    "whence": r"\b(?:whence|whither|thereof|wherein|whereof)\b",
    "nobody": r"\b[Nn]obody\b",
    "to be had": r"\bto be had\b",
    "what ... is": r"\bwhat (?:\w+ ){1,4}(?:is|are|was|were|has|have)\b(?![^.:;]*\?)",
    "a clause as subject": r"(?:^|(?<=[.!] ))(?:What|Whoever|Whatever|Who|Whose|That which) (?![^.!\n]*\?)",
    "None where": r"\b(?:None|nothing|empty|False|True|Nothing) where\b",
}
PATTERNS = {name: re.compile(pattern) for name, pattern in SIGNS.items()}
WORDS = re.compile(r"[A-Za-z]{2,}\W+[A-Za-z]{2,}\W+[A-Za-z]{2,}")  # a string of three words or more is read by people


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each comment."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#: ")


def comments_and_docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each comment and docstring."""
    yield from comments(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each comment, docstring and string of words. An f-string is one text, its values left out."""
    yield from comments(source)
    inner = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = [part for part in node.values if isinstance(part, ast.Constant)]
            inner |= {id(part) for part in parts}
            yield node.lineno, "X".join(str(part.value) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner and WORDS.search(node.value):
            yield node.lineno, node.value


def markdown_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each line that is not in a code block, inline code left out."""
    fenced = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, re.sub(r"`[^`]*`", "X", line).lstrip("*-#> |")


def signs(path: Path, *, strings: bool = True) -> Iterator[tuple[int, str, str]]:
    """Yield line, name of the sign and the words around it, for each sign in a Python or Markdown file.

    strings: whether to read the strings of Python code too, which may be messages. Without them, only comments and docstrings are read.
    """
    source = path.read_text(encoding="utf-8")
    texts = markdown_texts if path.suffix == ".md" else python_texts if strings else comments_and_docstrings
    for line, text in texts(source):
        flat = re.sub(r"\s+", " ", text)
        for name, pattern in PATTERNS.items():
            for match in pattern.finditer(flat):
                yield line, name, flat[max(0, match.start() - 30) : match.end() + 50]


def files(places: list[Path]) -> Iterator[Path]:
    """Yield the Python and Markdown files of folders, sorted."""
    for place in places:
        yield from [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.suffix in (".py", ".md"))


if __name__ == "__main__":
    count = 0
    for path in files([Path(each) for each in sys.argv[1:] or ["."]]):
        for line, name, words in signs(path):
            count += 1
            print(f"{path}:{line}: {name}: {words}")
    print(f"{count} signs")
