"""Sources of the user's own code: functions and classes by path, and kinds by an entry point of a package."""

import json
import os
import pickle
import re
import sys
import tomllib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets import Document
from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.artifacts.state import CacheState, state_of
from niels_cache_assets.base.documents import FIRST_DROPPED
from niels_cache_assets.base.toml import typed_toml
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.sources import own
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.format.meta import read_meta
from tests.helpers.parts_project import NAME, build, stream_of
from tests.helpers.places import require_every_place_is_exact
from tests.helpers.read_sources import read

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/roam_source"
_numbers = count()

CODE = """
import json
from niels_cache_assets import Document

def documents(file, *, least: int = 0):
    with file.open() as lines:
        for line in lines:
            row = json.loads(line)
            if len(row["text"]) >= least:
                yield Document(row["text"], source_id=row["id"])

def one_text(file):
    with open(file) as lines:
        return lines.read()

class Items:
    def __init__(self, word: str, none=(3, 7)):
        self.word, self.none = word, none

    def documents(self, number):
        for each in range(0 if number in self.none else number % 4 + 1):
            yield " " if each == 2 else f"{self.word} {number} {each} " + "is a text " * number

def broken(file):
    yield "a text"
    raise KeyError(file.name)

def of_wrong_type(file):
    yield "a text"
    yield 5

def of_no_split(file):
    yield Document("a text", split="test")

class Closed:
    def __init__(self):
        raise ConnectionError("no server")

def taken(file, parts=1): ...
def method(file, revision=""): ...
def unknown(file, x: "Missing" = 1): ...
anonymous = lambda file: []
"""


