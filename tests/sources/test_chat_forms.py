"""Rows of prompts and answers: what is read of them, what is refused, and what `init` and a build make of unclear columns."""

import csv
import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from niels_cache_assets.base.documents import Conversation
from niels_cache_assets.cli.detection import recognize
from niels_cache_assets.sources.chat_jsonl import ChatJsonl
from niels_cache_assets.sources.messages import template_messages
from niels_cache_assets.sources.pairs import continue_prompt
from niels_cache_assets.sources.types import StreamContext
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.messages import missing

Row = dict[str, Any]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def bot(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def write(path: Path, rows: list[Row]) -> Path:
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def table(path: Path, **keys: Any) -> ChatJsonl:
    return ChatJsonl.model_validate({"source": "chat_jsonl", "files": [str(path)], "template": "chatml", **keys})


def read(path: Path, *, building: str | None = "sft/mine", **keys: Any) -> tuple[list[Conversation], StreamContext]:
    context = StreamContext(seed=0, building=building)
    return [each for batch in table(path, **keys).conversations(context) for each in batch], context


def proposed(path: Path) -> dict[str, str]:
    (proposal,) = recognize([str(path)])
    assert (proposal.kind.family, proposal.kind.source) == ("sft", "chat_jsonl")
    return dict(proposal.kind.keys)


COMPLETION = {"instruction_field": "prompt", "output_field": "completion"}
PROMPTS: dict[str, tuple[Any, Any]] = {
    "text": ("q", "a"),
    "messages": ([user("q")], [bot("a")]),
    "messages and text": ([user("q")], "a"),
    "text and messages": ("q", [bot("a")]),
    "one message": ("q", bot("a")),
    "the prompt again": ([user("q \n")], [user("q"), bot("a")]),
    "the text of the prompt again": ("q\n", [user("q"), bot("a")]),
    "names of ShareGPT": ([{"from": "human", "value": "q"}], [{"from": "gpt", "value": "a"}]),
}


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
@pytest.mark.parametrize("template", ["sentinels", "chatml"])
@pytest.mark.parametrize("form", PROMPTS)
def test_a_prompt_and_its_completion_are_a_conversation(tmp_path: Path, form: str, template: str, name: str) -> None:
    prompt, completion = PROMPTS[form]
    path = write(tmp_path / name, [{"prompt": prompt, "completion": completion}] * 3)
    assert proposed(path) == COMPLETION
    source = table(path, **COMPLETION, template=template)
    source.check_input({})
    found, context = read(path, **COMPLETION, template=template)
    assert [each.messages for each in found] == [[user("q"), bot("a")]] * 3
    assert (dict(context.report.dropped), context.report.hints) == ({}, [])


def test_turns_of_a_prompt_its_history_and_its_system_come_first(tmp_path: Path) -> None:
    prompt = [system("s"), user("one"), bot("two"), user("three")]
    row = {"prompt": prompt, "completion": [bot("four")], "history": [["zero", "half"]], "system": "s"}
    keys = proposed(write(tmp_path / "x.jsonl", [row]))
    assert keys == {**COMPLETION, "history_field": "history", "system_field": "system"}
    (found,), _ = read(tmp_path / "x.jsonl", **keys)
    not_learned = {**bot("two"), "train": False}  # as trl has it
    assert found.messages == [system("s"), user("zero"), bot("half"), user("one"), not_learned, user("three"), bot("four")]
    marked = {**bot("two"), "weight": 1}
    (found,), _ = read(write(tmp_path / "y.jsonl", [{"prompt": [user("one"), marked, user("three")], "completion": "four"}]), **COMPLETION)
    assert found.messages == [user("one"), marked, user("three"), bot("four")]


@pytest.mark.parametrize(("prompt", "reason"), [([], "empty_content"), (None, "null_content"), ({"x": 1}, "unknown_role")])
def test_a_completion_without_its_prompt_is_dropped(tmp_path: Path, prompt: Any, reason: str) -> None:
    path = write(tmp_path / "x.jsonl", [{"prompt": prompt, "completion": [bot("a")]}, {"prompt": "q", "completion": "a"}])
    found, context = read(path, **COMPLETION, on_broken="drop")
    assert (len(found), dict(context.report.dropped)) == (1, {reason: 1})


def test_further_input_follows_the_last_question_of_a_prompt_of_messages(tmp_path: Path) -> None:
    asked = [user("one"), bot("two"), user("three")]
    row = {"prompt": asked, "input": "more", "completion": "a"}
    (found,), _ = read(write(tmp_path / "x.jsonl", [row]), **COMPLETION, input_field="input")
    assert found.messages == [asked[0], {**asked[1], "train": False}, user("three\n\nmore"), bot("a")]
    pair = {"prompt": asked, "input": "more", "chosen": "a", "rejected": [bot("b")]}
    keys = proposed(write(tmp_path / "y.jsonl", [pair]))
    assert keys == {"kind": "preference", "prompt_field": "prompt", "input_field": "input"}
    (found,), _ = read(tmp_path / "y.jsonl", **keys)
    prompt = [*asked[:2], user("three\n\nmore")]
    assert (found.messages, found.rejected) == ([*prompt, bot("a")], [*prompt, bot("b")])
    for no_place in ({**pair, "prompt": asked[:2]}, {**pair, "prompt": None, "chosen": [*asked, bot("a")], "rejected": [*asked, bot("b")]}):
        found_rows, context = read(write(tmp_path / "z.jsonl", [no_place, pair]), **keys)
        assert (len(found_rows), dict(context.report.dropped)) == (1, {"no_place_for_input": 1})
        found_rows, context = read(write(tmp_path / "z.jsonl", [{**no_place, "input": " "}]), **keys)
        assert dict(context.report.dropped).keys() <= {"prompts_differ"}


def test_messages_beside_other_messages_are_never_proposed_alone(tmp_path: Path) -> None:
    chat = [user("q"), bot("a")]
    path = tmp_path / "x.jsonl"
    for row in ({"first": chat, "second": [*chat[:1], bot("b")]}, {"messages": chat, "note": "text", "notes": [user("x")]}):
        write(path, [row] * 3)
        with pytest.raises(NielsCacheError) as raised:
            recognize([str(path)])
        assert missing(str(raised.value), "x.jsonl", "messages_field", *row, '([{"role": "user"') in ([], ["note"])
    assert proposed(write(path, [{"messages": chat, "prompt": chat[:1]}])) == {}, "nothing is lost"
    assert proposed(write(path, [{"all": chat, "prompt": chat[:1]}])) == {"messages_field": "all"}
    with pytest.raises(NielsCacheError, match=r"messages_field.*first .*second"):
        table(write(path, [{"first": chat, "second": [*chat[:1], bot("b")]}])).check_input({})


def test_a_table_that_reads_only_some_of_the_messages_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [{"prompt": [user("q")], "completion": [bot("a")]}] * 3)
    _, context = read(path, messages_field="completion")
    (said,) = context.report.hints
    assert missing(said, "x.jsonl: row 0", "prompt", "not read", "completion") == []
    assert read(path, **COMPLETION)[1].report.hints == []


