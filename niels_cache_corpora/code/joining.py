"""Documents of several files of a repository: their order, and where one document ends and the next begins.

A file comes after those that it imports, as in DeepSeek-Coder (Guo et al. 2024, section 2.2), if its language says simply which files
these are: Python, JavaScript and TypeScript, C and C++, Go, Java, Kotlin and Scala, Rust. Regular expressions find the imports. All else is
in the order of the paths. If files import each other, the one that is reached first, in the order of the paths, comes last.
"""

import json
import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

MAX_LIST = 6_000  # characters of the list of a document's files, which stays with the document (sources/reading/keep.py)

_PYTHON = re.compile(r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#;]+)|import[ \t]+([\w., \t]+))", re.MULTILINE)
_SCRIPT = re.compile(r"""(?:\bfrom|\bimport|\brequire[ \t]*\(|\bimport[ \t]*\()[ \t]*["'](\.{1,2}/[^"'\n]+|\.{1,2})["']""")
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*(?:include|import)[ \t]*[<\"]([^>\"\n]+)[>\"]", re.MULTILINE)
_GO = re.compile(r"^import[ \t]+(?:\(([^)]*)\)|[\w. \t]*(\"[^\"\n]+\"))", re.MULTILINE)
_JAVA = re.compile(r"^[ \t]*import[ \t]+(?:static[ \t]+)?([\w.]+)", re.MULTILINE)
_RUST = re.compile(r"^[ \t]*(?:pub(?:\([^)\n]*\))?[ \t]+)?(?:mod[ \t]+(\w+)[ \t]*;|use[ \t]+(?:crate|self|super)::([\w:]+))", re.MULTILINE)
_SCRIPT_ENDINGS = ("", ".ts", ".tsx", ".d.ts", ".js", ".jsx", ".mjs", ".cjs", ".vue", ".svelte", "/index.ts", "/index.tsx", "/index.js")
_NAMES = {"{path}": "\0", "{repo}": ".*?", "{language}": ".*?", "{license}": ".*?"}  # in templates: what they are in expressions


class Import(NamedTuple):
    """What a file imports: any of some paths.

    Attributes:
        choices: Paths in the repository, or ends of such paths. The first one that exists is imported.
        is_end: Whether the choices are ends of paths.
        is_folder: Whether the choice is a folder, all files of which are imported.
    """

    choices: tuple[str, ...]
    is_end: bool = True
    is_folder: bool = False


def imports_of(path: str, text: str, language: str | None) -> list[Import]:
    """Return what a file imports, in the order of the text, as far as its language is one of those above."""
    find = _LANGUAGES.get(language or "")
    return list(dict.fromkeys(find(path, text))) if find else []


def _python(path: str, text: str) -> Iterator[Import]:
    for source, names, modules in _PYTHON.findall(text):
        for module in modules.split(","):
            if parts := module.split():
                yield _python_module(parts[0].replace(".", "/"), is_end=True)
        if not source:
            continue
        dots = len(source) - len(source.lstrip("."))
        base = source.lstrip(".").replace(".", "/")
        if dots:
            base = posixpath.normpath(posixpath.join(posixpath.dirname(path), *[".."] * (dots - 1), base)).removeprefix("./")
            base = "" if base == "." else base
        for name in re.findall(r"(\w+)(?:[ \t]+as[ \t]+\w+)?", names):
            yield _python_module(f"{base}/{name}".strip("/"), base, is_end=not dots)


def _python_module(*modules: str, is_end: bool) -> Import:
    return Import(tuple(f"{module}{ending}".strip("/") for module in modules for ending in (".py", "/__init__.py", ".pyi")), is_end)


def _script(path: str, text: str) -> Iterator[Import]:
    for each in _SCRIPT.findall(text):
        base = posixpath.normpath(posixpath.join(posixpath.dirname(path), each))
        stem = re.sub(r"\.(?:js|mjs|jsx)$", "", base)  # TypeScript imports ./x.ts as ./x.js
        yield Import((*(base + ending for ending in _SCRIPT_ENDINGS), f"{stem}.ts", f"{stem}.tsx"), is_end=False)


def _c(path: str, text: str) -> Iterator[Import]:
    for each in _INCLUDE.findall(text):
        yield Import((posixpath.normpath(posixpath.join(posixpath.dirname(path), each)), posixpath.normpath(each).lstrip("./")))


def _go(path: str, text: str) -> Iterator[Import]:
    for block, single in _GO.findall(text):
        for each in re.findall(r'"([^"\n]+)"', block or single):
            parts = each.split("/")
            if len(parts) > 1:
                yield Import(tuple("/".join(parts[start:]) for start in range(1, len(parts))), is_folder=True)


def _java(path: str, text: str) -> Iterator[Import]:
    for each in _JAVA.findall(text):
        name = each.strip(".").replace(".", "/")
        outer = name.rpartition("/")[0]
        if outer:
            yield Import(tuple(f"{base}{ending}" for base in (name, outer) for ending in (".java", ".kt", ".scala") if "/" in base))


def _rust(path: str, text: str) -> Iterator[Import]:
    folder, name = posixpath.split(path)
    own = folder if name in ("mod.rs", "lib.rs", "main.rs") else path.removesuffix(".rs")
    for module, used in _RUST.findall(text):
        if module:
            yield Import((posixpath.join(own, f"{module}.rs"), posixpath.join(own, module, "mod.rs")), is_end=False)
        else:
            parts = [part for part in used.split("::") if part]
            bases = ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]
            yield Import(tuple(f"src/{base}{ending}" for base in bases for ending in (".rs", "/mod.rs")))


