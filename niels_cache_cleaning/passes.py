"""Compiled passes over a text, which prove that a step of `normalizers` changes nothing, or that a text passes a filter (`quick_checks`).

A pass reads the UTF-8 bytes of a text once (`kernels`), in 1 to 3 ms per megabyte. numba takes about a second to start, so `Cleaner` uses
the passes only after its first WORTH_IT characters.
"""

import numpy as np

from niels_cache_runtime.format.layout import Bytes

WORTH_IT = 4_000_000  # characters that are cleaned in about half a second without these loops


def bytes_of(text: str) -> Bytes:
    """Return the UTF-8 bytes of a text as a uint8 array."""
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
