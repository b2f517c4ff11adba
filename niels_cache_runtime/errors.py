"""The base of all exceptions of both packages.

Every message says what is wrong, where (file, row, data set) and what to do next, so a command line can print the message unchanged.
"""


class NielsCacheError(ValueError):
    """A mistake in input, configuration or a cache on disk. The message is complete and fits on one line."""


class NotWrittenError(NielsCacheError):
    """An error of the disk, the file system, the database or an object store, and not of the request. Examples are a full disk, a read-only
    folder, and a file system without locks.
    """
