"""From mapped tokens to int64 batches on a device: the few operations that all samplers share.

Tokens keep the width that they have on disk, two or four bytes, as long as possible. They are gathered and sent to CUDA in this width, and
widened once at the end.

On the CPU, numpy does the work on the calling thread. In measurements on two idle cores, this is as fast as torch. With busy cores, or in a
container with a CPU limit, torch's thread pool stalled for 16 ms at a time. Storing a large batch evicts the CPU caches, so each later call
into numpy or torch costs a microsecond or more. Therefore there are few calls. The samplers choose the rows.
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
from niels_cache_runtime.format.layout import IGNORE_INDEX, Array, Ints, Tokens

_CPU = torch.device("cpu")
_INT64 = np.dtype(np.int64)
_Pair = tuple[Ints, Ints]


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the device as a torch.device.

    Raises:
        NielsCacheError: If torch does not know the device or this machine does not have it.
    """
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise NielsCacheError(f"device={device!r}: torch has no such device; use for example 'cpu' or 'cuda'") from error
    if resolved.type == "cuda":  # check without starting CUDA: after a start, forked processes cannot use CUDA
        if not torch.cuda.is_available():
            raise NielsCacheError(f"device={device!r}: torch finds no CUDA here; use device='cpu'")
        if (resolved.index or 0) >= torch.cuda.device_count():
            raise NielsCacheError(f"device={device!r}: there are {torch.cuda.device_count()} CUDA devices here, counted from 0")
        return resolved
    try:
        torch.empty(0, device=resolved)
    except Exception as error:  # the type depends on device and torch: RuntimeError, NotImplementedError, AssertionError or ImportError
        raise NielsCacheError(f"device={device!r}: this machine or this torch does not have it; use device='cpu'") from error
    return resolved


def draw_uniform(count: int, *, B: int, generator: torch.Generator) -> Ints:
    """Return B numbers below `count`, (B,) int64, drawn with replacement: the same numbers as those of `torch.randint`.

    A batch uses the generator only for this one call.
    """
    B = check_positive("B", B)
    if generator.device != _CPU:
        return torch.randint(count, (B,), generator=generator, device=generator.device).cpu().numpy()
    numbers = np.empty(B, dtype=np.int64)
    torch.from_numpy(numbers).random_(0, count, generator=generator)  # torch.randint does the same on a new tensor, but takes twice as long
    return numbers


class WindowReader:
    """A reader of windows of `length` tokens. A window may begin anywhere in the mapped shards."""

    def __init__(self, mapped: MappedTokens, *, length: int) -> None:
        self._length = length
        self._dtype = mapped.dtype
        self._tokens = mapped.tokens
        self._all = _overlapping_windows(mapped.tokens, length)

    def read(self, positions: Ints) -> Tokens:
        """Return windows of tokens, (B, length).

        Args:
            positions: (B,), where each window begins in the mapped shards, in tokens. Each window must lie inside one shard.
        """
        # Reading one token of each window first fetches all their pages at once. This is a quarter faster.
        self._tokens[positions]
        return self._all[positions].view(self._dtype).reshape(-1, self._length)


_CHUNK = 128  # tokens of a piece that are copied together
_LONG = 256  # tokens of a piece, on average, from which on joining is faster


