"""The random numbers of torch's generator, without torch, whose import takes a second and 200 MB of memory.

torch and NumPy have the same Mersenne Twister (MT19937, Matsumoto and Nishimura 1998), and seed it in the same way. This module makes
integers and permutations from its numbers as torch does (`random_from_to` and `randperm` on the CPU).
"""

import numpy as np

from niels_cache_runtime.format.layout import Ints

_WIDE = 1 << 28  # from this limit on, torch makes numbers of 64 bits
_MAX_OWN = 1_000_000  # a larger permutation would take longer than the import of torch
_SKIPPED_TOGETHER = 1_000_000


class TorchRandom:
    """The numbers that `torch.Generator().manual_seed(seed)` gives on the CPU, for each seed that torch accepts."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._state = np.random.RandomState(seed & 0xFFFF_FFFF)
        self._drawn = 0

    def below(self, limit: int, count: int) -> Ints:
        """Return `torch.randint(limit, (count,))`: (count,) numbers from 0 to `limit` - 1."""
        if limit < _WIDE:
            return self._raw(count) % limit
        high, low = self._raw(2 * count).reshape(count, 2).T.astype(np.uint64)
        return ((high << np.uint64(32) | low) % np.uint64(limit)).astype(np.int64)

    def permutation(self, count: int) -> Ints:
        """Return `torch.randperm(count)`. After a permutation of more than a million numbers, nothing more may be drawn."""
        if count > _MAX_OWN:
            return self._torch_permutation(count)
        order = list(range(count))
        steps = self._raw(max(count - 1, 0)) % np.arange(count, 1, -1)
        for position, step in enumerate(steps.tolist()):
            order[position], order[position + step] = order[position + step], order[position]
        return np.array(order, dtype=np.int64)

    def _raw(self, count: int) -> Ints:
        """Return the next 32-bit numbers of the generator."""
        self._drawn += count
        return self._state.randint(0, 1 << 32, count, dtype=np.uint32).astype(np.int64)

    def _torch_permutation(self, count: int) -> Ints:
        import torch

        generator = torch.Generator().manual_seed(self._seed)
        for start in range(0, self._drawn, _SKIPPED_TOGETHER):  # the numbers that have already been drawn
            torch.randint(2, (min(_SKIPPED_TOGETHER, self._drawn - start),), generator=generator)
        dtype = torch.int32 if count < 1 << 31 else torch.int64  # the numbers are the same, and take half of the memory
        return torch.randperm(count, generator=generator, dtype=dtype).numpy()
