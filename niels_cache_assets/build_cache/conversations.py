"""Conversations as tokens, a chunk at a time: with the sentinels of this project, or with a chat template.

`sft` writes them into a cache. Conversations that cannot be used are left out, each with its reason.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from niels_cache_assets.build_cache.pairs import spans_of_mask
from niels_cache_assets.chats.encoding import NO_TARGET, ChatEncoder, EncodedChat
from niels_cache_assets.chats.rendering import REFUSED, Chat
from niels_cache_assets.config.defaults import ROLE_TO_KEY, TEMPLATE_ROLES
from niels_cache_assets.documents import Conversation
from niels_cache_assets.sources.conversations import conversation_problem
from niels_cache_assets.streaming.encode import COLLISION, INVALID_UNICODE, encode_texts, naming_unencodable, texts_with_special
from niels_cache_assets.tokenizer.kinds import BuildTokenizer
from niels_cache_runtime.errors import NielsCacheError


class EncodedConversations(NamedTuple):
    """The usable conversations of a chunk.

    kept: their numbers in the chunk. tokens: of the cache's dtype, one conversation after the other. lengths: int64, tokens per
    conversation. spans: with a chat template, the targets of each conversation, (m, 2), relative to its first token. hints: for each reason
    of a template, what was said first.
    """

    kept: list[int]
    tokens: np.ndarray
    lengths: np.ndarray
    spans: list[np.ndarray] | None = None
    hints: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ConversationEncoder:
    """An encoder of chunks of conversations. Its methods may be called from several threads.

    view: the special ids of the tokenizer. encoding_view: the tokenizer that encodes. chats: the encoder of a chat template, or None for
    sentinels. raises: whether a conversation that a template refuses is an error.
    """

    view: BuildTokenizer
    encoding_view: BuildTokenizer
    dtype: np.dtype
    chats: ChatEncoder | None
    raises: bool

    @property
    def roles(self) -> Collection[str]:
        """The roles that messages may have."""
        return ROLE_TO_KEY.keys() if self.chats is None else ROLE_TO_KEY.keys() | TEMPLATE_ROLES

    def chats_of(self, found: EncodedConversations) -> list[EncodedChat]:
        """Return the tokens and spans of each conversation. Without a template, sentinels mark the targets."""
        ends = np.cumsum(found.lengths)
        starts = ends - found.lengths
        spans = found.spans
        if spans is None:
            from niels_cache_runtime.cache.sft import example_target_mask  # imports torch

            asst = self.view.special_ids["asst"]
            assert asst is not None  # the builder requires it
            mask = example_target_mask(found.tokens, starts, asst, self.view.eot)
            spans = [spans_of_mask(mask[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return [EncodedChat(found.tokens[start:end], each) for start, end, each in zip(starts.tolist(), ends.tolist(), spans, strict=True)]

    def encode(self, chunk: list[Conversation], batch: int, problems: dict[int, str], names: Sequence[str]) -> EncodedConversations:
        """Encode the usable conversations of a chunk. The reasons of the others are added to `problems`, by their numbers.

        Without a template, each message becomes the special token of its role, the ids of its content, and EOT. names: for messages.
        """
        found = ((number, conversation_problem(each.messages, self.roles)) for number, each in enumerate(chunk))
        problems |= {number: problem for number, problem in found if problem is not None}
        if self.chats is not None:
            return self._encode_chats(self.chats, chunk, problems, names)
        valid = np.array([number for number in range(len(chunk)) if number not in problems], dtype=np.int64)
        turns = np.fromiter((len(chunk[number].messages) for number in valid.tolist()), np.int64, len(valid))
        messages = [message for number in valid.tolist() for message in chunk[number].messages]
        items = ([message["content"] for message in chunk[number].messages] for number in valid.tolist())
        with naming_unencodable(lambda item: names[valid[item]], items, lambda one: encode_texts(one, self.encoding_view, None)):
            encoded = encode_texts([message["content"] for message in messages], self.encoding_view, batch)
        owner = np.repeat(valid, turns)  # the conversation of each message
        for message in np.flatnonzero(_either(encoded.invalid, texts_with_special(encoded, self.view), len(messages))).tolist():
            is_invalid = encoded.invalid is not None and encoded.invalid[message]
            problems.setdefault(int(owner[message]), INVALID_UNICODE if is_invalid else COLLISION)
        kept = np.array([number not in problems for number in range(len(chunk))], dtype=bool)
        stays = kept[owner]
        lengths = encoded.lengths[stays]
        ends = np.cumsum(lengths + 2)
        starts = ends - lengths - 2
        tokens = np.empty(int(ends[-1]) if len(ends) else 0, self.dtype)
        content = np.ones(len(tokens), dtype=bool)
        content[starts] = content[ends - 1] = False
        tokens[content] = encoded.ids[np.repeat(stays, encoded.lengths)]
        roles = np.fromiter((self.view.special_ids[ROLE_TO_KEY[message["role"]]] for message in messages), np.int64, len(messages))
        tokens[starts], tokens[ends - 1] = roles[stays], self.view.eot
        last = np.cumsum(turns[kept[valid]]) - 1  # the last message of each conversation
        return EncodedConversations(kept=np.flatnonzero(kept).tolist(), tokens=tokens, lengths=np.diff(ends[last], prepend=0))

    def _encode_chats(
        self, chats: ChatEncoder, chunk: list[Conversation], problems: dict[int, str], names: Sequence[str]
    ) -> EncodedConversations:
        """Encode the conversations of a chunk that have no problem with the template. Further problems are added to `problems`."""
        valid = [number for number in range(len(chunk)) if number not in problems]
        encoded: dict[int, EncodedChat] = {}
        said: dict[str, str] = {}
        results = chats.encode([Chat(chunk[number].messages, names[number], chunk[number].tools) for number in valid])
        for number, result in zip(valid, results, strict=True):
            if isinstance(result, EncodedChat):
                encoded[number] = result
                continue
            problems[number] = result.reason
            if result.reason in (REFUSED, NO_TARGET):
                if self.raises:
                    raise NielsCacheError(result.said)
                said.setdefault(result.reason, result.said)
        return EncodedConversations(
            kept=[*encoded],
            tokens=np.concatenate([np.empty(0, self.dtype), *(each.ids.astype(self.dtype) for each in encoded.values())]),
            lengths=np.fromiter((len(each.ids) for each in encoded.values()), np.int64, len(encoded)),
            spans=[each.spans for each in encoded.values()],
            hints=tuple(said.values()),
        )


def _either(first: np.ndarray | None, second: np.ndarray | None, count: int) -> np.ndarray:
    """Return the union of two masks, bool (count,). None stands for a mask without any True."""
    masks = [mask for mask in (first, second) if mask is not None]
    return np.logical_or.reduce(masks) if masks else np.zeros(count, dtype=bool)