UNCLEAR: dict[str, tuple[Row, str]] = {
    "two instructions": ({"question": "a b", "query": "c", "answer": "d"}, "instruction_field"),
    "two answers": ({"prompt": "a b", "completion": "c", "response": "d"}, "output_field"),
    "two prompts of pairs": ({"question": "a b", "query": "c", "chosen": "d", "rejected": "e"}, "prompt_field"),
    "two spellings": ({"Output": "a b", "output": "c", "prompt": "d"}, "output_field"),
}


@pytest.mark.parametrize("case", UNCLEAR)
def test_of_several_columns_none_is_taken_and_all_are_shown(tmp_path: Path, case: str) -> None:
    row, key = UNCLEAR[case]
    path = write(tmp_path / "x.jsonl", [row] * 3)
    with pytest.raises(NielsCacheError) as raised:
        recognize([str(path)])
    shown = [f'{name} ("{value}")' for name, value in row.items()]
    assert missing(str(raised.value), "x.jsonl", key) == []
    assert sum(each in str(raised.value) for each in shown) == 2
    with pytest.raises(NielsCacheError) as raised:
        table(path).check_input({})
    assert missing(str(raised.value), "'messages'", key, *shown) == []


def test_the_first_name_wins_and_empty_lists_are_no_chats(tmp_path: Path) -> None:
    row = {"instruction": "a", "prompt": "b", "output": "c", "response": "d"}
    assert proposed(write(tmp_path / "x.jsonl", [row])) == {"instruction_field": "instruction", "output_field": "output"}
    (proposal,) = recognize([str(write(tmp_path / "y.jsonl", [{"text": "a b c", "tags": []}]))])
    assert (proposal.kind.family, dict(proposal.kind.keys)) == ("pretrain", {"text_field": "text"})
    row = {"user": 17, "question": "a", "answer": "b"}
    assert proposed(write(tmp_path / "z.jsonl", [row])) == {"instruction_field": "question", "output_field": "answer"}


