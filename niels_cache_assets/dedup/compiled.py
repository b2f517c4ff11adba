"""Compiling with numba where it is installed: `compiled(function)`, and `available()`.

Compiled code releases the GIL and is cached on disk beside the module (or in the user's cache folder where that cannot be written), so
that numba compiles once a machine and numba version: about four seconds in the first process. A later one takes about a second from the
import of numba to the first result; nothing is imported until the first call.
"""

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any


@lru_cache(maxsize=1)
def available() -> bool:
    """Whether numba is installed."""
    return find_spec("numba") is not None


@lru_cache(maxsize=64)
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled, or the function itself, which gives the same results, where numba is not installed."""
    if not available():
        return function
    import numba

    compile_function: Callable[..., Any] = numba.njit(cache=True, nogil=True)(function)
    return compile_function
