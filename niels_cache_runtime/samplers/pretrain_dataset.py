"""Random windows of a pretrain split. Every window is equally likely.

    generator --one draw--> B window numbers --> position of each in the mapped split --one gather--> (B, T+1) --widen--> x, y

A window lies inside one shard. If shards are much longer than T, almost every position of the split starts a window. The cost per batch is
constant, for any number of shards. The order of a whole epoch, resuming and mixing belong to `loader`.
"""

from typing import Any

import numpy as np
import torch

from niels_cache_runtime.cache.checks import NamesArguments, check_positive
from niels_cache_runtime.cache.gather import InputTargetMaker, WindowReader, draw_uniform, resolve_device
from niels_cache_runtime.cache.opening import Verify, check_same_build, open_split
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Ints, tombstone_id
from niels_cache_runtime.remote.split_location import Copy, SplitLocation


def count_windows(shard_lengths: Ints, T: int) -> tuple[Ints, Ints]:
    """Return the number of windows up to the end of each shard, and before its start, both (shards,) int64.

    Window n of all shards is in the first shard whose end is above n.

    Args:
        shard_lengths: (shards,) int64, in tokens.
        T: Tokens per row. A window has T+1 tokens.
    """
    windows = np.maximum(shard_lengths - T, 0)
    ends = np.cumsum(windows)
    return ends, ends - windows


class PretrainTokenStreamDataset(NamesArguments):
    """A sampler of windows of T+1 tokens from the shards of one split, such as `cache/pretrain/NAME/train`.

    The object can be pickled: a copy maps the files again, and raises an error if they belong to another build. All files are of one build,
    even if a rebuild replaces the data set while its files are being opened.

    Args:
        shards_dir: A folder of `shard_00000.bin`, `shard_00001.bin`, ... (headerless little-endian uint16 or uint32). If its parent folder
            has a meta.json, the shards are compared with it, and it gives the dtype. A folder without meta.json works too; it holds uint16.
        T: Tokens per row. Shards shorter than T+1 tokens are skipped.
        device: The device of batches. For CUDA, tokens are copied from pinned memory in the width of the shards, and widened on the device.
        verify: "size" compares sizes with meta.json. "sha256" also reads every shard and compares its content.
        remote: For the address of a split, such as `s3://bucket/caches/NAME/train`: the local copy, such as `Copy(dir="/local/tokens",
            limit=200e9)`. The whole split is fetched first, so it must fit. Larger splits are for TokenLoader with `order=Blocks()`.

    Attributes:
        total_windows: The number of different windows.
        meta: The content of meta.json as a dict, or None if there is none.

    Raises:
        NielsCacheError: If the folder or its shards are missing or empty, or if the data set was never built.
        NielsCacheError: If a shard is not a whole number of tokens or is not the shard that meta.json lists, or if the cache has another
            tokenizer now than at the build.
        NielsCacheError: If T is below 1 or too large for every shard, or if this machine lacks the device.
    """

    def __init__(self, shards_dir: str, *, T: int, device: str, verify: Verify = "size", remote: Copy | None = None) -> None:
        self.T = T = check_positive("T", T)
        self.device = resolve_device(device)
        self._location = SplitLocation.of(shards_dir, remote)
        self.shards_dir, self._copy = self._location.whole()
        split = open_split(self.shards_dir, verify=verify)
        self.meta, mapped = split.meta, split.tokens
        longest = int(mapped.shard_lengths.max(initial=0))
        if not longest:
            raise NielsCacheError(f"{shards_dir}: this split is empty (0 tokens); nothing can be sampled from it")
        if longest < T + 1:
            raise NielsCacheError(
                f"{shards_dir}: T={T} needs a shard of {T + 1} tokens, but the longest has {longest}; "
                f"use T <= {longest - 1}, or rebuild with shard_bytes >= {(T + 1) * mapped.dtype.itemsize} if the split is that long"
            )
        self._window_ends, window_starts = count_windows(mapped.shard_lengths, T)
        self.total_windows = int(self._window_ends[-1])
        self._shard_offsets = mapped.shard_starts - window_starts
        self._reader = WindowReader(mapped, length=T + 1)
        self._pairs = InputTargetMaker(self.device, tombstone_id(self.meta))

    def get_batch(self, *, B: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Return random windows, drawn with replacement, uniformly from all `total_windows`, by one call on `generator`.

        Args:
            B: The number of rows, at least 1.
            generator: The source of random numbers, on any device.

        Returns:
            x, y: (B, T) int64, contiguous, on the device, with `y[:, :-1] == x[:, 1:]`, except that y is -100 where
                `niels-cache erase --tombstone` struck a token.

        Raises:
            NielsCacheError: If B is not a positive whole number.
        """
        windows = draw_uniform(self.total_windows, B=B, generator=generator)  # their numbers in all shards
        positions = windows + self._shard_offsets[self._window_ends.searchsorted(windows, side="right")]
        return self._pairs.pairs(self._reader.read(positions))

    def __getstate__(self) -> dict[str, Any]:
        settings = {"shards_dir": self._location.given, "T": self.T, "device": str(self.device), "remote": self._location.remote}
        return {"settings": settings, "meta": self.meta}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["settings"])  # type: ignore[misc]
        check_same_build(self.shards_dir, opened=state["meta"], reopened=self.meta)
