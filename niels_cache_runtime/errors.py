"""The base of all exceptions of both packages.

Every message says what is wrong, where (file, row, data set) and what to do next, so a command line can print the message unchanged.
"""


class NielsCacheError(ValueError):
    """A mistake in input, configuration or a cache on disk. The message is complete, fits on one line and is safe for any terminal."""

    def __init__(self, message: object = "") -> None:
        super().__init__(escaped(str(message)))


class NotWrittenError(NielsCacheError):
    """An error of the disk, the file system, the database or an object store, and not of the request. Examples are a full disk, a read-only
    folder, and a file system without locks.
    """


def escaped(text: str) -> str:
    """Return the text with line breaks, control characters and halves of surrogate pairs as escape sequences of Python.

    Names of files and fields may hold any of them.
    """
    return text if text.isprintable() else "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
