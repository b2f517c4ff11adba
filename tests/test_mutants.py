"""The mutation check itself (tests/mutants). The tests check its defects, the tests that it runs, and its report."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants import guarded
from tests.mutants.__main__ import draw, measure, try_all
from tests.mutants.lines import Lines
from tests.mutants.operators import Mutant, compiles, mutants_of
from tests.mutants.trees import PACKAGES, REPOSITORY

SOURCES = {
    str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8")
    for package in PACKAGES
    for path in sorted((REPOSITORY / package).rglob("*.py"))
}


DEFECTS = {  # of each line
    "x = a < b": {"x = a <= b"},
    "x = (a) not  in (b)": {"x = (a) in (b)"},
    "x = a is None": {"x = a is not None"},
    "x = 0 <= a < b": {"x = 1 <= a < b", "x = 0 < a < b", "x = 0 <= a <= b"},
    "x = a and (b or c)": {"x = a or (b or c)", "x = a and (b and c)"},
    "x = not(a)": {"x = (a)"},
    "x = (a + b) // c": {"x = (a - b) // c", "x = (a + b) * c"},
    "x = 'ä' if a else b": {"x = 'ä' if not a else b"},
    "x = True": {"x = False"},
    "x = a[b:]": {"x = a[b + 1:]"},
    "x = a[-1]": {"x = a[-2]"},
    "x = f(a, b=c, d=e)": {"x = f(a, d=e)", "x = f(a, b=c)"},
    "f(a)": {"pass"},
    "a.b = c": {"pass"},
    "a += b": {"pass"},
    "if f(a): g()": {"if not f(a): g()", "if f(a): pass"},
    "x = [a for a in b if a]": {"x = [a for a in b if not a]"},
    "def f(a, b=1): ...": {"def f(a, b=2): ..."},
}


@pytest.mark.parametrize("line", DEFECTS)
def test_defects_of_a_line(line: str) -> None:
    assert {mutant.after for mutant in mutants_of("m.py", line)} == DEFECTS[line]


def test_defects_inside_a_function() -> None:
    source = "def f(a):\n    for b in a:\n        continue\n    if a: raise B(f'{a + 1}')\n    return g(\n        b,\n        c=d,\n    )"
    assert [(mutant.line, mutant.after.strip()) for mutant in mutants_of("m.py", source)] == [
        (3, "pass"),
        (4, "if a: pass"),
        (4, "if not a: raise B(f'{a + 1}')"),
        (5, "return None and g("),
        (7, ""),
    ]


@pytest.mark.parametrize(
    "source",
    [
        '"""Words, 1 of 2."""',
        "from a import b",
        "__all__ = ['a', 'b'][:1]",
        "@d(1)\ndef f(a: b[1] = c) -> d[2]: ...",
        "assert a < b",
        "if TYPE_CHECKING:\n    f(1)",
        "if __name__ == '__main__':\n    f(1)",
        "x = f'{a + 1} of {b}'",
        "x = 'a' + b",
        "x: Literal[1] | None = a",
        "x = 1 << 20",
        "x = 4096",
        "x = open(a, encoding='utf-8')",
    ],
)
def test_no_defect_where_no_test_could_notice(source: str) -> None:
    assert mutants_of("m.py", source) == []


def test_every_mutant_of_the_packages_is_its_source_with_one_line_changed() -> None:
    number = 0
    for path, source in SOURCES.items():
        lines = source.split("\n")
        for mutant in mutants_of(path, source):
            number += 1
            assert mutant.before == lines[mutant.line - 1] != mutant.after
            assert "\n" not in mutant.after
            assert 1 <= mutant.first <= mutant.last <= len(lines)
    assert number > 10_000


def test_lines_are_drawn_by_the_seed_and_compile() -> None:
    runtime = {path: source for path, source in SOURCES.items() if path.startswith("niels_cache_runtime")}
    drawn = draw(runtime, 20, 1)
    assert len({(mutant.path, mutant.line) for mutant in drawn}) == 20
    assert len({mutant.path for mutant in drawn}) > 10
    assert all(compiles(mutant.applied(SOURCES[mutant.path])) for mutant in drawn)
    assert draw(runtime, 20, 1) == drawn
    assert draw(runtime, 10, 1) == drawn[:10]
    assert not {str(mutant) for mutant in drawn} & {str(mutant) for mutant in draw(runtime, 20, 2)}


def the_mutant(path: str, source: str, before: str) -> Mutant:
    """Of the line `before` the one whose result is another number."""
    return next(mutant for mutant in mutants_of(path, source) if mutant.before.strip() == before and "None" not in mutant.after)


def test_tests_of_what_runs_at_import_are_those_that_use_its_name() -> None:
    sources = {
        "p/one.py": "SIZE = 3\n_OWN = 4\ndef f():\n    return SIZE\ndef g():\n    return _OWN\n",
        "p/two.py": "from p.one import SIZE\nTWICE = SIZE * 2\n_OWN = 5\ndef h():\n    return TWICE\ndef i():\n    return _OWN\n",
    }
    lines = Lines(
        tests=["f", "g", "h", "i", "import", "fails"],
        failing=["fails"],
        seconds={},
        uses={},
        ran={"p/one.py": {1: [4], 4: [0, 5], 6: [1]}, "p/two.py": {5: [2], 7: [3]}},
        sources=sources,
    )
    assert lines.covering(the_mutant("p/one.py", sources["p/one.py"], "SIZE = 3")) == ["f", "h"]
    assert lines.covering(the_mutant("p/one.py", sources["p/one.py"], "_OWN = 4")) == ["g"]
    assert lines.covering(the_mutant("p/two.py", sources["p/two.py"], "_OWN = 5")) == ["i"]


def test_tests_of_compiled_loops_are_those_that_call_them() -> None:
    source = "def loop(n):\n    return n + 1\nfast = compiled(loop)\ndef f():\n    return fast(2)\ndef untested(n):\n    return n - 1\n"
    lines = Lines(tests=["f"], failing=[], seconds={}, uses={}, ran={"p/m.py": {5: [0]}}, sources={"p/m.py": source})
    assert lines.covering(the_mutant("p/m.py", source, "return n + 1")) == ["f"]
    assert lines.covering(the_mutant("p/m.py", source, "return n - 1")) == []


def test_quick_tests_and_those_named_like_the_module_come_first() -> None:
    source = "def f(n):\n    return n + 1\n"
    tests = ["tests/test_a.py::slow", "tests/test_a.py::quick", "tests/test_b.py::t", "tests/test_order.py::t"]
    lines = Lines(
        tests=tests,
        failing=[],
        seconds={tests[0]: 2.0, tests[1]: 0.1, tests[2]: 1.0, tests[3]: 3.0, "fixture built": 60.0},
        uses={tests[2]: ["fixture built"]},
        ran={"p/order.py": {2: [0, 1, 2, 3]}},
        sources={"p/order.py": source},
    )
    assert lines.covering(the_mutant("p/order.py", source, "return n + 1")) == [tests[3], tests[1], tests[0], tests[2]]
    assert lines.patience()[tests[2]] == 61.0


TINY = """\
def shared(a):
    return a + 1

