"""Functions that all SFT kinds share.

They check whether a conversation can be used for training, make batches, and make messages from an instruction.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from niels_cache_assets.base.defaults import ROLE_TO_KEY, TEMPLATE_ROLES
from niels_cache_assets.base.documents import Conversation, Message
from niels_cache_assets.base.reasons import DROP_REASONS
from niels_cache_assets.sources.messages import (
    SHARED_ROLES,
    WEIGHT_PROBLEMS,
    AnyMessage,
    has_calls_or_reasoning,
    weight_problem,
)
from niels_cache_assets.sources.pairs import pair_problem
from niels_cache_assets.sources.reading.positions import FilePass
from niels_cache_assets.sources.reading.rows import LABELS, batched
from niels_cache_assets.sources.types import StreamContext
from niels_cache_runtime.errors import NielsCacheError, did_you_mean

_EMPTY = ("null_content", "empty_content")


def conversation_problem(messages: Sequence[AnyMessage], roles: Collection[str]) -> str | None:
    """Return the drop reason if these messages are not an SFT example, otherwise None.

    Roles may come in any order. Each role must be in `roles`, and each message needs content. At least one message must be the assistant's,
    because the loss counts only these messages. Keys that say whether to train on a message must have clear values (see `messages`).

    With the roles of chat templates, a message may have tool calls or reasoning instead of content, and a tool may return an empty answer.
    At least one assistant message must not be empty, but other assistant messages and system messages may be.
    """
    return _problem_without_weights(messages, roles) or weight_problem(messages)[0]


def _problem_without_weights(messages: Sequence[AnyMessage], roles: Collection[str]) -> str | None:
    if not messages:
        return "empty_conversation"
    if TEMPLATE_ROLES & {*roles}:
        if not all(_is_known(message.get("role"), roles) for message in messages):
            return "unknown_role"
        silent = {*empty_assistant_turns(messages)}
        if all(number in silent for number, message in enumerate(messages) if message["role"] == "assistant"):
            return "no_assistant"
        problems = (None if number in silent or _may_be_empty(each) else _content_problem(each) for number, each in enumerate(messages))
        return next(filter(None, problems), None)
    for message in messages:
        if not _is_known(message.get("role"), roles):
            return "unknown_role"
        if (problem := _content_problem(message)) is not None:
            return problem
    return None if any(message["role"] == "assistant" for message in messages) else "no_assistant"


def empty_assistant_turns(messages: Sequence[AnyMessage]) -> list[int]:
    """Return the indices of the assistant messages that are empty.

    A chat template writes them, but they are not targets.
    """
    silent = (number for number, message in enumerate(messages) if message["role"] == "assistant" and not has_calls_or_reasoning(message))
    return [number for number in silent if _content_problem(messages[number]) in _EMPTY]


def _is_known(role: Any, roles: Collection[str]) -> bool:
    return isinstance(role, str) and role in roles


def _may_be_empty(message: AnyMessage) -> bool:
    """Return whether a message without content is valid.

    It is if the message has tool calls or reasoning, if it is the empty answer of a tool, or if it is an empty system message, which
    disables the default system message of a template.
    """
    content = message.get("content")
    return not content and (has_calls_or_reasoning(message) or (message["role"] in ("tool", "system", "developer") and content == ""))


def _content_problem(message: AnyMessage) -> str | None:
    content = message.get("content")
    if not isinstance(content, str):
        return "null_content" if content is None else "non_string_content"
    return "empty_content" if not content or content.isspace() else None


def example_problem(example: Conversation, roles: Collection[str]) -> str | None:
    """Return the drop reason if this conversation or preference pair cannot be used for training, otherwise None."""
    problem = conversation_problem(example.messages, roles)
    if problem is not None or example.rejected is None:
        return problem
    return conversation_problem(example.rejected, roles) or pair_problem(example.messages, example.rejected)


def contents(example: Conversation) -> list[str]:
    """Return the texts of all messages, of both sides of a preference pair. A message that only calls tools has no text."""
    messages = [*example.messages, *(example.rejected or [])]
    return [content for message in messages if isinstance(content := message.get("content"), str)]


def instruction_messages(system: Any, user: Any, assistant: Any) -> list[Message]:
    """Return a conversation of one turn. Values are not checked here."""
    return with_system(system, [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}])


def with_system(system: Any, messages: list[Message]) -> list[Message]:
    """Return the messages after a system message, or unchanged if it is empty or already there. Values are not checked here."""
    first: Message = {"role": "system", "content": system}
    return messages if system in (None, "") or messages[:1] == [first] else [first, *messages]


OnBroken = Literal["stop", "drop"]
Kto = Literal["positives", "drop"]

_MISTAKES = {  # reasons for which a build stops, unless on_broken drops such rows
    "unknown_role",
    "no_assistant",
    "broken_json_in_call",
    "broken_tools",
    "repeated_key_in_json",
    "kto_label_without_key",
    *WEIGHT_PROBLEMS,
}
_FIX_ADVICE = 'correct the row, or set on_broken = "drop" in the table to leave out such rows'
_KTO_ADVICE = (
    'set kto = "positives" in the table to train only on answers with true, or kto = "drop" to leave out such rows '
    "(rename a field that means something else)"
)


class BrokenRowError(NielsCacheError):
    """A row with a mistake, at which a build stops."""


def stops_build(reason: str | None, on_broken: OnBroken | None) -> bool:
    """Return whether a build stops at rows that are dropped for this reason.

    It stops at a label without `kto` even with on_broken = "drop", because it might train on rejected answers.
    """
    return reason == "kto_label_without_key" or (on_broken == "stop" and reason in _MISTAKES)


def broken_row(where: str, reason: str, messages: Iterable[AnyMessage], roles: Collection[str], advice: str = "") -> BrokenRowError:
    """Return the error for a row with a mistake.

    Args:
        where: The file and the row.
        reason: The drop reason.
        messages: The messages of the row, if they can be read.
        roles: The known roles.
        advice: A clause with keys of the table that fit the row, or an empty string.
    """
    what = _unknown_role(messages, roles) if reason == "unknown_role" else None
    if reason in WEIGHT_PROBLEMS:
        _, what = weight_problem(messages)
    return BrokenRowError(
        f"{where}: {what or DROP_REASONS[reason].meaning}{advice}; {_KTO_ADVICE if reason == 'kto_label_without_key' else _FIX_ADVICE}"
    )


@dataclass
class RowErrorPolicy:
    """The broken rows of one pass over a source. Each one is counted, or stops the build.

    Attributes:
        context: The pass.
        on_broken: "drop" also reports the first row of each reason. None reports nothing.
        roles: The known roles.
    """

    context: StreamContext
    on_broken: OnBroken | None = None
    roles: Collection[str] = frozenset(ROLE_TO_KEY)
    _reported: set[str] = field(default_factory=set, init=False)

    def refuse(self, reason: str, file: str, row: int, messages: Iterable[AnyMessage] = ()) -> None:
        """Count a dropped row.

        Raises:
            BrokenRowError: If the row has a mistake, and this pass builds a cache that may not leave it out.
        """
        where = f"{file}: row {row}"
        if stops_build(reason, self.on_broken) and self.context.building is not None:
            table = self.context.building.replace("/", ".")
            raise broken_row(f"[{table}] {where}", reason, messages, self.roles)
        self.context.report.drop_row(reason, file, row)
        if self.on_broken is not None and reason in _MISTAKES and reason not in self._reported:
            self._reported.add(reason)
            hint = f"{where}: {DROP_REASONS[reason].meaning}; such rows are left out, and counted as {reason}"
            self.context.report.hints.append(hint)
            self.context.log(hint)


def valid_batches(
    conversations: Iterable[Conversation], broken: RowErrorPolicy, files: FilePass | None = None
) -> Iterator[list[Conversation]]:
    """Yield the conversations in batches of 256, without those that cannot be used for training.

    Args:
        conversations: The conversations of a source.
        broken: Counts the other conversations.
        files: The pass over the files with these conversations, if there is one. It reports where each batch begins in the files, so that a
            build can be resumed (see `rows.batched`).
    """

    def valid() -> Iterator[Conversation]:
        for conversation in conversations:
            if problem := example_problem(conversation, broken.roles):
                broken.refuse(problem, conversation.file, conversation.row, [*conversation.messages, *(conversation.rejected or [])])
            else:
                yield conversation

    return batched(valid(), files, length=lambda conversation: 0)


def _unknown_role(messages: Iterable[AnyMessage], roles: Collection[str]) -> str | None:
    """Return a description of the unknown role with the nearest known one, or None if the messages have no unknown role."""
    for number, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str):
            return f"message {number} has no role"
        if role not in roles:
            shared = [name for name, meant in SHARED_ROLES.items() if meant in roles and name != role]
            hint = did_you_mean(role.lower(), [*roles, *shared], f"known roles: {', '.join(sorted(roles))}")
            return f"message {number} has the unknown role {role[:40]!r} ({hint})"
    return None


def has_label(row: Mapping[str, Any]) -> bool:
    """Return whether the row has true or false in a label field. In a row with `completion`, 1 and 0 mean the same."""
    return bool(_labels(row))


def _labels(row: Mapping[str, Any]) -> list[Any]:
    values = [row.get(name) for name in LABELS]
    return [value for value in values if isinstance(value, bool) or ("completion" in row and isinstance(value, int) and value in (0, 1))]


def label_problem(row: Mapping[str, Any], kto: Kto | None) -> str | None:
    """Return the drop reason if the label of a row excludes it from a data set, otherwise None."""
    if not has_label(row):
        is_given = any(row.get(name) is not None for name in LABELS)
        return "malformed_label" if kto is not None and is_given else None
    if kto is None:
        return "kto_label_without_key"
    if kto == "drop":
        return "kto_row"
    return None if all(_labels(row)) else "kto_negative"


def without_labels(where: str, kto: Kto) -> NielsCacheError:
    """Return the error for a table with `kto` if no row has a label. Such a table would train on every row."""
    names = " or ".join(LABELS)
    return NielsCacheError(f"{where}: kto = {kto!r} is set, but no row has true or false in {names}; rename the field, or remove kto")
