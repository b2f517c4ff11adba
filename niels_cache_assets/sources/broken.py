"""An error of one source that must not end the work on the others: what people are told of it, and where a bug leaves its traceback.

A source reads what others wrote, with the libraries of others: it may raise any exception.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

from niels_cache_assets.sources.net.network import first_line, without_secrets
from niels_cache_runtime.errors import NielsCacheError

DEBUG = "DEBUG: "  # plain code begins a log line with it that helps only to find a bug; the log of the run keeps such lines


def in_one_line(error: Exception) -> str:
    """The message of our own errors; of others the class and the first line: `KeyError: 'text'`."""
    return str(error) if isinstance(error, NielsCacheError) else f"{type(error).__name__}: {first_line(error)}".removesuffix(": ")


def log_traceback(error: Exception, log: Callable[[str], object]) -> None:
    """Give `log` where an error came from, unless it is one of ours: their message says all that a person needs."""
    if not isinstance(error, NielsCacheError):
        log(without_secrets("".join(traceback.format_exception(error))))


def as_debug(log: Callable[[str], object]) -> Callable[[str], object]:
    """Return a log that marks every line with DEBUG."""
    return lambda message: log(DEBUG + message)
