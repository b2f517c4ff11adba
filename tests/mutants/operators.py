"""The defects that a line can get. `mutants_of` lists them for a module. Each defect changes one line.

Some code is not changed: words (documentation, messages, help), types, imports, decorators, assertions (they are for the type checker) and
large numbers. Keywords without an effect on a normal machine are not changed, nor the `+` of texts and lists, whose `-` any test would
notice.
"""

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_COMPARED = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_COMPUTED = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "+"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_LARGE = 1000  # for numbers from here on (sizes of blocks, limits, and their exponents), one more makes no difference
_WITHOUT_EFFECT = {"encoding", "strict", "stacklevel", "help", "description", "metavar", "title", "prog", "epilog"}
_TEXT = (ast.JoinedStr, ast.List, ast.Tuple)
_PLACES = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A module with one line changed.

    first, last: the lines that a test must run to notice the change. They are those of a statement, of the body of a function (for a
        changed default), or of a class.
    names: what the statement defines, if it runs when the module is imported; None in functions.
    function: the module's function that it is in, if it is in one.
    """

    path: str
    line: int
    before: str
    after: str
    first: int
    last: int
    names: tuple[str, ...] | None = None
    function: str | None = None

    def applied(self, source: str) -> str:
        lines = source.split("\n")
        assert lines[self.line - 1] == self.before, f"{self.path}:{self.line} has changed"
        lines[self.line - 1] = self.after
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before.strip()}  ->  {self.after.strip() or '(nothing)'}"


@dataclass(frozen=True, kw_only=True)
class _Place:
    """The place of a statement, for `Mutant`."""

    names: tuple[str, ...] | None
    function: str | None = None
    span: tuple[int, int] | None = None  # if it is not the line of the statement itself


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of its lines."""
    found: dict[tuple[int, str], Mutant] = {}
    for (number, after), place, (first, last) in _Module(source).mutants():
        before = source.split("\n")[number - 1]
        mutant = Mutant(
            path=path, line=number, before=before, after=after, first=first, last=last, names=place.names, function=place.function
        )
        if after != before:
            found.setdefault((number, after), mutant)
    return sorted(found.values(), key=lambda mutant: (mutant.line, mutant.after))


