"""The layout of a cache on disk: dtypes, file names, paths and limits.

File names and dtypes are written in this module only. The package niels_cache_assets imports them from here. The only I/O is listing a
folder.
"""

import os
import re
from collections.abc import Callable, Mapping
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.errors import NielsCacheError

Split = Literal["train", "val"]
Family = Literal["pretrain", "sft"]
Side = Literal["chosen", "rejected"]

Tokens = NDArray[np.unsignedinteger[Any]]  # uint16 or uint32: one of TOKEN_DTYPES
Ints = NDArray[np.int64]  # numbers, positions and counts
Int32s = NDArray[np.int32]
Uint32s = NDArray[np.uint32]
Bytes = NDArray[np.uint8]
Uints = NDArray[np.uint64]  # offsets, as files hold them
Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]
Array = NDArray[Any]

SCHEMA_VERSION = 1
SPLITS: tuple[Split, Split] = ("train", "val")
SIDES: tuple[Side, Side] = ("chosen", "rejected")  # of a preference pair, in the order of the files
FAMILIES: tuple[Family, Family] = ("pretrain", "sft")

TOKEN_DTYPES: dict[str, np.dtype] = {
    "uint16-le": np.dtype("<u2"),
    "uint32-le": np.dtype("<u4"),
}  # by their names in meta.json, narrow first
TOKEN_DTYPE = np.dtype("<u2")  # of files without a meta.json
TOKEN_DTYPE_NAME = "uint16-le"
DOC_ENDS_DTYPE = np.dtype("<u8")
IDX_DTYPE = np.dtype("<i8")
TARGETS_DTYPE = np.dtype("<u8")
WEIGHTS_DTYPE = np.dtype("<f4")
MAX_VOCAB_SIZE = 1 << 31  # of uint32 tokens, so that every id fits the int32 of Megatron's format
IGNORE_INDEX = -100  # the default ignore_index of torch.nn.functional.cross_entropy

FIM_KEYS = ("pre", "suf", "mid")
FIM_NAMES = (  # the tokens for fill-in-the-middle, in this order
    "<fim_prefix> <fim_suffix> <fim_middle>",  # StarCoder
    "<|fim_prefix|> <|fim_suffix|> <|fim_middle|>",  # Qwen, CodeGemma
    "<fim-prefix> <fim-suffix> <fim-middle>",  # SantaCoder
    "<｜fim▁begin｜> <｜fim▁hole｜> <｜fim▁end｜>",  # DeepSeek
    "▁<PRE> ▁<SUF> ▁<MID>",  # CodeLlama
)

META_NAME = "meta.json"
CHAT_TEMPLATE_NAME = "chat_template.jinja"  # beside the meta.json of an SFT data set, and in folders of tokenizers
VAL_TEXTS = "val_texts"  # folder of the texts of a val that the parts of a data set are compared with; only the val part has it
TOKENIZER_MODEL_NAME = "spm.model"
TOKENIZER_MODEL_NAMES = {  # by the kind of model
    "sentencepiece": TOKENIZER_MODEL_NAME,
    "tokenizer.json": "tokenizer.json",
    "tiktoken": "tiktoken.json",  # the pattern and the special tokens, beside the ranks
}
TIKTOKEN_RANKS_NAME = "ranks.tiktoken"
TOKENIZER_SIDE_NAMES = (TIKTOKEN_RANKS_NAME, "tokenizer_config.json", "special_tokens_map.json")  # files beside a model


def token_dtype_name(vocab_size: int) -> str:
    """Return the name of the narrowest dtype that holds every id below `vocab_size`: a key of TOKEN_DTYPES.

    Raises:
        NielsCacheError: If `vocab_size` is above MAX_VOCAB_SIZE.
    """
    for name, dtype in TOKEN_DTYPES.items():
        if vocab_size <= max_vocab_size(dtype):
            return name
    raise NielsCacheError(f"a vocabulary of {vocab_size:,} ids is too large; a cache holds ids below {MAX_VOCAB_SIZE:,}")


def max_vocab_size(dtype: np.dtype) -> int:
    """Return how many ids tokens of this dtype can have. It is 2^31 for uint32, so that int32 holds every id as well."""
    return min(1 << 8 * dtype.itemsize, MAX_VOCAB_SIZE)


def token_dtype_of(meta: Mapping[str, Any] | None) -> np.dtype:
    """Return the dtype of the tokens of a cache with this meta.json. Without a meta.json, it is uint16.

    A meta.json of another program may use the names of numpy, such as "uint32" or "<u4".

    Raises:
        NielsCacheError: For a dtype that no cache has.
    """
    name = TOKEN_DTYPE_NAME if meta is None else meta.get("token_dtype", TOKEN_DTYPE_NAME)
    found = next((dtype for own, dtype in TOKEN_DTYPES.items() if name in (own, dtype.name, dtype.str)), None)
    if found is None:
        raise NielsCacheError(f"token_dtype is {name!r:.80}; tokens are {' or '.join(map(repr, TOKEN_DTYPES))}")
    return found


