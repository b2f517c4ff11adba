"""The kinds of values in kept columns, for exports to Parquet, where a column has one type.

A corpus holds the kept values of a document as JSON, so each document may have another type. One pass over this column of the corpus finds
the kind that holds all values of a column. It takes about two microseconds a document, and reads no text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from niels_cache_assets.corpus.prepared import open_documents
from niels_cache_assets.sources.reading.keep import kept_values

Kind = Literal["any", "bool", "int64", "double", "string", "json"]
Kinds = dict[str, Kind]
"""The kind of each kept column. "json": values of several kinds, lists, objects or large numbers, as JSON text. "any": not asked."""

_EXACT = 2**53  # up to this, a double holds each whole number
_WIDE = 2**63


def kinds_of_kept(files: Iterable[Path], keep: Sequence[str]) -> Kinds:
    """Return the kind of each kept column. files: the documents of a corpus. Raises NielsCacheError for a file that cannot be read."""
    found: dict[str, set[str]] = {name: set() for name in keep}
    for path in files:
        with open_documents(path) as parquet:
            for group in range(parquet.num_row_groups):
                for text in parquet.read_row_group(group, columns=["kept"])["kept"].to_pylist():
                    for name, value in kept_values(text).items():
                        if value is not None:
                            found[name].add(_kind_of(value))
    return {name: _common(kinds) for name, kinds in found.items()}


def stored_as(kind: Kind) -> str:
    """Return the type of a column of this kind, for `arrow_schema`."""
    return "string" if kind in ("json", "any") else kind


def as_kind(value: Any, kind: Kind) -> Any:
    """Return a value in the form that a column of this kind stores."""
    return json.dumps(value, ensure_ascii=False) if kind == "json" and value is not None else value


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if abs(value) <= _EXACT else "wide" if abs(value) < _WIDE else "json"
    return "double" if isinstance(value, float) else "string" if isinstance(value, str) else "json"


def _common(kinds: set[str]) -> Kind:
    if not kinds:
        return "string"
    if kinds <= {"int64", "wide"}:
        return "int64"
    if kinds <= {"int64", "double"}:
        return "double"
    return "bool" if kinds == {"bool"} else "string" if kinds == {"string"} else "json"
