"""Rows of chats with a mistake that only a person can correct: an unknown role, an assistant that never speaks, broken JSON in a call, a
weight of a message that is not clear.

With a chat template, a build stops at the first such row, or leaves them out (`on_broken`). The module also judges labels of KTO: rows with
one answer to a prompt, and true or false for whether people liked this answer. A conversation with such a label is no example to learn as
it is: half of these answers were rejected. Nothing is read here.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from niels_cache_assets.sources.message_weights import BAD_WEIGHT, CONTRADICTION, OTHER_ROLE, WEIGHT_PROBLEMS, describe_weight_problem
from niels_cache_assets.sources.messages import BROKEN_CALL, BROKEN_TOOLS, REPEATED_KEY, SHARED_ROLES
from niels_cache_assets.sources.types import StreamContext
from niels_cache_runtime.errors import NielsCacheError

OnBroken = Literal["stop", "drop"]
LABELS = ("label", "kto_tag")  # the names in trl and in LLaMA-Factory
COMPLETION = "completion"
NO_KEY = "kto_label_without_key"
NEGATIVE = "kto_negative"
LEFT_OUT = "kto_row"
MALFORMED_LABEL = "malformed_label"

Kto = Literal["positives", "drop"]

NO_ASSISTANT = "no_assistant"
UNKNOWN_ROLE = "unknown_role"
_MISTAKES = {  # by reason for dropping
    UNKNOWN_ROLE: "a message has an unknown role",
    NO_ASSISTANT: "the assistant never speaks",
    BROKEN_CALL: "a call of a tool is not valid JSON",
    BROKEN_TOOLS: "the tools are no list of objects, or not valid JSON",
    REPEATED_KEY: "an object in the JSON text of a call or of tools has a key twice",
    NO_KEY: "the row has a label of KTO, true or false, that says whether its answer was liked",
    BAD_WEIGHT: "a message has a weight other than 0 and 1",
    CONTRADICTION: "a message is marked both to be trained on and not to be",
    OTHER_ROLE: "a message of another role than assistant is marked to be trained on",
}
_MEND = 'correct the row, or set on_broken = "drop" in the table to leave out such rows'
_SET_KTO = (
    'set kto = "positives" in the table to train only on answers with true, or kto = "drop" to leave out such rows '
    "(rename a field that means something else)"
)


class BrokenRowError(NielsCacheError):
    """A row with a mistake, at which a build stops."""


def stops_at(reason: str | None, on_broken: OnBroken | None) -> bool:
    """Return whether a build stops at rows that are dropped for this reason. It stops at a label without `kto` also with
    on_broken = "drop": it might train on rejected answers.
    """
    return reason == NO_KEY or (on_broken == "stop" and reason in _MISTAKES)


def broken_row(place: str, reason: str, messages: Iterable[Mapping[str, Any]], roles: Collection[str], advice: str = "") -> BrokenRowError:
    """Return the error for a row with a mistake. place: the file and the row. messages: those of the row, if they can be read. roles: the
    roles that are known. advice: a clause with keys of the table that fit the row, or an empty string.
    """
    what = _unknown_role(messages, roles) if reason == UNKNOWN_ROLE else None
    if reason in WEIGHT_PROBLEMS:
        what = describe_weight_problem(messages)
    return BrokenRowError(f"{place}: {what or _MISTAKES[reason]}{advice}; {_SET_KTO if reason == NO_KEY else _MEND}")


class BrokenRows:
    """The broken rows of one pass over a source. Each is counted, or it stops the build.

    on_broken: "drop" also reports the first row of each reason; None reports nothing. roles: the roles that messages may have.
    """

    def __init__(self, context: StreamContext, on_broken: OnBroken | None, roles: Collection[str]) -> None:
        self._context, self._on_broken, self._roles = context, on_broken, roles
        self._told: set[str] = set()

    def refuse(self, reason: str, file: str, row: int, messages: Iterable[Mapping[str, Any]] = ()) -> None:
        """Count a dropped row. Raises BrokenRowError for a mistake, if this pass builds a cache that may not leave it out."""
        place = f"{file}: row {row}"
        if stops_at(reason, self._on_broken) and self._context.building is not None:
            table = self._context.building.replace("/", ".")
            raise broken_row(f"[{table}] {place}", reason, messages, self._roles)
        self._context.report.drop_row(reason, file, row)
        if self._on_broken is not None and reason in _MISTAKES and reason not in self._told:
            self._told.add(reason)
            said = f"{place}: {_MISTAKES[reason]}; such rows are left out, and counted as {reason}"
            self._context.report.hints.append(said)
            self._context.log(said)


def _unknown_role(messages: Iterable[Mapping[str, Any]], roles: Collection[str]) -> str | None:
    """Return the unknown role in words, with the nearest known one, or None if the messages have none."""
    for number, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str):
            return f"message {number} has no role"
        if role not in roles:
            shared = [name for name, meant in SHARED_ROLES.items() if meant in roles and name != role]
            near = difflib.get_close_matches(role.lower(), [*roles, *shared], n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known roles: {', '.join(sorted(roles))}"
            return f"message {number} has the unknown role {role[:40]!r} ({hint})"
    return None


def has_label(row: Mapping[str, Any]) -> bool:
    """Return whether the row has true or false in a field with the name of a label. Beside a `completion`, 1 and 0 mean the same."""
    return bool(_labels(row))


def _labels(row: Mapping[str, Any]) -> list[Any]:
    values = [row.get(name) for name in LABELS]
    return [value for value in values if isinstance(value, bool) or (COMPLETION in row and isinstance(value, int) and value in (0, 1))]


def label_problem(row: Mapping[str, Any], kto: Kto | None) -> str | None:
    """Return why the label of a row keeps it out of a data set, as a reason for `dropped`. None: it has no label, or may be learned."""
    if not has_label(row):
        is_given = any(row.get(name) is not None for name in LABELS)
        return MALFORMED_LABEL if kto is not None and is_given else None
    if kto is None:
        return NO_KEY
    if kto == "drop":
        return LEFT_OUT
    return None if all(_labels(row)) else NEGATIVE


def without_labels(where: str, kto: Kto) -> NielsCacheError:
    """Return the error for a table with `kto` if no row has a label. Such a table would train on every row."""
    names = " or ".join(LABELS)
    return NielsCacheError(f"{where}: kto = {kto!r} is set, but no row has true or false in {names}; rename the field, or remove kto")
