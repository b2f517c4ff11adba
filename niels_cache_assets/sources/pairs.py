"""Preference pairs of rows: two conversations that begin with the same messages, the prompt. One of them was preferred to the other.

    prompt, chosen, rejected: messages or text --> messages of both sides --> why they are no pair, or the hash of their prompt

A row may give the prompt alone, or in both sides, or both. Messages are compared by speaker, text and calls. White space, and the form of
the calls' arguments, make no difference. Nothing is read here.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from niels_cache_assets.base.documents import Message
from niels_cache_assets.sources.messages import joined, masked_before, without_weights
from niels_cache_assets.sources.tool_arguments import json_value, with_arguments
from niels_cache_runtime.format.meta import sha256_text

_HASH_DIGITS = 15  # 60 bits, so that the number fits an int64
_TURN = re.compile(r"\n\n(Human|Assistant):")  # of dialogues in one text, such as those of Anthropic/hh-rlhf
_SPEAKERS = {"Human": "user", "Assistant": "assistant"}

Messages = Sequence[Mapping[str, Any]]
Read = Callable[[Any], list[Message] | str]


def sides_of(prompt: Any, chosen: Any, rejected: Any, read: Read, *, extra: Any = None) -> tuple[list[Message], list[Message]] | str:
    """Return the messages of both sides, with the prompt, or the reason why the row has none. See `continued` for the arguments.

    If the prompts of the sides differ only in white space, both get that of the chosen side.
    """
    sides = [continued(prompt, side, read, extra=extra) for side in (chosen, rejected)]
    for side in sides:
        if isinstance(side, str):
            return side
    of_chosen, of_rejected = cast(tuple[list[Message], list[Message]], tuple(sides))
    for number, (one, other) in enumerate(zip(of_chosen[:-1], of_rejected[:-1], strict=False)):
        if without_weights(one) != without_weights(other) and (one["role"] == "assistant" or not _are_same([one], [other])):
            break
        of_rejected[number] = one
    return of_chosen, of_rejected


def continued(prompt: Any, side: Any, read: Read, *, extra: Any = None) -> list[Message] | str:
    """Return the messages of a prompt and of a side that continues it or repeats it, or the reason why there are none.

    The prompt is in the result once. A side that begins like the prompt, but is not the same there, is refused.

    Args:
        prompt: Text, messages, or None.
        side: Text, a message, or messages, with the prompt or without it. A text without a prompt must be a dialogue: turns that begin with
            `Human:` and `Assistant:` after an empty line.
        read: Returns the messages in a list, or the reason why there are none.
        extra: Further input after the last message of the prompt, which must then be the user's. None and blanks add nothing.
    """
    before = _asked(prompt or None, extra, read)
    if isinstance(before, str):
        return before
    text = before[0]["content"] if before and isinstance(prompt, str) else None
    if isinstance(side, str):
        return _of_text(before, text, side)
    messages = _read(side, read)
    if before is None or isinstance(messages, str):
        return messages
    said = messages[len(system_messages(messages)) : -1]
    if text is not None and said and said[0]["role"] == "user" and any(_are_same(before, [message]) for message in said):
        return messages  # a whole conversation, in which the text of the prompt is any question
    return _joined(before, messages)


def completed(prompt: Any, completion: Any, read: Read, *, extra: Any = None) -> list[Message] | str:
    """Return the messages of a prompt and its completion (see `continued`). As in trl, replies inside of the prompt are not learned."""
    made = continued(prompt, completion, read, extra=extra)
    before = _asked(prompt, None, read) if isinstance(prompt, list) else None
    if isinstance(made, str) or not isinstance(before, list):
        return made
    return masked_before(made, len(system_messages(made)) + len(before) - len(system_messages(before)))


def _asked(prompt: Any, extra: Any, read: Read) -> list[Message] | str | None:
    """Return the messages of a prompt with further input, or the reason why it cannot be used. None: there is no prompt."""
    adds = extra is not None and (not isinstance(extra, str) or bool(extra.strip()))
    if prompt is None:
        return "no_place_for_input" if adds else None
    messages = [Message(role="user", content=prompt)] if isinstance(prompt, str) else _read(prompt, read)
    if isinstance(messages, str) or not adds:
        return messages
    if not messages or messages[-1]["role"] != "user":
        return "no_place_for_input"
    last = messages[-1].copy()
    last["content"] = joined(last["content"], extra, "\n\n")
    return [*messages[:-1], last]


def _joined(prompt: list[Message], side: list[Message]) -> list[Message] | str:
    """Return the messages of both, with those of the system first. See `continued`."""
    of_prompt, of_side = (system_messages(messages) for messages in (prompt, side))
    asked, said = prompt[len(of_prompt) :], side[len(of_side) :]
    if of_prompt and of_side and not _are_same(of_prompt, of_side):
        return "differs_from_prompt"
    if not _are_same(asked, said[: len(asked)]):
        repeats = any(_are_same(asked[-count:], said[:count]) for count in range(1, len(asked)))
        begins_alike = bool(said) and _are_same(asked[:1], said[:1])
        asks_again = bool(said) and said[0]["role"] == "user" and asked[-1]["role"] not in ("assistant", "tool")
        if repeats or begins_alike or asks_again:
            return "differs_from_prompt"
        said = [*asked, *said]
    return [*(of_side or of_prompt), *said]


def system_messages(messages: list[Message]) -> list[Message]:
    """Return the messages of the system at the beginning."""
    others = (number for number, message in enumerate(messages) if message["role"] not in ("system", "developer"))
    return messages[: next(others, len(messages))]


def _of_text(before: list[Message] | None, prompt: str | None, side: str) -> list[Message] | str:
    """Return the messages of a side that is text. prompt: the text of the prompt, or None if it is messages."""
    whole = dialogue(side)
    if before is None:
        return whole or "no_prompt"
    if whole and whole[-1]["role"] == "assistant":
        return whole if prompt is not None and _squeezed(side).startswith(_squeezed(prompt)) else _joined(before, whole)
    if prompt is not None and (both := dialogue(prompt + side)) and both[-1]["role"] == "assistant":
        return both
    return [*before, Message(role="assistant", content=side)]


def _read(value: Any, read: Read) -> list[Message] | str:
    """Return the messages of a list, of one message, or of an object with `messages`. A value of another form is a malformed pair."""
    messages = value.get("messages", [value]) if isinstance(value, dict) else value
    return read(messages) if isinstance(messages, list) else "malformed_pair"


def dialogue(text: str) -> list[Message] | None:
    """Return the messages of a dialogue in one text, or None if the text does not begin with `Human`.

    One space before each message is left out.
    """
    before, *turns = _TURN.split(text if text.startswith("\n\n") else f"\n\n{text}")
    if before or turns[:1] != ["Human"]:
        return None
    contents = (content.removeprefix(" ") for content in turns[1::2])
    return cast(list[Message], [{"role": _SPEAKERS[name], "content": each} for name, each in zip(turns[::2], contents, strict=True)])


def prompt_length(chosen: Messages, rejected: Messages) -> int:
    """Return the number of messages of the prompt: those that both sides begin with. Each side has at least one message after it.

    Keys that say whether to train on a message do not count, because the prompt has no targets.
    """
    most = min(len(chosen), len(rejected)) - 1
    differing = (number for number in range(most) if without_weights(chosen[number]) != without_weights(rejected[number]))
    return next(differing, max(0, most))


def pair_problem(chosen: Messages, rejected: Messages) -> str | None:
    """Return why two usable conversations are no preference pair, as a reason for `dropped`, or None if they are one."""
    if chosen == rejected:
        return "equal_sides"
    if chosen[-1]["role"] != "assistant" or rejected[-1]["role"] != "assistant":
        return "no_assistant_at_end"
    prompt = prompt_length(chosen, rejected)
    replies = chosen[prompt]["role"] == rejected[prompt]["role"] == "assistant"
    return None if prompt and replies else "prompts_differ"


def prompt_hash(chosen: Messages, rejected: Messages, *, split_by: str = "prompt") -> str:
    """Return the hash of the prompt of a pair, 15 hex digits.

    It is over the speaker, the text and the calls of each message. Each run of white space counts as one blank, because templates remove or
    change white space. The arguments of a call count as JSON values. Other keys of a message, such as an id, do not count. With
    split_by = "conversation", the hash is over the messages up to the first one of the user. So it is the same for a prompt and for all
    prompts that continue it.
    """
    prompt = chosen[: prompt_length(chosen, rejected)]
    if split_by == "conversation":
        prompt = prompt[: next((number for number, message in enumerate(prompt, 1) if message["role"] == "user"), len(prompt))]
    return sha256_text(_as_json(prompt))[:_HASH_DIGITS]


def _are_same(some: Messages, others: Messages) -> bool:
    """Return whether messages are the same for `prompt_hash`."""
    return _as_json(some) == _as_json(others)


def _as_json(messages: Messages) -> str:
    calls = [with_arguments(message, json_value).get("tool_calls") or None for message in messages]
    said = [[each["role"], _squeezed(each.get("content") or ""), made] for each, made in zip(messages, calls, strict=True)]
    return json.dumps(said, sort_keys=True, default=str)


def _squeezed(text: Any) -> Any:
    return " ".join(text.split()) if isinstance(text, str) else text
