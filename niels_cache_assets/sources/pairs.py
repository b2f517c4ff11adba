"""Preference pairs of rows: two conversations that begin with the same messages, the prompt, of which one was preferred.

    prompt, chosen, rejected: messages or text --> messages of both sides --> why they are no pair, or the hash of their prompt

A row may have the prompt in a separate field, in both sides, or in all three. Messages are compared by role, text and calls, regardless of
white space and of the form of the calls' arguments. This module reads no files.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

from niels_cache_assets.base.documents import Message
from niels_cache_assets.sources.messages import AnyMessage, ReadMessages, join_input, masked_before, without_weights
from niels_cache_assets.sources.tool_arguments import convert_arguments, json_value
from niels_cache_runtime.format.meta import sha256_text

_HASH_DIGITS = 15  # 60 bits, so that the number fits an int64
_TURN = re.compile(r"\n\n(Human|Assistant):")  # a turn of a dialogue in one text, as in Anthropic/hh-rlhf
_SPEAKERS = {"Human": "user", "Assistant": "assistant"}

Messages = Sequence[AnyMessage]
Read = Callable[[Any], ReadMessages]


def pair_sides(prompt: Any, chosen: Any, rejected: Any, read: Read, *, extra: Any = None) -> tuple[list[Message], list[Message]] | str:
    """Return the messages of both sides, with the prompt, or the reason why the row has none.

    If the prompts of the sides differ only in white space, both get that of the chosen side.

    Args:
        prompt: The prompt; see `continue_prompt`.
        chosen: The preferred side; see `side` of `continue_prompt`.
        rejected: The other side.
        read: Returns the messages in a list, or the reason why there are none.
        extra: Further input after the prompt; see `continue_prompt`.
    """
    of_chosen, of_rejected = (continue_prompt(prompt, side, read, extra=extra) for side in (chosen, rejected))
    if isinstance(of_chosen, str):
        return of_chosen
    if isinstance(of_rejected, str):
        return of_rejected
    for number, (one, other) in enumerate(zip(of_chosen[:-1], of_rejected[:-1], strict=False)):
        if without_weights(one) != without_weights(other) and (one["role"] == "assistant" or not _are_same([one], [other])):
            break
        of_rejected[number] = one
    return of_chosen, of_rejected


def continue_prompt(prompt: Any, side: Any, read: Read, *, extra: Any = None) -> ReadMessages:
    """Return the messages of a prompt and of a side that continues it or repeats it, or the reason why there are none.

    The prompt is in the result once. A side that begins like the prompt but then differs from it is rejected.

    Args:
        prompt: Text, messages, or None.
        side: Text, a message, or messages, with or without the prompt. A text without a prompt must be a dialogue: turns that begin with
            `Human:` and `Assistant:` after an empty line.
        read: Returns the messages in a list, or the reason why there are none.
        extra: Further input after the last message of the prompt, which must then be the user's. None and blank text add nothing.
    """
    before = _prompt_messages(prompt or None, extra, read)
    if isinstance(before, str):
        return before
    text = before[0]["content"] if before and isinstance(prompt, str) else None
    if isinstance(side, str):
        whole = dialogue(side)
        if before is None:
            return whole or "no_prompt"
        if whole and whole[-1]["role"] == "assistant":
            return whole if text is not None and _squeezed(side).startswith(_squeezed(text)) else _joined(before, whole)
        if text is not None and (both := dialogue(text + side)) and both[-1]["role"] == "assistant":
            return both
        return [*before, Message(role="assistant", content=side)]
    messages = _read(side, read)
    if before is None or isinstance(messages, str):
        return messages
    turns = messages[len(system_messages(messages)) : -1]
    if text is not None and turns and turns[0]["role"] == "user" and any(_are_same(before, [message]) for message in turns):
        return messages  # a whole conversation, in which the text of the prompt is any question
    return _joined(before, messages)


def complete_prompt(prompt: Any, completion: Any, read: Read, *, extra: Any) -> ReadMessages:
    """Return the messages of a prompt and its completion (see `continue_prompt`).

    As in trl, replies inside the prompt are not trained on.
    """
    messages = continue_prompt(prompt, completion, read, extra=extra)
    before = _prompt_messages(prompt, None, read) if isinstance(prompt, list) else None
    if isinstance(messages, str) or not isinstance(before, list):
        return messages
    return masked_before(messages, len(system_messages(messages)) + len(before) - len(system_messages(before)))


def _prompt_messages(prompt: Any, extra: Any, read: Read) -> ReadMessages | None:
    """Return the messages of a prompt with further input, None if there is no prompt, or the reason why it cannot be used."""
    has_extra = extra is not None and (not isinstance(extra, str) or bool(extra.strip()))
    if prompt is None:
        return "no_place_for_input" if has_extra else None
    messages = [Message(role="user", content=prompt)] if isinstance(prompt, str) else _read(prompt, read)
    if isinstance(messages, str) or not has_extra:
        return messages
    if not messages or messages[-1]["role"] != "user":
        return "no_place_for_input"
    last = messages[-1].copy()
    last["content"] = join_input(last["content"], extra, "\n\n")
    return [*messages[:-1], last]


def _joined(prompt: list[Message], side: list[Message]) -> ReadMessages:
    """Return the messages of a prompt and a side, system messages first, or the reason why they differ (see `continue_prompt`)."""
    of_prompt, of_side = (system_messages(messages) for messages in (prompt, side))
    prompt_turns, side_turns = prompt[len(of_prompt) :], side[len(of_side) :]
    if of_prompt and of_side and not _are_same(of_prompt, of_side):
        return "differs_from_prompt"
    if not _are_same(prompt_turns, side_turns[: len(prompt_turns)]):
        repeats = any(_are_same(prompt_turns[-count:], side_turns[:count]) for count in range(1, len(prompt_turns)))
        begins_alike = bool(side_turns) and _are_same(prompt_turns[:1], side_turns[:1])
        asks_again = bool(side_turns) and side_turns[0]["role"] == "user" and prompt_turns[-1]["role"] not in ("assistant", "tool")
        if repeats or begins_alike or asks_again:
            return "differs_from_prompt"
        side_turns = [*prompt_turns, *side_turns]
    return [*(of_side or of_prompt), *side_turns]


def system_messages(messages: list[Message]) -> list[Message]:
    """Return the system messages at the beginning."""
    others = (number for number, message in enumerate(messages) if message["role"] not in ("system", "developer"))
    return messages[: next(others, len(messages))]


def _read(value: Any, read: Read) -> ReadMessages:
    """Return the messages in a list, a single message, or an object with `messages`, or the reason why there are none."""
    messages = value.get("messages", [value]) if isinstance(value, dict) else value
    return read(messages) if isinstance(messages, list) else "malformed_pair"


def dialogue(text: str) -> list[Message] | None:
    """Return the messages of a dialogue in one text, or None if the text does not begin with `Human`.

    One space before each message is removed.
    """
    before, *turns = _TURN.split(text if text.startswith("\n\n") else f"\n\n{text}")
    if before or turns[:1] != ["Human"]:
        return None
    contents = (content.removeprefix(" ") for content in turns[1::2])
    return cast(list[Message], [{"role": _SPEAKERS[name], "content": each} for name, each in zip(turns[::2], contents, strict=True)])


def prompt_length(chosen: Messages, rejected: Messages) -> int:
    """Return the number of messages of the prompt, with which both sides begin. Each side has at least one message after it.

    Keys that say whether to train on a message are ignored, because the prompt has no targets.
    """
    most = min(len(chosen), len(rejected)) - 1
    differing = (number for number in range(most) if without_weights(chosen[number]) != without_weights(rejected[number]))
    return next(differing, max(0, most))


def pair_problem(chosen: Messages, rejected: Messages) -> str | None:
    """Return the drop reason if two usable conversations are not a preference pair, otherwise None."""
    if chosen == rejected:
        return "equal_sides"
    if chosen[-1]["role"] != "assistant" or rejected[-1]["role"] != "assistant":
        return "no_assistant_at_end"
    prompt = prompt_length(chosen, rejected)
    replies = chosen[prompt]["role"] == rejected[prompt]["role"] == "assistant"
    return None if prompt and replies else "prompts_differ"


def prompt_hash(chosen: Messages, rejected: Messages, *, split_by: str = "prompt") -> str:
    """Return the hash of the prompt of a pair, as 15 hex digits.

    The hash covers the role, text and calls of each message. Each run of white space counts as one space, because templates remove or
    change white space. The arguments of a call count as JSON values. Other keys of a message, such as an id, are ignored.

    Args:
        chosen: The messages of the preferred side.
        rejected: The messages of the other side.
        split_by: With "conversation", the hash covers the messages up to the first user message, so it is the same for a prompt and for all
            prompts that continue it. By default, it covers the whole prompt.
    """
    prompt = chosen[: prompt_length(chosen, rejected)]
    if split_by == "conversation":
        prompt = prompt[: next((number for number, message in enumerate(prompt, 1) if message["role"] == "user"), len(prompt))]
    return sha256_text(_as_json(prompt))[:_HASH_DIGITS]


def _are_same(some: Messages, others: Messages) -> bool:
    """Return whether two lists of messages are the same for `prompt_hash`."""
    return _as_json(some) == _as_json(others)


def _as_json(messages: Messages) -> str:
    calls = [convert_arguments(message, json_value).get("tool_calls") or None for message in messages]
    parts = [[each["role"], _squeezed(each.get("content") or ""), call] for each, call in zip(messages, calls, strict=True)]
    return json.dumps(parts, sort_keys=True, default=str)


def _squeezed(text: Any) -> Any:
    return " ".join(text.split()) if isinstance(text, str) else text
