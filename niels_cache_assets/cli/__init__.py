"""The command line: `niels-cache`, the same as `python -m niels_cache_assets.cli`.

    parser.py       the commands by group, wrong use in one line with the nearest choice
    commands/       each command in a file named as it is typed: help, options and code
    command.py      what a command is made of, and what several of them say or take
    console.py      results, errors, tables       exit_codes.py   their table
    progress.py     bars, or lines where there is no terminal
    context.py      configuration, cache root and caches that a command starts from
    overrides.py    build-all's flags and --set as registry overrides
    reasons.py      what `clean` and `rejected` print

A command's module is loaded when it is typed; torch, dagster or pydantic, when it runs: help is quick. Nothing here reads a source or
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
from niels_cache_assets.cli.parser import load, parse_arguments
from niels_cache_assets.processes import Interrupted
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
            import_module(f"{__name__}.commands.completion").complete()  # ends the process
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
    code: int = load(arguments.command).run(arguments)
    sys.stdout.flush()
    if arguments.verbose:
        from niels_cache_assets.cli.progress import peak_memory  # not to be had where there is no POSIX

        explain(f"{arguments.command}: {time.monotonic() - started:.1f} s, {peak_memory()}")
    return code


def _require_posix() -> None:
    if _system() != "posix":
        raise NielsCacheError(f"niels-cache is made for Linux: its locks are not to be had on {sys.platform}; on Windows, run it in WSL 2")


def _system() -> str:
    return os.name
