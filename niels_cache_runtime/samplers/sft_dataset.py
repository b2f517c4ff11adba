"""Whole SFT examples, one per row, with targets only inside the assistant's messages.

    sys ... EOT  usr ... EOT  asst A B EOT  EOT EOT          an example, padded
                                   A B EOT                   its targets; every other target is -100

Rows are cut or padded to T+1 tokens. Opening and reading cost what they cost in `loader`, which can pack several examples into a row.

`PreferenceDataset` draws preference pairs in the same way, one pair per row:

    chosen     | prompt A A EOT EOT EOT |       targets are A A
    rejected   | prompt b b b EOT EOT EOT |     targets are b b b
"""

from typing import Any

import numpy as np
import torch

from niels_cache_runtime.cache.checks import NamesArguments
from niels_cache_runtime.cache.gather import InputTargetMaker, draw_uniform, resolve_device, to_device
from niels_cache_runtime.cache.opening import Verify, check_same_build
from niels_cache_runtime.format.layout import IGNORE_INDEX, tombstone_id
from niels_cache_runtime.loader.packing.rows import LossOn, Overflow, PackedExamples
from niels_cache_runtime.loader.preference.batch import PreferenceBatch, PreferenceMaker
from niels_cache_runtime.loader.preference.rows import PackedPairs
from niels_cache_runtime.loader.run_order import SampleLocations
from niels_cache_runtime.remote.split_location import Copy, SplitLocation, whole_pair


