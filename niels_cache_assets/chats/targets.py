"""The targets of a rendered conversation: the words of the assistant, and the token that ends them.

It runs in the child process (child.py), and imports only the standard library and jinja2.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cached_property
from os.path import commonprefix
from typing import Any

from niels_cache_assets.chats.compiled import TAG, WORD, CompiledTemplate, Messages, RenderedTemplate, TemplateRefusal, UnusableOutputError

_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")  # names of the same key in messages, the usual one first
_MAX_RENDERED = 100_000  # messages that may be rendered to prove the targets of one conversation, or
_MAX_RENDERED_EACH = 8  # this many for each of its messages, if that is more
_EVENLY_SPACED = 16  # messages of a long conversation whose targets are proven, at equal distances
_SHORT = 16  # messages
_MAX_KNOWN = 2000
_MAX_PROBE_CHARACTERS = 1_000_000  # maximum number of characters of a short conversation
_MARK_ADVICE = "put {% generation %} and {% endgeneration %} around the words of the assistant"

_common_prefix = commonprefix  # character by character, which is what texts need

Span = tuple[int, int]
Target = tuple[int, int, int | None]
"""The index of the first character, the index after the last one, and the number of the message."""


class TooManyMessagesError(Exception):
    """The error for a conversation that has more messages than can be rendered one by one."""


class Renderer:
    """A template that renders conversations and finds their targets."""

    def __init__(self, template: CompiledTemplate) -> None:
        self.template = template
        self._known: dict[str, RenderedTemplate] = {}  # cached renderings of short conversations with neutral words

    def render(self, messages: Messages, tools: Any, *, most: int, last: bool = False) -> dict[str, Any]:
        """Return the text of a conversation, the spans of its targets in characters, the message of each span, and the neutral text.

        Args:
            messages: Messages of the conversation.
            tools: JSON schemas of tools, or None.
            most: Maximum number of characters of the text.
            last: Whether only words of the last message, which is the assistant's, are targets; by default no.

        Raises:
            TemplateRefusal: If the template refuses the conversation.
            UnusableOutputError: If the output cannot be used.
            TooManyMessagesError: If there are too many messages.
            Exception: Whatever the template raises.
        """
        return ConversationRenderings(self, [_as_transformers_message(message) for message in messages], tools, most=most).result(last=last)

    def text(self, messages: Messages, tools: Any, *, most: int) -> str:
        """Return the text of a conversation without looking for its targets (see `render`)."""
        return self.template.render([_as_transformers_message(message) for message in messages], tools, most=most).text

    def render_neutral(self, messages: Messages, tools: Any, *, most: int) -> RenderedTemplate:
        """Render a conversation with neutral words. Most short conversations have one of a few forms, so these are cached."""
        if len(messages) > _SHORT or tools:
            return self.template.render(messages, tools, most=most)
        key = json.dumps(messages)
        if key not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[key] = self.template.render(messages, tools, most=most)
        return self._known[key]

    @cached_property
    def _probes(self) -> list[ConversationRenderings]:
        turns = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user")]
        return [ConversationRenderings(self, messages, None, most=_MAX_PROBE_CHARACTERS) for messages in (turns[1:], turns)]

    @cached_property
    def plain(self) -> str | None:
        """The text of a short conversation with neutral words and the prompt for a reply, or None if the template refuses it."""
        for probe in self._probes:
            with suppress(Exception):
                return probe.render(prompt=True, neutral=True).text
        return None

    @cached_property
    def unconditional_prompt(self) -> str | None:
        """The prompt for a reply if the template ends every conversation with it, or "". None if short conversations do not show it."""
        return next((prompt for probe in self._probes if (prompt := probe.unconditional_prompt()) is not None), None)


class ConversationRenderings:
    """The renderings of one conversation with a template.

    Args:
        renderer: The template.
        messages: Messages of the conversation.
        tools: JSON schemas of tools, or None.
        most: Maximum number of characters of a text.
    """

    def __init__(self, renderer: Renderer, messages: Messages, tools: Any, *, most: int) -> None:
        self._renderer, self._messages, self._tools, self._most = renderer, messages, tools, most
        self._neutral = renderer.template.neutral(messages, tools)
        self._turns = [number for number, message in enumerate(messages) if message.get("role") == "assistant"]

    def render(self, end: int | None = None, *, prompt: bool = False, neutral: bool = False) -> RenderedTemplate:
        """Render the messages.

        Args:
            end: Number of the first message to leave out; by default all are rendered.
            prompt: Whether to add the prompt for a reply; by default no.
            neutral: Whether to use neutral words; by default no.
        """
        messages, tools = self._neutral if neutral else (self._messages, self._tools)
        return self._renderer.template.render(messages[:end], tools, most=self._most, prompt=prompt)

    def result(self, *, last: bool) -> dict[str, Any]:
        whole = self.render()
        try:
            neutral = self._renderer.render_neutral(*self._neutral, most=self._most)
        except Exception as error:
            raise TemplateRefusal(f"with neutral words in the place of its texts: {error}") from error
        suffix = self._renderer.unconditional_prompt  # the prompt for a reply if it ends every conversation
        suffix = (self.unconditional_prompt() or "") if suffix is None else suffix
        if not whole.text.endswith(suffix) or not neutral.text.endswith(suffix):
            raise UnusableOutputError(
                f"the prompt {suffix!r} ends every conversation but this one; let the template write it if add_generation_prompt is true"
            )
        whole = whole._replace(text=whole.text.removesuffix(suffix))
        neutral = neutral._replace(text=neutral.text.removesuffix(suffix))
        if self._renderer.template.has_marks:
            targets = [each for each in self._marked(whole) if not last or each[2] in (None, len(self._messages) - 1)]
        elif last:
            targets = [self._last_reply(whole, neutral, suffix)]
        else:
            targets = self._added_texts(whole, neutral, suffix)
        targets = [each for each in targets if each[0] < each[1]]
        return {
            "text": whole.text,
            "spans": [(start, end) for start, end, _ in targets],
            "owners": [owner for _, _, owner in targets],
            "neutral": neutral.text,
        }

    def unconditional_prompt(self) -> str | None:
        """Return the prompt for a reply if the template writes it without being asked, "" if not, or None if the template fails.

        The messages before a reply end with it, and the text of the reply begins with it.

        Raises:
            UnusableOutputError: If this is not clear.
        """
        last = next((number for number in reversed(self._turns) if number), None)
        if last is None:
            return ""
        try:
            whole, before = self.render(last + 1, neutral=True), self.render(last, neutral=True).text
            prompted = self.render(last + 1, prompt=True, neutral=True).text
        except Exception:
            return None
        if prompted != whole.text:
            return ""
        begin = whole.begins.get(last)
        if begin is None:
            replies = whole.text.startswith(before) and whole.text[len(before) :].lstrip().startswith(WORD)
            prompt = _common_prefix([before[::-1], whole.text[::-1]])[::-1].strip() if replies else ""
            unclear = bool(prompt)
        else:
            prompt = before[begin:] if before.startswith(whole.text[:begin]) else ""
            if not prompt.strip() or not whole.text.endswith(prompt):
                return ""
            if whole.text.startswith(prompt, begin):
                return prompt
            unclear = whole.text.startswith(prompt[0], begin)
        if unclear and not self._renderer.template.has_marks:
            raise UnusableOutputError(
                f"{prompt!r} at the end of every conversation may be the prompt for a reply, which is no target; {_MARK_ADVICE}"
            )
        return ""

    def _marked(self, whole: RenderedTemplate) -> list[Target]:
        targets = []
        for start, target, owner in whole.marked:
            if not whole.text.startswith(target, start):
                raise UnusableOutputError("a generation block is inside of a recursive loop, so the place of its text is not known")
            if target:
                targets.append((start, start + len(target), owner))
        if any(owner is None for _, _, owner in targets) and len(targets) == len(self._turns):
            targets = [(start, end, owner) for (start, end, _), owner in zip(targets, self._turns, strict=True)]
        return targets

    def _added_texts(self, whole: RenderedTemplate, neutral: RenderedTemplate, suffix: str) -> list[Target]:
        """Return the text that each message of the assistant adds to the messages before it.

        Each is proven by rendering the messages up to it. In a conversation with very many messages, this would take time quadratic in
        their number. Then it is proven for some of each kind, and all others must have the same header where the template begins to write
        them.
        """
        most = max(_MAX_RENDERED, _MAX_RENDERED_EACH * len(self._messages))
        if 2 * sum(self._turns) <= most:
            return [self._checked_addition(number, whole, neutral, suffix) for number in self._turns]
        headers: dict[Any, str] = {}
        first_of_kind = {self._kind(number): number for number in reversed(self._turns)}
        evenly = self._turns[:: max(1, len(self._turns) // _EVENLY_SPACED)]
        for number in dict.fromkeys([self._turns[-1], *sorted(first_of_kind.values()), *evenly]):
            most -= 2 * number
            if most < 0:
                break
            start, end, _ = self._checked_addition(number, whole, neutral, suffix)
            begin, next_begin = self._part(number, whole)
            if end != next_begin or headers.setdefault(self._kind(number), whole.text[begin:start]) != whole.text[begin:start]:
                raise TooManyMessagesError
        targets: list[Target] = []
        for number in self._turns:
            begin, end = self._part(number, whole)
            header = headers.get(self._kind(number))
            if header is None or not whole.text.startswith(header, begin):
                raise TooManyMessagesError
            targets.append((begin + len(header), end, number))
        return targets

    def _kind(self, number: int) -> Any:
        """Return what determines the form of a message: its keys, tags in its text, and the speaker before it."""
        message = self._messages[number]
        keys = tuple(sorted(key for key, value in message.items() if value))
        return keys, TAG.search(str(message.get("content"))) is None, self._messages[number - 1].get("role") if number else None

    def _part(self, number: int, whole: RenderedTemplate) -> Span:
        """Return the index of the first character of a message and of the one after its last."""
        begin, end = whole.begins.get(number), whole.begins.get(number + 1)
        end = len(whole.text) if number == len(self._messages) - 1 else end
        if begin is None or end is None:
            raise TooManyMessagesError
        return begin, end

    def _checked_addition(self, number: int, whole: RenderedTemplate, neutral: RenderedTemplate, suffix: str) -> Target:
        """Return the text that a message of the assistant adds.

        Raises:
            UnusableOutputError: If the rest is not the same without it.
        """
        before = self._text_before(number, whole, neutral, suffix)
        is_last = number == len(self._messages) - 1
        after = whole.text if is_last else self.render(number + 1).text.removesuffix(suffix)
        if before is None or not after.startswith(before) or not whole.text.startswith(after):
            raise UnusableOutputError(
                f"message {number} of the assistant cannot be found, because the text before it depends on the messages after it; "
                f'make an example of each turn (turns = "each" or "last"), or {_MARK_ADVICE}'
            )
        return len(before), len(after), number

    def _last_reply(self, whole: RenderedTemplate, neutral: RenderedTemplate, suffix: str) -> Target:
        """Return the words of the last message, which follow the prompt for a reply, or the part of the prompt that is in the text."""
        last = len(self._messages) - 1
        before = self._text_before(last, whole, neutral, suffix)
        if before is None or not whole.text.startswith(before):
            without = self.render(last, neutral=True).text.removesuffix(suffix) if last else ""
            prompted = self.render(last, prompt=True, neutral=True).text if last else ""
            reached = len(_common_prefix([prompted, neutral.text]))
            before = self.render(last).text.removesuffix(suffix) + neutral.text[len(without) : reached] if last else ""
            if not 0 < len(without) <= reached or not whole.text.startswith(before):
                raise UnusableOutputError(f"the words of message {last} of the assistant cannot be found; {_MARK_ADVICE}")
        return len(before), len(whole.text), last

    def _text_before(self, number: int, whole: RenderedTemplate, neutral: RenderedTemplate, suffix: str) -> str | None:
        """Return the text before the words of a message that is the assistant's, or None if it is not found.

        It ends with the prompt for a reply. The template need not render a conversation without messages to get that of the first message.
        """
        if number:
            return self.render(number, prompt=True).text
        probe = ConversationRenderings(self._renderer, [{"role": "user", "content": "x"}], None, most=self._most)
        without = probe.render().text
        prompted = probe.render(prompt=True).text
        if not prompted.startswith(without):
            return None
        prompt = prompted[len(without) :] or suffix
        begin, end = neutral.begins.get(0, 0), neutral.text.find(WORD, neutral.begins.get(0, 0))
        start = neutral.text.rfind(prompt, begin, end) if prompt else begin
        if end < 0 or start < 0:
            return None
        header = neutral.text[begin : start + len(prompt)]
        begin = whole.begins.get(0, 0)
        return whole.text[: begin + len(header)] if whole.text.startswith(header, begin) else None


def _as_transformers_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without keys that are None, and with its reasoning under the names that templates use."""
    kept = {key: value for key, value in message.items() if value is not None}
    reasoning = next((kept[key] for key in _REASONING_KEYS if key in kept), None)
    return kept if reasoning is None else {"thinking": reasoning, **kept, "reasoning_content": reasoning}
