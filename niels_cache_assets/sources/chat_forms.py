"""The forms of chats in rows, recognized by looking at them: which keys of a table `chat_jsonl` fit.

    {"conversations": [...]}                         messages_field = "conversations"
    {"instruction", "input", "output"}               instruction_field, input_field, output_field
    {"prompt", "chosen", "rejected"}                 kind = "preference"

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
    for name in sorted(fields, key=lambda name: name != "messages"):
        keys = {"messages_field": name} if name != "messages" else {}
        if any(isinstance(row.get(name), list) for row in rows) and fits(keys):
            return keys
    lowered = {name.lower(): name for name in reversed(fields)}
    pick = lambda names: next((lowered[name] for name in names if name in lowered), None)  # noqa: E731
    chosen = {"instruction_field": pick(_INSTRUCTIONS), "input_field": pick(_INPUTS), "output_field": pick(_ANSWERS)}
    if chosen["instruction_field"] is None and chosen["output_field"] is not None and "input" in lowered:
        chosen |= {"instruction_field": lowered["input"], "input_field": None}
    if chosen["instruction_field"] is None or chosen["output_field"] is None:
        return None
    keys = {key: name for key, name in {**chosen, "system_field": pick(_SYSTEMS)}.items() if name is not None}
    return keys if fits(keys) else None


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
        prompts = [{}, *({"prompt_field": name} for name in (*_INSTRUCTIONS, *_INPUTS) if name in fields)]
        for prompt in prompts:
            if fits(keys | prompt):
                return keys | prompt
    return None
