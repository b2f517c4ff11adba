"""The spans of targets of an SFT split, read in pieces, for a verifier. `offset_file` says why they are not mapped.

The rules are those of `cache.targets`. Memory does not grow with the files.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.cache.targets import check_bounds, check_target_ends
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TARGETS_DTYPE, Split, target_ends_name, targets_name
from niels_cache_runtime.format.npy_files import read_npy_header
from niels_cache_runtime.format.safe_open import open_regular
from niels_cache_runtime.verify.offset_file import OffsetFile

_BLOCK_EXAMPLES = 1 << 18


def check_target_files(folder: Path, split: Split, starts: OffsetFile, *, token_count: int) -> int:
    """Compare the spans of a split with its example starts. Return the number of spans.

    Raises NielsCacheError if a file cannot be read or breaks the rules of `cache.targets.map_targets`.
    """
    path, ends_path = folder / targets_name(split), folder / target_ends_name(split)
    spans, examples = _length(path, width=2), _length(ends_path)
    begin, checked = 0, 0
    for first in range(0, len(starts), _BLOCK_EXAMPLES):
        stop = min(first + _BLOCK_EXAMPLES, len(starts))
        ends = _read(ends_path, first, stop)
        checked += len(ends)
        end = int(ends[-1]) if len(ends) else begin
        last = stop == len(starts)
        check_target_ends(ends_path, np.append(begin, ends), examples=stop - first + 1, spans=spans if last else end)
        if end > spans:
            raise NielsCacheError(f"{ends_path}: names span {end - 1}, but there are {spans}; rebuild this data set")
        stops = np.append(starts[first + 1 : stop], token_count if last else starts[stop])
        check_bounds(
            path,
            _read(path, begin, end, width=2).astype(np.int64),
            first=begin,
            counts=np.diff(np.append(begin, ends.astype(np.int64))),
            starts=starts[first:stop],
            stops=stops,
        )
        begin = end
    if examples != len(starts) or begin != spans:
        raise NielsCacheError(f"{ends_path}: has {examples} entries and {begin} spans for {len(starts)} examples and {spans} spans")
    return spans


def _length(path: Path, *, width: int | None = None) -> int:
    try:
        header = read_npy_header(path)
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be read: {error.strerror or error}") from error
    if header.dtype != TARGETS_DTYPE or header.shape[1:] != (() if width is None else (width,)) or not header.shape or header.fortran_order:
        raise NielsCacheError(f"{path}: holds {header.dtype or header.descr} of shape {header.shape}, not spans; rebuild this data set")
    return header.shape[0]


def _read(path: Path, first: int, stop: int, *, width: int = 1) -> NDArray[Any]:
    """Return the rows first to stop - 1 of the array in the file, (n,) or (n, width)."""
    offset, row = read_npy_header(path).offset, TARGETS_DTYPE.itemsize * width
    try:
        with open(open_regular(path), "rb") as file:
            file.seek(offset + first * row)
            content = file.read((stop - first) * row)
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) != (stop - first) * row:
        raise NielsCacheError(f"{path}: was cut short while it was being read")
    values = np.frombuffer(content, dtype=TARGETS_DTYPE)
    return values if width == 1 else values.reshape(-1, width)
