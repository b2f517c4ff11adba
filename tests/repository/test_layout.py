"""The rules of the layout: there is no cycle of imports, and a subpackage (here: room) imports only subpackages below it."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from niels_cache_assets.cli.parser import COMMANDS
from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES
from tests.helpers.layout import circles, imports, modules

ROOT = Path(__file__).resolve().parents[2]
FILES = {name: path for package in ("niels_cache_runtime", "niels_cache_assets") for name, path in modules(ROOT / package).items()}
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def rooms_of(package: str) -> list[str]:
    """Read the rooms of a package from top to bottom, from its table on the page."""
    [table] = re.findall(rf"^\| subpackage of `{package}` .*\n\| ---.*\n((?:\| .*\n)+)", PAGE, re.MULTILINE)
    rows = re.findall(r"^\| `(\w+)/` \| .* \|$", table, re.MULTILINE)
    assert len(rows) == table.count("\n"), "a row has another form"
    return rows


ROOMS = {package: rooms_of(package) for package in ("niels_cache_runtime", "niels_cache_assets")}
ANYWHERE = {"errors", "catalog_text", "lazy_names"}  # modules of the runtime that every room may import


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return imports(FILES)


def test_no_module_leads_back_to_itself(graph: dict[str, set[str]]) -> None:
    assert sum(map(len, graph.values())) > 1000
    assert [{name: sorted(graph[name] & circle) for name in sorted(circle)} for circle in circles(graph)] == []


def test_a_source_is_in_the_module_of_its_name_and_a_command_too() -> None:
    sources = {**PRETRAIN_SOURCES, **SFT_SOURCES}
    assert len(sources) > 10
    corpora = {kind: f"niels_cache_corpora.{kind}" for kind in ("wikitext", "roam", "gutenberg", "oasst1", "dolly15k")}
    corpora |= {kind: f"niels_cache_corpora.{kind}.source" for kind in ("wikipedia", "warc", "code")}
    expected = {kind: corpora.get(kind, f"niels_cache_assets.sources.{kind}") for kind in sources}
    assert {kind: source.__module__ for kind, source in sources.items()} == expected
    commands = {name.replace("-", "_") for group in COMMANDS.values() for name in group}
    folders = (ROOT / "niels_cache_assets/cli/commands", ROOT / "niels_cache_inspection/commands")
    files = [path.stem for folder in folders for path in folder.glob("*.py") if path.stem != "__init__"]
    assert sorted(files) == sorted(commands)


@pytest.mark.parametrize("package", ROOMS)
def test_a_room_imports_only_rooms_below_it(package: str, graph: dict[str, set[str]]) -> None:
    rooms = ROOMS[package]
    between = {
        (name.split(".")[1], other.split(".")[1]) for name, other in pairs(graph) if name.startswith(package) and other.startswith(package)
    }
    upwards = [(room, other) for room, other in sorted(between) if room in rooms and other in rooms[: rooms.index(room)]]
    assert len(between) > 20
    assert upwards == []
    by_room = {room: {other for one, other in between if one == room and other in rooms} for room in rooms}
    assert circles(by_room) <= {frozenset({room}) for room in rooms}, "rooms import each other"
    outside = {other for room, other in between if room in rooms} - {*rooms, *ANYWHERE}
    assert outside == set(), "a module that is in no room"


def pairs(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return each import of a module by a module of a room."""
    return [(name, other) for name, found in graph.items() for other in found if name.count(".") > 1 and other.count(".") > 0]


def test_a_public_class_name_is_used_once() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES.values()}
    names = [node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name[0] != "_"]
    assert len(names) > 300
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_every_module_is_in_a_room_or_a_documented_path() -> None:
    single = {name for name in FILES if name.count(".") == 1 and not FILES[name].name.startswith("__init__")}
    paths = {"catalog", "catalog_text", "errors", "formats", "lazy_names", "lightning", "map_style", "packed_examples", "trace"}
    assert single == {f"niels_cache_runtime.{name}" for name in paths} | {"niels_cache_assets.definitions"}


def test_the_page_about_the_architecture_names_every_room_and_only_files_that_are_there() -> None:
    folders = {package: {path.parent.name for path in (ROOT / package).glob("*/__init__.py")} for package in ROOMS}
    assert {package: set(rooms) for package, rooms in ROOMS.items()} == folders
    named = [path for path in re.findall(r"`([\w/]+(?:/|\.py))`", PAGE) if "/" in path.rstrip("/")]
    assert len(named) > 30
    places = (ROOT, ROOT / "niels_cache_assets", ROOT / "niels_cache_runtime")
    assert [path for path in named if not any((place / path).exists() for place in places)] == []


def test_the_folders_of_tests_are_the_rooms() -> None:
    tests, packages = ROOT / "tests", [ROOT / package for package in ROOMS]
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")} - {Path()}
    others = {"faults", "product", "repository", "pages", "repeats", "account", "erasure", "find"}  # about no single room
    assert {str(folder) for folder in folders if len(folder.parts) == 1} == {room for rooms in ROOMS.values() for room in rooms} | others
    assert [folder for folder in folders if len(folder.parts) > 1 and not any((package / folder).is_dir() for package in packages)] == []
    shared = {path.relative_to(tests).parts for path in tests.rglob("*.py") if path.name[:5] != "test_"}
    shared = {parts for parts in shared if parts[-1] not in ("__init__.py", "conftest.py")}
    assert {parts[0] for parts in shared} == {"golden", "helpers", "mutants", "size.py", "upgrades"}