class Module:
    """A module beside a niels_cache.toml, with a name of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, f"own_{next(_numbers)}"
        self.path = folder / f"{self.name}.py"
        self.path.write_text(CODE)

    def table(self, attribute: str, **keys: Any) -> PretrainSource:
        table = {"source": f"{self.name}:{attribute}", **keys}
        lines = "\n".join(f"{key} = {typed_toml(value)}" for key, value in table.items())
        (self.folder / "niels_cache.toml").write_text(f"[pretrain.x]\n{lines}\n")
        return load_registry(config=str(self.folder / "niels_cache.toml")).pretrain["x"]

    def change(self, text: str) -> None:
        """Change the module on disk, and forget it, as a new process does."""
        before = self.path.stat().st_mtime_ns
        self.path.write_text(text)
        os.utime(self.path, ns=(before + 10**9, before + 10**9))
        sys.modules.pop(self.name)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    made = Module(tmp_path)
    yield made
    sys.modules.pop(made.name, None)


def write_rows(folder: Path, *names: str, rows: int = 6) -> None:
    for name in names:
        lines = [json.dumps({"id": f"{name}{row}", "text": f"{name} {'word ' * (row % 9)}"}) for row in range(rows)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))


def test_a_function_yields_the_documents_of_files_and_its_parameters_are_keys(module: Module, tmp_path: Path) -> None:
    write_rows(tmp_path, "a", "b")
    found, _ = read(module.table("documents", files=["*.jsonl"], least=20))
    texts = {name: [f"{name} {'word ' * row}" for row in range(4, 6)] for name in "ab"}
    assert found == [Document(text, f"{name}{row + 4}", f"{name}.jsonl", row) for name in "ab" for row, text in enumerate(texts[name])], (
        "row counts what the function yields"
    )
    [a, _] = read(module.table("one_text", files=["*.jsonl"]))[0]
    assert a == Document((tmp_path / "a.jsonl").read_text(), "a.jsonl#0", "a.jsonl", 0)


def test_a_class_gets_numbers_and_drops_are_counted(module: Module) -> None:
    found, context = read(module.table("Items", items=9, word="Item"))
    expected = [(number, row) for number in range(9) if number not in (3, 7) for row in range(number % 4 + 1) if row != 2]
    assert [(document.file, document.row) for document in found] == [(str(number), row) for number, row in expected]
    assert context.report.dropped == {"empty": 2}
    assert context.report.facts.keys() == {FIRST_DROPPED}, "an item without documents is nothing to note"


@pytest.mark.parametrize("kind", ["files", "items"])
def test_a_pass_starts_at_every_place(module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(rows, "BATCH_DOCUMENTS", 2)
    write_rows(tmp_path, "a", "b", "c", rows=7)
    files = module.table("documents", files=["*.jsonl"])
    require_every_place_is_exact(files if kind == "files" else module.table("Items", items=14, word="x"), at_least=8)


def test_a_table_is_pickled_by_its_name(module: Module, tmp_path: Path) -> None:
    write_rows(tmp_path, "a")
    source = module.table("documents", files=["*.jsonl"], least=7)
    again = pickle.loads(pickle.dumps(source))
    assert again == source
    assert type(again) is type(source)
    assert read(again)[0] == read(source)[0] != []


def graph_of(module: Module, model: Path, root: str, table: str) -> Graph:
    """The artifacts of a data set `pages` in its own root."""
    config = module.folder / f"{root}.toml"
    config.write_text(
        f"[dagster]\nplots = false\n[tokenizer]\nmodel = {json.dumps(str(model))}\n[build]\nshard_bytes = 1024\nthreads = 1\nseed = 7\n"
        f'[pretrain.{NAME}]\nsource = "{module.name}:{table}\n'
    )
    return graph(load_registry(config=str(config)), module.folder / root)


FILES, ITEMS = 'documents"\nfiles = ["*.jsonl"]', 'Items"\nitems = 12\nword = "Item"'


@pytest.mark.parametrize("table", [FILES, ITEMS], ids=["files", "items"])
def test_parts_hold_the_documents_of_a_whole_build(module: Module, tmp_path: Path, tiny_model: Path, table: str) -> None:
    write_rows(tmp_path, *"abcdef", rows=8)
    for parts in (1, 3):
        build(graph_of(module, tiny_model, f"cache{parts}", f"{table}\nval_frac = 0.2\nparts = {parts}"))
    whole, joined = (tmp_path / f"cache{parts}/pretrain" / NAME for parts in (1, 3))
    meta = read_meta(joined / "meta.json")
    assert (len(meta["parts"]), min(meta["documents"].values())) >= (3, 2)
    assert stream_of(joined) == stream_of(whole)


def test_a_build_that_ended_continues_with_the_file_that_it_read(
    module: Module, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIELS_CACHE_JOURNAL_BYTES", "300")
    write_rows(tmp_path, *"abcdef", rows=150)
    table = f"{FILES}\nval_tokens = 20"
    build(graph_of(module, tiny_model, "whole", table))
    found, end = graph_of(module, tiny_model, "ended", table), (tmp_path / "e.jsonl").read_text()
    opened: list[str] = []
    read_file = SourceFile.open
    monkeypatch.setattr(SourceFile, "open", lambda file: opened.append(file.name) or read_file(file))  # type: ignore[func-returns-value]

    def stop(file: SourceFile) -> Any:
        if file.name == "e.jsonl":
            raise OSError("the disk is gone")
        return read_file(file)

    with monkeypatch.context() as patch:
        patch.setattr(SourceFile, "open", stop)
        with pytest.raises(NielsCacheError, match=rf"^e\.jsonl: row 0: {module.name}:documents raised OSError: the disk is gone"):
            build(found)
    assert (tmp_path / "e.jsonl").read_text() == end
    build(found)
    assert opened[-1] == "f.jsonl"
    assert "a.jsonl" not in opened
    assert stream_of(tmp_path / "ended/pretrain" / NAME) == stream_of(tmp_path / "whole/pretrain" / NAME)


def test_a_change_of_the_code_makes_the_data_set_stale_and_a_comment_does_not(module: Module, tmp_path: Path, tiny_model: Path) -> None:
    write_rows(tmp_path, "a", "b")
    build(graph_of(module, tiny_model, "cache", f"{FILES}\nval_frac = 0.0"))

    def state() -> CacheState:
        return state_of(graph_of(module, tiny_model, "cache", f"{FILES}\nval_frac = 0.0").cache(NAME))

    assert state().meta["source"]["code"]["use"] == f"{module.name}:documents"
    assert state().state == "in sync"
    module.change(CODE.replace("import json", "import json  # a comment"))
    assert state().state == "in sync"
    module.change(CODE.replace("len(row", "2 * len(row"))
    assert state().state == "other settings"
    assert "the code of its source" in state().advice


@pytest.mark.parametrize(
    ("attribute", "keys", "words"),
    [
        ("documents", {}, "give files, or items"),
        ("documents", {"files": ["*.jsonl"], "items": 3}, "give files, or items"),
        ("documents", {"files": ["*.jsonl"], "leest": 3}, "did you mean 'least'"),
        ("documents", {"files": ["*.jsonl"], "least": "3"}, "least"),
        ("Items", {"items": 3}, "word"),
        ("Items", {"items": 3, "word": "x", "added": [{"files": ["a"]}]}, "added adds files"),
        ("Items", {"items": 3, "word": "x", "parts": 4, "val_frac": 0.5}, ""),
        ("document", {"files": ["*.jsonl"]}, "did you mean 'documents'"),
        ("anonymous", {"files": ["*.jsonl"]}, "lambda"),
        ("taken", {"files": ["*.jsonl"]}, "'parts' means something else"),
        ("method", {"files": ["*.jsonl"]}, "'revision' means something else"),
        ("unknown", {"files": ["*.jsonl"]}, "Missing"),
    ],
)
def test_a_mistake_in_a_table_is_one_line(module: Module, tmp_path: Path, attribute: str, keys: dict[str, Any], words: str) -> None:
    write_rows(tmp_path, "a")
    if not words:
        assert module.table(attribute, **keys).total_parts == 4
        return
    with pytest.raises(NielsCacheError) as raised:
        module.table(attribute, **keys)
    assert re.match(rf"{tmp_path}/niels_cache.toml: \[pretrain\.x\][^\n]*{words}[^\n]*$", str(raised.value))


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        ("broken", r"row 1: .*:broken raised KeyError: 'a.jsonl' \(.*/own_\d+\.py:\d+\); correct it"),
        ("of_wrong_type", "row 1: .*5 is neither"),
        ("of_no_split", "row 0: .*split"),
        ("Closed", "row 0: .*:Closed raised ConnectionError: no server"),
    ],
)
def test_an_error_of_the_code_is_one_line_with_the_file_and_the_row(module: Module, tmp_path: Path, attribute: str, words: str) -> None:
    write_rows(tmp_path, "a")
    source = module.table(attribute, files=["*.jsonl"])
    with pytest.raises(NielsCacheError, match=rf"^a\.jsonl: {words}[^\n]*$"):
        read(source)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            'source = "my_chats:pairs"',
            r"source: 'my_chats:pairs' is your own code, which only pretrain data sets can have; write .*chat_jsonl",
        ),
        ('source = "chat_jsonl"\nfiles = ["*.jsonl"]\nsteps = ["a:b"]', "steps is for pretrain data sets only; change or drop conv"),
    ],
)
def test_sft_tables_say_that_they_take_no_code(tmp_path: Path, keys: str, words: str) -> None:
    (tmp_path / "niels_cache.toml").write_text(f"[sft.x]\n{keys}\n")
    with pytest.raises(NielsCacheError, match=rf"niels_cache.toml: \[sft\.x\][^\n]*{words}[^\n]*$"):
        load_registry(config=str(tmp_path / "niels_cache.toml"))


def test_a_package_names_its_source_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    [(name, path)] = project["entry-points"][own.GROUP].items()
    folder = tmp_path / "installed" / "niels_cache_roam-1.0.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: niels-cache-roam\nVersion: 1.0.0\n")
    (folder / "entry_points.txt").write_text(f"[{own.GROUP}]\n{name} = {path}\n")
    monkeypatch.setattr(sys, "path", [str(folder.parent), str(EXAMPLE), *sys.path])
    pages = [{"title": "Tea", "uid": "a1", "children": [{"string": "Green", "children": 3}]}, {"title": "Nothing"}, 7]
    (tmp_path / "graph.json").write_text(json.dumps(pages))
    (tmp_path / "niels_cache.toml").write_text(
        f'[pretrain.own]\nsource = "{name}"\npath = "graph.json"\n[pretrain.shipped]\nsource = "roam"\npath = "graph.json"\n'
    )
    tables = load_registry(config=str(tmp_path / "niels_cache.toml")).pretrain
    (own_documents, own_pass), (shipped, its_pass) = (read(tables[each]) for each in ("own", "shipped"))
    assert len(own_documents) == 1
    assert (own_documents, own_pass.report.dropped) == (shipped, its_pass.report.dropped)
    assert "code" in tables["own"].identity()
    assert "code" not in tables["shipped"].identity(), "it has a code version, as in 1.0.0"
    (tmp_path / "niels_cache.toml").write_text('[pretrain.own]\nsource = "roam_graf"\n')
    with pytest.raises(NielsCacheError, match="unknown source 'roam_graf'"):
        load_registry(config=str(tmp_path / "niels_cache.toml"))


def test_the_shipped_source_is_the_module_of_the_example() -> None:
    assert (ROOT / "niels_cache_corpora/roam.py").read_bytes() == (EXAMPLE / "niels_cache_roam.py").read_bytes()
