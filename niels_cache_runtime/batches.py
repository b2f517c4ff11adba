"""From mapped uint16 tokens to int64 batches on a device: the few operations that every sampler shares.

Tokens stay two bytes wide for as long as possible: gathered so (as int16, which torch indexes everywhere; the bits are those of
uint16), sent to an accelerator so, widened once at the end. On the CPU this uses torch's threads (`torch.set_num_threads`):
where other work keeps the cores busy, one thread is faster than many. Which rows to take is the samplers' business.
"""

import math
import weakref
from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.mmap import MappedTokens


def check_positive(name: str, value: int) -> int:
    """`value` as it is, or a NielsCacheError that names the setting."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise NielsCacheError(f"{name}={value!r}: must be a whole number of at least 1")
    return value


def resolve_device(device: str) -> torch.device:
    """The device, or a NielsCacheError if torch does not know it or this machine does not have it."""
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise NielsCacheError(f"device={device!r}: torch knows no such device; use for example 'cpu' or 'cuda'") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise NielsCacheError(f"device={device!r}: torch finds no CUDA here; use device='cpu'")
    return resolved


def draw(count: int, *, B: int, generator: torch.Generator) -> NDArray[np.int64]:
    """B numbers below `count`, with replacement: the one use of the generator per batch."""
    return torch.randint(count, (check_positive("B", B),), generator=generator, device=generator.device).cpu().numpy()


class WindowReader:
    """Windows of `length` tokens from anywhere in mapped shards."""

    def __init__(self, mapped: MappedTokens, *, length: int) -> None:
        self._mapped = mapped
        self._length = length
        self._overlapping: torch.Tensor | None = None
        if mapped.buffer is not None and len(mapped.buffer) >= length:
            tokens = torch.frombuffer(mapped.buffer, dtype=torch.int16)
            self._overlapping = tokens.as_strided((len(tokens) - length + 1, length), (1, 1))

    def read(self, positions: NDArray[np.int64]) -> torch.Tensor:
        """`positions` (B,), each the start of a window inside one shard -> (B, length) int16, the bits of uint16."""
        if self._overlapping is not None:
            return self._overlapping.index_select(0, torch.from_numpy(positions))
        rows = np.empty((len(positions), self._length), dtype=np.uint16)
        shard_of_row = self._mapped.shard_starts.searchsorted(positions, side="right") - 1
        for shard in np.unique(shard_of_row).tolist():
            chosen = np.flatnonzero(shard_of_row == shard)
            windows = np.lib.stride_tricks.sliding_window_view(self._mapped.shards[shard], self._length)
            rows[chosen] = windows[positions[chosen] - self._mapped.shard_starts[shard]]
        return torch.from_numpy(rows.view(np.int16))


class PairMaker:
    """Makes x and y out of rows of tokens, on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = _RecycledMemory()

    def pairs(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`rows` (B, T+1) int16 with the bits of uint16, on the CPU -> x, y (B, T) int64, contiguous, on the device.

        x is all but the last token of each row, y all but the first.
        """
        if self._device.type == "cuda":
            tokens = send(rows, self._device).view(torch.uint16)
            return tokens[:, :-1].to(torch.int64), tokens[:, 1:].to(torch.int64)
        count, length = rows.shape
        # Both as one view that overlaps itself, so that widening is one pass.
        shifted = rows.view(torch.uint16).as_strided((2, count, length - 1), (1, length, 1))
        both = self._memory.take(2, count, length - 1).copy_(shifted)
        if self._device.type != "cpu":
            both = both.to(self._device)
        x, y = both.unbind(0)
        return x, y


class _RecycledMemory:
    """int64 memory for batches, lent again once no tensor refers to it.

    Fresh memory of this size is faulted in page by page, which takes longer than filling it (measured: up to 4x).
    """

    _KEPT = 4  # the batch in use, the next one, and some for a loader that is ahead

    def __init__(self) -> None:
        self._lent: deque[tuple[NDArray[np.int64], weakref.ref[NDArray[np.int64]]]] = deque(maxlen=self._KEPT)

    def take(self, *shape: int) -> torch.Tensor:
        """int64, contiguous, with arbitrary content."""
        count = math.prod(shape)
        memory = self._claim(count)
        if memory is None:
            memory = np.empty(count, dtype=np.int64)
        # The storage made by from_numpy holds this very array, so it goes when the last tensor, view or autograd node does.
        holder = memory[:count].reshape(shape)
        self._lent.append((memory, weakref.ref(holder)))
        return torch.from_numpy(holder)

    def _claim(self, count: int) -> NDArray[np.int64] | None:
        """Memory of enough size that nobody holds. Taken out of the queue before it is looked at, so that no two threads claim it."""
        for _ in range(len(self._lent)):
            try:
                memory, holder = self._lent.popleft()
            except IndexError:  # another thread was faster
                return None
            if holder() is None and len(memory) >= count:
                return memory
            self._lent.append((memory, holder))
        return None


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on the device. To CUDA without waiting, from pinned memory, which torch keeps until the copy is done."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
