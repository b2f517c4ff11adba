"""From mapped uint16 tokens to int64 batches on a device: the few operations that every sampler shares.

Tokens stay two bytes wide for as long as possible: gathered so, sent to an accelerator so, widened once at the end. On the CPU
that is numpy on the calling thread: measured as fast as torch on two idle cores, and where other work keeps the cores busy or
a container limits them, torch's pool of threads stalled for 16 ms at a time. Storing a large batch evicts the caches, so that each
call into numpy or torch then costs a microsecond or more: there are few. Which rows to take is the samplers' business.
"""

import weakref
from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from niels_cache_runtime.cache.checks import check_positive
from niels_cache_runtime.cache.mmap import MappedTokens
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_BYTES, TOKEN_DTYPE

_CPU = torch.device("cpu")
_INT64 = np.dtype(np.int64)
_Pair = tuple[NDArray[np.int64], NDArray[np.int64]]


def resolve_device(device: str | torch.device) -> torch.device:
    """The device, or a NielsCacheError if torch does not know it or this machine does not have it."""
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise NielsCacheError(f"device={device!r}: torch knows no such device; use for example 'cpu' or 'cuda'") from error
    if resolved.type == "cuda":  # asked without starting CUDA, which would forbid processes forked later to use it
        if not torch.cuda.is_available():
            raise NielsCacheError(f"device={device!r}: torch finds no CUDA here; use device='cpu'")
        if (resolved.index or 0) >= torch.cuda.device_count():
            raise NielsCacheError(f"device={device!r}: there are {torch.cuda.device_count()} CUDA devices here, counted from 0")
        return resolved
    try:
        torch.empty(0, device=resolved)
    except Exception as error:  # RuntimeError, NotImplementedError, AssertionError, ImportError: by device and version of torch
        raise NielsCacheError(f"device={device!r}: this machine or this torch does not have it; use device='cpu'") from error
    return resolved


def draw(count: int, *, B: int, generator: torch.Generator) -> NDArray[np.int64]:
    """B numbers below `count`, with replacement: the one use of the generator per batch. They are those of `torch.randint`."""
    B = check_positive("B", B)
    if generator.device != _CPU:
        return torch.randint(count, (B,), generator=generator, device=generator.device).cpu().numpy()
    numbers = np.empty(B, dtype=np.int64)
    torch.from_numpy(numbers).random_(0, count, generator=generator)  # what torch.randint calls on a tensor of its own: half the time
    return numbers


class WindowReader:
    """Windows of `length` tokens from anywhere in mapped shards."""

    def __init__(self, mapped: MappedTokens, *, length: int) -> None:
        self._length = length
        self._shard_starts = mapped.shard_starts
        self._tokens = mapped.tokens
        self._all = None if mapped.tokens is None else _overlapping_windows(mapped.tokens, length)
        self._by_shard = [_overlapping_windows(tokens, length) for tokens in mapped.shards] if self._all is None else []

    def read(self, positions: NDArray[np.int64]) -> NDArray[np.uint16]:
        """`positions` (B,), each the start of a window inside one shard -> (B, length)."""
        if self._all is not None and self._tokens is not None:
            # Reading one token of each window first lets the memory fetch all their pages at once: a quarter faster.
            self._tokens[positions]
            return self._all[positions].view(TOKEN_DTYPE).reshape(-1, self._length)
        rows = np.empty((len(positions), self._length), dtype=np.uint16)
        shard_of_row = self._shard_starts.searchsorted(positions, side="right") - 1
        for shard in np.unique(shard_of_row).tolist():
            chosen = np.flatnonzero(shard_of_row == shard)
            windows = self._by_shard[shard][positions[chosen] - self._shard_starts[shard]]
            rows[chosen] = windows.view(TOKEN_DTYPE).reshape(-1, self._length)
        return rows


def _overlapping_windows(tokens: NDArray[np.uint16], length: int) -> NDArray[np.void]:
    """Item i is tokens[i : i + length], nothing copied. As one opaque item, numpy copies a window as a block, not token by token."""
    if len(tokens) < length:
        return np.empty(0, dtype=np.dtype((np.void, length * TOKEN_BYTES)))
    return np.ndarray((len(tokens) - length + 1,), dtype=np.dtype((np.void, length * TOKEN_BYTES)), buffer=tokens, strides=(TOKEN_BYTES,))


class PairMaker:
    """Makes x and y out of rows of tokens, on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cpu, self._is_cuda = device.type == "cpu", device.type == "cuda"  # asking the device costs a microsecond a batch
        self._memory = _RecycledMemory()

    def pairs(self, rows: NDArray[np.uint16] | NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """`rows` (B, T+1) -> x, y (B, T) int64, contiguous, on the device: all but the last token of each row, all but the first."""
        if self._is_cuda:
            tokens = send(rows, self._device)
            return tokens[:, :-1].to(torch.int64), tokens[:, 1:].to(torch.int64)
        x, y = self._memory.take(len(rows), rows.shape[1] - 1)
        x[:] = rows[:, :-1]
        y[:] = rows[:, 1:]
        if self._is_cpu:
            return torch.from_numpy(x), torch.from_numpy(y)
        return send(x, self._device), send(y, self._device)


class _RecycledMemory:
    """int64 memory for batches, lent again once no tensor refers to it.

    Fresh memory of this size is mapped anew and faulted in page by page, which takes longer than filling it (measured: 20x).
    """

    _KEPT = 4  # the batch in use, the next one, and some for a loader that is ahead
    _FROM_BYTES = 128 << 10  # what is smaller, malloc keeps for itself: fresh arrays are free of faults, and cheaper

    def __init__(self) -> None:
        self._lent: deque[tuple[_Pair, weakref.ref[Any], weakref.ref[Any]]] = deque(maxlen=self._KEPT)

    def take(self, rows: int, columns: int) -> _Pair:
        """Two arrays (rows, columns) with arbitrary content. Their memory is free again when these very objects are gone.

        A tensor that `torch.from_numpy` makes of one holds it until the tensor's last view or autograd node goes. A numpy
        view of one does not hold it.
        """
        shape = (rows, columns)
        if rows * columns * _INT64.itemsize < self._FROM_BYTES:
            return np.empty(shape, dtype=_INT64), np.empty(shape, dtype=_INT64)
        memory = self._claim(shape)
        if memory is None:
            memory = np.empty(shape, dtype=_INT64), np.empty(shape, dtype=_INT64)
        x, y = memory[0].view(), memory[1].view()
        self._lent.append((memory, weakref.ref(x), weakref.ref(y)))
        return x, y

    def _claim(self, shape: tuple[int, int]) -> _Pair | None:
        """Memory of that shape that nobody holds. Taken out of the queue before it is looked at, so that no two threads claim it."""
        for _ in range(len(self._lent)):
            try:
                memory, x, y = self._lent.popleft()
            except IndexError:  # another thread was faster
                return None
            if memory[0].shape == shape and x() is None and y() is None:
                return memory
            self._lent.append((memory, x, y))
        return None


def send(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """The array as a tensor on the device. To CUDA without waiting, from pinned memory, which torch keeps until the copy is done."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
