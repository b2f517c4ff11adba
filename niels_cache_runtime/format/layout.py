"""What a cache looks like on disk: dtypes, file names, paths, limits.

The only place where a file name or a dtype is spelled; the asset package imports it from here. No I/O beyond listing a folder.
"""

import os
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
    """The shards of a split's folder in stream order (by index, not by string: shard_100000 follows shard_99999); none without a folder.

    Raises NielsCacheError if one of them is missing or the folder cannot be listed.
    """
    folder = Path(folder)
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise NielsCacheError(f"{folder}: cannot be listed: {error.strerror or error}") from error
    indexes = [name[6:-4] for name in names if name.startswith("shard_") and name.endswith(".bin")]
    # Only the digits that shard_name writes: neither shard_1.bin nor "shard_00001 copy.bin".
    found = sorted({int(index) for index in indexes if index.isdecimal() and shard_name(int(index)) == f"shard_{index}.bin"})
    if found and found[-1] != len(found) - 1:
        missing = next(index for index, present in enumerate(found) if index != present)
        raise NielsCacheError(f"{folder}: {shard_name(missing)} is missing; rebuild this data set")
    return [folder / shard_name(index) for index in found]


def doc_ends_name(split: str) -> str:
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


def built_names(folder: str | Path) -> list[str]:
    """The data sets in a folder of them, such as `ROOT/pretrain`, sorted: what has a meta.json. A leading dot is an unfinished build's."""
    return sorted(path.parent.name for path in Path(folder).glob(f"*/{META_NAME}") if not path.parent.name.startswith("."))


def tokenizer_dir(root: str | Path) -> Path:
    return Path(root) / "tokenizer"


def dataset_dir(root: str | Path, family: Family, name: str) -> Path:
    return Path(root) / family / name
