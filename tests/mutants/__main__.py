"""The program of `make mutants`. It breaks random lines of the packages one at a time, and prints the lines that no test notices.

First, all tests run once, and `measuring` records which test runs which line. `.mutants/` keeps this record as long as the packages do not
change. If only tests change, the files that changed run again. Then lines are drawn, and each line gets one defect (`operators`). In a copy
of the tree (`trees`), the tests of this line run until one fails. A test that failed runs twice more, alone. It has noticed the defect if
it fails with the defect and passes without it. Otherwise, the other tests continue.
"""

import argparse
import hashlib
import json
import queue
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from tests.mutants.lines import Lines, read
from tests.mutants.operators import Mutant, mutants_of
from tests.mutants.trees import PACKAGES, REPOSITORY, Tree, copy_sources

_KEPT = REPOSITORY / ".mutants"
_WANTED = 0.9  # share of the mutants that tests must notice
_LONGEST = 600.0  # seconds, for a test that runs alone
_MOST_FAILED = 20  # tests in the measured run; more, and something is wrong with it


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description="Break random lines one at a time: does a test notice?")
    parser.add_argument("--seed", type=int, default=1, help="which lines are drawn")
    parser.add_argument("--lines", type=int, default=40, help="how many")
    parser.add_argument("--only", "--of", nargs="+", default=[""], metavar="PLACE", help="draw from these: FOLDER, FILE, FILE:LINE")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="instead of all tests: FOLDER, FILE")
    parser.add_argument("--limit", type=float, default=150, help="seconds of tests for a line")
    parser.add_argument("--jobs", type=int, default=2, help="processes of pytest at a time")
    parser.add_argument("--list", action="store_true", help="say what would be broken, and stop")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128))
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as temporary:
        work = Path(temporary).resolve()
        work.chmod(0o755)  # a test reads as another user
        copy_sources(work / "origin")
        modules = sorted(path for package in PACKAGES for path in (work / "origin" / package).rglob("*.py"))
        sources = {str(path.relative_to(work / "origin")): path.read_text(encoding="utf-8") for path in modules}
        drawn = draw(sources, options.lines, options.seed, only=tuple(options.only))
        if options.list:
            print(*drawn, sep="\n")
            return 0
        logs = _KEPT / f"seed-{options.seed}"
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)
        lines = measured_lines(work, sources, tuple(options.tests), jobs=options.jobs)
        trees = [Tree(work / str(number), work / "origin") for number in range(options.jobs)]
        noticed: dict[bool, list[str]] = {False: [], True: []}
        for mutant, is_noticed, words in try_all(trees, drawn, lines, sources, limit=options.limit, logs=logs):
            noticed[is_noticed].append(f"{mutant}\n    {words}")
            print(noticed[is_noticed][-1], flush=True)
    last = f"{len(noticed[True])} of {len(drawn)} noticed"
    (_KEPT / f"seed-{options.seed}.txt").write_text("\n".join([*noticed[False], *noticed[True], last, ""]), encoding="utf-8")
    print(last)
    return 0 if len(noticed[True]) >= _WANTED * len(drawn) else 1


def draw(sources: Mapping[str, str], number: int, seed: int, *, only: tuple[str, ...] = ("",)) -> list[Mutant]:
    """Return `number` random lines among those that can have a defect, each with one of its defects. A seed gives a line the same defect
    in every draw.
    """
    by_line: dict[str, list[Mutant]] = defaultdict(list)
    for path, source in sources.items():
        for mutant in mutants_of(path, source):
            by_line[f"{path}:{mutant.line}"].append(mutant)
    among = [line for line in by_line if f"{line}:".startswith(only)]
    drawn = sorted(among, key=lambda line: random.Random(f"{seed} {line}").random())[:number]
    return [random.Random(f"{seed} {line}").choice(by_line[line]) for line in drawn]


