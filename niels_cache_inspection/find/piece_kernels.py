"""The loops of `pieces` that join the bytes of many tokens, compiled by numba as those of `niels_cache_assets/dedup/kernels.py`.

The first bytes of each piece are in a table of rows of one length, so that copying them is one move for most tokens. What they write beyond
the piece is overwritten by the next one.
"""

import numpy as np
from numba import njit

compiled = njit(cache=True, nogil=True)

HEAD_BYTES = 8


@compiled
def count_bytes(ids, sizes):  # type: ignore[no-untyped-def]
    """Return the number of bytes of tokens."""
    total = 0
    for number in range(len(ids)):
        total += sizes[ids[number]]
    return total


@compiled
def join_pieces(ids, sizes, heads, starts, pieces, content, begins):  # type: ignore[no-untyped-def]
    """Write the bytes of tokens one after the other.

    Args:
        ids: The tokens, (n,).
        sizes: The number of bytes of each piece, (pieces,).
        heads: The first bytes of each piece, (pieces, HEAD_BYTES) uint8.
        starts: Where each piece begins in `pieces`, (pieces,) uint64.
        pieces: All pieces, back to back, uint8.
        content: Gets the bytes; it has room for HEAD_BYTES more.
        begins: Gets where the bytes of each token begin, (n + 1,) int64.
    """
    end = np.uint64(0)
    for number in range(len(ids)):
        begins[number] = end
        token = np.uint64(ids[number])
        size = np.uint64(sizes[token])
        for place in range(HEAD_BYTES):
            content[end + np.uint64(place)] = heads[token, np.uint64(place)]
        if size > HEAD_BYTES:
            start = starts[token]
            for place in range(HEAD_BYTES, size):
                content[end + np.uint64(place)] = pieces[start + np.uint64(place)]
        end += size
    begins[len(ids)] = end
