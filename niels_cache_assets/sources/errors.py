"""Errors of sources: those that others tell apart, and what messages and logs tell of the others.

A source reads what others wrote, with the libraries of others: it may raise any exception. No message holds a token, a password or the
query of an address.
"""

from __future__ import annotations

import errno
import re
import socket
import traceback
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from niels_cache_runtime.errors import NielsCacheError

DEBUG = "DEBUG: "  # plain code begins a log line with it that helps only to find a bug; the log of the run keeps such lines

_UNREACHABLE = {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH}
_CONNECTION_ERRORS = {  # by library, what its errors of the connection derive from
    "httpx": {"TransportError"},
    "httpx2": {"TransportError"},
    "aiohttp": {"ClientConnectionError", "ClientPayloadError"},
    "botocore": {"HTTPClientError"},
    "requests": {"ConnectionError", "Timeout", "ChunkedEncodingError"},
    "urllib3": {"TimeoutError", "ProtocolError", "NewConnectionError"},
}


class SourceUnavailable(NielsCacheError):
    """The source cannot be reached now (network, hub down); a finished cache of it stays usable."""


def shown(url: str) -> str:
    """An address as messages may show it: user, password and query, which may be secrets, are left out. Paths stay as they are."""
    if "://" not in url:
        return url
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise NielsCacheError(f"{url.rpartition('@')[2].partition('?')[0]!r} is no address: {error}") from error
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def without_secrets(text: str) -> str:
    """The text without tokens, this process's own among them, and without queries of addresses: signed ones are keys."""
    from huggingface_hub import get_token

    token = get_token()
    text = text.replace(token, "***") if token else text
    return re.sub(r"hf_[A-Za-z0-9]{8,}|(?i:bearer)\s+\S+|(?<=\S)\?\S*=\S+|(?<=://)[^/\s]+@", "***", text)


def first_line(error: BaseException) -> str:
    """What an error of a library says, as messages may show it."""
    return without_secrets((str(error).strip().splitlines() or [""])[0])


def chain_of(error: BaseException) -> list[BaseException]:
    """The error, and those that it came of."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    return chain


def endless_redirect(error: BaseException) -> str | None:
    """That a server sends on and on, and from where it did last, if that is what the error says."""
    for link in chain_of(error):
        if type(link).__name__ == "TooManyRedirects":  # of whichever client
            request: Any = getattr(link, "_request", None)
            return f"redirects without end{f', last from {shown(str(request.url))}' if request else ''}"
    return None


def is_of_network(error: BaseException) -> bool:
    """Whether the error, or one that it came of, says that a server could not be talked to: nothing that it would answer.

    Clients of other stores are told by name: which of them are installed is their own affair.
    """
    return not isinstance(error, FileNotFoundError | PermissionError) and any(map(_is_of_connection, chain_of(error)))


def _is_of_connection(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
        return True
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return True
    return any(base.__name__ in _CONNECTION_ERRORS.get(base.__module__.partition(".")[0], ()) for base in type(error).__mro__)


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
