"""The one exception family of both packages.

Every message says what is wrong, where (file, row, data set) and what to do next, so that a command line can print it as is.
"""


class NielsCacheError(ValueError):
    """A mistake in input, configuration or a cache on disk; the message is complete and fits one line."""


class NotWrittenError(NielsCacheError):
    """An error of the place, not of the request: a full or read-only folder, a file system without locks, a database that refuses."""
