"""The program of `make mutants`. It breaks random lines of the packages one at a time, and prints the lines that no test notices.

First, all tests run once, and `measuring` records which test runs which line. `.mutants/` keeps this record as long as no source changes.
Then lines are drawn, and each line gets one defect (`operators`). In a copy of the tree (`trees`), the tests of this line run until one
fails. A test that failed runs twice more, alone. It has noticed the defect if it fails with the defect and passes without it. Otherwise,
the other tests continue.
"""

import argparse
import hashlib
import json
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from tests.mutants.lines import Lines, read
from tests.mutants.operators import Mutant, compiles, mutants_of
from tests.mutants.trees import PACKAGES, REPOSITORY, Tree, copy_sources

_KEPT = REPOSITORY / ".mutants"
_WANTED = 0.9  # share of the mutants that tests must notice
_LONGEST = 600.0  # seconds, for a test that runs alone
_MOST_FAILED = 20  # tests in the measured run; more, and something is wrong with it


@dataclass(frozen=True, kw_only=True)
class Verdict:
    mutant: Mutant
    noticed: bool
    words: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description="Break random lines one at a time: does a test notice?")
    parser.add_argument("--seed", type=int, default=1, help="which lines are drawn")
    parser.add_argument("--lines", type=int, default=40, help="how many")
    parser.add_argument("--only", nargs="+", default=[""], metavar="PLACE", help="of the lines drawn those that begin so: FILE, FILE:LINE")
    parser.add_argument("--of", nargs="+", default=list(PACKAGES), metavar="PATH", help="draw from these modules and folders")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="instead of all tests")
    parser.add_argument("--limit", type=float, default=150, help="seconds of tests for a line")
    parser.add_argument("--jobs", type=int, default=2, help="processes of pytest at a time")
    parser.add_argument("--list", action="store_true", help="say what would be broken, and stop")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128))
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as temporary:
        work = Path(temporary).resolve()
        work.chmod(0o755)  # a test reads as another user
        copy_sources(REPOSITORY, work / "origin")
        sources = {path: (work / "origin" / path).read_text(encoding="utf-8") for path in _modules(work / "origin")}
        drawn = draw({path: text for path, text in sources.items() if path.startswith(tuple(options.of))}, options.lines, options.seed)
        drawn = [mutant for mutant in drawn if f"{mutant.path}:{mutant.line}:".startswith(tuple(options.only))]
        if options.list:
            print(*drawn, sep="\n")
            return 0
        lines = replace(_kept_or_measured(work, options.tests, jobs=options.jobs), sources=sources)
        logs = _KEPT / f"seed-{options.seed}"
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir()
        verdicts = []
        for verdict in try_all(work, drawn, lines, jobs=options.jobs, limit=options.limit, logs=logs):
            verdicts.append(verdict)
            print(f"{verdict.mutant}\n    {verdict.words}", flush=True)
    noticed = sum(verdict.noticed for verdict in verdicts)
    last = f"{noticed} of {len(verdicts)} noticed"
    said = [f"{verdict.mutant}\n    {verdict.words}\n" for verdict in sorted(verdicts, key=lambda verdict: verdict.noticed)]
    (_KEPT / f"seed-{options.seed}.txt").write_text("".join([*said, last, "\n"]), encoding="utf-8")
    print(last)
    return 0 if noticed >= _WANTED * len(verdicts) else 1


def _modules(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for package in PACKAGES for path in (root / package).rglob("*.py"))


def draw(sources: Mapping[str, str], number: int, seed: int) -> list[Mutant]:
    """Return `number` random lines among those that can have a defect, each with one of its defects."""
    by_line: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for path, source in sources.items():
        for mutant in mutants_of(path, source):
            by_line[path, mutant.line].append(mutant)
    dice = random.Random(seed)
    drawn: list[Mutant] = []
    for line in dice.sample(sorted(by_line), len(by_line)):
        if len(drawn) == number:
            break
        possible = [mutant for mutant in by_line[line] if compiles(mutant.applied(sources[mutant.path]))]
        drawn += [dice.choice(possible)] if possible else []
    return drawn


