"""Functions that all SFT kinds use. They check whether a conversation can be used for training, make batches, and make messages from an
instruction.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from niels_cache_assets.config.defaults import ROLE_TO_KEY, TEMPLATE_ROLES
from niels_cache_assets.documents import Conversation, Message, SourceReport
from niels_cache_assets.sources.messages import calls_or_thinks
from niels_cache_assets.sources.pairs import pair_problem
from niels_cache_assets.sources.reading.places import FilePass
from niels_cache_assets.sources.reading.rows import batched


def conversation_problem(messages: Sequence[Mapping[str, Any]], roles: Collection[str] = ROLE_TO_KEY) -> str | None:
    """Return why these messages are not an SFT example, as a reason for `dropped`. Return None if they are an SFT example.

    Roles may come in any order. Each role must be in `roles`, and each message needs content. With the roles of chat templates, a message
    may call tools or think instead, and a tool may answer nothing. At least one message must be the assistant's,
    because the loss counts only these messages.
    """
    if not messages:
        return "empty_conversation"
    found = set()
    has_template = bool(TEMPLATE_ROLES & {*roles})
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or role not in roles:
            return "unknown_role"
        if not content and has_template and (calls_or_thinks(message) or (role == "tool" and content == "")):
            found.add(role)
            continue
        if not isinstance(content, str):
            return "null_content" if content is None else "non_string_content"
        if not content or content.isspace():
            return "empty_content"
        found.add(role)
    return None if "assistant" in found else "no_assistant"


def example_problem(example: Conversation, roles: Collection[str] = ROLE_TO_KEY) -> str | None:
    """Return why this conversation or preference pair cannot be used for training, or None if it can."""
    problem = conversation_problem(example.messages, roles)
    if problem is not None or example.rejected is None:
        return problem
    return conversation_problem(example.rejected, roles) or pair_problem(example.messages, example.rejected)


def contents(example: Conversation) -> list[str]:
    """Return the texts of all messages, of both sides of a preference pair. A message that only calls tools has no text."""
    messages = [*example.messages, *(example.rejected or [])]
    return [content for message in messages if isinstance(content := message.get("content"), str)]


def valid_batches(
    conversations: Iterable[Conversation],
    report: SourceReport,
    files: FilePass | None = None,
    *,
    roles: Collection[str] = ROLE_TO_KEY,
    refuse: Callable[[str, str, int], None] | None = None,
) -> Iterator[list[Conversation]]:
    """Yield the conversations in batches of 256. Drop and count conversations that cannot be used for training.

    `files`: the pass over the files with these conversations, if there is one. It reports where each batch begins in the files, so that a
    build can be resumed (see `rows.batched`). `roles`: the roles that messages may have. `refuse`: called with the reason, the file and the
    row of each dropped conversation, which it counts.
    """

    def valid() -> Iterator[Conversation]:
        for conversation in conversations:
            if problem := example_problem(conversation, roles):
                if refuse is None:
                    report.dropped[problem] += 1
                else:
                    refuse(problem, conversation.file, conversation.row)
            else:
                yield conversation

    return batched(valid(), files, length=lambda conversation: 0)


def joined(instruction: Any, extra: Any, between: str) -> Any:
    """Join an instruction and further input to the user's message. A value that is not a string is returned unchanged."""
    if extra is None or not isinstance(instruction, str):
        return instruction
    if not isinstance(extra, str):
        return extra
    return f"{instruction}{between}{extra}" if extra.strip() else instruction


def instruction_messages(system: Any, user: Any, assistant: Any) -> list[Message]:
    """Return a conversation of one turn. Values are not checked here."""
    messages: list[Any] = [{"role": "system", "content": system}] if system not in (None, "") else []
    return cast(list[Message], [*messages, {"role": "user", "content": user}, {"role": "assistant", "content": assistant}])
