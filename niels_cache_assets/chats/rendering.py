"""Rendering of conversations in child processes with limits (child.py), which several threads may use at the same time.

A child takes a tenth of a second to start, and then some microseconds for each message. Each thread that renders takes an idle child, or
starts one. A child that ends, because a template needs too much time or memory, is an error that names the template.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from niels_cache_assets.chats.templates import Template, find_template
from niels_cache_assets.sources.tool_arguments import detect_argument_form
from niels_cache_assets.tokenizer.kinds import open_configured_model
from niels_cache_assets.tokenizer.settings import TokenizerSettings
from niels_cache_runtime.errors import NielsCacheError

MAX_SECONDS = 10  # of processor time for one conversation
MAX_MEMORY = 1 << 31  # bytes of a child
MIN_OUTPUT = 4_000_000  # characters of output that every conversation may have
OUTPUT_PER_CHARACTER = 16  # further characters of output for each character of the messages

_CONTROL = re.compile(r"<[|｜][^<>|｜\s]+[|｜]>")  # the form of most special tokens
_CHILD = "niels_cache_assets.chats.child"
_ROOT = Path(__file__).parents[2]
_MESSAGES_PER_SECOND = 500  # a longer conversation may take more time


class RenderedChat(NamedTuple):
    """A rendered conversation.

    Attributes:
        text: The text.
        spans: For each target, the index of its first character and of the one after its last.
        owners: For each target, the number of its message, or None if it is not known.
        neutral: The same conversation with neutral words, which shows what the template writes itself.
    """

    text: str
    spans: list[tuple[int, int]]
    owners: list[int | None]
    neutral: str


class UnusableChat(NamedTuple):
    """The reason why a conversation is not used.

    Attributes:
        reason: A key of `dropped`.
        explanation: The reason in words.
    """

    reason: str
    explanation: str


REFUSED = "refused_by_template"
TOO_MANY_TURNS = "too_many_turns"


class Chat(NamedTuple):
    """A conversation to render.

    Attributes:
        messages: Its messages.
        name: Its name in error messages.
        tools: JSON schemas of tools, or None.
        ignored: Numbers of messages whose words are not targets.
        last: Whether only words of the last message, which is the assistant's, are targets.
        weights: Weights of messages other than 1, by their numbers.
    """

    messages: Sequence[Mapping[str, Any]]
    name: str
    tools: Sequence[Any] | None = None
    ignored: Collection[int] = ()
    last: bool = False
    weights: Mapping[int, float] = {}


class RendererPool:
    """A template that is ready to render. A context manager, which ends all children on exit.

    Args:
        template: The template.
        names: Strings of special tokens, which are never kept in a neutral text; by default none.

    Raises:
        NielsCacheError: When the first child starts, if the template has a syntax error.
    """

    def __init__(self, template: Template, names: Collection[str] = ()) -> None:
        self._template, self._names = template, names
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self._started: list[_Child] = []
        weakref.finalize(self, _end_all, self._started)  # if `__exit__` is never called

    def __enter__(self) -> RendererPool:
        return self

    def __exit__(self, *_: object) -> None:
        """End all children. The next `render` starts a new one."""
        _end_all(self._started)
        self._idle = queue.SimpleQueue()

    @property
    def has_marks(self) -> bool:
        """Whether the template itself marks its targets."""
        return self.start().has_marks

    @cached_property
    def argument_form(self) -> Callable[[Any], Any]:
        """The function that converts the arguments of calls to the form that the template expects, found by trying the template."""
        child = self._take()

        def try_template(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None) -> str | None:
            with suppress(NielsCacheError):
                if isinstance(answer := child.render([Chat(messages, "a call for a try", tools)], text_only=True)[0], RenderedChat):
                    return answer.text
            return None

        try:
            return detect_argument_form(try_template)
        finally:
            child.end()  # it may have failed

    @property
    def plain(self) -> str | None:
        """The text of a short conversation with neutral words and the prompt for a reply, or None if the template refuses it."""
        return self.start().plain

    def start(self) -> _Child:
        """Start a child if none is idle, and leave it idle."""
        child = self._take()
        self._idle.put(child)
        return child

    def render(self, chats: Sequence[Chat]) -> list[RenderedChat | UnusableChat]:
        """Return the text of each conversation, in order.

        A conversation that the template refuses with `raise_exception` is an UnusableChat.

        Raises:
            NielsCacheError: If the template fails in any other way. The message names the conversation.
        """
        if not chats:
            return []
        child = self._take()
        answers = child.render(chats)  # after an error, the child is not used again
        self._idle.put(child)
        return answers

    def _take(self) -> _Child:
        with suppress(queue.Empty):
            return self._idle.get_nowait()
        child = _Child(self._template, self._names)
        self._started.append(child)
        return child


def check_template(name: str, settings: TokenizerSettings) -> list[str]:
    """Check a template before a build, given only its text and the model that [tokenizer] names.

    A model that cannot be opened is not an error of the template.

    Args:
        name: The template that a data set names (see `find_template`).
        settings: Settings in [tokenizer].

    Returns:
        What the template writes that looks like a special token, and is not a token of the model.

    Raises:
        NielsCacheError: If the template cannot be used.
    """
    template = find_template(name, settings)
    if template is None:
        return []
    has: Callable[[str], bool] = [*settings.special_tokens.values()].__contains__
    where = "a tokenizer that is trained"
    if settings.model is not None:
        try:
            tokenizer = open_configured_model(settings)
            has, where = lambda token: tokenizer.token_id(token) is not None, tokenizer.model_path
        except NielsCacheError:
            has = bool
    template.require_tokens(has, where)
    with RendererPool(template) as ready:
        return [token for token in dict.fromkeys(_CONTROL.findall(ready.plain or "")) if not has(token)]


class _Child:
    def __init__(self, template: Template, names: Collection[str]) -> None:
        self._template = template
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])},
            )
        except OSError as error:
            raise NielsCacheError(
                f"{template.where}: the process that renders it cannot start: {error.strerror or error}; free memory or processes"
            ) from error
        try:
            self._send(
                {
                    "template": template.text,
                    "variables": template.variables,
                    "names": [*names],
                    "seconds": MAX_SECONDS,
                    "memory": MAX_MEMORY,
                }
            )
            facts = self._receive("the template alone")
            self.has_marks = bool(facts["marks"])
            self.plain: str | None = facts["plain"]
        except BaseException:
            self.end()
            raise

    def render(self, chats: Sequence[Chat], *, text_only: bool = False) -> list[RenderedChat | UnusableChat]:
        """Return the texts with their targets, or without targets if `text_only`."""
        self._send(
            [
                {
                    "messages": chat.messages,
                    "tools": chat.tools,
                    "last": chat.last,
                    "most": MIN_OUTPUT + OUTPUT_PER_CHARACTER * sum(map(len, json_strings([chat.messages, chat.tools]))),
                    "seconds": MAX_SECONDS + len(chat.messages) // _MESSAGES_PER_SECOND,
                    "text_only": text_only,
                }
                for chat in chats
            ]
        )
        return [self._rendered(chat) for chat in chats]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _rendered(self, chat: Chat) -> RenderedChat | UnusableChat:
        answer = self._receive(chat.name)
        if "refused" in answer:
            return UnusableChat(REFUSED, f"{self._template.where}: refuses {chat.name}: {answer['refused']}")
        if "unproven" in answer:
            problem = f"{chat.name}: has {answer['unproven']:,} messages, too many to prove its targets; mark them in the template"
            return UnusableChat(TOO_MANY_TURNS, f"{self._template.where}: {problem}")
        return RenderedChat(answer["text"], [(start, end) for start, end in answer["spans"]], answer["owners"], answer["neutral"])

    def _send(self, value: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # reading the answer reports why the child has ended
            self._process.stdin.write(json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass") + b"\n")
            self._process.stdin.flush()

    def _receive(self, name: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise NielsCacheError(f"{self._template.where}: {self._end_reason()} ({name}); correct the template, or choose another one")
        answer: dict[str, Any] = json.loads(line.decode("utf-8", "surrogatepass"))
        if "error" in answer:
            raise NielsCacheError(f"{self._template.where}: {answer['error']} ({name})")
        return answer

    def _end_reason(self) -> str:
        code = self._process.wait()
        if code == -signal.SIGXCPU:
            return f"took more than {MAX_SECONDS} seconds of processor time"
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}; perhaps it needs too much memory"
        return f"its process ended with exit code {code}"


def _end_all(children: list[_Child]) -> None:
    while children:
        children.pop().end()


def json_strings(value: Any) -> list[str]:
    """Return all strings in a JSON value, including the keys of objects."""
    texts: list[str] = []
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, str):
            texts.append(each)
        elif isinstance(each, Mapping):
            stack += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple):
            stack.extend(each)
    return texts
