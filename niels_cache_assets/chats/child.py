"""The child process that renders conversations with a chat template. It imports only the standard library and jinja2.

A template is a program of somebody else. So it runs in jinja2's immutable sandbox, in a process of its own, with limits: processor time for
each conversation, memory, and the size of the output. The settings and helpers are those that templates expect from `transformers`, except
that there is no clock: `strftime_now` is not defined.

The parent writes one JSON value per line, and gets one JSON value per line:

    {"template", "variables", "seconds", "memory"}          -> {"marks": whether the template marks targets} or {"error"}
    [{"messages", "tools", "most"}, ...]                    -> for each: {"text", "spans", "owners"}, {"refused"} or {"error"}

`spans` are pairs of character positions, the first and the one past the last character of each target. `owners` has the number of the
message of each span, or None if it is not known. The spans come from the marks
`{% generation %}` ... `{% endgeneration %}`. A template without marks is rendered up to each message of the assistant instead: the target
is the text that this message adds.
"""

import json
import math
import re
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO

_MARK = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_TEMPLATE = "<template>"  # the file name that jinja2 gives to code of a template in a traceback
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # names of the same key in messages, the first one is the usual one
_MOST_SAID = 300  # characters of an error that are reported

Span = tuple[int, int]
Target = tuple[int, int, int | None]
"""The first character, the character past the last one, and the number of the message."""


class Refused(Exception):
    """The template refuses a conversation with `raise_exception`."""


class Unfit(Exception):
    """The output of the template cannot be used."""


class Renderer:
    """A compiled template.

    variables: values that the template may use, such as the strings of special tokens. Raises the errors of jinja2 for a template with a
    wrong syntax.
    """

    def __init__(self, text: str, variables: dict[str, Any]) -> None:
        from jinja2.ext import Extension, loopcontrols
        from jinja2.nodes import CallBlock
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from jinja2.utils import Namespace

        renderer = self

        class Marks(Extension):
            """The block `generation`, whose text is a target."""

            tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

            def parse(self, parser: Any) -> Any:
                line = next(parser.stream).lineno
                body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
                return CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

            def _marked(self, caller: Any) -> str:
                made = str(caller())
                renderer.marked.append((renderer.written, made))
                return made

        class Names(Namespace):
            """A namespace without names that begin with an underscore."""

            def __setitem__(self, name: str, value: Any) -> None:
                if str(name).startswith("_"):
                    raise Unfit(f"a namespace cannot have the name {name!r}")
                super().__setitem__(name, value)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Marks, loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _refuse, "namespace": Names}
        for made_by_chance in (environment.globals, environment.filters):
            made_by_chance.pop("lipsum", None)
            made_by_chance.pop("random", None)
        self.has_marks = bool(_MARK.search(text))
        self.written = 0  # characters of the conversation that are already rendered
        self.marked: list[tuple[int, str]] = []  # the place and the text of each block `generation`
        self._variables = variables
        self._template = environment.from_string(text)

    def render(self, messages: list[dict[str, Any]], tools: Any, *, most: int) -> tuple[str, list[Target]]:
        """Return the text of a conversation, and its targets, in characters.

        most: the most characters that the text may have. Raises Refused, Unfit, and whatever the template raises.
        """
        messages = [_as_transformers_has_it(message) for message in messages]
        text = self._render(messages, tools, most=most)
        if not self.has_marks:
            return text, list(self._added(text, messages, tools, most=most))
        spans = []
        for start, made in self.marked:
            if not text.startswith(made, start):
                raise Unfit("a generation block is inside a macro or a set block, so the place of its text is not known")
            if made:
                spans.append((start, start + len(made)))
        speakers = [number for number, message in enumerate(messages) if message.get("role") == "assistant"]
        owners = speakers if len(speakers) == len(spans) else [None] * len(spans)
        return text, [(*span, owner) for span, owner in zip(spans, owners, strict=True)]

    def _render(self, messages: list[dict[str, Any]], tools: Any, *, most: int, prompt: bool = False) -> str:
        pieces: list[str] = []
        self.written, self.marked = 0, []
        values = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": prompt}
        for piece in self._template.generate(**{**self._variables, **values}):
            pieces.append(piece)
            self.written += len(piece)
            if self.written > most:
                raise Unfit(f"it makes more than {most:,} characters of one conversation")
        return "".join(pieces)

    def _added(self, text: str, messages: list[dict[str, Any]], tools: Any, *, most: int) -> Iterator[Target]:
        """Yield the span of the text that each message of the assistant adds to the messages before it."""
        for number, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            is_last = number == len(messages) - 1
            before = self._render(messages[:number], tools, most=most, prompt=True) if number else self._opening(text, most=most)
            after = text if is_last else self._render(messages[: number + 1], tools, most=most)
            if before is None or not after.startswith(before) or not text.startswith(after):
                raise Unfit(
                    f"message {number} of the assistant cannot be found, because the text before it depends on the messages after it; "
                    "put {% generation %} and {% endgeneration %} around the words of the assistant"
                )
            if len(before) < len(after):
                yield len(before), len(after), number

    def _opening(self, text: str, *, most: int) -> str | None:
        """Return the text before the words of a first message that is the assistant's, or None if it is not found.

        It ends with the text that asks for a reply. The template need not render a conversation without messages to get it.
        """
        asked = [{"role": "user", "content": "x"}]
        without = self._render(asked, None, most=most)
        prompted = self._render(asked, None, most=most, prompt=True)
        prompt = prompted[len(without) :]
        if not prompted.startswith(without) or prompt not in text:
            return None
        return text[: text.index(prompt) + len(prompt)]


