"""Recognition of chats in rows: which keys of a table `chat_jsonl` fit them.

    {"conversations": [...], "system"}               messages_field = "conversations", system_field
    {"instruction", "input", "output", "history"}    instruction_field, input_field, output_field, history_field
    {"prompt", "completion"}, text or messages       instruction_field = "prompt", output_field = "completion"
    {"prompt", "completion", "label": false}         the same, and kto = "positives"
    {"prompt", "chosen", "rejected"}                 kind = "preference"
    {"conversations": [...], "chosen", "rejected"}   kind = "preference", prompt_field = "conversations"
    {"input": {"messages"}, "preferred_output", "non_preferred_output"}    the same, with prompt_field = "input"

The caller tries the keys on the rows. `init` writes them, and errors of a build suggest them. If there is a column with the first name of
its kind (`instruction`, `output`), it is used; otherwise exactly one column may have one of the other names. A list of messages is never
used alone if another column has messages that are not in it.

Trees of messages belong to the source `oasst1`.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from niels_cache_assets.sources.conversations import has_label
from niels_cache_assets.sources.messages import holds_messages
from niels_cache_runtime.errors import NielsCacheError

_INSTRUCTIONS = ("instruction", "prompt", "question", "query", "user", "human")
_PROMPTS = ("prompt", "instruction", "question", "query", "user", "human", "conversations", "messages")
_INPUTS = ("input", "context")
_ANSWERS = ("output", "response", "answer", "completion", "assistant", "gpt")
_SYSTEMS = ("system", "system_prompt")
_HISTORIES = ("history",)
_DIALOGUES = ("messages", "conversations")
_SIDES = (
    ("chosen", "rejected"),
    ("chosen_response", "rejected_response"),
    ("preferred", "dispreferred"),
    ("preferred_output", "non_preferred_output"),
)
_SAMPLE = 24  # characters of a value in a message

Rows = Sequence[Mapping[str, Any]]
Keys = dict[str, str]
Fits = Callable[[Keys], bool]


class UnclearColumnsError(NielsCacheError):
    """Rows in which several columns may hold the same thing."""


def are_trees(rows: Rows) -> bool:
    """Return whether the rows are trees of messages, or messages of trees."""
    fields = {key for row in rows for key in row}
    return any(isinstance(row.get("prompt"), dict) and "replies" in row["prompt"] for row in rows) or (
        {"message_id", "parent_id", "role"} <= fields
    )


def keys_of_rows(rows: Rows, fits: Fits) -> Keys | None:
    """Return the keys of a table that makes chats or pairs from these rows, or None if they hold none.

    Args:
        rows: The first rows of a file.
        fits: Returns whether a table with the given keys makes a chat or a pair from at least one row.

    Raises:
        UnclearColumnsError: If several columns may hold the same thing.
    """
    columns = _Columns(rows)
    if (keys := _pair_keys(columns, fits)) is not None:
        return keys
    for find_keys in (_prompt_keys, _message_keys, _instruction_keys):
        if (keys := find_keys(columns, fits)) is not None:
            return keys | ({"kto": "positives"} if any(map(has_label, rows)) else {})
    return None


def advice(rows: Rows, fits: Fits) -> str:
    """Return a clause with the keys that fit these rows, or why none were chosen. It is empty if the rows hold no chats."""
    if are_trees(rows):
        return '; these rows are trees, for source = "oasst1"'
    try:
        keys = keys_of_rows(rows, fits)
    except UnclearColumnsError as error:
        return f"; {error}"
    return f"; these rows fit {', '.join(f'{key} = {json.dumps(name)}' for key, name in keys.items())}" if keys else ""


def describe_fields(rows: Rows, names: Iterable[str]) -> str:
    """Return the names of fields, each with the beginning of its first value."""
    return ", ".join(f"{name} ({_sample(next((row[name] for row in rows if row.get(name) is not None), None))})" for name in names)


def _sample(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SAMPLE else f"{text[:_SAMPLE]}..."


def note_of_lost_messages(row: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """Return a note on the messages of a row that a table ignores although it reads other messages, or None.

    Args:
        row: A row.
        names: The fields that the table reads.
    """
    read = [*names]
    lost = _lost(row, read) if any(holds_messages(row.get(name)) for name in read) else []
    return f"the messages in {', '.join(lost)} are not read (the table reads {', '.join(read)})" if lost else None


def _lost(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the fields of a row with messages that none of the named fields contains."""
    read = [message for name in names for message in _messages(row.get(name))]
    return [name for name, value in row.items() if name not in names and any(message not in read for message in _messages(value))]


def _messages(value: Any) -> list[Any]:
    return value if isinstance(value, list) and holds_messages(value) else []


