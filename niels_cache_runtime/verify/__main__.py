"""The command `python -m niels_cache_runtime.verify cache/ [NAME ...]`.

It prints a line for each finding and note, a table of the folders, and a summary. The exit status is 0 without findings, 1 with findings
(notes do not count), and 2 for a wrong path or name. The command needs numpy only, so it runs on a training machine. The checks themselves
are in the other modules of the package.
"""

import argparse
import sys
from collections.abc import Sequence

from niels_cache_runtime.catalog_text import in_bytes
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.verify import Verification
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
    progress = _show_progress if sys.stderr.isatty() else None
    try:
        verified = Verification(settings.root, names=settings.names, quick=settings.quick, threads=settings.threads, progress=progress)
    except NielsCacheError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    for line in [*verified.findings, *(f"note: {note}" for note in verified.notes())]:
        print(line)
    rows = results(verified)
    print(f"{as_text(rows)}\n{summary(rows, verified)}")
    return 1 if verified.findings else 0


def _show_progress(done: int, total: int) -> None:
    sys.stderr.write(f"\r{done / max(total, 1):4.0%} of {in_bytes(total)}" + "\n" * (done == total))


if __name__ == "__main__":
    sys.exit(main())
