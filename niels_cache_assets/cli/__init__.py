"""The command line: `niels-cache`, the same as `python -m niels_cache_assets.cli`.

    parser.py        commands, help, wrong use in one line with the nearest choice
    overrides.py     build-all's flags and --set as registry overrides
    build_all.py     build-all, with progress.py (bars), report.py (table at the end) and interrupts.py (Ctrl-C)
    listing.py       list        status.py  status, with status_options.py    showing.py  show    verifying.py  verify
    sampling.py      sample
    tracing.py       trace, with loader_states.py (finds a loader's state in a file) and origins.py (what it prints)
    decoding.py      tokens as text, for sample and trace
    cleaning.py      clean       rejections.py  rejected   duplicates.py  duplicates   corpus_sampling.py  sample --stage corpus
    exporting.py     export      importing.py   import     exchange_options.py  their options       transfers.py  bars of bytes
    prebuilding.py   prebuild-index, with prebuild_options.py
    ui.py            ui, with ui_options.py
    corpora.py       where corpora and drop lists lie, and what to do where one is missing
    pairs.py         two texts side by side          parquet_rows.py  single rows of large tables

Exit codes: 0, 1 (a data set failed, verify found something), 2 (wrong use or configuration), 130 and 143 (interrupted). A command's
module, and with it torch, dagster or pydantic, is imported when that command runs, so that help is quick. Nothing here reads a source or
writes a cache.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from niels_cache_assets.cli.console import print_error
from niels_cache_assets.cli.interrupts import Interrupted
from niels_cache_assets.cli.parser import parse_arguments
from niels_cache_runtime.errors import NielsCacheError

EXIT_WRONG_USE = 2
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, what a shell reports for `niels-cache list | head -1`


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. --help and --version leave by SystemExit, as argparse has it.

    `argv` None: the command line of this process, which an interrupted build then ends at once.
    """
    try:
        arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
        if arguments is None:
            return EXIT_WRONG_USE
        code: int = import_module(f"{__name__}.{arguments.module}").run(arguments)
        sys.stdout.flush()
        return code
    except NielsCacheError as error:
        print_error(f"error: {error}")
        return EXIT_WRONG_USE
    except Interrupted as interrupt:
        print_error(str(interrupt))
        if argv is None:  # the process is ours: threads that still encode would hold up its exit by a second or more
            os._exit(interrupt.exit_code)
        return interrupt.exit_code
    except KeyboardInterrupt:
        print_error("interrupted")
        return Interrupted.SIGINT_EXIT_CODE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter's own flush at exit complains
        return EXIT_BROKEN_PIPE
