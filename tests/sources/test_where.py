"""The keys `where` and `keep`: which rows stay, which conditions are refused, and which columns stay with their documents."""

import datetime
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from niels_cache_assets.artifacts.prepared_corpora import open_prepared
from niels_cache_assets.cli import main
from niels_cache_assets.disk.table_file import lineage_files
from niels_cache_assets.exchange import corpus_text as text_export
from niels_cache_assets.exchange.corpus_text import FileType, TextExport
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.reading import rows as reading_rows
from niels_cache_assets.sources.reading import where as reading_where
from niels_cache_assets.sources.reading.keep import kept_values
from niels_cache_assets.sources.reading.parquet_files import ParquetTable
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.loader.loader import TokenLoader
from tests.helpers.builds import build_dataset, build_tokenizer, find_duplicates, prepare_corpus
from tests.helpers.corpora import articles, nearly
from tests.helpers.places import require_every_place_is_exact
from tests.helpers.read_sources import read

SCHEMA = pa.schema({"id": pa.string(), "text": pa.string(), "int_score": pa.int32(), "language_score": pa.float64(), "url": pa.string()})
SCHEMA = SCHEMA.append(pa.field("is_new", pa.bool_()))
SCHEMA = SCHEMA.append(pa.field("metadata", pa.struct({"lang": pa.string(), "depth": pa.uint8()})))


def rows_of(count: int) -> list[dict[str, Any]]:
    """Return rows in which each column is sometimes null, and some texts are blank."""
    return [
        {
            "id": f"d{row}",
            "text": "" if row % 11 == 10 else f"text {row} of a page",
            "int_score": None if row % 7 == 6 else row % 6,
            "language_score": None if row % 13 == 12 else row % 10 / 10,
            "url": None if row % 17 == 16 else f"https://{'ab'[row % 2]}.org/{row}",
            "is_new": None if row % 19 == 18 else row % 3 == 0,
            "metadata": None if row % 5 == 4 else {"lang": ("en", "de", None)[row % 3], "depth": row % 4},
        }
        for row in range(count)
    ]


def both_kinds(tmp_path: Path, values: list[dict[str, Any]], *, schema: pa.Schema | None = SCHEMA, **keys: Any) -> list[Any]:
    """Write the rows as Parquet and as JSON Lines, and return a source of each kind that reads files, and of the hub's."""
    pq.write_table(pa.Table.from_pylist(values, schema=schema), tmp_path / "a.parquet", row_group_size=40)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in values))
    parquet, lines = [str(tmp_path / "a.parquet")], [str(tmp_path / "a.jsonl")]
    return [
        Parquet(files=parquet, **keys),
        Jsonl(files=lines, **keys),
        Huggingface(dataset="local/files", files=parquet, shuffle_buffer=0, **keys),
        Huggingface(dataset="local/files", files=lines, shuffle_buffer=0, **keys),
    ]


def is_more(value: Any, bound: float) -> bool:
    return value is not None and value >= bound


CONDITIONS = {
    "int_score >= 3 and language_score > 0.4": lambda r: is_more(r["int_score"], 3) and is_more(r["language_score"], 0.5),
    "int_score == 5 or is_new": lambda r: r["int_score"] == 5 or r["is_new"] is True,
    "not (int_score < 3)": lambda r: is_more(r["int_score"], 3),
    "0.2 <= language_score < 0.7": lambda r: is_more(r["language_score"], 0.2) and r["language_score"] < 0.7,
    'metadata.lang in ["en", "fr"]': lambda r: (r["metadata"] or {}).get("lang") in ("en", "fr"),
    'metadata.lang not in ["en", "fr"]': lambda r: (r["metadata"] or {}).get("lang") == "de",
    "int_score is None": lambda r: r["int_score"] is None,
    'url is not None and url < "https://b"': lambda r: r["url"] is not None and r["url"] < "https://b",
    "int_score != 2": lambda r: r["int_score"] is not None and r["int_score"] != 2,
    'column("int_score") > -1': lambda r: r["int_score"] is not None,
    'int_score >= 1 and (url == "https://a.org/2" or metadata.depth == 3)': lambda r: (
        is_more(r["int_score"], 1) and (r["url"] == "https://a.org/2" or (r["metadata"] or {}).get("depth") == 3)
    ),
}


