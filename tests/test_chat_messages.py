"""The messages of a conversation with a chat template: tools, calls, reasoning, parts of text, and rows that are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts.forecast.volumes import sample_of_source
from niels_cache_assets.cli.recognizing import recognize
from niels_cache_assets.corpus.tokenizer_sample import raw_texts
from niels_cache_assets.documents import Conversation
from niels_cache_assets.sources.chat_jsonl import ChatJsonl
from niels_cache_assets.sources.conversations import conversation_problem
from niels_cache_assets.sources.messages import template_messages, tools_of
from niels_cache_assets.sources.types import StreamContext
from niels_cache_runtime import NielsCacheError

ASK, SAY = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
ROLES = {"system", "developer", "user", "assistant", "tool"}


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


def test_a_message_without_text_is_in_no_sample_of_texts(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    messages = [ASK, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "1"}, SAY]
    path.write_text(json.dumps({"messages": messages}) + "\n", encoding="utf-8")
    source = ChatJsonl.model_validate({"source": "chat_jsonl", "files": [str(path)], "template": "chatml"})
    assert [*raw_texts(source, StreamContext(seed=0))] == ["q", "1", "a"]
    found = sample_of_source(source, [], seed=0, encoder=None)
    assert found is not None
    assert found.text_bytes == 3


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


@pytest.mark.parametrize("kind", ["image", "audio", "video", "image_url", "input_audio"])
def test_media_are_counted_with_their_kind(tmp_path: Path, kind: str) -> None:
    content = [{"type": kind, kind: "x"}, {"type": "text", "text": "q"}]
    found, dropped, _ = read(tmp_path / "x.jsonl", [{"messages": [{"role": "user", "content": content}, SAY]}, {"messages": [ASK, SAY]}])
    assert len(found) == 1
    assert dropped == {f"{kind.removeprefix('input_').removesuffix('_url')}_content": 1}


@pytest.mark.parametrize("name", ["image", "images", "audio", "audios", "video"])
def test_media_beside_the_messages_are_counted_with_their_kind(tmp_path: Path, name: str) -> None:
    rows: list[dict[str, Any]] = [{"messages": [ASK, SAY], name: ["x.png"]}, {"messages": [ASK, SAY], name: []}, {"messages": [ASK, SAY]}]
    found, dropped, _ = read(tmp_path / "x.jsonl", rows)
    assert len(found) == 2
    assert dropped == {f"{name.removesuffix('s')}_content": 1}
    pairs = [{"prompt": "q", "chosen": "a", "rejected": "b", name: "x.png"}, {"prompt": "q", "chosen": "a", "rejected": "b", name: None}]
    found, dropped, _ = read(tmp_path / "x.jsonl", pairs, kind="preference")
    assert (len(found), dropped) == (1, {f"{name.removesuffix('s')}_content": 1})
    assert len(read(tmp_path / "x.jsonl", rows, template="sentinels")[0]) == 3


MISTAKES: dict[str, tuple[str, list[Any], str]] = {  # the reason, the messages, and a word of the message
    "a typo": ("unknown_role", [ASK, {"role": "asistant", "content": "a"}], "'assistant'"),
    "a role of nobody": ("unknown_role", [{"role": "bot", "content": "q"}, SAY], "developer"),
    "no role": ("unknown_role", [{"content": "q"}, SAY], "no role"),
    "no assistant": ("no_assistant", [ASK], "never speaks"),
    "an empty assistant": ("no_assistant", [ASK, {"role": "assistant", "content": " "}], "never speaks"),
    "a broken call": (
        "broken_json_in_call",
        [ASK, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{x"}}]}],
        "JSON",
    ),
    "another weight": ("unusable_weight", [ASK, {**SAY, "weight": 0.5}], "weight = 0.5"),
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
    said = str(raised.value)
    assert all(each in said for each in ("[sft.mine]", "x.jsonl: row 1", word, 'on_broken = "drop"'))
    assert "\n" not in said
    found, dropped, told = read(tmp_path / "x.jsonl", rows, on_broken="drop")
    assert len(found) == 1
    assert dropped == {reason: 2}
    (line,) = told
    assert "x.jsonl: row 1" in line
    assert reason in line


def test_a_pass_that_only_looks_leaves_mistakes_out(tmp_path: Path) -> None:
    rows = [{"messages": [ASK, SAY]}, {"messages": [ASK]}]
    found, dropped, _ = read(tmp_path / "x.jsonl", rows, building=None)
    assert (len(found), dropped) == (1, {"no_assistant": 1})
    path = tmp_path / "x.jsonl"
    assert [*raw_texts(table(path, rows), StreamContext(seed=0))] == ["q", "a"]


def test_a_mistake_in_one_side_of_a_pair_stops_the_build(tmp_path: Path) -> None:
    good = {"prompt": "q", "chosen": "a", "rejected": "b"}
    for rejected, word in [([ASK, {"role": "asistant", "content": "b"}], "'assistant'"), ([ASK], "never speaks")]:
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


def test_on_broken_is_in_no_fingerprint(tmp_path: Path) -> None:
    for template in ("sentinels", "chatml"):
        plain = table(tmp_path / "x.jsonl", [], template=template).identity()
        for value in ("stop", "drop"):
            assert table(tmp_path / "x.jsonl", [], template=template, on_broken=value).identity() == plain


def test_without_a_template_nothing_changes(tmp_path: Path) -> None:
    silent = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    rows = [{"messages": [ASK, silent], "tools": [{}]}, {"messages": [{"role": "developer", "content": "x"}, SAY]}]
    found, dropped, told = read(tmp_path / "x.jsonl", rows, template="sentinels")
    assert (found, dropped, told) == ([], {"null_content": 1, "unknown_role": 1}, [])
    assert conversation_problem([ASK, silent]) == "null_content"
    assert conversation_problem([ASK, silent], ROLES) is None


FORMS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "messages": ({"messages": [ASK, SAY]}, {}),
    "another name": ({"dialog": [ASK, SAY]}, {"messages_field": "dialog"}),
    "ShareGPT": (
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"messages_field": "conversations"},
    ),
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
def test_rows_are_recognized_by_looking(tmp_path: Path, form: str) -> None:
    row, keys = FORMS[form]
    path = tmp_path / "x.jsonl"
    path.write_text((json.dumps(row) + "\n") * 3, encoding="utf-8")
    (proposal,) = recognize([str(path)])
    assert (proposal.kind.source, dict(proposal.kind.keys)) == ("chat_jsonl", keys)


def test_forms_of_other_projects_give_the_same_messages(tmp_path: Path) -> None:
    system = {"role": "system", "content": "s"}
    call = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]}
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


@pytest.mark.parametrize("form", [form for form in FORMS if FORMS[form][1]])
def test_a_table_with_wrong_keys_is_told_the_right_ones(tmp_path: Path, form: str) -> None:
    row, keys = FORMS[form]
    path = tmp_path / "x.jsonl"
    path.write_text((json.dumps(row) + "\n") * 3, encoding="utf-8")
    with pytest.raises(NielsCacheError) as raised:
        ChatJsonl.model_validate({"source": "chat_jsonl", "files": [str(path)]}).check_input({})
    assert all(f"{key} = {json.dumps(name)}" in str(raised.value) for key, name in keys.items())
    template = "chatml" if form == "LLaMA-Factory" else "sentinels"
    ChatJsonl.model_validate({"source": "chat_jsonl", "files": [str(path)], "template": template, **keys}).check_input({})


def test_trees_and_pairs_are_told_their_source_and_kind(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    table = ChatJsonl.model_validate({"source": "chat_jsonl", "files": [str(path)]})
    for row, told in [
        ({"message_id": "1", "parent_id": None, "role": "prompter", "text": "q"}, 'source = "oasst1"'),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, 'kind = "preference"'),
    ]:
        path.write_text((json.dumps(row) + "\n") * 3, encoding="utf-8")
        with pytest.raises(NielsCacheError, match=told):
            table.check_input({})
