"""Indices under the names of megatron-core 0.16.1, in the folder of its `path_to_cache` (--data-cache-path).

megatron-core finds these files, and then builds no indices of its own:

    MD5-GPTDataset-PART-description.txt      the text that was hashed: its md5 is MD5
                       -document_index.npy   and -sample_index.npy, -shuffle_index.npy
    MD5-BlendedDataset-PART-description.txt  with -dataset_index.npy and -dataset_sample_index.npy

The text is `json.dumps(identifiers, indent=4)`. The identifiers, their order and their types follow
`megatron/core/datasets/megatron_dataset.py` (`MegatronDataset.__init__`, `_key_config_attributes`) and `blended_dataset.py`
(`BlendedDataset.__init__`) of release 0.16.1. No code of megatron-core is imported. A different release may hash different values. Such a
release finds none of these indices, and builds its own.

megatron-core uses an index if all its files exist. megatron-core never checks the content of the files, and never looks at the data again.
So the description is the last file that is written, and the first file that is removed when files are replaced. Beside the description
there is a record `.MD5-CLASS-PART.json`, which megatron-core does not have. The record names the data that the arrays belong to, and the
sizes and sha256 of the arrays. With this record, an index is built again if its data was exported again, or if a file is damaged or
truncated. To check an existing index, the files are read once.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import sync
from niels_cache_runtime.format.meta import read_meta, sha256_file, write_meta
from niels_cache_runtime.format.npy_files import map_npy
from niels_cache_runtime.megatron.gpt_indices import split_bounds
from niels_cache_runtime.megatron.index_cache import Arrays, IndexCache, cannot_be_read, describe_files

VERSION = "0.16.1"
_CLASSES = {"gpt": "GPTDataset", "blend": "BlendedDataset"}
_ARRAYS = {"gpt": ("document_index", "sample_index", "shuffle_index"), "blend": ("dataset_index", "dataset_sample_index")}


@dataclass(frozen=True, kw_only=True)
class CoreNames:
    """The values that megatron-core hashes in addition to the settings of an index.

    folder: the value of --data-cache-path.
    split: the string of --split; None if each part has its own data sets.
    tokenizer: the `unique_identifiers` of the tokenizer, in the order of megatron-core.
    """

    folder: str
    split: str | None
    tokenizer: Mapping[str, Any]


def split_matrix(split: str | None) -> list[tuple[float, float] | None] | None:
    """Return the `config.split_matrix` of megatron-core. It has the begin and the end of each part as shares of the whole, or None for an
    empty part.
    """
    if split is None:
        return None
    return [(begin, end) if end > begin else None for begin, end in split_bounds(split)]


class MegatronCoreCache(IndexCache):
    """The indices of one part (train, valid, test) of a run. `of` returns the cache for one data set.

    `open_blend` uses an instance as an IndexCache. It opens the data sets first and then the blend. asked_for_none: True if the run
    requests 0 samples of the data sets, instead of every sample once. Both requests give the same index, but megatron-core uses different
    names for them. Raises the errors of an IndexCache, which are NielsCacheError and NotWrittenError.
    """

    def __init__(self, names: CoreNames, *, part: str, asked_for_none: bool = False) -> None:
        super().__init__(names.folder)
        self._names, self._part, self._asked_for_none = names, part, asked_for_none
        self._prefix: str | None = None
        self._members: list[dict[str, Any]] = []  # identifiers of the data sets; the list is shared with the caches from `of`

    def of(self, prefix: str | Path) -> "MegatronCoreCache":
        """Return the cache for the indices of this data set. The hash covers the prefix exactly as it is given here."""
        found = MegatronCoreCache(self._names, part=self._part, asked_for_none=self._asked_for_none)
        found._prefix, found._members = str(prefix), self._members
        return found

    def directory(self, kind: str, parameters: Mapping[str, Any]) -> Path:
        """Return the common beginning of the paths of an index's files. An index has no folder of its own."""
        md5 = hashlib.md5(self._description(kind, parameters).encode(), usedforsecurity=False).hexdigest()
        return self.folder / f"{md5}-{_CLASSES[kind]}-{self._part}"

    def array_files(self, directory: Path) -> list[Path]:
        """Return the .npy files of a finished index."""
        return [_beside(directory, name) for name in read_meta(str(_record_path(directory)))["files"]]

    def open(self, kind: str, parameters: Mapping[str, Any], build: Callable[..., object]) -> Arrays:
        """Open an index in the same way as `IndexCache.open`.

        Also record the identifiers of the data set, because the name of the blend is made from them.
        """
        arrays = super().open(kind, parameters, build)
        if kind == "gpt":
            self._members.append(self._identifiers(kind, parameters))
        return arrays

    def _identifiers(self, kind: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that are hashed, in megatron-core's order. parameters: the parameters of the index in MegatronGPTDataset or
        MegatronBlendedDataset.
        """
        if kind == "blend":
            return {
                "class": _CLASSES[kind],
                "datasets": self._members,
                "split": self._part,
                "weights": parameters["counts"] if parameters["size"] is None else parameters["weights"],
                "size": parameters["size"],
            }
        return {
            "class": _CLASSES[kind],
            "dataset_path": self._prefix,
            "num_samples": 0 if self._asked_for_none else parameters["num_samples"],
            "index_split": self._part,
            "random_seed": parameters["seed"],
            "sequence_length": parameters["sequence_length"],
            "split": self._names.split,
            "split_matrix": split_matrix(self._names.split),
            "tokenizer": self._names.tokenizer,
        }

    def _description(self, kind: str, parameters: Mapping[str, Any]) -> str:
        return json.dumps(self._identifiers(kind, parameters), indent=4)

    def _find(self, directory: Path, kind: str, parameters: Mapping[str, Any]) -> Arrays | None:
        try:
            record = read_meta(str(_record_path(directory)))
            files: dict[str, Any] = record["files"]
            written = _beside(directory, "description.txt").read_text(encoding="utf-8")
            if written != self._description(kind, parameters) or record["parameters"] != dict(parameters):
                return None
            if set(files) != {f"{name}.npy" for name in _ARRAYS[kind]} or not all(_same(directory, name, files[name]) for name in files):
                return None
            return {name: map_npy(_beside(directory, f"{name}.npy")) for name in _ARRAYS[kind]}
        except (NielsCacheError, OSError, UnicodeDecodeError, KeyError, TypeError):  # the index is missing or damaged
            return None

    def _commit(self, partial: Path, directory: Path, kind: str, parameters: Mapping[str, Any]) -> None:
        record = describe_files(partial, f"megatron-core/{kind}", parameters)
        files: dict[str, Any] = record["files"]
        try:
            for name in files:
                map_npy(partial / name)
        except NielsCacheError as error:
            raise cannot_be_read(partial) from error
        description = _beside(directory, "description.txt")
        if not all(_same(directory, name, entry) for name, entry in files.items()):  # megatron-core may have built the same files
            for path in (description, *(_beside(directory, name) for name in files)):
                path.unlink(missing_ok=True)  # files of two builds must never be mixed
            sync(self.folder)
            for name in files:
                os.rename(partial / name, _beside(directory, name))
        write_meta(str(_record_path(directory)), record)
        prepared = partial / "description.txt"
        prepared.write_text(self._description(kind, parameters), encoding="utf-8")
        sync(prepared)
        sync(self.folder)
        os.replace(prepared, description)
        sync(self.folder)


def _beside(directory: Path, name: str) -> Path:
    return directory.parent / f"{directory.name}-{name}"


def _record_path(directory: Path) -> Path:
    return directory.parent / f".{directory.name}.json"


def _same(directory: Path, name: str, entry: Mapping[str, Any]) -> bool:
    """Return whether the file exists and has the recorded size and sha256."""
    path = _beside(directory, name)
    return path.is_file() and path.stat().st_size == entry["bytes"] and sha256_file(str(path)) == entry["sha256"]
