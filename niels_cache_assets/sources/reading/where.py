"""The key `where`: a condition on the columns of rows, such as `int_score >= 3 and language_score > 0.9`.

The grammar is a small part of Python's: `and`, `or`, `not`, comparisons, `in`, `is None`, columns and constants. Python's parser reads the
text, and nothing in it is ever called. A condition is a tree of `_BoolOp`, `_Not`, `_IsNull` and `_Comparison`, and everything else is
expressed with these: `a in [1, 2]` is `a == 1 or a == 2`, and a column of booleans is compared with True. Each node evaluates a row, the
columns of a batch, and the limits of a row group.

Nulls behave as in SQL: a comparison with a null is neither true nor false, and only rows for which the condition is true are kept.

Arrow's kernels evaluate the columns of a Parquet file at a few nanoseconds per row. Rows of other files are evaluated one by one, at about
a microsecond, and so are large integers that Arrow cannot compare. All give the same result. Row groups whose statistics show that no row
can match are not read.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import product, starmap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from niels_cache_assets.sources.reading.columns import require_columns
from niels_cache_assets.sources.reading.parquet_files import as_strings
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Bools

if TYPE_CHECKING:
    import pyarrow as pa

DROPPED = "where"  # the drop reason of rows for which the condition is false, or compares a null
WRONG_TYPE = "where_wrong_type"  # the drop reason of rows whose value has another type than the constant that it is compared with

_GRAMMAR = "use columns, constants, and, or, not, ==, !=, <, <=, >, >=, in, is None"
_RANGE = 2**63  # Arrow's integers are below this
_MAX_CHARACTERS = 20_000  # characters of a condition

Compare = Callable[[Any, Any], bool]
_COMPARE: dict[type[ast.cmpop], tuple[Compare, str]] = {  # Python's function, and the name of Arrow's
    ast.Eq: (operator.eq, "equal"),
    ast.NotEq: (operator.ne, "not_equal"),
    ast.Lt: (operator.lt, "less"),
    ast.LtE: (operator.le, "less_equal"),
    ast.Gt: (operator.gt, "greater"),
    ast.GtE: (operator.ge, "greater_equal"),
}


class RowCondition:
    """A condition on the columns of a row.

    Args:
        text: The condition.

    Attributes:
        text: The condition.
        columns: The names of the columns that it needs, sorted.

    Raises:
        ValueError: If the text is not such a condition.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > _MAX_CHARACTERS:
            raise ValueError(f"where has {len(text):,} characters; write at most {_MAX_CHARACTERS:,}")
        try:
            self._node = _node_of(ast.parse(text.strip(), mode="eval").body)
            self._paths = {column.path for column in _columns_in(self._node)}
        except SyntaxError as error:
            hint = "write == to compare" if "=" in text.translate(str.maketrans("", "", "<>!")).replace("==", "") else _GRAMMAR
            raise ValueError(f"where is not a condition at character {error.offset or 1}; {hint}") from error
        except (RecursionError, MemoryError) as error:
            raise ValueError("where is nested too deeply; simplify it") from error
        if not self._paths:
            raise ValueError("where names no column; compare a column with a value, such as score >= 3")
        self.columns = sorted({path[0] for path in self._paths})

    def require_types(self, schema: Mapping[str, pa.DataType], file: str) -> None:
        """Check that the columns exist and that their types can be compared in this way.

        Args:
            schema: The type of each column.
            file: The name of the file, for the error.

        Raises:
            NielsCacheError: If a column is missing or has the wrong type.
        """
        import pyarrow as pa

        require_columns("where", self.columns, schema, file)
        names = self.columns
        self.mask(pa.RecordBatch.from_arrays([pa.array([], schema[name]) for name in names], names=names), file)

    def problem(self, values: Mapping[str, Any]) -> str | None:
        """Return the drop reason for a row, or None if the row is kept. A column that the row lacks is null."""
        try:
            return None if self._node.of_row(values) else DROPPED
        except _WrongType:
            return WRONG_TYPE

    def mask(self, batch: pa.RecordBatch, file: str) -> Bools:
        """Return whether each row of a batch is kept, (rows,) bool.

        Args:
            batch: The rows.
            file: The name of the file, for the error.

        Raises:
            NielsCacheError: If a column has the wrong type.
        """
        import pyarrow as pa
        from pyarrow import compute

        try:
            mask = compute.fill_null(self._node.of_batch(batch), False)
        except (pa.ArrowException, _WrongType) as error:
            types = ", ".join(f"{name} is {batch.schema.field(name).type}" for name in self.columns)
            raise NielsCacheError(f"{file}: where cannot compare these types ({types}); correct where = {self.text!r}") from error
        return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=bool)

    def may_match(self, group: Any) -> bool:
        """Return False if the statistics of a row group show that no row matches.

        Args:
            group: A `pyarrow.parquet.RowGroupMetaData`.
        """
        limits: dict[_Column, tuple[Any, Any]] = {}
        columns = [group.column(index) for index in range(group.num_columns)]
        named = Counter(column.path_in_schema for column in columns)  # a column may have the name of a field, such as `metadata.lang`
        for column in columns:
            path = tuple(column.path_in_schema.split("."))
            if path in self._paths and named[column.path_in_schema] == 1:
                try:
                    statistics = column.statistics
                    if statistics is not None and statistics.has_min_max:
                        limits[_Column(path)] = statistics.min, statistics.max
                except (ValueError, ArithmeticError):  # a minimum that Python cannot represent
                    continue
        return self._node.may_be_true(limits)


