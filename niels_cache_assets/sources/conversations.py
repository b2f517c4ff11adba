"""Functions that all SFT kinds use. They check whether a conversation can be used for training, make batches, and make messages from an
instruction.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from niels_cache_assets.config.defaults import ROLE_TO_KEY, TEMPLATE_ROLES
from niels_cache_assets.documents import Conversation, Message, SourceReport
from niels_cache_assets.sources.broken_rows import NO_ASSISTANT, UNKNOWN_ROLE
from niels_cache_assets.sources.message_weights import weight_problem
from niels_cache_assets.sources.messages import calls_or_thinks
from niels_cache_assets.sources.pairs import pair_problem
from niels_cache_assets.sources.reading.places import FilePass
from niels_cache_assets.sources.reading.rows import batched

_EMPTY = ("null_content", "empty_content")


def conversation_problem(messages: Sequence[Mapping[str, Any]], roles: Collection[str] = ROLE_TO_KEY) -> str | None:
    """Return why these messages are not an SFT example, as a reason for `dropped`. Return None if they are an SFT example.

    Roles may come in any order. Each role must be in `roles`, and each message needs content. With the roles of chat templates, a message
    may call tools or think instead, and a tool may answer nothing. At least one message must be the assistant's, because the loss counts
    only these messages. With the roles of chat templates, this message may not be empty, but other messages of the assistant and of the
    system may be. Keys that say whether to train on a message must have clear values (see `message_weights`).
    """
    return _problem_without_weights(messages, roles) or weight_problem(messages)


def _problem_without_weights(messages: Sequence[Mapping[str, Any]], roles: Collection[str]) -> str | None:
    if not messages:
        return "empty_conversation"
    if TEMPLATE_ROLES & {*roles}:
        return _problem_with_template(messages, roles)
    for message in messages:
        if not _is_known(message.get("role"), roles):
            return UNKNOWN_ROLE
        if (problem := _content_problem(message)) is not None:
            return problem
    return None if any(message["role"] == "assistant" for message in messages) else NO_ASSISTANT


def _problem_with_template(messages: Sequence[Mapping[str, Any]], roles: Collection[str]) -> str | None:
    if not all(_is_known(message.get("role"), roles) for message in messages):
        return UNKNOWN_ROLE
    silent = {*silent_turns(messages)}
    if all(number in silent for number, message in enumerate(messages) if message["role"] == "assistant"):
        return NO_ASSISTANT
    problems = (None if number in silent or _may_be_empty(each) else _content_problem(each) for number, each in enumerate(messages))
    return next(filter(None, problems), None)


def silent_turns(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the numbers of the messages of the assistant that say nothing. A chat template writes them, but they are no targets."""
    said_nothing = (number for number, message in enumerate(messages) if message["role"] == "assistant" and not calls_or_thinks(message))
    return [number for number in said_nothing if _content_problem(messages[number]) in _EMPTY]


def _is_known(role: Any, roles: Collection[str]) -> bool:
    return isinstance(role, str) and role in roles


def _may_be_empty(message: Mapping[str, Any]) -> bool:
    """Return whether a message without content may be there: it calls tools or thinks, it is the empty answer of a tool, or it is the
    system's, whose empty message switches the default of a template off.
    """
    content = message.get("content")
    return not content and (calls_or_thinks(message) or (message["role"] in ("tool", "system", "developer") and content == ""))


def _content_problem(message: Mapping[str, Any]) -> str | None:
    content = message.get("content")
    if not isinstance(content, str):
        return "null_content" if content is None else "non_string_content"
    return "empty_content" if not content or content.isspace() else None


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
    refuse: Callable[[str, str, int, Sequence[Message]], None] | None = None,
) -> Iterator[list[Conversation]]:
    """Yield the conversations in batches of 256. Drop and count conversations that cannot be used for training.

    `files`: the pass over the files with these conversations, if there is one. It reports where each batch begins in the files, so that a
    build can be resumed (see `rows.batched`). `roles`: the roles that messages may have. `refuse`: called with the reason, the file, the
    row and the messages of each dropped conversation, which it counts.
    """

    def valid() -> Iterator[Conversation]:
        for conversation in conversations:
            if problem := example_problem(conversation, roles):
                if refuse is None:
                    report.drop_row(problem, conversation.file, conversation.row)
                else:
                    refuse(problem, conversation.file, conversation.row, [*conversation.messages, *(conversation.rejected or [])])
            else:
                yield conversation

    return batched(valid(), files, length=lambda conversation: 0)


def instruction_messages(system: Any, user: Any, assistant: Any) -> list[Message]:
    """Return a conversation of one turn. Values are not checked here."""
    return with_system(system, cast(list[Message], [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]))


def with_system(system: Any, messages: list[Message]) -> list[Message]:
    """Return messages after a message of the system, or alone if it is empty or already there. Values are not checked here."""
    first = cast(Message, {"role": "system", "content": system})
    return messages if system in (None, "") or messages[:1] == [first] else [first, *messages]
