"""The key `where`: a condition on the columns of rows, such as `int_score >= 3 and language_score > 0.9`.

The grammar is a small part of Python's: `and`, `or`, `not`, comparisons, `in`, `is None`, columns and constants. Python's parser reads the
text, and nothing in it is ever called. Nulls behave as in SQL: a comparison with a null is neither true nor false, and only rows for which
the condition is true stay. Arrow's kernels judge the columns of a Parquet file at a few nanoseconds a row. Rows of other files are judged
one by one, at about a microsecond, and so are large integers that Arrow cannot compare. All give the same result. Row groups whose
statistics show that no row can stay are not read.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from niels_cache_assets.sources.reading.columns import require_columns
from niels_cache_assets.sources.reading.parquet_files import as_strings
from niels_cache_assets.sources.reading.where_grammar import GRAMMAR, Column, Path, WrongType, choices_of, kind_of, operand_of, pairs_of
from niels_cache_assets.sources.types import Source
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    import pyarrow as pa

DROPPED = "where"  # the reason of rows for which the condition is false, or compares a null
WRONG_TYPE = "where_wrong_type"  # the reason of rows whose value has another type than the constant that it is compared with

_LONGEST = 20_000  # characters of a condition
_ARROW = {ast.Eq: "equal", ast.NotEq: "not_equal", ast.Lt: "less", ast.LtE: "less_equal", ast.Gt: "greater", ast.GtE: "greater_equal"}
_PYTHON = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

RowJudge = Callable[[Mapping[str, Any]], bool | None]


class ChoosesRows(Source):
    """The key of the kinds that read rows with columns."""

    where: str | None = Field(
        None,
        description='Keep only rows for which this is true: a condition on columns, such as "int_score >= 3 and language_score > 0.9"',
    )

    @field_validator("where")
    @classmethod
    def _is_a_condition(cls, value: str | None) -> str | None:
        if value is not None:
            parsed(value)
        return value

    @property
    def condition(self) -> Where | None:
        """The parsed condition, or None if all rows stay."""
        return None if self.where is None else parsed(self.where)


@lru_cache(maxsize=64)
def parsed(text: str) -> Where:
    """Return the condition that a text describes. Raises ValueError for a text that is not such a condition."""
    return Where(text)


class Where:
    """A condition on the columns of a row. `columns`: the names of the columns that it needs, sorted."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._paths: set[Path] = set()
        if len(text) > _LONGEST:
            raise ValueError(f"where has {len(text):,} characters; write at most {_LONGEST:,}")
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
            self._judge = self._row_judge(self._tree)
        except SyntaxError as error:
            hint = "write == to compare" if _has_single_equals(text) else GRAMMAR
            raise ValueError(f"where is not a condition at character {error.offset or 1}; {hint}") from error
        except (RecursionError, MemoryError) as error:
            raise ValueError("where is nested too deeply; simplify it") from error
        if not self._paths:
            raise ValueError("where names no column; compare a column with a value, such as score >= 3")
        self.columns = sorted({path[0] for path in self._paths})

    def require(self, columns: Iterable[str], place: str) -> None:
        """Raise NielsCacheError if a column is missing. The message names the place and the nearest column."""
        require_columns("where", self.columns, columns, place)

    def require_types(self, schema: Mapping[str, pa.DataType], place: str) -> None:
        """Raise NielsCacheError if a column is missing, or has a type that cannot be compared in this way."""
        import pyarrow as pa

        self.require(schema, place)
        names = self.columns
        self.mask(pa.RecordBatch.from_arrays([pa.array([], schema[name]) for name in names], names=names), place)

    def problem(self, values: Mapping[str, Any]) -> str | None:
        """Return the reason to drop a row, or None if the row stays. A column that the row lacks is null."""
        try:
            return None if self._judge(values) else DROPPED
        except WrongType:
            return WRONG_TYPE

    def mask(self, batch: pa.RecordBatch, place: str) -> NDArray[np.bool_]:
        """Return whether each row of a batch stays, (rows,) bool. Raises NielsCacheError for a column of the wrong type."""
        import pyarrow as pa
        import pyarrow.compute as compute

        try:
            stays = compute.fill_null(self._arrow(self._tree, batch), False)
        except (pa.ArrowException, WrongType) as error:
            types = ", ".join(f"{name} is {batch.schema.field(name).type}" for name in self.columns)
            raise NielsCacheError(f"{place}: where cannot compare these types ({types}); correct where = {self.text!r}") from error
        return np.asarray(stays.to_numpy(zero_copy_only=False), dtype=bool)

    def may_match(self, group: Any) -> bool:
        """Return False if the statistics of a row group show that no row stays. group: a pyarrow.parquet.RowGroupMetaData."""
        limits: dict[Path, tuple[Any, Any]] = {}
        columns = [group.column(index) for index in range(group.num_columns)]
        named = Counter(column.path_in_schema for column in columns)  # a column may have the name of a field, such as `metadata.lang`
        for column in columns:
            path = tuple(column.path_in_schema.split("."))
            if path in self._paths and named[column.path_in_schema] == 1:
                try:
                    statistics = column.statistics
                    if statistics is not None and statistics.has_min_max:
                        limits[path] = statistics.min, statistics.max
                except (ValueError, ArithmeticError):  # a minimum that Python cannot hold
                    continue
        return not limits or _may_be_true(self._tree, limits)

    def _row_judge(self, node: ast.expr) -> RowJudge:
        """Return the function that judges a row: True, False, or None if nulls leave it open. Raises ValueError for other grammar."""
        if isinstance(node, ast.BoolOp):
            judges = [self._row_judge(each) for each in node.values]
            decides = isinstance(node.op, ast.Or)

            def several(values: Mapping[str, Any]) -> bool | None:
                found = [judge(values) for judge in judges]
                return decides if decides in found else None if None in found else not decides

            return several
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._row_judge(node.operand)

            def negated(values: Mapping[str, Any]) -> bool | None:
                found = inner(values)
                return None if found is None else not found

            return negated
        if isinstance(node, ast.Compare):
            pairs = [self._pair_judge(*pair) for pair in pairs_of(node)]

            def chained(values: Mapping[str, Any]) -> bool | None:
                found = [judge(values) for judge in pairs]
                return False if False in found else None if None in found else True

            return pairs[0] if len(pairs) == 1 else chained
        column = operand_of(node)
        if not isinstance(column, Column):
            raise ValueError(f"where: {ast.unparse(node)} is neither true nor false by a column; compare it with a column")
        self._paths.add(column.path)

        def is_true(values: Mapping[str, Any]) -> bool | None:
            value = _value(values, column)
            if value is not None and type(value) is not bool:
                raise WrongType
            return value

        return is_true

    def _pair_judge(self, left: ast.expr, kind: ast.cmpop, right: ast.expr) -> RowJudge:
        first = operand_of(left)
        if isinstance(kind, ast.Is | ast.IsNot):
            if not isinstance(first, Column) or not (isinstance(right, ast.Constant) and right.value is None):
                raise ValueError(f"where: {ast.unparse(left)}: `is` needs a column on its left and None on its right")
            self._paths.add(first.path)
            is_null = isinstance(kind, ast.Is)
            return lambda values: (_value(values, first) is None) == is_null
        if isinstance(kind, ast.In | ast.NotIn):
            choices = choices_of(right)
            if not isinstance(first, Column):
                raise ValueError(f"where: {ast.unparse(left)}: `in` needs a column on its left")
            self._paths.add(first.path)
            is_in = isinstance(kind, ast.In)

            def among(values: Mapping[str, Any]) -> bool | None:
                value = _value(values, first)
                return None if value is None else any([_compared(operator.eq, value, choice) for choice in choices]) == is_in

            return among
        second, compare = operand_of(right), _PYTHON[type(kind)]
        self._paths.update(each.path for each in (first, second) if isinstance(each, Column))

        def judged(values: Mapping[str, Any]) -> bool | None:
            one, other = _value(values, first), _value(values, second)
            return None if one is None or other is None else _compared(compare, one, other)

        return judged

    def _arrow(self, node: ast.expr, batch: pa.RecordBatch) -> Any:
        """Return the result for each row of a batch, as an Arrow array of booleans with nulls."""
        import pyarrow.compute as compute
        import pyarrow.types as types

        if isinstance(node, ast.BoolOp):
            joined = compute.or_kleene if isinstance(node.op, ast.Or) else compute.and_kleene
            return reduce(joined, (self._arrow(each, batch) for each in node.values))
        if isinstance(node, ast.UnaryOp):
            return compute.invert(self._arrow(node.operand, batch))
        if isinstance(node, ast.Compare):
            return reduce(compute.and_kleene, (_arrow_pair(*pair, batch) for pair in pairs_of(node)))
        found = _arrow_value(operand_of(node), batch)
        if not types.is_boolean(found.type):
            raise WrongType
        return found


