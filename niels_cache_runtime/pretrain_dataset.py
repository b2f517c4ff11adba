"""Random windows of a pretrain split, every window equally likely.

    generator --one draw--> B window numbers --> position of each in the mapped split --one gather--> (B, T+1) --widen--> x, y

Windows lie inside one shard; with shards much longer than T almost every position of the split starts one. Cost: constant
per batch, whatever the number of shards. The order of a whole epoch, resuming and mixing are not its business.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from niels_cache_runtime.batches import PairMaker, WindowReader, check_positive, draw, resolve_device
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import SPLITS, TOKEN_BYTES, list_shards, shard_name
from niels_cache_runtime.meta import Meta
from niels_cache_runtime.mmap import MappedTokens
from niels_cache_runtime.opening import check_same_build, check_sizes, listed_files, open_meta, open_one_build


class PretrainTokenStreamDataset:
    """Samples windows of T+1 tokens from the shards of one split, such as `cache/pretrain/NAME/train`.

    shards_dir: a folder of `shard_00000.bin`, `shard_00001.bin`, ... (headerless little-endian uint16). A meta.json in its
        parent folder is checked against them; a bare folder works too.
    T: tokens per row. Shards shorter than T+1 tokens are skipped.
    device: where batches go. For CUDA, tokens cross as uint16 from pinned memory and are widened there.

    `total_windows` is how many different windows there are. Picklable: a copy maps the files again, and refuses another build.
    All is of one build, also where a rebuild replaces the data set while it is being opened.

    Raises NielsCacheError if the folder or its shards are missing, empty, of odd length or not those of meta.json, if the data set
    was never built or belongs to another tokenizer, or if T is below 1 or larger than any shard.
    """

    def __init__(self, shards_dir: str, *, T: int, device: str) -> None:
        self.T = T = check_positive("T", T)
        self.shards_dir = os.path.abspath(shards_dir)
        self.device = resolve_device(device)
        self.meta, mapped = open_one_build(Path(self.shards_dir).parent, self._open)
        longest = int(mapped.shard_lengths.max(initial=0))
        if not longest:
            raise NielsCacheError(f"{shards_dir}: this split is empty (0 tokens); nothing can be sampled from it")
        if longest < T + 1:
            raise NielsCacheError(
                f"{shards_dir}: T={T} needs a shard of {T + 1} tokens and the longest has {longest}; "
                f"use T <= {longest - 1}, or rebuild with shard_bytes >= {(T + 1) * TOKEN_BYTES} if the split is that long"
            )
        windows = np.maximum(mapped.shard_lengths - T, 0)
        window_ends = np.cumsum(windows)
        self.total_windows = int(window_ends[-1])
        self._window_ends = window_ends
        self._shard_offsets = mapped.shard_starts - (window_ends - windows)
        self._reader = WindowReader(mapped, length=T + 1)
        self._pairs = PairMaker(self.device)

    def get_batch(self, *, B: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """x, y: (B, T) int64, contiguous, on the device, with y[:, :-1] == x[:, 1:].

        Draws B windows with replacement, uniformly over `total_windows`, by one call on `generator`.
        """
        windows = draw(self.total_windows, B=B, generator=generator)
        return self._pairs.pairs(self._reader.read(self._positions(windows)))

    def _open(self) -> tuple[Meta | None, MappedTokens]:
        folder = Path(self.shards_dir)
        if not folder.is_dir():
            raise NielsCacheError(f"{folder}: no such folder; build this data set first, or check the path")
        meta = open_meta(folder.parent)
        shards = list_shards(folder)
        if meta is not None:
            prefix = f"{folder.name}/"
            listed = {path: entry for path, entry in listed_files(meta, folder.parent).items() if path.startswith(prefix)}
            check_sizes(folder.parent, listed, {prefix + shard.name: shard.stat().st_size for shard in shards})
        elif not shards:
            splits = [split for split in SPLITS if (folder / split / shard_name(0)).exists()]
            hint = f"give the folder of a split: {folder / splits[0]}" if splits else f"expected {shard_name(0)} and so on"
            raise NielsCacheError(f"{folder}: no shards here; {hint}")
        return meta, MappedTokens(shards)

    def _positions(self, windows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Window numbers (below total_windows, counted through the shards in order) -> positions in the mapped range."""
        return windows + self._shard_offsets[self._window_ends.searchsorted(windows, side="right")]

    def __getstate__(self) -> dict[str, Any]:
        return {"shards_dir": self.shards_dir, "T": self.T, "device": str(self.device), "meta": self.meta}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["shards_dir"], T=state["T"], device=state["device"])  # type: ignore[misc]
        check_same_build(self.shards_dir, opened=state["meta"], reopened=self.meta)
