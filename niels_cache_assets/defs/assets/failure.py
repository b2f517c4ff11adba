"""A mistake of the user's shows in the UI as its one line. A bug keeps its traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from niels_cache_runtime.errors import NielsCacheError


@contextmanager
def readable_failures() -> Iterator[None]:
    """Turn NielsCacheError into a failure that says just its message and is never retried."""
    try:
        yield
    except NielsCacheError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from None
