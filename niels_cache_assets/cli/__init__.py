"""The command line `niels-cache`. `python -m niels_cache_assets.cli` runs the same program.

    parser.py       the commands by group; wrong use is one line with the nearest valid choice
    commands/       one file for each command, with its help, options and code; commands that inspect the content of caches are in the
                    package niels_cache_inspection, which is beside this one
    command.py      the parts of a command, the exit codes, and helpers and help texts that several commands share
    console.py      results, errors, tables
    progress.py     progress bars on a terminal, otherwise lines
    context.py      the configuration, cache root and caches that a command starts from
    overrides.py    --seed and --set of build-all as registry overrides
    completion.py   the answer to TAB
    detection.py    which kind of data is in the user's files
    new_config.py   the text of a first niels_cache.toml
    worker.py       the work of `part`

Typing a command loads only its module. torch, dagster and pydantic are loaded when the command runs, so that help is fast. Nothing here
reads a source or writes a cache.
"""

import argparse
import atexit
import errno
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from importlib import import_module

from niels_cache_assets.base.processes import InterruptRequested
from niels_cache_assets.cli.command import BROKEN_PIPE, BUG, DONE, FAILED, INTERRUPTED, WRONG_USE, exit_code
from niels_cache_assets.cli.console import (
    Verbosity,
    ignore_output_errors,
    keep_for_results,
    print_error,
    print_if_verbose,
    redirect_to_null,
    set_verbosity,
)
from niels_cache_assets.cli.parser import import_command, parse_arguments
from niels_cache_runtime.errors import NielsCacheError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_DISK_ERRORS = (*_FULL, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.ESTALE, errno.ELOOP, errno.ENAMETOOLONG)
COMPLETION_VARIABLE = "_ARGCOMPLETE"  # the shell sets this variable to request completions


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: The arguments; by default the command line of this process, which then ends at once after an interrupt, or without threads.

    Raises:
        SystemExit: After --help and --version.
    """
    verbosity: Verbosity = "normal"
    _open_closed_streams()
    try:
        if _system() != "posix":
            raise NielsCacheError(f"niels-cache runs on Linux: {sys.platform} has no POSIX file locks; on Windows, run it in WSL 2")
        if COMPLETION_VARIABLE in os.environ and argv is None:
            import_module(f"{__name__}.completion").complete()  # ends the process
        arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
        if arguments is None:
            return WRONG_USE
        verbosity = "quiet" if arguments.quiet else "verbose" if arguments.verbose else "normal"
        with set_verbosity(verbosity):
            code = _run(arguments)
        if argv is None and threading.active_count() == 1:  # Python would take up to a second to free the modules of Dagster
            atexit._run_exitfuncs()
            os._exit(code)
        return code
    except NielsCacheError as error:
        if verbosity == "verbose":
            traceback.print_exc()
        for line in getattr(error, "lines", [f"error: {error}"]):  # one line for each finding
            print_error(line)
        return exit_code(error)
    except InterruptRequested as interrupt:
        print_error(str(interrupt))
        if argv is None:  # threads that still encode would delay the exit by a second or more
            os._exit(interrupt.exit_code)
        return interrupt.exit_code
    except KeyboardInterrupt:
        print_error("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        redirect_to_null(sys.stdout)
        return BROKEN_PIPE
    except Exception as error:
        message = _disk_error_message(error)
        if verbosity == "verbose" or message is None:
            with ignore_output_errors(sys.stderr):
                traceback.print_exc()
        if message is not None:
            print_error(f"error: {message}; finished caches are unchanged")
            return FAILED
        print_error("error: this is a bug in niels-cache; finished caches are unchanged. Please report the lines above")
        return BUG


def _run(arguments: argparse.Namespace) -> int:
    started = time.monotonic()
    try:
        with keep_for_results():
            code = import_command(arguments.command).run(arguments) or DONE
    except ModuleNotFoundError as error:
        if str(error.name).startswith("niels_cache"):
            raise
        raise NielsCacheError(
            f"{error}, so this environment lacks what the commands need (one for training may have the runtime only); "
            "run pip install niels-cache, or check a cache without it: python -m niels_cache_runtime.verify"
        ) from error
    sys.stdout.flush()
    if arguments.verbose:
        from niels_cache_assets.cli.progress import peak_memory  # cannot be imported outside POSIX

        print_if_verbose(f"{arguments.command}: {time.monotonic() - started:.1f} s, {peak_memory()}")
    return code


def _disk_error_message(error: Exception) -> str | None:
    """Return the message for an error of the disk, or None for another error.

    On a full disk, the rest of an output is sent to /dev/null.
    """
    if not isinstance(error, OSError) or error.errno not in _DISK_ERRORS:
        return None
    if error.filename is None and error.errno not in _FULL:  # such as an error of TLS, whose number means something else
        return None
    if error.filename is None:  # builds name their files, so this is stdout
        redirect_to_null(sys.stdout)
    return f"{error.filename or 'the output'}: {error.strerror}"


def _open_closed_streams() -> None:
    """Replace a stream that the parent process has closed, which is None in Python, so that everything that prints would fail."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (open until the process ends)


def _system() -> str:
    return os.name
