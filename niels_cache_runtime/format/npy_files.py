"""Arrays of numbers in .npy files, mapped. One pattern reads the header, and the file must have exactly the length that the header gives.

numpy's own reader evaluates the header as Python, raises more exceptions than its documentation names, ignores bytes after the array, and
unpickles arrays of objects on request. This module evaluates nothing: it accepts a file with a plain array and refuses all others. The
format is numpy.lib.format, versions 1.0 to 3.0. A map costs a small read, and keeps a descriptor open as long as the array lives.
"""

import errno
import math
import mmap
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Array
from niels_cache_runtime.format.safe_open import open_regular

_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}  # version -> bytes of the field that gives the length of the header
_MAX_HEADER_BYTES = 10_000  # the same limit as in numpy
_MAX_DIMENSIONS = 64  # the same limit as in numpy
_VALUE = r"'(?P<dtype>[<>=|]?[A-Za-z?]\d{0,9}(?:\[\w+\])?)'|(?P<fields>\[[^{}]*\])|(?P<order>True|False)|\((?P<shape>(?:\d{1,19},? ?)*)\)"
_ENTRY = re.compile(rf" *'(?P<key>descr|fortran_order|shape)': ?(?:{_VALUE}) *,?")
_NUMBERS = re.compile(r"[<>=|]?(?:b1|[iu][1248]|f[248])")


@dataclass(frozen=True, kw_only=True)
class NpyHeader:
    """The header of an .npy file.

    Attributes:
        dtype: The dtype of an item, or None if items are not plain numbers (but text, dates, records or objects).
        descr: The dtype as the header gives it.
        shape: The shape of the array.
        fortran_order: Whether the first index changes fastest.
        offset: The number of bytes before the first item.
    """

    dtype: np.dtype | None
    descr: str
    shape: tuple[int, ...]
    fortran_order: bool
    offset: int

    @property
    def file_bytes(self) -> int:
        """The length that a file of plain numbers must have."""
        return self.offset + math.prod(self.shape) * (self.dtype.itemsize if self.dtype is not None else 0)


def read_npy_header(path: str | Path) -> NpyHeader:
    """Read the header of an .npy file.

    Raises:
        OSError: If the file cannot be read.
        NielsCacheError: If the header is invalid, or if the file has another length than the header gives.
    """
    descriptor = open_regular(path)
    try:
        return _read_header(path, descriptor)
    finally:
        os.close(descriptor)


def map_npy(path: str | Path) -> Array:
    """Map the array of an .npy file, read-only.

    Raises:
        OSError: If the file cannot be read.
        NielsCacheError: In the same cases as `read_npy_header`, and if items are not plain numbers.
    """
    descriptor = open_regular(path)
    try:
        header = _read_header(path, descriptor)
        if header.dtype is None:
            raise _damaged(path, f"holds {header.descr}, not numbers")
        content = mmap.mmap(descriptor, header.file_bytes, access=mmap.ACCESS_READ)
        items = np.frombuffer(content, dtype=header.dtype, count=math.prod(header.shape), offset=header.offset)
        return items.reshape(header.shape, order="F" if header.fortran_order else "C")
    except ValueError as error:  # the file was cut short just now, or numpy refuses the extents of a shape with 0 items
        raise error if isinstance(error, NielsCacheError) else _damaged(path, str(error)) from error
    finally:
        os.close(descriptor)


def create_npy(path: str | Path, dtype: DTypeLike, shape: tuple[int, ...]) -> Array:
    """Create a file with an array, mapped for writing. No dimension may have length 0.

    The space on the disk is reserved now. Otherwise a full disk would kill the process with a signal when it later writes to the map.

    Raises:
        OSError: If the disk is full.
    """
    mapped = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # not an error: the file system does not have this call
                    raise OSError(error.errno, f"{error.strerror}: it takes {size:,} bytes", str(path)) from error
    return np.asarray(mapped)  # a plain array, because numpy shuffles a subclass item by item, through Python


def _read_header(path: str | Path, descriptor: int) -> NpyHeader:
    start = os.pread(descriptor, len(_MAGIC) + 2 + max(_LENGTH_BYTES.values()) + _MAX_HEADER_BYTES, 0)
    size = os.fstat(descriptor).st_size
    width = _LENGTH_BYTES.get(start[len(_MAGIC) : len(_MAGIC) + 2])
    if not start.startswith(_MAGIC) or width is None:
        raise _damaged(path, f"{size} bytes without the magic of such a file")
    begin = len(_MAGIC) + 2 + width
    length = int.from_bytes(start[begin - width : begin], "little")
    text = start[begin : begin + length]
    if len(start) < begin or len(text) < length:
        raise _damaged(path, f"{size} bytes, too few for a header of {length}" if length <= _MAX_HEADER_BYTES else f"a header of {length}")
    header = _parse(text.decode("latin-1"), offset=begin + length)
    if header is None:
        raise _damaged(path, f"its header is {text[:80]!r}")
    if header.dtype is not None and header.file_bytes != size:
        raise _damaged(path, f"has {size} bytes, {header.dtype} of shape {header.shape} take {header.file_bytes}")
    return header


def _parse(text: str, *, offset: int) -> NpyHeader | None:
    text = text.strip(" \n")
    if not (text.startswith("{") and text.endswith("}")):
        return None
    entries: dict[str, re.Match[str]] = {}
    position, end = 1, len(text) - 1
    while entry := _ENTRY.match(text, position, end):
        if entry["key"] in entries:
            return None
        entries[entry["key"]], position = entry, entry.end()
    if text[position:end].strip(" ") or len(entries) != 3:
        return None
    descr = entries["descr"]["dtype"] or entries["descr"]["fields"]
    order, shape = entries["fortran_order"]["order"], entries["shape"]["shape"]
    if descr is None or order is None or shape is None:
        return None
    extents = tuple(int(extent) for extent in re.findall(r"\d+", shape))
    if len(extents) > _MAX_DIMENSIONS or (len(extents) == 1 and "," not in shape):  # (3) is not a tuple
        return None
    dtype = np.dtype(descr) if _NUMBERS.fullmatch(descr) else None
    return NpyHeader(dtype=dtype, descr=descr, shape=extents, fortran_order=order == "True", offset=offset)


def _damaged(path: str | Path, reason: str) -> NielsCacheError:
    return NielsCacheError(f"{path}: not a readable .npy file (cut short?): {reason}; rebuild its data set")
