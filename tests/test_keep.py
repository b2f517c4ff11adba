"""The key `keep`: columns that stay with their documents in sources, corpora, lineage, `trace` and exports of text."""

import datetime
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pydantic import ValidationError

from niels_cache_assets.artifacts.builds import build_dataset, build_tokenizer, find_duplicates, prepare_corpus
from niels_cache_assets.cli import main
from niels_cache_assets.config.registry import Registry, load_registry
from niels_cache_assets.corpus import text_export
from niels_cache_assets.corpus.reading import open_prepared
from niels_cache_assets.corpus.text_export import FileType, TextExport
from niels_cache_assets.disk.table_file import tables
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.reading.keep import kept_values
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.loader.loader import TokenLoader
from tests.corpora import articles, nearly
from tests.parts_project import NAME, PartsProject
from tests.parts_project import build as build_parts
from tests.read_sources import read

KEEP = ("url", "score", "meta")


def rows_of(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows with an id, a text, and columns of several types with nulls. Their texts may be blank."""
    return [
        {
            "id": f"d{row}",
            "text": text,
            "url": None if row % 7 == 6 else f"https://ä.org/{row}",
            "score": row / 4,
            "count": row,
            "is_new": row % 3 == 0,
            "meta": {"depth": row % 4, "tags": ["a", None]},
        }
        for row, text in enumerate(texts)
    ]


def every_kind(folder: Path, values: list[dict[str, Any]], **keys: Any) -> list[Any]:
    """Write the rows as Parquet and as JSON Lines, and return a source of each kind that reads files, and of the hub's."""
    pq.write_table(pa.Table.from_pylist(values), folder / "a.parquet", row_group_size=40)
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in values))
    parquet, lines = [str(folder / "a.parquet")], [str(folder / "a.jsonl")]
    return [
        Parquet(files=parquet, **keys),
        Jsonl(files=lines, **keys),
        Huggingface(dataset="local/files", files=parquet, shuffle_buffer=0, **keys),
        Huggingface(dataset="local/files", files=lines, shuffle_buffer=0, **keys),
        Huggingface(dataset="local/files", files=parquet, shuffle_buffer=50, **keys),
    ]


def test_values_stay_with_the_rows_that_where_keeps(tmp_path: Path) -> None:
    values = rows_of(["" if row % 11 == 10 else f"text {row}" for row in range(300)])
    expected = {row["id"]: {name: row[name] for name in KEEP} for row in values if row["text"] and row["score"] >= 20}
    assert 100 < len(expected) < 250
    for source in every_kind(tmp_path, values, keep=KEEP, where="score >= 20"):
        documents, _ = read(source)
        assert {document.source_id: kept_values(document.kept) for document in documents} == expected, source


@pytest.mark.parametrize("kind", range(5))
def test_an_unknown_column_names_the_nearest(tmp_path: Path, kind: int) -> None:
    source = every_kind(tmp_path, rows_of(["a text"] * 3), keep=["ulr"])[kind]
    for look in (lambda: read(source), lambda: source.check_input({})):
        with pytest.raises(NielsCacheError, match=r"'ulr'.*'url'") as raised:
            look()
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("keep", [["text"], ["url", "url"], [""], [3]])
def test_names_that_cannot_be_kept_are_refused(keep: list[Any]) -> None:
    with pytest.raises(ValidationError, match="keep"):
        Jsonl(files=["a.jsonl"], keep=keep)


def test_values_that_json_does_not_know_become_text_or_null(tmp_path: Path) -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5)
    row = {"text": "a text", "when": moment, "day": moment.date(), "score": math.nan, "scores": [1.0, -math.inf]}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    source = Parquet(files=[str(tmp_path / "a.parquet")], keep=["when", "day", "score", "scores"])
    (document,), _ = read(source)
    assert kept_values(document.kept) == {
        "when": "2026-01-02T03:04:05",
        "day": "2026-01-02",
        "score": None,
        "scores": [1.0, None],
    }


def test_binary_data_and_long_values_are_one_line(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "image": [b"\xff"]}), tmp_path / "a.parquet")
    with pytest.raises(NielsCacheError, match=r"a\.parquet.*'image'.*binary"):
        read(Parquet(files=[str(tmp_path / "a.parquet")], keep=["image"]))
    pq.write_table(pa.table({"text": ["a"], "inside": [{"image": b"\xff"}]}), tmp_path / "b.parquet")
    with pytest.raises(NielsCacheError, match=r"b\.parquet: row 0.*binary"):
        read(Parquet(files=[str(tmp_path / "b.parquet")], keep=["inside"]))
    (tmp_path / "c.jsonl").write_text(json.dumps({"text": "a", "url": "b", "html": "c" * 10_000}) + "\n")
    with pytest.raises(NielsCacheError, match=r"c\.jsonl: row 0.*'html'"):
        read(Jsonl(files=[str(tmp_path / "c.jsonl")], keep=["url", "html"]))


# Corpora, and what is made of them.


def registry_of(folder: Path, texts: Sequence[str], *, table: str, more: str = "") -> Registry:
    folder.mkdir(exist_ok=True)
    (folder / "books.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of(texts)), encoding="utf-8")
    config = folder / "niels_cache.toml"
    cleaning = '[cleaning]\nskip = ["not_english", "language_error"]\n[build]\nthreads = 1\nshard_bytes = 4096\n'
    config.write_text(f'{cleaning}{more}\n[pretrain.books]\nsource = "jsonl"\nfiles = ["books.jsonl"]\n{table}\n', encoding="utf-8")
    return load_registry(config=str(config))


def prepared_of(registry: Registry, root: Path) -> Any:
    prepare_corpus(registry, "books", root=root, processes=1)
    if registry.prepared("dedup"):
        find_duplicates(registry, root=root)
    return open_prepared(registry, "books", root=root)


def rows_in(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    with open(path, "rb") as file:
        return [json.loads(line) for line in io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), "utf-8")]


