"""Conversion of the messages and tools of rows to the form of this project.

    {"role", "content"} or {"from", "value"} --> Message      with a chat template, with all its other keys
    {"from": "function_call", "value": "{...}"} --> Message with a tool call, for a chat template
    "[{...}]" or [{...}]                      --> tools
    {"images": ["a.png"], ...}                --> the reason to drop a row that holds more than text

A chat template receives the values as they are in the row, because it expects what `transformers` gives it. There are two exceptions. A
content that is a list of texts becomes one text, and calls and tools that are JSON strings are decoded (`tool_arguments.py` decodes the
arguments of calls later).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from niels_cache_assets.base.documents import Message
from niels_cache_runtime.cache.checks import is_target_weight
from niels_cache_runtime.format.meta import unique_keys

_ROLES = {"human": "user", "gpt": "assistant"}  # the role names of ShareGPT
_CALLS = "function_call"  # the role of messages that hold tool calls as JSON
SHARED_ROLES = {**_ROLES, "observation": "tool", _CALLS: "assistant"}  # also the roles that LLaMA-Factory adds, for chat templates only
_MESSAGE_KEYS = ("role", "from", "content", "value")
_MEDIA = ("image", "audio", "video")
_NOTHING = (None, "", "null")  # JSON texts without a value

AnyMessage = Mapping[str, Any]  # with the keys of its file
ReadMessages = list[Message] | str
"""The messages of a row, or the reason why the row is dropped."""


class _RepeatedKeyError(Exception):
    """An object in a JSON text has a key twice."""


def plain_messages(value: Any) -> ReadMessages:
    """Return the messages with the role names of this project, or the reason why they cannot be used.

    Empty system messages are removed. So are all other keys, except those that say whether to train on a message.
    """
    return _read(value)


def template_messages(value: Any) -> ReadMessages:
    """Return the messages for a chat template, or the reason why they cannot be used.

    Messages keep their other keys, except those without a value. An empty system message stays, because many templates otherwise write
    their default system message.
    """
    try:
        return _read(value, for_template=True)
    except _RepeatedKeyError:
        return "repeated_key_in_json"


def _convert(role: Any, message: dict[str, Any]) -> str | None:
    """Decode the calls of a message and join the parts of its content, in place.

    Args:
        role: The role in the file.
        message: The message.

    Returns:
        The reason why the message cannot be used, or None.
    """
    if role == _CALLS:  # its text holds the calls
        message["content"], message["tool_calls"] = None, _calls_in(message["content"])
    if isinstance(message["content"], list):
        joined = _joined(message["content"])
        if joined is None:
            return _kind_of_media(message["content"]) or "non_string_content"
        message["content"] = joined
    if isinstance(message.get("tool_calls"), str) and message["tool_calls"].strip() in _NOTHING:
        del message["tool_calls"]
    if "tool_calls" in message:
        calls = _decoded(message["tool_calls"])
        if not isinstance(calls, list) or not all(map(_is_valid_call, calls)):
            return "broken_json_in_call"
        message["tool_calls"] = calls
    return None


def tools_of(value: Any) -> list[Any] | str | None:
    """Return the tools that a row offers, None if there are none, or the reason why they cannot be used."""
    if value in _NOTHING or value == []:
        return None
    try:
        tools = _decoded(value)
    except _RepeatedKeyError:
        return "repeated_key_in_json"
    return tools or None if isinstance(tools, list) and all(isinstance(tool, Mapping) for tool in tools) else "broken_tools"


def media_of(row: Mapping[str, Any]) -> str | None:
    """Return the reason to drop a row with an image, audio or video in a field of its own, such as `images`, or None for other rows."""
    return next((f"{kind}_content" for kind in _MEDIA for name in (kind, f"{kind}s") if row.get(name)), None)


def holds_messages(value: Any) -> bool:
    """Return whether a value is a message, or a list with messages: objects with a speaker."""
    messages = [value] if isinstance(value, dict) else value
    return isinstance(messages, list) and any(isinstance(each, dict) and isinstance(_role_of(each), str) for each in messages)


def join_input(instruction: Any, extra: Any, between: str) -> Any:
    """Return an instruction and further input joined to one user message.

    If the instruction or the input is not a string, that value is returned unchanged, so that a later check reports it.
    """
    if extra is None or not isinstance(instruction, str):
        return instruction
    if not isinstance(extra, str):
        return extra
    return f"{instruction}{between}{extra}" if extra.strip() else instruction


def has_calls_or_reasoning(message: AnyMessage) -> bool:
    """Return whether a message has tool calls or reasoning, which make it useful without content."""
    return bool(message.get("tool_calls") or message.get("reasoning_content"))


def _role_of(message: AnyMessage) -> Any:
    return message["role"] if message.get("role") is not None else message.get("from")


def _content_of(message: AnyMessage) -> Any:
    return message["content"] if message.get("content") is not None else message.get("value")


def _read(value: Any, *, for_template: bool = False) -> ReadMessages:
    if not isinstance(value, list) or not all(isinstance(given, dict) for given in value):
        return "malformed_messages"
    roles, nothing = (SHARED_ROLES, (None,)) if for_template else (_ROLES, (None, ""))  # nothing: the content of an empty system message
    messages: list[Any] = []
    for given in value:
        role, content = _role_of(given), _content_of(given)
        if role == "system" and content in nothing:
            continue
        names = [key for key in given if key not in _MESSAGE_KEYS and (for_template or key in WEIGHT_KEYS)]
        others = {key: given[key] for key in names if given[key] is not None}
        messages.append({"role": roles.get(role, role) if isinstance(role, str) else role, "content": content, **others})
        if for_template and (problem := _convert(role, messages[-1])) is not None:
            return problem
    return messages


def _calls_in(content: Any) -> list[Any]:
    """Return the tool calls in the JSON text of a message. Broken JSON gives a list that holds no call."""
    decoded = _decoded(content)
    calls = decoded if isinstance(decoded, list) and decoded else [decoded]
    return [{"type": "function", "function": call} if isinstance(call, Mapping) and "name" in call else None for call in calls]


def _joined(parts: list[Any]) -> str | None:
    """Return the text of a content in parts, or None if a part is not text."""
    texts: list[Any] = [part.get("text") if isinstance(part, Mapping) and part.get("type", "text") == "text" else part for part in parts]
    return "".join(texts) if all(isinstance(text, str) for text in texts) else None


def _kind_of_media(parts: list[Any]) -> str | None:
    """Return the reason to drop a content with an image, audio or video, by its first one, or None for other parts."""
    kinds = (str(part.get("type", "")).removeprefix("input_").removesuffix("_url") for part in parts if isinstance(part, Mapping))
    return next((f"{kind}_content" for kind in kinds if kind in _MEDIA), None)


def _decoded(value: Any) -> Any:
    """Return the value of a JSON text, or None if it is broken. Any other value is returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return _json(value)
    except (ValueError, RecursionError):
        return None


