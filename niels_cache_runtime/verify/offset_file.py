"""Sorted offsets of an .npy file, read in pieces, for a verifier.

The memory of a verifier must not grow with the file, and a bad disk must not end it. If a disk fails under a memory map, a signal ends the
process; here the failure is an error. Opening costs one pass, which keeps every 4096th offset in memory. Then each range costs one small
read. Training maps its offsets instead (`mmap`).
"""

import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.cache.mmap import check_doc_ends, check_example_starts, check_offsets_form
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, IDX_DTYPE
from niels_cache_runtime.format.npy_files import read_npy_header
from niels_cache_runtime.format.safe_open import open_regular

Kind = Literal["doc_ends", "example_starts"]

_STEP = 4096
_KINDS = {"doc_ends": (DOC_ENDS_DTYPE, check_doc_ends), "example_starts": (IDX_DTYPE, check_example_starts)}


class OffsetFile:
    """A 1-D .npy file of offsets for a split of `token_count` tokens. `offsets[i]` and `offsets[i:j]` read from the file.

    Raises NielsCacheError if the file cannot be read, or breaks the rules of `map_doc_ends` or `map_example_starts` in `mmap`.
    """

    def __init__(self, path: Path, kind: Kind, *, token_count: int) -> None:
        self._path = path
        self._dtype, check = _KINDS[kind]
        try:
            header = read_npy_header(path)
        except FileNotFoundError as error:
            raise NielsCacheError(f"{path}: no such file; build this data set first") from error
        except OSError as error:
            raise self._unreadable(error) from error
        check_offsets_form(path, header.dtype or header.descr, header.shape, wanted=self._dtype)
        self._count, self._begin = header.shape[0], header.offset
        check(path, self, token_count=token_count)
        every = [self[first : first + 1] for first in range(0, self._count, _STEP)]
        self._sparse = np.concatenate([np.array([], dtype=self._dtype), *every])

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            first, end, _ = index.indices(self._count)
            return self._read(first, max(end, first))
        return self._read(index % self._count, index % self._count + 1)[0]

    def within(self, begin: int, count: int) -> tuple[int, NDArray[np.int64]]:
        """Return the offsets in [begin, begin + count), relative to `begin`, and before them the index of the first of these offsets.

        If there are none, the index is where the first offset would be.
        """
        bounds = np.array([begin, begin + count], dtype=self._dtype)
        near = self._sparse.searchsorted(bounds)
        lower = max(int(near[0]) - 1, 0) * _STEP
        block = self._read(lower, min(int(near[1]) * _STEP, self._count))
        first, end = block.searchsorted(bounds)
        return lower + int(first), block[first:end].astype(np.int64) - begin

    def _read(self, first: int, end: int) -> NDArray[Any]:
        size = self._dtype.itemsize
        try:
            descriptor = open_regular(self._path)
            try:
                content = os.pread(descriptor, (end - first) * size, self._begin + first * size)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._unreadable(error) from error
        if len(content) != (end - first) * size:
            raise NielsCacheError(f"{self._path}: was cut short while it was being read")
        return np.frombuffer(content, dtype=self._dtype)

    def _unreadable(self, error: OSError) -> NielsCacheError:
        return NielsCacheError(f"{self._path}: cannot be read: {error.strerror or error}")