def _value(values: Mapping[str, Any], operand: Any) -> Any:
    if not isinstance(operand, Column):
        return operand
    found: Any = values
    for name in operand.path:
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise WrongType
        found = found.get(name)
    return found


def _compared(compare: Callable[[Any, Any], bool], one: Any, other: Any) -> bool:
    if kind_of(one) != kind_of(other):
        raise WrongType
    return compare(one, other)


def _arrow_pair(left: ast.expr, kind: ast.cmpop, right: ast.expr, batch: pa.RecordBatch) -> Any:
    import pyarrow.compute as compute

    one = _arrow_value(operand_of(left), batch)
    if isinstance(kind, ast.Is | ast.IsNot):
        return compute.is_null(one) if isinstance(kind, ast.Is) else compute.is_valid(one)
    if isinstance(kind, ast.In | ast.NotIn):
        found = reduce(compute.or_kleene, (_arrow_compared(ast.Eq, one, choice) for choice in choices_of(right)))
        return found if isinstance(kind, ast.In) else compute.invert(found)
    return _arrow_compared(type(kind), one, _arrow_value(operand_of(right), batch))


def _arrow_value(operand: Any, batch: pa.RecordBatch) -> Any:
    """Return a column as an Arrow array, or the constant. Numbers become 64 bits wide, and strings large strings."""
    import pyarrow as pa
    import pyarrow.compute as compute
    import pyarrow.types as types

    if not isinstance(operand, Column):
        return operand
    found = batch[operand.path[0]]
    for name in operand.path[1:]:
        if not types.is_struct(found.type) or found.type.get_field_index(name) < 0:
            raise WrongType
        found = compute.struct_field(found, name)
    if types.is_dictionary(found.type):
        found = found.dictionary_decode()
    found = as_strings(found)
    if types.is_string(found.type) or types.is_string_view(found.type):
        return found.cast(pa.large_string())
    if types.is_unsigned_integer(found.type) or types.is_signed_integer(found.type):
        return found if found.type == pa.uint64() else found.cast(pa.int64())
    return found.cast(pa.float64()) if types.is_floating(found.type) else found


