"""Memory-mapped token shards, and the offset files beside the tokens.

All shards of a split are mapped into one reserved address range, so the split is one array. A batch of windows is then one gather (one
indexed read), for any number of shards. Opening costs a few system calls per shard, one file descriptor at a time, and no memory but page
cache. The size of a full shard is a multiple of the page size, so full shards lie back to back. After a shard of any other size, zeros fill
the rest of the page.

`SlotTokens` maps its shards one by one, each at its own position (slot) in the range. So a window has the same position whether or not its
shard is mapped. A slot holds nothing, or the first tokens of its shard, or the whole shard. Reading any other tokens would end the
process, so callers check `readable` first. Reserving costs no memory. Mapping a shard costs a few system calls. A forked child has the same
slots until `clear_all`.

This module samples nothing and does not need torch. Maps are never pickled: their owner opens the files again.
"""

import ctypes
import errno
import mmap
import os
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, IDX_DTYPE, Array, Ints, Tokens, Uints
from niels_cache_runtime.format.npy_files import map_npy
from niels_cache_runtime.format.safe_open import open_no_link, open_regular

_PROT_NONE = 0
_MAP_FIXED = 0x10  # the same on Linux and macOS; the mmap module does not export it
_MAP_FAILED = ctypes.c_void_p(-1).value
_BLOCK_OFFSETS = 1 << 20
_Size = TypeVar("_Size", int, Ints)


class Offsets(Protocol):
    """An array of offsets that is mapped or read in pieces."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...


class MappedTokens:
    """Token shards, read-only, as one range of positions.

    There may be positions between two shards. They read as 0 and belong to no shard. The files stay mapped until this object and every
    array or tensor made from it are gone. Replacing or deleting a file does not disturb its map. Truncating the file does.

    Args:
        paths: The token files, in stream order.
        dtype: The dtype of the tokens, uint16 or uint32. `layout.token_dtype_of` takes it from meta.json.
        sizes: The bytes of each file, if they are known. Then links are refused. A file of 0 bytes is not looked at. None means to look
            first, a system call per file.

    Attributes:
        shard_starts: (shards,) int64, the position of each shard, in tokens.
        shard_lengths: (shards,) int64, in tokens.
        readable: (shards,) int64, the number of tokens at the start of each shard that can be read: all of them, but see SlotTokens.
        tokens: The whole range, 1-D.

    Raises:
        NielsCacheError: For a file that is missing or unreadable, or is not a whole number of tokens.
        NielsCacheError: If a file of a different size replaces a file during opening, or has another size than the given one.
    """

    def __init__(self, paths: Sequence[str | Path], *, dtype: np.dtype, sizes: Sequence[int] | None = None) -> None:
        self.dtype = dtype
        open_file = open_regular if sizes is None else open_no_link  # a size that is not 0 is that of a regular file, or the map is refused
        sizes = [_tokens_size(path, dtype) for path in paths] if sizes is None else sizes
        if any(size % dtype.itemsize for size in sizes):
            raise NielsCacheError(f"{Path(paths[0]).parent}: a file is not a whole number of {dtype} tokens; rebuild this data set")
        _require_maps(paths, sum(size > 0 for size in sizes))
        self._set_range(_map_one_range(paths, sizes, open_file), sizes)

    def _set_range(self, buffer: "ctypes.Array[Any] | None", sizes: Sequence[int]) -> None:
        in_bytes = np.array(sizes, dtype=np.int64)
        in_pages = page_end(in_bytes)
        self.shard_lengths, self.shard_starts = in_bytes // self.dtype.itemsize, (in_pages.cumsum() - in_pages) // self.dtype.itemsize
        self.readable: Ints = self.shard_lengths
        self.tokens: Tokens = np.frombuffer(memoryview(b"" if buffer is None else buffer), dtype=self.dtype)
        self.tokens.flags.writeable = False  # the pages are read-only: a write would be a segmentation fault

    @cached_property
    def shards(self) -> list[Tokens]:
        """The tokens of each shard."""
        ends = self.shard_starts + self.shard_lengths
        return [self.tokens[start:end] for start, end in zip(self.shard_starts.tolist(), ends.tolist(), strict=True)]

    @property
    def stream(self) -> Tokens | None:
        """All tokens as one array, or None if the shards do not lie back to back."""
        gaps = self.shard_starts - (np.cumsum(self.shard_lengths) - self.shard_lengths)
        return None if gaps[self.shard_lengths > 0].any() else self.tokens[: int(self.shard_lengths.sum())]


def slice_pieces(pieces: Iterable[Array], start: int, stop: int) -> Iterator[Array]:
    """Yield the parts of consecutive 1-D `pieces` that together are the items start to stop - 1 of all pieces."""
    begin = 0
    for piece in pieces:
        if begin >= stop:
            return
        if start < begin + len(piece):
            yield piece[max(start - begin, 0) : stop - begin]
        begin += len(piece)


def _require_maps(paths: Sequence[str | Path], count: int, *, was_refused: bool = False) -> None:
    """Raise NielsCacheError if the kernel does not let this process map so many files. Without such a limit, do nothing.

    The open files are counted only if this set is large, or if the kernel has refused a map (`was_refused`): then other sets are open.
    """
    most = _max_maps()
    if most is None or (count <= most // 2 and not was_refused):
        return
    with open("/proc/self/maps", "rb") as maps:
        used = sum(1 for _ in maps)
    if count + used > most:
        raise NielsCacheError(
            f"{Path(paths[0]).parent}: cannot map its {count:,} shards: a process may map {most:,} files here (vm.max_map_count), of which "
            f"{used:,} are in use; raise it with sysctl -w vm.max_map_count={2 * (count + used)}, or build with larger shard_bytes"
        )


def _max_maps() -> int | None:
    """Return how many files a process may map, or None if it is not known. Only Linux reports the number."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _tokens_size(path: str | Path, dtype: np.dtype) -> int:
    """Return the size of a token file in bytes.

    Raises:
        NielsCacheError: If it is not a regular file of whole tokens.
    """
    try:
        state = os.stat(path)
    except FileNotFoundError as error:
        raise NielsCacheError(f"{path}: no such tokens file; build this data set first") from error
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be opened: {error.strerror or error}") from error
    if not stat.S_ISREG(state.st_mode):
        raise NielsCacheError(f"{path}: is not a regular file; rebuild this data set")
    if state.st_size % dtype.itemsize:
        raise NielsCacheError(f"{path}: {state.st_size} bytes are not a whole number of {dtype} tokens (cut short?); rebuild this data set")
    return state.st_size