def measured_lines(work: Path, sources: Mapping[str, str], tests: tuple[str, ...], *, jobs: int) -> Lines:
    """Return which of these tests runs which line. This is kept from an earlier run with the same packages. The files of tests that changed
    since then are measured.
    """
    kept = _KEPT / f"lines-{hashlib.sha256(repr(sorted(sources.items())).encode()).hexdigest()[:16]}.json"
    lines = Lines(**json.loads(kept.read_text(encoding="utf-8"))) if kept.exists() else Lines()
    found = {str(path.relative_to(work / "origin")): path for path in sorted((work / "origin" / "tests").rglob("test_*.py"))}
    files = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found.items() if name.startswith(tests)}
    changed = {name: digest for name, digest in files.items() if lines.files.get(name) != digest}
    if changed:
        lines.update(measure(work, changed, jobs=jobs))
        written = kept.with_suffix(".new")
        written.write_text(json.dumps(asdict(lines)), encoding="utf-8")
        written.replace(kept)
    lines.forget(lines.files.keys() - files.keys())
    return lines


def measure(work: Path, files: dict[str, str], *, jobs: int) -> Lines:
    """Run files of tests in a copy of work/origin that measures. Tests that fail stay, because they may only have been too slow."""
    begin, log, measured = time.monotonic(), _KEPT / "measured.log", work / "measured"
    for name in ("data", "tests", "current"):
        (measured / name).mkdir(parents=True)
    log.unlink(missing_ok=True)
    print(f"measuring which test of {len(files)} files runs which line; {log}", flush=True)
    tree = Tree(work / "m", work / "origin", measured=measured)
    tree.run(["-n", str(jobs), "--dist", "loadfile", "--no-loadscope-reorder", "--measured", str(measured), *files], log=log)
    lines, failed = read(measured, tree.root, files)
    print(f"{len(lines.uses)} tests in {time.monotonic() - begin:.0f} s, {len(failed)} of them failed", flush=True)
    if not lines.uses or len(failed) > _MOST_FAILED:
        sys.exit(f"see {log}")
    return lines


def try_all(
    trees: Sequence[Tree], drawn: Sequence[Mutant], lines: Lines, sources: Mapping[str, str], *, limit: float, logs: Path
) -> Iterator[tuple[Mutant, bool, str]]:
    """Yield the verdicts in the order in which they are reached: the mutant, whether a test noticed it, and how."""
    free: queue.Queue[Tree] = queue.Queue()
    for tree in trees:
        free.put(tree)

    def tried(mutant: Mutant, tests: dict[str, float]) -> tuple[Mutant, bool, str]:
        log = logs / f"{mutant.path.replace('/', '.')}.{mutant.line}.log"
        tree = free.get()
        try:
            return mutant, *_try(tree, mutant.path, mutant.applied(sources[mutant.path]), tests, limit=limit, log=log)
        finally:
            free.put(tree)

    # not in the threads: ast.parse of Python 3.11 fails if threads call it at once
    covering = [{test: lines.patience(test) for test in lines.covering(mutant, sources)} for mutant in drawn]
    with ThreadPoolExecutor(len(trees)) as threads:
        try:
            for done in as_completed([threads.submit(tried, *each) for each in zip(drawn, covering, strict=True)]):
                yield done.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for tree in trees:
                tree.stop()


def _try(tree: Tree, path: str, source: str, tests: dict[str, float], *, limit: float, log: Path) -> tuple[bool, str]:
    while tests:
        tree.break_line(path, source)
        ended = tree.chosen(tests, limit=limit, log=log)
        test = ended.test or next(iter(tests))
        alone = {test: tests[test]}
        fails_again = ended.noticed and (ended.test is None or tree.chosen(alone, limit=_LONGEST, log=log).noticed)
        tree.restore(path)
        figures = f"{ended.began} of {len(tests)} tests, {ended.seconds:.0f} s"
        if not ended.noticed:
            return False, f"SURVIVED {figures}{' (the limit)' if ended.code is None else ''}"
        if fails_again and tree.chosen(alone, limit=_LONGEST, log=log).code == 0:
            return True, f"noticed {f'by {ended.test}' if ended.test else 'when it is imported'}, {figures}"
        del tests[test]
    return False, "SURVIVED, since no test runs it"


if __name__ == "__main__":
    sys.exit(main())