KTO = [
    {"prompt": "q", "completion": "good", "label": True},
    {"prompt": "q", "completion": "bad", "label": False},
    {"prompt": "p", "completion": "fine", "label": True},
]
KTO_FORMS: dict[str, tuple[list[Row], dict[str, str]]] = {
    "text": (KTO, COMPLETION),
    "messages": ([{**row, "prompt": [user(row["prompt"])], "completion": [bot(row["completion"])]} for row in KTO], COMPLETION),
    "whole": ([{"messages": [user(row["prompt"]), bot(row["completion"])], "label": row["label"]} for row in KTO], {}),
    "kto_tag": (
        [{"instruction": row["prompt"], "output": row["completion"], "kto_tag": row["label"]} for row in KTO],
        {"instruction_field": "instruction", "output_field": "output"},
    ),
}


CSV_FORMS = [(form, "x.csv") for form in ("text", "kto_tag")]  # a CSV file holds no messages


@pytest.mark.parametrize(("form", "name"), [*itertools.product(KTO_FORMS, ["x.jsonl", "x.parquet"]), *CSV_FORMS])
def test_rows_with_a_label_of_kto_need_the_key(tmp_path: Path, form: str, name: str) -> None:
    rows, keys = KTO_FORMS[form]
    path = write(tmp_path / name, rows)
    assert proposed(path) == {**keys, "kto": "positives"}
    for more in ({}, {"on_broken": "drop"}, {"template": "sentinels"}):
        with pytest.raises(NielsCacheError, match=r'row 0.*kto = "positives".*kto = "drop"'):
            table(path, **keys, **more).check_input({})
        with pytest.raises(NielsCacheError, match=r"\[sft\.mine\].*row 0.*KTO"):
            read(path, **keys, **more)
    found, context = read(path, building=None, **keys)
    assert (found, dict(context.report.dropped)) == ([], {"kto_label_without_key": 3})
    table(path, **keys, kto="positives").check_input({})
    found, context = read(path, **keys, kto="positives")
    assert [each.messages[-1]["content"] for each in found] == ["good", "fine"]
    assert dict(context.report.dropped) == {"kto_negative": 1}
    plain = {**dict(zip(keys.values(), ("q", "a"), strict=False)), **({} if keys else {"messages": [user("q"), bot("a")]})}
    mixed = write(tmp_path / f"mixed_{name}", [*rows, plain if form != "messages" else {"prompt": [user("q")], "completion": [bot("a")]}])
    found, context = read(mixed, **keys, kto="drop")
    assert [each.messages for each in found] == [[user("q"), bot("a")]]
    assert dict(context.report.dropped) == {"kto_row": 3}


@pytest.mark.parametrize(("liked", "disliked"), [("TRUE", "FALSE"), (1, 0), ("1.0", "0.0")])
def test_labels_of_csv_are_words_and_numbers(tmp_path: Path, liked: Any, disliked: Any) -> None:
    path = write(tmp_path / "x.csv", [{**row, "label": liked if row["label"] else disliked} for row in KTO])
    assert proposed(path) == {**COMPLETION, "kto": "positives"}
    found, context = read(path, **COMPLETION, kto="positives")
    assert (len(found), dict(context.report.dropped)) == (2, {"kto_negative": 1})
    found, _ = read(path, instruction_field="prompt", output_field="label")  # a text, as any field that a key names
    assert [each.messages[-1]["content"] for each in found] == [str(each) for each in (liked, disliked, liked)]


def test_a_late_label_stops_the_build_and_labels_that_are_none_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [{"prompt": "q", "completion": "a"}] * 5 + KTO[1:2])
    with pytest.raises(NielsCacheError, match="row 5"):
        read(path, **COMPLETION)
    path = write(tmp_path / "x.jsonl", [*KTO, {**KTO[0], "label": "yes"}, {**KTO[0], "label": None}])
    found, context = read(path, **COMPLETION, kto="positives")
    assert (len(found), dict(context.report.dropped)) == (3, {"kto_negative": 1, "malformed_label": 1})
    for rows in ([{"prompt": "q", "completion": "a"}], [{"prompt": "q", "completion": "a", "liked": False}]):
        write(path, rows * 3)
        for use in (lambda: table(path, **COMPLETION, kto="positives").check_input({}), lambda: read(path, **COMPLETION, kto="drop")):
            with pytest.raises(NielsCacheError, match="label or kto_tag"):
                use()
    with pytest.raises(ValueError, match="kto"):
        table(path, kind="preference", kto="drop")


