"""The rules of the layout: there is no cycle of imports, and a subpackage (here: room) imports only the subpackages that it may import."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from niels_cache_assets.cli.parser import COMMANDS
from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES

Graph = Mapping[str, set[str]]


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


def circles(graph: Graph) -> set[frozenset[str]]:
    """Find the cycles of imports: the largest sets of modules in which each module imports every other, directly or through others."""
    reached = {start: _reachable(graph, start) for start in graph}
    return {frozenset(other for other in reached[start] if start in reached[other]) for start in graph if start in reached[start]}


def _reachable(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        new = graph[left.pop()] - found
        found |= new
        left += new
    return found


ROOT = Path(__file__).resolve().parents[2]
FILES = {name: path for package in ("niels_cache_runtime", "niels_cache_assets") for name, path in modules(ROOT / package).items()}


PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def rooms_of(package: str) -> dict[str, set[str]]:
    """Read what each room may import of its own package from the page's table of the package."""
    [table] = re.findall(rf"^\| subpackage of `{package}` .*\n\| ---.*\n((?:\| .*\n)+)", PAGE, re.MULTILINE)
    rows = re.findall(r"^\| `(\w+)/` \| .* \| (?:none|((?:`\w+` ?)+)) \|$", table, re.MULTILINE)
    assert len(rows) == table.count("\n"), "a row has another form"
    return {room: set(re.findall(r"\w+", others)) for room, others in rows}


ROOMS = {package: rooms_of(package) for package in ("niels_cache_runtime", "niels_cache_assets")}
[line] = re.findall(r"^Every subpackage may also import .*\n(.*)", PAGE, re.MULTILINE)
ANYWHERE = set(re.findall(r"\w+", line))


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return imports(FILES)


def test_no_module_leads_back_to_itself(graph: dict[str, set[str]]) -> None:
    assert sum(map(len, graph.values())) > 1000
    assert [{name: sorted(graph[name] & circle) for name in sorted(circle)} for circle in circles(graph)] == []


def test_a_source_is_in_the_module_of_its_name_and_a_command_too() -> None:
    sources = {**PRETRAIN_SOURCES, **SFT_SOURCES}
    assert len(sources) > 10
    assert {kind: source.__module__ for kind, source in sources.items()} == {kind: f"niels_cache_assets.sources.{kind}" for kind in sources}
    commands = {name.replace("-", "_") for group in COMMANDS.values() for name in group}
    files = {path.stem for path in FILES.values() if path.parent == ROOT / "niels_cache_assets/cli/commands"}
    assert files == {*commands, "__init__"}


@pytest.mark.parametrize(("package", "room"), [(package, room) for package, rooms in ROOMS.items() for room in rooms])
def test_a_room_imports_only_what_it_may(package: str, room: str, graph: dict[str, set[str]]) -> None:
    inside = {name: found for name, found in graph.items() if name.split(".")[:2] == [package, room]}
    assert len(inside) > 1
    allowed = {room, *ROOMS[package][room], *ANYWHERE}
    others = {name: {each.split(".")[1] for each in found if each.startswith(f"{package}.")} - allowed for name, found in inside.items()}
    assert {name: found for name, found in others.items() if found} == {}
    used = {each.split(".")[1] for found in inside.values() for each in found if each.startswith(f"{package}.")}
    assert sorted(allowed - used - ANYWHERE - {room}) == [], "imports these no more: take them out of the page"


def test_the_modules_that_every_room_may_import_import_no_room(graph: dict[str, set[str]]) -> None:
    inside = {f"{package}.{name}" for package in ROOMS for name in ANYWHERE} & graph.keys()
    assert {name.rpartition(".")[2] for name in inside} == ANYWHERE
    others = {name: {each for each in graph[name] if each.startswith(name.partition(".")[0])} - inside for name in inside}
    assert {name: found for name, found in others.items() if found} == {}


def test_the_page_about_the_architecture_names_every_room_and_only_files_that_are_there() -> None:
    folders = {package: {path.parent.name for path in (ROOT / package).glob("*/__init__.py")} for package in ROOMS}
    assert {package: set(rooms) for package, rooms in ROOMS.items()} == folders
    named = [path for path in re.findall(r"`([\w/]+(?:/|\.py))`", PAGE) if "/" in path.rstrip("/")]
    assert len(named) > 30
    places = (ROOT, ROOT / "niels_cache_assets", ROOT / "niels_cache_runtime")
    assert [path for path in named if not any((place / path).exists() for place in places)] == []
