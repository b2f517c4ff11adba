"""`export text`: what is in the files, equal bytes after every kill, and older exports."""

import io
import json
import os
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from niels_cache_assets.artifacts.corpus_report import corpus_report
from niels_cache_assets.artifacts.prepared_corpora import open_prepared
from niels_cache_assets.cli import main
from niels_cache_assets.corpus import store
from niels_cache_assets.exchange import corpus_text as text_export
from niels_cache_assets.exchange.corpus_text import FileType, TextExport
from niels_cache_assets.exchange.replacing import swap_files
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.streaming import encode
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.builds import find_duplicates, prepare_corpus
from tests.helpers.corpora import articles, corpus_registry, nearly
from tests.helpers.read_sources import read


class Killed(BaseException):
    """A kill, which no code catches."""


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Registry, Path]]:
    """A prepared data set in several files of documents, some with a title, and with both kinds of duplicates and dropped documents."""
    folder = tmp_path_factory.mktemp("books")
    texts = articles(60)
    texts += [texts[3].upper(), nearly(texts[5]), "too short", texts[7]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "_CHUNK_ITEMS", 4)
        patch.setattr(store, "TEXT_BYTES_PER_FILE", 8_000)
        patch.setattr(store, "TEXT_BYTES_PER_GROUP", 2_500)
        registry = corpus_registry(folder, {"books": texts}, settings="[build]\nthreads = 1\n")
        prepare_corpus(registry, "books", root=folder / "cache", processes=1)
        find_duplicates(registry, root=folder / "cache")
        yield registry, folder / "cache"


def export_of(books: tuple[Registry, Path], folder: Path, file_type: FileType = "jsonl.zst") -> TextExport:
    registry, root = books
    return TextExport(prepared=open_prepared(registry, "books", root=root), folder=folder, file_type=file_type)


def rows_in(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    with open(path, "rb") as file:
        return [json.loads(line) for line in io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), "utf-8")]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("file_type", get_args(FileType))
def test_the_files_hold_the_documents_that_stay(books: tuple[Registry, Path], tmp_path: Path, file_type: FileType) -> None:
    export, told = export_of(books, tmp_path, file_type), list[tuple[int, int]]()
    manifest = export.write(progress=lambda done, total: told.append((done, total)))
    rows = [row for entry in manifest["files"] for row in rows_in(tmp_path / entry["name"])]
    documents = [document for batch in export.prepared.documents() for document in batch]
    assert len(manifest["files"]) > 3
    assert [row["text"] for row in rows] == [document.text for document in documents]
    assert [(row["id"], row["file"], row["row"], row["split"]) for row in rows] == [
        (document.source_id, document.file, document.row, document.split) for document in documents
    ]
    registry, root = books
    report = corpus_report(registry, "books", root=root)
    assert len(rows) == manifest["documents"] == report["documents"]["kept"] == 60
    assert report["splits"] == {split: sum(row["split"] == split for row in rows) for split in ("train", "val")} | {"unknown": 0}
    assert sorted(content(tmp_path)) == sorted(["books.json", *export.names()])
    assert json.loads((tmp_path / "books.json").read_bytes()) == manifest
    assert sum(entry["characters"] for entry in manifest["files"]) == sum(len(row["text"]) for row in rows)
    ends = list(accumulate(entry["documents"] for entry in manifest["files"]))
    assert len(told) > len(ends), "progress is told for each row group"
    assert told == sorted(set(told))
    assert {(end, 60) for end in ends} <= set(told)
    assert {total for _, total in told} == {60}
    if file_type == "jsonl.zst":
        again, context = read(Jsonl(files=[str(tmp_path / "*.jsonl.zst")]))
        assert [(each.text, each.source_id) for each in again] == [(each.text, each.source_id) for each in documents]
        assert not context.report.dropped


def killed_at(monkeypatch: pytest.MonkeyPatch, call: int, *names: str) -> None:
    """Raise Killed at this call among the writes of text, the renames and the removals of an export, and at every later one."""
    calls = iter(range(call))
    real = {(os, name): getattr(os, name) for name in names or ("replace", "rename", "unlink", "fsync")}
    real |= {} if names else {(text_export, "_columns"): text_export._columns}

    def dying(function: Any) -> Any:
        def call_or_die(*arguments: Any, **settings: Any) -> Any:
            if next(calls, None) is None:
                raise Killed
            return function(*arguments, **settings)

        return call_or_die

    for (owner, name), function in real.items():
        monkeypatch.setattr(owner, name, dying(function))


