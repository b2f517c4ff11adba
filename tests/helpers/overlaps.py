"""The comparison of train with val of a finished cache."""

from pathlib import Path
from typing import Any

from niels_cache_assets.facts.disjoint import OverlapSettings, SplitOverlap, compare_splits
from niels_cache_runtime.format.meta import read_meta


def overlap_of(folder: Path, tokenizer: Any, *, threshold: float | None = 0.8, everything: bool = True, **rest: Any) -> SplitOverlap:
    """Compare train with val, whatever the build has recorded."""
    settings = OverlapSettings(threshold=threshold, everything=everything)
    return compare_splits(folder, read_meta(str(folder / "meta.json")), tokenizer, settings, **rest)
