"""Megatron-LM's data sets without megatron-core: files, samples and their order are the same as in megatron-core 0.16.1.

    IndexedDataset --split_ranges--> sequences of train, valid, test --MegatronGPTDataset--> samples --MegatronBlendedDataset--> blend

Only numpy and torch are needed. If numba is installed, large blends are built faster (`blend_indices`). Each name loads its module at first
use.
"""

from typing import TYPE_CHECKING

from niels_cache_runtime.lazy_names import load_lazily

if TYPE_CHECKING:
    from niels_cache_runtime.cache.index_cache import IndexCache
    from niels_cache_runtime.megatron.blended import MegatronBlendedDataset, open_blend, prebuild_blend
    from niels_cache_runtime.megatron.cache_split import MegatronCacheSplit, open_indexed
    from niels_cache_runtime.megatron.gpt_dataset import MegatronGPTDataset
    from niels_cache_runtime.megatron.gpt_indices import split_ranges
    from niels_cache_runtime.megatron.indexed import IndexedDataset
    from niels_cache_runtime.megatron.indexed_writer import IndexedWriter, plan_indexed, write_indexed

__all__ = [
    "IndexCache",
    "IndexedDataset",
    "IndexedWriter",
    "MegatronBlendedDataset",
    "MegatronCacheSplit",
    "MegatronGPTDataset",
    "open_blend",
    "open_indexed",
    "plan_indexed",
    "prebuild_blend",
    "split_ranges",
    "write_indexed",
]

_MODULES = {
    "blended": "MegatronBlendedDataset open_blend prebuild_blend",
    "cache_split": "MegatronCacheSplit open_indexed",
    "gpt_dataset": "IndexCache MegatronGPTDataset",
    "gpt_indices": "split_ranges",
    "indexed": "IndexedDataset",
    "indexed_writer": "IndexedWriter plan_indexed write_indexed",
}

__getattr__ = load_lazily(__name__, _MODULES)