def forms_of(meta: Mapping[str, Any]) -> list[str]:
    """Return the names of the `CACHE_FORMS` that a cache with this meta.json has, sorted. They are the value of its key `forms`."""
    return sorted(form for form, has in CACHE_FORMS.items() if has(meta))


def has_spans(meta: Mapping[str, Any] | None) -> bool:
    """Return whether the targets of a cache with this meta.json are spans of tokens, in the files of `targets_name`."""
    return meta is not None and meta.get("kind") == "sft" and "targets" in meta


def has_target_weights(meta: Mapping[str, Any] | None) -> bool:
    """Return whether targets of a cache with this meta.json have weights other than 0 and 1, in the files of `target_weights_name`."""
    return meta is not None and meta.get("kind") == "sft" and target_weights_name("train") in (meta.get("files") or ())


def copy_name(number: int) -> str:
    """Return the name of a further copy of train, counted from 1; see `copies_of`."""
    return f"train_fim{number}"


def copies_of(meta: Mapping[str, Any] | None) -> list[str]:
    """Return the names of the further copies of train in a cache with this meta.json, whose documents were rearranged when it was built.

    A copy has the documents of train in their order, as a folder of shards and a file of document ends. An epoch reads train or a copy.
    """
    return [copy_name(number) for number in range(1, meta["fim"]["copies"])] if meta and "fim" in meta else []


def name_in_train(path: str) -> str:
    """Return the path in a cache that a file of a copy of train would have in train itself, or the path of any other file."""
    return re.sub(r"^train_fim[1-9]\d*(?=/|_doc_ends|$)", "train", path)


def has_pairs(meta: Mapping[str, Any] | None) -> bool:
    """Return whether the examples of a cache with this meta.json are preference pairs. Each has two entries in `idx_name`: its sides."""
    return meta is not None and meta.get("kind") == "sft" and "sides" in meta


# What a reader must know to read a cache, beyond uint16 tokens in full shards and targets that sentinels mark. Without it, a reader would
# misread the tokens, find no targets, learn rejected answers, leave out weights, learn the tokens that stand for struck documents, read
# one copy in all epochs, or find the short shards of parts damaged. So it refuses an unknown form.
CACHE_FORMS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "fim_copies": lambda meta: bool(copies_of(meta)),
    "pairs": has_pairs,
    "parts": lambda meta: meta.get("kind") == "pretrain" and "parts" in meta,  # the last shard of each part may be short
    "spans": has_spans,
    "target_weights": has_target_weights,
    "tombstones": lambda meta: "tombstones" in meta,
    "uint32": lambda meta: meta.get("token_dtype") == "uint32-le",
}


def tombstone_id(meta: Mapping[str, Any] | None) -> int | None:
    """Return the id that stands in the places of struck documents, which no other document holds, or None. It is never a target."""
    return (meta or {}).get("tombstones", {}).get("token_id")


