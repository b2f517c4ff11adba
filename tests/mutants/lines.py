"""The tests that run a line. They are measured once for a state of the working tree, and looked up for each mutant."""

import ast
import itertools
import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from coverage.numbits import numbits_to_nums

from tests.mutants.operators import Mutant, import_lines


@dataclass(frozen=True, kw_only=True)
class Lines:
    """The lines that the tests ran.

    tests: the ids of all tests that ran. failing: the tests that failed, and so can notice nothing. uses: the fixtures of a wider scope
        that each test uses. seconds: the time of each test and each such fixture. ran: by module and line, the places in `tests` of the
        tests that ran this line. sources: the source code of the modules.
    """

    tests: list[str]
    failing: list[str]
    seconds: dict[str, float]
    uses: dict[str, list[str]]
    ran: dict[str, dict[int, list[int]]]
    sources: Mapping[str, str] = field(default_factory=dict)

    def covering(self, mutant: Mutant) -> list[str]:
        """Return the tests that may notice a mutant, the quickest first.

        For a line of a function, they are the tests that ran the line. For a line that runs at import, and for a function that numba
        compiles, they are the tests that ran a line with its name, or a method of its class.
        """
        found = self._of_lines(mutant.path, range(mutant.first, mutant.last + 1))
        names = mutant.names
        if names is None and not found and mutant.function is not None and self._is_unseen(mutant):
            names = (mutant.function,)
        if names is not None:
            found |= self._of_names(mutant.path, names)
            if not found and mutant.names is not None:
                found = self._of_lines(mutant.path, range(1, 1 + self.sources[mutant.path].count("\n")))
        return self._in_order(found, mutant.path)

    def _of_lines(self, path: str, lines: Iterable[int]) -> set[int]:
        """Return the tests that ran a line in a function. A line that runs at import belongs to the first test by chance."""
        ran = self.ran.get(path, {})
        return {test for line in lines if line not in self._import_lines[path] for test in ran.get(line, [])}

    def _is_unseen(self, mutant: Mutant) -> bool:
        """Return whether no test ran any line of the function. The function may have run in compiled form."""
        tree = ast.parse(self.sources[mutant.path])
        (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == mutant.function]
        return not self._of_lines(mutant.path, range(function.lineno, (function.end_lineno or 0) + 1))

    def _of_names(self, path: str, names: Iterable[str]) -> set[int]:
        """Return the tests that ran a line with one of these names, or with the name of a definition that contains one of them."""
        found, asked, open_names = set[int](), set[str](), list(names)
        while open_names:
            name = open_names.pop()
            if name in asked:
                continue
            asked.add(name)
            for where, line, top in self._mentions.get(name, []):
                if where != path and name.startswith("_"):
                    continue
                here = self._of_lines(where, [line])
                found |= here
                if not here and top is not None:
                    open_names.append(top)
        return found

    @cached_property
    def _import_lines(self) -> dict[str, set[int]]:
        return {path: import_lines(source) for path, source in self.sources.items()}

    @cached_property
    def _mentions(self) -> dict[str, list[tuple[str, int, str | None]]]:
        """Return for each name the modules and lines that contain it, and the definitions at the top of the module that contain these
        lines.
        """
        found: dict[str, list[tuple[str, int, str | None]]] = defaultdict(list)
        for path, source in self.sources.items():
            for statement in ast.parse(source).body:
                top = getattr(statement, "name", None)
                if isinstance(statement, ast.Assign | ast.AnnAssign):
                    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
                    top = target.id if isinstance(target, ast.Name) else None
                for node in ast.walk(statement):
                    match node:
                        case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name):
                            found[name].append((path, node.lineno, top))
        return found

    def _in_order(self, found: set[int], path: str) -> list[str]:
        """Sort tests file by file. Quick files come first, and files whose names share words with the module's name."""
        files: dict[str, list[str]] = defaultdict(list)
        for number in found - {self.tests.index(test) for test in self.failing}:
            files[self.tests[number].partition("::")[0]].append(self.tests[number])
        words = set(re.findall(r"[a-z]+", path.partition("/")[2].removesuffix(".py")))

        def cost(file: str) -> tuple[float, str]:
            shared = {name for test in files[file] for name in self.uses.get(test, [])}
            seconds = sum(self.seconds.get(name, 0.0) for name in [*files[file], *shared])
            common = words & set(re.findall(r"[a-z]+", file))
            return seconds / (1 + len(common)) ** 2, file

        ordered = [sorted(files[file], key=lambda test: (self.seconds.get(test, 0.0), test)) for file in sorted(files, key=cost)]
        return list(itertools.chain(*ordered))

    def patience(self) -> dict[str, float]:
        """Return the seconds that a test takes with its fixtures."""
        return {test: sum(self.seconds.get(name, 0.0) for name in [test, *self.uses.get(test, [])]) for test in self.tests}


def read(folder: Path, root: Path) -> Lines:
    """Read the files that the processes of a run of pytest wrote to `folder`. root: the root of the tree in which the processes ran."""
    seconds: dict[str, float] = defaultdict(float)
    uses: dict[str, list[str]] = {}
    failed, skipped = set[str](), set[str]()
    for said in _told(folder):
        if "shared" in said:
            seconds[said["shared"]] = max(seconds[said["shared"]], said["seconds"])
        elif "outcome" in said:
            (failed if said["outcome"] == "failed" else skipped).add(said["test"])
        else:
            seconds[said["test"]], uses[said["test"]] = said["seconds"], said["uses"]
    tests = sorted(uses.keys() - skipped)
    users: dict[str, list[int]] = defaultdict(list)
    for number, test in enumerate(tests):
        for name in [test, *uses[test]]:
            users[name].append(number)
    ran: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for path, context, lines in _measured(folder):
        for line in lines:
            ran[str(Path(path).relative_to(root))][line].update(users.get(context, ()))
    listed = {path: {line: sorted(numbers) for line, numbers in of_path.items()} for path, of_path in ran.items()}
    return Lines(tests=tests, failing=sorted(failed & set(tests)), seconds=dict(seconds), uses=uses, ran=listed)


def _told(folder: Path) -> Iterator[dict[str, Any]]:
    for file in sorted((folder / "tests").iterdir()):
        yield from map(json.loads, file.read_text(encoding="utf-8").splitlines())


def _measured(folder: Path) -> Iterator[tuple[str, str, list[int]]]:
    """Yield module, context and lines, for all processes."""
    query = "select path, context, numbits from line_bits join file on file.id = file_id join context on context.id = context_id"
    for file in sorted((folder / "data").iterdir()):
        try:
            with sqlite3.connect(file) as database:
                rows = database.execute(query).fetchall()
        except sqlite3.DatabaseError:  # the file of a process that was killed while it wrote
            continue
        for path, context, numbits in rows:
            yield path, context, numbits_to_nums(numbits)
