"""The grammar of the key `where`: columns, constants and comparisons in a tree of Python's parser. `where` judges rows by them.

Nothing is evaluated. Everything that is not in the grammar raises ValueError.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

GRAMMAR = "use columns, constants, and, or, not, ==, !=, <, <=, >, >=, in, is None"
_RANGE = 2**63  # Arrow's integers are below this

Path = tuple[str, ...]  # the name of a column, and the names of fields inside it


class Column(NamedTuple):
    path: Path

    def __str__(self) -> str:
        return ".".join(self.path)


class WrongType(Exception):
    """A value of a row has another type than the value that it is compared with."""


def pairs_of(node: ast.Compare) -> Iterator[tuple[ast.expr, ast.cmpop, ast.expr]]:
    """Yield the comparisons of `a < b < c` one by one."""
    yield from zip([node.left, *node.comparators[:-1]], node.ops, node.comparators, strict=True)


def operand_of(node: ast.expr) -> Any:
    """Return the column or constant of a node. Raises ValueError for anything else."""
    if isinstance(node, ast.Name):
        return Column((node.id,))
    if isinstance(node, ast.Attribute):
        outer = operand_of(node.value)
        if isinstance(outer, Column):
            return Column((*outer.path, node.attr))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "column":
        match node.args, node.keywords:
            case [ast.Constant(value=str(name))], []:
                return Column((name,))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = operand_of(node.operand)
        if type(value) in (int, float):
            return -value
    if isinstance(node, ast.Constant) and type(node.value) in (bool, int, float, str):
        if type(node.value) is int and node.value >= _RANGE:
            raise ValueError(f"where: {str(node.value)[:40]} is too large; write a number below 2**63")
        return node.value
    _refuse(node)


def _refuse(node: ast.expr) -> NoReturn:
    if isinstance(node, ast.Constant) and node.value is None:
        raise ValueError("where: compare with None by `is None` or `is not None`")
    raise ValueError(f"where: {ast.unparse(node)[:80]!r} is not allowed; {GRAMMAR}")


def choices_of(node: ast.expr) -> list[Any]:
    if not isinstance(node, ast.List | ast.Tuple | ast.Set) or not node.elts:
        raise ValueError('where: `in` needs a list of constants on its right, such as language in ["en", "de"]')
    found = [operand_of(each) for each in node.elts]
    if any(isinstance(each, Column) for each in found):
        raise ValueError("where: `in` takes constants only, not columns")
    return found


def kind_of(value: Any) -> type:
    kind = type(value)
    if kind is int:
        return float
    if kind not in (float, str, bool):
        raise WrongType
    return kind