def of_child(a):
    return a * 2

def loose(a):
    return a // 2

def never(a):
    return a % 2
"""
TINY_TESTS = """\
import subprocess, sys
import pytest
from niels_cache_runtime.tiny import loose, shared

@pytest.fixture(scope="module")
def built():
    return shared(1)

def test_that_fails_anyway():
    assert loose(4) == 3

def test_first_user(built):
    assert loose(4) is not None

def test_second_user(built):
    assert built == 2

CHILD = '''
import os
from niels_cache_runtime.tiny import of_child
process = os.fork()
if not process:
    os._exit(of_child(4))
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
'''

def test_a_fork_of_a_child(tmp_path):
    assert subprocess.run([sys.executable, "-c", CHILD], cwd=tmp_path, env={}).returncode == 8
"""


def test_broken_lines_are_noticed_in_shared_fixtures_and_forks_of_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line is run by a test that hardly looks, and by one that fails anyway; one by no test."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    origin, path, file = tmp_path / "origin", "niels_cache_runtime/tiny.py", "tests/test_tiny.py"
    shutil.copytree(REPOSITORY / "tests" / "mutants", origin / "tests" / "mutants")
    (origin / path).parent.mkdir()
    for package in (origin / path, origin / file):
        (package.parent / "__init__.py").write_text("", encoding="utf-8")
    (origin / path).write_text(TINY, encoding="utf-8")
    (origin / file).write_text(TINY_TESTS, encoding="utf-8")
    (origin / "pytest.ini").write_text("[pytest]\nmarkers =\n    browser\n    torture\n", encoding="utf-8")

    lines = replace(measure(tmp_path, ["tests"], jobs=1, log=tmp_path / "log"), sources={path: TINY})
    assert lines.failing == [f"{file}::test_that_fails_anyway"]
    broken = [the_mutant(path, TINY, f"return a {operation}") for operation in ("+ 1", "* 2", "// 2", "% 2")]
    verdicts = {verdict.mutant: verdict for verdict in try_all(tmp_path, broken, lines, jobs=2, limit=60, logs=tmp_path)}
    assert [verdicts[mutant].noticed for mutant in broken] == [True, True, False, False]
    assert [verdicts[mutant].words.split(",")[0] for mutant in broken] == [
        f"noticed by {file}::test_second_user",
        f"noticed by {file}::test_a_fork_of_a_child",
        "SURVIVED 1 of 1 tests",
        "SURVIVED",
    ]
    assert (tmp_path / "0" / "tree" / path).read_text(encoding="utf-8") == TINY


def test_what_a_guarded_command_leaves_is_ended(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    left = f"import os, time; os.setsid(); open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    command = f"import subprocess, sys, pathlib\nsubprocess.Popen([sys.executable, '-c', {left!r}])\n"
    command += f"while not (pathlib.Path({str(note)!r}).exists() and pathlib.Path({str(note)!r}).read_text()): pass\nsys.exit(3)"
    done = subprocess.run([sys.executable, guarded.__file__, sys.executable, "-c", command], timeout=120, check=False)
    assert done.returncode == 3
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text(encoding="utf-8")), 0)


def test_a_guarded_command_ends_with_who_started_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    slow = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    starter = f"import subprocess, sys; subprocess.run([sys.executable, {guarded.__file__!r}, sys.executable, '-c', {slow!r}])"
    with subprocess.Popen([sys.executable, "-c", starter]) as process:
        until(lambda: note.exists() and note.read_text(encoding="utf-8") != "")
        process.kill()
    pid = int(note.read_text(encoding="utf-8"))
    until(lambda: not Path(f"/proc/{pid}").exists())


def until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
