"""Arguments of tool calls, in the form that a chat template expects: JSON values, or JSON in a string as in OpenAI's files.

A template that writes `arguments | tojson`, or that iterates over the keys, expects an object, and would encode a string a second time. A
template that joins arguments with other strings expects a string. Many accept both, and write the two differently. So each template is
tried once with a call whose arguments are an object. If it writes key and value, it gets values, and otherwise strings. So the form in the
data never changes the tokens. Nothing is rendered here, and this module imports no other of this package.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

_KEY, _VALUE = "probed_key", "probed_value"
_PROBE = {_KEY: _VALUE}
_AS_TEXT = json.dumps(_PROBE)
_AS_PYTHON = repr(_PROBE)[1:-1]  # written by a template that joins a text with an object
_TOOL = {"type": "function", "function": {"name": "probe", "description": "d", "parameters": {"type": "object", "properties": {}}}}

Messages = list[dict[str, Any]]
TryRender = Callable[[Messages, list[Any] | None], str | None]


def json_value(arguments: Any) -> Any:
    """Return the JSON value of arguments. None, null and an empty string mean no arguments: an empty object.

    A string that is not JSON is returned unchanged.
    """
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments.strip() or "null")
    return {} if arguments is None else arguments


def convert_arguments(message: Mapping[str, Any], form: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Return the message with `form` applied to the arguments of each call; a message without calls is returned unchanged."""
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_call(call, form) for call in calls]} if isinstance(calls, list) and calls else message


def _call(call: Any, form: Callable[[Any], Any]) -> Any:
    if not isinstance(call, Mapping):
        return call
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _call(call["function"], form)}
    return {**call, "arguments": form(call.get("arguments"))}


def json_text(arguments: Any) -> str:
    """Return the arguments, in either form, as JSON text, as `tojson` would write it."""
    return json.dumps(json_value(arguments), ensure_ascii=False, default=str)


def detect_argument_form(render: TryRender) -> Callable[[Any], Any]:
    """Return the form of arguments that a template expects: `json_text` or `json_value`.

    It is `json_value` for a template that writes no arguments.

    Args:
        render: Returns the text of messages and tools, or None if the template cannot render them.
    """
    with_values = (text for probe in _probes(_PROBE) if (text := render(*probe)) is not None)
    if any(_KEY in text and _VALUE in text and _AS_PYTHON not in text for text in with_values):
        return json_value
    with_texts = (text for probe in _probes(_AS_TEXT) if (text := render(*probe)) is not None)
    return json_text if any(_AS_TEXT in text for text in with_texts) else json_value


def _probes(arguments: Any) -> Iterator[tuple[Messages, list[Any] | None]]:
    """Yield conversations with one call. Templates differ in what its content may be, and some need the tools."""
    call = {"id": "probe0001", "type": "function", "function": {"name": "probe", "arguments": arguments}}
    for content in ("", None):
        request = {"role": "assistant", "content": content, "tool_calls": [call]}
        answer = {"role": "tool", "tool_call_id": "probe0001", "name": "probe", "content": "{}"}
        messages: Messages = [{"role": "user", "content": "q"}, request, answer, {"role": "assistant", "content": "a"}]
        for most, tools in ((4, None), (4, [_TOOL]), (2, None)):
            yield messages[:most], tools