@pytest.mark.parametrize("file_type", get_args(FileType))
def test_after_kills_at_twenty_places_the_bytes_are_equal(
    books: tuple[Registry, Path], tmp_path: Path, file_type: FileType, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_of(books, tmp_path / "whole", file_type).write()
    expected = content(tmp_path / "whole")
    kills = 0
    for call in range(0, 40, 2):
        folder = tmp_path / str(call)
        with monkeypatch.context() as patch:
            killed_at(patch, call)
            try:
                export_of(books, folder, file_type).write()
            except Killed:
                kills += 1
        if (folder / "books.json").exists():  # it looks finished, so it must be complete
            assert content(folder) == expected
        if not (folder / "books.json").exists() or (folder / ".books.partial").exists():
            export_of(books, folder, file_type).write()
        assert content(folder) == expected
        assert not (folder / ".books.partial").exists()
    assert kills >= 15


def test_a_file_that_was_placed_and_then_deleted_is_written_again(
    books: tuple[Registry, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export is stopped at its last step, and somebody makes room."""
    export_of(books, tmp_path / "whole").write()
    folder, names = tmp_path / "out", export_of(books, tmp_path).names()
    with monkeypatch.context() as patch:
        patch.setattr(text_export, "swap_files", place_and_stop)
        with pytest.raises(Killed):
            export_of(books, folder).write()
    (folder / names[1]).unlink()
    told: list[int] = []
    manifest = export_of(books, folder).write(progress=lambda done, total: told.append(done))
    assert manifest["files"][0]["documents"] < told[0] < told[-1] == 60, "what was done before counts"
    assert content(folder) == content(tmp_path / "whole")


def place_and_stop(*arguments: Any, **settings: Any) -> None:
    swap_files(*arguments, **settings)
    raise Killed


def test_after_a_stop_its_files_go_although_the_documents_have_changed(
    books: tuple[Registry, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the staging folder says that the stopped export has placed them."""
    with monkeypatch.context() as patch:
        patch.setattr(text_export, "swap_files", place_and_stop)
        with pytest.raises(Killed):
            export_of(books, tmp_path, "parquet").write()
    assert len(list(tmp_path.glob("books-*.parquet"))) > 3
    export_of(books, tmp_path).write()
    assert sorted(content(tmp_path)) == sorted(["books.json", *export_of(books, tmp_path).names()])


@pytest.mark.parametrize("call", [1, 3, 8])
def test_after_a_kill_amid_the_renames_an_older_export_goes_only_with_force(
    books: tuple[Registry, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    export_of(books, tmp_path, "parquet").write()
    before = content(tmp_path)
    assert len(before) > 4
    with monkeypatch.context() as patch:
        killed_at(patch, call, "rename")
        with pytest.raises(Killed):
            export_of(books, tmp_path).write(force=True)
    assert not (tmp_path / "books.json").exists()
    assert {**content(tmp_path / ".books.partial" / "old"), **content(tmp_path)}.items() >= before.items()
    with pytest.raises(NielsCacheError, match="--force"):
        export_of(books, tmp_path).write()
    export_of(books, tmp_path).write(force=True)
    assert sorted(content(tmp_path)) == sorted(["books.json", *export_of(books, tmp_path).names()])
    assert not (tmp_path / ".books.partial").exists()


def test_a_folder_in_the_way_is_not_deleted(books: tuple[Registry, Path], tmp_path: Path) -> None:
    folder = tmp_path / export_of(books, tmp_path).names()[1]
    folder.mkdir()
    with pytest.raises(NielsCacheError, match="is a folder"):
        export_of(books, tmp_path).write(force=True)
    assert folder.is_dir()


def test_after_a_stop_a_file_of_the_user_still_needs_force(
    books: tuple[Registry, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(text_export, "swap_files", place_and_stop)
        with pytest.raises(Killed):
            export_of(books, tmp_path, "parquet").write()
    export = export_of(books, tmp_path)
    (tmp_path / export.names()[0]).write_text("mine")
    with pytest.raises(NielsCacheError, match="--force"):
        export.write()
    assert (tmp_path / export.names()[0]).read_text() == "mine"


def test_an_older_export_is_replaced_only_with_force(books: tuple[Registry, Path], tmp_path: Path) -> None:
    export_of(books, tmp_path, "parquet").write()
    (tmp_path / "other.txt").write_text("mine")
    before = content(tmp_path)
    for file_type in get_args(FileType):
        with pytest.raises(NielsCacheError, match="--force"):
            export_of(books, tmp_path, file_type).write()
    assert content(tmp_path) == before
    export = export_of(books, tmp_path)
    export.write(force=True)
    assert sorted(content(tmp_path)) == sorted(["books.json", "other.txt", *export.names()])


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([None], "string"),
        (["a", None], "string"),
        ([True, False], "bool"),
        ([True, 1], "json"),
        ([1, -(2**63) + 1], "int64"),
        ([2**63], "json"),
        ([2**53, 0.5], "double"),
        ([2**53 + 1, 0.5], "json"),
        (["a", 1], "json"),
        ([[1]], "json"),
    ],
)
def test_the_kind_of_a_column_holds_all_its_values(tmp_path: Path, values: list[Any], kind: str) -> None:
    """A double holds each whole number up to 2**53."""
    pq.write_table(pa.table({"kept": [json.dumps({"a": value}) for value in values]}), tmp_path / "a.parquet", row_group_size=1)
    assert text_export.kinds_of_kept([tmp_path / "a.parquet"], ["a"]) == {"a": kind}


def test_two_exports_to_one_place_do_not_mix(books: tuple[Registry, Path], tmp_path: Path) -> None:
    first = export_of(books, tmp_path)

    def start_another(done: int, total: int) -> None:
        with pytest.raises(NielsCacheError, match="another export"):
            export_of(books, tmp_path).write()

    first.write(progress=start_another)
    assert (tmp_path / "books.json").exists()


def test_a_folder_that_cannot_be_written_is_one_line(books: tuple[Registry, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NielsCacheError, match="cannot write there"):
        export_of(books, tmp_path / "file").write()


def test_the_command_writes_the_files(books: tuple[Registry, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry, root = books
    common = ["export", "text", "books", "--out", str(tmp_path / "out"), "--config", registry.origin, "--cache-dir", str(root)]
    common += ["--profile", "quickstart"]
    assert main([*common, "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["documents"], planned["written"]) == (60, False)
    assert not (tmp_path / "out").exists()
    assert main([*common, "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in written["files"]] == [each["name"] for each in planned["files"]]
    assert main(common) == 1
    assert "--force" in capsys.readouterr().err
    assert main([*common, "--force", "--file-type", "csv"]) == 2
    assert main([*common, "--force", "--split", "train"]) == 2
