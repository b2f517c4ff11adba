"""The package that training imports: memory-mapped token caches, and samplers over them. It needs only torch and numpy.

    from niels_cache_runtime import TokenLoader                                     # order, blends, packing, resume
    from niels_cache_runtime import PretrainTokenStreamDataset, SFTExampleDataset   # random windows and examples

A name loads its module at first use, so reading a meta.json or verifying a cache does not import torch.
"""

from typing import TYPE_CHECKING

from niels_cache_runtime.lazy_names import load_lazily

if TYPE_CHECKING:
    from niels_cache_runtime.cache.sft import assistant_target_mask
    from niels_cache_runtime.catalog import open_cache
    from niels_cache_runtime.errors import NielsCacheError
    from niels_cache_runtime.format.meta import read_meta, sha256_file, write_meta
    from niels_cache_runtime.loader.batch import Batch
    from niels_cache_runtime.loader.documents import document_mask, flex_block_mask
    from niels_cache_runtime.loader.loader import TokenLoader
    from niels_cache_runtime.loader.packing.fim import FIM
    from niels_cache_runtime.loader.phases import Phase, PhasedLoader
    from niels_cache_runtime.loader.preference.batch import PreferenceBatch
    from niels_cache_runtime.loader.settings import SFT, BestFit, Blocks
    from niels_cache_runtime.remote.split_location import Copy
    from niels_cache_runtime.samplers.pretrain_dataset import PretrainTokenStreamDataset
    from niels_cache_runtime.samplers.sequential import DatasetLoader
    from niels_cache_runtime.samplers.sft_dataset import PreferenceDataset, SFTExampleDataset

__all__ = [
    "FIM",
    "SFT",
    "Batch",
    "BestFit",
    "Blocks",
    "Copy",
    "DatasetLoader",
    "NielsCacheError",
    "Phase",
    "PhasedLoader",
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
    "cache.sft": "assistant_target_mask",
    "catalog": "open_cache",
    "errors": "NielsCacheError",
    "format.meta": "read_meta sha256_file write_meta",
    "loader.batch": "Batch",
    "loader.documents": "document_mask flex_block_mask",
    "loader.loader": "TokenLoader",
    "loader.packing.fim": "FIM",
    "loader.phases": "Phase PhasedLoader",
    "loader.preference.batch": "PreferenceBatch",
    "loader.settings": "SFT BestFit Blocks",
    "remote.split_location": "Copy",
    "samplers.pretrain_dataset": "PretrainTokenStreamDataset",
    "samplers.sequential": "DatasetLoader",
    "samplers.sft_dataset": "PreferenceDataset SFTExampleDataset",
}

__getattr__ = load_lazily(__name__, _MODULES)
