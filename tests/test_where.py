"""The key `where`: which rows stay, what is counted, what is not read, and which conditions are refused."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from niels_cache_assets.config.registry import load_registry
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.reading import rows as reading_rows
from niels_cache_assets.sources.reading import where as reading_where
from niels_cache_assets.sources.reading.parquet_files import ParquetTable
from niels_cache_runtime.errors import NielsCacheError
from tests.places import require_every_place_is_exact
from tests.read_sources import read

SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "text": pa.string(),
        "int_score": pa.int32(),
        "language_score": pa.float64(),
        "url": pa.string(),
        "is_new": pa.bool_(),
        "metadata": pa.struct({"lang": pa.string(), "depth": pa.uint8()}),
    }
)


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


def both_kinds(tmp_path: Path, values: list[dict[str, Any]], **keys: Any) -> list[Any]:
    """Write the rows as Parquet and as JSON Lines, and return a source of each kind that reads files, and of the hub's."""
    pq.write_table(pa.Table.from_pylist(values, schema=SCHEMA), tmp_path / "a.parquet", row_group_size=40)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in values))
    parquet, lines = [str(tmp_path / "a.parquet")], [str(tmp_path / "a.jsonl")]
    return [
        Parquet(files=parquet, **keys),
        Jsonl(files=lines, **keys),
        Huggingface(dataset="local/files", files=parquet, shuffle_buffer=0, **keys),
        Huggingface(dataset="local/files", files=lines, shuffle_buffer=0, **keys),
    ]


CONDITIONS = {
    "int_score >= 3 and language_score > 0.4": lambda r: (
        r["int_score"] is not None and r["int_score"] >= 3 and r["language_score"] is not None and r["language_score"] > 0.4
    ),
    "int_score == 5 or is_new": lambda r: r["int_score"] == 5 or r["is_new"] is True,
    "not (int_score < 3)": lambda r: r["int_score"] is not None and not r["int_score"] < 3,
    "0.2 <= language_score < 0.7": lambda r: r["language_score"] is not None and 0.2 <= r["language_score"] < 0.7,
    'metadata.lang in ["en", "fr"]': lambda r: r["metadata"] is not None and r["metadata"]["lang"] in ("en", "fr"),
    'metadata.lang not in ["en", "fr"]': lambda r: r["metadata"] is not None and r["metadata"]["lang"] == "de",
    "int_score is None": lambda r: r["int_score"] is None,
    'url is not None and url < "https://b"': lambda r: r["url"] is not None and r["url"] < "https://b",
    "int_score != 2": lambda r: r["int_score"] is not None and r["int_score"] != 2,
    'column("int_score") > -1': lambda r: r["int_score"] is not None,
    "int_score > language_score": lambda r: (
        r["int_score"] is not None and r["language_score"] is not None and r["int_score"] > r["language_score"]
    ),
    'int_score >= 1 and (url == "https://a.org/2" or metadata.depth == 3)': lambda r: (
        r["int_score"] is not None
        and r["int_score"] >= 1
        and (r["url"] == "https://a.org/2" or (r["metadata"] is not None and r["metadata"]["depth"] == 3))
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
    condition = reading_where.parsed(where)
    values = rows_of(count)
    batch = pa.RecordBatch.from_pylist(values, schema=SCHEMA)
    assert condition.mask(batch, "a.parquet").tolist() == [condition.problem(row) is None for row in values]


@pytest.mark.parametrize(
    ("where", "kind", "values"),
    [
        ("n > 3 and d > 1", pa.uint64(), [2**63 + 1, 2, None]),
        ("n > 3", pa.uint64(), [2**63 + 1, 3, None]),
        ("n in [3, 0.5]", pa.uint64(), [2**63 + 1, 3]),
        ("n > 0.5", pa.uint64(), [2**64 - 1, 0]),
        ("n > 9007199254740992.0", pa.int64(), [2**53 + 1, 2**53, -1]),
        ("n == m", pa.uint64(), [2**63, 7, None]),
    ],
)
def test_large_integers_are_judged_as_in_rows(where: str, kind: pa.DataType, values: list[int | None]) -> None:
    condition = reading_where.parsed(where)
    rows = [{"n": value, "m": -1, "d": 2} for value in values]
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema([("n", kind), ("m", pa.int64()), ("d", pa.decimal128(9, 2))]))
    assert condition.mask(batch, "a.parquet").tolist() == [condition.problem(row) is None for row in rows]


def test_a_column_with_the_name_of_a_field_hides_no_row_group() -> None:
    condition = reading_where.parsed("a.b > 3")
    written = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [{"b": 5}], "a.b": [1]}), written)
    parquet = ParquetTable(pa.BufferReader(written.getvalue()), "a")  # type: ignore[arg-type]
    assert [condition.mask(batch, "a").tolist() for _, batch in parquet.batches(most_rows=3, wanted=condition.may_match)] == [[True]]


