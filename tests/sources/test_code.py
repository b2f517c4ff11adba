"""The source `code`: repositories in folders, checkouts and Parquet files, their licences, and documents of several files."""

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.base.documents import Document, DocumentBatch
from niels_cache_assets.base.strings import Strings
from niels_cache_assets.parts.layout import parts_dir
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_assets.sources.types import StreamContext
from niels_cache_cleaning.code import RULES, CodeRules, Limits, problem_of
from niels_cache_cleaning.code_languages import language_of
from niels_cache_cleaning.masks import MASKS, mask
from niels_cache_corpora.code.edges import EdgeFinder, edge_finder
from niels_cache_corpora.code.joining import import_order, imports_of, join_files, path_at
from niels_cache_corpora.code.licensing import RepositoryLicenses, is_allowed, joined
from niels_cache_corpora.code.listing import Repository, find_repositories
from niels_cache_corpora.code.notebooks import notebook_script
from niels_cache_corpora.code.sorting import RUNS, sorted_rows
from niels_cache_corpora.code.source import Code
from niels_cache_inspection.origins import TracedCache
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, SPLITS, documents_name, file_edges_name
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.loader.loader import TokenLoader
from niels_cache_runtime.verify import verify_dataset
from tests.helpers.parts_project import NAME, build, stream_of
from tests.helpers.read_sources import read

LICENSE = Path(__file__).parents[2] / "LICENSE"  # Apache-2.0
MAIN = "from lib.tools import grow\n\nprint(grow(3))\n"
TOOLS = "def grow(size):\n    return size + 1\n"


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def code(*files: Path | str, **keys: Any) -> Code:
    return Code.model_validate({"source": "code", "files": [str(each) for each in files], **keys}, context={"base_dir": "."})


def kept(document: Document) -> dict[str, Any]:
    return json.loads(document.kept or "{}")


@pytest.fixture
def oak(tmp_path: Path) -> Path:
    """Return a folder with code, and with much that is none."""
    folder = write(
        tmp_path / "oak",
        {
            "main.py": MAIN,
            "lib/tools.py": TOOLS,
            "lib/__init__.py": "",
            "tool": "#!/usr/bin/env python3\nprint('a tool')\n",
            "old.py": "# -*- coding: latin-1 -*-\n# caf\xe9\n".encode("latin-1"),
            "tree.png": b"\x89PNG\0\0",
            "data.py": b"x = 1\n\0\0",
            "notes.xyz": "some notes",
            "big.py": "x = 1\n" * 100,
            "vendor/other.py": "import os\n",
            ".hidden.py": "x = 2\n",
            "mit.py": "# SPDX-License-Identifier: MIT\nx = 3\n",
            "nb.ipynb": json.dumps({"cells": [{"cell_type": "code", "source": ["y = 4"]}], "nbformat": 4, "metadata": {}}),
            "torn.ipynb": '{"cells": [',
        },
    )
    shutil.copy(LICENSE, folder / "LICENSE")
    return folder


def test_each_file_of_a_folder_is_a_document_or_is_counted(oak: Path) -> None:
    source = code(oak, keep=["language", "license", "repo"], rules=["vendored"], max_file_bytes=20_000, where='path != "big.py"')
    documents, context = read(source)
    assert {each.file: tuple(kept(each).values()) for each in documents} == {
        "oak/LICENSE": ("plain-text", "Apache-2.0", "oak"),
        "oak/lib/tools.py": ("python", "Apache-2.0", "oak"),
        "oak/main.py": ("python", "Apache-2.0", "oak"),
        "oak/mit.py": ("python", "MIT", "oak"),
        "oak/nb.ipynb": ("jupyter", "Apache-2.0", "oak"),
        "oak/tool": ("python", "Apache-2.0", "oak"),
    }
    assert {each.file: each.text for each in documents}["oak/nb.ipynb"] == "# %%\ny = 4\n"
    assert dict(context.report.dropped) == {
        "code:binary": 2,
        "code:empty": 1,
        "code:no_language": 1,
        "code:vendored": 1,
        "where": 1,
        "broken_notebook": 1,
        "not_text": 1,
    }
    assert context.report.facts["not_text"]["by_file"] == {"oak/old.py": 1}
    assert dict(read(code(oak, max_file_bytes=599))[1].report.dropped)["code:too_large"] == 2


