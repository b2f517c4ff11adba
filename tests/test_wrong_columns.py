"""A field that holds something else than text in every row: one line that names the key, the field, what it holds, and where text is."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from niels_cache_assets.artifacts.builds import build_dataset, build_tokenizer, prepare_corpus
from niels_cache_assets.config.registry import load_registry
from niels_cache_assets.sources.types import PretrainSource, StreamContext
from niels_cache_runtime.errors import NielsCacheError
from tests.dagster_tools import Project
from tests.messages import missing

ROWS = [{"score": number, "body": f"Text {number} of the body.", "title": "A title", "tags": ["a"], "more": "x"} for number in range(15)]


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def stream(family: str, **table: Any) -> tuple[list[Any], StreamContext]:
    """All that the source gives, and what it reports."""
    source = load_registry(profile="quickstart", overrides={family: {"x": table}}).source("x")
    context = StreamContext(seed=0)
    batches = source.documents(context) if isinstance(source, PretrainSource) else source.conversations(context)  # type: ignore[attr-defined]
    return [item for batch in batches for item in batch], context


def read(family: str, **table: Any) -> list[Any]:
    given, context = stream(family, **table)
    assert context.report.hints == []
    return given


def hint(family: str, **table: Any) -> str:
    """The one hint of a source that gives nothing."""
    given, context = stream(family, **table)
    assert given == []
    assert sum(context.report.dropped.values()) > 0
    (said,) = context.report.hints
    return said


KINDS = [
    ("jsonl", write_jsonl, "x.jsonl", {"numbers": "numbers", "lists": "lists"}),
    ("parquet", write_parquet, "x.parquet", {"numbers": "int64", "lists": "list<element: string>"}),
    ("fineweb_edu", write_jsonl, "x.jsonl", {"numbers": "numbers", "lists": "lists"}),
    ("fineweb_edu", write_parquet, "x.parquet", {"numbers": "numbers", "lists": "lists"}),
]


@pytest.mark.parametrize(("source", "write", "name", "types"), KINDS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_text_field_of_another_type_names_key_field_type_and_where_text_is(
    tmp_path: Path, source: str, write: Callable[[Path, list[dict[str, Any]]], Path], name: str, types: dict[str, str]
) -> None:
    table: dict[str, Any] = {"source": source, "files": [str(write(tmp_path / name, ROWS))]}
    if source == "fineweb_edu":
        table["shuffle_buffer"] = 0  # the first row of the file is the first that is read
    said = hint("pretrain", **table, text_field="score")
    others = ("text_field", ": body, title, more")
    assert missing(said, name, "row 0", "'score'", types["numbers"], *others) == []
    assert missing(hint("pretrain", **table, text_field="tags"), "'tags'", types["lists"], *others) == []
    assert len(read("pretrain", **table, text_field="body")) == 15


def test_a_field_called_text_that_is_taken_by_itself_is_named_too(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "x.jsonl", [{"text": {"en": "a"}, "body": "b"}, {"text": None, "body": "b"}] * 3)
    said = hint("pretrain", source="jsonl", files=[str(file)])
    assert missing(said, "x.jsonl: row 0: ", "'text' holds objects", "set text_field ", " of: body") == []
    file = write_jsonl(tmp_path / "x.jsonl", [{"text": True}])
    said = hint("pretrain", source="jsonl", files=[str(file)])
    assert missing(said, "x.jsonl: row 0: ", "'text' holds true", "text_field cannot help") == []


def test_one_row_of_text_is_enough_for_the_others_to_be_counted_only(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "x.jsonl", [*ROWS, {"score": "a text"}])
    assert [document.text for document in read("pretrain", source="jsonl", files=[str(file)], text_field="score")] == ["a text"]
    file = write_jsonl(tmp_path / "x.jsonl", [*ROWS, {"score": " "}])
    assert read("pretrain", source="jsonl", files=[str(file)], text_field="score") == []


CHATS = [
    {"turns": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "messages": "q a", "n": 1, "q": "q", "a": "a"}
    for _ in range(3)
]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, ("'messages' holds text, ", "set messages_field ", " of: turns")),
        ({"messages_field": "n"}, ("'n' holds numbers, ", "set messages_field ", " of: turns")),
        ({"instruction_field": "n", "output_field": "a"}, ("'n' holds numbers, ", "set instruction_field ", " of: turns, messages, q, a")),
        ({"instruction_field": "q", "output_field": "n"}, ("'n' holds numbers, ", "set output_field ", " of: turns, messages, q, a")),
        (
            {"instruction_field": "q", "output_field": "a", "input_field": "n"},
            ("'n' holds numbers, ", "set input_field ", " of: messages, q, a"),
        ),
    ],
)
@pytest.mark.parametrize(("write", "name"), [(write_jsonl, "x.jsonl"), (write_parquet, "x.parquet")])
def test_a_field_of_conversations_of_another_type_is_named(
    tmp_path: Path, write: Callable[[Path, list[dict[str, Any]]], Path], name: str, settings: dict[str, str], said: tuple[str, ...]
) -> None:
    file = write(tmp_path / name, CHATS)
    assert missing(hint("sft", source="chat_jsonl", files=[str(file)], **settings), f"{name}: row 0: ", *said) == []
    assert len(read("sft", source="chat_jsonl", files=[str(file)], messages_field="turns")) == 3


def test_rows_without_further_input_are_conversations_whatever_others_hold_there(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "x.jsonl", [{"q": "q", "a": "a", "more": 1}, {"q": "q", "a": "a", "more": None}])
    fields = {"instruction_field": "q", "output_field": "a", "input_field": "more"}
    assert len(read("sft", source="chat_jsonl", files=[str(file)], **fields)) == 1


@pytest.mark.parametrize(
    ("family", "source", "row", "field"),
    [
        ("pretrain", "wikitext", {"text": 5}, "text"),
        ("sft", "dolly15k", {"instruction": "q", "response": 5, "context": "", "category": "x"}, "response"),
        ("sft", "oasst1", {"message_id": "1", "parent_id": None, "message_tree_id": "1", "text": 5, "role": "prompter"}, "text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sources_without_a_key_for_the_field_name_the_field(
    tmp_path: Path, family: str, source: str, row: dict[str, Any], field: str
) -> None:
    file = write_jsonl(tmp_path / "x.jsonl", [row] * 3)
    said = hint(family, source=source, files=[str(file)])
    assert missing(said, "x.jsonl: row 0: ", f"'{field}' holds numbers, ", "only") == []
    assert "_field" not in said, "there is no such key"


def test_the_hint_is_in_the_line_that_ends_a_build_or_a_corpus(tmp_path: Path, tiny_model: Path) -> None:
    said = ("notes.jsonl", "row 0", "'score'", "text_field", ": body, title, more")
    project = Project(tmp_path, tiny_model)
    write_jsonl(tmp_path / "notes.jsonl", ROWS)
    config = tmp_path / "niels_cache.toml"
    config.write_text(config.read_text().replace('files = ["notes.jsonl"]', 'files = ["notes.jsonl"]\ntext_field = "score"'))
    registry = load_registry(profile="quickstart", config=str(config))
    build_tokenizer(registry, root=project.root)
    with pytest.raises(NielsCacheError) as caught:
        build_dataset(registry, "notes", root=project.root)
    assert missing(caught.value, "non_string_text 15", *said) == []
    config.write_text(
        config.read_text() + '[pretrain.cleaned]\nsource = "jsonl"\nfiles = ["notes.jsonl"]\ntext_field = "score"\nprepare = ["clean"]\n'
    )
    with pytest.raises(NielsCacheError, match="no document") as caught:
        prepare_corpus(load_registry(profile="quickstart", config=str(config)), "cleaned", root=project.root)
    assert missing(caught.value, *said) == []


def test_names_of_fields_stay_on_one_line(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"a\r": None, "b\n\x1b[2J": 1}] * 3
    file = write_jsonl(tmp_path / "chats.jsonl", rows)
    with pytest.raises(NielsCacheError) as caught:
        read("sft", source="chat_jsonl", files=[str(file)])
    assert str(caught.value).isprintable()
    assert missing(str(caught.value), "chats.jsonl: row 0: ", "'messages'", "a\\r, b\\n\\x1b[2J") == []
