"""The tests that run a line. They are measured once for a state of the packages, and looked up for each mutant."""

import ast
import itertools
import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.mutants.operators import Mutant

_Bits = int  # a set of lines: bit n is line n


@dataclass(kw_only=True)
class Lines:
    """The lines that the tests ran.

    files: the digest of each file of tests, when it was measured. uses: the fixtures of a wider scope that each test uses, for the tests
        that passed. seconds: the time of each test and each such fixture. ran: the lines by module and by test or fixture.
    """

    files: dict[str, str] = field(default_factory=dict)
    uses: dict[str, list[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    ran: dict[str, dict[str, _Bits]] = field(default_factory=dict)

    def update(self, new: "Lines") -> None:
        """Add the tests of other files, and replace the tests of files that were measured again."""
        self.forget(new.files)
        self.files |= new.files
        self.uses |= new.uses
        self.seconds |= new.seconds
        for path, ran in new.ran.items():
            self.ran[path] = self.ran.get(path, {}) | ran

    def forget(self, files: Iterable[str]) -> None:
        for file in self.files.keys() & set(files):
            del self.files[file]
        self.uses = {test: shared for test, shared in self.uses.items() if _file_of(test) in self.files}

    def patience(self, test: str) -> float:
        """Return the seconds that a test takes with its fixtures."""
        return sum(self.seconds.get(name, 0.0) for name in [test, *self.uses[test]])

    def covering(self, mutant: Mutant, sources: Mapping[str, str]) -> list[str]:
        """Return the tests that may notice a mutant, the quickest first.

        They are the tests that ran its statement. For a line that runs at import, and for a function that no test ran (numba may have
        compiled it), they are the tests of the definition (`_of_definition`), or else of the module.
        """
        source = sources[mutant.path]
        found = self._of_lines(mutant.path, source, range(mutant.begins, mutant.ends + 1))
        lines, names = next(each for each in _definitions(source) if mutant.line in each[0])
        if mutant.line in _import_lines(source) or not self._of_lines(mutant.path, source, lines):
            found = self._of_definition(mutant.path, sources, lines, names)
            found = found or self._of_lines(mutant.path, source, range(source.count("\n") + 1))
        return self._in_order(found, mutant.path)

    def _of_lines(self, path: str, source: str, lines: Iterable[int]) -> set[str]:
        """Return the tests that ran a line in a function. A line that runs at import belongs to the first test by chance."""
        wanted = sum(1 << line for line in set(lines) - _import_lines(source))
        names = {name for name, ran in self.ran.get(path, {}).items() if ran & wanted}
        return {test for test, shared in self.uses.items() if not names.isdisjoint([test, *shared])}

    def _of_definition(self, path: str, sources: Mapping[str, str], lines: range, names: frozenset[str]) -> set[str]:
        """Return the tests that ran a line of a definition at the top of a module, or a line with its name. If there are none, return those
        of the definitions that contain its name, and so on.
        """
        found, asked = self._of_lines(path, sources[path], lines), set[str]()
        while names - asked:
            pattern = re.compile(rf"\b({'|'.join(names - asked)})\b")
            asked |= names
            for where, source in sources.items():
                mentions = {number for number, line in enumerate(source.split("\n"), 1) if pattern.search(line)}
                found |= self._of_lines(where, source, mentions) if mentions else set()
                names = names.union(*(others for of, others in _definitions(source) if not mentions.isdisjoint(of)))
            if found:
                break
        return found

    def _in_order(self, tests: Iterable[str], path: str) -> list[str]:
        """Sort tests file by file. Quick files come first, and files whose names share words with the module's name."""
        files: dict[str, list[str]] = defaultdict(list)
        for test in sorted(tests, key=lambda test: (self.seconds.get(test, 0.0), test)):
            files[_file_of(test)].append(test)
        words = set(re.findall(r"[a-z]+", path.partition("/")[2].removesuffix(".py")))

        def cost(file: str) -> tuple[float, str]:
            names = {name for test in files[file] for name in [test, *self.uses[test]]}
            common = words & set(re.findall(r"[a-z]+", file))
            return sum(self.seconds.get(name, 0.0) for name in names) / (1 + len(common)) ** 2, file

        return list(itertools.chain(*(files[file] for file in sorted(files, key=cost))))


def _file_of(test: str) -> str:
    return test.partition("::")[0]


@cache
def _import_lines(source: str) -> set[int]:
    """Return the lines that run when the module is imported. These are all lines outside of functions."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {line for node in functions for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)}
    return set(range(source.count("\n") + 2)) - inside


@cache
def _definitions(source: str) -> list[tuple[range, frozenset[str]]]:
    """Return the lines of each statement at the top of a module, and the names that it defines."""
    found = []
    for statement in ast.parse(source).body:
        names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = {statement.name}
        found.append((range(statement.lineno, (statement.end_lineno or 0) + 1), frozenset(names)))
    return found


def read(folder: Path, root: Path, files: dict[str, str]) -> tuple[Lines, set[str]]:
    """Read what the processes of a run of pytest wrote to `folder`. root: the tree in which they ran. Return the tests that failed too."""
    lines, failed, skipped = Lines(files=files), set[str](), set[str]()
    for file in sorted((folder / "tests").iterdir()):
        said = json.loads(file.read_text(encoding="utf-8"))
        lines.uses |= said["uses"]
        lines.seconds |= {name: max(seconds, lines.seconds.get(name, 0.0)) for name, seconds in said["seconds"].items()}
        failed.update(said["failed"])
        skipped.update(said["skipped"])
    lines.uses = {test: shared for test, shared in lines.uses.items() if test not in skipped}
    for path, name, bits in _measured(folder):
        ran = lines.ran.setdefault(str(Path(path).relative_to(root)), {})
        ran[name] = ran.get(name, 0) | bits
    return lines, failed & lines.uses.keys()


def _measured(folder: Path) -> Iterator[tuple[str, str, _Bits]]:
    """Yield module, test or fixture, and lines, for all processes."""
    query = "select path, context, numbits from line_bits join file on file.id = file_id join context on context.id = context_id"
    for file in sorted((folder / "data").iterdir()):
        rows: list[tuple[Any, ...]] = []
        try:
            with sqlite3.connect(file) as database:
                rows = database.execute(query).fetchall()
        except sqlite3.DatabaseError:  # the file of a process that was killed while it wrote
            continue
        for path, context, numbits in rows:
            yield path, context, int.from_bytes(numbits, "little")