@pytest.mark.parametrize("where", CONDITIONS)
def test_rows_and_counts_equal_those_of_a_plain_loop(tmp_path: Path, where: str) -> None:
    values = rows_of(500)
    stays = [row for row in values if CONDITIONS[where](row)]
    assert 0 < len(stays) < len(values)
    expected = [row["id"] for row in stays if row["text"]]
    for source in both_kinds(tmp_path, values, where=where):
        documents, context = read(source)
        assert [document.source_id for document in documents] == expected, source
        counts = {"where": len(values) - len(stays), "empty": len(stays) - len(expected)}
        assert context.report.dropped == {reason: count for reason, count in counts.items() if count}, source
        assert [document.row for document in documents] == [int(each[1:]) for each in expected], source


_COMPARISON = st.one_of(
    st.builds(
        "{} {} {}".format,
        st.sampled_from(["int_score", "language_score"]),
        st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
        st.sampled_from(["0", "3", "0.5", "-1", "9", "int_score"]),
    ),
    st.sampled_from(
        ["is_new", "int_score is None", "metadata is None", "int_score in [1, 2.0, 5]", 'metadata.lang == "en"', 'url > "https://b"']
    ),
)
_CONDITION = st.recursive(
    _COMPARISON,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda parts: f"({' '.join(parts)})"),
        inner.map(lambda part: f"not ({part})"),
    ),
    max_leaves=5,
)


@given(where=_CONDITION, count=st.integers(1, 60))
def test_columns_and_rows_are_judged_alike(where: str, count: int) -> None:
    condition = reading_where.parse_condition(where)
    values = rows_of(count)
    batch = pa.RecordBatch.from_pylist(values, schema=SCHEMA)
    assert condition.mask(batch, "a.parquet").tolist() == [condition.problem(row) is None for row in values]


@pytest.mark.parametrize(
    ("where", "kind", "values"),
    [
        ("n > 3 and d > 1", pa.uint64(), [2**63 + 1, 2, None]),
        ("n in [3, 0.5]", pa.uint64(), [2**63 + 1, 3]),
        ("n > 0.5", pa.uint64(), [2**64 - 1, 0]),
        ("n > 9007199254740992.0", pa.int64(), [2**53 + 1, 2**53, -1]),
        ("n == m", pa.uint64(), [2**63, 7, None]),
    ],
)
def test_large_integers_are_judged_as_in_rows(where: str, kind: pa.DataType, values: list[int | None]) -> None:
    condition = reading_where.parse_condition(where)
    rows = [{"n": value, "m": -1, "d": 2} for value in values]
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema([("n", kind), ("m", pa.int64()), ("d", pa.decimal128(9, 2))]))
    assert condition.mask(batch, "a.parquet").tolist() == [condition.problem(row) is None for row in rows]


@given(where=_CONDITION, size=st.integers(1, 9), data=st.data())
def test_no_row_that_stays_is_in_a_row_group_that_is_not_read(where: str, size: int, data: Any) -> None:
    condition = reading_where.parse_condition(where)
    scores = st.lists(st.one_of(st.none(), st.floats(width=32), st.just(float("nan"))), min_size=1, max_size=20)
    values = [{"int_score": row % 5, "language_score": score} for row, score in enumerate(data.draw(scores))]
    written = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(values, schema=SCHEMA), written, row_group_size=size)
    parquet = ParquetTable(pa.BufferReader(written.getvalue()), "a")  # type: ignore[arg-type]
    every = [first + row for first, batch in parquet.batches(most_rows=3) for row in condition.mask(batch, "a").nonzero()[0]]
    fewer = parquet.batches(most_rows=3, group_filter=condition.may_match)
    assert [first + row for first, batch in fewer for row in condition.mask(batch, "a").nonzero()[0]] == every


