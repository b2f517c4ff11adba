"""Whole SFT examples, one per row, with targets only inside the assistant's messages.

    sys ... EOT  usr ... EOT  asst A B EOT  EOT EOT          an example, padded
                                   A B EOT                   its targets; every other target is -100

Rows are cut or padded to T+1 tokens. Opening costs one pass over the tokens (in blocks, to find examples without a target). Then the cost
per batch is constant. `loader` can pack several examples into a row.
"""

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from niels_cache_runtime.cache.checks import check_positive
from niels_cache_runtime.cache.gather import PairMaker, draw, resolve_device, send
from niels_cache_runtime.cache.opening import Verify, check_same_build, rebuilt
from niels_cache_runtime.cache.sft import (
    OpenedExamples,
    assistant_target_mask,
    open_examples,
    resolve_target_ids,
)
from niels_cache_runtime.cache.targets import ExampleParts
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import IGNORE_INDEX, Tokens
from niels_cache_runtime.remote.whole import Copy, whole_pair

_SCAN_TOKENS = 1 << 22


class SFTExampleDataset:
    """A sampler of whole examples from the two files of an SFT split, such as `train_tokens.bin` and `train_idx.npy` of `cache/sft/NAME`.

    tokens_path: a headerless file of little-endian uint16 or uint32, as the meta.json beside it says; without meta.json, uint16.
    idx_path: an int64 .npy file, the start of each example in tokens.
    T: tokens per row. An example is cut to its first T+1 tokens, or padded with EOT (the end-of-text token).
    device: the device of batches. eot_id: the id of EOT.
    asst_id: the id of the assistant sentinel. If None, it is taken from the meta.json beside the tokens, or without one from that of the
        tokenizer in the root of the cache. A data set with a chat template takes no asst_id.
    verify: "size" compares sizes with meta.json; "sha256" reads both files and compares their content.
    remote: for addresses, such as `s3://bucket/caches/NAME/train_tokens.bin`: the local copy, such as Copy(dir="/local/tokens", limit=2e9).
        Both files are fetched first.

    Examples without a target in their first T+1 tokens would make the loss NaN, so they are never sampled. `examples_without_target` is the
    number of such examples, and one warning gives this number. The object can be pickled: a copy maps the files again, and raises an error
    if they belong to another build. All files are of one build, even if a rebuild replaces the data set while its files are being opened.

    A data set with a chat template, or with messages that are not trained on, has its targets in two further files beside the tokens
    (`train_targets.npy` and `train_target_ends.npy`), which are read too.

    Raises NielsCacheError if a file is missing, malformed, or not the file that meta.json lists, and if the data set was never built. Also
    raises it if an id is unknown, is no token id or differs from meta.json, and if the cache has another tokenizer now than at the build.
    Further reasons are a device that this machine lacks, T below 1, and a split without an example to sample.
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
        self.T = T = check_positive("T", T)
        self._given = tokens_path, idx_path, remote
        self.tokens_path, self.idx_path, self._copy = whole_pair(*self._given)
        self.device = resolve_device(device)
        opened = self._open(verify)
        starts = opened.starts
        self.eot_id, self.asst_id = resolve_target_ids(eot_id, asst_id, opened=opened, tokens_path=self.tokens_path)
        if not len(starts):
            raise NielsCacheError(f"{idx_path}: this split is empty (0 examples); nothing can be sampled from it")
        kept_lengths = np.minimum(np.diff(starts, append=len(self._tokens)), T + 1)
        has_target = self._find_targets(starts, kept_lengths) if self._spans is None else self._spans.have_targets(starts, kept_lengths)
        self.examples_without_target = int(np.count_nonzero(~has_target))
        if not has_target.any():
            raise NielsCacheError(
                f"{tokens_path}: none of its {len(starts)} examples has an assistant target in its first {T + 1} tokens; "
                f"use a larger T{self._hint()}"
            )
        if self.examples_without_target:
            warnings.warn(
                f"{tokens_path}: {self.examples_without_target} of {len(starts)} examples have no assistant target "
                f"in their first {T + 1} tokens and are never sampled; a larger T may keep them",
                stacklevel=2,
            )
        self._examples = np.flatnonzero(has_target)
        self._starts = starts[has_target]
        self._lengths = kept_lengths[has_target]

    def get_batch(self, *, B: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return x, y, y_masked: (B, T) int64, contiguous, on the device. y_masked is y at targets and -100 elsewhere.

        B examples are drawn with replacement, uniformly from all examples with a target, by one call on `generator`.
        """
        chosen = draw(len(self._starts), B=B, generator=generator)
        lengths = self._lengths[chosen, None]
        columns = np.arange(self.T + 1)
        real = columns < lengths
        rows = self._tokens[self._starts[chosen, None] + np.minimum(columns, lengths - 1)]
        rows[~real] = self.eot_id
        mask = self._targets(rows, chosen, real)[:, 1:]
        x, y = self._pairs.pairs(rows)
        targets = send(np.ascontiguousarray(mask), self.device)
        return x, y, torch.where(targets, y, IGNORE_INDEX)

    def _targets(self, rows: Tokens, chosen: NDArray[np.int64], real: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which tokens of the rows (B, T+1) are targets. real: which of them are not padding."""
        if self._spans is None:
            assert self.asst_id is not None
            return assistant_target_mask(rows, self.asst_id, self.eot_id) & real
        parts = ExampleParts(
            examples=self._examples[chosen],
            starts=self._starts[chosen],
            lengths=self._lengths[chosen],
            places=np.arange(len(chosen)) * (self.T + 1),
        )
        return self._spans.mask(rows.size, parts).reshape(rows.shape)

    def _hint(self) -> str:
        return "" if self._spans is not None else f", or check asst_id={self.asst_id} and eot_id={self.eot_id}"

    def _open(self, verify: Verify = "size") -> OpenedExamples:
        """Open or reopen the files."""
        self._pairs = PairMaker(self.device)
        opened = open_examples(self.tokens_path, self.idx_path, verify=verify)
        self.meta, self._tokens, self._spans = opened.meta, opened.tokens, opened.spans
        return opened

    def _find_targets(self, starts: NDArray[np.int64], kept_lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return (examples,) bool: whether the kept part of each example has a target. A target is a token after an assistant sentinel."""
        has_target = np.zeros(len(starts), dtype=np.bool_)
        kept_ends = starts + kept_lengths
        for block in range(0, len(self._tokens), _SCAN_TOKENS):
            sentinels = block + np.flatnonzero(self._tokens[block : block + _SCAN_TOKENS] == self.asst_id)
            examples = np.searchsorted(starts, sentinels, side="right") - 1
            followed = sentinels + 1 < kept_ends[examples]
            examples, following = examples[followed], sentinels[followed] + 1
            has_target[examples[self._tokens[following] != self.asst_id]] = True
        return has_target

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_tokens", "_pairs", "_spans", "_copy")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.tokens_path, self.idx_path, self._copy = whole_pair(*self._given)
        starts = self._open().starts
        check_same_build(self.tokens_path, opened=state["meta"], reopened=self.meta)
        if self._examples[-1] >= len(starts) or not np.array_equal(starts[self._examples], self._starts):  # without a meta.json of ours
            raise rebuilt(self.tokens_path)
