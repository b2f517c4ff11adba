"""The asset package, which turns text into token caches.

It reads sources as streams, tokenizes them with one tokenizer, and writes shards of uint16 or uint32 tokens. The lineage of the tokens and
the sha256 of each file are stored with the shards. Each name loads its module at first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from niels_cache_assets.build_cache import build_pretrain_cache, build_sft_cache
    from niels_cache_assets.exchange.hf import to_hf_dataset

__all__ = ["build_pretrain_cache", "build_sft_cache", "to_hf_dataset"]

_MODULES = {"build_pretrain_cache": "build_cache", "build_sft_cache": "build_cache", "to_hf_dataset": "exchange.hf"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
