"""Preference pairs of rows: two conversations that begin with the same messages, the prompt. One of them was preferred to the other.

    prompt, chosen, rejected: messages or text --> messages of both sides --> why they are no pair, or the hash of their prompt

A row may give the prompt alone, or in both sides, or both. Nothing is read here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from niels_cache_assets.documents import Message
from niels_cache_assets.sources.message_weights import without_weights
from niels_cache_runtime.format.meta import sha256_text

EQUAL_SIDES = "equal_sides"
NO_REPLY = "no_assistant_at_end"
PROMPTS_DIFFER = "prompts_differ"
TOO_LONG = "too_long"
NO_PROMPT = "no_prompt"
MALFORMED = "malformed_pair"

_HASH_DIGITS = 15  # 60 bits, so that the number fits an int64
_TURN = re.compile(r"\n\n(Human|Assistant):")  # of dialogues in one text, such as those of Anthropic/hh-rlhf
_SPEAKERS = {"Human": "user", "Assistant": "assistant"}

Messages = Sequence[Mapping[str, Any]]
Read = Callable[[Any], list[Message] | str]


def sides_of(prompt: Any, chosen: Any, rejected: Any, read: Read) -> tuple[list[Message], list[Message]] | str:
    """Return the messages of both sides, with the prompt, or the reason why the row has none.

    prompt: text, messages, or None. chosen, rejected: text, a message, or messages, with the prompt or without it. read: returns the
    messages in a list, or the reason why there are none. A text without a prompt must be a dialogue: turns that begin with `Human:` and
    `Assistant:` after an empty line.
    """
    sides = [_side(prompt or None, side, read) for side in (chosen, rejected)]
    for side in sides:
        if isinstance(side, str):
            return side
    return cast(tuple[list[Message], list[Message]], tuple(sides))


def _side(prompt: Any, side: Any, read: Read) -> list[Message] | str:
    if isinstance(side, str):
        return _of_text(prompt, side, read)
    messages = _read(side, read)
    if prompt is None or isinstance(messages, str):
        return messages
    if isinstance(prompt, str):
        systems = next((number for number, message in enumerate(messages) if message["role"] != "system"), len(messages))
        if systems < len(messages) and messages[systems]["role"] != "assistant":
            return messages  # a whole conversation, with its own prompt
        return [*messages[:systems], Message(role="user", content=prompt), *messages[systems:]]
    before = _read(prompt, read)
    if isinstance(before, str):
        return before
    has_prompt = [*map(without_weights, messages[: len(before)])] == [*map(without_weights, before)]
    return messages if has_prompt else [*before, *messages]


def _of_text(prompt: Any, text: str, read: Read) -> list[Message] | str:
    if prompt is None:
        return dialogue(text) or NO_PROMPT
    if isinstance(prompt, str):
        return _dialogue_with(prompt, text) or [Message(role="user", content=prompt), Message(role="assistant", content=text)]
    before = _read(prompt, read)
    return before if isinstance(before, str) else [*before, Message(role="assistant", content=text)]


def _dialogue_with(prompt: str, text: str) -> list[Message] | None:
    """Return the messages of a dialogue that has the prompt in `text`, or continues it there. Return None for other texts."""
    whole, asked = dialogue(text), prompt.strip()
    if whole and (text.strip().startswith(asked) or whole[0]["content"].strip() == asked):
        return whole
    continued = dialogue(prompt + text)
    return continued if continued and continued[-1]["role"] == "assistant" else None


def _read(value: Any, read: Read) -> list[Message] | str:
    """Return the messages of a list, or of one message. A value of another form is a malformed pair."""
    messages = [value] if isinstance(value, dict) else value
    return read(messages) if isinstance(messages, list) else MALFORMED


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
        return EQUAL_SIDES
    if chosen[-1]["role"] != "assistant" or rejected[-1]["role"] != "assistant":
        return NO_REPLY
    prompt = prompt_length(chosen, rejected)
    replies = chosen[prompt]["role"] == rejected[prompt]["role"] == "assistant"
    return None if prompt and replies else PROMPTS_DIFFER


def conversation_hash(chosen: Messages, rejected: Messages) -> str:
    """Return the hash of the beginning of the prompt of a pair, up to the first message of the user, as `prompt_hash` makes it.

    It is the same for a prompt and for all prompts that continue it.
    """
    prompt = _prompt(chosen, rejected)
    first = next((number for number, message in enumerate(prompt, 1) if message["role"] == "user"), len(prompt))
    return _hash_of(prompt[:first])


def prompt_hash(chosen: Messages, rejected: Messages) -> str:
    """Return the hash of the prompt of a pair, 15 hex digits.

    It is over the speaker, the text and the calls of each message. Each run of white space counts as one blank, because templates remove or
    change white space. Other keys of a message, such as an id, do not count.
    """
    return _hash_of(_prompt(chosen, rejected))


def _hash_of(messages: Messages) -> str:
    said = [[message["role"], _squeezed(message.get("content")), message.get("tool_calls")] for message in messages]
    return sha256_text(json.dumps(said, sort_keys=True, default=str))[:_HASH_DIGITS]


def _prompt(chosen: Messages, rejected: Messages) -> Messages:
    return chosen[: prompt_length(chosen, rejected)]


def _squeezed(text: Any) -> Any:
    return " ".join(text.split()) if isinstance(text, str) else text