def _as_transformers_has_it(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without keys that are None, and with its reasoning under the names that templates use."""
    kept = {key: value for key, value in message.items() if value is not None}
    thoughts = next((kept[key] for key in _THOUGHTS if key in kept), None)
    return kept if thoughts is None else {"thinking": thoughts, **kept, "reasoning_content": thoughts}


def _refuse(message: Any) -> None:
    raise Refused(str(message))


def _to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _said(error: BaseException) -> str:
    """Return an error of a template in one line, with the line of the template if it is known."""
    from jinja2 import TemplateSyntaxError

    line, trace = getattr(error, "lineno", None) if isinstance(error, TemplateSyntaxError) else None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _TEMPLATE:
            line = trace.tb_lineno
        trace = trace.tb_next
    said = " ".join(str(error).split())[:_MOST_SAID] or type(error).__name__
    if isinstance(error, MemoryError):
        said = "it needs too much memory"
    elif isinstance(error, RecursionError):
        said = "it calls itself without an end"
    elif "strftime_now" in said:
        said += " (a cache depends on no clock); let the template test `strftime_now is defined`, and write a fixed date otherwise"
    return said if line is None else f"line {line}: {said}"


def _limit_time(seconds: int) -> None:
    """End this process with a signal after so many further seconds of processor time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + seconds)


def _limit(kind: int, most: int) -> None:
    """Set a soft limit of this process. A lower hard limit stays. A system that does not know the limit sets none."""
    _, hard = resource.getrlimit(kind)
    with suppress(ValueError, OSError):
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _answer(renderer: Renderer, task: dict[str, Any]) -> dict[str, Any]:
    try:
        text, targets = renderer.render(task["messages"], task["tools"], most=task["most"])
    except Refused as error:
        return {"refused": _said(error)}
    except Exception as error:  # whatever a template does is its error
        return {"error": _said(error)}
    return {"text": text, "spans": [target[:2] for target in targets], "owners": [target[2] for target in targets]}


def main(lines: BinaryIO, out: BinaryIO) -> None:
    """Answer the parent until it closes the pipe."""

    def reply(value: Any) -> None:
        out.write(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
        out.flush()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a whole group of processes gets them, and the parent ends this one
        signal.signal(number, signal.SIG_IGN)
    first = json.loads(lines.readline())
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, first["memory"])
    _limit_time(first["seconds"])
    try:
        renderer = Renderer(first["template"], first["variables"])
    except Exception as error:
        reply({"error": _said(error)})
        return
    reply({"marks": renderer.has_marks})
    for line in iter(lines.readline, b""):
        for task in json.loads(line):
            _limit_time(first["seconds"])
            reply(_answer(renderer, task))


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