parse_condition = lru_cache(maxsize=64)(RowCondition)


class _WrongType(Exception):
    """A value of a row whose type differs from that of the value it is compared with."""


class _Column(NamedTuple):
    """A column of rows.

    Attributes:
        path: Its name, and the names of fields inside it.
    """

    path: tuple[str, ...]

    def of_row(self, values: Any) -> Any:
        for name in self.path:
            if values is None:
                return None
            if not isinstance(values, Mapping):
                raise _WrongType
            values = values.get(name)
        return values

    def of_batch(self, batch: pa.RecordBatch) -> Any:
        """Return the column as an Arrow array, with 64-bit numbers and large strings."""
        import pyarrow as pa
        from pyarrow import compute, types

        found = batch[self.path[0]]
        if len(self.path) > 1:
            found = compute.struct_field(found, self.path[1:])
        if types.is_dictionary(found.type):
            found = found.dictionary_decode()
        found = as_strings(found)
        if types.is_string(found.type) or types.is_string_view(found.type):
            return found.cast(pa.large_string())
        if types.is_integer(found.type):
            return found if found.type == pa.uint64() else found.cast(pa.int64())
        return found.cast(pa.float64()) if types.is_floating(found.type) else found


Operand = _Column | bool | float | str
"""A column, or a constant."""

Limits = Mapping[_Column, tuple[Any, Any]]
"""The minimum and maximum of columns. Limits do not cover NaN, so they decide only comparisons that are false for NaN."""


class _BoolOp(NamedTuple):
    """Conditions joined by `or`, or by `and`."""

    nodes: Sequence[Any]
    is_or: bool

    def of_row(self, values: Mapping[str, Any]) -> bool | None:
        """Return True, False, or None if the result depends on nulls.

        Raises:
            _WrongType: If a value has the wrong type.
        """
        found = [node.of_row(values) for node in self.nodes]
        return self.is_or if self.is_or in found else None if None in found else not self.is_or

    def of_batch(self, batch: pa.RecordBatch) -> Any:
        """Return the result for each row of a batch, as an Arrow array of booleans with nulls.

        Raises:
            _WrongType: If a column has the wrong type.
        """
        from pyarrow import compute

        return reduce(compute.or_kleene if self.is_or else compute.and_kleene, (node.of_batch(batch) for node in self.nodes))

    def may_be_true(self, limits: Limits) -> bool:
        """Return False if no values within these limits make the condition true."""
        return (any if self.is_or else all)([node.may_be_true(limits) for node in self.nodes])


class _Not(NamedTuple):
    node: Any

    def of_row(self, values: Mapping[str, Any]) -> bool | None:
        found = self.node.of_row(values)
        return None if found is None else not found

    def of_batch(self, batch: pa.RecordBatch) -> Any:
        from pyarrow import compute

        return compute.invert(self.node.of_batch(batch))

    def may_be_true(self, limits: Limits) -> bool:
        return True


class _IsNull(NamedTuple):
    column: _Column

    def of_row(self, values: Mapping[str, Any]) -> bool:
        return self.column.of_row(values) is None

    def of_batch(self, batch: pa.RecordBatch) -> Any:
        return self.column.of_batch(batch).is_null()

    def may_be_true(self, limits: Limits) -> bool:
        return True


class _Comparison(NamedTuple):
    one: Operand
    other: Operand
    compare: Compare = operator.eq
    kernel: str = "equal"

    def of_row(self, values: Mapping[str, Any]) -> bool | None:
        one, other = (side.of_row(values) if isinstance(side, _Column) else side for side in (self.one, self.other))
        if one is None or other is None:
            return None
        if _kind_of(one) is None or _kind_of(one) != _kind_of(other):
            raise _WrongType
        return self.compare(one, other)

    def of_batch(self, batch: pa.RecordBatch) -> Any:
        import pyarrow as pa
        from pyarrow import compute, types

        sides = [side.of_batch(batch) if isinstance(side, _Column) else side for side in (self.one, self.other)]
        for side in sides:
            if isinstance(side, pa.Array) and types.is_null(side.type):
                return pa.nulls(len(side), pa.bool_())
        kind, other_kind = map(_arrow_kind, sides)
        if kind != other_kind:
            raise _WrongType
        try:
            return compute.call_function(self.kernel, sides)
        except pa.ArrowInvalid:
            if kind is not float:
                raise
        # No type holds both sides, for example 2^63 and -1.
        pairs = zip(*(side.to_pylist() if isinstance(side, pa.Array) else [side] * len(batch) for side in sides), strict=True)
        return pa.array([None if None in pair else self.compare(*pair) for pair in pairs], pa.bool_())

    def may_be_true(self, limits: Limits) -> bool:
        sides: list[Any] = [limits.get(side) if isinstance(side, _Column) else (side, side) for side in (self.one, self.other)]
        one, other = sides
        if one is None or other is None or self.compare is operator.ne:
            return True
        kinds = {None if limit != limit else _kind_of(limit) for limit in (*one, *other)}
        if len(kinds) > 1 or None in kinds:
            return True
        if self.compare is operator.eq:
            return bool(one[0] <= other[1] and other[0] <= one[1])
        return any(starmap(self.compare, product(one, other)))


