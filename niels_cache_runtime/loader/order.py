"""The order in which a source's samples are visited: a shuffled permutation per epoch, computed where it is asked for, never stored.

    position in epoch  --Order.at-->  sample number  --Order.positions_of-->  position in epoch

A few integers of state whatever the number of samples, so resuming at any position costs nothing. About 40 ns per sample in
blocks of 4096; a call costs about 0.1 ms however few positions it is given, so ask in blocks. The order is part of the format:
a test pins it, and whatever changes it counts ORDER_VERSION up. Which source is next (`blend`) and which rank reads what (the
loader) are not decided here.
"""

import hashlib
import math

import numpy as np
import torch
from numpy.typing import NDArray

from niels_cache_runtime.cache.gather import as_int
from niels_cache_runtime.errors import NielsCacheError

ORDER_VERSION = 1
MAX_SAMPLES = 2**62

_ROUNDS = 8  # 4 already look random on long halves (Luby and Rackoff 1988) and pass our checks for n of 1000; 8 leave a margin
_ROUNDS_OF_FEW = 24  # with halves of two or three values, 8 leave some permutations visibly more frequent, 12 none that we found
_FEW = 1000
_SIDES_TRIED = 256
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


class Order:
    """A permutation of range(n) for every epoch, the same on every machine.

    n: samples per epoch, 1 to 2**62. seed: 0 to 2**64 - 1. name: sources with different names have unrelated orders.
    Raises NielsCacheError for other values.

    A Feistel network over a rectangle of at least n numbers, its halves added to modulo the rectangle's sides, walked along until
    the number is below n (Black and Rogaway 2002, "Ciphers with arbitrary finite domains": generalized Feistel and cycle walking).
    The rectangle is chosen so tight that nearly no number has to walk; with sides of powers of two up to half of them would.
    Not meant to resist anybody: it shuffles.
    """

    def __init__(self, n: int, *, seed: int, name: str = "") -> None:
        self._n = _whole("n", n, lowest=1, highest=MAX_SAMPLES)
        seed = _whole("seed", seed, lowest=0, highest=2**64 - 1)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(2**62, (4,), generator=generator).tolist()
        # torch's CPU generator keeps only the lower 32 bits of its seed: the whole seed goes in as well.
        self._secret = f"niels-cache order {ORDER_VERSION} {drawn} {seed} {hashlib.sha256(name.encode()).hexdigest()}"
        self._sides = tuple(np.uint64(side) for side in _tight_rectangle(self._n))
        self._rounds = _ROUNDS_OF_FEW if self._n <= _FEW else _ROUNDS
        self._newest_keys = (0, self._derive_keys(0))

    def at(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """The sample number at each of `positions` (m,) of an epoch (from 0), (m,) int64.

        Raises NielsCacheError for a position outside range(n) or an epoch below 0.
        """
        return self._walk(positions, epoch, forwards=True)

    def positions_of(self, numbers: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """The inverse of `at`: at which position of an epoch each of the samples `numbers` (m,) is visited, (m,) int64."""
        return self._walk(numbers, epoch, forwards=False)

    def _walk(self, start: NDArray[np.int64], epoch: int, *, forwards: bool) -> NDArray[np.int64]:
        if start.size and not 0 <= start.min() <= start.max() < self._n:
            wrong = "position" if forwards else "sample number"
            raise NielsCacheError(f"{wrong} {start[(start < 0) | (start >= self._n)][0]}: there are {self._n} samples per epoch, from 0")
        keys = self._keys(_whole("epoch", epoch, lowest=0))
        reached = self._step(start.astype(np.uint64), keys, forwards=forwards)
        outside = np.flatnonzero(reached >= self._n)
        while len(outside):
            further = self._step(reached[outside], keys, forwards=forwards)
            reached[outside] = further
            outside = outside[further >= self._n]
        return reached.view(np.int64)

    def _step(self, numbers: NDArray[np.uint64], keys: NDArray[np.uint64], *, forwards: bool) -> NDArray[np.uint64]:
        """The Feistel network, in uint64 that wraps around, or its inverse: a permutation of all numbers of the rectangle."""
        halves = np.divmod(numbers, self._sides[1])
        mixed = np.empty_like(numbers)
        spare = np.empty_like(numbers)
        for number in range(self._rounds) if forwards else reversed(range(self._rounds)):
            changed, other, side = halves[number % 2], halves[1 - number % 2], self._sides[number % 2]
            np.add(other, keys[number, 0], out=mixed)
            np.multiply(mixed, _MULTIPLIER, out=mixed)
            np.right_shift(mixed, _HALF, out=spare)
            np.bitwise_xor(mixed, spare, out=mixed)
            np.multiply(mixed, keys[number, 1], out=mixed)
            np.right_shift(mixed, _HALF, out=mixed)  # 32 good bits, scaled to range(side): Lemire 2019, without the rejection
            np.multiply(mixed, side, out=mixed)
            np.right_shift(mixed, _HALF, out=mixed)
            # Modulo the side: of the two candidates, the one that did not wrap around is the smaller.
            if forwards:
                np.add(changed, mixed, out=changed)
                np.subtract(changed, side, out=mixed)
            else:
                np.subtract(changed, mixed, out=changed)
                np.add(changed, side, out=mixed)
            np.minimum(changed, mixed, out=changed)
        return halves[0] * self._sides[1] + halves[1]

    def _keys(self, epoch: int) -> NDArray[np.uint64]:
        newest, keys = self._newest_keys  # read and written as one pair, so that threads may share an order
        if newest != epoch:
            keys = self._derive_keys(epoch)
            self._newest_keys = (epoch, keys)
        return keys

    def _derive_keys(self, epoch: int) -> NDArray[np.uint64]:
        """(rounds, 2) uint64: a summand and an odd factor for every round."""
        stream = hashlib.shake_256(f"{self._secret} {epoch}".encode()).digest(self._rounds * 16)
        keys = np.frombuffer(stream, dtype="<u8").reshape(self._rounds, 2).astype(np.uint64)
        keys[:, 1] |= np.uint64(1)
        return keys


def _tight_rectangle(n: int) -> tuple[int, int]:
    """Sides a >= b, neither far from sqrt(n), with a * b >= n and as close to it as a few tries can come.

    Not far: a side of one value would leave nothing but rotations, and a side above 2**32 would outgrow the 32 bits it is drawn from.
    """
    root = math.isqrt(n - 1) + 1
    candidates = ((a, -(-n // a)) for a in range(root, root + min(_SIDES_TRIED, 1 + root // 4)))
    return min(candidates, key=lambda sides: sides[0] * sides[1])


def _whole(name: str, value: int, *, lowest: int, highest: int | None = None) -> int:
    number = as_int(value)
    if number is None or number < lowest or (highest is not None and number > highest):
        limits = f"of at least {lowest}" if highest is None else f"from {lowest} to {highest}"
        raise NielsCacheError(f"{name}={value!r}: must be a whole number {limits}")
    return number
