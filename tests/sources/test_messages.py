"""The messages of a conversation with a chat template: tools, calls, reasoning, parts of text, and rows that are refused."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from niels_cache_assets.artifacts.tokenizer_sample import raw_texts
from niels_cache_assets.base.documents import Conversation
from niels_cache_assets.chats.encoding import ChatEncoder, EncodedChat
from niels_cache_assets.chats.rendering import Chat, RendererPool
from niels_cache_assets.cli.detection import recognize
from niels_cache_assets.sources.chat_jsonl import ChatJsonl
from niels_cache_assets.sources.messages import template_messages, tools_of
from niels_cache_assets.sources.tool_arguments import json_text, json_value
from niels_cache_assets.sources.types import StreamContext
from niels_cache_runtime import NielsCacheError
from tests.helpers.chat_models import opened_model, template_of
from tests.helpers.messages import missing

ASK, SAY = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}


def table(path: Path, rows: list[dict[str, Any]], **keys: Any) -> ChatJsonl:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return ChatJsonl.model_validate({"source": "chat_jsonl", "files": [str(path)], "template": "chatml", **keys})


def read(
    path: Path, rows: list[dict[str, Any]], *, building: str | None = "sft/mine", **keys: Any
) -> tuple[list[Conversation], dict[str, int], list[str]]:
    told: list[str] = []
    context = StreamContext(seed=0, log=told.append, building=building)
    source = table(path, rows, **keys)
    found = [each for batch in source.conversations(context) for each in batch]
    return found, dict(context.report.dropped), told


def test_every_speaker_and_key_reaches_the_template(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "one"},
        {"role": "developer", "content": "two"},
        {"role": "user", "content": "q", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "", "tool_call_id": "7"},
        {"role": "assistant", "content": "a", "reasoning_content": "thought"},
    ]
    (found,), dropped, _ = read(tmp_path / "x.jsonl", [{"messages": messages, "tools": [{"name": "f"}]}])
    assert dropped == {}
    assert found.tools == [{"name": "f"}]
    assert found.messages == messages


def test_a_wrong_name_of_the_tools_is_found_and_needs_a_template(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with pytest.raises(NielsCacheError, match=r"tools_field.*functions"):
        read(path, [{"messages": [ASK, SAY], "functions": []}], tools_field="function")
    table = {"source": "chat_jsonl", "files": [str(path)], "tools_field": "function"}
    with pytest.raises(NielsCacheError, match=r"tools_field.*functions"):
        ChatJsonl.model_validate({**table, "template": "chatml"}).check_input({})
    with pytest.raises(ValueError, match="tools_field"):
        ChatJsonl.model_validate(table)
    (found,), _, told = read(path, [{"messages": [ASK, SAY], "functions": [{"name": "f"}]}], tools_field="functions")
    assert (found.tools, told) == ([{"name": "f"}], [])


def test_parts_of_text_become_one_text_and_calls_in_json_are_decoded() -> None:
    parts = [{"type": "text", "text": "a"}, {"text": "b"}, "c"]
    assert template_messages([{"role": "user", "content": parts}, SAY]) == [{"role": "user", "content": "abc"}, SAY]
    calls: Any = template_messages([ASK, {"role": "assistant", "content": "", "tool_calls": json.dumps([CALL])}])
    assert calls[1]["tool_calls"] == [CALL]
    in_text = {"function": {"name": "f", "arguments": '{"x": 1}'}}
    kept: Any = template_messages([ASK, {"role": "assistant", "content": "", "tool_calls": [in_text]}])
    assert kept[1]["tool_calls"] == [in_text]
    assert tools_of(None) is tools_of("") is tools_of([]) is None
    assert tools_of('[{"name": "f"}]') == [{"name": "f"}]
    assert tools_of("[{") == tools_of([3]) == tools_of({"name": "f"}) == "broken_tools"


@pytest.mark.parametrize(("kind", "reason"), [("image_url", "image"), ("input_audio", "audio"), ("video", "video")])
def test_media_are_counted_with_their_kind(tmp_path: Path, kind: str, reason: str) -> None:
    content = [{"type": kind, kind: "x"}, {"type": "text", "text": "q"}]
    found, dropped, _ = read(tmp_path / "x.jsonl", [{"messages": [{"role": "user", "content": content}, SAY]}, {"messages": [ASK, SAY]}])
    assert (len(found), dropped) == (1, {f"{reason}_content": 1})


@pytest.mark.parametrize(("name", "reason"), [("image", "image"), ("audios", "audio"), ("video", "video")])
def test_media_beside_the_messages_are_counted_with_their_kind(tmp_path: Path, name: str, reason: str) -> None:
    rows: list[dict[str, Any]] = [{"messages": [ASK, SAY], name: ["x.png"]}, {"messages": [ASK, SAY], name: []}]
    found, dropped, _ = read(tmp_path / "x.jsonl", rows)
    assert (len(found), dropped) == (1, {f"{reason}_content": 1})
    pairs = [{"prompt": "q", "chosen": "a", "rejected": "b", name: value} for value in ("x.png", None)]
    assert read(tmp_path / "x.jsonl", pairs, kind="preference")[1] == {f"{reason}_content": 1}
    assert len(read(tmp_path / "x.jsonl", rows, template="sentinels")[0]) == 2


MISTAKES: dict[str, tuple[str, list[Any], str]] = {  # the reason, the messages, and a word of the message
    "a typo": ("unknown_role", [ASK, {"role": "asistant", "content": "a"}], "'assistant'"),
    "a role of nobody": ("unknown_role", [{"role": "bot", "content": "q"}, SAY], "developer"),
    "no role": ("unknown_role", [{"content": "q"}, SAY], "no role"),
    "no assistant": ("no_assistant", [ASK], "no message of the assistant"),
    "an empty assistant": ("no_assistant", [ASK, {"role": "assistant", "content": " "}], "no message of the assistant"),
    "a broken call": (
        "broken_json_in_call",
        [ASK, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{x"}}]}],
        "JSON",
    ),
    "another weight": ("unusable_weight", [ASK, {**SAY, "weight": -0.5}], "weight = -0.5"),
    "a weight in a text": ("unusable_weight", [ASK, {**SAY, "train": "false"}], "train = 'false'"),
    "a mask of tokens": ("unusable_weight", [ASK, {**SAY, "loss_mask": [0, 1]}], r"loss_mask = [0, 1]"),
    "weights that contradict each other": ("contradictory_weights", [ASK, {**SAY, "weight": 0, "train": True}], "train = True, weight = 0"),
    "a weight of the user": ("weight_of_other_role", [{**ASK, "train": True}, SAY], "message 0"),
    "a broken function_call": ("broken_json_in_call", [ASK, {"from": "function_call", "value": "{x"}], "JSON"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_build_stops_at_a_mistake_and_names_it(tmp_path: Path, case: str) -> None:
    reason, messages, word = MISTAKES[case]
    rows = [{"messages": [ASK, SAY]}, {"messages": messages}, {"messages": messages}]
    with pytest.raises(NielsCacheError) as raised:
        read(tmp_path / "x.jsonl", rows)
    assert missing(raised.value, "[sft.mine]", "x.jsonl: row 1", word, 'on_broken = "drop"') == []
    assert "\n" not in str(raised.value)
    found, dropped, (line,) = read(tmp_path / "x.jsonl", rows, on_broken="drop")
    assert (len(found), dropped) == (1, {reason: 2})
    assert missing(line, "x.jsonl: row 1", reason) == []


def test_a_pass_that_only_looks_leaves_mistakes_out(tmp_path: Path) -> None:
    rows = [{"messages": [ASK, SAY]}, {"messages": [ASK]}]
    found, dropped, _ = read(tmp_path / "x.jsonl", rows, building=None)
    assert (len(found), dropped) == (1, {"no_assistant": 1})
    path = tmp_path / "x.jsonl"
    assert [*raw_texts(table(path, rows), StreamContext(seed=0))] == ["q", "a"]


def test_a_mistake_in_one_side_of_a_pair_stops_the_build(tmp_path: Path) -> None:
    good = {"prompt": "q", "chosen": "a", "rejected": "b"}
    for rejected, word in [([ASK, {"role": "asistant", "content": "b"}], "'assistant'"), ([ASK], "no message of the assistant")]:
        rows = [good, {"chosen": [ASK, SAY], "rejected": rejected}]
        with pytest.raises(NielsCacheError, match=rf"\[sft\.mine\].*row 1.*{word}.*on_broken"):
            read(tmp_path / "x.jsonl", rows, kind="preference")
        assert len(read(tmp_path / "x.jsonl", rows, kind="preference", on_broken="drop")[0]) == 1


def test_broken_tools_stop_the_build(tmp_path: Path) -> None:
    with pytest.raises(NielsCacheError, match=r"row 0.*tools"):
        read(tmp_path / "x.jsonl", [{"messages": [ASK, SAY], "tools": "[{"}])


def test_sentinels_stop_only_on_request(tmp_path: Path) -> None:
    rows = [{"messages": [ASK, SAY]}, {"messages": [ASK]}]
    found, dropped, told = read(tmp_path / "x.jsonl", rows, template="sentinels")
    assert (len(found), dropped, told) == (1, {"no_assistant": 1}, [])
    with pytest.raises(NielsCacheError, match="row 1"):
        read(tmp_path / "x.jsonl", rows, template="sentinels", on_broken="stop")


FORMS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "messages": ({"messages": [ASK, SAY]}, {}),
    "another name": ({"dialog": [ASK, SAY]}, {"messages_field": "dialog"}),
    "ShareGPT": ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, {"messages_field": "conversations"}),
    "Alpaca": (
        {"instruction": "do", "input": "q", "output": "a"},
        {"instruction_field": "instruction", "input_field": "input", "output_field": "output"},
    ),
    "prompt and completion": ({"prompt": "q", "completion": "a"}, {"instruction_field": "prompt", "output_field": "completion"}),
    "tools": ({"messages": [ASK, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "1"}, SAY]}, {}),
    "LLaMA-Factory": (
        {
            "conversations": [
                {"from": "human", "value": "q"},
                {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
                {"from": "observation", "value": "1"},
                {"from": "gpt", "value": "a"},
            ],
            "system": "s",
            "tools": "[]",
        },
        {"messages_field": "conversations", "system_field": "system"},
    ),
    "Alpaca with history": (
        {"instruction": "do", "input": "", "output": "a", "system": "s", "history": [["q", "b"]]},
        {
            "instruction_field": "instruction",
            "input_field": "input",
            "output_field": "output",
            "history_field": "history",
            "system_field": "system",
        },
    ),
    "pairs after a conversation": (
        {
            "conversations": [{"from": "human", "value": "q"}],
            "chosen": {"from": "gpt", "value": "a"},
            "rejected": {"from": "gpt", "value": "b"},
        },
        {"kind": "preference", "prompt_field": "conversations"},
    ),
    "pairs of an instruction": (
        {"instruction": "do", "input": "this", "chosen": "a", "rejected": "b"},
        {"kind": "preference", "prompt_field": "instruction", "input_field": "input"},
    ),
    "developer": ({"messages": [{"role": "developer", "content": "x"}, ASK, SAY]}, {}),
    "parts": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}, SAY]}, {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_recognized_by_looking_and_a_table_with_wrong_keys_is_told_the_right_ones(tmp_path: Path, form: str) -> None:
    row, keys = FORMS[form]
    wrong = table(tmp_path / "x.jsonl", [row] * 3, template="sentinels")
    (proposal,) = recognize([str(tmp_path / "x.jsonl")])
    assert (proposal.kind.source, dict(proposal.kind.keys)) == ("chat_jsonl", keys)
    if keys:
        with pytest.raises(NielsCacheError) as raised:
            wrong.check_input({})
        assert missing(raised.value, *(f"{key} = {json.dumps(name)}" for key, name in keys.items())) == []
        wrong.model_copy(update={**keys, "template": "chatml"}).check_input({})


def test_forms_of_other_projects_give_the_same_messages(tmp_path: Path) -> None:
    system = {"role": "system", "content": "s"}
    call = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    expected = {
        "LLaMA-Factory": [system, ASK, call, {"role": "tool", "content": "1"}, SAY],
        "Alpaca with history": [system, ASK, {"role": "assistant", "content": "b"}, {"role": "user", "content": "do"}, SAY],
        "pairs after a conversation": [ASK, SAY],
        "pairs of an instruction": [{"role": "user", "content": "do\n\nthis"}, SAY],
    }
    for form, messages in expected.items():
        row, keys = FORMS[form]
        (found,), dropped, told = read(tmp_path / "x.jsonl", [row], **keys)
        assert (found.messages, dropped, told) == (messages, {}, [])
        assert found.rejected is None or found.rejected[:-1] == messages[:-1]


def test_several_calls_of_one_message_and_a_broken_history(tmp_path: Path) -> None:
    calls = [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]
    row = {"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": json.dumps(calls)}]}
    ((found,), _, _) = read(tmp_path / "x.jsonl", [row], messages_field="conversations")
    assert [call["function"]["name"] for call in found.messages[1]["tool_calls"]] == ["f", "g"]  # type: ignore[typeddict-item]
    keys = {"instruction_field": "instruction", "output_field": "output", "history_field": "history"}
    rows = [{"instruction": "q", "output": "a", "history": history} for history in ([["x"]], "x", None, [])]
    found_rows, dropped, _ = read(tmp_path / "x.jsonl", rows, **keys)
    assert (len(found_rows), dropped) == (2, {"malformed_history": 2})


def test_trees_are_told_their_source(tmp_path: Path) -> None:
    row = {"message_id": "1", "parent_id": None, "role": "prompter", "text": "q"}
    with pytest.raises(NielsCacheError, match='source = "oasst1"'):
        table(tmp_path / "x.jsonl", [row] * 3, template="sentinels").check_input({})


# Arguments of calls reach a template in the form that it expects, whichever form the rows have.


CITY = {"city": "Köln", "note": 'a "b"'}


def template(of_call: str) -> str:
    """A template that writes each call with this expression. In it, `f` is the function."""
    return (
        "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}{% for c in m.tool_calls or [] %}{% set f = c.function or c %}"
        f"<{{{{ f.name }}}} {of_call}>{{% endfor %}}{{% endfor %}}{{% if add_generation_prompt %}}[assistant]{{% endif %}}"
    )


OF_CALLS = {
    "tojson": "{{ f.arguments | tojson }}",
    "the whole function": "{{ f | tojson }}",
    "both": "{% if f.arguments is string %}{{ f.arguments }}{% else %}{{ f.arguments | tojson }}{% endif %}",
    "keys": "{% for k, v in f.arguments.items() %}{{ k }}={{ v }};{% endfor %}",
    "only the name": "",
    "joined": "{{ 'x' + f.arguments }}",
    "printed": "{{ f.arguments }}",
    "only texts": "{% if f.arguments is string %}{{ f.arguments }}{% endif %}",
}


@pytest.mark.parametrize("name", OF_CALLS)
def test_a_template_that_writes_values_gets_values_and_one_that_joins_texts_gets_texts(name: str) -> None:
    with RendererPool(template_of(template(OF_CALLS[name]))) as rendering:
        assert rendering.argument_form is (json_text if name in ("joined", "printed", "only texts") else json_value)


def call(arguments: Any) -> list[dict[str, Any]]:
    calls = [{"type": "function", "function": {"name": "f", "arguments": arguments}}]
    return [ASK, {"role": "assistant", "content": None, "tool_calls": calls}, {"role": "tool", "content": "1"}, SAY]


@pytest.mark.parametrize("of_call", [OF_CALLS["tojson"], OF_CALLS["both"], OF_CALLS["joined"]], ids=["values", "both", "texts"])
def test_the_form_in_the_rows_changes_no_token(tmp_path: Path, model: Path, of_call: str) -> None:
    forms = [[CITY, json.dumps(CITY), json.dumps(CITY, indent=2, ensure_ascii=False)], [{}, "{}", None, "null", "", " "]]
    rows = [{"messages": call(arguments)} for same in forms for arguments in same]
    rows.append({"messages": [ASK, {"role": "assistant", "tool_calls": [{"name": "f"}]}, {"role": "tool", "content": "1"}, SAY]})
    source = table(tmp_path / "x.jsonl", rows, template="model")
    source.check_input({})
    (conversations,) = source.conversations(StreamContext(seed=0, building="sft/x"))
    tokenizer = opened_model(model)
    with ChatEncoder(template_of(template(of_call)), tokenizer) as encoder:
        encoded = encoder.encode([Chat(each.messages, "x") for each in conversations])
    assert all(isinstance(each, EncodedChat) for each in encoded)
    texts = [tokenizer.decode(each.ids.tolist()) for each in encoded if isinstance(each, EncodedChat)]
    assert len(texts) == 10
    assert json.dumps(CITY, ensure_ascii=False) in texts[0]
    assert "{}" in texts[3]
    assert [len({*texts[:3]}), len({*texts[3:]})] == [1, 1]


def test_a_special_token_that_a_json_text_escapes_is_found(model: Path) -> None:
    tokenizer = opened_model(model)
    escaped = '{"x": "<\\u007cim_end|>"}'
    with ChatEncoder(template_of(template(OF_CALLS["tojson"])), tokenizer) as encoder:
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


def read_file(path: Path, **keys: Any) -> list[Conversation]:
    source = ChatJsonl.model_validate({"source": "chat_jsonl", "files": [str(path)], "template": "model", **keys})
    return [each for batch in source.conversations(StreamContext(seed=0)) for each in batch]


def both_forms(folder: Path, rows: list[dict[str, Any]], **keys: Any) -> tuple[list[Conversation], list[Conversation]]:
    """Read these rows from JSON Lines, and from Parquet as `datasets` writes them, with all keys in every struct."""
    (folder / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), folder / "x.parquet")
    made = [[each._replace(source_id="", file="") for each in read_file(folder / name, **keys)] for name in ("x.jsonl", "x.parquet")]
    return made[0], made[1]


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
    (found,) = read_file(tmp_path / "y.parquet")
    assert found.messages == [{**ASK, "more": {}}, {"role": "assistant", "content": "\ufffd" + "a word " * 100}]


def test_nulls_of_json_lines_in_lists_and_in_maps_are_values(tmp_path: Path) -> None:
    ((found,), _, _) = read(tmp_path / "x.jsonl", [{"messages": call({"x": None, "y": [None]})}])
    arguments: Any = found.messages[1]["tool_calls"][0]["function"]["arguments"]  # type: ignore[typeddict-item]
    assert arguments == {"x": None, "y": [None]}
    of_map = pa.map_(pa.string(), pa.list_(pa.string()))
    calls = pa.list_(pa.struct([("name", pa.string()), ("arguments", of_map)]))
    kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", calls)]))
    called = {"role": "assistant", "tool_calls": [{"name": "f", "arguments": [("a", None), ("b", ["x", None])]}]}
    pq.write_table(pa.table({"messages": pa.array([[ASK, called]], kind)}), tmp_path / "x.parquet")
    (found,) = read_file(tmp_path / "x.parquet")
    assert found.messages[1]["tool_calls"] == [{"name": "f", "arguments": {"a": None, "b": ["x", None]}}]  # type: ignore[typeddict-item]


def test_objects_that_datasets_stores_as_json_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"messages": datasets.List(datasets.Json()), "tools": datasets.Json()})
    rows = {"messages": [call({"x": None}), call({"y": 1})], "tools": [[{"name": "f"}], [{"name": "g", "parameters": {}}]]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(tmp_path / "x.parquet"))
    found = read_file(tmp_path / "x.parquet")
    assert [each.messages[1:3] for each in found] == [messages[1:3] for messages in rows["messages"]]
    assert [each.tools for each in found] == rows["tools"]
