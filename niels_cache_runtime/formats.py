"""What a cache looks like on disk: dtypes, file names, paths, limits.

The only place where a file name or a dtype is spelled; the asset package imports it from here. No I/O beyond listing a folder.
"""

from pathlib import Path
from typing import Literal

import numpy as np

from niels_cache_runtime.errors import NielsCacheError

Split = Literal["train", "val"]
Family = Literal["pretrain", "sft"]

SCHEMA_VERSION = 1
SPLITS: tuple[Split, Split] = ("train", "val")
FAMILIES: tuple[Family, Family] = ("pretrain", "sft")

TOKEN_DTYPE = np.dtype("<u2")
TOKEN_DTYPE_NAME = "uint16-le"
DOC_ENDS_DTYPE = np.dtype("<u8")
IDX_DTYPE = np.dtype("<i8")
TOKEN_BYTES = TOKEN_DTYPE.itemsize
MAX_VOCAB_SIZE = 65_536
IGNORE_INDEX = -100  # what torch.nn.functional.cross_entropy ignores by default

META_NAME = "meta.json"
TOKENIZER_MODEL_NAME = "spm.model"


def shard_name(index: int) -> str:
    """File name of the shard with that index in its split's folder."""
    return f"shard_{index:05d}.bin"


def list_shards(folder: str | Path) -> list[Path]:
    """The shards of a split's folder in stream order (by index, not by string: shard_100000 follows shard_99999)."""
    indexed = {path: path.stem.removeprefix("shard_") for path in Path(folder).glob("shard_[0-9]*.bin")}
    found = {int(index): path for path, index in indexed.items() if index.isdecimal() and path.name == shard_name(int(index))}
    if sorted(found) != list(range(len(found))):
        missing = min(set(range(len(found))) - set(found))
        raise NielsCacheError(f"{folder}: {shard_name(missing)} is missing; rebuild this data set")
    return [found[index] for index in sorted(found)]


def doc_ends_name(split: Split) -> str:
    """uint64 .npy: exclusive cumulative end of every document in the split's token stream."""
    return f"{split}_doc_ends.npy"


def documents_name(split: Split) -> str:
    """Parquet: ordinal, source_id, file, row, tokens of every document of the split."""
    return f"{split}_documents.parquet"


def tokens_name(split: Split) -> str:
    """SFT: headerless uint16 tokens of every example of the split, back to back."""
    return f"{split}_tokens.bin"


def idx_name(split: Split) -> str:
    """SFT: int64 .npy, start offset in tokens of every example of the split."""
    return f"{split}_idx.npy"


def examples_name(split: Split) -> str:
    """SFT parquet: ordinal, source_id, file, row, tokens of every example of the split."""
    return f"{split}_examples.parquet"


def tokenizer_dir(root: str | Path) -> Path:
    return Path(root) / "tokenizer"


def dataset_dir(root: str | Path, family: Family, name: str) -> Path:
    return Path(root) / family / name
