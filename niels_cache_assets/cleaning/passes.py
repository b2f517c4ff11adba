"""Compiled passes over a text, which prove that a step of `normalizers` changes nothing, or that a text passes a filter (`quick_checks`).

A pass reads the UTF-8 bytes of a text once (`kernels`), in 1 to 3 ms per megabyte. numba takes about a second to start, so `Cleaner` uses
the passes only after its first WORTH_IT characters, and only if numba is installed.
"""

from functools import lru_cache
from importlib.util import find_spec

import numpy as np

from niels_cache_runtime.format.layout import Bytes, Uints

WORTH_IT = 4_000_000  # characters that are cleaned in about half a second without these loops


@lru_cache(maxsize=1)
def is_available() -> bool:
    """Return whether numba is installed."""
    return find_spec("numba") is not None


def bits_in(text: str, table: Uints) -> int:
    """Return the bits of the table for all characters of the text (see `kernels.scan`)."""
    from niels_cache_assets.cleaning import kernels

    return int(kernels.scan(bytes_of(text), table))


def table_of(bits: dict[int, str], *, others: int) -> Uints:
    """Return the table for `bits_in`.

    Args:
        bits: Characters below `kernels.LIMIT` by their bit.
        others: Bit of all characters that are neither below the limit nor pictures.
    """
    from niels_cache_assets.cleaning import kernels

    table = np.zeros(kernels.SIZE, dtype=np.uint64)
    for bit, characters in bits.items():
        table[[ord(character) for character in characters]] |= np.uint64(1 << bit)
    table[kernels.LIMIT] = 1 << others
    return table


def bytes_of(text: str) -> Bytes:
    """Return the UTF-8 bytes of a text as a uint8 array."""
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
