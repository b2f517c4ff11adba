"""The package that training imports: memory-mapped token caches, and samplers over them. It needs only torch and numpy.

    from niels_cache_runtime import TokenLoader                                     # order, blends, packing, resume
    from niels_cache_runtime import PretrainTokenStreamDataset, SFTExampleDataset   # random windows and examples

A name loads its module at first use, so reading a meta.json or verifying a cache does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from niels_cache_runtime.cache.sft import assistant_target_mask
    from niels_cache_runtime.catalog import open_cache
    from niels_cache_runtime.errors import NielsCacheError
    from niels_cache_runtime.format.meta import read_meta, sha256_file, write_meta
    from niels_cache_runtime.loader.batch import Batch
    from niels_cache_runtime.loader.documents import document_mask, flex_block_mask
    from niels_cache_runtime.loader.loader import TokenLoader
    from niels_cache_runtime.loader.preference.batch import PreferenceBatch
    from niels_cache_runtime.loader.settings import SFT, Blocks
    from niels_cache_runtime.remote.split_location import Copy
    from niels_cache_runtime.samplers.pretrain_dataset import PretrainTokenStreamDataset
    from niels_cache_runtime.samplers.sequential import DatasetLoader
    from niels_cache_runtime.samplers.sft_dataset import PreferenceDataset, SFTExampleDataset

__all__ = [
    "SFT",
    "Batch",
    "Blocks",
    "Copy",
    "DatasetLoader",
    "NielsCacheError",
    "PreferenceBatch",
    "PreferenceDataset",
    "PretrainTokenStreamDataset",
    "SFTExampleDataset",
    "TokenLoader",
    "assistant_target_mask",
    "document_mask",
    "flex_block_mask",
    "open_cache",
    "read_meta",
    "sha256_file",
    "write_meta",
]

_MODULES = {
    "SFT": "loader.settings",
    "Batch": "loader.batch",
    "Blocks": "loader.settings",
    "Copy": "remote.split_location",
    "DatasetLoader": "samplers.sequential",
    "NielsCacheError": "errors",
    "PreferenceBatch": "loader.preference.batch",
    "PreferenceDataset": "samplers.sft_dataset",
    "PretrainTokenStreamDataset": "samplers.pretrain_dataset",
    "SFTExampleDataset": "samplers.sft_dataset",
    "TokenLoader": "loader.loader",
    "assistant_target_mask": "cache.sft",
    "document_mask": "loader.documents",
    "flex_block_mask": "loader.documents",
    "open_cache": "catalog",
    "read_meta": "format.meta",
    "sha256_file": "format.meta",
    "write_meta": "format.meta",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
