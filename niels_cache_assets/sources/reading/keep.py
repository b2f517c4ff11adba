"""The key `keep`: columns of rows that stay with their documents, such as `["url", "score"]`.

The kept values of a row are one JSON object, in the order of the key. Any type of value can therefore be kept, and a column that a row
lacks is null. The text of this object passes through a build like a title. It costs a microsecond or two per row, and is in memory for each
document of the open row group of lineage, so its length is limited.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field, field_validator

from niels_cache_assets.sources.reading.columns import require_columns
from niels_cache_assets.sources.reading.files import valid_unicode
from niels_cache_assets.sources.reading.where import RowCondition, parse_condition
from niels_cache_assets.sources.step_use import KeptColumns
from niels_cache_assets.sources.types import Siblings, Source
from niels_cache_runtime.errors import NielsCacheError

MAX_CHARACTERS = 8192  # maximum length of the kept values of a row


class KeepsColumns(Source):
    """The keys `keep` and `where`."""

    keep: KeptColumns = Field((), strict=False)
    """Columns to keep in the corpus, the lineage, `trace` and `export text`, such as ["url", "score"]"""
    where: str | None = Field(
        None, description='A condition on columns that each row must meet, such as "int_score >= 3 and language_score > 0.9"'
    )

    @field_validator("where")
    @classmethod
    def _is_a_condition(cls, value: str | None) -> str | None:
        if value is not None:
            parse_condition(value)
        return value

    @property
    def condition(self) -> RowCondition | None:
        """The parsed condition, or None if all rows are kept."""
        return None if self.where is None else parse_condition(self.where)

    def kept_of(self, values: Mapping[str, Any], file: str, row: int) -> str | None:
        """Return the kept values of a row as JSON, or None without `keep`.

        Numbers that JSON cannot represent (NaN, infinities) become null.

        Args:
            values: The row.
            file: The name of the file, for the error.
            row: The number of the row, for the error.

        Raises:
            NielsCacheError: If the values are too long, nested too deeply, or binary data.
        """
        if not self.keep:
            return None
        return encode_kept({name: values.get(name) for name in self.keep}, file, row)


class HasColumns(KeepsColumns):
    """The keys that name columns of rows."""

    text_field: str | None = None
    """Field with the text; by default `text` if it exists, otherwise the only field that could contain text"""
    id_field: str | None = None
    """Field with the source id; by default `id` if it exists, otherwise file#row"""

    def require_columns(self, columns: Iterable[str], where: str) -> None:
        """Check that the columns of `where`, `keep` and `id_field` exist.

        Args:
            columns: The columns of a file.
            where: The name of the file, for the error.

        Raises:
            NielsCacheError: If a column is missing.
        """
        names = {"where": self.condition.columns if self.condition else (), "keep": self.keep, "id_field": filter(None, [self.id_field])}
        for key, key_columns in names.items():
            require_columns(key, key_columns, columns, where)


def encode_kept(kept: Mapping[str, Any], file: str, row: int) -> str:
    """Return the kept values of a row as JSON. See `KeepsColumns.kept_of`."""
    try:
        text = _encode_finite(kept)
    except RecursionError as error:
        raise NielsCacheError(f"{file}: row {row}: keep: the values are nested too deeply; leave the column out") from error
    except _BinaryError as error:
        named = next(name for name, value in kept.items() if _holds_bytes(value))
        raise NielsCacheError(f"{file}: row {row}: keep: the column {named!r} holds binary data; leave it out") from error
    if len(text) > MAX_CHARACTERS:
        longest = max(kept, key=lambda name: len(_encode_finite(kept[name])))
        raise NielsCacheError(
            f"{file}: row {row}: keep: the values have {len(text):,} characters, most of them in {longest!r}; "
            f"at most {MAX_CHARACTERS:,} can stay with a document, so leave this column out"
        )
    return valid_unicode(text)


def kept_columns(source: Source, tables: Siblings) -> tuple[str, ...]:
    """Return the columns that stay with the documents of a data set, also those of its steps.

    A mixture has those of all members, and those of their cuts.

    Args:
        source: The table of the data set.
        tables: The pretrain tables of the configuration, by name.
    """
    members = [tables[name] for name in getattr(source, "members", ()) if name in tables]
    with_steps = [each for table in (source, *members) for each in (table, *getattr(table, "steps", ()))]
    cuts = [name for table in members for name in getattr(table, "cut_columns", ())]
    return tuple(dict.fromkeys([*(name for each in with_steps for name in getattr(each, "keep", ())), *cuts]))


def kept_values(text: str | None) -> dict[str, Any]:
    """Return the values by column that `kept_of` wrote as JSON, or an empty dict for None."""
    return {} if text is None else json.loads(text)


class _BinaryError(Exception):
    """A value that holds bytes."""


def _plain(value: Any) -> Any:
    """Return a JSON value for a value that JSON cannot represent: ISO 8601 for times, and text for all others."""
    if isinstance(value, bytes | bytearray | memoryview):
        raise _BinaryError
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _holds_bytes(value: Any) -> bool:
    try:
        _encode_finite(value)
    except _BinaryError:
        return True
    return False


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode


def _encode_finite(value: Any) -> str:
    try:
        return _encode(value)
    except ValueError:  # a number that is not finite
        return _encode(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, Sequence) and not isinstance(value, str | bytes) else value
