"""Rows brought together by a key, with bounded memory: an external merge sort on disk.

Rows fill runs of about 64 MB, which are sorted and written as lines of JSON. When 32 runs of one level exist, they are
merged into a run of the next level. In the end all runs are merged. So memory is that of one run and one line of each open run. Each row is
written once for each level: 2 GB of rows once, 64 GB twice.

The files are in the system's folder for temporary files (TMPDIR), and need as much space as the rows, twice while runs are merged.
"""

import heapq
import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

RUN_CHARACTERS = 64 << 20
RUNS = 32  # of one level

Key = tuple[Any, ...]
Row = tuple[Key, Any]  # a key of strings and numbers that no other row has, and JSON values


def sorted_rows(rows: Iterable[Row], *, run_characters: int = RUN_CHARACTERS) -> Iterator[Row]:
    """Yield rows in the order of their keys."""
    with TemporaryDirectory(prefix="niels-cache-rows-", ignore_cleanup_errors=True) as folder:
        runs = _Runs(Path(folder))
        lines, characters = list[tuple[Key, str]](), 0
        for key, values in rows:
            line = json.dumps([key, values], ensure_ascii=True, separators=(",", ":"))
            lines.append((key, line))
            characters += len(line)
            if characters > run_characters:
                runs.add(sorted(lines), 0)
                lines, characters = [], 0
        if not runs.levels:
            yield from (_parsed(line) for _, line in sorted(lines))
            return
        runs.add(sorted(lines), 0)
        del lines
        yield from (_parsed(line) for _, line in runs.merged([each for level in runs.levels for each in level]))


class _Runs:
    """Sorted runs in files, by level."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self.levels: list[list[Path]] = []

    def add(self, lines: Iterable[tuple[Key, str]], level: int) -> None:
        """Write a run. If its level is full, merge the level into a run of the next one."""
        if level == len(self.levels):
            self.levels.append([])
        path, self._count = self._folder / f"{self._count}.jsonl", self._count + 1
        with path.open("w", encoding="ascii") as file:
            file.writelines(f"{line}\n" for _, line in lines)
        self.levels[level].append(path)
        if len(self.levels[level]) == RUNS:
            full, self.levels[level] = self.levels[level], []
            self.add(self.merged(full), level + 1)
            for each in full:
                each.unlink()

    def merged(self, paths: Iterable[Path]) -> Iterator[tuple[Key, str]]:
        """Yield the lines of runs in the order of their keys."""
        with ExitStack() as stack:
            runs = [stack.enter_context(path.open(encoding="ascii")) for path in paths]
            yield from heapq.merge(*(((_parsed(line)[0], line.rstrip("\n")) for line in run) for run in runs))


def _parsed(line: str) -> Row:
    key, values = json.loads(line)
    return tuple(key), values