def _columns_in(node: Any) -> Iterator[_Column]:
    if isinstance(node, _Column):
        yield node
    elif isinstance(node, tuple | list):
        for each in node:
            yield from _columns_in(each)


def _kind_of(value: Any) -> type | None:
    """Return the type that values must share to be compared, or None for a value that cannot be compared."""
    return {int: float, float: float, str: str, bool: bool}.get(type(value))


def _arrow_kind(side: Any) -> Any:
    import pyarrow as pa
    from pyarrow import types

    if not isinstance(side, pa.Array):
        return _kind_of(side)
    if types.is_integer(side.type) or types.is_floating(side.type) or types.is_decimal(side.type):
        return float
    return str if types.is_large_string(side.type) else bool if types.is_boolean(side.type) else side.type


def _node_of(tree: ast.expr) -> Any:
    """Return the condition of a node of Python's parser.

    Raises:
        ValueError: If the node is not in the grammar.
    """
    if isinstance(tree, ast.BoolOp):
        return _BoolOp([_node_of(each) for each in tree.values], isinstance(tree.op, ast.Or))
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
        return _Not(_node_of(tree.operand))
    if isinstance(tree, ast.Compare):
        sides = [tree.left, *tree.comparators]  # `a < b < c` has two comparisons
        nodes = [_comparison_of(*each) for each in zip(sides[:-1], tree.ops, sides[1:], strict=True)]
        return nodes[0] if len(nodes) == 1 else _BoolOp(nodes, is_or=False)
    column = _operand_of(tree)
    if not isinstance(column, _Column):
        raise ValueError(f"where: {ast.unparse(tree)} is neither true nor false by a column; compare it with a column")
    return _Comparison(column, True)


def _comparison_of(left: ast.expr, kind: ast.cmpop, right: ast.expr) -> Any:
    one = _operand_of(left)
    if isinstance(kind, ast.Is | ast.IsNot):
        if not isinstance(one, _Column) or not (isinstance(right, ast.Constant) and right.value is None):
            raise ValueError(f"where: {ast.unparse(left)}: `is` needs a column on its left and None on its right")
        node: Any = _IsNull(one)
    elif isinstance(kind, ast.In | ast.NotIn):
        if not isinstance(right, ast.List | ast.Tuple | ast.Set) or not right.elts:
            raise ValueError('where: `in` needs a list of constants on its right, such as language in ["en", "de"]')
        choices = [_operand_of(each) for each in right.elts]
        if any(isinstance(each, _Column) for each in choices):
            raise ValueError("where: `in` takes constants only, not columns")
        if not isinstance(one, _Column):
            raise ValueError(f"where: {ast.unparse(left)}: `in` needs a column on its left")
        node = _BoolOp([_Comparison(one, each) for each in choices], is_or=True)
    else:
        return _Comparison(one, _operand_of(right), *_COMPARE[type(kind)])
    return _Not(node) if isinstance(kind, ast.IsNot | ast.NotIn) else node


def _column_of(tree: ast.AST) -> _Column | None:
    """Return the column that a node names, as `a`, `a.b` or `column("a")`, or None for any other node."""
    if isinstance(tree, ast.Name):
        return _Column((tree.id,))
    if isinstance(tree, ast.Attribute) and (outer := _column_of(tree.value)) is not None:
        return _Column((*outer.path, tree.attr))
    match tree:
        case ast.Call(func=ast.Name(id="column"), args=[ast.Constant(value=str(name))], keywords=[]):
            return _Column((name,))
    return None


def _operand_of(tree: ast.expr) -> Operand:
    """Return the column or constant of a node.

    Raises:
        ValueError: If the node is neither.
    """
    if (column := _column_of(tree)) is not None:
        return column
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        found = _operand_of(tree.operand)
        if type(found) in (int, float):
            return -found  # type: ignore[operator]
    if isinstance(tree, ast.Constant) and type(tree.value) in (bool, int, float, str):
        if type(tree.value) is int and tree.value >= _RANGE:
            raise ValueError(f"where: {str(tree.value)[:40]} is too large; write a number below 2**63")
        return tree.value  # type: ignore[return-value]
    if isinstance(tree, ast.Constant) and tree.value is None:
        raise ValueError("where: compare with None by `is None` or `is not None`")
    raise ValueError(f"where: {ast.unparse(tree)[:80]!r} is not allowed; {_GRAMMAR}")
