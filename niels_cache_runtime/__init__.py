"""What training imports: memory-mapped token caches and samplers over them. Needs torch and numpy, nothing else.

    from niels_cache_runtime import TokenLoader                                     # order, blends, packing, resume
    from niels_cache_runtime import PretrainTokenStreamDataset, SFTExampleDataset   # random windows and examples

Names load their module when first used, so that reading a meta.json or verifying a cache does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from niels_cache_runtime.batch import Batch
    from niels_cache_runtime.catalog import open_cache
    from niels_cache_runtime.documents import document_mask, flex_block_mask
    from niels_cache_runtime.errors import NielsCacheError
    from niels_cache_runtime.loader import TokenLoader
    from niels_cache_runtime.meta import read_meta, sha256_file, write_meta
    from niels_cache_runtime.pretrain_dataset import PretrainTokenStreamDataset
    from niels_cache_runtime.sequential import DatasetLoader
    from niels_cache_runtime.sft_dataset import SFTExampleDataset, assistant_target_mask

__all__ = [
    "Batch",
    "DatasetLoader",
    "NielsCacheError",
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
    "Batch": "batch",
    "DatasetLoader": "sequential",
    "NielsCacheError": "errors",
    "PretrainTokenStreamDataset": "pretrain_dataset",
    "SFTExampleDataset": "sft_dataset",
    "TokenLoader": "loader",
    "assistant_target_mask": "sft_dataset",
    "document_mask": "documents",
    "flex_block_mask": "documents",
    "open_cache": "catalog",
    "read_meta": "meta",
    "sha256_file": "meta",
    "write_meta": "meta",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
