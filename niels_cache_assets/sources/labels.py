"""Labels of KTO: rows with one answer to a prompt, and true or false for whether people liked this answer.

A conversation with such a label is no example to learn as it is: half of these answers were rejected. Nothing is read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from niels_cache_runtime.errors import NielsCacheError

LABELS = ("label", "kto_tag")  # the names in trl and in LLaMA-Factory
COMPLETION = "completion"
NO_KEY = "kto_label_without_key"
NEGATIVE = "kto_negative"
LEFT_OUT = "kto_row"
MALFORMED_LABEL = "malformed_label"

Kto = Literal["positives", "drop"]


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
