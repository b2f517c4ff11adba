"""Which files globs and folders find: links, loops, hard links, folders that may not be listed, brackets."""

import glob
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.cli.detection import recognize
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES
from niels_cache_assets.sources.finding.globs import glob_files
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_assets.sources.notes import notes_on_source
from niels_cache_assets.sources.reading.files import file_bytes, find_files, find_groups, walk_folder
from niels_cache_assets.sources.reading.references import questions
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.messages import missing
from tests.helpers.read_sources import read


def write(path: Path, content: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree without a link to a folder. Names are in an order that differs from that of their paths (`a-b/` before `a/`)."""
    for name in (
        *("a/x.jsonl", "a/b/y.jsonl", "a/b/c/z.jsonl", "a-b/x.jsonl", "A/UP.JSONL", ".hidden/x.jsonl", "a/.h.jsonl", "a/b/.deep/q.jsonl"),
        *("[v1]/x.jsonl", "v/x.jsonl", "a*b/x.jsonl", "top.jsonl", "other.txt", "ümlaut/ß.jsonl", "dir.jsonl/inner.jsonl", "a**b/w.txt"),
    ):
        write(tmp_path / name)
    (tmp_path / "broken.jsonl").symlink_to("nowhere")
    (tmp_path / "self.jsonl").symlink_to("self.jsonl")
    return tmp_path


PATTERNS = (
    *("*", "**", "*.jsonl", "**/*.jsonl", "a/**/b/*.jsonl", "**/**/z.jsonl", "a/b/../x.jsonl", "[[]v1]/*.jsonl", "?/x.jsonl"),
    *(".h*/*.jsonl", "**/.h*", "a**/x.jsonl", "*/*/c/*", "a/*.JSONL", "missing/**/*", "top.jsonl/*", "b*.jsonl", "s*.jsonl", "./a/*"),
    *("**/dir.jsonl", "ü*/*", "a[*]b/*", "[!a]/x.jsonl"),
)


def test_without_linked_folders_a_glob_means_what_it_means_in_python(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    for whole in (*PATTERNS, *(os.path.join(tree, pattern) for pattern in PATTERNS)):
        expected = {os.path.normpath(path) for path in glob.glob(whole, recursive=True) if not os.path.isdir(path)}
        assert {os.path.normpath(path) for path in glob_files(whole).paths} == expected, whole


def loops(folder: Path, count: int) -> None:
    """Links that lead to the folder above, and to one another: the number of paths has no bound."""
    for name in (f"{place}link{number}" for number in range(count) for place in ("", "sub/")):
        (folder / name).symlink_to(folder)


@pytest.mark.parametrize("pattern", ["**/*.jsonl", "**/sub/**/*.jsonl", "**"])
def test_a_search_through_links_that_form_loops_ends_and_finds_each_file_once(tmp_path: Path, pattern: str) -> None:
    data = tmp_path / "data"
    write(data / "a.jsonl"), write(data / "sub/b.jsonl")
    loops(data, 12)
    found = find_files([str(data / pattern)])
    real = [os.path.realpath(file.url) for file in found if file.url.endswith("jsonl")]
    assert sorted(real) == [str(data / "a.jsonl"), str(data / "sub/b.jsonl")]


def test_the_first_path_in_sorted_order_names_a_file_in_globs_and_folders(tmp_path: Path) -> None:
    write(tmp_path / "root/v1/a.md")
    (tmp_path / "root/latest").symlink_to("v1")
    (tmp_path / "root/zz").symlink_to("v1")
    write(tmp_path / "root/m.md"), (tmp_path / "root/k.md").symlink_to("m.md")
    expected = ["k.md", "latest/a.md"]
    root = str(tmp_path / "root")
    assert [file.name for file in find_files([f"{root}/**/*.md"])] == expected
    assert [file.name for file in find_files([f"{root}/*.md", f"{root}/*/*.md"])] == expected
    assert [file.name for file in find_files([f"{root}/zz/*.md", f"{root}/v1/*.md", f"{root}/m.md", f"{root}/k.md"])] == ["k.md", "v1/a.md"]
    assert [file.name for file in find_files([root], (".md",))] == expected
    assert [file.name for file in walk_folder(root, (".md",))] == expected
    assert file_bytes([f"{root}/**/*.md"]) == 2


@pytest.mark.parametrize("backwards", [False, True])
def test_the_order_in_which_a_file_system_lists_names_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backwards: bool
) -> None:
    for name in ("b", "b-1", "zoo"):
        write(tmp_path / f"root/{name}/{name}.md")
    for link, target in (("a", "zoo"), ("b/link", "../b-1"), ("b-1/link", "../b")):
        (tmp_path / "root" / link).symlink_to(target)
    scandir = os.scandir

    @contextmanager
    def ordered(path: Any) -> Iterator[Any]:
        with scandir(path) as entries:
            yield sorted(entries, key=lambda entry: entry.name, reverse=backwards)

    monkeypatch.setattr(os, "scandir", ordered)
    expected = ["a/zoo.md", "b-1/b-1.md", "b-1/link/b.md"]
    assert [file.name for file in walk_folder(str(tmp_path / "root"), (".md",))] == expected
    assert [file.name for file in find_files([str(tmp_path / "root/**/*.md")])] == expected


ROW = json.dumps({"text": "one text"}) + "\n"
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {  # by kind of source: name and content of a file, and further keys
    "jsonl": ("a.jsonl", ROW, {}),
    "text": ("a.txt", "one text", {}),
    "markdown_folder": ("a.md", "one text", {}),
    "huggingface": ("a.jsonl", ROW, {"dataset": "a/b"}),
    "parquet": ("a.parquet", "", {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_source_reads_a_linked_file_once_and_a_hard_link_again(tmp_path: Path, kind: str) -> None:
    name, content, keys = KINDS[kind]
    write(tmp_path / "data/v1" / name, content)
    if kind == "parquet":
        pq.write_table(pa.table({"text": ["one text"]}), tmp_path / "data/v1" / name)
    (tmp_path / "data/latest").symlink_to("v1")
    (tmp_path / "data/v1" / f"b{name}").symlink_to(name)
    (tmp_path / "data/v1/loop").symlink_to("..")
    place = "path" if kind == "markdown_folder" else "files"
    value: Any = str(tmp_path / "data") if place == "path" else [str(tmp_path / "data/**" / f"*{name[1:]}")]
    source = {**PRETRAIN_SOURCES, **SFT_SOURCES}[kind](source=kind, **{place: value}, **keys)
    items, _ = read(source)
    assert len(items) == 1
    revision = source.revision({})
    (line,) = notes_on_source(source)
    assert missing(line, "latest", "once") == []

    (tmp_path / "data/v1/loop").unlink(), (tmp_path / "data/latest").unlink(), (tmp_path / "data/v1" / f"b{name}").unlink()
    assert notes_on_source(source) == []
    (tmp_path / "data/latest").mkdir()
    os.rename(tmp_path / "data/v1" / name, tmp_path / "data/latest" / name)
    assert source.revision({}) == revision, "the links changed nothing but a name"
    os.link(tmp_path / "data/latest" / name, tmp_path / "data/v1" / name)
    assert len(read(source)[0]) == 2
    (line,) = notes_on_source(source)
    assert missing(line, "warning", "hard link", "latest") == []


def test_an_added_table_takes_a_file_that_a_link_names(tmp_path: Path) -> None:
    write(tmp_path / "data/a.jsonl"), write(tmp_path / "data/b.jsonl")
    (tmp_path / "new").mkdir(), (tmp_path / "new/b.jsonl").symlink_to("../data/b.jsonl")
    first, added = find_groups([str(tmp_path / "data/*")], [[str(tmp_path / "new/*")]])
    assert [file.name for file in first] == ["a.jsonl"]
    assert len(added) == 1
    (tmp_path / "again.jsonl").symlink_to("data/b.jsonl")
    with pytest.raises(NielsCacheError, match="two tables"):
        find_groups([str(tmp_path / "data/*")], [[str(tmp_path / "new/*")], [str(tmp_path / "again.jsonl")]])


@pytest.mark.parametrize("source", ["huggingface", "gutenberg", "oasst1"])
def test_a_file_in_files_and_through_a_link_in_val_files_is_refused(tmp_path: Path, source: str) -> None:
    write(tmp_path / "train/a.jsonl", ROW), write(tmp_path / "val/b.jsonl", ROW)
    (tmp_path / "val/c.jsonl").symlink_to("../train/a.jsonl")
    keys = {"dataset": "a/b"} if source == "huggingface" else {}
    kinds = {**PRETRAIN_SOURCES, **SFT_SOURCES}
    table = kinds[source](source=source, files=[str(tmp_path / "train/*")], val_files=[str(tmp_path / "val/*")], **keys)
    for ask in (table.input_files, lambda: table.revision({}), lambda: table.check_input({}), lambda: read(table)):
        with pytest.raises(NielsCacheError, match="files and val_files"):
            ask()


def test_init_writes_one_glob_for_a_folder_with_loops_and_its_paths_are_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "data/a.jsonl", ROW), write(tmp_path / "data/sub/b.jsonl", ROW), write(tmp_path / "data/sub/c.txt", "text")
    loops(tmp_path / "data", 3)
    monkeypatch.chdir(tmp_path)
    places = {place for proposal in recognize(["data"]) for place in proposal.paths}
    assert places == {"data/**/*.jsonl", "data/**/*.txt"}
    mixed = {place for proposal in recognize(["data/sub/*"]) for place in proposal.paths}
    assert mixed == {"data/sub/b.jsonl", "data/sub/c.txt"}


@pytest.mark.parametrize(
    ("pattern", "exact"),
    [("data [v1]/part-[01].jsonl", "data [[]v1]/part-[01].jsonl"), ("data [v1]/deep [x]/**/*.jsonl", "data [[]v1]/deep [[]x]/**/*.jsonl")],
)
def test_brackets_in_names_give_the_exact_glob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, exact: str) -> None:
    for name in ("part-0.jsonl", "part-1.jsonl", "deep [x]/a.jsonl"):
        write(tmp_path / "data [v1]" / name, ROW)
    monkeypatch.chdir(tmp_path)
    for find in (
        lambda: find_files([pattern]),
        lambda: find_groups(["data [[]v1]/part-0.jsonl"], [[pattern]]),
        lambda: [*questions(pattern)],
        lambda: recognize([pattern]),
        lambda: read(Huggingface(dataset="a/b", files=["data [[]v1]/part-0.jsonl"], val_files=[pattern])),
    ):
        with pytest.raises(NielsCacheError) as raised:
            find()
        assert missing(str(raised.value), "brackets", repr(exact)) == []
    assert find_files([exact])
    for nowhere in ("nowhere [v1]/*", "memory://bucket/nowhere [v1]/*"):
        with pytest.raises(NielsCacheError, match=r"brackets .*\[\[\]"):
            find_files([nowhere])


def test_a_build_says_once_what_links_lead_to(tmp_path: Path, tiny_model: Path) -> None:
    write(tmp_path / "data/v1/a.jsonl", ROW * 20)
    (tmp_path / "data/latest").symlink_to("v1")
    os.link(tmp_path / "data/v1/a.jsonl", tmp_path / "data/v1/b.jsonl")
    table = 'source = "jsonl"\nfiles = ["data/**/*.jsonl"]\nval_frac = 0.1\n'
    write(
        tmp_path / "niels_cache.toml",
        f"[tokenizer]\nmodel = {json.dumps(str(tiny_model))}\n[pretrain.one]\n{table}[pretrain.parts]\n{table}parts = 2\n"
        f'[pretrain.prepared]\n{table}prepare = ["dedup"]\n',
    )
    found = graph(load_registry(config=str(tmp_path / "niels_cache.toml")), tmp_path / "cache")
    materialize(found["tokenizer"])
    for key in ("pretrain/one", "plan/parts", "corpus/prepared"):
        said: list[str] = []
        materialize(found[key], log=said.append)
        assert len([line for line in said if "data/latest" in line and "each file is read once" in line]) == 1, said
        assert len([line for line in said if line.startswith("warning") and "hard link" in line]) == 1, said