def import_lines(source: str) -> set[int]:
    """Return the lines that run when the module is imported. These are all lines outside of functions."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {line for node in functions for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)}
    return set(range(1, source.count("\n") + 2)) - inside


def compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


_Changed = tuple[int, str]  # (number of a line, its new text)


class _Module:
    def __init__(self, source: str) -> None:
        self._tree = ast.parse(source)
        self._lines = source.encode().split(b"\n")  # columns in the tree count bytes

    def mutants(self) -> Iterator[tuple[_Changed, _Place, tuple[int, int]]]:
        """Yield each changed line, the place of its statement, and the first and the last line that a test must run to notice the
        change.
        """
        yield from self._in_block(self._tree.body, _Place(names=()))

    def _in_block(self, statements: Sequence[ast.stmt], place: _Place) -> Iterator[tuple[_Changed, _Place, tuple[int, int]]]:
        for statement in statements:
            if _is_skipped(statement):
                continue
            blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
            blocks += [part.body for part in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]]
            here, inside = _places(statement, place)
            bodies = [block[0].lineno for block in blocks if block]
            end = max(statement.lineno, min(bodies) - 1) if bodies else statement.end_lineno or 0
            for changed in self._of_statement(statement):
                yield changed, here, here.span or (statement.lineno, end)
            for block in blocks:
                yield from self._in_block(block, inside)

    def _of_statement(self, statement: ast.stmt) -> Iterator[_Changed]:
        """Yield the changes of a statement, without the changes of inner statements."""
        alone = statement.lineno == statement.end_lineno
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from self._of_all([*statement.args.defaults, *(default for default in statement.args.kw_defaults if default)])
            case ast.ClassDef() | ast.Delete():
                pass
            case ast.Raise():  # it holds only words
                if alone:
                    yield self._replaced(statement, "pass")
                elif statement.cause is None:
                    yield self._begun(statement, "raise", "None and")
            case ast.Return(value=ast.expr() as value):
                if not (isinstance(value, ast.Constant) and value.value is None):
                    yield self._replaced(statement, "return None") if alone else self._begun(statement, "return", "return None and")
                yield from self._of_all([value])
            case ast.Continue() | ast.Break():
                yield self._replaced(statement, "pass")
            case ast.Expr(value=ast.Call() as call):
                yield self._replaced(statement, "pass") if alone else self._begun(call, "", "None and ")
                yield from self._of_all([call])
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()], value=value) | ast.AugAssign(value=value):
                if alone:
                    yield self._replaced(statement, "pass")
                yield from self._of_all([value])
            case ast.If(test=test) | ast.While(test=test):
                yield from self._negated(test)
                yield from self._of_all([test])
            case ast.AnnAssign():
                yield from self._of_all([statement.value] if statement.value else [])
            case ast.With():
                yield from self._of_all(item.context_expr for item in statement.items)
            case ast.Match():
                yield from self._of_all([statement.subject, *(case.guard for case in statement.cases if case.guard)])
            case _:
                yield from self._of_all(node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr))

    def _of_all(self, expressions: Iterable[ast.expr]) -> Iterator[_Changed]:
        for expression in expressions:
            yield from self._of_expression(expression)

    def _of_expression(self, node: ast.expr) -> Iterator[_Changed]:
        inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        match node:
            case ast.JoinedStr():  # holds words, and Python 3.11 does not give the places of the values in it
                return
            case ast.Compare():
                for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                    yield from self._between(left, right, *_COMPARED[type(operator)])
            case ast.BoolOp():
                for left, right in itertools.pairwise(node.values):
                    yield from self._between(left, right, *(("and", "or") if isinstance(node.op, ast.And) else ("or", "and")))
            case ast.BinOp(left=ast.Constant(), op=ast.LShift() | ast.Pow(), right=ast.Constant()):
                return
            case ast.BinOp(left=left, op=operator, right=right):
                if type(operator) in _COMPUTED and not (_is_text(left) or _is_text(right)):
                    yield from self._between(left, right, *_COMPUTED[type(operator)])
            case ast.UnaryOp(op=ast.Not()):
                yield self._begun(node, "not", "")
            case ast.Constant(value=bool() as value):
                yield self._replaced(node, str(not value))
            case ast.Constant(value=int() as value) if value < _LARGE:
                yield self._replaced(node, str(value + 1))
            case ast.IfExp(test=test):
                yield from self._negated(test)
            case ast.Slice():
                for bound in (node.lower, node.upper):
                    if isinstance(bound, _PLACES) and bound.lineno == bound.end_lineno:
                        yield self._edited(bound.lineno, bound.end_col_offset or 0, bound.end_col_offset or 0, " + 1")
            case ast.Call():
                keywords = [keyword for keyword in node.keywords if keyword.arg not in _WITHOUT_EFFECT]
                for keyword in keywords:
                    yield from self._dropped(keyword)
                inner = [node.func, *node.args, *(keyword.value for keyword in keywords)]
            case ast.Lambda(body=body):
                inner = [body]
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                conditions = [condition for each in node.generators for condition in each.ifs]
                for condition in conditions:
                    yield from self._negated(condition)
                inner += [*(each.iter for each in node.generators), *conditions]
        yield from self._of_all(inner)

    def _edited(self, line: int, begin: int, end: int, text: str) -> _Changed:
        raw = self._lines[line - 1]
        return line, (raw[:begin] + text.encode() + raw[end:]).decode().rstrip()

    def _replaced(self, node: ast.stmt | ast.expr, text: str) -> _Changed:
        return self._edited(node.lineno, node.col_offset, node.end_col_offset or 0, text)

    def _begun(self, node: ast.stmt | ast.expr, word: str, text: str) -> _Changed:
        """Replace the first word of a node by `text`. If `text` is empty, remove the blanks after the word too."""
        raw = self._lines[node.lineno - 1]
        end = node.col_offset + len(word)
        if not text:
            end += len(raw[end:]) - len(raw[end:].lstrip())
        return self._edited(node.lineno, node.col_offset, end, text)

    def _negated(self, test: ast.expr) -> Iterator[_Changed]:
        """Negate a plain condition. Other conditions have an operator to change."""
        if isinstance(test, _PLACES):
            yield self._begun(test, "", "not ")

    def _between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[_Changed]:
        """Change the operator between two operands, if all three are on one line. There may be parentheses too."""
        if left.end_lineno == right.lineno:
            begin, end = left.end_col_offset or 0, right.col_offset
            between = self._lines[right.lineno - 1][begin:end].decode()
            yield self._edited(right.lineno, begin, end, re.sub(re.escape(old).replace(r"\ ", r"\s+"), new, between, count=1))

    def _dropped(self, keyword: ast.keyword) -> Iterator[_Changed]:
        if keyword.arg is not None and keyword.lineno == keyword.end_lineno:
            begin, end = keyword.col_offset, keyword.end_col_offset or 0
            raw = self._lines[keyword.lineno - 1]
            before, behind = raw[:begin], raw[end:]
            if (comma := re.match(rb"\s*,\s*", behind)) is not None:
                end += comma.end()
            elif (comma := re.search(rb",\s*$", before)) is not None:
                begin = comma.start()
            yield self._edited(keyword.lineno, begin, end, "")


def _is_skipped(statement: ast.stmt) -> bool:
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Expr(value=ast.Constant()):
            return True
        case ast.If(test=test):
            return bool({"TYPE_CHECKING", "__name__"} & _names(test))
        case ast.Assign(targets=targets):
            return bool({"__all__", "__slots__"} & _names(*targets))
    return False


def _places(statement: ast.stmt, place: _Place) -> tuple[_Place, _Place]:
    """Yield the places of a statement and of its inner statements."""
    at_import, top = place.names is not None, place.span is None and place.function is None
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            function = statement.name if at_import and top else place.function
            span = (statement.body[0].lineno, statement.end_lineno or 0)
            return _Place(names=None, function=function, span=span), _Place(names=None, function=function)
        case ast.ClassDef() if at_import and top:
            inside = _Place(names=(statement.name,), span=(statement.lineno, statement.end_lineno or 0))
            return inside, inside
        case ast.Assign(targets=targets) if at_import and top:
            return _Place(names=tuple(_names(*targets))), place
        case ast.AnnAssign(target=target) if at_import and top:
            return _Place(names=tuple(_names(target))), place
    return place, place


def _names(*nodes: ast.expr) -> set[str]:
    return {node.id for each in nodes for node in ast.walk(each) if isinstance(node, ast.Name)}


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, _TEXT) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))
