"""The exact Jaccard similarity of two shingle sets: what MinHash slots estimate and `verify = "jaccard"` asks for."""

import numpy as np
from numpy.typing import NDArray


def jaccard(shingles: NDArray[np.uint64], others: NDArray[np.uint64]) -> float:
    """|A and B| / |A or B| of two sorted arrays of unique hashes (`Signer.shingle_hashes`); 0.0 where one is empty, both included.

    O(n log m), n the smaller one.
    """
    if len(shingles) > len(others):
        shingles, others = others, shingles
    if len(shingles) == 0:
        return 0.0
    places = np.searchsorted(others, shingles)
    shared = int(np.count_nonzero(others[np.minimum(places, len(others) - 1)] == shingles))
    return shared / (len(shingles) + len(others) - shared)
