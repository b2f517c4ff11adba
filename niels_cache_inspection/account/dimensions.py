"""The values by which tokens are counted: the domain, licence, language and year of a document, from the columns that `keep` has kept.

A document without such a column counts as `unknown`. Nothing is guessed from its text or its id.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from niels_cache_inspection.account.domains import Domains

UNKNOWN = "unknown"
DIMENSIONS = ("domain", "license", "language", "year")
DEFAULT_COLUMNS: dict[str, tuple[str, ...]] = {  # the first one that a document has is used
    "domain": ("url",),
    "license": ("license", "licence", "licenses"),
    "language": ("language", "lang"),
    "year": ("year", "date", "created", "timestamp"),
}
_ISO_DATE = re.compile(r"\s*(\d{4})(?:-|/|\.|T|\s|$)")
_ANY_YEAR = re.compile(r"(?<!\d)(1[5-9]\d\d|20\d\d)(?!\d)")


class Dimensions:
    """What documents count as.

    Args:
        columns: The kept columns of a dimension, in place of the default ones.
    """

    def __init__(self, columns: Mapping[str, Sequence[str]] | None = None) -> None:
        self.columns = DEFAULT_COLUMNS | {name: tuple(of) for name, of in (columns or {}).items()}
        self._domains = Domains()
        self._read = {"domain": self._domain, "license": _text, "language": _text, "year": _year}

    def values(self, kept: Iterable[str | None]) -> dict[str, list[str]]:
        """Return the values of documents in each dimension, given their kept values as JSON."""
        columns: dict[str, list[str]] = {name: [] for name in DIMENSIONS}
        for text in kept:
            values = json.loads(text) if text else {}
            for name, of in columns.items():
                value = next((found for column in self.columns[name] if (found := _value(values, column)) not in (None, "", [])), None)
                of.append(UNKNOWN if value is None else self._read[name](value) or UNKNOWN)
        return columns

    def _domain(self, value: Any) -> str | None:
        return self._domains.of(value) if isinstance(value, str) else None


def _value(values: Any, column: str) -> Any:
    """Return the value of a column, or of a field in it, such as `metadata.language`. None if it is missing."""
    if not isinstance(values, dict):
        return None
    if column in values or "." not in column:
        return values.get(column)
    first, _, rest = column.partition(".")
    return _value(values.get(first), rest)


def _text(value: Any) -> str:
    """Return a text as it is, and the texts of a list in alphabetical order."""
    if isinstance(value, list):
        return ", ".join(sorted({_text(each) for each in value}))
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _year(value: Any) -> str | None:
    """Return the year of a date that begins with it or names only one. Numbers count as years from 1500 to 2099."""
    if isinstance(value, int | float):
        return str(int(value)) if value == int(value) and 1500 <= value < 2100 else None
    if not isinstance(value, str):
        return None
    if found := _ISO_DATE.match(value):
        return found[1]
    years = set(_ANY_YEAR.findall(value))
    return years.pop() if len(years) == 1 else None
