"""A split of a cache in place of an IndexedDataset: the samples and indices are the same as from an export of the split.

If `indexed_writer` exports the split as one part, the exported files have the same lengths, pointers and fingerprint as here. An index that
was built from the split can therefore be used for the exported files, and vice versa, wherever the files are. Opening costs one pass over
doc_ends and 4 bytes of memory per document, for an instant 8. Reading samples costs another 8 bytes per document.
"""

import mmap
import os
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from niels_cache_runtime.cache.mmap import slice_pieces
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_DTYPE, Array, Int32s, Ints
from niels_cache_runtime.format.meta import build_id, is_foreign
from niels_cache_runtime.megatron.indexed import (
    DTYPE_OF_CACHE,
    PROBE_BYTES,
    IndexedDataset,
    are_different_files,
    count_up,
    digest_of_blocks,
    file_identities,
    fingerprint_of,
    header_of,
    sequence_lengths,
)
from niels_cache_runtime.megatron.indexed_writer import open_documents
from niels_cache_runtime.remote.split_location import Copy, SplitLocation
from niels_cache_runtime.remote.store import is_address


class MegatronCacheSplit:
    """The documents of a split of a cache, in the form of an IndexedDataset.

    Each document, with its end-of-text token, is one sequence. The format has no uint32, so uint32 tokens of a cache appear as int32. The
    bytes are the same, because every id is below 2^31. MegatronGPTDataset reads the attributes.

    The object can be pickled: a copy opens the folder again, and raises an error if the folder contains another build. Builds are compared
    by meta.json or, without a meta.json, by the files (see `IndexedDataset`).

    Args:
        folder: The folder of the split, such as `cache/pretrain/NAME/train`, or the address of a split.
        remote: The local copy, for an address, such as Copy(dir="/local/tokens", limit=200e9). The whole split is downloaded first, so it
            must fit. For larger splits, use TokenLoader with order=Blocks().

    Attributes:
        sequence_lengths: The number of tokens of each sequence, (S,) int32.
        sequence_pointers: Where each sequence starts, (S,) int64, in bytes.
        tokens: All tokens as one mapped array of `dtype`.
        dtype: The dtype of a token, uint16 or int32.
        fingerprint: The fingerprint that an IndexedDataset of these documents has.

    Raises:
        NielsCacheError: If the split cannot be opened, is empty, has no doc_ends, or has a document with more tokens than an int32 can
            count.
    """

    dtype: np.dtype = TOKEN_DTYPE  # each object sets the dtype of its own split

    def __init__(self, folder: str | Path, *, remote: Copy | None = None) -> None:
        self._location = SplitLocation.of(folder, remote)
        self.folder, self._copy = self._location.whole()
        self._open()

    def _open(self) -> None:
        split, ends = open_documents(self.folder)
        self._mapped, self._ends = split.tokens, ends
        self.dtype = DTYPE_OF_CACHE[split.tokens.dtype]
        # Our own meta.json has the sha256 of every file. Without it, only the files can be compared.
        has_hashes = split.meta is not None and not is_foreign(split.meta)
        self._build = {"meta_sha256": build_id(split.meta)} if has_hashes else file_identities([os.stat(shard) for shard in split.shards])
        self.sequence_lengths: Int32s = np.concatenate([*sequence_lengths(self.folder, ends)])

    def __len__(self) -> int:
        """Return the number of sequences, which is the number of documents."""
        return len(self.sequence_lengths)

    @cached_property
    def sequence_pointers(self) -> Ints:
        return (self._ends.astype(np.int64) - self.sequence_lengths) * self.dtype.itemsize

    @cached_property
    def tokens(self) -> Array:
        """The tokens of the split as one mapped array.

        Raises:
            NielsCacheError: If the shards are not whole pages, so that they cannot be mapped as one array.
        """
        stream, shards = self._mapped.stream, self._mapped.shards
        if stream is not None or len(shards) == 1:
            return (shards[0] if stream is None else stream).view(self.dtype)
        raise NielsCacheError(
            f"{self.folder}: {len(shards)} shards that cannot be mapped as one; build it with shard_bytes that are a multiple of "
            f"{mmap.PAGESIZE}, or export it"
        )

    @cached_property
    def fingerprint(self) -> str:
        header = header_of(self.dtype, sequences=len(self), entries=len(self) + 1)
        size = int(self._ends[-1]) * self.dtype.itemsize
        return fingerprint_of(header, chain([self.sequence_lengths], count_up(len(self) + 1)), digest_of_blocks(size, self._bytes_at))

    def _bytes_at(self, place: int) -> bytes:
        shards = (shard.view(np.uint8) for shard in self._mapped.shards)
        return b"".join(piece.tobytes() for piece in slice_pieces(shards, place, place + PROBE_BYTES))

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self._location.given, "remote": self._location.remote, "fingerprint": self.fingerprint, "build": self._build}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["folder"], remote=state["remote"])  # type: ignore[misc]
        if self.fingerprint != state["fingerprint"] or are_different_files(self._build, state["build"]):
            raise NielsCacheError(f"{self.folder}: was rebuilt since it was opened; open it again in every process")


Indexed = IndexedDataset | MegatronCacheSplit


def open_indexed(path: str | Path, *, remote: Copy | None = None) -> Indexed:
    """Open a data set of Megatron-LM, or a split of a cache.

    Args:
        path: The prefix of .idx and .bin files, or the folder of a split of a cache, or the address of a split.
        remote: The local copy, for an address (see `MegatronCacheSplit`).

    Returns:
        An IndexedDataset or a MegatronCacheSplit.

    Raises:
        NielsCacheError: If the path is neither, or if the data set cannot be opened.
    """
    if is_address(str(path)):
        return MegatronCacheSplit(path, remote=remote)
    if Path(f"{path}.idx").exists():
        return IndexedDataset(path)
    if Path(path).is_dir():
        return MegatronCacheSplit(path)
    prefix, ending = os.path.splitext(path)
    if ending in (".bin", ".idx") and Path(f"{prefix}.idx").exists():
        raise NielsCacheError(f"{path}: leave out {ending}; the prefix of both files is {prefix}")
    raise NielsCacheError(f"{path}: no such folder of a split, and no {path}.idx; build this data set first, or check the path")
