"""Arguments of calls reach a chat template in the form that it expects, whichever form the rows have."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from niels_cache_assets.chats.arguments import json_text, json_value
from niels_cache_assets.chats.encoding import ChatEncoder, EncodedChat
from niels_cache_assets.chats.rendering import Chat, Rendering
from niels_cache_assets.documents import Conversation
from niels_cache_assets.sources.chat_jsonl import ChatJsonl
from niels_cache_assets.sources.messages import template_messages, tools_of
from niels_cache_assets.sources.types import StreamContext
from tests.chat_models import model_folder, opened_model, template_of

ASK, SAY = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
CITY = {"city": "Köln", "note": 'a "b"'}


def template(of_call: str) -> str:
    """A template that writes each call with this expression. In it, `f` is the function."""
    return (
        "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}{% for c in m.tool_calls or [] %}{% set f = c.function or c %}"
        f"<{{{{ f.name }}}} {of_call}>{{% endfor %}}{{% endfor %}}{{% if add_generation_prompt %}}[assistant]{{% endif %}}"
    )


OF_VALUES = {
    "tojson": "{{ f.arguments | tojson }}",
    "the whole function": "{{ f | tojson }}",
    "both": "{% if f.arguments is string %}{{ f.arguments }}{% else %}{{ f.arguments | tojson }}{% endif %}",
    "keys": "{% for k, v in f.arguments.items() %}{{ k }}={{ v }};{% endfor %}",
    "only the name": "",
}
OF_TEXTS = {
    "joined": "{{ 'x' + f.arguments }}",
    "printed": "{{ f.arguments }}",
    "only texts": "{% if f.arguments is string %}{{ f.arguments }}{% endif %}",
}


@pytest.mark.parametrize("name", OF_VALUES)
def test_a_template_that_writes_values_gets_values(name: str) -> None:
    with Rendering(template_of(template(OF_VALUES[name]))) as rendering:
        assert rendering.form_of_arguments is json_value


@pytest.mark.parametrize("name", OF_TEXTS)
def test_a_template_that_joins_texts_gets_texts(name: str) -> None:
    with Rendering(template_of(template(OF_TEXTS[name]))) as rendering:
        assert rendering.form_of_arguments is json_text


def call(arguments: Any) -> list[dict[str, Any]]:
    calls = [{"type": "function", "function": {"name": "f", "arguments": arguments}}]
    return [ASK, {"role": "assistant", "content": None, "tool_calls": calls}, {"role": "tool", "content": "1"}, SAY]


@pytest.mark.parametrize("of_call", [OF_VALUES["tojson"], OF_VALUES["both"], OF_TEXTS["joined"]], ids=["values", "both", "texts"])
def test_the_form_in_the_rows_changes_no_token(tmp_path: Path, of_call: str) -> None:
    forms = [[CITY, json.dumps(CITY), json.dumps(CITY, indent=2, ensure_ascii=False)], [{}, "{}", None, "null", "", " "]]
    rows = [{"messages": call(arguments)} for same in forms for arguments in same]
    rows.append({"messages": [ASK, {"role": "assistant", "tool_calls": [{"name": "f"}]}, {"role": "tool", "content": "1"}, SAY]})
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    source = ChatJsonl.model_validate({"source": "chat_jsonl", "files": [str(path)], "template": "model"})
    source.check_input({})
    (conversations,) = source.conversations(StreamContext(seed=0, building="sft/x"))
    tokenizer = opened_model(model_folder(tmp_path / "model"))
    with ChatEncoder(template_of(template(of_call)), tokenizer) as encoder:
        encoded = encoder.encode([Chat(each.messages, "x") for each in conversations])
    assert all(isinstance(each, EncodedChat) for each in encoded)
    texts = [tokenizer.decode(each.ids.tolist()) for each in encoded if isinstance(each, EncodedChat)]
    assert len(texts) == 10
    assert json.dumps(CITY, ensure_ascii=False) in texts[0]
    assert "{}" in texts[3]
    assert [len({*texts[:3]}), len({*texts[3:]})] == [1, 1]


def test_a_special_token_that_a_json_text_escapes_is_found(tmp_path: Path) -> None:
    tokenizer = opened_model(model_folder(tmp_path / "model"))
    escaped = '{"x": "<\\u007cim_end|>"}'
    with ChatEncoder(template_of(template(OF_VALUES["tojson"])), tokenizer) as encoder:
        (found,) = encoder.encode([Chat(template_messages(call(escaped)), "x")])  # type: ignore[arg-type]
    assert getattr(found, "reason", None) == "special_token_collision"


def test_json_without_a_value_is_none_and_a_repeated_key_refuses_the_row() -> None:
    for nothing in ("null", "", None):
        made: Any = template_messages([ASK, {**SAY, "tool_calls": nothing}])
        assert made == [ASK, SAY]
        assert tools_of(nothing) is None
    twice = '{"a": 1, "a": 2}'
    in_calls = f'[{{"name": "f", "arguments": {twice}}}]'
    rows: list[list[dict[str, Any]]] = [
        call(twice),
        [ASK, {"role": "assistant", "tool_calls": in_calls}],
        [ASK, {"from": "function_call", "value": f'{{"name": "f", "arguments": {twice}}}'}],
    ]
    assert [template_messages(row) for row in rows] == ["repeated_key_in_json"] * 3
    assert tools_of(f'[{{"name": "f", "parameters": {twice}}}]') == "repeated_key_in_json"


def read(path: Path, **keys: Any) -> list[Conversation]:
    source = ChatJsonl.model_validate({"source": "chat_jsonl", "files": [str(path)], "template": "model", **keys})
    return [each for batch in source.conversations(StreamContext(seed=0)) for each in batch]


def both_forms(folder: Path, rows: list[dict[str, Any]], **keys: Any) -> tuple[list[Conversation], list[Conversation]]:
    """Read these rows from JSON Lines, and from Parquet as `datasets` writes them, with all keys in every struct."""
    (folder / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), folder / "x.parquet")
    made = [[each._replace(source_id="", file="") for each in read(folder / name, **keys)] for name in ("x.jsonl", "x.parquet")]
    return made[0], made[1]


TOOL_ROWS = [
    {
        "messages": call(arguments),
        "tools": [
            {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {key: {"type": "string"}}}}}
        ],
    }
    for key, arguments in (("city", {"city": "Rome", "at": [{"x": "1"}, {"y": "2"}]}), ("query", {"query": "cats", "deep": {"u": 1}}))
]


def test_padding_of_parquet_is_left_out_at_every_depth(tmp_path: Path) -> None:
    lines, table = both_forms(tmp_path, TOOL_ROWS)
    assert len(lines) == 2
    assert lines == table
    assert "null" not in json.dumps([[each.messages[1]["tool_calls"], each.tools] for each in table])  # type: ignore[typeddict-item]


def test_padding_is_left_out_of_parts_of_pairs_and_of_damaged_rows(tmp_path: Path) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "q"}]}, {"role": "assistant", "content": [{"text": "a"}]}]
    lines, table = both_forms(tmp_path, [{"messages": parts}])
    assert lines == table
    assert lines[0].messages == [ASK, SAY]
    sides = {"chosen": [*call({"x": 1})], "rejected": [*call({"y": 2})[:-1], {**SAY, "content": "b"}], "prompt": None}
    lines, table = both_forms(tmp_path, [sides, {**sides, "prompt": [ASK]}], kind="preference")
    assert len(lines) == 2
    assert lines == table
    contents = pa.array([b"q", b"\xff" + b"a word " * 100]).view(pa.string())
    speakers = {
        "role": pa.array(["user", "assistant"]),
        "content": contents,
        "more": pa.array([{"x": None}, None], pa.struct([("x", pa.int8())])),
    }
    messages = pa.StructArray.from_arrays([*speakers.values()], [*speakers])
    pq.write_table(pa.table({"messages": pa.ListArray.from_arrays([0, 2], messages)}), tmp_path / "y.parquet")
    (found,) = read(tmp_path / "y.parquet")
    assert found.messages == [{**ASK, "more": {}}, {"role": "assistant", "content": "\ufffd" + "a word " * 100}]


def test_nulls_of_json_lines_in_lists_and_in_maps_are_values(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"messages": call({"x": None, "y": [None]})}) + "\n", encoding="utf-8")
    arguments: Any = read(path)[0].messages[1]["tool_calls"][0]["function"]["arguments"]  # type: ignore[typeddict-item]
    assert arguments == {"x": None, "y": [None]}
    of_map = pa.map_(pa.string(), pa.list_(pa.string()))
    kind = pa.list_(
        pa.struct(
            [
                ("role", pa.string()),
                ("content", pa.string()),
                ("tool_calls", pa.list_(pa.struct([("name", pa.string()), ("arguments", of_map)]))),
            ]
        )
    )
    called = {"role": "assistant", "tool_calls": [{"name": "f", "arguments": [("a", None), ("b", ["x", None])]}]}
    pq.write_table(pa.table({"messages": pa.array([[ASK, called]], kind)}), tmp_path / "x.parquet")
    (found,) = read(tmp_path / "x.parquet")
    assert found.messages[1]["tool_calls"] == [{"name": "f", "arguments": {"a": None, "b": ["x", None]}}]  # type: ignore[typeddict-item]


def test_objects_that_datasets_stores_as_json_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"messages": datasets.List(datasets.Json()), "tools": datasets.Json()})
    rows = {"messages": [call({"x": None}), call({"y": 1})], "tools": [[{"name": "f"}], [{"name": "g", "parameters": {}}]]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(tmp_path / "x.parquet"))
    found = read(tmp_path / "x.parquet")
    assert [each.messages[1:3] for each in found] == [messages[1:3] for messages in rows["messages"]]
    assert [each.tools for each in found] == rows["tools"]
