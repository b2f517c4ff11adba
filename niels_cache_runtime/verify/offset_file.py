"""The offsets of an .npy file, read in pieces for verification: ends of documents, starts of examples, and spans of targets.

The memory of a verification must not grow with the file, and a bad disk must not end it. If a disk fails under a memory map, a signal ends
the process; here the failure is an error. Opening sorted offsets costs one pass, which keeps every 4096th offset in memory. Then each range
costs one small read. Training maps its offsets instead (`mmap`).
"""

import os
from pathlib import Path
from typing import Any, Literal

import numpy as np

from niels_cache_runtime.cache.mmap import check_doc_ends, check_example_starts
from niels_cache_runtime.cache.targets import check_targets, check_weights
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import (
    DOC_ENDS_DTYPE,
    IDX_DTYPE,
    TARGETS_DTYPE,
    WEIGHTS_DTYPE,
    Array,
    Ints,
    Split,
    target_ends_name,
    target_weights_name,
    targets_name,
)
from niels_cache_runtime.format.npy_files import read_npy_header
from niels_cache_runtime.format.safe_open import open_regular

OffsetKind = Literal["doc_ends", "example_starts"]

_STEP = 4096
_KINDS = {"doc_ends": (DOC_ENDS_DTYPE, check_doc_ends), "example_starts": (IDX_DTYPE, check_example_starts)}


class NpyRows:
    """The numbers of an .npy file, or its rows of several numbers. `rows[i]` and `rows[i:j]` read from the file.

    Args:
        path: The file.
        dtype: The dtype of a number.
        width: The numbers of a row, or None for single numbers.

    Raises:
        NielsCacheError: If the file cannot be read, or has another dtype or shape.
    """

    def __init__(self, path: Path, dtype: np.dtype, *, width: int | None = None) -> None:
        self._path, self._row = path, np.dtype((dtype, () if width is None else (width,)))
        try:
            header = read_npy_header(path)
        except OSError as error:
            raise self._unreadable(error) from error
        if header.dtype != dtype or len(header.shape) != 1 + self._row.ndim or header.shape[1:] != self._row.shape or header.fortran_order:
            expected = "one dimension" if width is None else f"rows of {width}"
            found = header.dtype or header.descr
            raise NielsCacheError(f"{path}: holds {found} of shape {header.shape}, expected {expected} of {dtype}; rebuild this data set")
        self._count, self._begin = header.shape[0], header.offset

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            first, end, _ = index.indices(self._count)
            return self._read(first, max(end, first))
        return self._read(index % self._count, index % self._count + 1)[0]

    def _read(self, first: int, end: int) -> Array:
        size = self._row.itemsize
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
        return np.frombuffer(content, dtype=self._row.base).reshape(-1, *self._row.shape)

    def _unreadable(self, error: OSError) -> NielsCacheError:
        return NielsCacheError(f"{self._path}: cannot be read: {error.strerror or error}")


class OffsetFile(NpyRows):
    """Sorted offsets for a split of `token_count` tokens.

    Raises:
        NielsCacheError: If the file cannot be read, or breaks the rules of `map_doc_ends` or `map_example_starts` in `mmap`.
    """

    def __init__(self, path: Path, kind: OffsetKind, *, token_count: int) -> None:
        dtype, check = _KINDS[kind]
        super().__init__(path, dtype)
        check(path, self, token_count=token_count)
        sparse = [self[first : first + 1] for first in range(0, len(self), _STEP)]
        self._sparse = np.concatenate([np.array([], dtype=dtype), *sparse])

    def within(self, begin: int, count: int) -> tuple[int, Ints]:
        """Return the offsets in [begin, begin + count), relative to `begin`, and before them the index of the first of these offsets.

        If there are none, the index is where the first offset would be.
        """
        bounds = np.array([begin, begin + count], dtype=self._sparse.dtype)
        near = self._sparse.searchsorted(bounds)
        lower = max(int(near[0]) - 1, 0) * _STEP
        block = self[lower : int(near[1]) * _STEP]
        first, end = block.searchsorted(bounds)
        return lower + int(first), block[first:end].astype(np.int64) - begin


def check_target_files(folder: Path, split: Split, starts: OffsetFile, *, token_count: int, with_weights: bool) -> int:
    """Compare the spans of a split with its example starts, and with their weights if there are any. Return the number of spans.

    Raises:
        NielsCacheError: If a file cannot be read or breaks the rules of `cache.targets.map_targets`.
    """
    path, ends_path = folder / targets_name(split), folder / target_ends_name(split)
    spans, examples = NpyRows(path, TARGETS_DTYPE, width=2), NpyRows(ends_path, TARGETS_DTYPE)
    check_targets(path, ends_path, spans, examples, starts, token_count=token_count)
    if with_weights:
        weights_path = folder / target_weights_name(split)
        check_weights(weights_path, NpyRows(weights_path, WEIGHTS_DTYPE), spans=len(spans))
    return len(spans)
