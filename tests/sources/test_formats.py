"""CSV, JSON arrays, Arrow and nested fields: the same rows as JSON Lines hold, from every position, and mistakes in one line."""

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from niels_cache_assets.cli.detection import sources_of
from niels_cache_assets.sources.arrow import Arrow
from niels_cache_assets.sources.chat_jsonl import ChatJsonl
from niels_cache_assets.sources.csv import Csv
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.notes import notes_on_source
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.reading import encodings, rows
from niels_cache_assets.sources.reading.files import SourceFile, walk_folder
from niels_cache_assets.sources.reading.parquet_files import arrow_batches
from niels_cache_assets.sources.reading.positions import FilePosition
from niels_cache_assets.sources.reading.rows import arrow_rows, file_rows
from niels_cache_assets.sources.text import Text
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.places import require_every_place_is_exact
from tests.helpers.read_sources import one_file, read
from tests.helpers.tiny import sentences

ROWS = [
    {"text": f'{text}, "{"é" * number}" ]}}[{{\n{number}', "id": f"i{number}", "n": number}
    for number, text in enumerate(sentences(25, seed=1))
]
TEXTS = [row["text"] for row in ROWS]


def as_csv(values: list[dict[str, Any]], delimiter: str = ",") -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, [*values[0]], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(values)
    return out.getvalue().encode()


def as_stream(values: list[dict[str, Any]] | pa.Table) -> bytes:
    out = io.BytesIO()
    table = values if isinstance(values, pa.Table) else pa.Table.from_pylist(values)
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return out.getvalue()


