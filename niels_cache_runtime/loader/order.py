"""The order of a source's samples: a shuffled permutation per epoch, computed on demand, never stored.

    position in epoch  --Order.at-->  sample number

The state is a few integers for any number of samples, so resuming at any position costs nothing. In blocks of 4096, a sample costs about 40
ns. A call costs about 0.1 ms even for few positions, so ask for many positions at once. The order is part of the format: a test pins the
order, and a changed order needs a new ORDER_VERSION. `blend` chooses the next source, and the loader divides samples among ranks.
"""

import hashlib
import math

import numpy as np
import torch

from niels_cache_runtime.cache.checks import check_whole
from niels_cache_runtime.format.layout import Ints, Uints

ORDER_VERSION = 1
MAX_SAMPLES = 2**62
MAX_SEED = 2**64 - 1

_ROUNDS = 8  # 4 rounds look random on long halves (Luby and Rackoff 1988) and pass our checks at n = 1000; 8 leave a margin
_ROUNDS_OF_FEW = 24  # on halves of two or three values, 8 rounds visibly prefer some permutations; with 12 rounds we found no preference
_FEW = 1000
_SIDES_TRIED = 256
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


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
        keys = self._keys(epoch)
        reached = self._step(positions.astype(np.uint64), keys)
        outside = np.flatnonzero(reached >= self._n)
        while len(outside):
            further = self._step(reached[outside], keys)
            reached[outside] = further
            outside = outside[further >= self._n]
        return reached.view(np.int64)

    def _step(self, numbers: Uints, keys: Uints) -> Uints:
        """Apply the Feistel network: a permutation of all numbers of the rectangle.

        The arithmetic is in uint64 and wraps around.
        """
        halves = np.divmod(numbers, self._sides[1])
        mixed = np.empty_like(numbers)
        spare = np.empty_like(numbers)
        for number in range(self._rounds):
            changed, other, side = halves[number % 2], halves[1 - number % 2], self._sides[number % 2]
            np.add(other, keys[number, 0], out=mixed)
            np.multiply(mixed, _MULTIPLIER, out=mixed)
            np.right_shift(mixed, _HALF, out=spare)
            np.bitwise_xor(mixed, spare, out=mixed)
            np.multiply(mixed, keys[number, 1], out=mixed)
            np.right_shift(mixed, _HALF, out=mixed)  # scale 32 good bits to range(side), as in Lemire 2019 without the rejection
            np.multiply(mixed, side, out=mixed)
            np.right_shift(mixed, _HALF, out=mixed)
            # This is modulo the side: of the two candidates, the smaller one did not wrap around.
            np.add(changed, mixed, out=changed)
            np.subtract(changed, side, out=mixed)
            np.minimum(changed, mixed, out=changed)
        return halves[0] * self._sides[1] + halves[1]

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


def _tight_rectangle(n: int) -> tuple[int, int]:
    """Return sides a >= b near sqrt(n), with a * b >= n. The product a * b is as close to n as a few tries find.

    The sides are near sqrt(n) for two reasons. If a side had length 1, only rotations would be possible. If a side were above 2**32, the 32
    random bits that are added to a half would not be enough.
    """
    root = math.isqrt(n - 1) + 1
    candidates = ((a, -(-n // a)) for a in range(root, root + min(_SIDES_TRIED, 1 + root // 4)))
    return min(candidates, key=lambda sides: sides[0] * sides[1])
