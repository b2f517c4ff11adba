"""The asset package, which turns text into token caches.

It reads sources as streams, tokenizes them with one tokenizer, and writes shards of uint16 or uint32 tokens. The lineage of the tokens and
the sha256 of each file are stored with the shards.
"""

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