def as_feather(values: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    pyarrow.feather.write_feather(pa.Table.from_pylist(values), out, chunksize=7, compression="lz4")
    return out.getvalue()


def as_views(values: list[dict[str, Any]]) -> bytes:
    """A file whose strings are views, and whose ids are a dictionary of views, as polars writes them."""
    table = pa.Table.from_pylist(values).cast(pa.schema({"text": pa.string_view(), "id": pa.string(), "n": pa.int64()}))
    ids = table["id"].combine_chunks().dictionary_encode()
    views = pa.DictionaryArray.from_arrays(ids.indices, ids.dictionary.cast(pa.string_view()))
    out = io.BytesIO()
    with pa.ipc.new_file(out, (table := table.set_column(1, "id", views)).schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return out.getvalue()


FORMS: dict[str, tuple[type[PretrainSource], str, Callable[[list[dict[str, Any]]], bytes]]] = {
    "array": (Jsonl, "a.json", lambda values: json.dumps(values).encode()),
    "pretty": (Jsonl, "a.json", lambda values: b"\xef\xbb\xbf\n" + json.dumps(values, indent=2, ensure_ascii=False).encode() + b"\n\n"),
    "objects": (Jsonl, "a.jsonl.gz", lambda values: gzip.compress("\n".join(json.dumps(value, indent=1) for value in values).encode())),
    "csv": (Csv, "a.csv", as_csv),
    "tsv": (Csv, "a.tsv.gz", lambda values: gzip.compress(as_csv(values, "\t"))),
    "semicolons": (Csv, "a.csv", lambda values: as_csv(values, ";")),
    "stream": (Arrow, "a.arrow", as_stream),
    "feather": (Arrow, "a.feather", as_feather),
    "views": (Arrow, "a.arrow", as_views),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_format_gives_the_rows_of_json_lines_from_every_position(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BATCH_DOCUMENTS", 2)
    monkeypatch.setattr(encodings, "_BLOCK", 97)
    kind, name, write = FORMS[form]
    source = kind(files=one_file(tmp_path, name, write(ROWS)), where="n != 3")
    source.check_input({})
    documents, context = read(source)
    assert [(each.text, each.source_id, each.file, each.row) for each in documents] == [
        (row["text"], row["id"], name, number) for number, row in enumerate(ROWS) if number != 3
    ]
    assert context.report.dropped == {"where": 1}
    require_every_place_is_exact(source, at_least=8)


def test_the_delimiter_of_a_csv_file_is_logged_once_and_counts_only_if_it_is_set(tmp_path: Path) -> None:
    logged: list[str] = []
    decided: dict[str, str] = {}
    files = one_file(tmp_path, "a.csv", b'text|"a,b"\n"x|y"|1\n')
    for _ in range(2):
        documents, _ = read(Csv(files=files), log=logged.append, decided=decided)
        assert [document.text for document in documents] == ["x|y"]
    assert [line for line in logged if "'|'" in line] == logged[:1]
    plain, given = (Csv(files=files, **keys).identity() for keys in ({}, {"delimiter": "|"}))
    assert given == {**plain, "delimiter": "|"}
    headless = one_file(tmp_path, "b.csv", b'"quoted" text,1\n')
    documents, _ = read(Csv(files=headless, quote="", columns=("text", "n")))
    assert [document.text for document in documents] == ['"quoted" text']


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"\xef\xbb\xbf\r\n\nid,text\n1,x|y\n"),
        ("a.csv", b"sep=;\r\nid;text\r\n1;x|y\r\n"),
        ("a.csv", b'Ort, Land;"id";text\n2;1;x|y\n'),
        ("a.tsv", b"id\ttext\ta, b, c; d\n1\tx|y\t\n"),
    ],
)
def test_blank_lines_a_line_of_excel_and_other_delimiters_before_records(tmp_path: Path, name: str, content: bytes) -> None:
    assert [document.text for document in read(Csv(files=one_file(tmp_path, name, content)))[0]] == ["x|y"]


@pytest.mark.parametrize("text", ["{} of the rows", '"{}, ""quoted""\nrow"'])
def test_a_csv_record_that_damage_cuts_is_left_out(tmp_path: Path, text: str) -> None:
    lines = [f"{text.format(number)},{number * 7919 % 1009}\n" for number in range(3000)]
    whole = gzip.compress(("text,n\n" + "".join(lines)).encode())
    texts = []
    for content in (whole, whole[: len(whole) // 2]):
        source = Csv(files=one_file(tmp_path, "a.csv.gz", content), keep_damaged=True)
        texts.append([document.text for document in read(source)[0]])
    assert 100 < len(texts[1]) < 2900
    assert texts[1] == texts[0][: len(texts[1])]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"text,n\na,1\nb,1,2\n", ("record 2", "3 values", "2 columns")),
        ("a.csv", b'text,n\n"a" b,1\n', ("line 2", "quotes")),
        ("a.csv", b'\ntext,n\n\n"a\n",1\n\n\n"a" b,1\n', ("line 8", "quotes")),
        ("a.json", b'[{"text": "a"}, {"text": "b"}', ("item 3",)),
        ("a.json", b'[{"text": "a"}, 5]', ("item 2", "int", "object")),
        ("a.json", b'[{"text": "a"}] [1]', ("item 2",)),
        ("a.csv", b'text,n\na,1\n"b,1\n' + b"c,1\n" * 300_000, ("line 3", "1 MiB")),
        ("a.csv", "größe,text\n1,a\n".encode("latin-1"), ("header", "utf-8", "encoding")),
        ("a.json", b"[" * 100_000, ("item 1", "nested")),
        ("a.json", b'[{"text": "a"}, {"text": "b", "n": ' + b"1" * 5000 + b"}]", ("item 2", "4300 digits")),
        ("a.json", b'[{"text": "' + b"a" * 1_500_000 + b'"}]', ("item 1", "1 MiB", "max_document_mib")),
        ("a.json", b'[{"text": "' + b"a" * 3_000_000 + b'"}]', ("item 1", "1 MiB", "max_document_mib")),
        ("a.arrow", as_stream(ROWS)[:-300], ("damaged", "keep_damaged")),
        ("a.arrow", b"text\n", ("not a file of Arrow",)),
        ("a.arrow", as_stream(ROWS)[:-8], ("end marker",)),
        ("a.arrow", as_stream(pa.table([["a"], ["b"]], names=["text", "text"])), ("more than one column", "'text'")),
        ("a.txt", b"%PDF-1.7\n", ("a PDF", "pdftotext")),
    ],
)
def test_a_broken_file_is_one_line(tmp_path: Path, name: str, content: bytes, words: tuple[str, ...]) -> None:
    kinds: dict[str, type[PretrainSource]] = {".csv": Csv, ".json": Jsonl, ".arrow": Arrow, ".txt": Text}
    with pytest.raises(NielsCacheError) as caught:
        read(kinds[Path(name).suffix](files=one_file(tmp_path, name, content), max_document_mib=1))
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in (name, *words)), caught.value