@given(where=_CONDITION, size=st.integers(1, 9), data=st.data())
def test_no_row_that_stays_is_in_a_row_group_that_is_not_read(where: str, size: int, data: Any) -> None:
    condition = reading_where.parsed(where)
    scores = st.lists(st.one_of(st.none(), st.floats(width=32), st.just(float("nan"))), min_size=1, max_size=20)
    values = [{"int_score": row % 5, "language_score": score} for row, score in enumerate(data.draw(scores))]
    written = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(values, schema=SCHEMA), written, row_group_size=size)
    parquet = ParquetTable(pa.BufferReader(written.getvalue()), "a")  # type: ignore[arg-type]
    every = [first + row for first, batch in parquet.batches(most_rows=3) for row in condition.mask(batch, "a").nonzero()[0]]
    fewer = parquet.batches(most_rows=3, wanted=condition.may_match)
    assert [first + row for first, batch in fewer for row in condition.mask(batch, "a").nonzero()[0]] == every


def test_row_groups_without_a_row_that_stays_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [{**row, "int_score": number // 40} for number, row in enumerate(rows_of(400))]
    source = both_kinds(tmp_path, values, where="int_score >= 8 or int_score in [2]")[0]
    given: list[int] = []
    masked = reading_where.Where.mask
    monkeypatch.setattr(
        reading_where.Where,
        "mask",
        lambda self, batch, place: given.append(len(batch)) or masked(self, batch, place),  # type: ignore[func-returns-value]
    )
    documents, context = read(source)
    assert sum(given) == 120
    assert len(documents) + context.report.dropped["empty"] == 120
    assert context.report.dropped["where"] == 280


SOME_CONDITIONS = ["int_score >= 3", "int_score < 1 and language_score > 0.75", "int_score == 0"]


@pytest.mark.parametrize("where", SOME_CONDITIONS)
def test_passes_start_at_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(reading_rows, "BATCH_DOCUMENTS", 2)
    values = sorted(rows_of(120), key=lambda row: (row["int_score"] or 0, row["id"]))
    for source in both_kinds(tmp_path, values, where=where)[:3]:
        require_every_place_is_exact(source, at_least=1, every=5)


@pytest.mark.parametrize("kind", range(4))
def test_an_unknown_column_is_one_line_with_the_nearest_name(tmp_path: Path, kind: int) -> None:
    source = both_kinds(tmp_path, rows_of(20), where="int_scor >= 3")[kind]
    for read_source in (lambda: source.check_input({}), lambda: read(source)):
        with pytest.raises(NielsCacheError, match=r"'int_scor'.*'int_score'") as raised:
            read_source()
        assert "\n" not in str(raised.value)


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


def test_values_of_mixed_types_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": "a", "score": score}) + "\n" for score in (1, "5", 5, None, True, [])))
    documents, context = read(Jsonl(files=[str(tmp_path / "a.jsonl")], where="score > 2"))
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
    ("[x for x in text]", "not allowed"),
    ("score == None", "is None"),
    ("score in (a, b)", "constants"),
    ("score in []", "list"),
    ("score is 3", "None"),
    ("score > 99999999999999999999", "too large"),
    ("(lambda: score)()", "not allowed"),
    ("(" * 5000 + "score" + ")" * 5000, "condition"),
    ("score > 1 and " * 2000 + "score", "characters"),
]


@pytest.mark.parametrize(("where", "keyword"), REFUSED)
def test_other_expressions_are_refused(where: str, keyword: str) -> None:
    if not keyword:
        assert reading_where.parsed(where).columns == ["score"]
        return
    with pytest.raises(ValidationError) as raised:
        Jsonl(files=["a.jsonl"], where=where)
    assert keyword in str(raised.value).replace("too deeply", "condition")


def test_a_wrong_condition_names_the_file_and_the_key(tmp_path: Path) -> None:
    path = tmp_path / "niels_cache.toml"
    path.write_text('[pretrain.web]\nsource = "parquet"\nfiles = ["a.parquet"]\nwhere = "score = 3"\n')
    with pytest.raises(NielsCacheError, match=r"niels_cache\.toml.*pretrain\.web.*where"):
        load_registry(config=str(path))