def _arrow_compared(comparison: type[ast.cmpop], one: Any, other: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as compute
    import pyarrow.types as types

    def kind(value: Any) -> Any:
        if not isinstance(value, pa.Array):
            return kind_of(value)
        if types.is_integer(value.type) or types.is_floating(value.type) or types.is_decimal(value.type):
            return float
        return str if types.is_large_string(value.type) else bool if types.is_boolean(value.type) else value.type

    for value in (one, other):
        if isinstance(value, pa.Array) and types.is_null(value.type):
            return pa.nulls(len(value), pa.bool_())
    if kind(one) != kind(other):
        raise WrongType
    try:
        return compute.call_function(_ARROW[comparison], [one, other])
    except pa.ArrowInvalid:
        if kind(one) is not float:
            raise
        return _compared_in_python(_PYTHON[comparison], one, other)  # no type holds both sides, for example 2^63 and -1


def _compared_in_python(compare: Callable[[Any, Any], bool], one: Any, other: Any) -> pa.Array:
    import pyarrow as pa

    rows = len(one if isinstance(one, pa.Array) else other)
    pairs = zip(*(side.to_pylist() if isinstance(side, pa.Array) else [side] * rows for side in (one, other)), strict=True)
    return pa.array([None if None in pair else compare(*pair) for pair in pairs], pa.bool_())


def _may_be_true(node: ast.expr, limits: Mapping[Path, tuple[Any, Any]]) -> bool:
    """Return False if no values within these limits make the condition true. limits: the least and the greatest value of columns.

    A NaN is in no limits, so only comparisons that are false for NaN are judged.
    """
    if isinstance(node, ast.BoolOp):
        quantified = any if isinstance(node.op, ast.Or) else all
        return quantified([_may_be_true(each, limits) for each in node.values])
    if not isinstance(node, ast.Compare):
        return True
    return all([_pair_may_be_true(*pair, limits) for pair in pairs_of(node)])


_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
    ast.Eq: ast.Eq,
}


def _pair_may_be_true(left: ast.expr, kind: ast.cmpop, right: ast.expr, limits: Mapping[Path, tuple[Any, Any]]) -> bool:
    comparison = type(kind)
    if comparison is ast.In:
        column, values = operand_of(left), choices_of(right)
    elif comparison in _MIRRORED:
        column, other = operand_of(left), operand_of(right)
        if not isinstance(column, Column):
            column, other, comparison = other, column, _MIRRORED[comparison]
        values = [other]
    else:
        return True
    if not isinstance(column, Column) or column.path not in limits or any(isinstance(value, Column) for value in values):
        return True
    least, greatest = limits[column.path]
    if (
        {_safe_kind(each) for each in (least, greatest)} != {_safe_kind(value) for value in values}
        or least != least
        or greatest != greatest
    ):
        return True
    if comparison in (ast.Lt, ast.LtE):
        return bool(_PYTHON[comparison](least, values[0]))
    if comparison in (ast.Gt, ast.GtE):
        return bool(_PYTHON[comparison](greatest, values[0]))
    return any(least <= value <= greatest for value in values)


def _safe_kind(value: Any) -> Any:
    try:
        return kind_of(value)
    except WrongType:
        return object()


def _has_single_equals(text: str) -> bool:
    return "=" in text.translate(str.maketrans("", "", "<>!")).replace("==", "")