def test_bytes_that_are_not_of_the_encoding_are_counted_in_an_array_as_in_lines(tmp_path: Path) -> None:
    found = []
    for name, content in (("a.json", b'[{"text": "a\xffb"},\n{"text": "c"}]'), ("a.jsonl", b'{"text": "a\xffb"}\n{"text": "c"}\n')):
        documents, context = read(Jsonl(files=one_file(tmp_path, name, content), max_replaced_share=1))
        found.append(([document.text for document in documents], context.report.facts["replaced"]["bytes"]))
    assert found == [(["a\ufffdb", "c"], 1)] * 2


def test_strings_of_arrow_may_have_another_encoding_and_dictionaries_stay_small_in_memory(tmp_path: Path) -> None:
    latin = pa.array([b"caf\xe9", b"th\xe9"]).view(pa.string())
    table = pa.table(
        {"text": latin, "nested": pa.StructArray.from_arrays([latin], names=["title"]), "n": pa.array([7, 8]).dictionary_encode()}
    )
    words = pa.DictionaryArray.from_arrays([0, 1], latin)
    table = table.append_column("dictionary", words).append_column("parts", pa.ListArray.from_arrays([0, 1, 2], words))
    for field in ("text", "nested.title", "dictionary", "parts[]"):
        documents, _ = read(Arrow(files=one_file(tmp_path, "a.arrow", as_stream(table)), encoding="latin-1", text_field=field))
        assert [document.text for document in documents] == ["café", "thé"]
    repeated = pa.DictionaryArray.from_arrays([0] * 1000, pa.array(["x" * (1 << 20)]))
    (path,) = one_file(tmp_path, "b.arrow", as_stream(pa.table({"text": repeated})))
    batches = arrow_batches(SourceFile(path, "b.arrow"), FilePosition(), most_rows=1000)
    assert [len(next(batches)[1]) for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("write", [as_stream, as_feather])
def test_the_rows_before_the_damage_of_an_arrow_file_are_kept(tmp_path: Path, write: Callable[[list[dict[str, Any]]], bytes]) -> None:
    whole, kept = write(ROWS), set()
    for size in (5, 9, 300, *range(len(whole) // 2, len(whole), 131), len(whole) - 8):
        source = Arrow(files=one_file(tmp_path, "a.arrow", whole[:size]), keep_damaged=True)
        documents, context = read(source)
        assert [document.text for document in documents] == TEXTS[: len(documents)]
        assert context.report.dropped == {"damaged_file": 1}
        kept.add(len(documents))
    assert kept == {0, 7, 14, 21, 25}
    flipped = whole.replace(b"i9", b"i\xff").replace(TEXTS[9][-2:].encode(), b"\xff\xff")
    documents, _ = read(Arrow(files=one_file(tmp_path, "a.arrow", flipped), max_replaced_share=1))
    assert len(documents) == len(ROWS)


@pytest.mark.parametrize("write", [as_stream, as_feather])
def test_a_pass_over_an_arrow_file_knows_its_share_of_the_file(tmp_path: Path, write: Callable[[list[dict[str, Any]]], bytes]) -> None:
    position, (path,) = FilePosition(), one_file(tmp_path, "a.arrow", write(ROWS * 40))
    shares = [position.share(1) for _ in arrow_rows(SourceFile(path, "a.arrow"), position)]
    assert shares == pytest.approx([row / 1000 for row in range(1, 1001)], abs=0.02)


def test_a_nested_field_of_parquet_must_hold_text(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([{"data": {"n": 1}, "text": "a"}]), tmp_path / "a.parquet")
    with pytest.raises(NielsCacheError, match=r"a.parquet: no field 'data\.n'"):
        Parquet(files=[str(tmp_path / "a.parquet")], text_field="data.n").check_input({})


NESTED = [
    {"data": {"content": "a"}, "messages": [{"content": "b"}, {"content": None}, {"content": "c"}], "parts": ["d", "e"]},
    {"data": {"content": "f"}, "messages": [], "parts": ["g"]},
]


@pytest.mark.parametrize(
    ("field", "expected"),
    [("data.content", ["a", "f"]), ("messages.content", ["b\n\nc"]), ("messages[].content", ["b\n\nc"]), ("parts[]", ["d\n\ne", "g"])],
)
def test_a_nested_field_is_text_and_lists_are_joined_by_a_blank_line(tmp_path: Path, field: str, expected: list[str]) -> None:
    pq.write_table(pa.Table.from_pylist(NESTED), tmp_path / "a.parquet")
    sources: list[PretrainSource] = [
        Jsonl(files=one_file(tmp_path, "a.json", json.dumps(NESTED).encode()), text_field=field),
        Parquet(files=[str(tmp_path / "a.parquet")], text_field=field),
        Arrow(files=one_file(tmp_path, "a.arrow", as_stream(NESTED)), text_field=field),
        Huggingface(dataset="a/b", files=[str(tmp_path / "a.parquet")], text_field=field, shuffle_buffer=0),
        Huggingface(dataset="a/b", files=[str(tmp_path / "a.json")], text_field=field, shuffle_buffer=0),
    ]
    for source in sources:
        source.check_input({})
        assert [document.text for document in read(source)[0]] == expected, source


def test_a_field_with_the_whole_name_has_precedence_over_a_nested_one(tmp_path: Path) -> None:
    values = [{"a.b": "whole", "a": {"b": "nested"}}]
    pq.write_table(pa.Table.from_pylist(values), tmp_path / "a.parquet")
    for source in (
        Jsonl(files=one_file(tmp_path, "a.json", json.dumps(values).encode()), text_field="a.b"),
        Parquet(files=[str(tmp_path / "a.parquet")], text_field="a.b"),
    ):
        assert [document.text for document in read(source)[0]] == ["whole"]
        with pytest.raises(NielsCacheError, match=r"no field 'a\.c'"):
            source.model_copy(update={"text_field": "a.c"}).check_input({})


def test_folders_that_datasets_saved_are_read_without_its_caches(tmp_path: Path) -> None:
    saved = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict(train=saved, test=saved.select([0])).save_to_disk(str(tmp_path), num_shards={"train": 3, "test": 1})
    for name in ("cache-12.arrow", "data-00003-of-00004.arrow"):  # a cache, and a file of a data set that was saved there before
        (tmp_path / "train" / name).write_bytes(as_stream(ROWS))
    assert not notes_on_source(Arrow(files=[str(tmp_path / "train/*.arrow")]))
    for source in (Arrow(files=[str(tmp_path / "train")]), *sources_of([str(tmp_path / "train")])):
        assert [document.text for document in read(source)[0]] == TEXTS
    assert [len(source.input_files()) for source in sources_of([str(tmp_path)])] == [4]
    with pytest.raises(NielsCacheError, match=r"splits.*train"):
        read(Arrow(files=[str(tmp_path)]))
    (tmp_path / "own").mkdir()
    (tmp_path / "own/state.json").write_text('{"text": "mine"}')
    assert [file.name for file in walk_folder(str(tmp_path), (".json",))] == ["own/state.json"]


def test_code_is_read_by_a_glob_one_document_per_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a.py", "sub/b.py", "sub/c.txt"):
        (tmp_path / name).write_text(f"def {Path(name).stem}(): ...\n")
    documents, _ = read(Text(files=[str(tmp_path / "**/*.py")]))
    assert [(document.file, document.text) for document in documents] == [
        ("a.py", "def a(): ...\n"),
        ("sub/b.py", "def b(): ...\n"),
    ]


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.arrow"])
def test_chats_are_read_from_each_format(tmp_path: Path, name: str) -> None:
    values = [{"question": f"q{number}", "answer": f"a{number}"} for number in range(3)]
    content = {".csv": as_csv(values, ";"), ".json": json.dumps(values, indent=1).encode(), ".arrow": as_stream(values)}[Path(name).suffix]
    files = one_file(tmp_path, name, content)
    chats, _ = read(ChatJsonl(files=files, instruction_field="question", output_field="answer"))
    assert [[message["content"] for message in chat.messages] for chat in chats] == [[row["question"], row["answer"]] for row in values]
    assert [row for row, _ in file_rows(SourceFile(files[0], name))] == [0, 1, 2]
