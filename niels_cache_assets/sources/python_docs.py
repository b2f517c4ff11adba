"""The source `python_docs`, for a pretrain data set of the standard library's docstrings, which every machine has.

The quickstart profile builds this data set, because it is real prose and needs no network. `python_help` (SFT) uses the same docstrings.

The source code of the library is parsed, not imported, so none of it runs. Parsing takes a few seconds per pass. Objects that are written
in C have no docstring in the source code, so the parser does not find them.
"""

import ast
import platform
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from typing import Literal, NamedTuple

from niels_cache_assets.base.documents import Document
from niels_cache_assets.sources.reading.encodings import read_text
from niels_cache_assets.sources.reading.files import SourceFile, files_digest, walk_folder
from niels_cache_assets.sources.reading.rows import batched
from niels_cache_assets.sources.types import PretrainSource, Siblings, StreamContext
from niels_cache_runtime.errors import NielsCacheError

# Folders with tests, with vendored or generated code, or with packages that are not part of the standard library.
SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages", "ensurepip", "__pycache__"}
)

MIN_CHARACTERS = 40  # shorter docstrings are dropped and counted
_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class DocumentedObject(NamedTuple):
    """An object with its docstring.

    Attributes:
        kind: module, class, function or method.
        name: The qualified name, such as `json.dumps`.
        doc: The docstring.
        file: The path relative to the folder of the library.
        line: The line where the object begins, from 0.
    """

    kind: str
    name: str
    doc: str
    file: str
    line: int


class PythonDocs(PretrainSource):
    """One document per module, class, function or method: its qualified name, a blank line and its docstring."""

    source: Literal["python_docs"] = "python_docs"

    def revision(self, siblings: Siblings) -> str | None:
        return stdlib_revision()

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        return batched(self._documents(context))

    def _documents(self, context: StreamContext) -> Iterator[Document]:
        for found in documented_objects():
            if len(found.doc) < MIN_CHARACTERS:
                context.report.drop_row("short_docstring", found.file, found.line)
            else:
                yield Document(f"{found.name}\n\n{found.doc}", found.name, found.file, found.line, title=found.name)


def stdlib_files() -> list[SourceFile]:
    """Return the source files of the library, sorted by path.

    Raises:
        NielsCacheError: If this Python was installed without them.
    """
    folder = sysconfig.get_paths()["stdlib"]
    files = walk_folder(folder, (".py",), skip=SKIPPED_FOLDERS)
    if not files:
        raise NielsCacheError(f"{folder}: this Python has no standard library sources; use a Python installation that ships them")
    return files


def stdlib_revision() -> str:
    """Return Python's implementation and version, and a digest of the parsed files.

    The digest is needed because distributions patch the library.
    """
    return f"{sys.implementation.name}-{platform.python_version()} {files_digest(stdlib_files())}"


def documented_objects() -> Iterator[DocumentedObject]:
    """Yield all objects that have a docstring, file by file, in source order.

    Private objects are included. Objects inside functions are not.
    """
    for file in stdlib_files():
        module = file.name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        try:
            with warnings.catch_warnings():  # invalid escapes in the library are not the user's problem
                warnings.simplefilter("ignore")
                tree = ast.parse(read_text(file)[0])
        except SyntaxError:
            continue  # a file of a different tool (a template) whose name ends in .py
        if doc := ast.get_docstring(tree):
            yield DocumentedObject("module", module, doc, file.name, 0)
        for node, name, kind in _definitions(tree, module, "function"):
            if doc := ast.get_docstring(node):
                yield DocumentedObject(kind, name, doc, file.name, node.lineno - 1)


def _definitions(parent: ast.AST, prefix: str, function: str) -> Iterator[tuple[_Definition, str, str]]:
    """Yield the classes and functions in a module or class, each with its name and kind, including those under `if`, `try` and `with`.

    Args:
        parent: The module, class or statement.
        prefix: The name of the module or class.
        function: The kind of a function there: function or method.
    """
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef):
            name = f"{prefix}.{node.name}"
            yield node, name, "class"
            yield from _definitions(node, name, "method")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node, f"{prefix}.{node.name}", function
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ExceptHandler, ast.For, ast.While)):
            yield from _definitions(node, prefix, function)