_Find = Callable[[str, str], Iterable[Import]]
_LANGUAGES: dict[str, _Find] = {
    **dict.fromkeys(("python", "pyi", "cython"), _python),
    **dict.fromkeys(("javascript", "jsx", "ts", "tsx", "vue", "svelte"), _script),
    **dict.fromkeys(("c", "c++", "objective-c", "objective-c++", "cuda"), _c),
    **dict.fromkeys(("java", "kotlin", "scala"), _java),
    "go": _go,
    "rust": _rust,
}


def import_order(imports: Mapping[str, Sequence[Import]]) -> list[str]:
    """Return the paths of a repository in an order in which files come after those that they import.

    Args:
        imports: What each file imports, by its path.
    """
    paths = sorted(imports)
    by_name, by_folder = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for path in paths:
        by_name[posixpath.basename(path)].append(path)
        by_folder[posixpath.dirname(path)].append(path)
    folders = defaultdict[str, list[str]](list)
    for folder in by_folder:
        folders[posixpath.basename(folder)].append(folder)

    def imported(each: Import) -> list[str]:
        known, named = (by_folder, folders) if each.is_folder else (imports, by_name)
        for choice in each.choices:
            found = choice if choice in known else None
            if found is None and each.is_end and choice:
                ends = [path for path in named.get(posixpath.basename(choice), ()) if path.endswith(f"/{choice}")]
                found = min(ends, key=lambda path: (path.count("/"), path), default=None)
            if found is not None:
                return [path for path in by_folder[found] if path.endswith(".go")] if each.is_folder else [found]
        return []

    order, seen = list[str](), set[str]()
    for start in paths:
        if start in seen:
            continue
        seen.add(start)
        stack: list[tuple[str, Iterator[Import], Iterator[str]]] = [(start, iter(imports[start]), iter(()))]
        while stack:
            path, rest, files = stack[-1]
            below = next((file for file in files if file not in seen), None)
            if below is not None:
                seen.add(below)
                stack.append((below, iter(imports[below]), iter(())))
            elif (following := next(rest, None)) is not None:
                stack[-1] = (path, rest, iter(imported(following)))
            else:
                order.append(path)
                stack.pop()
    return order


class JoinedFiles(NamedTuple):
    """A document of several files.

    Attributes:
        text: The text, with the markers.
        paths: The paths of its files, in order.
    """

    text: str
    paths: list[str]