def test_row_groups_without_a_row_that_stays_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [{**row, "int_score": number // 40} for number, row in enumerate(rows_of(400))]
    source = both_kinds(tmp_path, values, where="int_score >= 8 or int_score in [2]")[0]
    given: list[int] = []
    masked = reading_where.RowCondition.mask

    def counted(self: Any, batch: Any, place: str) -> Any:
        given.append(len(batch))
        return masked(self, batch, place)

    monkeypatch.setattr(reading_where.RowCondition, "mask", counted)
    documents, context = read(source)
    assert sum(given) == 120
    assert len(documents) + context.report.dropped["empty"] == 120
    assert context.report.dropped["where"] == 280


@pytest.mark.parametrize("where", ["int_score >= 3", "int_score < 1 and language_score > 0.75"])
def test_passes_start_at_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(reading_rows, "BATCH_DOCUMENTS", 2)
    values = sorted(rows_of(120), key=lambda row: (row["int_score"] or 0, row["id"]))
    for source in both_kinds(tmp_path, values, where=where)[:3]:
        require_every_place_is_exact(source, at_least=1, every=5)


@pytest.mark.parametrize("keys", [{"where": "int_scor >= 3"}, {"keep": ["int_scor"]}], ids=["where", "keep"])
def test_an_unknown_column_is_one_line_with_the_nearest_name(tmp_path: Path, keys: dict[str, Any]) -> None:
    for source in both_kinds(tmp_path, rows_of(20), **keys):
        for read_source in (lambda source=source: source.check_input({}), lambda source=source: read(source)):
            with pytest.raises(NielsCacheError, match=r"^[^\n]*'int_scor'[^\n]*'int_score'[^\n]*$"):
                read_source()


def test_columns_with_dictionaries_are_judged_by_their_values(tmp_path: Path) -> None:
    """Such as the categories of pandas."""
    languages = pa.array(["en", "de", None, "en"]).dictionary_encode()
    pages = pa.StructArray.from_arrays([languages], names=["lang"])
    pq.write_table(pa.table({"text": ["a", "b", "c", "d"], "lang": languages, "page": pages}), tmp_path / "a.parquet")
    for where, expected in {'lang == "en"': [0, 3], 'lang != "en"': [1], 'page.lang in ["de"]': [1], "lang is None": [2]}.items():
        source = Parquet(files=[str(tmp_path / "a.parquet")], where=where)
        source.check_input({})
        documents, context = read(source)
        assert [document.row for document in documents] == expected
        assert context.report.dropped == {"where": 4 - len(expected)}


def test_a_column_of_another_type_is_an_error_of_a_table_and_counted_in_lines(tmp_path: Path) -> None:
    parquet, lines, *_ = both_kinds(tmp_path, rows_of(20), where="url > 3")
    with pytest.raises(NielsCacheError, match=r"a\.parquet.*url is string"):
        parquet.check_input({})
    documents, context = read(lines)
    assert not documents
    assert context.report.dropped == {"where": 1, "where_wrong_type": 19}
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": "a", "url": url}) + "\n" for url in (1, "5", 5, None, True, [])))
    documents, context = read(lines)
    assert [document.row for document in documents] == [2]
    assert context.report.dropped == {"where": 2, "where_wrong_type": 3}


REFUSED = [
    ("score = 3", "=="),
    ("score >", "condition"),
    ("", "condition"),
    ("3 > 2", "no column"),
    ("score", ""),
    ("len(text) > 3", "not allowed"),
    ("__import__('os').system('true')", "not allowed"),
    ("score + 1 > 3", "not allowed"),
    ("score & 3", "or, not"),
    ("score == None", "is None"),
    ("score in (a, b)", "constants"),
    ("score in []", "list"),
    ("score is 3", "None"),
    ("score > 99999999999999999999", "too large"),
    ("(" * 5000 + "score" + ")" * 5000, "condition"),
    ("score > 1 and " * 2000 + "score", "characters"),
]


@pytest.mark.parametrize(("where", "keyword"), REFUSED)
def test_other_expressions_are_refused(where: str, keyword: str) -> None:
    if not keyword:
        assert reading_where.parse_condition(where).columns == ["score"]
        return
    with pytest.raises(ValidationError) as raised:
        Jsonl(files=["a.jsonl"], where=where)
    assert keyword in str(raised.value).replace("too deeply", "condition")


# The key `keep`: columns that stay with their documents.


KEEP = ("url", "score", "meta")


def kept_rows(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows with an id, a text, and columns of several types with nulls. Their texts may be blank."""
    rows: list[dict[str, Any]] = [{"id": f"d{row}", "text": text, "score": row / 4, "count": row} for row, text in enumerate(texts)]
    for number, row in enumerate(rows):
        row["url"] = None if number % 7 == 6 else f"https://ä.org/{number}"
        row |= {"is_new": number % 3 == 0, "meta": {"depth": number % 4, "tags": ["a", None]}}
    return rows


def test_values_stay_with_the_rows_that_where_keeps(tmp_path: Path) -> None:
    values = kept_rows(["" if row % 11 == 10 else f"text {row}" for row in range(300)])
    expected = {row["id"]: {name: row[name] for name in KEEP} for row in values if row["text"] and row["score"] >= 20}
    assert 100 < len(expected) < 250
    sources = both_kinds(tmp_path, values, schema=None, keep=KEEP, where="score >= 20")
    shuffled = Huggingface(dataset="local/files", files=sources[0].files, shuffle_buffer=50, keep=KEEP, where="score >= 20")
    for source in (*sources, shuffled):
        documents, _ = read(source)
        assert {document.source_id: kept_values(document.kept) for document in documents} == expected, source


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
    assert kept_values(document.kept) == {"when": "2026-01-02T03:04:05", "day": "2026-01-02", "score": None, "scores": [1.0, None]}


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
    (folder / "books.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept_rows(texts)), encoding="utf-8")
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
    return [json.loads(line) for line in zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()).splitlines()]


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
    given = {row["id"]: row for row in kept_rows(texts)}
    assert len(rows) == 30
    for row in rows:
        expected = {name: given[row["id"]][name] for name in keep}
        if file_type == "parquet":
            expected["meta"] = json.dumps(expected["meta"])
        assert {name: row[name] for name in keep} == expected
    if file_type == "parquet":
        types = pq.read_schema(tmp_path / "out" / manifest["files"][0]["name"])
        assert [str(types.field(name).type) for name in keep] == ["string", "double", "int64", "bool", "string"]


KINDS: list[tuple[list[Any], str]] = [
    *(([1, None, -5], "int64"), ([2**60, 1], "int64"), ([1, 2.5], "double"), (["a", None], "string"), ([None, None], "string")),
    *((values, "json") for values in ([2**60, 0.5], [2**70], ["a", 1], [True, 1], [[1], {}])),
]


@pytest.mark.parametrize(("values", "kind"), KINDS)
def test_a_column_of_parquet_has_a_type_that_holds_all_values(tmp_path: Path, values: list[Any], kind: str) -> None:
    pq.write_table(pa.table({"kept": [json.dumps({"x": value}) for value in values]}), tmp_path / "a.parquet", row_group_size=1)
    kinds = text_export.kinds_of_kept([tmp_path / "a.parquet"], ["x"])
    assert kinds == {"x": kind}
    stored = [text_export.convert_to_kind(value, kinds["x"]) for value in values]
    assert [json.loads(each) if kind == "json" else each for each in stored] == values


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
    expected = {row["id"]: {"url": row["url"], "meta": row["meta"]} for row in kept_rows(texts)}
    for name in ("books", "mix"):
        outcome = build_dataset(registry, name, root=root)
        assert outcome.meta["keep"] == ["url", "meta"]
        lineage = [root / "pretrain" / name / f"{split}_documents.parquet" for split in ("train", "val")]
        rows = [row for path in lineage for table in lineage_files(path) for row in pq.read_table(table.path).to_pylist()]
        assert all(kept_values(row["kept"]) == expected[row["source_id"]] for row in rows)
        assert len({row["source_id"] for row in rows}) == len(rows) == (30 if name == "books" else 24)
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
