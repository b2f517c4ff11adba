"""A look at what stays of a prepared data set: documents drawn uniformly, how long they are, how many tokens they may be.

One pass over the corpus that decompresses only the row groups that are drawn from; the totals are known. Memory: 17 bytes a document.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from niels_cache_assets.config.registry import Registry
from niels_cache_assets.corpus.reading import open_prepared
from niels_cache_assets.corpus.report import estimated_tokens
from niels_cache_assets.documents import Document
from niels_cache_runtime.errors import NielsCacheError


@dataclass(frozen=True, kw_only=True)
class CorpusSample:
    """`documents`: (ordinal in the corpus, document), ascending. The rest is of all `kept` documents, not of those drawn."""

    documents: list[tuple[int, Document]]
    kept: int
    mean_characters: float
    estimated_tokens: int


def sample_corpus(registry: Registry, name: str, *, root: Path, count: int, seed: int, minus_duplicates: bool = True) -> CorpusSample:
    """`count` documents (or all there are) that stay, every set of them with the same chance; the same for the same seed and corpus.

    `minus_duplicates` False: of the cleaned documents, whether their duplicates have been looked for or not. Raises as `open_prepared`.
    """
    if count < 1:
        raise NielsCacheError(f"a sample has at least 1 document, not {count}")
    import torch

    prepared = open_prepared(registry, name, root=root, minus_duplicates=minus_duplicates)
    stay = np.flatnonzero(~prepared.gone)
    order = torch.randperm(len(stay), generator=torch.Generator().manual_seed(seed))[:count]
    chosen = np.sort(stay[order.numpy()])
    characters = prepared.meta["characters"]["after"] - (sum(prepared.drops["characters"].values()) if prepared.drops else 0)
    return CorpusSample(
        documents=list(zip(chosen.tolist(), prepared.select(chosen), strict=True)),
        kept=prepared.kept,
        mean_characters=characters / prepared.kept if prepared.kept else 0.0,
        estimated_tokens=estimated_tokens(characters),
    )
