"""Rows of Arrow tables as the Python values that JSON Lines would hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from niels_cache_assets.sources.reading.encodings import MARK, MARKS, DamagedRow, damage_of, unmarked
from niels_cache_assets.sources.reading.parquet_files import is_bytes_type, is_string_type, may_hold_text
from niels_cache_runtime.format.meta import unique_keys

if TYPE_CHECKING:
    import pyarrow as pa


def rows_in(batch: pa.RecordBatch, encoding: str) -> list[dict[str, Any]]:
    """Return the rows of a batch. Strings that are not UTF-8 are decoded as `encoding`, also inside lists and structs.

    Bytes are decoded too, because old writers store strings so. Bytes stay bytes if they have a NUL, or if a
    quarter of them would be replaced, such as pictures.
    """
    if not any(map(_has_bytes, batch.schema.types)):
        with suppress(UnicodeDecodeError):
            return cast(list[dict[str, Any]], batch.to_pylist())
    columns = [
        [_marked(value, column.type, encoding) for value in column.cast(_with_bytes(column.type)).to_pylist()] for column in batch.columns
    ]
    rows = [dict(zip(batch.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]
    return [_settled(row) for row in rows]


def _has_bytes(kind: pa.DataType) -> bool:
    return is_bytes_type(kind) or any(_has_bytes(kind.field(index).type) for index in range(kind.num_fields))


def _with_bytes(kind: pa.DataType) -> pa.DataType:
    """Return the type with bytes in place of strings."""
    import pyarrow as pa
    import pyarrow.types as types

    if is_string_type(kind):
        return pa.large_binary()
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.large_list(_with_bytes(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([(field.name, _with_bytes(field.type)) for field in kind])
    return kind


def _marked(value: Any, kind: pa.DataType, encoding: str) -> Any:
    """Return the value with marked text in place of each string's bytes. `kind`: the type of the value before `_with_bytes`."""
    import pyarrow.types as types

    if value is None:
        return None
    if may_hold_text(kind):
        try:
            return value.decode()
        except UnicodeDecodeError:
            if is_bytes_type(kind) and b"\0" in value:
                return value
            marked = value.decode(encoding, MARKS)
            return value if is_bytes_type(kind) and damage_of(marked).size * 4 > len(value) else marked
    if types.is_list(kind) or types.is_large_list(kind):
        return [_marked(inner, kind.value_type, encoding) for inner in value]
    if types.is_struct(kind):
        return {field.name: _marked(value[field.name], field.type, encoding) for field in kind}
    return value


def _settled(marked: dict[str, Any]) -> dict[str, Any]:
    """Return a row that contains marks as a DamagedRow. A row without marks is returned unchanged."""
    size = 0

    def clean(value: Any) -> Any:
        nonlocal size
        if isinstance(value, list):
            return [clean(inner) for inner in value]
        if isinstance(value, dict):
            return {key: clean(inner) for key, inner in value.items()}
        if not isinstance(value, str):
            return value
        size += damage_of(value).size
        return unmarked(value)

    values = clean(marked)
    return DamagedRow(values, marked, MARK, size) if size else marked


def json_forms(columns: Mapping[str, pa.DataType]) -> dict[str, Callable[[Any], Any]]:
    """Return `json_form` of the nested columns, by name."""
    return {name: form for name, kind in columns.items() if (form := json_form(kind)) is not None}


def json_form(arrow_type: Any) -> Callable[[Any], Any] | None:
    """Return a function that turns the Python values of a nested column into those that JSON Lines would hold. None: they already are.

    In Arrow, every struct has all keys of its type, and the keys that a row lacks are null. So null keys of structs are left out. A key
    that was null in the data cannot be told from such padding. Nulls in lists and maps stay. Maps become objects, and texts of the type
    `arrow.json` (Json of `datasets`) are decoded.
    """
    import pyarrow.types as types

    if getattr(arrow_type, "extension_name", None) == "arrow.json":
        return lambda value: None if value is None else json.loads(value, object_pairs_hook=unique_keys)
    if types.is_struct(arrow_type):
        inner = {field.name: json_form(field.type) or _unchanged for field in arrow_type}
        return lambda value: None if value is None else {key: inner[key](each) for key, each in value.items() if each is not None}
    if types.is_map(arrow_type):
        of_item = json_form(arrow_type.item_type) or _unchanged
        return lambda value: None if value is None else {key: of_item(each) for key, each in value}
    if types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_fixed_size_list(arrow_type):
        of_value = json_form(arrow_type.value_type)
        return of_value and (lambda value: None if value is None else [of_value(each) for each in value])
    return None


def _unchanged(value: Any) -> Any:
    return value
