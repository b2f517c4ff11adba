"""Tests quote no prose: an expectation asks for the type of an error, the file or key that it names, and one keyword (tests/messages.py).

Whole sentences stand in tests/wording/, one file for each command. The rule reads syntax trees and does not follow variables: a test that
feeds in a long text and expects it back gives it a name.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FOUR_WORDS = re.compile(r"""(?:[A-Za-z'’,;:()"]+ ){3}[A-Za-z]{2}""")  # the colon after a path counts as a word
DATA = {  # tests whose tables hold documents or code, and no text of the product
    "test_cleaning_filters.py": {
        "test_a_filter_at_its_threshold",
        "test_the_gopher_family_at_its_thresholds_where_it_is_asked_for",
        "test_the_first_reason_wins",
    },
    "test_mutants.py": {"test_defects_inside_a_function"},
    "test_sources_wikipedia.py": {"test_wikitext_becomes_text", "test_templates_that_are_prose_show_their_text"},
}


def texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string in an expression. Names of parametrized cases are left out."""
    if isinstance(node, ast.keyword) and node.arg in ("id", "ids"):
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        yield node.lineno, node.value if isinstance(node.value, str) else node.value.decode("latin-1")
    for child in ast.iter_child_nodes(node):
        yield from texts(child)


def expectation(node: ast.AST) -> ast.AST | None:
    """Return the expression that a node compares results with: the test of an assert, `match=`, parametrized cases. None for others."""
    match node:
        case ast.Assert(test=part) | ast.keyword(arg="match", value=part):
            return part
        case ast.Call(func=ast.Attribute(attr="parametrize") | ast.Name(id="parametrize")):
            return node
    return None


def quotes(source: str) -> dict[tuple[str, int], str]:
    """Return what the expectations of a module quote: {(name of the function or class, line): text}."""
    found = {}
    for statement in ast.parse(source).body:
        for part in filter(None, map(expectation, ast.walk(statement))):
            found |= {(getattr(statement, "name", ""), line): text for line, text in texts(part) if FOUR_WORDS.search(text)}
    return found


def test_expectations_quote_no_prose() -> None:
    paths = sorted(TESTS.rglob("*.py"))
    assert len(paths) > 150
    found = {path.relative_to(TESTS).as_posix(): quotes(path.read_text(encoding="utf-8")) for path in paths}
    new = [
        f"tests/{name}:{line}: {text!r}"
        for name, quoted in found.items()
        for (function, line), text in quoted.items()
        if function not in DATA.get(name, ())
    ]
    assert not new, "\n".join(["four words or more; ask for a name and one keyword (tests/messages.py), and add nothing to DATA:", *new])
    old = {name: functions - {function for function, _ in found[name]} for name, functions in DATA.items()}
    assert not any(old.values()), f"these quote nothing any more; remove them from DATA: {old}"


# The finder itself

QUOTE, PART = "is not a file", "no file"
EXPECTATIONS = [
    "assert 'PROSE' in str(error)",
    "assert b'PROSE' in printed",
    "assert str(error) == f'{path}: PROSE'",
    "assert missing(error, 'a.bin', 'PROSE') == []",
    "with raises(ValueError, match=r'a\\.bin: .*PROSE'): pass",
    "@pytest.mark.parametrize('said', ['PROSE'])\ndef test(said): ...",
    "@parametrize('said', [param('PROSE', id='a')])\ndef test(said): ...",
    "def test():\n for said in told:\n  assert 'PROSE' in said",
]
NO_EXPECTATIONS = [
    "said = 'PROSE'",
    "assert said, 'PROSE'",
    "raises(ValueError, reason='PROSE')",
    "@pytest.mark.parametrize('said', [pytest.param('a', id='PROSE')])\ndef test(said): ...",
    "@pytest.mark.parametrize('said', ['a'], ids=['PROSE'])\ndef test(said): ...",
]


@pytest.mark.parametrize("source", EXPECTATIONS)
def test_four_words_of_an_expectation_are_a_quote_and_two_are_not(source: str) -> None:
    assert len(quotes(source.replace("PROSE", QUOTE))) == 1
    assert quotes(source.replace("PROSE", PART)) == {}


@pytest.mark.parametrize("source", NO_EXPECTATIONS)
def test_what_a_test_feeds_in_and_the_names_of_its_cases_are_no_quotes(source: str) -> None:
    assert quotes(source.replace("PROSE", QUOTE)) == {}


def test_a_quote_is_told_with_its_function_and_line() -> None:
    source = f"def test_it(error):\n    assert (\n        str(error)\n        == '{QUOTE}'\n    )\n"
    assert quotes(source) == {("test_it", 4): QUOTE}
