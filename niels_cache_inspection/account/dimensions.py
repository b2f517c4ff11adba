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
_ISO_DATE = re.compile(r"\s*(\d{4})(?:\s*$|[-/.]\d\d?(?!\d)|\d{4}(?!\d))")
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
        found = {name: list[str]() for name in DIMENSIONS}
        rules = [(found[name].append, self.columns[name], self._read[name]) for name in DIMENSIONS]
        for text in kept:
            values = json.loads(text) if text else {}
            for append, columns, read in rules:
                for column in columns:
                    value = values[column] if column in values else _nested(values, column)
                    if value not in (None, "", []):
                        append(read(value) or UNKNOWN)
                        break
                else:
                    append(UNKNOWN)
        return found

    def _domain(self, value: Any) -> str | None:
        return self._domains.of(value) if isinstance(value, str) else None


def _nested(values: Any, column: str) -> Any:
    """Return the value of a field in a column, such as `metadata.language`. None if it is missing."""
    for name in column.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _text(value: Any) -> str:
    """Return a text as it is, and the texts of a list in alphabetical order."""
    if isinstance(value, list):
        return ", ".join(sorted({_text(each) for each in value}))
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _year(value: Any) -> str | None:
    """Return the year of a date that begins with it or names only one. Numbers count as years from 1500 to 2099."""
    if isinstance(value, int | float):
        return str(int(value)) if 1500 <= value < 2100 and value == int(value) else None
    if not isinstance(value, str):
        return None
    if found := _ISO_DATE.match(value):
        return found[1]
    years = set(_ANY_YEAR.findall(value))
    return years.pop() if len(years) == 1 else None
