"""The defects that a line can get. `mutants_of` lists them for a module. Each defect changes one statement, expression or keyword.

Some code is not changed: words (documentation, messages, help), types, imports, decorators, assertions (they are for the type checker) and
large numbers. Keywords without an effect on a normal machine are not changed, nor the `+` of texts and lists, whose `-` any test would
notice.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_PAIRS: tuple[tuple[Any, Any], ...] = (  # classes of operators
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot), (ast.And, ast.Or)),
    *((ast.Add, ast.Sub), (ast.LShift, ast.RShift)),
)
_OTHER = dict(_PAIRS) | {other: one for one, other in _PAIRS}
_OTHER |= {ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Add, ast.Pow: ast.Mult}
_LARGE = 1000  # for numbers from here on (sizes of blocks, limits, and their exponents), one more makes no difference
_WITHOUT_EFFECT = {"encoding", "strict", "stacklevel", "help", "description", "metavar", "title", "prog", "epilog"}
_WORDS_AND_TYPES = {"annotation", "returns", "decorator_list", "bases", "type_params", "exc", "cause"}  # fields of nodes
_PLAIN = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)  # conditions without an operator to change


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A module in which `after` replaces the lines from `line` to `end`. begins, ends: the lines of the statement."""

    path: str
    line: int
    end: int
    before: str
    after: str
    begins: int
    ends: int

    def applied(self, source: str) -> str:
        lines = source.split("\n")
        return "\n".join([*lines[: self.line - 1], self.after, *lines[self.end :]])

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after.strip() or '(nothing)'}"


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of its lines."""
    lines = source.encode().split(b"\n")  # columns in the tree count bytes
    found = []
    for node, text, (begins, ends) in _defects(ast.parse(source), (0, 0)):
        end = node.end_lineno or 0
        behind = lines[end - 1][node.end_col_offset :]
        if not text:
            behind = re.sub(rb"^,\s*", b"", behind)
        after = (lines[node.lineno - 1][: node.col_offset] + text.encode() + behind).decode().rstrip()
        before = b" ".join(line.strip() for line in lines[node.lineno - 1 : end]).decode()
        found.append(Mutant(path=path, line=node.lineno, end=end, before=before, after=after, begins=begins, ends=ends))
    return sorted(dict.fromkeys(found), key=lambda mutant: (mutant.line, mutant.after))


_Node = ast.stmt | ast.expr | ast.keyword


def _defects(node: ast.AST, place: tuple[int, int]) -> Iterator[tuple[_Node, str, tuple[int, int]]]:
    """Yield what to replace, the text for it, and the first and last line of the statement without the statements in it."""
    if isinstance(node, ast.stmt):
        inner = [each.lineno for each in ast.walk(node) if isinstance(each, ast.stmt) and each is not node]
        place = node.lineno, max(node.lineno, min(inner) - 1) if inner else node.end_lineno or 0
    for changed, text in _changes(node):
        yield changed, text, place
    for name, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST) and name not in _WORDS_AND_TYPES and not _is_left_out(part):
                yield from _defects(part, place)


def _is_left_out(node: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Delete() | ast.Expr(value=ast.Constant()) | ast.JoinedStr():
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Compare(left=ast.Name(id="__name__"))):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]):
            return True
        case ast.BinOp(left=ast.Constant(), op=ast.LShift() | ast.Pow(), right=ast.Constant()):
            return True
    return isinstance(node, ast.keyword) and node.arg in _WITHOUT_EFFECT


def _changes(node: ast.AST) -> Iterator[tuple[_Node, str]]:
    """Yield the node or a part of it, and the text that replaces it."""
    for test in [getattr(node, "test", None), getattr(node, "guard", None), *getattr(node, "ifs", [])]:
        if isinstance(test, _PLAIN):
            yield test, f"not {ast.unparse(test)}"
    match node:
        case ast.Raise() | ast.Continue() | ast.Break() | ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and not value.value):
            yield node, "return None"
        case ast.Compare(ops=operators):
            for place, operator in enumerate(operators):
                others = [*operators[:place], _OTHER[type(operator)](), *operators[place + 1 :]]
                yield node, ast.unparse(ast.Compare(node.left, others, node.comparators))
        case ast.BoolOp(op=operator, values=values):
            yield node, f"({ast.unparse(ast.BoolOp(_OTHER[type(operator)](), values))})"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OTHER and not (_is_text(left) or _is_text(right)):
            yield node, f"({ast.unparse(ast.BinOp(left, _OTHER[type(operator)](), right))})"
        case ast.UnaryOp(op=ast.Not()):
            yield node, ast.unparse(node.operand)
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() as value) if value < _LARGE:
            yield node, str(value + 1)
        case ast.Slice():
            for bound in (node.lower, node.upper):
                if isinstance(bound, _PLAIN):
                    yield bound, f"{ast.unparse(bound)} + 1"
        case ast.Call(keywords=keywords):
            for keyword in keywords:
                if keyword.arg is not None and not _is_left_out(keyword):
                    yield keyword, ""


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )
