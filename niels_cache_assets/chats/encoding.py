"""Conversations as tokens, and the spans of tokens to train on, with one template and one tokenizer.

    messages --> rendering --> text, spans of characters --> tokenizer --> tokens, spans of tokens

The whole text of a conversation is encoded at once, so the tokens are those of `transformers.apply_chat_template`. A special token in the
text counts as this token. So the texts of the messages are checked twice. Before rendering, a text that would yield a special token makes
its conversation unusable. After rendering, the special tokens must be those of the same conversation with neutral words, because a template
can make a special token from several texts, or from a text that it changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from niels_cache_assets.chats.rendering import Chat, RenderedChat, RendererPool, UnusableChat, json_strings
from niels_cache_assets.chats.templates import Template
from niels_cache_assets.sources.tool_arguments import convert_arguments
from niels_cache_assets.streaming.encode import COLLISION, INVALID_UNICODE, has_lone_surrogate, name_unencodable_item, normalize_newlines
from niels_cache_assets.tokenizer.base import Span, TextTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Array, Bools, Floats, Ints

NO_TARGET = "no_target"
UNKNOWN_TURN = "unknown_turn"
UNUSABLE_WEIGHT = "unusable_weight"
_MAX_KNOWN = 4096
_SHORT = 4096  # characters


class EncodedChat(NamedTuple):
    """An encoded conversation.

    Attributes:
        ids: (n,) integers, the ids of the tokens.
        spans: (m, 2) int64 with m >= 1: the first token of each target and the token after its last one, in order. Spans do not touch each
            other.
        weights: (m,) float32, the weight of each target. None if all are 1.
    """

    ids: Array
    spans: Ints
    weights: Floats | None = None


class ChatEncoder:
    """The encoder of conversations. Its methods may be called from several threads. A context manager, because it keeps processes.

    Args:
        template: The chat template.
        tokenizer: A tokenizer that has `encode_rendered`.

    Raises:
        NielsCacheError: If the tokenizer cannot encode rendered text, or lacks the tokens that the template needs.
    """

    def __init__(self, template: Template, tokenizer: Any) -> None:
        if not isinstance(tokenizer, TextTokenizer):
            raise NielsCacheError(f"{template.where}: needs a tokenizer of this package (open_model), not a {type(tokenizer).__name__}")
        template.require_tokens(lambda token: tokenizer.token_id(token) is not None, tokenizer.model_path)
        self._template, self._tokenizer = template, tokenizer
        self._names = tuple(filter(None, tokenizer.special_names()))
        reserved = {*tokenizer.reserved_ids()}
        self._guarded_names = [name for name in self._names if "think" not in name.lower() or tokenizer.token_id(name) in reserved]
        self._rendering = RendererPool(template, self._guarded_names)
        self._known: dict[str, list[int]] = {}  # the guarded tokens of short neutral texts

    def __enter__(self) -> ChatEncoder:
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes. The next call of `encode` starts new ones."""
        self._rendering.__exit__()

    @property
    def has_marks(self) -> bool:
        """Whether the template itself marks its targets, so that no prefixes are compared."""
        return self._rendering.has_marks

    def encode(self, chats: Sequence[Chat]) -> list[EncodedChat | UnusableChat]:
        """Return the tokens of each conversation, or why it is not used, in order.

        Raises:
            NielsCacheError: If the template fails.
        """
        chats = [chat._replace(messages=[self._prepared(message) for message in chat.messages]) for chat in chats]
        results: list[EncodedChat | UnusableChat | None] = [*self._unusable_reasons(chats)]
        usable = [number for number, result in enumerate(results) if result is None]
        rendered = self._rendering.render([chats[number] for number in usable])
        texts: list[tuple[int, RenderedChat]] = []
        for number, each in zip(usable, rendered, strict=True):
            if isinstance(each, UnusableChat):
                results[number] = each
            elif has_lone_surrogate(each.text):
                results[number] = UnusableChat(INVALID_UNICODE, f"{chats[number].name} is not valid Unicode")
            else:
                texts.append((number, self._without_line_breaks(each)))
        with name_unencodable_item(
            lambda item: chats[texts[item][0]].name, ([each.text] for _, each in texts), self._tokenizer.yields_special
        ):
            encoded = self._tokenizer.encode_rendered([each.text for _, each in texts], [each.spans for _, each in texts])
        allowed_tokens = self._guarded_of_neutral([each.neutral for _, each in texts])
        for (number, each), (ids, spans), allowed in zip(texts, encoded, allowed_tokens, strict=True):
            results[number] = self._checked(chats[number], each, ids, spans, allowed)
        return [result for result in results if result is not None]

    def _prepared(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a message with plain newlines, and with the arguments of its calls as the template expects them."""
        plain = {key: normalize_newlines(value) if isinstance(value, str) else value for key, value in message.items()}
        return convert_arguments(plain, self._rendering.argument_form) if plain.get("tool_calls") else plain

    def _checked(self, chat: Chat, rendered: RenderedChat, ids: Array, spans: Ints, allowed: Sequence[int]) -> EncodedChat | UnusableChat:
        """Return an encoded conversation, or why it is not used.

        Args:
            chat: The conversation.
            rendered: Its rendering.
            ids: Ids of the rendered text.
            spans: Targets among the ids.
            allowed: Guarded tokens that the template writes itself, in order.
        """
        if not _is_subsequence(self._guarded_in(ids), allowed):
            return UnusableChat(COLLISION, f"{chat.name}: its texts make a special token in {self._template.where}; remove it")
        if (chat.ignored or chat.weights) and None in rendered.owners:
            return UnusableChat(UNKNOWN_TURN, f"{self._template.where}: does not show which message of {chat.name} each mark is in")
        learned = np.array([owner not in chat.ignored for owner in rendered.owners], dtype=bool) & (spans[:, 0] < spans[:, 1])
        joined, weights = merge_spans(spans[learned]), None
        if not len(joined):
            return UnusableChat(NO_TARGET, f"{self._template.where}: gives {chat.name} no words of the assistant to train on")
        if chat.weights:
            own = np.array([chat.weights.get(owner, 1) for owner in rendered.owners if owner is not None], dtype=np.float32)[learned]
            places = joined[:, 0].searchsorted(spans[learned, 0], side="right") - 1
            weights = np.ones(len(joined), dtype=np.float32)
            weights[places] = own
            if (weights[places] != own).any():
                return UnusableChat(
                    UNUSABLE_WEIGHT, f"{self._template.where}: writes messages of {chat.name} with different weights as one"
                )
        return EncodedChat(ids, joined, weights)

    @cached_property
    def _is_guarded(self) -> Bools:
        """Whether only the template may write a token, for each id, (vocab_size,).

        These are the special tokens, and added tokens that the template writes around messages, even if the tokenizer does not call them
        special: DeepSeek's `<｜User｜>` is one of them. Tags of thinking are not among them, because data contain them with good reason.
        """
        guarded: set[int | None] = {*self._tokenizer.reserved_ids()}
        if self._rendering.plain is not None:
            ((written, _),) = self._tokenizer.encode_rendered([self._rendering.plain], [()])
            added = {self._tokenizer.token_id(name) for name in self._guarded_names}
            guarded |= added & {*written.tolist()}
        is_guarded = np.zeros(self._tokenizer.vocab_size, dtype=bool)
        is_guarded[[token for token in guarded if token is not None]] = True
        return is_guarded

    def _guarded_in(self, ids: Array) -> list[int]:
        return ids[self._is_guarded[ids]].tolist()

    def _guarded_of_neutral(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the guarded tokens of each neutral text. Conversations of one form have the same neutral text."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        found = {
            text: self._guarded_in(ids) for text, (ids, _) in zip(new, self._tokenizer.encode_rendered(new, [()] * len(new)), strict=True)
        }
        result = [found[text] if text in found else self._known[text] for text in texts]
        if len(self._known) < _MAX_KNOWN:
            self._known |= {text: own for text, own in found.items() if len(text) <= _SHORT}
        return result

    def _without_line_breaks(self, rendered: RenderedChat) -> RenderedChat:
        """Leave the white space after a token that ends a message out of the targets, because no model has to write it.

        If another token follows, such as the EOS that phi3 writes after its last line break, it is a target of its own.
        """
        text, spans, owners = rendered.text, list[Span](), list[int | None]()
        for (start, end), owner in zip(rendered.spans, rendered.owners, strict=True):
            end = self._end_of_token(text, start, end)
            last = max((len(name) for name in self._names if text.endswith(name, start, end)), default=0)
            before = self._end_of_token(text, start, end - last)
            parts = [(start, end)] if before == end - last else [(start, before), (end - last, end)]
            spans += parts
            owners += [owner] * len(parts)
        return rendered._replace(spans=spans, owners=owners)

    def _end_of_token(self, text: str, start: int, end: int) -> int:
        """Return where the token before the white space at the end of text[start:end] ends, or `end` without such a token."""
        text_end = start + len(text[start:end].rstrip()) if text[start:end][-1:].isspace() else end
        return text_end if text_end < end and text.endswith(self._names, start, text_end) else end

    def _unusable_reasons(self, chats: Sequence[Chat]) -> list[UnusableChat | None]:
        """Return for each conversation why its own texts make it unusable, or None."""
        found: list[UnusableChat | None] = [None] * len(chats)
        texts: list[str] = []
        owners: list[int] = []
        for number, chat in enumerate(chats):
            own = [*dict.fromkeys(json_strings([chat.messages, chat.tools]))]
            if any(map(has_lone_surrogate, own)):
                found[number] = UnusableChat(INVALID_UNICODE, f"{chat.name} is not valid Unicode")
            else:
                texts += own
                owners += [number] * len(own)
        markers = self._template.markers  # a tokenizer may have them as tokens that it does not call special
        with name_unencodable_item(lambda item: chats[owners[item]].name, ([text] for text in texts), self._tokenizer.yields_special):
            special = self._tokenizer.yields_special(texts)
        for number, text, is_special in zip(owners, texts, special, strict=True):
            if is_special or any(marker in text for marker in markers):
                found[number] = UnusableChat(COLLISION, f"{chats[number].name}: a message contains a special token; remove it")
        return found


def _is_subsequence(tokens: Sequence[int], allowed: Sequence[int]) -> bool:
    """Return whether all tokens are in `allowed`, in the same order."""
    rest = iter(allowed)
    return all(token in rest for token in tokens)


def merge_spans(spans: Ints) -> Ints:
    """Return spans (m, 2) in order, with overlapping and touching spans joined, and without empty spans."""
    spans = spans[spans[:, 0] < spans[:, 1]]
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    if len(spans) < 2:
        return spans
    reached = np.maximum.accumulate(spans[:, 1])
    begins = np.append(True, spans[1:, 0] > reached[:-1])
    return np.stack([spans[begins, 0], reached[np.append(begins[1:], True)]], axis=1)