class _Columns:
    """The columns of rows, found by their usual names."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.names = list(dict.fromkeys(key for row in rows for key in row))
        self.of_messages = [name for name in self.names if any(holds_messages(row.get(name)) for row in rows)]

    def with_names(self, names: Sequence[str], *, with_text: bool = True) -> list[str]:
        """Return the columns that have one of these names, ignoring case; only those with the first name if there are any.

        Args:
            names: Names in lower case, the preferred one first.
            with_text: Whether to leave out columns that hold neither text nor messages.
        """
        found = [[name for name in self.names if name.lower() == usual and (not with_text or self._has_text(name))] for usual in names]
        return found[0] or [name for same in found[1:] for name in same]

    def one(self, key: str, names: Sequence[str], *, with_text: bool = True) -> Keys:
        """Return the key with the only column that has one of these names, or an empty dict if there is none.

        Raises:
            UnclearColumnsError: If there are several such columns.
        """
        found = self.with_names(names, with_text=with_text)
        if len(found) > 1:
            self.raise_unclear(key, found)
        return {key: found[0]} if found else {}

    def raise_unclear(self, key: str, names: Iterable[str]) -> None:
        raise UnclearColumnsError(
            f"several fields may be the one for {key}: {describe_fields(self.rows, names)}; set the keys of the table yourself"
        )

    def lost_without(self, names: Sequence[str]) -> list[str]:
        """Return the other columns with messages that none of these columns contains."""
        return [*dict.fromkeys(name for row in self.rows for name in _lost(row, names))]

    def _has_text(self, name: str) -> bool:
        return name in self.of_messages or any(isinstance(row.get(name), str) for row in self.rows)


def _pair_keys(columns: _Columns, fits: Fits) -> Keys | None:
    """Return the keys of a table that makes preference pairs, or None."""
    for chosen, rejected in _SIDES:
        if chosen not in columns.names or rejected not in columns.names:
            continue
        keys = {"kind": "preference"} | ({} if chosen == _SIDES[0][0] else {"chosen_field": chosen, "rejected_field": rejected})
        inputs, system = columns.with_names(_INPUTS), columns.one("system_field", _SYSTEMS)
        prompts = [name for name in columns.with_names(_PROMPTS) if fits(keys | {"prompt_field": name})]
        if inputs and len(prompts) == 1 and fits(with_input := keys | {"prompt_field": prompts[0], "input_field": inputs[0]}):
            return with_input | system
        if fits(keys):
            return keys | system
        if len(prompts) > 1:
            columns.raise_unclear("prompt_field", prompts)
        found = prompts or [name for name in columns.names if name.lower() in _INPUTS and fits(keys | {"prompt_field": name})]
        if len(found) == 1:
            return keys | {"prompt_field": found[0]} | system
        if fits(keys | {"prompt_field": ""}):
            given = describe_fields(columns.rows, columns.with_names(_PROMPTS))
            raise UnclearColumnsError(
                f"the sides begin with prompts that differ from {given}; to read only the sides, set prompt_field = ''"
            )
    return None


def _prompt_keys(columns: _Columns, fits: Fits) -> Keys | None:
    """Return the keys of a table that makes chats from a prompt and its answer, if at least one of the two is messages, or None."""
    prompts, answers = columns.with_names(_INSTRUCTIONS), columns.with_names(_ANSWERS)
    if not {*prompts, *answers} & {*columns.of_messages}:
        return None
    keys = _instruction_keys(columns, fits)
    if keys is not None and (lost := columns.lost_without([*keys.values()])):
        columns.raise_unclear("messages_field", [*keys.values(), *lost])
    return keys


def _message_keys(columns: _Columns, fits: Fits) -> Keys | None:
    """Return the keys of a table that reads a list of messages, or None.

    A list that is empty in all rows is accepted only if it has a usual name.
    """
    usual = [name for name in columns.names if name.lower() in _DIALOGUES and any(isinstance(row.get(name), list) for row in columns.rows)]
    tables = {name: {} if name == "messages" else {"messages_field": name} for name in columns.of_messages or usual[:1]}
    fitting = [name for name, keys in tables.items() if fits(keys)]
    whole = [name for name in sorted(fitting, key=lambda name: name != "messages") if not columns.lost_without([name])]
    if fitting and not whole:
        columns.raise_unclear("messages_field", columns.of_messages)
    if not whole:
        return None
    system = columns.one("system_field", _SYSTEMS)
    return next(filter(fits, [tables[whole[0]] | system, tables[whole[0]]]), None)


def _instruction_keys(columns: _Columns, fits: Fits) -> Keys | None:
    """Return the keys of a table that makes chats from an instruction and its answer, or None."""
    if not columns.with_names(_ANSWERS):
        return None
    is_input_instruction = not columns.with_names(_INSTRUCTIONS)
    if is_input_instruction and not columns.with_names(_INPUTS[:1]):
        return None
    instruction = columns.one("instruction_field", _INPUTS[:1] if is_input_instruction else _INSTRUCTIONS)
    extra = {} if is_input_instruction else columns.one("input_field", _INPUTS)
    keys = instruction | extra | columns.one("output_field", _ANSWERS)
    system = columns.one("system_field", _SYSTEMS)
    with_history = keys | columns.one("history_field", _HISTORIES, with_text=False) | system
    return next(filter(fits, [with_history, keys | system, keys]), None)
