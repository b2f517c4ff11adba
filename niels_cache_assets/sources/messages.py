"""Messages of rows in the form of this project, and the tools that a row offers.

    {"role", "content"} or {"from", "value"} --> Message      with a chat template, with all its other keys
    "[{...}]" or [{...}]                      --> tools

For a chat template, values reach it as they are in the row, because a template expects what `transformers` gives it. Only a content that is
a list of texts becomes one text, and calls and tools that are JSON in a text are decoded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from niels_cache_assets.documents import Message

MALFORMED_MESSAGES = "malformed_messages"
BROKEN_CALL = "broken_json_in_call"
BROKEN_TOOLS = "broken_tools"

_ROLES = {"human": "user", "gpt": "assistant"}  # the role names of ShareGPT
_MESSAGE_KEYS = ("role", "from", "content", "value")
_MEDIA = ("image", "audio", "video")


def plain_messages(value: Any) -> list[Message] | None:
    """Return the messages with the role names of this project, or None if the value is not a list of objects.

    Other keys and empty system messages are left out.
    """
    return None if not _are_objects(value) else _read(value)


def template_messages(value: Any) -> list[Message] | str:
    """Return the messages for a chat template, or the reason why they cannot be used.

    Messages keep their other keys, except those without a value.
    """
    if not _are_objects(value):
        return MALFORMED_MESSAGES
    messages = _read(value, keeps_others=True)
    for message in cast(list[dict[str, Any]], messages):
        if isinstance(message["content"], list):
            joined = _joined(message["content"])
            if joined is None:
                return _kind_of_media(message["content"]) or "non_string_content"
            message["content"] = joined
        if "tool_calls" in message:
            calls = _decoded(message["tool_calls"])
            if not isinstance(calls, list) or not all(map(_is_sound_call, calls)):
                return BROKEN_CALL
            message["tool_calls"] = calls
    return messages


def tools_of(value: Any) -> list[Any] | str | None:
    """Return the tools that a row offers, or None if there are none, or the reason why they cannot be used."""
    if value in (None, "", []):
        return None
    tools = _decoded(value)
    return tools or None if isinstance(tools, list) and all(isinstance(tool, Mapping) for tool in tools) else BROKEN_TOOLS


def calls_or_thinks(message: Mapping[str, Any]) -> bool:
    """Return whether a message says something without content: calls of tools, or reasoning."""
    return bool(message.get("tool_calls") or message.get("reasoning_content"))


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(message, dict) for message in value)


def _read(value: list[dict[str, Any]], *, keeps_others: bool = False) -> list[Message]:
    messages = []
    for message in value:
        role = message.get("role", message.get("from"))
        content = message.get("content", message.get("value"))
        if role == "system" and content in (None, ""):
            continue
        others = {key: each for key, each in message.items() if key not in _MESSAGE_KEYS and each is not None} if keeps_others else {}
        messages.append({"role": _ROLES.get(role, role) if isinstance(role, str) else role, "content": content, **others})
    return cast(list[Message], messages)


def _joined(parts: list[Any]) -> str | None:
    """Return the text of a content in parts, or None if a part is not text."""
    texts: list[Any] = [part.get("text") if isinstance(part, Mapping) and part.get("type", "text") == "text" else part for part in parts]
    return "".join(texts) if all(isinstance(text, str) for text in texts) else None


def _kind_of_media(parts: list[Any]) -> str | None:
    """Return the reason for a content with an image, audio or video: the kind of the first one. Return None for other parts."""
    kinds = (str(part.get("type", "")).removeprefix("input_").removesuffix("_url") for part in parts if isinstance(part, Mapping))
    return next((f"{kind}_content" for kind in kinds if kind in _MEDIA), None)


def _decoded(value: Any) -> Any:
    """Return the value of a JSON text, or None if it is broken. Every other value is returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _is_sound_call(call: Any) -> bool:
    """Return whether a call is an object whose arguments, if they are a text, are JSON. The arguments themselves stay as they are."""
    if not isinstance(call, Mapping):
        return False
    function = call.get("function", call)
    if not isinstance(function, Mapping):
        return False
    arguments = function.get("arguments")
    return not isinstance(arguments, str) or _decoded(arguments or "{}") is not None
