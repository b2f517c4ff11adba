"""The loop that builds a blend, compiled by numba.

numba is optional. Only this module of the runtime imports numba, and only to build a large blend. The import takes about a second and
80 MB, and compiling half a second more. Products and differences are rounded one by one (no fast-math, so nothing is fused). Without numba,
or if numba cannot be loaded or is switched off (NUMBA_DISABLE_JIT=1), `compiled_blend` returns None.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray


@lru_cache(maxsize=1)
def compiled_blend() -> Callable[..., None] | None:
    """Return the compiled `_blend_loop`, or None if numba cannot compile here."""
    try:
        import numba
    except (ImportError, OSError, SystemError):  # numba is not installed, was built for a different numpy, or cannot load its library
        return None
    if vars(numba.config).get("DISABLE_JIT"):
        return None
    compiled: Callable[..., None] = numba.njit(nogil=True)(_blend_loop)
    return compiled


def _blend_loop(weights: NDArray[Any], counts: NDArray[Any], first: int, chosen: NDArray[Any], numbers: NDArray[Any]) -> None:
    """Fill `chosen` and `numbers` for the samples from `first` on, and update `counts` (D,)."""
    for place in range(len(chosen)):
        at = max(float(first + place), 1.0)
        dataset, largest = 0, weights[0] * at - counts[0]
        for other in range(1, len(weights)):
            error = weights[other] * at - counts[other]
            if error > largest:
                dataset, largest = other, error
        chosen[place] = dataset
        numbers[place] = int(counts[dataset])
        counts[dataset] += 1.0
