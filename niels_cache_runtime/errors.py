"""The base of all exceptions of both packages.

Every message says what is wrong, where (file, row, data set) and what to do next, so a command line can print the message unchanged.
"""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class NielsCacheError(ValueError):
    """A mistake in input, configuration or a cache on disk. The message is complete, fits on one line and is safe for any terminal."""

    def __init__(self, message: object = "") -> None:
        super().__init__(escaped(str(message)))


class NotWrittenError(NielsCacheError):
    """A failed write that the request did not cause: an error of the disk, the file system, the database or an object store.

    Examples are a full disk, a read-only folder, and a file system without locks.
    """


class PanicError(RuntimeError):
    """A panic in a library that is written in Rust."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise PanicError if a Rust library panics in the block. pyo3 raises a BaseException, which `except Exception` does not catch."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # each library has its own class of this name
            raise
        raise PanicError(" ".join(str(error).split()) or "a panic") from error


def did_you_mean(given: object, choices: Iterable[str], otherwise: str = "") -> str:
    """Return a question that suggests the choice whose name is nearest to the given one, or `otherwise` if none is near."""
    near = difflib.get_close_matches(str(given), list(choices), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def escaped(text: str) -> str:
    """Return the text with line breaks, control characters and lone surrogates as Python's escape sequences.

    Names of files and fields may hold any of them.
    """
    return text if text.isprintable() else "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