def earlier_metas(meta: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the meta.json of a cache before each time that documents were struck, as far as `files` goes. No place has changed since."""
    earlier = (meta or {}).get("tombstones", {}).get("earlier", [])
    return [{**meta, "files": {**meta["files"], **files}} for files in earlier] if meta is not None else []


def entries_per_example(meta: Mapping[str, Any] | None) -> int:
    """Return how many entries of `idx_name` each example has: 2 for a preference pair, otherwise 1."""
    return len(SIDES) if has_pairs(meta) else 1


def tokenizer_model_name(meta: Mapping[str, Any]) -> str:
    """Return the name of the model's file in the folder of a tokenizer with this meta.json.

    Raises:
        NielsCacheError: For a kind of model that this version does not know.
    """
    kind = meta.get("model_kind", "sentencepiece")
    if not isinstance(kind, str) or kind not in TOKENIZER_MODEL_NAMES:
        raise NielsCacheError(f"model_kind is {kind!r:.80}; this version knows {', '.join(TOKENIZER_MODEL_NAMES)}")
    return TOKENIZER_MODEL_NAMES[kind]


def shard_name(index: int) -> str:
    """Return the file name of the shard number `index` in the folder of its split."""
    return f"shard_{index:05d}.bin"


def list_shards(folder: str | Path) -> list[Path]:
    """Return the shards of a split's folder in stream order; see `shard_names`."""
    return [Path(folder) / name for name in shard_names(folder)]


def shard_names(folder: str | Path) -> list[str]:
    """Return the names of the shards of a split's folder in stream order, or an empty list if the folder is missing.

    The order is by number, not by string: shard_100000 follows shard_99999.

    Raises:
        NielsCacheError: If a shard is missing or the folder cannot be listed.
    """
    try:
        listed = set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise NielsCacheError(f"{folder}: cannot be listed: {error.strerror or error}") from error
    names = [*takewhile(listed.__contains__, map(shard_name, count()))]
    if any(map(is_shard_name, listed.difference(names))):
        raise NielsCacheError(f"{folder}: {shard_name(len(names))} is missing; rebuild this data set")
    return names


def doc_ends_name(split: str) -> str:
    """Return the name of the uint64 .npy file that holds where each document ends (exclusive) in the split's token stream."""
    return f"{split}_doc_ends.npy"


def file_edges_name(split: str) -> str:
    """Return the name of the uint64 .npy file that a split with documents of several files has, such as repositories.

    It holds the first token of each file in the split's token stream, and the token after its last one, in turns. They increase strictly.
    """
    return f"{split}_file_edges.npy"


def documents_name(split: Split) -> str:
    """Return the name of the Parquet file that has ordinal, source_id, file, row and tokens of every document of the split."""
    return f"{split}_documents.parquet"


def documents_folder(split: str) -> str:
    """Return the name of the folder that replaces `documents_name` if the split was joined from parts: one such Parquet file for each part.

    The ordinals in such a file begin at 0 in each part.
    """
    return f"{split}_documents"


def tokens_name(split: Split) -> str:
    """Return the name of the headerless file that holds the tokens of all SFT examples of the split, example after example."""
    return f"{split}_tokens.bin"


def idx_name(split: Split) -> str:
    """Return the name of the int64 .npy file that holds where each SFT example of the split begins, in tokens.

    A preference pair has two entries: where its chosen side begins, and where its rejected side begins, which comes next.
    """
    return f"{split}_idx.npy"


def targets_name(split: Split) -> str:
    """Return the name of the uint64 .npy file, (spans, 2), that holds the first token of each target and the token after its last one."""
    return f"{split}_targets.npy"


def target_ends_name(split: Split) -> str:
    """Return the name of the uint64 .npy file that holds how many spans there are up to the end of each SFT example."""
    return f"{split}_target_ends.npy"


def target_weights_name(split: Split) -> str:
    """Return the name of the float32 .npy file, (spans,), that holds the weight of each target."""
    return f"{split}_target_weights.npy"


def span_names(meta: Mapping[str, Any] | None, split: Split) -> list[str]:
    """Return the names of the files of targets that the split of an SFT cache with this meta.json has."""
    if not has_spans(meta):
        return []
    return [targets_name(split), target_ends_name(split), *([target_weights_name(split)] if has_target_weights(meta) else [])]


def examples_name(split: Split) -> str:
    """Return the name of the Parquet file that has ordinal, source_id, file, row and tokens of every SFT example of the split."""
    return f"{split}_examples.parquet"


def is_shard_name(name: str) -> bool:
    """Return whether `shard_name` gives this name. It gives neither shard_1.bin nor "shard_00001 copy.bin"."""
    index = name[6:-4]
    return index.isdecimal() and shard_name(int(index)) == name


def is_cache_file(path: str) -> bool:
    """Return whether a cache may have such a file beside its meta.json. `path` is relative to the folder of the data set."""
    folder, _, name = name_in_train(path).rpartition("/")
    if folder in SPLITS:
        return is_shard_name(name)
    if folder:
        return folder in map(documents_folder, SPLITS) and name.endswith(".parquet") and not name.startswith(".")
    of_pretrain = (doc_ends_name, file_edges_name, documents_name)
    names = (*of_pretrain, tokens_name, idx_name, targets_name, target_ends_name, target_weights_name, examples_name)
    return name == CHAT_TEMPLATE_NAME or name in {name_of(split) for name_of in names for split in SPLITS}


def is_tokenizer_file(name: str) -> bool:
    """Return whether the folder of a tokenizer in a cache root may have a file of this name."""
    return name in (META_NAME, *TOKENIZER_MODEL_NAMES.values(), *TOKENIZER_SIDE_NAMES)


def built_names(folder: str | Path) -> list[str]:
    """Return the names of the data sets in a folder such as `ROOT/pretrain`, sorted.

    A data set is a folder with a meta.json and without a leading dot.
    """
    return sorted(path.parent.name for path in Path(folder).glob(f"*/{META_NAME}") if not path.parent.name.startswith("."))


def parts_root(root: str | Path, family: str = "pretrain") -> Path:
    """Return the folder of a cache root that holds the plans and the parts of data sets in parts, in a folder for each data set.

    Args:
        root: The cache root.
        family: "pretrain", or "corpus" for the parts of corpora.
    """
    return Path(root) / family / ".parts"


def tokenizer_dir(root: str | Path) -> Path:
    """Return the folder of the tokenizer in a cache root."""
    return Path(root) / "tokenizer"


def dataset_dir(root: str | Path, family: Family, name: str) -> Path:
    """Return the folder of a data set in a cache root."""
    return Path(root) / family / name
