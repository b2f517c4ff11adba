"""SFT sources on rows in their real schema: what becomes a conversation, and why the rest does not."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.sources.chat_jsonl import ChatJsonl
from niels_cache_corpora.dolly15k import Dolly15k
from niels_cache_corpora.oasst1 import Oasst1
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.hub_repositories import dolly_rows, json_lines, oasst_rows, parquet
from tests.helpers.read_sources import read

USER = {"role": "user", "content": "Hi"}
ASSISTANT = {"role": "assistant", "content": "Hello"}


def chat(tmp_path: Path, rows: list[dict[str, Any]], **keys: Any) -> tuple[list[Any], dict[str, int]]:
    (tmp_path / "chats.jsonl.gz").write_bytes(gzip.compress(json_lines(rows)))
    conversations, context = read(ChatJsonl(files=[str(tmp_path / "*.jsonl.gz")], **keys))
    return conversations, dict(context.report.dropped)


def test_chat_rows_that_cannot_be_trained_on_are_counted_by_reason(tmp_path: Path) -> None:
    rows = [
        {"messages": [USER, ASSISTANT]},
        {"messages": []},
        {"messages": [USER]},
        {"messages": [USER, {"role": "function", "content": "x"}]},
        {"messages": [USER, {"role": "assistant", "content": ""}]},
        {"messages": "Hi"},
        {"messages": None},
        {"messages": ["Hi"]},
        {"text": "Hi"},
    ]
    conversations, dropped = chat(tmp_path, rows)
    assert len(conversations) == 1
    assert dropped == {
        "empty_conversation": 1,
        "no_assistant": 1,
        "unknown_role": 1,
        "empty_content": 1,
        "malformed_messages": 3,
        "missing_messages_field": 1,
    }


def test_instruction_rows_become_conversations(tmp_path: Path) -> None:
    rows = [
        {"question": "Add", "extra": "1 and 2", "answer": "3", "setting": "You add."},
        {"question": "Say hi", "extra": " ", "answer": "hi", "setting": None},
        {"question": "Nothing", "extra": "", "answer": None, "setting": None},
    ]
    keys = {"instruction_field": "question", "input_field": "extra", "output_field": "answer", "system_field": "setting"}
    conversations, dropped = chat(tmp_path, rows, **keys)
    assert [conversation.messages for conversation in conversations] == [
        [{"role": "system", "content": "You add."}, {"role": "user", "content": "Add\n\n1 and 2"}, {"role": "assistant", "content": "3"}],
        [{"role": "user", "content": "Say hi"}, {"role": "assistant", "content": "hi"}],
    ]
    assert dropped == {"null_content": 1}
    assert "output_field" in (ChatJsonl(files=["x"], instruction_field="q").missing_setting() or "")


@pytest.mark.parametrize("key", ["input_field", "output_field", "system_field"])
def test_every_field_that_no_row_has_is_an_error(tmp_path: Path, key: str) -> None:
    keys = {"instruction_field": "q", "output_field": "a"} | {key: "mispelt"}
    with pytest.raises(NielsCacheError, match=rf"""no field 'mispelt'.*set {key} to one of: q, a, x"""):
        chat(tmp_path, [{"q": "Hi", "a": "Hello", "x": "y"}] * 3, **keys)
    if key != "system_field":
        assert "instruction_field" in (ChatJsonl(files=["x"], **{key: "q"}).missing_setting() or "")  # type: ignore[arg-type]


def test_values_that_are_no_strings_are_counted_and_not_converted(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"q": "Add", "x": 5, "a": "5"}, {"q": 3, "x": "y", "a": "4"}, {"q": "Say", "a": "hi"}]
    conversations, dropped = chat(tmp_path, rows, instruction_field="q", input_field="x", output_field="a")
    assert [conversation.messages[0]["content"] for conversation in conversations] == ["Say"]
    assert dropped == {"non_string_content": 2}
    (tmp_path / "dolly.jsonl").write_bytes(
        json_lines([*dolly_rows(1), *({**dolly_rows(1)[0], key: 7} for key in ("context", "instruction", "response"))])
    )
    conversations, context = read(Dolly15k(files=[str(tmp_path / "dolly.jsonl")]))
    assert [conversation.messages[0]["content"][:4] for conversation in conversations] == ["What"]
    assert context.report.dropped == {"non_string_content": 3}


def test_a_category_that_is_no_string_is_named(tmp_path: Path) -> None:
    (tmp_path / "dolly.jsonl").write_bytes(json_lines([{**row, "category": 5} for row in dolly_rows(2)]))
    with pytest.raises(NielsCacheError, match=r"dolly\.jsonl: row 0: category is 5"):
        read(Dolly15k(files=[str(tmp_path / "dolly.jsonl")]))


def test_dolly_rows_take_their_context_along(tmp_path: Path) -> None:
    rows = [*dolly_rows(4), {"instruction": "Why?", "context": None, "response": " ", "category": "open_qa"}]
    (tmp_path / "dolly.jsonl").write_bytes(json_lines(rows))
    source = Dolly15k(files=[str(tmp_path / "*.jsonl")], system_message="Be brief.")
    conversations, context = read(source)
    assert [conversation.category for conversation in conversations] == ["closed_qa", "open_qa", "open_qa", "closed_qa"]
    assert [message["content"] for message in conversations[3].messages] == [
        "Be brief.",
        "What is 3 plus 3?\n\ncontext:\n3 is a number.",
        "It is 6.",
    ]
    assert [message["content"] for message in conversations[1].messages] == ["Be brief.", "What is 1 plus 1?", "It is 2."]
    assert context.report.dropped == {"empty_content": 1}


def message(name: str, parent: str | None, role: str, text: str | None = "words", **more: Any) -> dict[str, Any]:
    ids = {"message_id": name, "parent_id": parent, "message_tree_id": "t"}
    return {**ids, "text": text, "role": role, "lang": "en", "deleted": False, **more}


def oasst(tmp_path: Path, rows: list[dict[str, Any]], **keys: Any) -> tuple[list[Any], dict[str, int]]:
    (tmp_path / "messages.parquet").write_bytes(parquet(rows))
    conversations, context = read(Oasst1(files=[str(tmp_path / "messages.parquet")], **keys))
    return conversations, dict(context.report.dropped)


def ids(conversations: list[Any]) -> list[str]:
    return [conversation.source_id for conversation in conversations]


def test_every_path_from_root_to_leaf_is_a_thread_whatever_the_order_of_rows(tmp_path: Path) -> None:
    rows = oasst_rows(3)
    conversations, dropped = oasst(tmp_path, rows)
    assert ids(conversations) == ["t0aqa", "t0b", "t1aqa", "t1b", "t2aqa", "t2b"]
    assert [conversation.group for conversation in conversations] == ["t0", "t0", "t1", "t1", "t2", "t2"]
    assert [(entry["role"], entry["content"]) for entry in conversations[0].messages] == [
        ("user", "prompter says t0"),
        ("assistant", "assistant says t0a"),
        ("user", "prompter says t0aq"),
        ("assistant", "assistant says t0aqa"),
    ]
    assert (conversations[0].file, conversations[0].row) == ("messages.parquet", 4)
    assert not dropped
    backwards, _ = oasst(tmp_path, rows[::-1])
    assert sorted(ids(backwards)) == sorted(ids(conversations))


def as_tree(rows: list[dict[str, Any]], root: str) -> dict[str, Any]:
    def node(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "replies": [node(reply) for reply in rows if reply["parent_id"] == row["message_id"]]}

    (prompt,) = (row for row in rows if row["message_id"] == root)
    return {"message_tree_id": root, "tree_state": "ready_for_export", "prompt": node(prompt)}


def test_tree_files_give_the_same_threads_as_flat_messages(tmp_path: Path) -> None:
    rows = oasst_rows(3)
    flat, _ = oasst(tmp_path, rows)
    (tmp_path / "oasst.trees.jsonl").write_bytes(json_lines([as_tree(rows, f"t{tree}") for tree in range(3)]))
    trees, context = read(Oasst1(files=[str(tmp_path / "*.trees.jsonl")]))
    assert [(tree.messages, tree.source_id, tree.group) for tree in trees] == [(row.messages, row.source_id, row.group) for row in flat]
    assert len(trees) == 6
    assert context.report.facts == {"trees": 3}
    assert {conversation.row for conversation in trees} == {0, 1, 2}, "row is the tree's line"
    (tmp_path / "flat.jsonl").write_bytes(json_lines(rows))
    with pytest.raises(NielsCacheError, match="only one kind"):
        read(Oasst1(files=[str(tmp_path / "*.jsonl")]))


def test_threads_that_cannot_be_used_are_cut_or_counted(tmp_path: Path) -> None:
    rows = [
        message("t", None, "prompter"),
        message("a", "t", "assistant"),
        message("aq1", "a", "prompter"),  # cut back to a
        message("aq2", "a", "prompter"),  # the same after cutting
        message("q", "t", "prompter"),
        message("qa", "q", "assistant"),  # two questions in a row
        message("e", "t", "assistant", text=" "),  # empty, passed over: nothing is left to learn
        message("x", "t", "moderator"),
        message("xa", "x", "assistant"),
        message("d", "t", "assistant", deleted=True),
        message("dq", "d", "prompter"),  # below a deleted one
        message("s", "t", "assistant", lang="es"),
        message("n", "t", "assistant", lang=None),
    ]
    conversations, dropped = oasst(tmp_path, rows)
    assert ids(conversations) == ["a", "n"]
    assert [entry["role"] for entry in conversations[0].messages] == ["user", "assistant"]
    assert dropped == {
        "duplicate_after_cut": 1,
        "not_alternating": 1,
        "empty_message": 1,
        "no_assistant": 1,
        "unknown_role": 1,
        "deleted": 1,
        "without_parent": 1,
        "other_language": 1,
    }
    conversations, _ = oasst(tmp_path, rows, languages=[])
    assert ids(conversations) == ["a", "s", "n"]


def chain(length: int, tree: str = "t") -> list[dict[str, Any]]:
    roles = ("prompter", "assistant")
    return [message(f"{tree}{depth}", f"{tree}{depth - 1}" if depth else None, roles[depth % 2]) for depth in range(length)]


def test_long_threads_keep_their_first_messages_and_deep_trees_do_not_recurse(tmp_path: Path) -> None:
    rows = chain(5000)
    rows += [message(f"leaf{depth}", f"t{depth}", "assistant") for depth in range(30, 5000, 2)]
    conversations, dropped = oasst(tmp_path, rows)
    assert ids(conversations) == ["t31", "leaf30"]
    assert {len(conversation.messages) for conversation in conversations} == {32}
    assert dropped == {"duplicate_after_cut": len(range(32, 5000, 2))}
    conversations, _ = oasst(tmp_path, rows, max_messages=3)
    assert ids(conversations) == ["t1"], "three messages end with a question, so two are kept"


def test_tree_rows_that_are_no_trees_are_counted(tmp_path: Path) -> None:
    question = {"message_id": "q", "text": "Why?", "role": "prompter"}
    nameless = {"text": "So.", "role": "assistant", "replies": [question | {"message_id": "below"}]}
    answer = {"message_id": "a", "text": "So.", "role": "assistant", "replies": None}
    rows: list[dict[str, Any]] = [
        {"message_tree_id": "q", "prompt": {**question, "replies": [answer, nameless, "text", answer]}},
        {"message_tree_id": "r", "prompt": None},
        {"message_tree_id": "s"},
        {"message_tree_id": "u", "prompt": {"text": "no id", "role": "prompter"}},
    ]
    (tmp_path / "x.trees.jsonl").write_bytes(json_lines(rows))
    conversations, context = read(Oasst1(files=[str(tmp_path / "x.trees.jsonl")]))
    assert ids(conversations) == ["a"]
    assert context.report.dropped == {
        "missing_prompt": 2,
        "missing_message_id": 2,
        "without_parent": 1,
        "malformed_message": 1,
        "duplicate_message": 1,
    }


def test_flat_rows_whose_ids_are_no_strings_or_missing_are_counted(tmp_path: Path) -> None:
    rows = [message("t", None, "prompter"), message("a", "t", "assistant"), message("", None, "prompter") | {"message_id": None}]
    rows += [message("b", "t", "assistant") | {field: value} for field in ("parent_id", "message_tree_id") for value in (["t"], 5, True)]
    (tmp_path / "x.jsonl").write_bytes(json_lines(rows))
    conversations, context = read(Oasst1(files=[str(tmp_path / "x.jsonl")]))
    assert ids(conversations) == ["a"]
    assert context.report.dropped == {"malformed_message": 6, "missing_message_id": 1}


def test_oasst_rows_without_the_needed_fields_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(NielsCacheError, match=r"message_id .*parent_id"):
        oasst(tmp_path, [{"text": "x"}])