def _kept_or_measured(work: Path, tests: Sequence[str], *, jobs: int) -> Lines:
    """Return which test runs which line. This is kept from an earlier run on the same sources, or measured."""
    digest = hashlib.sha256(repr(tests).encode())
    for path in sorted((work / "origin").rglob("*")):
        name = path.relative_to(work / "origin")
        if path.is_file() and name.parts[0] in (*PACKAGES, "tests", "pyproject.toml") and name.parts[:2] != ("tests", "mutants"):
            digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
    _KEPT.mkdir(exist_ok=True)
    kept = _KEPT / f"lines-{digest.hexdigest()[:16]}.json"
    if not kept.exists():
        lines = measure(work, tests, jobs=jobs, log=_KEPT / "measured.log")
        written = kept.with_suffix(".new")
        written.write_text(json.dumps(asdict(lines)), encoding="utf-8")
        written.replace(kept)
    found = json.loads(kept.read_text(encoding="utf-8"))
    found["ran"] = {path: {int(line): tests for line, tests in ran.items()} for path, ran in found["ran"].items()}
    return Lines(**found)


def measure(work: Path, tests: Sequence[str], *, jobs: int, log: Path) -> Lines:
    """Run the tests in a copy of work/origin that measures. Run tests that fail in another copy, because they may only have been too
    slow.
    """
    begin = time.monotonic()
    measured = work / "measured"
    for name in ("data", "tests", "current"):
        (measured / name).mkdir(parents=True)
    print(f"measuring which test runs which line; {log}", flush=True)
    tree = Tree(work / "m", work / "origin", measured=measured)
    with (
        log.open("w", encoding="utf-8") as output,
        _ended(
            tree.start(["-n", str(jobs), "--dist", "loadfile", "--no-loadscope-reorder", "--measured", str(measured), *tests], output)
        ) as process,
    ):
        process.wait()
    lines = read(measured, tree.root)
    print(f"{len(lines.tests)} tests in {time.monotonic() - begin:.0f} s, {len(lines.failing)} of them failed", flush=True)
    if not lines.tests or len(lines.failing) > _MOST_FAILED:
        sys.exit(f"see {log}")
    plain = Tree(work / "p", work / "origin")
    failing = [test for test in lines.failing if plain.chosen([test], patience=lines.patience(), limit=_LONGEST, log=log).code != 0]
    for test in failing:
        print(f"left out, since it fails without being measured too: {test}", flush=True)
    return replace(lines, failing=failing)


@contextmanager
def _ended(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def try_all(work: Path, drawn: Sequence[Mutant], lines: Lines, *, jobs: int, limit: float, logs: Path) -> Iterator[Verdict]:
    """Yield the verdicts, in the order in which they are reached."""
    trees: queue.Queue[Tree] = queue.Queue()
    for number in range(jobs):
        trees.put(Tree(work / str(number), work / "origin"))
    stopped = threading.Event()

    def tried(mutant: Mutant) -> Verdict:
        tree = trees.get()
        log = logs / f"{mutant.path.replace('/', '.')}.{mutant.line}.log"
        try:
            return _try(tree, mutant, lines, limit=limit, log=log, stopped=stopped)
        finally:
            trees.put(tree)

    with ThreadPoolExecutor(jobs) as threads:
        try:
            for done in as_completed([threads.submit(tried, mutant) for mutant in drawn]):
                yield done.result()
        finally:
            stopped.set()
            threads.shutdown(cancel_futures=True)


def _try(tree: Tree, mutant: Mutant, lines: Lines, *, limit: float, log: Path, stopped: threading.Event) -> Verdict:
    tests, patience = lines.covering(mutant), lines.patience()
    run = partial(tree.chosen, patience=patience, log=log, stopped=stopped)
    while tests and not stopped.is_set():
        tree.break_line(mutant.path, mutant.applied(lines.sources[mutant.path]))
        ended = run(tests, limit=limit)
        fails_again = ended.noticed and (ended.test is None or run([ended.test], limit=_LONGEST).noticed)
        tree.restore()
        if not ended.noticed:
            limited = "" if ended.code == 0 else " (the limit)"
            words = f"SURVIVED {ended.began} of {len(tests)} tests, {ended.seconds:.0f} s{limited}"
            return Verdict(mutant=mutant, noticed=False, words=words)
        test = ended.test or tests[0]
        if fails_again and run([test], limit=_LONGEST).code == 0:
            by = f"by {ended.test}" if ended.test else "when it is imported"
            words = f"noticed {by}{' (it hangs)' if ended.code is None else ''}, test {ended.began} of {len(tests)}, {ended.seconds:.0f} s"
            return Verdict(mutant=mutant, noticed=True, words=words)
        tests.remove(test)
    return Verdict(mutant=mutant, noticed=False, words="SURVIVED, since no test runs it")


if __name__ == "__main__":
    sys.exit(main())
