"""Where the documents of a split end: asked for where nothing can be done without, and used to cut its stream into whole documents.

Cost: one binary search for each part. Boundaries inside batches are the business of `documents`. Nothing here needs torch.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_BYTES, doc_ends_name


def require_doc_ends(folder: str | Path, doc_ends: NDArray[np.uint64] | None) -> NDArray[np.uint64]:
    """The `doc_ends` of the split's folder as it was opened. Raises NielsCacheError where there are none."""
    if doc_ends is None:
        raise NielsCacheError(f"{folder}: {doc_ends_name(Path(folder).name)} is not beside it, so its documents are unknown; rebuild it")
    return doc_ends


def cut_documents(folder: str | Path, doc_ends: NDArray[np.uint64], max_tokens: int) -> list[tuple[int, int, int, int]]:
    """The split cut into ranges of whole documents with at most `max_tokens` each: first and end document, first and end token.

    Raises NielsCacheError for a document that is longer.
    """
    cuts, document, token = [], 0, 0
    while document < len(doc_ends):
        stop = int(doc_ends.searchsorted(np.uint64(token + max_tokens), side="right"))
        if stop == document:
            size = int(doc_ends[document]) - token
            raise NielsCacheError(f"{folder}: document {document} has {size} tokens, {size * TOKEN_BYTES} bytes: raise max_bytes")
        cuts.append((document, stop, token, int(doc_ends[stop - 1])))
        document, token = stop, int(doc_ends[stop - 1])
    return cuts
