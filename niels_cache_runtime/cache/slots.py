"""Token shards that are mapped one by one, each at its own place in one reserved range of memory.

All shards of a split have a slot in the range, so a window has the same place whether its shard is mapped or not. A slot holds nothing, or
the first tokens of its shard, or the whole shard. Reading tokens that are not held would end the process, so callers look at
`held` first. Reserving costs no memory. Mapping a shard costs a few system calls. A forked child has the same slots until `clear_all`.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.cache.mmap import MappedTokens, map_at, open_tokens, reserve_range
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.safe_open import open_regular


class SlotTokens(MappedTokens):
    """Slots for shards of `sizes` bytes each, all of them empty.

    held: (shards,) int64, the number of tokens at the start of each shard that can be read now. The other attributes are those of
    MappedTokens. Raises NielsCacheError if the system cannot reserve the range.
    """

    def __init__(self, sizes: Sequence[int], *, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        buffer = reserve_range(sizes)
        self._base, self._sizes = 0 if buffer is None else ctypes.addressof(buffer), list(sizes)
        self._set_range(buffer, sizes)
        self.held: NDArray[np.int64] = np.zeros(len(sizes), dtype=np.int64)

    def map(self, shard: int, path: Path, *, open_file: Callable[[Path], int] = open_regular) -> None:
        """Map a whole shard from its file. open_file: opens it and returns the descriptor. Raises NielsCacheError if that fails."""
        size = self._sizes[shard]
        if size:
            descriptor = open_tokens(path, size, open_file=open_file)
            try:
                self._check(map_at(self._address(shard), size, descriptor), path)
            finally:
                os.close(descriptor)
        self.held[shard] = self.shard_lengths[shard]

    def fill(self, shard: int, content: bytes) -> None:
        """Put the first bytes of a shard into its slot, in memory. Raises NielsCacheError if that fails."""
        self._check(map_at(self._address(shard), len(content), None), f"the start of shard {shard}")
        ctypes.memmove(self._address(shard), content, len(content))
        self.held[shard] = len(content) // self.dtype.itemsize

    def clear(self, shard: int) -> None:
        """Empty a slot."""
        if self.held[shard]:
            self.held[shard] = 0
            self._check(map_at(self._address(shard), self._sizes[shard], None, is_readable=False), f"shard {shard}")

    def clear_all(self) -> None:
        """Empty all slots."""
        for shard in np.flatnonzero(self.held).tolist():
            self.clear(shard)

    def _address(self, shard: int) -> int:
        return self._base + int(self.shard_starts[shard]) * self.dtype.itemsize

    @staticmethod
    def _check(is_mapped: bool, what: object) -> None:
        if not is_mapped:
            why = os.strerror(ctypes.get_errno())
            raise NielsCacheError(f"{what}: cannot be mapped: {why}; raise vm.max_map_count, or use smaller block_shards")
