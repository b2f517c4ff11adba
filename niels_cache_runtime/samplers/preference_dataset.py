"""Preference pairs, one pair per row, drawn at random.

    chosen     | prompt A A EOT EOT EOT |       targets are A A
    rejected   | prompt b b b EOT EOT EOT |     targets are b b b

Rows are cut or padded to T+1 tokens. Opening and reading cost what they cost in `loader`. There, several pairs may share a row.
"""

from typing import Any

import numpy as np
import torch

from niels_cache_runtime.cache.gather import draw, resolve_device
from niels_cache_runtime.cache.opening import Verify, check_same_build
from niels_cache_runtime.loader.mixture import Located
from niels_cache_runtime.loader.packing.kept import LossOn, Overflow
from niels_cache_runtime.loader.preference.batch import PreferenceBatch, PreferenceMaker
from niels_cache_runtime.loader.preference.rows import PackedPairs
from niels_cache_runtime.remote.whole import Copy, Place


class PreferenceDataset:
    """A sampler of preference pairs from one split, such as `cache/sft/NAME/train`.

    folder: the data set's folder followed by the split, or its address, such as `s3://bucket/caches/NAME/train`.
    T: tokens per row. device: the device of batches.
    loss_on: "assistant" means all messages of the assistant after the prompt, "last_assistant" the last of them, "all" every token.
    overflow: what to keep of a side that is longer than T+1 tokens; see TokenLoader. "drop" leaves out the whole pair.
    verify: "size" compares sizes with meta.json; "sha256" reads the files and compares their content.
    remote: for an address, the local copy, such as Copy(dir="/local/tokens", limit=200e9). The split is fetched first.

    Pairs without a target in the kept part of a side are never sampled, and one warning gives their number. `len(dataset)` is the number of
    the other pairs. The object can be pickled: a copy maps the files again, and raises an error if they belong to another build.

    Raises NielsCacheError for the reasons that `loader.preference.rows.PackedPairs` lists, and for a device that this machine lacks.
    """

    def __init__(
        self,
        folder: str,
        *,
        T: int,
        device: str = "cpu",
        loss_on: LossOn = "assistant",
        overflow: Overflow = "truncate_right",
        verify: Verify = "size",
        remote: Copy | None = None,
    ) -> None:
        self._settings: dict[str, Any] = {"T": T, "device": device, "loss_on": loss_on, "overflow": overflow, "remote": remote}
        local, self._copy = Place.of(folder, remote).whole()
        self._pairs = PackedPairs(local, T=T, seed=0, loss_on=loss_on, overflow=overflow, pack=False, shuffle=False, verify=verify)
        self.T, self.folder, self.meta = self._pairs.T, folder, self._pairs.meta
        self.device = resolve_device(device)
        self._maker = PreferenceMaker([self._pairs], T=self.T, device=self.device, wanted=(), mask_cross_document_targets=False)

    def __len__(self) -> int:
        return self._pairs.samples

    def get_batch(self, *, B: int, generator: torch.Generator) -> PreferenceBatch:
        """Return B rows of one pair each. Pairs are drawn with replacement, uniformly, by one call on `generator`."""
        chosen = draw(len(self), B=B, generator=generator)
        zeros = np.zeros(len(chosen), dtype=np.int64)
        return self._maker.make(Located(zeros, zeros, chosen, same=(0, 0)))

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "settings": self._settings, "meta": self.meta}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["folder"], **state["settings"])  # type: ignore[misc]
        check_same_build(self.folder, opened=state["meta"], reopened=self.meta)