def join_files(files: Iterable[tuple[str, str]], *, start: str, max_characters: int) -> Iterator[JoinedFiles]:
    """Yield documents of files in their order.

    A document ends before the file that would make it longer than `max_characters`, so a longer file is a document of its own.

    Args:
        files: The path of each file, and its text with markers.
        start: What every document begins with.
        max_characters: Most characters of a document with several files.
    """
    parts, paths, characters, listed = list[str](), list[str](), len(start), 0
    for path, text in files:
        length = len(json.dumps(path)) + 1
        if paths and (characters + len(text) > max_characters or listed + length > MAX_LIST):
            yield JoinedFiles(start + "".join(parts), paths)
            parts, paths, characters, listed = [], [], len(start), 0
        parts.append(text)
        paths.append(path)
        characters, listed = characters + len(text), listed + length
    if paths:
        yield JoinedFiles(start + "".join(parts), paths)


class FilePlace(NamedTuple):
    """Where the text of a file of a document is for certain, in characters, without its marker.

    Attributes:
        path: The path.
        start: The first character.
        end: The character after the last one.
    """

    path: str
    start: int
    end: int


def places_of_files(text: str, paths: Sequence[str], file_start: str) -> list[FilePlace]:
    """Return where the files of a document are, by their markers, from the last file to the first.

    What is uncertain is in no file: what is before the first marker or in a marker, and where a file may begin earlier or later, because
    its marker was changed, by a mask for example, or is in the text once more.

    Args:
        text: The document.
        paths: The paths of its files, in order.
        file_start: The template of the markers.
    """
    markers, spans, end = [_Marker(path, file_start) for path in paths], list[tuple[int, int] | None](), 0
    for marker in markers:  # the earliest begin of each file
        span = marker.first(text, end)
        spans.append(span)
        end = span[1] if span else end
    found = list[FilePlace]()
    following: int | None = len(text)
    last = len(text)
    for path, marker, span in reversed([*zip(paths, markers, spans, strict=True)]):  # the latest one
        if span is not None:
            start, end = marker.last(text, span[0], last)
            if following is not None and end <= following:
                found.append(FilePlace(path, end, following))
            last = start
        following = span and span[0]
    return found


def path_at(text: str, place: int, kept: str | None, file_start: str) -> str | None:
    """Return the path of the file that a place in a document is in, by the markers of its files. Return None if this is not certain.

    Args:
        text: The document.
        place: A number of characters.
        kept: Its kept values, with its paths as `files`.
        file_start: The template of the markers.
    """
    return next((path for path, start, end in places_of_files(text, paths_of(kept), file_start) if start <= place <= end), None)


def paths_of(kept: str | None) -> Sequence[str]:
    """Return the paths of the files of a document, given its kept values. There are none for a document of one file."""
    found = json.loads(kept).get("files") if kept and '"files"' in kept else None
    return found if isinstance(found, list) else ()


class _Marker:
    """The marker before a file.

    Args:
        path: The path of the file.
        file_start: The template.
    """

    def __init__(self, path: str, file_start: str) -> None:
        self._literal, self._pattern = file_start.replace("{path}", path), None
        parts = re.split(r"(\{\w+\})", file_start)
        if any(each in _NAMES and each != "{path}" for each in parts):  # the other values are not known
            escaped = "".join(_NAMES.get(each, re.escape(each)) for each in parts)
            self._pattern = re.compile(escaped.replace("\0", re.escape(path)))

    def first(self, text: str, start: int) -> tuple[int, int] | None:
        """Return where it is first in a text from `start` on, or None."""
        if self._pattern:
            match = self._pattern.search(text, start)
            return match and match.span()
        found = text.find(self._literal, start)
        return None if found < 0 else (found, found + len(self._literal))

    def last(self, text: str, start: int, end: int) -> tuple[int, int]:
        """Return where it is last in a text from `start` to `end`, where it is at least once."""
        if self._pattern:
            *_, match = self._pattern.finditer(text, start, end)
            return match.span()
        found = text.rfind(self._literal, start, end)
        return found, found + len(self._literal)
