"""The order of a source's samples: a shuffled permutation per epoch, computed on demand, never stored.

    position in epoch  --Order.at-->  sample number

The state is a few integers for any number of samples, so resuming at any position costs nothing. In blocks of 4096, a sample costs about 40
ns. A call costs about 0.1 ms even for few positions, so ask for many positions at once. The order is part of the format: a test pins the
order, and a changed order needs a new ORDER_VERSION. `blend` chooses the next source, and the loader divides samples among ranks.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from niels_cache_runtime.cache.checks import check_whole
from niels_cache_runtime.format.layout import Array, Ints, Uints

ORDER_VERSION = 1
MAX_SAMPLES = 2**62
MAX_SEED = 2**64 - 1

_ROUNDS = 8  # 4 rounds look random on long halves (Luby and Rackoff 1988) and pass our checks at n = 1000; 8 leave a margin
_ROUNDS_OF_FEW = 24  # on halves of two or three values, 8 rounds visibly prefer some permutations; with 12 rounds we found no preference
_FEW = 1000
_SIDES_TRIED = 256
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class Order:
    """A permutation of range(n) for every epoch, the same on every machine.

    The permutation is a Feistel network over a rectangle of at least n numbers. The two halves of a number are its coordinates in the
    rectangle. A round adds a value to one half, modulo the length of its side. The network is applied again until the number is below n
    (Black and Rogaway 2002, "Ciphers with arbitrary finite domains": generalized Feistel and cycle walking). The rectangle is so tight that
    almost no number needs a second application. With sides of powers of two, up to half of the numbers would need it. The order is a
    shuffle, not a secure cipher.

    Args:
        n: Samples per epoch, 1 to 2**62.
        seed: The seed, 0 to 2**64 - 1.
        name: The name of the source. Sources with different names have unrelated orders.

    Raises:
        NielsCacheError: For values out of range.
    """

    def __init__(self, n: int, *, seed: int, name: str = "") -> None:
        self._n = check_whole("n", n, least=1, most=MAX_SAMPLES)
        seed = check_whole("seed", seed, most=MAX_SEED)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(2**62, (4,), generator=generator).tolist()
        # torch's CPU generator keeps only the lower 32 bits of its seed, so the whole seed is included too.
        self._secret = f"niels-cache order {ORDER_VERSION} {drawn} {seed} {hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()}"
        self._sides = tuple(np.uint64(side) for side in _tight_rectangle(self._n))
        self._rounds = _ROUNDS_OF_FEW if self._n <= _FEW else _ROUNDS
        self._newest_keys = (0, self._derive_keys(0))

    def at(self, positions: Ints, epoch: int) -> Ints:
        """Return the sample number at each position of an epoch, (m,) int64.

        Args:
            positions: (m,) int64, counted from 0.
            epoch: The epoch, counted from 0.
        """
        return permute(positions.astype(np.uint64), self._n, self._sides, self._keys(epoch)).view(np.int64)

    def positions(self, numbers: Ints, epoch: int) -> Ints:
        """Return the position of each sample number in an epoch, (m,) int64: the inverse of `at`. It is -1 for a number of n or more."""
        known = np.minimum(numbers, self._n - 1).astype(np.uint64)
        found = permute(known, self._n, self._sides, self._keys(epoch), backwards=True).view(np.int64)
        return np.where(numbers < self._n, found, -1)

    def _keys(self, epoch: int) -> Uints:
        newest, keys = self._newest_keys  # read and written as one pair, so that threads may share an order
        if newest != epoch:
            keys = self._derive_keys(epoch)
            self._newest_keys = (epoch, keys)
        return keys

    def _derive_keys(self, epoch: int) -> Uints:
        """Return a summand and an odd factor for every round, (rounds, 2) uint64."""
        stream = hashlib.shake_256(f"{self._secret} {epoch}".encode()).digest(self._rounds * 16)
        keys = np.frombuffer(stream, dtype="<u8").reshape(self._rounds, 2).astype(np.uint64)
        keys[:, 1] |= np.uint64(1)
        return keys


def permute(numbers: Array, n: Any, sides: Sequence[Any], keys: Iterable[Any], *, backwards: bool = False) -> Array:
    """Return the image of each number under a Feistel network with cycle walking, a permutation of range(n). See Order.

    Each number may have a network of its own. `n`, the sides and the summands are arrays (m,) then.

    Args:
        numbers: (m,) uint64 or uint32, each below `n`. All other arguments have the same type.
        n: The length of the range.
        sides: The two sides of the rectangle.
        keys: For every round, a summand and an odd factor.
        backwards: Whether to return the numbers whose images these are.
    """

    def of_outside(value: Any) -> Any:
        return value[outside] if np.ndim(value) else value

    reached = _apply_rounds(numbers, sides, keys, backwards=backwards)
    outside = np.flatnonzero(reached >= n)
    if len(outside):
        own_keys = [(of_outside(summand), factor) for summand, factor in keys]
        own_sides = [of_outside(side) for side in sides]
        reached[outside] = permute(reached[outside], of_outside(n), own_sides, own_keys, backwards=backwards)
    return reached


def _apply_rounds(numbers: Array, sides: Sequence[Any], keys: Iterable[Any], *, backwards: bool) -> Array:
    """Apply the Feistel network: a permutation of all numbers of the rectangle.

    The arithmetic has the type of the numbers, uint64 or uint32, and wraps around. The sides have at most half of its bits.
    """
    dtype = numbers.dtype.type
    half, multiplier = dtype(numbers.itemsize * 4), MULTIPLIER.astype(dtype)
    halves = np.divmod(numbers, sides[1])
    mixed = np.empty_like(numbers)
    spare = np.empty_like(numbers)
    rounds = list(enumerate(keys))
    for number, (summand, factor) in reversed(rounds) if backwards else rounds:
        changed, other, side = halves[number % 2], halves[1 - number % 2], sides[number % 2]
        np.add(other, summand, out=mixed)
        np.multiply(mixed, multiplier, out=mixed)
        np.right_shift(mixed, half, out=spare)
        np.bitwise_xor(mixed, spare, out=mixed)
        np.multiply(mixed, factor, out=mixed)
        np.right_shift(mixed, half, out=mixed)  # scale its good bits to range(side), as in Lemire 2019 without the rejection
        np.multiply(mixed, side, out=mixed)
        np.right_shift(mixed, half, out=mixed)
        # This is modulo the side: of the two candidates, the smaller one did not wrap around.
        if backwards:
            np.subtract(changed, mixed, out=changed)
            np.add(changed, side, out=mixed)
        else:
            np.add(changed, mixed, out=changed)
            np.subtract(changed, side, out=mixed)
        np.minimum(changed, mixed, out=changed)
    return halves[0] * sides[1] + halves[1]


def _tight_rectangle(n: int) -> tuple[int, int]:
    """Return sides a >= b near sqrt(n), with a * b >= n. The product a * b is as close to n as a few tries find.

    The sides are near sqrt(n) for two reasons. If a side had length 1, only rotations would be possible. If a side were above 2**32, the 32
    random bits that are added to a half would not be enough.
    """
    root = math.isqrt(n - 1) + 1
    candidates = ((a, -(-n // a)) for a in range(root, root + min(_SIDES_TRIED, 1 + root // 4)))
    return min(candidates, key=lambda sides: sides[0] * sides[1])