def gather_pieces(tokens: Tokens, starts: Ints, lengths: Ints, pads: Ints, *, limits: Any, pad_id: int) -> Tokens:
    """Return pieces of tokens, one after the other, and after each of them its padding.

    Long pieces are joined. Short ones are copied in chunks of equal length, and the last chunk of a piece may reach over the next piece,
    which is copied later.

    Args:
        tokens: The tokens.
        starts: (n,), the first token of each piece.
        lengths: (n,), the number of tokens of each piece.
        pads: (n,), the padding after each piece.
        limits: The end of the tokens that can be read, for all pieces or for each of them.
        pad_id: The id of padding.
    """
    ends = (lengths + pads).cumsum()
    total = int(ends[-1]) if len(ends) else 0
    if total > _LONG * len(starts):
        tokens[starts]  # fetches the pages of all pieces at once, as in WindowReader
        view = tokens.data  # its slices are cheaper than those of an array
        pieces: list[Any] = [view[first:end] for first, end in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)]
        padding = np.full(pads.max(), pad_id, dtype=tokens.dtype).data
        for piece in np.flatnonzero(pads)[::-1].tolist():
            pieces.insert(piece + 1, padding[: pads[piece]])
        return np.frombuffer(bytearray().join(pieces), dtype=tokens.dtype)
    rows = np.empty(total + _CHUNK, dtype=tokens.dtype)
    counts = -(-lengths // _CHUNK)
    at_limit = starts + counts * _CHUNK > limits
    counts[at_limit] = 0
    chunks = (starts - (counts.cumsum() - counts) * _CHUNK).repeat(counts)
    chunks += np.arange(0, len(chunks) * _CHUNK, _CHUNK)
    places = (ends - pads - lengths - starts).repeat(counts)
    places += chunks
    _overlapping_windows(rows, _CHUNK)[places] = _overlapping_windows(tokens, _CHUNK)[chunks]
    for piece in np.flatnonzero(at_limit).tolist():
        start, length, end = int(starts[piece]), int(lengths[piece]), int(ends[piece] - pads[piece])
        rows[end - length : end] = tokens[start : start + length]
    padded = np.flatnonzero(pads)
    counts = pads[padded]
    rows[np.arange(counts.sum()) + np.repeat(ends[padded] - counts.cumsum(), counts)] = pad_id
    return rows[:total]


def _overlapping_windows(tokens: Tokens, length: int) -> NDArray[np.void]:
    """Return an array whose item i is tokens[i : i + length], without a copy.

    An item is one opaque value, so numpy copies a whole window as one block.
    """
    window = np.dtype((np.void, length * tokens.itemsize))
    if len(tokens) < length:
        return np.empty(0, dtype=window)
    return np.ndarray((len(tokens) - length + 1,), dtype=window, buffer=tokens, strides=tokens.strides)


class InputTargetMaker:
    """A maker of inputs x and targets y from rows of tokens, on one device.

    Args:
        device: The device.
        tombstone: The id of struck tokens, which y has as IGNORE_INDEX, or None.
    """

    def __init__(self, device: torch.device, tombstone: int | None = None) -> None:
        self._device, self._tombstone = device, tombstone
        self._is_cpu, self._is_cuda = device.type == "cpu", device.type == "cuda"  # reading device.type costs a microsecond per batch
        self._memory, self._masked = _RecycledMemory(), _RecycledMemory()

    def __reduce__(self) -> tuple[type, tuple[torch.device, int | None]]:  # recycled memory belongs to one process
        return InputTargetMaker, (self._device, self._tombstone)

    def pairs(self, rows: Tokens | Ints) -> tuple[torch.Tensor, torch.Tensor]:
        """Return x, y from rows of tokens: (B, T) int64, contiguous, on the device.

        x is all tokens of each row except the last, and y is all tokens except the first.

        Args:
            rows: (B, T+1).
        """
        if self._is_cuda:
            # torch can do little with uint32. Every id is below 2^31, so int32 has the same values.
            tokens = to_device(rows.view(np.int32) if rows.dtype == np.uint32 else rows, self._device)
            inputs, targets = tokens[:, :-1].to(torch.int64), tokens[:, 1:].to(torch.int64)
            return inputs, targets if self._tombstone is None else targets.masked_fill_(targets == self._tombstone, IGNORE_INDEX)
        x, y = self._memory.take(len(rows), rows.shape[1] - 1)
        x[:] = rows[:, :-1]
        y[:] = rows[:, 1:]
        if self._tombstone is not None:
            y[y == self._tombstone] = IGNORE_INDEX
        if self._is_cpu:
            return torch.from_numpy(x), torch.from_numpy(y)
        return to_device(x, self._device), to_device(y, self._device)

    def ignoring(self, y: torch.Tensor, rows: Tokens, places: Ints) -> torch.Tensor:
        """Return the targets y of rows with IGNORE_INDEX at some places, counted over all rows."""
        if not self._is_cpu:
            return y.flatten().index_fill(0, to_device(places, self._device), IGNORE_INDEX).view_as(y)
        masked, _ = self._masked.take(*y.shape)  # the second array is never touched, so it takes no memory
        masked[:] = rows[:, 1:]  # less memory is read than from y
        masked.reshape(-1)[places] = IGNORE_INDEX
        return torch.from_numpy(masked)


class _RecycledMemory:
    """The int64 memory of batches. It is used again as soon as no tensor refers to it.

    The system maps fresh memory of this size anew and faults it in page by page, which takes 20 times as long as filling it (measured).
    """

    _KEPT = 4  # the batch in use, the next one, and some for a loader that reads ahead
    _FROM_BYTES = 128 << 10  # malloc itself keeps smaller blocks, so fresh arrays of this size cause no page faults and are cheaper

    def __init__(self) -> None:
        self._lent: deque[tuple[_Pair, weakref.ref[Any], weakref.ref[Any]]] = deque(maxlen=self._KEPT)

    def take(self, rows: int, columns: int) -> _Pair:
        """Return two arrays (rows, columns) with arbitrary content. When these two array objects are gone, their memory is free again.

        A tensor from `torch.from_numpy` keeps its array alive until the tensor's last view or autograd node is gone. A numpy view does not
        keep the array object alive.
        """
        shape = (rows, columns)
        is_small = rows * columns * _INT64.itemsize < self._FROM_BYTES
        memory = None if is_small else self._claim(shape)
        if memory is None:
            memory = np.empty(shape, dtype=_INT64), np.empty(shape, dtype=_INT64)
        if is_small:
            return memory
        x, y = memory[0].view(), memory[1].view()
        self._lent.append((memory, weakref.ref(x), weakref.ref(y)))
        return x, y

    def _claim(self, shape: tuple[int, int]) -> _Pair | None:
        """Return unused memory of that shape, or None.

        An entry leaves the queue before it is checked, so two threads never claim the same entry.
        """
        for _ in range(len(self._lent)):
            try:
                memory, x, y = self._lent.popleft()
            except IndexError:  # another thread was faster
                return None
            if memory[0].shape == shape and x() is None and y() is None:
                return memory
            self._lent.append((memory, x, y))
        return None


def to_device(array: Array, device: torch.device) -> torch.Tensor:
    """Return the array as a tensor on the device.

    A copy to CUDA does not wait. It uses pinned memory, which torch keeps until the copy is done.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
