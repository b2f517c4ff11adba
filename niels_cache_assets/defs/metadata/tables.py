"""Tables as the UI shows them, kept in Dagster's database and so cut."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

MAX_TABLE_ROWS = 100


def table(rows: Sequence[Mapping[str, Any]], **columns: str) -> dg.TableMetadataValue:
    """The first rows of a table with these columns and types; files and `niels-cache` have it whole."""
    schema = dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()])
    return dg.MetadataValue.table([dg.TableRecord(dict(row)) for row in rows[:MAX_TABLE_ROWS]], schema=schema)


def without_empty(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The entries but for those that are None, and tables without a row, of which the UI shows the head."""
    has_no_row = {key for key, value in metadata.items() if isinstance(value, dg.TableMetadataValue) and not value.records}
    return {key: value for key, value in metadata.items() if value is not None and key not in has_no_row}
