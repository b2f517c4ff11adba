"""Conversations as tokens, a chunk at a time: with the sentinels of this project, or with a chat template.

`sft` writes them into a cache. Conversations that cannot be used are left out, each with its reason. Of a preference pair, only the spans
after the prompt are targets:

    chosen     prompt with its spans | answer with its spans
    rejected   prompt with its spans | other answer with its spans
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from niels_cache_assets.base.defaults import ROLE_TO_KEY, TEMPLATE_ROLES, Turns
from niels_cache_assets.base.documents import Conversation, DropReport, describe_origin
from niels_cache_assets.chats.encoding import NO_TARGET, UNKNOWN_TURN, UNUSABLE_WEIGHT, ChatEncoder, EncodedChat
from niels_cache_assets.chats.rendering import REFUSED, TOO_MANY_TURNS, Chat
from niels_cache_assets.sources.conversations import contents, conversation_problem, empty_assistant_turns, example_problem
from niels_cache_assets.sources.messages import message_weights
from niels_cache_assets.streaming.encode import (
    COLLISION,
    INVALID_UNICODE,
    add_bos_and_eot,
    encode_texts,
    name_unencodable_item,
    texts_with_special,
)
from niels_cache_assets.tokenizer.kinds import BuildTokenizer
from niels_cache_runtime.errors import NielsCacheError

_TEMPLATE_REASONS = (REFUSED, NO_TARGET, TOO_MANY_TURNS, UNKNOWN_TURN, UNUSABLE_WEIGHT)  # reasons that the template explains
MAX_CHARACTERS = 1 << 25  # of the examples of one conversation
CONVERSATIONS = "conversations"  # the number of conversations, if each may have several examples
EMPTY_TURNS = "empty_turns"  # empty messages of the assistant, in conversations with a chat template


class EncodedConversations(NamedTuple):
    """The usable conversations of a chunk.

    Attributes:
        kept: Their numbers in the chunk. The number of a conversation with several examples is repeated for each example.
        chats: The tokens of each example, of the cache's dtype, and its targets.
        hints: The first message of the template for each reason.
        facts: Numbers of messages, for the `facts` of meta.json.
    """

    kept: list[int]
    chats: list[EncodedChat]
    hints: tuple[str, ...] = ()
    facts: Counter[str] = Counter()  # noqa: RUF012  (never changed)


@dataclass(frozen=True, kw_only=True)
class ConversationEncoder:
    """An encoder of chunks of conversations. Its methods may be called from several threads.

    Attributes:
        view: The tokenizer, which encodes.
        dtype: The dtype of the tokens.
        chats: The encoder of a chat template. None for sentinels.
        raises: Whether a conversation that a template refuses is an error.
        turns: Which turns of the assistant are targets, and whether each is an example of its own.
        exclude: The ids of conversations that facts do not count, because they are left out later.
    """

    view: BuildTokenizer
    dtype: np.dtype
    chats: ChatEncoder | None
    raises: bool
    turns: Turns
    exclude: Collection[str] = frozenset()

    @property
    def roles(self) -> Collection[str]:
        """The roles that messages may have."""
        return ROLE_TO_KEY.keys() if self.chats is None else ROLE_TO_KEY.keys() | TEMPLATE_ROLES

    def encode(
        self, chunk: list[Conversation], batch: int, problems: dict[int, str], names: Sequence[str], masked: Sequence[frozenset[int]]
    ) -> EncodedConversations:
        """Encode the usable conversations of a chunk.

        Without a template, each message becomes the special token of its role, the ids of its content, and EOT.

        Args:
            chunk: The conversations.
            batch: The number of the chunk, for the encoder.
            problems: The reasons why conversations are unusable, by number. Reasons that are found here are added.
            names: The name of each conversation, for messages.
            masked: For each conversation, the numbers of the assistant's messages without targets.

        Raises:
            NielsCacheError: If a template refuses a conversation, with `raises`.
        """
        found = ((number, conversation_problem(each.messages, self.roles)) for number, each in enumerate(chunk))
        problems |= {number: problem for number, problem in found if problem is not None}
        if self.chats is not None:
            return self._encode_chats(self.chats, chunk, problems, names, masked)
        valid = [number for number in range(len(chunk)) if number not in problems]
        turns = [(number, index, message) for number in valid for index, message in enumerate(chunk[number].messages)]
        owner = np.array([number for number, _, _ in turns], dtype=np.int64)  # the conversation of each message
        roles = np.array([self.view.special_ids[ROLE_TO_KEY[message["role"]]] for _, _, message in turns], dtype=np.int64)
        is_target = np.array([each["role"] == "assistant" and index not in masked[number] for number, index, each in turns], dtype=bool)
        items = ([message["content"] for message in chunk[number].messages] for number in valid)
        with name_unencodable_item(lambda item: names[valid[item]], items, lambda one: encode_texts(one, self.view, None)):
            encoded = encode_texts([message["content"] for _, _, message in turns], self.view, batch)
        unusable = {
            message: reason
            for reason, found in ((COLLISION, texts_with_special(encoded, self.view)), (INVALID_UNICODE, encoded.invalid))
            if found is not None
            for message in np.flatnonzero(found).tolist()
        }
        for message in sorted(unusable):
            problems.setdefault(turns[message][0], unusable[message])
        for number in {*valid} - {*owner[is_target].tolist()}:
            problems.setdefault(number, NO_TARGET)
        tokens, lengths = add_bos_and_eot(encoded.ids, encoded.lengths, self.dtype, bos=roles, eot=self.view.eot)
        ends = np.cumsum(lengths)
        contents = np.stack([ends - lengths + 1, ends], axis=1)  # of each message, with EOT
        chats: dict[int, EncodedChat] = {}
        first = 0
        for number in valid:
            own = slice(first, first + len(chunk[number].messages))
            if number not in problems:
                begin, weights = contents[first, 0] - 1, None
                if given := message_weights(chunk[number].messages):
                    weights = np.array([given.get(index, 1) for index in np.flatnonzero(is_target[own]).tolist()], dtype=np.float32)
                chats[number] = EncodedChat(tokens[begin : ends[own.stop - 1]], contents[own][is_target[own]] - begin, weights)
            first = own.stop
        return EncodedConversations(kept=[*chats], chats=[*chats.values()])

    def _encode_chats(
        self,
        chats: ChatEncoder,
        chunk: list[Conversation],
        problems: dict[int, str],
        names: Sequence[str],
        masked: Sequence[frozenset[int]],
    ) -> EncodedConversations:
        """Encode the conversations of a chunk that have no problem with the template, and add further problems to `problems`."""
        valid = [number for number in range(len(chunk)) if number not in problems]
        encoded: dict[int, list[EncodedChat]] = {}
        hints: dict[str, str] = {}
        chats_by_number = [
            (number, chat) for number in valid for chat in self._examples(number, chunk[number], names[number], problems, masked[number])
        ]
        for (number, _), result in zip(chats_by_number, chats.encode([chat for _, chat in chats_by_number]), strict=True):
            if isinstance(result, EncodedChat):
                encoded.setdefault(number, []).append(result)
                continue
            problems.setdefault(number, result.reason)
            if result.reason in _TEMPLATE_REASONS:
                if self.raises:
                    raise NielsCacheError(result.explanation)
                hints.setdefault(result.reason, result.explanation)
        kept = [(number, each) for number, examples in encoded.items() if number not in problems for each in examples]
        return EncodedConversations(
            kept=[number for number, _ in kept],
            chats=[each._replace(ids=each.ids.astype(self.dtype)) for _, each in kept],
            hints=tuple(hints.values()),
            facts=self._facts(
                [chunk[number] for number in dict.fromkeys(number for number, _ in kept) if chunk[number].source_id not in self.exclude]
            ),
        )

    def _facts(self, kept: Sequence[Conversation]) -> Counter[str]:
        facts = Counter({EMPTY_TURNS: sum(len(empty_assistant_turns(each.messages)) for each in kept)})
        return facts + Counter({CONVERSATIONS: len(kept)} if self.turns == "each" else {})

    def _examples(self, number: int, conversation: Conversation, name: str, problems: dict[int, str], masked: frozenset[int]) -> list[Chat]:
        """Return the examples of conversation `number` as a template renders them. An empty or masked message is not a target."""
        empty = {*empty_assistant_turns(conversation.messages)}
        messages = [{**each, "content": ""} if index in empty else each for index, each in enumerate(conversation.messages)]
        ignored, weights = empty | masked, message_weights(messages)
        if self.turns == "all":
            return [Chat(messages, name, conversation.tools, ignored=ignored, weights=weights)]
        turns = [index for index, each in enumerate(messages) if each["role"] == "assistant" and index not in ignored]
        if not turns:
            problems[number] = NO_TARGET
        if self.turns == "last":
            turns = turns[-1:]
        elif len(turns) > 1 and characters(conversation, self.turns) > MAX_CHARACTERS:
            problems[number] = TOO_MANY_TURNS
            return []
        return [Chat(messages[: turn + 1], name, conversation.tools, last=True, weights=weights) for turn in turns]


def characters(conversation: Conversation, turns: Turns) -> int:
    """Return the number of characters of all examples of a conversation, with the messages of both sides of a pair."""
    lengths = [len(content) if isinstance(content := each.get("content"), str) else 0 for each in conversation.messages]
    if turns != "each":
        return sum(lengths) + sum(map(len, contents(Conversation(conversation.rejected or []))))
    return sum(upto for upto, each in zip(accumulate(lengths), conversation.messages, strict=True) if each.get("role") == "assistant")


def example_name(conversation: Conversation, number: int) -> str:
    """Return the name of an example for messages: its id, or else its number in the source."""
    return f"example {conversation.source_id or number}"


def collect_drops(chunk: list[Conversation], problems: Mapping[int, str], first: int, facts: Mapping[str, int]) -> DropReport:
    """Return the conversations with a problem as drops.

    Args:
        chunk: The conversations.
        problems: The reasons, by number in the chunk.
        first: The number of the chunk's first conversation in the source.
        facts: Numbers of messages.
    """
    drops = DropReport(facts=facts)
    for number in sorted(problems):
        drops.drop(problems[number], describe_origin(chunk[number], first + number), of_val=int(chunk[number].split == "val"))
    return drops


def drop_text(conversation: Conversation) -> Conversation:
    """Return a conversation with only its origin, because several batches wait to be written."""
    return conversation._replace(messages=[], rejected=None)


def pair_form_problem(pair: Conversation, roles: Collection[str]) -> str | None:
    """Return why the messages are not a pair, or None.

    Args:
        pair: A preference pair.
        roles: The roles that messages may have.

    Raises:
        NielsCacheError: If the pair has a split of its own.
    """
    if pair.split is not None:
        raise NielsCacheError(
            f"{example_name(pair, pair.row)}: has the split {pair.split!r}, but pairs are split by their prompts; leave it None"
        )
    if message_weights([*pair.messages, *(pair.rejected or [])]):
        return UNUSABLE_WEIGHT
    return "prompts_differ" if pair.rejected is None else example_problem(pair, roles)


def mask_shared_prompt(chosen: EncodedChat, rejected: EncodedChat, *, most: int | None) -> tuple[EncodedChat, EncodedChat] | str:
    """Return both sides without the targets of the prompt, or the reason why the pair cannot be used.

    A target belongs to the prompt if both sides have it at the same position, and all tokens up to its end are equal.

    Args:
        chosen: The encoded chosen side.
        rejected: The encoded rejected side.
        most: The maximum number of tokens of a side. None for no limit.
    """
    if most is not None and max(len(chosen.ids), len(rejected.ids)) > most:
        return "too_long"
    if np.array_equal(chosen.ids, rejected.ids):
        return "equal_sides"
    shorter = min(len(chosen.ids), len(rejected.ids))
    unequal = np.flatnonzero(chosen.ids[:shorter] != rejected.ids[:shorter])
    same_tokens = int(unequal[0]) if len(unequal) else shorter
    spans = min(len(chosen.spans), len(rejected.spans))
    is_common = (chosen.spans[:spans] == rejected.spans[:spans]).all(axis=1) & (chosen.spans[:spans, 1] <= same_tokens)
    common = spans if is_common.all() else int(np.argmin(is_common))
    if common in (len(chosen.spans), len(rejected.spans)):
        return NO_TARGET
    return chosen._replace(spans=chosen.spans[common:]), rejected._replace(spans=rejected.spans[common:])