class SFTExampleDataset(NamesArguments):
    """A sampler of whole examples from the two files of an SFT split, such as `train_tokens.bin` and `train_idx.npy` of `cache/sft/NAME`.

    Examples without a target in their first T+1 tokens would make the loss NaN, so they are never sampled, and one warning gives their
    number.

    A data set with a chat template, or with messages that are not trained on, has its targets in two further files beside the tokens
    (`train_targets.npy` and `train_target_ends.npy`), which are read too.

    The object can be pickled: a copy maps the files again, and raises an error if they belong to another build. All files are of one build,
    even if a rebuild replaces the data set while its files are being opened.

    Args:
        tokens_path: A headerless file of little-endian uint16 or uint32, as the meta.json beside it says; without meta.json, uint16.
        idx_path: An int64 .npy file, the start of each example in tokens.
        T: Tokens per row. An example is cut to its first T+1 tokens, or padded with EOT (the end-of-text token).
        device: The device of batches.
        eot_id: The id of EOT.
        asst_id: The id of the assistant sentinel. None means that of the meta.json beside the tokens, or without one that of the tokenizer
            in the root of the cache. A data set with a chat template takes no asst_id.
        verify: "size" compares sizes with meta.json. "sha256" also reads both files and compares their content.
        remote: For addresses, such as `s3://bucket/caches/NAME/train_tokens.bin`: the local copy, such as `Copy(dir="/local/tokens",
            limit=2e9)`. Both files are fetched first.

    Attributes:
        examples_without_target: The number of examples that are never sampled.
        meta: The content of meta.json as a dict, or None if there is none.

    Raises:
        NielsCacheError: If a file is missing, malformed, or not the file that meta.json lists, or if the data set was never built.
        NielsCacheError: If an id is unknown, is no token id or differs from meta.json, or if the cache has another tokenizer now than at
            the build.
        NielsCacheError: If this machine lacks the device, if T is below 1, or if the split has no example to sample.
    """

    def __init__(
        self,
        tokens_path: str,
        idx_path: str,
        *,
        T: int,
        device: str,
        eot_id: int,
        asst_id: int | None = None,
        verify: Verify = "size",
        remote: Copy | None = None,
    ) -> None:
        self._given = tokens_path, idx_path, remote
        self.tokens_path, self.idx_path, self._copy = whole_pair(*self._given)
        self.device = resolve_device(device)
        files = self.tokens_path, self.idx_path
        self._use(
            PackedExamples(tokens_path, T=T, seed=0, eot_id=eot_id, asst_id=asst_id, pack=False, shuffle=False, verify=verify, files=files)
        )

    def _use(self, rows: PackedExamples) -> None:
        self._rows, self.T, self.meta, self.eot_id, self.asst_id = rows, rows.T, rows.meta, rows.eot_id, rows.asst_id
        self.examples_without_target = rows.report().dropped.get("without_target", 0)
        self._pairs = InputTargetMaker(self.device, tombstone_id(self.meta))

    def get_batch(self, *, B: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return random examples, drawn with replacement, uniformly from all examples with a target, by one call on `generator`.

        Args:
            B: The number of rows, at least 1.
            generator: The source of random numbers, on any device.

        Returns:
            x, y, y_masked: (B, T) int64, contiguous, on the device. y_masked is y at targets and -100 elsewhere.

        Raises:
            NielsCacheError: If B is not a positive whole number.
        """
        rows = self._rows.read(draw_uniform(self._rows.samples, B=B, generator=generator), epoch=0)
        x, y = self._pairs.pairs(rows.tokens)
        assert rows.targets is not None
        return x, y, torch.where(to_device(np.ascontiguousarray(rows.targets), self.device), y, IGNORE_INDEX)

    def __getstate__(self) -> dict[str, Any]:
        return {"given": self._given, "device": self.device, "rows": self._rows.__getstate__()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._given, self.device = state["given"], state["device"]
        self.tokens_path, self.idx_path, self._copy = whole_pair(*self._given)
        rows = PackedExamples.__new__(PackedExamples)
        rows.__setstate__(state["rows"])  # now, because the copy has the files only now
        self._use(rows)


class PreferenceDataset(NamesArguments):
    """A sampler of preference pairs from one split, such as `cache/sft/NAME/train`.

    Pairs without a target in the kept part of a side are never sampled, and one warning gives their number. `len(dataset)` is the number of
    the other pairs. The object can be pickled: a copy maps the files again, and raises an error if they belong to another build.

    Args:
        folder: The data set's folder followed by the split, or its address, such as `s3://bucket/caches/NAME/train`.
        T: Tokens per row.
        device: The device of batches.
        loss_on: "assistant" means all messages of the assistant after the prompt, "last_assistant" the last of them, "all" every token.
        overflow: What to keep of a side that is longer than T+1 tokens: "truncate_right" keeps the first T+1 tokens, "truncate_left" keeps
            the last T+1, and "drop" leaves out the whole pair.
        verify: "size" compares sizes with meta.json. "sha256" also reads the files and compares their content.
        remote: For an address: the local copy, such as `Copy(dir="/local/tokens", limit=200e9)`. The split is fetched first.

    Raises:
        NielsCacheError: If a file is missing, malformed or not the file that meta.json lists, if the data set was never built, or if it has
            no preference pairs.
        NielsCacheError: If the cache has another tokenizer now than at the build, if a setting is invalid, if no pair is left, or if this
            machine lacks the device.
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
        local, self._copy = SplitLocation.of(folder, remote).whole()
        self._pairs = PackedPairs(local, T=T, seed=0, loss_on=loss_on, overflow=overflow, pack=False, shuffle=False, verify=verify)
        self.T, self.folder, self.meta = self._pairs.T, folder, self._pairs.meta
        self.device = resolve_device(device)
        self._maker = PreferenceMaker([self._pairs], T=self.T, device=self.device, fields=(), mask_cross_document_targets=False)

    def __len__(self) -> int:
        return self._pairs.samples

    def get_batch(self, *, B: int, generator: torch.Generator) -> PreferenceBatch:
        """Return random pairs, one in each row, drawn with replacement, uniformly, by one call on `generator`.

        Args:
            B: The number of rows, at least 1.
            generator: The source of random numbers, on any device.

        Returns:
            The batch, on the device.

        Raises:
            NielsCacheError: If B is not a positive whole number.
        """
        chosen = draw_uniform(len(self), B=B, generator=generator)
        zeros = np.zeros(len(chosen), dtype=np.int64)
        return self._maker.make(SampleLocations(zeros, zeros, chosen, same=(0, 0)))

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "settings": self._settings, "meta": self.meta}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["folder"], **state["settings"])  # type: ignore[misc]
        check_same_build(self.folder, opened=state["meta"], reopened=self.meta)