def test_a_pass_goes_on_at_the_file_where_another_one_ended(oak: Path) -> None:
    whole, first = read(code(oak))
    start = {**(first.report.position or {}), "number": 3, "file": code(oak).input_files()[3].name, "row": 0}
    rest, _ = read(code(oak), start=start)
    assert 0 < len(rest) < len(whole)
    assert rest == whole[-len(rest) :]


def test_of_a_checkout_tracked_files_are_read_as_they_are_on_disk(tmp_path: Path) -> None:
    folder = write(tmp_path / "elm", {"a.py": "a = 1\n", "b.py": "b = 1\n", ".ci.py": "c = 1\n", "gone.py": "d = 1\n"})
    (folder / "link.py").symlink_to("a.py")
    git = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *arguments], check=True)
    write(folder, {"b.py": "b = 2\n", "untracked.py": "e = 1\n"})
    (folder / "gone.py").unlink()
    logged: list[str] = []
    documents, context = read(code(tmp_path, keep=["commit"]), log=logged.append)
    assert {each.file: each.text for each in documents} == {"elm/.ci.py": "c = 1\n", "elm/a.py": "a = 1\n", "elm/b.py": "b = 2\n"}
    [commit] = {kept(each)["commit"] for each in documents}
    assert len(commit) == 40
    assert context.report.facts["git"] == {"checkouts": 1, "repositories": {"elm": {"commit": commit, "changed_files": 2}}}
    assert "2 tracked files differ" in logged[0]
    before = code(tmp_path).revision({})
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "y"], check=True)
    assert code(tmp_path).revision({}) != before


def test_distributions_of_an_environment_are_repositories_with_the_licence_of_their_metadata(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "ash/__init__.py": "x = 1\n",
            "ash-1.0.dist-info/METADATA": "Name: ash\nLicense-Expression: MIT OR Apache-2.0\n",
            "ash-1.0.dist-info/RECORD": "ash/__init__.py,,\nash-1.0.dist-info/METADATA,,\n../bin/ash,,\n",
            "beech/__init__.py": "y = 1\n",
            "beech-2.dist-info/METADATA": "Name: beech\nClassifier: License :: OSI Approved :: MIT License\n",
            "beech-2.dist-info/RECORD": "beech/__init__.py,,\nbeech-2.dist-info/METADATA,,\n",
            "loose.py": "z = 1\n",
        },
    )
    found = find_repositories([str(tmp_path)], "auto")
    licenses = {each.name: RepositoryLicenses(each).of(next(path for path in each.files if path.endswith(".py"))) for each in found[:2]}
    assert licenses == {"ash": "MIT OR Apache-2.0", "beech": "MIT"}
    allowed, context = read(code(tmp_path, licenses=["MIT"], unknown_license="drop", where='language == "python"'))
    assert [each.file for each in allowed] == ["ash/ash/__init__.py", "beech/beech/__init__.py"]
    assert context.report.dropped["code:unknown_license"] == 1
    everything, _ = read(code(tmp_path, licenses=["Apache-2.0"], unknown_license="keep", where='language == "python"'))
    assert [each.file for each in everything] == ["ash/ash/__init__.py", "loose.py/loose.py"]


@pytest.mark.parametrize(
    ("license", "allowed", "expected"),
    [
        ("MIT", ["MIT"], True),
        ("MIT OR GPL-3.0-only", ["MIT"], True),
        ("MIT AND GPL-3.0-only", ["MIT"], False),
        ("(MIT OR ISC) AND BSD-3-Clause", ["ISC", "BSD-3-Clause"], True),
        ("MIT AND (ISC OR Zlib)", ["MIT"], False),
        ("Apache-2.0 WITH LLVM-exception", ["Apache-2.0"], True),
        ("GPL-2.0-only WITH Classpath-exception-2.0", ["GPL-2.0-only WITH Classpath-exception-2.0"], True),
        ("MIT OR ISC AND Zlib", ["ISC"], False),
    ],
)
def test_an_expression_is_allowed_by_one_side_of_or_and_both_of_and(license: str, allowed: list[str], expected: bool) -> None:
    assert is_allowed(license, allowed) is expected


def test_the_licences_of_several_files_are_joined_without_repetition() -> None:
    assert joined(["MIT AND ISC", "ISC", "MIT OR Zlib"]) == "ISC AND MIT AND (MIT OR Zlib)"
    assert joined(["MIT OR Zlib", "MIT OR Zlib"]) == "MIT OR Zlib"
    assert joined([]) is None


