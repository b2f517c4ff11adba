"""Conversations as tokens, and the spans of tokens to train on, with one template and one tokenizer.

    messages --> rendering --> text, spans of characters --> tokenizer --> tokens, spans of tokens

The whole text of a conversation is encoded at once, so the tokens are those of `transformers.apply_chat_template`. A special token in the
text counts as this token. So the texts of the messages are checked first: if one of them would yield a special token, the conversation is
not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.chats.rendering import Chat, Refusal, Rendered, Rendering, texts_of
from niels_cache_assets.chats.templates import Template
from niels_cache_assets.streaming.encode import COLLISION, INVALID_UNICODE, has_lone_surrogate, naming_unencodable, normalize_newlines
from niels_cache_assets.tokenizer.base import TextTokenizer
from niels_cache_runtime.errors import NielsCacheError

NO_TARGET = "no_target"


class EncodedChat(NamedTuple):
    """An encoded conversation.

    ids: (n,) integers. spans: (m, 2) int64, m >= 1: the first token and the token after the last one of each target, in order. Spans do not
    touch each other.
    """

    ids: NDArray[Any]
    spans: NDArray[np.int64]


class ChatEncoder:
    """The encoder of conversations. Its methods may be called from several threads. A context manager, because it keeps processes.

    Raises NielsCacheError for a tokenizer that cannot encode rendered text, and for one without the tokens that the template needs.
    """

    def __init__(self, template: Template, tokenizer: Any) -> None:
        if not isinstance(tokenizer, TextTokenizer):
            raise NielsCacheError(f"{template.where}: needs a tokenizer of this package (open_model), not a {type(tokenizer).__name__}")
        for token in template.needed_tokens:
            if tokenizer.token_id(token) is None:
                raise NielsCacheError(
                    f"{template.where}: {tokenizer.model_path} has no token {token!r}; choose another template, or a tokenizer that has it"
                )
        self._template, self._tokenizer = template, tokenizer
        self._rendering = Rendering(template)

    def __enter__(self) -> ChatEncoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes. The next call of `encode` starts new ones."""
        self._rendering.close()

    @property
    def has_marks(self) -> bool:
        """Whether the template itself marks its targets, so that no prefixes are compared."""
        return self._rendering.has_marks

    def encode(self, chats: Sequence[Chat]) -> list[EncodedChat | Refusal]:
        """Return the tokens of each conversation, or why it is not used, in order.

        Raises NielsCacheError for an error of the template.
        """
        chats = [chat._replace(messages=[_with_plain_newlines(message) for message in chat.messages]) for chat in chats]
        results: list[EncodedChat | Refusal | None] = [*self._unusable(chats)]
        sound = [number for number, result in enumerate(results) if result is None]
        rendered = self._rendering.render([chats[number] for number in sound])
        texts: list[tuple[int, Rendered]] = []
        for number, each in zip(sound, rendered, strict=True):
            if isinstance(each, Refusal):
                results[number] = each
            elif has_lone_surrogate(each.text):
                results[number] = Refusal(INVALID_UNICODE, f"{chats[number].name} is not valid Unicode")
            else:
                texts.append((number, each))
        with naming_unencodable(
            lambda item: chats[texts[item][0]].name, ([each.text] for _, each in texts), self._tokenizer.yields_special
        ):
            encoded = self._tokenizer.encode_rendered([each.text for _, each in texts], [each.spans for _, each in texts])
        for (number, _), (ids, spans) in zip(texts, encoded, strict=True):
            joined = join_spans(spans)
            said = f"{self._template.where}: gives {chats[number].name} no words of the assistant to train on"
            results[number] = EncodedChat(ids, joined) if len(joined) else Refusal(NO_TARGET, said)
        return [result for result in results if result is not None]

    def _unusable(self, chats: Sequence[Chat]) -> list[Refusal | None]:
        """Return for each conversation why its own texts make it unusable, or None."""
        found: list[Refusal | None] = [None] * len(chats)
        texts: list[str] = []
        owners: list[int] = []
        for number, chat in enumerate(chats):
            own = [*dict.fromkeys(texts_of([chat.messages, chat.tools]))]
            if any(map(has_lone_surrogate, own)):
                found[number] = Refusal(INVALID_UNICODE, f"{chat.name} is not valid Unicode")
            else:
                texts += own
                owners += [number] * len(own)
        markers = self._template.needed_tokens  # a tokenizer may have them as tokens that it does not call special
        with naming_unencodable(lambda item: chats[owners[item]].name, ([text] for text in texts), self._tokenizer.yields_special):
            special = self._tokenizer.yields_special(texts)
        for number, text, is_special in zip(owners, texts, special, strict=True):
            if is_special or any(marker in text for marker in markers):
                found[number] = Refusal(COLLISION, f"{chats[number].name}: a message contains a special token; remove it")
        return found


def join_spans(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return spans (m, 2) in order, with those joined that overlap or touch. Empty spans are left out."""
    spans = spans[spans[:, 0] < spans[:, 1]]
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    if len(spans) < 2:
        return spans
    reached = np.maximum.accumulate(spans[:, 1])
    begins = np.append(True, spans[1:, 0] > reached[:-1])
    return np.stack([spans[begins, 0], reached[np.append(begins[1:], True)]], axis=1)


def _with_plain_newlines(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose texts have the newlines that every text of a cache has."""
    return {key: normalize_newlines(value) if isinstance(value, str) else value for key, value in message.items()}