def _json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: If the JSON is broken.
        RecursionError: If the JSON is nested too deeply.
        _RepeatedKeyError: If an object has a key twice.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        try:
            return unique_keys(pairs)
        except ValueError as error:
            raise _RepeatedKeyError from error

    return json.loads(text, object_pairs_hook=unique)


def _is_valid_call(call: Any) -> bool:
    """Return whether a call is an object whose arguments, if they are a string, are JSON. The arguments are not changed."""
    if not isinstance(call, Mapping):
        return False
    function = call.get("function", call)
    if not isinstance(function, Mapping):
        return False
    arguments = function.get("arguments")
    if not isinstance(arguments, str) or not arguments.strip():
        return True
    try:
        _json(arguments)
    except (ValueError, RecursionError):
        return False
    return True


WEIGHT_PROBLEMS = ("unusable_weight", "contradictory_weights", "weight_of_other_role")

_MASKING = "masked"  # torchtune's key; true means that the message is not trained on
_WITH_NUMBERS = ("weight", "loss_scale")  # any weight, not only 0 and 1
WEIGHT_KEYS = frozenset({"weight", "train", "training", "trainable", "loss", "loss_mask", "loss_scale", "train_detail", _MASKING})


def masked_messages(messages: Sequence[AnyMessage], *, first: int = 0) -> frozenset[int]:
    """Return the indices of the assistant messages, from index `first` on, that are marked as not to be trained on."""
    return frozenset(
        number
        for number, message in enumerate(messages)
        if number >= first and message.get("role") == "assistant" and 0 in _marks(message).values()
    )


def message_weights(messages: Sequence[AnyMessage]) -> dict[int, float]:
    """Return the weights of the assistant messages with a weight other than 0 and 1, by their indices."""
    found = {number: {*_marks(message).values()} - {0, 1} for number, message in enumerate(messages) if message.get("role") == "assistant"}
    return {number: weight for number, weights in found.items() for weight in weights if weight is not None}


def without_weights(message: AnyMessage) -> AnyMessage:
    """Return a message without the keys that say whether to train on it."""
    return message if WEIGHT_KEYS.isdisjoint(message) else {key: value for key, value in message.items() if key not in WEIGHT_KEYS}


def masked_before(messages: Sequence[Message], first: int) -> list[Message]:
    """Mark the assistant messages before index `first` as not to be trained on, unless they already have a mark.

    Returns:
        The messages, with marked copies in place of those that change.
    """
    return [
        cast(Message, {**message, "train": False})
        if number < first and message["role"] == "assistant" and WEIGHT_KEYS.isdisjoint(message)
        else message
        for number, message in enumerate(messages)
    ]


def _marks(message: AnyMessage) -> dict[str, float | None]:
    """Return the weight of the message for each weight key, or None if its value is unclear. Keys that are null are left out."""
    return {key: _weight(key, message[key]) for key in sorted(WEIGHT_KEYS & message.keys()) if message[key] is not None}


def _weight(key: str, value: Any) -> float | None:
    if isinstance(value, int | float) and value in (0, 1):
        return float(bool(value) != (key == _MASKING))
    return float(value) if key in _WITH_NUMBERS and is_target_weight(value) else None


def weight_problem(messages: Iterable[AnyMessage]) -> tuple[str, str] | tuple[None, None]:
    """Return the drop reason if the weights of these messages cannot be used, and a description of the first such message."""
    for number, message in enumerate(messages):
        if WEIGHT_KEYS.isdisjoint(message):
            continue
        marks = _marks(message)
        unclear = next((key for key, mark in marks.items() if mark is None), None)
        if unclear is not None:
            usable = "true, false and numbers from 0.000001 to 1000000" if unclear in _WITH_NUMBERS else "0, 1, true and false"
            return "unusable_weight", f"message {number} has {unclear} = {message[unclear]!r:.40}; only {usable} can be used"
        given = ", ".join(f"{key} = {message[key]!r}" for key in marks)
        weights = {*marks.values()}
        if len(weights) > 1 and (0 in weights or len(weights - {1}) > 1):
            return "contradictory_weights", f"message {number} has {given}, which contradict each other"
        if any(marks.values()) and message.get("role") != "assistant":
            return (
                "weight_of_other_role",
                f"message {number} has {given}, but only messages of the assistant are targets, and its role is not assistant",
            )
    return None, None
