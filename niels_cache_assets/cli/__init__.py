"""The command line: `niels-cache`, the same as `python -m niels_cache_assets.cli`.

    parser.py        the commands by group, wrong use in one line with the nearest choice
    command.py       what is known of a command before it runs; *_options.py: its help and options
    completion.py    completion for shells          exit_codes.py  their table        memory.py  what a command takes
    overrides.py     build-all's flags and --set as registry overrides
    build_all.py     build-all, with progress.py (bars), report.py (table at the end) and interrupts.py (Ctrl-C)
    listing.py       list        status.py      status     showing.py  show            verifying.py  verify
    sampling.py      sample
    tracing.py       trace, with loader_states.py (finds a loader's state in a file) and origins.py (what it prints)
    cleaning.py      clean       rejections.py  rejected   duplicates.py  duplicates   corpus_sampling.py  sample --stage corpus
    exporting.py     export      importing.py   import     transfers.py   bars of bytes
    prebuilding.py   prebuild-index, with core_prebuilding.py (--for megatron-core)
    reporting.py     report      ui.py          ui
    differing.py     diff (two builds)
    comparing.py     tokenizer compare (two tokenizers, on the same text)
    catalog.py       catalog
    init.py          init, with recognizing.py (what data holds) and new_config.py (the text of the file)
    doctor.py        doctor, with diagnosis.py (what is looked at)
    corpora.py       where corpora and drop lists lie, and what to do where one is missing
    pairs.py         two texts side by side          parquet_rows.py  single rows of large tables

A command's
module, and with it torch, dagster or pydantic, is imported when that command runs, so that help is quick. Nothing here reads a source or
writes a cache.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import import_module

from niels_cache_assets.cli.console import Loudness, explain, print_error, speaking
from niels_cache_assets.cli.exit_codes import BROKEN_PIPE, BUG, FAILED, INTERRUPTED, WRONG_USE
from niels_cache_assets.cli.interrupts import Interrupted
from niels_cache_assets.cli.parser import parse_arguments
from niels_cache_runtime.errors import NielsCacheError, NotWrittenError

COMPLETION_VARIABLE = "_ARGCOMPLETE"  # set by the shell where it asks for completions


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. --help and --version leave by SystemExit, as argparse has it.

    `argv` None: the command line of this process, which an interrupted build then ends at once.
    """
    loudness: Loudness = "normal"
    try:
        _require_posix()
        if COMPLETION_VARIABLE in os.environ and argv is None:
            import_module(f"{__name__}.completion").complete()  # ends the process
        arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
        if arguments is None:
            return WRONG_USE
        loudness = "quiet" if arguments.quiet else "verbose" if arguments.verbose else "normal"
        with speaking(loudness):
            return _run(arguments)
    except NielsCacheError as error:
        if loudness == "verbose":
            traceback.print_exc()
        for line in getattr(error, "lines", [f"error: {error}"]):  # of several findings each is a line
            print_error(line)
        return FAILED if isinstance(error, NotWrittenError) else WRONG_USE
    except Interrupted as interrupt:
        print_error(str(interrupt))
        if argv is None:  # the process is ours: threads that still encode would hold up its exit by a second or more
            os._exit(interrupt.exit_code)
        return interrupt.exit_code
    except KeyboardInterrupt:
        print_error("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter's own flush at exit complains
        return BROKEN_PIPE
    except Exception:
        traceback.print_exc()
        print_error("error: this is a bug of niels-cache; finished caches are as they were. Please report the lines above")
        return BUG


def _run(arguments: argparse.Namespace) -> int:
    started = time.monotonic()
    code: int = import_module(f"{__name__}.commands.{arguments.module}").run(arguments)
    sys.stdout.flush()
    if arguments.verbose:
        from niels_cache_assets.cli.memory import peak_memory  # not to be had where there is no POSIX

        explain(f"{arguments.command}: {time.monotonic() - started:.1f} s, {peak_memory()}")
    return code


def _require_posix() -> None:
    if _system() != "posix":
        raise NielsCacheError(f"niels-cache is made for Linux: its locks are not to be had on {sys.platform}; on Windows, run it in WSL 2")


def _system() -> str:
    return os.name
