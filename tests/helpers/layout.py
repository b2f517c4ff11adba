"""The graph of imports between modules, and the cycles in a graph: for the tests of the layout, and for docs/rooms_picture.py."""

import ast
from collections.abc import Mapping
from pathlib import Path


def modules(package: Path) -> dict[str, Path]:
    """Map the dotted name of each module in the folder of a package to its file."""
    parts = {path: path.relative_to(package.parent).with_suffix("").parts for path in sorted(package.rglob("*.py"))}
    return {".".join(names[:-1] if names[-1] == "__init__" else names): path for path, names in parts.items()}


def imports(files: Mapping[str, Path]) -> dict[str, set[str]]:
    """Map each module to those of `files` that it imports: anywhere in the file, in functions and for type checkers too.

    `from package import name` counts as an import of the module `package.name` if there is one, and of the package if not.
    """
    return {name: _imported(path, files) - {name} for name, path in files.items()}


def _imported(path: Path, files: Mapping[str, Path]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in files else str(node.module) for name in names}
    return found & files.keys()


def circles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """Find the cycles of imports: the largest sets of modules in which each module imports every other, directly or through others."""
    reached = {start: _reachable(graph, start) for start in graph}
    return {frozenset(other for other in reached[start] if start in reached[other]) for start in graph if start in reached[start]}


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        new = graph[left.pop()] - found
        found |= new
        left += new
    return found
