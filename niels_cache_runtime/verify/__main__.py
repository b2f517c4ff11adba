"""The command `python -m niels_cache_runtime.verify cache/ [NAME ...]`.

It prints a line for each finding and note, a table of the folders, and a summary. The exit status is 0 without findings, 1 with findings
(notes do not count), and 2 for a wrong path or name. The command needs numpy only, so it runs on a training machine. The checks themselves
are in the other modules of the package.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.verify import find_folders, notes, verify_folders
from niels_cache_runtime.verify.folder import VerifiedFolder
from niels_cache_runtime.verify.table import as_text, results, summary

NOT_VERIFIED = (
    "Not verified: reports/, unfinished builds (.NAME.partial) and locks, other names with a leading dot, Dagster's home (.dagster) "
    "with its logs, exports, and all other entries of the cache directory."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m niels_cache_runtime.verify", description="Re-hash a cache and check its invariants.", epilog=NOT_VERIFIED
    )
    parser.add_argument("root", help="a cache root such as cache/, or the folder of one data set")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these data sets: NAME, pretrain/NAME, ..., tokenizer or duplicates")
    parser.add_argument("--quick", action="store_true", help="compare names and sizes only; read no file")
    parser.add_argument("--threads", type=int, metavar="N", help="files to read at a time (default: as many as there are cores)")
    settings = parser.parse_args(arguments)
    bar = ProgressBar()
    try:
        folders = [VerifiedFolder(path) for path in find_folders(settings.root, names=settings.names)]
        beside = not settings.names
        findings = verify_folders(settings.root, folders, beside=beside, quick=settings.quick, threads=settings.threads, progress=bar)
    except NielsCacheError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        bar.clear()
    for line in [*findings, *(f"note: {note}" for note in notes(settings.root, folders, beside=beside))]:
        print(line)
    rows = results(settings.root, folders, findings, quick=settings.quick)
    print(f"{as_text(rows)}\n{summary(rows, findings, quick=settings.quick)}")
    return 1 if findings else 0


class ProgressBar:
    """A progress bar without dependencies. On a terminal it is one line on standard error, redrawn at most ten times a second.

    It is called with the number of bytes done and the number of all bytes. If standard error is not a terminal, it shows nothing.
    """

    _WIDTH = 24

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._began = time.monotonic()
        self._drawn = 0.0
        self._length = 0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._shown or (now - self._drawn < 0.1 and done < total):
            return
        self._drawn = now
        share = done / max(total, 1)
        rate = done / max(now - self._began, 1e-9)
        bar = ("#" * round(share * self._WIDTH)).ljust(self._WIDTH, ".")
        left = (total - done) / max(rate, 1e-9)
        self._write(f"[{bar}] {share:4.0%}  {done / 1e6:,.0f}/{total / 1e6:,.0f} MB  {rate / 1e6:,.0f} MB/s  {left:,.0f} s left")

    def clear(self) -> None:
        if self._length:
            self._write("")
            self._write("")

    def _write(self, line: str) -> None:
        sys.stderr.write("\r" + line.ljust(self._length))
        sys.stderr.flush()
        self._length = len(line)


if __name__ == "__main__":
    sys.exit(main())