def map_tokens(address: int, path: str | Path, size: int, open_file: Callable[[Any], int]) -> bool:
    """Map a token file at a reserved address; see `map_at`.

    Raises:
        NielsCacheError: If the file cannot be opened, or no longer has `size` bytes, because another file may have taken its place.
    """
    try:
        descriptor = open_file(path)
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be opened: {error.strerror or error}") from error
    try:
        found = os.fstat(descriptor).st_size
        if found != size:
            raise NielsCacheError(
                f"{path}: changed from {size} to {found} bytes while it was being opened; open it again when it is complete"
            )
        return map_at(address, size, descriptor)
    finally:
        os.close(descriptor)


def page_end(size: _Size) -> _Size:
    """Return the number of bytes of the pages that `size` bytes occupy. `size` may be an array."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


@cache
def _libc_mmap() -> tuple[Callable[..., int | None], Callable[..., int]]:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.restype = ctypes.c_int
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc.mmap, libc.munmap


def reserve_range(sizes: Sequence[int]) -> "ctypes.Array[Any] | None":
    """Reserve addresses for files at consecutive pages. Nothing is readable yet.

    The returned array owns the range. numpy and torch views keep the array alive, and the range is unmapped when the last view is gone.

    Args:
        sizes: The bytes of each file.

    Returns:
        The range, or None if all sizes are 0.

    Raises:
        NielsCacheError: If the system cannot reserve the range.
    """
    total = sum(map(page_end, sizes))
    if not total:
        return None
    map_pages, unmap_pages = _libc_mmap()
    base = map_pages(None, total, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if base is None or base == _MAP_FAILED:
        reason = os.strerror(ctypes.get_errno())
        raise NielsCacheError(
            f"cannot reserve {total:,} bytes of addresses for shards: {reason}; raise the limit of this process (ulimit -v)"
        )
    buffer = (ctypes.c_ubyte * total).from_address(base)
    # Not at interpreter exit: views may still exist after the finalizers, and the system unmaps the pages anyway.
    weakref.finalize(buffer, unmap_pages, base, total).atexit = False
    return buffer


def map_at(address: int, size: int, descriptor: int | None, *, is_readable: bool = True) -> bool:
    """Map a file, or empty memory, at a reserved address.

    Args:
        address: The address, at the start of a page.
        size: The number of bytes.
        descriptor: The open file, or None for empty memory.
        is_readable: For empty memory: whether it can be read and written. With False, the pages are only reserved, as by `reserve_range`.

    Returns:
        False if the system refuses. Then `ctypes.get_errno` has the reason.
    """
    map_pages, _ = _libc_mmap()
    if descriptor is not None:
        return map_pages(address, size, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, descriptor, 0) == address
    protection = mmap.PROT_READ | mmap.PROT_WRITE if is_readable else _PROT_NONE
    return map_pages(address, page_end(size), protection, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED, -1, 0) == address


def _map_one_range(paths: Sequence[str | Path], sizes: Sequence[int], open_file: Callable[[str | Path], int]) -> "ctypes.Array[Any] | None":
    """Map all files at consecutive pages of one reserved range. Return None if all files are empty.

    Only one file is open at a time, because a map needs no descriptor, and a process may have few descriptors.
    """
    buffer = reserve_range(sizes)
    address = 0 if buffer is None else ctypes.addressof(buffer)
    for path, size in zip(paths, sizes, strict=True):
        if size and not map_tokens(address, path, size, open_file):
            code = ctypes.get_errno()
            if code == errno.ENOMEM:
                _require_maps(paths, sum(size > 0 for size in sizes), was_refused=True)
            raise NielsCacheError(f"{path}: cannot be mapped: {os.strerror(code)}")
        address += page_end(size)
    return buffer


def map_offsets(path: str | Path, dtype: np.dtype, *, row: tuple[int, ...] = ()) -> Array:
    """Map a .npy file of offsets, read-only.

    Args:
        path: The file.
        dtype: The dtype of an offset.
        row: The shape of a row. By default, the file has one dimension.

    Raises:
        NielsCacheError: If the file is missing or unreadable, or has a different dtype or shape.
    """
    try:
        offsets = map_npy(path)
    except FileNotFoundError as error:
        raise NielsCacheError(f"{path}: no such file; build this data set first") from error
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be mapped: {error.strerror or error}") from error
    check_offsets_form(path, offsets, dtype, row=row)
    return offsets


def check_offsets_form(path: str | Path, offsets: Array, dtype: np.dtype, *, row: tuple[int, ...] = ()) -> None:
    """Raise NielsCacheError unless an array of offsets has this dtype and rows of this shape."""
    if offsets.dtype != dtype or not offsets.ndim or offsets.shape[1:] != row:
        expected = f"rows of {row[0]}" if row else "one dimension"
        raise NielsCacheError(
            f"{path}: holds {offsets.dtype} of shape {offsets.shape}, expected {expected} of {dtype}; rebuild this data set"
        )


def map_example_starts(path: str | Path, *, token_count: int) -> Ints:
    """Map the start offset of every SFT example (int64, 1-D, in tokens).

    The offsets begin at 0, increase strictly, and are below `token_count`.

    Raises:
        NielsCacheError: If the file breaks any of these rules.
    """
    starts = map_offsets(path, IDX_DTYPE)
    check_example_starts(path, starts, token_count=token_count)
    return starts


def check_example_starts(path: str | Path, starts: Offsets, *, token_count: int) -> None:
    """Raise NielsCacheError unless the offsets follow the rules of `map_example_starts`."""
    if not len(starts):
        if token_count:
            raise NielsCacheError(f"{path}: lists no example, but there are {token_count} tokens; rebuild this data set")
        return
    if starts[0] != 0:
        raise NielsCacheError(f"{path}: the first example starts at {starts[0]}, not at 0; rebuild this data set")
    check_increasing(path, starts)
    if starts[-1] >= token_count:
        raise NielsCacheError(
            f"{path}: example {len(starts) - 1} starts at {starts[-1]}, out of range of {token_count} tokens; rebuild this data set"
        )


def map_doc_ends(path: str | Path, *, token_count: int, is_joined: bool = False) -> Uints:
    """Map the exclusive end of every pretrain document (uint64, 1-D, in tokens).

    The offsets increase strictly, and the last one is `token_count`.

    Args:
        path: The doc_ends file.
        token_count: The number of tokens of the split.
        is_joined: Whether the file was joined from parts, so that it may be too large to read at every opening. Then only the first and the
            last offset are checked here; `verify` checks them all.

    Raises:
        NielsCacheError: If the file breaks any of these rules.
    """
    ends = map_offsets(path, DOC_ENDS_DTYPE)
    check_doc_ends(path, ends[[0, -1]] if is_joined and len(ends) > 1 else ends, token_count=token_count)
    return ends


def check_doc_ends(path: str | Path, ends: Offsets, *, token_count: int) -> None:
    """Raise NielsCacheError unless the offsets follow the rules of `map_doc_ends`."""
    end = int(ends[-1]) if len(ends) else 0
    if end != token_count:
        raise NielsCacheError(f"{path}: the last document ends at {end}, but the split has {token_count} tokens; rebuild this data set")
    if len(ends) and ends[0] == 0:
        raise NielsCacheError(f"{path}: the first document is empty; rebuild this data set")
    check_increasing(path, ends)


def check_increasing(
    path: str | Path, offsets: Offsets, *, name: str = "entry", may_be_equal: bool = False, advice: str = "rebuild this data set"
) -> None:
    """Raise NielsCacheError unless the offsets increase.

    Args:
        path: The file, for messages.
        offsets: The offsets.
        name: The name of an offset in messages.
        may_be_equal: Whether an offset may equal the one before it.
        advice: What a message says to do.
    """
    for first in range(0, len(offsets) - 1, _BLOCK_OFFSETS):  # read in blocks, so that memory does not grow with the file
        block = offsets[first : first + _BLOCK_OFFSETS + 1]
        increases = block[1:] >= block[:-1] if may_be_equal else block[1:] > block[:-1]
        if not increases.all():
            number = first + int(np.argmin(increases)) + 1
            raise NielsCacheError(
                f"{path}: not {'increasing' if may_be_equal else 'strictly increasing'}: {name} {number} is {offsets[number]} after "
                f"{offsets[number - 1]}; {advice}"
            )


class SlotTokens(MappedTokens):
    """Slots for shards, all of them empty. The attributes are those of MappedTokens, and `readable`.

    Args:
        sizes: The bytes of each shard.
        dtype: The dtype of the tokens, uint16 or uint32.

    Attributes:
        readable: (shards,) int64, the number of tokens at the start of each shard that can be read now.

    Raises:
        NielsCacheError: If the system cannot reserve the range.
    """

    def __init__(self, sizes: Sequence[int], *, dtype: np.dtype) -> None:
        self.dtype = dtype
        buffer = reserve_range(sizes)
        self._base, self._sizes = 0 if buffer is None else ctypes.addressof(buffer), list(sizes)
        self._set_range(buffer, sizes)
        self.readable = np.zeros(len(sizes), dtype=np.int64)

    def map(self, shard: int, path: Path, *, open_file: Callable[[Path], int] = open_regular) -> None:
        """Map a whole shard from its file.

        Args:
            shard: The number of the shard.
            path: Its file.
            open_file: Opens the file and returns the descriptor.

        Raises:
            NielsCacheError: If the file cannot be opened or mapped.
        """
        size = self._sizes[shard]
        if size:
            self._check(map_tokens(self._address(shard), path, size, open_file), path)
        self.readable[shard] = self.shard_lengths[shard]

    def fill(self, shard: int, content: bytes) -> None:
        """Put the first bytes of a shard into its slot, in memory.

        Raises:
            NielsCacheError: If the system refuses the memory.
        """
        self._check(map_at(self._address(shard), len(content), None), f"the start of shard {shard}")
        ctypes.memmove(self._address(shard), content, len(content))
        self.readable[shard] = len(content) // self.dtype.itemsize

    def clear(self, shard: int) -> None:
        """Empty a slot."""
        if self.readable[shard]:
            self.readable[shard] = 0
            self._check(map_at(self._address(shard), self._sizes[shard], None, is_readable=False), f"shard {shard}")

    def clear_all(self) -> None:
        """Empty all slots."""
        for shard in np.flatnonzero(self.readable).tolist():
            self.clear(shard)

    def _address(self, shard: int) -> int:
        return self._base + int(self.shard_starts[shard]) * self.dtype.itemsize

    @staticmethod
    def _check(is_mapped: bool, what: object) -> None:
        if not is_mapped:
            reason = os.strerror(ctypes.get_errno())
            raise NielsCacheError(f"{what}: cannot be mapped: {reason}; raise vm.max_map_count, or give Blocks() fewer shards")
