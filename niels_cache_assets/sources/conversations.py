"""What the sources of conversations share: which of them are trainable, batches of those, and messages made of an instruction."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from niels_cache_assets.config.defaults import ROLE_TO_KEY
from niels_cache_assets.documents import Conversation, Message, SourceReport
from niels_cache_assets.sources.reading.places import FilePass
from niels_cache_assets.sources.reading.rows import batched


def conversation_problem(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The reason (as counted in `dropped`) why messages are no SFT example, or None.

    Roles may come in any order; what is asked is known roles, content in every message, and something for the loss: an assistant.
    """
    if not messages:
        return "empty_conversation"
    roles = set()
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or role not in ROLE_TO_KEY:
            return "unknown_role"
        if not isinstance(content, str):
            return "null_content" if content is None else "non_string_content"
        if not content or content.isspace():
            return "empty_content"
        roles.add(role)
    return None if "assistant" in roles else "no_assistant"


def valid_batches(
    conversations: Iterable[Conversation], report: SourceReport, files: FilePass | None = None
) -> Iterator[list[Conversation]]:
    """Conversations in batches of 256; those that cannot be trained on are dropped and counted. `files`: as of `rows.batched`."""

    def valid() -> Iterator[Conversation]:
        for conversation in conversations:
            if problem := conversation_problem(conversation.messages):
                report.dropped[problem] += 1
            else:
                yield conversation

    return batched(valid(), files, length=lambda conversation: 0)


def joined(instruction: Any, extra: Any, between: str) -> Any:
    """The user's message of an instruction and further input. Of what is no string the value itself comes back, to be counted."""
    if extra is None or not isinstance(instruction, str):
        return instruction
    if not isinstance(extra, str):
        return extra
    return f"{instruction}{between}{extra}" if extra.strip() else instruction


def instruction_messages(system: Any, user: Any, assistant: Any) -> list[Message]:
    """A one-turn conversation; values are not checked here."""
    messages: list[Any] = [{"role": "system", "content": system}] if system not in (None, "") else []
    return cast(list[Message], [*messages, {"role": "user", "content": user}, {"role": "assistant", "content": assistant}])
