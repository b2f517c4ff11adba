"""Errors of sources: the class for an unavailable source, and functions that show other errors in messages and logs.

A source reads foreign data with foreign libraries, so it may raise any exception. A message never shows a token, a password or the query of
an address.
"""

import errno
import re
import socket
import traceback
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from niels_cache_runtime.errors import NielsCacheError

_UNREACHABLE = {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH}
_CONNECTION_ERRORS = {  # library -> base classes of its connection errors
    "httpx": {"TransportError"},
    "httpx2": {"TransportError"},
    "aiohttp": {"ClientConnectionError", "ClientPayloadError"},
    "botocore": {"HTTPClientError"},
    "requests": {"ConnectionError", "Timeout", "ChunkedEncodingError"},
    "urllib3": {"TimeoutError", "ProtocolError", "NewConnectionError"},
}


class SourceUnavailableError(NielsCacheError):
    """A source that cannot be reached now, because the network or the hub is down.

    A finished cache of this source can still be used.
    """


def without_credentials(url: str) -> str:
    """Return an address without user, password and query, which may be secrets. Paths are returned unchanged.

    Raises:
        NielsCacheError: If `url` has a scheme but is not a valid address.
    """
    if "://" not in url:
        return url
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise NielsCacheError(f"{url.rpartition('@')[2].partition('?')[0]!r} is not an address: {error}") from error
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def without_secrets(text: str) -> str:
    """Return a text without access tokens and without the queries of addresses, which may contain keys.

    The access token of this process is removed too.
    """
    from huggingface_hub import get_token

    token = get_token()
    text = text.replace(token, "***") if token else text
    return re.sub(r"hf_[A-Za-z0-9]{8,}|(?i:bearer)\s+\S+|(?<=\S)\?\S*=\S+|(?<=://)[^/\s]+@", "***", text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error, without secrets."""
    return without_secrets((str(error).strip().splitlines() or [""])[0])


def error_chain(error: BaseException) -> list[BaseException]:
    """Return the error and its causes."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    return chain


def endless_redirect(error: BaseException) -> str | None:
    """Return a description of an endless redirect with the last address, or None for any other error."""
    for link in error_chain(error):
        if type(link).__name__ == "TooManyRedirects":  # of any HTTP library
            request: Any = getattr(link, "_request", None)
            return f"redirects without end{f', last from {without_credentials(str(request.url))}' if request else ''}"
    return None


def is_network_error(error: BaseException) -> bool:
    """Return whether an error or one of its causes is a failed connection, in which the server gave no answer.

    Errors of HTTP libraries are recognized by name, because those libraries may not be installed.
    """
    return not isinstance(error, FileNotFoundError | PermissionError) and any(map(_is_connection_error, error_chain(error)))


def _is_connection_error(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
        return True
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return True
    return any(base.__name__ in _CONNECTION_ERRORS.get(base.__module__.partition(".")[0], ()) for base in type(error).__mro__)


def describe_error(error: Exception) -> str:
    """Return the message of an error of this project, or else the class and first line of the error: `KeyError: 'text'`."""
    return str(error) if isinstance(error, NielsCacheError) else f"{type(error).__name__}: {first_line(error)}".removesuffix(": ")


def log_traceback(error: Exception, log: Callable[[str], object]) -> None:
    """Log the traceback of an error, except for an error of this project, whose message already says all that the user needs."""
    if not isinstance(error, NielsCacheError):
        log(without_secrets("".join(traceback.format_exception(error))))
