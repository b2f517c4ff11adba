"""The language of a file, by its name and its first line.

The table of names, endings and interpreters is that of the package `identify`, which has several names for most files. `LANGUAGES` says
which of them is the language, and how it writes comments of one line. What is in no row is no code: pictures, archives, models, logs.
"""

import re
from functools import lru_cache
from typing import Literal, NamedTuple

from niels_cache_runtime.errors import NielsCacheError

Kind = Literal["code", "markup", "data"]


class Language(NamedTuple):
    """A row of the table.

    Attributes:
        name: The name, as `identify` writes it.
        kind: Code, text with markup, or data.
        comment: What a comment of one line begins with, or an empty string if there is none.
    """

    name: str
    kind: Kind
    comment: str


_HASH = (
    "python ruby perl shell fish r julia makefile cmake dockerfile elixir crystal nim tcl awk coffee powershell terraform "
    "hcl meson bazel nix puppet graphql gdscript jenkins gherkin robot starlark sed bitbake"
)
_SLASHES = (
    "c++ c objective-c objective-c++ java javascript ts tsx jsx go rust c# swift kotlin scala groovy dart php cuda zig proto thrift "
    "solidity verilog system-verilog d hlsl metal glsl f# scss less stylus vala jsonnet cue gleam haxe pascal"
)
_DASHES = "haskell lua luau sql ada vhdl elm purescript idris lean"
_PERCENTS = "erlang tex matlab prolog"
_SEMICOLONS = "lisp clojure clojurescript scheme asm racket edn emacs-lisp"
_OTHERS = {
    "fortran": "!",
    "vb": "'",
    "vim": '"',
    "batch": "REM",
    "cython": "#",
    "pyi": "#",
    "ocaml": "",
    "css": "",
    "vue": "",
    "svelte": "",
}
_MARKUP = "jupyter markdown mdx rst asciidoc html xhtml plain-text bib myst quarto"
_DATA = "json5 geojson json csv tsv svg xml yaml toml ini java-properties pofile relax-ng plist go-sum textproto diff"


def _table() -> dict[str, Language]:
    found = {name: Language(name, "code", comment) for name, comment in _OTHERS.items()}
    for names, comment in ((_HASH, "#"), (_SLASHES, "//"), (_DASHES, "--"), (_PERCENTS, "%"), (_SEMICOLONS, ";")):
        found |= {name: Language(name, "code", comment) for name in names.split()}
    found |= {name: Language(name, "markup", "") for name in _MARKUP.split()}
    return found | {name: Language(name, "data", "") for name in _DATA.split()}


LANGUAGES = _table()
_IS_CPP = re.compile(r"^\s*(?:class\s+\w+|namespace\b|template\s*<|using\s+\w|public:|private:)|\bstd::", re.MULTILINE)
_HEAD = 20_000  # characters


def language_of(path: str, text: str = "") -> Language | None:
    """Return the language of a file, or None if it is not known, or if the file is binary by its name.

    A header (.h) is C++ if its beginning has words of C++, and C otherwise.

    Args:
        path: The path, of which the name and the ending count.
        text: The text, of which the first line counts (`#!/usr/bin/env python3`), or an empty string.
    """
    tags = _tags_of_name(path.rsplit("/", 1)[-1])
    if "binary" in tags:
        return None
    if not tags and text.startswith("#!"):
        tags = _tags_of_line(text.partition("\n")[0])
    if "header" in tags:
        return LANGUAGES["c++" if "c" not in tags or _IS_CPP.search(text[:_HEAD]) else "c"]
    return next((LANGUAGES[name] for name in LANGUAGES if name in tags), None)


def is_binary_name(path: str) -> bool:
    """Return whether the ending of a file is one of binary files, such as .png."""
    return "binary" in _tags_of_name(path.rsplit("/", 1)[-1])


@lru_cache(maxsize=4096)
def _tags_of_name(name: str) -> frozenset[str]:
    return frozenset(_identify().tags_from_filename(name))


@lru_cache(maxsize=256)
def _tags_of_line(line: str) -> frozenset[str]:
    words = line[2:].split()
    if words and words[0].endswith("/env"):
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    program = words[0].rsplit("/", 1)[-1] if words else ""
    return frozenset(_identify().tags_from_interpreter(program)) if program else frozenset()


def _identify():  # type: ignore[no-untyped-def]  # the module
    try:
        from identify import identify
    except ImportError as error:
        raise NielsCacheError("code needs the package identify; run: pip install 'niels-cache[code]'") from error
    return identify
