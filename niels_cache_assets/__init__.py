"""The asset package, which turns text into token caches: streams of sources, one tokenization, uint16 shards with lineage and sha256."""

from typing import TYPE_CHECKING, Any

from niels_cache_assets.old_paths import MOVED
from niels_cache_runtime.old_paths import forward

if TYPE_CHECKING:
    from niels_cache_assets.exchange.hf import to_hf_dataset

__all__ = ["to_hf_dataset"]

forward(MOVED)


def __getattr__(name: str) -> Any:
    if name != "to_hf_dataset":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from niels_cache_assets.exchange.hf import to_hf_dataset  # lazy, because datasets and pyarrow take seconds to import

    return to_hf_dataset