def test_a_prompt_of_several_turns_is_whole_or_only_its_system_is_left_out() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}
    in_text = {**call, "content": "", "tool_calls": [{"function": {"name": "f", "arguments": '{"x":1}'}}]}
    prompt, result = [system("s"), user("q"), call, {"role": "tool", "content": "1"}], {"role": "tool", "content": " 1"}
    whole = [system("s"), user("q"), in_text, result, bot("a")]
    assert continue_prompt(prompt, whole, template_messages) == whole
    assert continue_prompt(prompt[:2], [user("q"), bot("a")], template_messages) == [*prompt[:2], bot("a")]
    assert continue_prompt([user("q")], [system("s"), user("q"), bot("a")], template_messages) == [*prompt[:2], bot("a")]
    assert continue_prompt([user("q")], [system("s"), bot("a")], template_messages) == [*prompt[:2], bot("a")]
    assert continue_prompt([system("s")], [user("q"), bot("a")], template_messages) == [*prompt[:2], bot("a")]
    assert continue_prompt([user("q"), bot("a")], [user("p"), bot("b")], template_messages) == [user("q"), bot("a"), user("p"), bot("b")]
    assert continue_prompt("p", [user("q"), bot("a"), user("p"), bot("b")], template_messages) == [user("q"), bot("a"), user("p"), bot("b")]


REFUSED: dict[str, tuple[Any, Any]] = {
    "another question": ([user("q")], [user("p"), bot("a")]),
    "another question of text": ("q", [user("p"), bot("a")]),
    "another dialogue": ("q", "\n\nHuman: p\n\nAssistant: a"),
    "another dialogue after messages": ([user("q")], "\n\nHuman: p\n\nAssistant: a"),
    "another system": ([system("s"), user("q")], [system("t"), user("q"), bot("a")]),
    "another answer in the middle": ([user("q"), bot("x"), user("p")], [user("q"), bot("y"), user("p"), bot("a")]),
    "the end of the prompt": ([user("q"), bot("x"), user("p")], [user("p"), bot("a")]),
    "the last answer again": ([user("q"), bot("x")], [bot("x"), user("p"), bot("a")]),
    "a shorter beginning": ([user("q"), bot("x"), user("p")], [user("q"), bot("a")]),
}


@pytest.mark.parametrize("form", REFUSED)
def test_a_side_that_is_only_like_the_prompt_is_refused_and_counted(tmp_path: Path, form: str) -> None:
    prompt, side = REFUSED[form]
    assert continue_prompt(prompt, side, template_messages) == "differs_from_prompt"
    good = {"prompt": "q", "chosen": "a", "rejected": "b"}
    path = write(tmp_path / "x.jsonl", [{"prompt": prompt, "chosen": side, "rejected": "b"}, good])
    found, context = read(path, kind="preference")
    assert (len(found), dict(context.report.dropped)) == (1, {"differs_from_prompt": 1})
    with pytest.raises(NielsCacheError, match="prompt"):
        table(write(path, [{"prompt": prompt, "chosen": side, "rejected": side}] * 3), kind="preference").check_input({})


def test_a_column_prompt_that_is_no_prompt_can_be_left_out(tmp_path: Path) -> None:
    row = {"prompt": "topic 7", "chosen": [user("q"), bot("a")], "rejected": [user("q"), bot("b")]}
    path = write(tmp_path / "x.jsonl", [row] * 3)
    with pytest.raises(NielsCacheError) as raised:
        recognize([str(path)])
    assert missing(str(raised.value), "x.jsonl", 'prompt ("topic 7")', "prompt_field = ''") == []
    with pytest.raises(NielsCacheError, match="prompt_field = ''"):
        table(path, kind="preference").check_input({})
    found, _ = read(path, kind="preference", prompt_field="")
    assert [(each.messages, each.rejected) for each in found] == [(row["chosen"], row["rejected"])] * 3


def test_pairs_in_the_form_of_openai_and_with_a_field_for_the_system_are_read(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    openai = {
        "input": {"messages": [user("q")], "tools": tools, "parallel_tool_calls": True},
        "preferred_output": [bot("a")],
        "non_preferred_output": [bot("b")],
    }
    for name in ("x.jsonl", "x.parquet"):
        keys = proposed(write(tmp_path / name, [openai] * 3))
        fields = {"prompt_field": "input", "chosen_field": "preferred_output", "rejected_field": "non_preferred_output"}
        assert keys == {"kind": "preference", **fields}
        found, _ = read(tmp_path / name, **keys)
        assert [(each.messages, each.rejected, each.tools) for each in found] == [([user("q"), bot("a")], [user("q"), bot("b")], tools)] * 3
    keys = proposed(write(tmp_path / "y.jsonl", [{"system": "s", "question": "q", "chosen": "a", "rejected": "b"}] * 3))
    assert keys == {"kind": "preference", "prompt_field": "question", "system_field": "system"}
    found, _ = read(tmp_path / "y.jsonl", **keys)
    assert (found[0].messages, found[0].rejected) == ([system("s"), user("q"), bot("a")], [system("s"), user("q"), bot("b")])
