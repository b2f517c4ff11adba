"""The forms of chats in rows, recognized by looking at them: which keys of a table `chat_jsonl` fit.

    {"conversations": [...], "system"}               messages_field = "conversations", system_field
    {"instruction", "input", "output", "history"}    instruction_field, input_field, output_field, history_field
    {"prompt", "chosen", "rejected"}                 kind = "preference"
    {"conversations": [...], "chosen", "rejected"}   kind = "preference", prompt_field = "conversations"

The caller tries the keys on the rows. Trees of messages are of the source `oasst1`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_INSTRUCTIONS = ("instruction", "prompt", "question", "query", "user", "human")
_INPUTS = ("input", "context")
_ANSWERS = ("output", "response", "answer", "completion", "assistant", "gpt")
_SYSTEMS = ("system", "system_prompt")
_HISTORIES = ("history",)
_DIALOGUES = ("conversations", "messages")
_SIDES = (("chosen", "rejected"), ("chosen_response", "rejected_response"), ("preferred", "dispreferred"))

Rows = Sequence[Mapping[str, Any]]
Fits = Callable[[dict[str, str]], bool]


def are_trees(rows: Rows) -> bool:
    """Return whether the rows are trees of messages, or messages of trees."""
    fields = {key for row in rows for key in row}
    return any(isinstance(row.get("prompt"), dict) and "replies" in row["prompt"] for row in rows) or (
        {"message_id", "parent_id", "role"} <= fields
    )


def keys_of_rows(rows: Rows, fits: Fits) -> dict[str, str] | None:
    """Return the keys of a table that makes chats or pairs of these rows, or None. fits: whether some keys make one from a row."""
    fields = list(dict.fromkeys(key for row in rows for key in row))
    if (keys := _pair_fields(fields, fits)) is not None:
        return keys
    lowered = {name.lower(): name for name in reversed(fields)}

    def named(key: str, names: Sequence[str]) -> dict[str, str]:
        return next(({key: lowered[name]} for name in names if name in lowered), {})

    system = named("system_field", _SYSTEMS)
    for name in sorted({*fields} - {*_HISTORIES}, key=lambda name: (name != "messages", fields.index(name))):
        keys = {"messages_field": name} if name != "messages" else {}
        if any(isinstance(row.get(name), list) for row in rows) and fits(keys):
            return _first_fitting([keys | system, keys], fits)
    keys = named("instruction_field", _INSTRUCTIONS) | named("input_field", _INPUTS) | named("output_field", _ANSWERS)
    if "instruction_field" not in keys and "output_field" in keys and "input" in lowered:
        keys = {"instruction_field": lowered["input"], "output_field": keys["output_field"]}
    if not {"instruction_field", "output_field"} <= keys.keys():
        return None
    return _first_fitting([keys | named("history_field", _HISTORIES) | system, keys | system], fits)


def _first_fitting(tables: Sequence[dict[str, str]], fits: Fits) -> dict[str, str] | None:
    return next((keys for keys in tables if fits(keys)), None)


def advice(rows: Rows, fits: Fits) -> str:
    """Return a clause with the keys that fit these rows, or an empty string if no keys do."""
    if are_trees(rows):
        return '; these rows are trees, for source = "oasst1"'
    keys = keys_of_rows(rows, fits)
    return f"; these rows fit {', '.join(f'{key} = {json.dumps(name)}' for key, name in keys.items())}" if keys else ""


def _pair_fields(fields: Sequence[str], fits: Fits) -> dict[str, str] | None:
    """Return the keys of a table that makes preference pairs, or None if the rows hold none."""
    for chosen, rejected in _SIDES:
        if chosen not in fields or rejected not in fields:
            continue
        named = {} if chosen == _SIDES[0][0] else {"chosen_field": chosen, "rejected_field": rejected}
        keys = {"kind": "preference", **named}
        prompts = [{}, *({"prompt_field": name} for name in (*_INSTRUCTIONS, *_INPUTS, *_DIALOGUES) if name in fields)]
        if {"instruction", "input"} <= {*fields}:
            prompts[1] |= {"input_field": "input"}
        if (found := _first_fitting([keys | prompt for prompt in prompts], fits)) is not None:
            return found
    return None