def test_a_changed_licence_text_is_unknown_and_a_nearer_folder_decides(tmp_path: Path) -> None:
    text = LICENSE.read_text(encoding="utf-8")
    files = {
        "LICENSE": text,
        "inner/LICENSE": text[: len(text) // 2],
        "inner/package.json": "{",
        "other/package.json": '{"license": "ISC"}',
    }
    folder = write(tmp_path, dict(files))
    named = {path: SourceFile(str(folder / path), path) for path in files}
    licenses = RepositoryLicenses(Repository("fir", named))
    assert [licenses.of(path) for path in ("a.py", "inner/a.py", "other/deep/a.js")] == ["Apache-2.0", None, "ISC"]


@pytest.mark.parametrize(
    ("language", "files", "order"),
    [
        (
            "python",
            {"a.py": "from b.c import d\n", "b/__init__.py": "", "b/c.py": "from . import f, e\n", "b/e.py": "", "b/f.py": "import os\n"},
            "b/f.py b/e.py b/c.py a.py b/__init__.py",
        ),
        (
            "ts",
            {"a.ts": "import {x} from './lib/b.js'\n", "lib/b.ts": "export * from '../c'\n", "c/index.ts": ""},
            "c/index.ts lib/b.ts a.ts",
        ),
        (
            "c++",
            {"src/a.cc": '#include "b.h"\n', "src/b.h": "#include <z/c.h>\n", "include/z/c.h": "#include <vector>\n", "vector.h": ""},
            "include/z/c.h src/b.h src/a.cc vector.h",
        ),
        (
            "go",
            {"a.go": 'import (\n\t"fmt"\n\t"example.org/x/lib/b"\n)\n', "lib/b/one.go": "", "lib/b/two.go": "", "fmt/c.go": ""},
            "lib/b/one.go lib/b/two.go a.go fmt/c.go",
        ),
        (
            "java",
            {"src/A.java": "import org.b.B;\n", "src/org/b/B.java": "import static org.c.C.run;\n", "src/org/c/C.java": ""},
            "src/org/c/C.java src/org/b/B.java src/A.java",
        ),
        ("rust", {"src/a.rs": "use crate::b::Thing;\n", "src/b/mod.rs": "mod c;\n", "src/b/c.rs": ""}, "src/b/c.rs src/b/mod.rs src/a.rs"),
        ("ruby", {"b.rb": "require './c'\n", "c.rb": "", "a.rb": "require './b'\n"}, "a.rb b.rb c.rb"),
    ],
)
def test_files_come_after_those_that_they_import(language: str, files: dict[str, str], order: str) -> None:
    assert import_order({path: imports_of(path, text, language) for path, text in files.items()}) == order.split()


def test_a_circle_of_imports_is_broken_by_path() -> None:
    files = {"a.py": "import b\n", "b.py": "import c\n", "c.py": "import a\n", "d.py": "import c\n"}
    imports = {path: imports_of(path, text, "python") for path, text in files.items()}
    assert import_order(imports) == ["c.py", "b.py", "a.py", "d.py"]
    assert import_order(dict(reversed(imports.items()))) == ["c.py", "b.py", "a.py", "d.py"]


def test_a_limit_divides_between_files_and_a_longer_file_is_a_document_of_its_own() -> None:
    files = [("a", "x" * 40), ("b", "y" * 50), ("c", "z" * 300), ("d", "v" * 99), ("e", "w")]
    found = [*join_files(files, start="", max_characters=100)]
    assert [each.paths for each in found] == [["a", "b"], ["c"], ["d", "e"]]
    assert "".join(each.text for each in found) == "".join(text for _, text in files)
    assert len([*join_files([("p" * 1_000 + str(number), "t") for number in range(12)], start="", max_characters=10**6)]) == 3


def test_a_repository_is_a_document_with_markers_by_which_the_file_of_each_character_is_found(oak: Path) -> None:
    source = code(
        oak, sample_by="repository", where='language == "python"', file_start="== {path} ({language}) ==\n", repository_start="{repo}:\n"
    )
    [document], _ = read(source)
    assert document.source_id == "oak#0"
    files = kept(document)["files"]
    assert files.index("lib/tools.py") < files.index("main.py")
    assert f"== lib/tools.py (python) ==\n{TOOLS}\n" in document.text
    assert document.text.startswith(f"oak:\n== {files[0]} (python) ==\n")
    for path, content in (("main.py", MAIN), ("lib/tools.py", TOOLS)):
        begin = document.text.index(content)
        assert {path_at(document.text, begin + place, document.kept, source.file_start) for place in (0, 5, len(content))} == {path}
    assert path_at(document.text, 3, document.kept, source.file_start) is None
    assert source.describe()["file_start"] == source.file_start


@pytest.mark.parametrize(("kinds", "lost"), [((), 0), (("email",), 2), (MASKS, 3)])
def test_a_masked_marker_and_one_that_is_in_the_text_name_no_wrong_file(kinds: tuple[str, ...], lost: int) -> None:
    contents = {"a.py": "A" * 30, "of jo@web.org": "B" * 30, "93.184.216.34/c.py": "C" * 30, "d.py": "D" * 30, "e.py": "E\n# e.py\nFF"}
    [(text, paths)] = join_files(((path, f"# {path}\n{content}\n") for path, content in contents.items()), start="", max_characters=10**6)
    masked, spans = mask(text, kinds)
    assert len(spans) == max(0, lost - 1)
    found: dict[str, set[str | None]] = {}
    for place, character in enumerate(masked, 1):
        found.setdefault(character, set()).add(path_at(masked, place, json.dumps({"files": paths}), "# {path}\n"))
    expected = [None if number < lost else path for number, path in enumerate(paths)]
    assert [found[character] for character in "ABCDEF"] == [{path} for path in (*expected[:4], None, "e.py")]


def stack(folder: Path) -> Path:
    rows = [
        {
            "content": f"from b{repo} import x\n# {number}\n" * 3,
            "path": f"{name}{repo}.py",
            "repo_name": f"u/r{repo}",
            "licenses": ["MIT"],
            "stars": number,
        }
        for number, (name, repo) in enumerate((name, repo) for name in "acb" for repo in range(7))
    ]
    for number in range(3):
        pq.write_table(pa.Table.from_pylist(rows[number::3]), folder / f"{number}.parquet", row_group_size=2)
    return folder / "*.parquet"


def test_rows_of_a_repository_come_together_and_one_split_has_all_of_them(tmp_path: Path) -> None:
    files = stack(tmp_path)
    documents, _ = read(code(files, sample_by="repository", val_frac=0.3))
    assert [each.file for each in documents] == [f"u/r{number}" for number in range(7)]
    assert [each.split for each in documents].count("val") == 2
    for number, each in enumerate(documents):
        assert kept(each)["files"] == [f"b{number}.py", f"a{number}.py", f"c{number}.py"]
    single, _ = read(code(files, val_frac=0.3, keep=["repo", "stars", "license"]))
    assert len(single) == 21
    splits = {each.file: each.split for each in documents}
    assert {(kept(each)["repo"], each.split) for each in single} == {*splits.items()}
    assert {kept(each)["license"] for each in single} == {"MIT"}
    source = code(files, val_frac=0.3, keep=["repo", "stars", "license"])
    assert [each for file in source.input_files() for each in read(source, files=[file])[0]] == single  # as parts read them
    code(files, sample_by="repository").check_input({})
    with pytest.raises(NielsCacheError, match="set path_field to one of: content, path"):
        code(files, path_field="where").check_input({})
    with pytest.raises(NielsCacheError, match="no column 'size'"):
        code(files, keep=["size"]).check_input({})
    assert code(files, val_frac=0.3).count_unsplit(StreamContext(seed=42)) == 0
    assert code(files, val_frac=0.3).identity() != code(files, val_frac=0.2).identity()


def test_a_file_of_an_earlier_repository_is_a_copy_and_a_repository_of_copies_is_a_fork(tmp_path: Path) -> None:
    own = {f"m{number}.py": f"x = {number}\n" * 20 for number in range(10)}
    write(tmp_path / "a", own)
    write(tmp_path / "b", {**own, "m9.py": "y = 1  \n"})
    write(tmp_path / "c", {"copied.py": own["m3.py"].replace("\n", " \r\n"), "new.py": "z = 1\n" * 40, "m1.py": "w = 2\n"})
    for folder in ("a", "d"):
        write(tmp_path / folder, {"LICENSE": "the same text"})
    write(tmp_path / "d", {"version.py": own["m0.py"]})  # too short for a fork
    keys: dict[str, Any] = {"sample_by": "repository", "repositories": "subfolders", "val_frac": 0.0}
    documents, context = read(code(tmp_path, fork_share=0.8, copies="drop", **keys))
    assert [(each.file, len(kept(each)["files"])) for each in documents] == [("a", 11), ("c", 2), ("d", 1)]
    assert dict(context.report.dropped) == {"code:fork": 10, "code:copy": 2}
    assert context.report.facts["forks"] == {"b": "copy of a"}
    assert [each.file for each in read(code(tmp_path, copies="drop", **keys))[0]] == ["a", "b", "c", "d"]
    assert [len(kept(each)["files"]) for each in read(code(tmp_path, **keys))[0]] == [11, 10, 3, 2]


WOODS, NUMBERS = ("ash", "birch", "cedar", "elm", "fir"), ("zero", "one", "two", "three")


def wood(folder: Path, model: Path, parts: int, settings: str) -> Graph:
    """Return the artifacts for five repositories. File n of a repository has lines of the digit n, which is nowhere else."""
    for repository in WOODS:
        write(folder / "wood" / repository, {f"{name}.py": f"{digit} " * 40 for digit, name in enumerate(NUMBERS)} | {"a.png": b"\0"})
    write(folder / "wood" / "pictures", {"b.png": b"\0", "c.png": b"\0"})
    config = folder / f"cache{parts}.toml"
    config.write_text(
        f"[dagster]\nplots = false\n[tokenizer]\nmodel = {json.dumps(str(model))}\n[build]\nshard_bytes = 512\nthreads = 1\nseed = 7\n"
        f'[pretrain.{NAME}]\nsource = "code"\nfiles = ["wood"]\nrepositories = "subfolders"\nparts = {parts}\n{settings}\n'
    )
    return graph(load_registry(config=str(config)), folder / f"cache{parts}")


@pytest.mark.parametrize(
    ("settings", "documents", "torn"),
    [('sample_by = "repository"\nmax_characters = 200', {"train": 6, "val": 4}, 0), ('keep = ["repo"]', {"train": 12, "val": 8}, 2)],
)
def test_parts_have_the_documents_and_the_val_of_a_whole_build(
    tmp_path: Path, tiny_model: Path, settings: str, documents: dict[str, int], torn: int
) -> None:
    for parts in (1, 3):
        build(wood(tmp_path, tiny_model, parts, f"{settings}\nval_frac = 0.4"))
    whole, joined = (tmp_path / f"cache{parts}/pretrain" / NAME for parts in (1, 3))
    meta = read_meta(joined / META_NAME)
    assert len(meta["parts"]) == 3
    assert stream_of(joined) == stream_of(whole)
    assert meta["documents"] == read_meta(whole / META_NAME)["documents"] == documents
    assert meta["dropped"] == read_meta(whole / META_NAME)["dropped"] == {"code:binary": 7}
    in_parts = [
        {json.loads(each)["repo"] for split in SPLITS for each in pq.read_table(part / documents_name(split))["kept"].to_pylist()}
        for part in parts_dir(tmp_path / "cache3", NAME).glob("part-*")
    ]
    assert {*WOODS} == set.union(*in_parts)
    assert sum(map(len, in_parts)) - len(WOODS) == torn
    assert not verify_dataset(joined)
    assert (whole / file_edges_name("train")).exists() is not bool(torn)
    for split in () if torn else SPLITS:
        edges = np.load(whole / file_edges_name(split))
        assert np.array_equal(edges, np.load(joined / file_edges_name(split)))
        cache, tokens = TracedCache(NAME, whole / split, np.arange(documents[split])), np.frombuffer(stream_of(whole)[split], "<u2")
        assert cache.tokenizer is not None
        files = [{*cache.tokenizer.decode(tokens[first:last]).split()} for first, last in edges.reshape(-1, 2)]
        paths = [path for _, each in sorted(cache.lineage.items()) for path in json.loads(each.kept or "")["files"]]
        assert [{f"{NUMBERS[int(digit)]}.py" for digit in file} for file in files] == [{path} for path in paths]
        assert len(files) == 2 * documents[split]


def test_a_token_that_is_partly_in_a_file_is_in_no_file_and_a_document_without_a_list_is_in_none() -> None:
    pieces = [bytes([byte]) for byte in range(256)] + [b"\n# "]
    text, files = "# a.py\n\u00e4x\n# b.py\ny\n", json.dumps({"files": ["a.py", "b.py"]})
    ids = [*b"# a.py\n", *"\u00e4x".encode(), 256, *b"b.py\n", *b"y\n"]
    other = [*ids[:-2], *b"z\n"]  # the tokenizer has changed the text
    documents = [
        Document(text, file="woods/a", kept=files),
        Document(text, file="woods/a", kept=files),
        Document(text, file="woods/a", kept=None),
        Document(text, file="notes/a", kept=None),
    ]
    every, lengths = np.array([*ids, *other, *ids, *ids]), np.full(4, len(ids))
    batch, template = DocumentBatch.of(documents), ("# {path}\n", "\n")
    found = EdgeFinder({"woods": template}, pieces).with_edges(batch, [text] * 4, every, lengths, first=1).edges
    assert found is not None
    assert [each.tolist() for each in found] == [[8, 11, 17, 18], [], [], [1, 1 + len(ids)]]
    alone = EdgeFinder({"": template}, pieces).with_edges(batch, Strings.of([text] * 4), every, lengths, first=0).edges
    assert alone is not None
    assert [each.tolist() for each in alone] == [[7, 10, 16, 17], [], [], []]
    notes: Any = SimpleNamespace(source="text")
    repositories: Any = code("a", sample_by="repository")
    tokenizer: Any = SimpleNamespace(piece_bytes=lambda: pieces)
    mixture: Any = SimpleNamespace(source="interleave", members={"woods": 1, "notes": 1})
    assert edge_finder(notes, {}, tokenizer) is edge_finder(code("a"), {}, tokenizer) is None
    assert edge_finder(repositories, {}, tokenizer).__dict__["_templates"] == {"": template}
    assert edge_finder(mixture, {"woods": repositories, "notes": notes}, tokenizer).__dict__["_templates"] == {"woods": template}


@pytest.mark.parametrize(
    ("fim", "files"),
    [("", 1), ('fim = { level = "character", copies = 2, rate = 0.8, pre = "<0x02>", suf = "<0x03>", mid = "<0x04>" }', 2)],
)
def test_the_files_of_a_divided_repository_are_found_in_several_parts_and_shards(
    tmp_path: Path, tiny_model: Path, fim: str, files: int
) -> None:
    build(wood(tmp_path, tiny_model, 2, f'sample_by = "repository"\nmax_characters = 200\nval_frac = 0\n{fim}'))
    folder = tmp_path / f"cache2/pretrain/{NAME}/train"
    windows = read_meta(folder.parent / META_NAME)["train_tokens"] // 32 - 1
    loader, shards = TokenLoader(str(folder), T=32, B=windows, seed=3, shuffle=False), set[tuple[str, str]]()
    traces: list[Any] = [loader.trace(epoch) for epoch in range(files)]
    cache, found = TracedCache(NAME, folder, np.arange(10)), set[tuple[str, str]]()
    assert cache.tokenizer is not None
    for origin in (rows.token(row, column) for rows in traces for row in range(windows) for column in range(0, 32, 7)):
        digit = cache.tokenizer.decode([origin.token]).strip()
        if digit in "0123" and digit:
            lineage = cache.lineage[origin.document or 0]
            assert cache.path(origin) == f"{NUMBERS[int(digit)]}.py"
            found.add((lineage.file, digit))
            shards.add((lineage.file, str(origin.file)))
    assert found == {(repository, digit) for repository in WOODS for digit in "0123"}
    assert len(shards) > len(WOODS)
    assert len({Path(shard).parent.name for _, shard in shards}) == files


def test_a_sort_in_many_runs_gives_the_rows_in_order() -> None:
    rows = [((f"r{number * 7 % 101}", number), [f"text \ud83d {number}", None]) for number in range(3 * RUNS * 4)]
    assert [*sorted_rows(rows, run_characters=60)] == sorted(rows)
    assert [*sorted_rows(rows)] == sorted(rows)
    assert [*sorted_rows([])] == []


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"licenses": ["MIT"]}, "unknown_license"),
        ({"licenses": ["mit"], "unknown_license": "drop"}, "write 'MIT'"),
        ({"rules": ["generate"]}, "generated"),
        ({"val_tokens": 5, "train_tokens": 5}, "val_frac"),
        ({"keep": ["stars"]}, "stars"),
        ({"sample_by": "repository", "file_start": "x"}, "file_start"),
        ({"path_field": "p"}, "path_field"),
        ({"copies": "drop"}, "sample_by"),
        ({"files": ["a", "b/*.parquet"]}, "make a data set of each"),
        ({"parts": 2, "files": ["b/*.parquet"], "sample_by": "repository"}, "remove parts"),
        ({"parts": 2, "sample_by": "repository", "copies": "drop"}, "and set prepare"),
        ({"added": [{"files": ["b"]}]}, "put them into files"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Code.model_validate({"source": "code", "files": ["somewhere"], **keys}, context={"base_dir": "."})


@pytest.mark.parametrize(
    ("path", "text", "rule"),
    [
        ("src/a.py", "x = 1\n", None),
        ("src/Vendor/a.py", "x = 1\n", "vendored"),
        ("a_pb2.py", "x = 1\n", "generated"),
        ("a.go", "// Code generated by stringer. DO NOT EDIT.\npackage a\n", "generated"),
        ("a.py", "x = 1\n" * 9 + "# generated by hand\n", None),
        ("a.min.js", "x", "minified"),
        ("a.js", "var abc;" * 40, "minified"),
        ("a.json", '{"a": [1, 2]}', "data"),
        ("a.json", '{"name": "a package of words", "keywords": ["of", "words"]}', None),
        ("a.csv", "1,2,3\n" * 100, "data"),
        ("a.py", f"x = '{'y' * 1_000}'\n" + "y = 2\n" * 1_000, "long_line"),
        ("a.py", f"x = '{'y' * 200}'\n", "mean_line"),
        ("a.c", "{}();;+-*/ " * 9, "alphanumeric"),
        ("a.md", "-" * 2_000, None),
    ],
)
def test_rules_find_what_is_not_written_by_hand(path: str, text: str, rule: str | None) -> None:
    found = problem_of(path, text, RULES, Limits())
    assert (found and found[0]) == rule
    result = CodeRules()(Document(text, file="0.parquet", kept=json.dumps({"path": path})))
    assert (result if isinstance(result, Document) else result.reason) == (
        rule or Document(text, file="0.parquet", kept=json.dumps({"path": path}))
    )


@pytest.mark.parametrize(
    ("path", "text", "language"),
    [
        ("a/Makefile", "", "makefile"),
        ("a.h", "int x;", "c"),
        ("a.h", "namespace b {", "c++"),
        ("a.hpp", "", "c++"),
        ("a.tsx", "", "tsx"),
        ("run", "#!/bin/bash -e\n", "shell"),
        ("run", "no code", None),
        ("a.png", "#!/bin/sh", None),
        ("Dockerfile", "", "dockerfile"),
    ],
)
def test_a_language_is_known_by_name_and_first_line(path: str, text: str, language: str | None) -> None:
    found = language_of(path, text)
    assert (found and found.name) == language


def test_a_notebook_becomes_a_script_and_a_broken_one_is_none() -> None:
    cells = [
        {"cell_type": "markdown", "source": "# Oaks\n\nThey grow."},
        {"cell_type": "code", "source": ["x = 1\n", "x"], "outputs": [{"text": "1"}]},
        {"cell_type": "raw", "source": "left out"},
        {"cell_type": "code", "source": ""},
    ]
    script = "# %% [markdown]\n# # Oaks\n#\n# They grow.\n\n# %%\nx = 1\nx\n"
    assert notebook_script(json.dumps({"cells": cells})) == script
    of_julia = {"cells": cells[1:2], "metadata": {"kernelspec": {"language": "ocaml"}}}
    assert notebook_script(json.dumps(of_julia)) == "# %%\nx = 1\nx\n"
    assert notebook_script(json.dumps({"worksheets": [{"cells": [{"cell_type": "code", "input": "y"}]}]})) == "# %%\ny\n"
    for kept_as_it_is in (script, "x = 1\n# In[2]:\ny", "// %%\nlet x"):
        assert notebook_script(kept_as_it_is) == kept_as_it_is
    for broken in (
        "",
        "print(1)\n",
        "version https://git-lfs.github.com/spec/v1\n",
        '{"cells":\n# %%\n',
        "[]",
        "{}",
        '{"cells": 3}',
        '{"cells": [{}]}',
        '{"cells": [{"source": "x"}]}',
    ):
        assert notebook_script(broken) is None