@pytest.mark.parametrize("file_type", ["jsonl.zst", "parquet"])
def test_an_export_has_the_values_of_the_documents_that_stay(tmp_path: Path, file_type: FileType) -> None:
    texts = articles(30)
    texts += [texts[3].upper(), "too short", nearly(texts[5])]
    keep = ["url", "score", "count", "is_new", "meta"]
    registry = registry_of(tmp_path, texts, table=f'prepare = ["clean", "dedup"]\nval_frac = 0.1\nkeep = {json.dumps(keep)}')
    prepared = prepared_of(registry, tmp_path / "cache")
    assert prepared.meta["keep"] == keep
    manifest = TextExport(prepared=prepared, folder=tmp_path / "out", file_type=file_type).write()
    rows = [row for entry in manifest["files"] for row in rows_in(tmp_path / "out" / entry["name"])]
    given = {row["id"]: row for row in rows_of(texts)}
    assert len(rows) == 30
    for row in rows:
        expected = {name: given[row["id"]][name] for name in keep}
        if file_type == "parquet":
            expected["meta"] = json.dumps(expected["meta"])
        assert {name: row[name] for name in keep} == expected
    if file_type == "parquet":
        types = pq.read_schema(tmp_path / "out" / manifest["files"][0]["name"])
        assert [str(types.field(name).type) for name in keep] == ["string", "double", "int64", "bool", "string"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, -5], "int64"),
        ([1, 2.5], "double"),
        ([2**60, 1], "int64"),
        ([2**60, 0.5], "json"),
        ([2**70], "json"),
        (["a", None], "string"),
        (["a", 1], "json"),
        ([True, 1], "json"),
        ([None, None], "string"),
        ([[1], {}], "json"),
    ],
)
def test_a_column_of_parquet_has_a_type_that_holds_all_values(tmp_path: Path, values: list[Any], kind: str) -> None:
    pq.write_table(pa.table({"kept": [json.dumps({"x": value}) for value in values]}), tmp_path / "a.parquet", row_group_size=1)
    kinds = text_export.kinds_of_kept([tmp_path / "a.parquet"], ["x"])
    assert kinds == {"x": kind}
    stored = [text_export.as_kind(value, kinds["x"]) for value in values]
    assert [json.loads(each) if kind == "json" else each for each in stored] == values


def kept_in_lineage(cache: Path) -> dict[str, Any]:
    """Return the kept values of each document of a cache, by source id."""
    found: dict[str, Any] = {}
    for split in ("train", "val"):
        for table in tables(cache / f"{split}_documents.parquet"):
            for row in pq.read_table(table.path).to_pylist():
                assert row["source_id"] not in found
                found[row["source_id"]] = kept_values(row["kept"])
    return found


@pytest.mark.parametrize("prepare", ["", 'prepare = ["clean"]\n', "shuffle_buffer = 7\n"])
def test_a_cache_and_a_mixture_have_the_values_in_their_lineage(
    tmp_path: Path, tiny_model: Path, prepare: str, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, root = articles(30), tmp_path / "cache"
    more = f"[tokenizer]\nmodel = {json.dumps(str(tiny_model))}\n"
    more += '[pretrain.mix]\nsource = "interleave"\nmembers = { books = 1.0 }\nval_frac = 0.0\n'
    registry = registry_of(tmp_path, texts, table=f'{prepare}val_frac = 0.2\nkeep = ["url", "meta"]', more=more)
    build_tokenizer(registry, root=root)
    if prepare.startswith("prepare"):
        prepared_of(registry, root)
    expected = {row["id"]: {"url": row["url"], "meta": row["meta"]} for row in rows_of(texts)}
    for name in ("books", "mix"):
        outcome = build_dataset(registry, name, root=root)
        assert outcome.meta["keep"] == ["url", "meta"]
        found = kept_in_lineage(root / "pretrain" / name)
        assert found.items() <= expected.items()
        assert len(found) == (30 if name == "books" else 24)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(TokenLoader(str(root / "pretrain/books/train"), T=16, B=2, seed=1).state_dict()))
    assert main(["trace", "--state", str(state), "--step", "0", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    segments = [segment for row in shown["rows"] for segment in row["segments"]]
    assert len(segments) >= 2
    assert all(segment["kept"] == expected[segment["source_id"]] for segment in segments)
    for where in ([], ["--row", "0", "--column", "3"]):
        assert main(["trace", "--state", str(state), "--step", "0", *where]) == 0
        assert "url: " in capsys.readouterr().out


def test_parts_keep_the_values(tmp_path: Path, tiny_model: Path) -> None:
    project = PartsProject(tmp_path, tiny_model)
    rows = rows_of(articles(40))
    for number in range(8):
        lines = [json.dumps(row) + "\n" for row in rows[number * 5 : number * 5 + 5]]
        (tmp_path / "texts" / f"f{number}.jsonl").write_text("".join(lines))
    for settings in ("val_tokens = 200", "val_frac = 0.2"):
        root = settings[:8]
        outcomes = build_parts(project.graph(3, f'{settings}\nkeep = ["url"]', root=root))
        assert outcomes[f"pretrain/{NAME}"].meta["keep"] == ["url"]
        found = kept_in_lineage(project.cache(root))
        assert found == {row["id"]: {"url": row["url"]} for row in rows if row["id"] in found}
        assert len(found) >= 39
