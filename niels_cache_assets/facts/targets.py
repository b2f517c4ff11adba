"""Which tokens of the examples of a finished cache are targets: those in its spans, or those that its sentinels mark."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from niels_cache_runtime.cache.mmap import map_example_starts
from niels_cache_runtime.cache.targets import ExampleSlices, map_targets
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, Bools, Ints, Split, Tokens, has_spans, idx_name
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.format.meta_keys import is_count


class ExampleTargets:
    """The targets of the examples of one split.

    Args:
        directory: Folder of the data set.
        split: The split.
        meta: The meta.json of the data set.
        token_count: Number of tokens of the split.
        ids: Ids of sentinels by role; by default those in meta.json.

    Raises:
        NielsCacheError: If the spans of the split cannot be read, or if meta.json names no assistant sentinel for a cache without spans.
    """

    def __init__(self, directory: Path, split: Split, meta: Meta, *, token_count: int, ids: Mapping[str, int] | None = None) -> None:
        self._spans, self._starts = None, None
        self._ids: Mapping[str, int] = meta["special_token_ids"] if ids is None else ids
        if has_spans(meta):
            self._starts = map_example_starts(directory / idx_name(split), token_count=token_count)
            self._spans = map_targets(directory, split, starts=self._starts, token_count=token_count)
        elif not is_count(self._ids.get("asst")):
            raise NielsCacheError(f"{directory / META_NAME}: special_token_ids has no asst, the token before the targets; add its id there")

    def of_example(self, tokens: Tokens, example: int, begin: int) -> Bools:
        """Return which of the first tokens of an example are targets, (n,) bool.

        Args:
            tokens: Tokens from the beginning of the example on, (n,).
            example: Number of the example.
            begin: Where the example begins in the split; for a side of a preference pair, where the side begins.
        """
        if self._starts is not None:
            example = int(np.searchsorted(self._starts, begin))  # the entry of the side in the index
        return self.mask(tokens, np.zeros(1, np.int64), first=example, begin=begin)

    def mask(self, tokens: Tokens, starts: Ints, *, first: int, begin: int) -> Bools:
        """Return which tokens are targets, (n,) bool.

        Args:
            tokens: Tokens of whole examples, (n,), of which the last may be cut.
            starts: Where each example begins in `tokens`.
            first: Number of the first example.
            begin: Where `tokens` begin in the split.
        """
        if self._spans is None:
            from niels_cache_runtime.cache.sft import example_target_mask  # imports torch

            return example_target_mask(tokens, starts, self._ids["asst"], self._ids["eot"])
        lengths = np.diff(starts, append=len(tokens))
        parts = ExampleSlices(examples=first + np.arange(len(starts)), starts=begin + starts, lengths=lengths, places=starts)
        return self._spans.mask(len(tokens), parts)

    def turns(self, tokens: Tokens, starts: Ints, *, first: int) -> Ints:
        """Return the number of turns of each example, (examples,): messages of users and the assistant, or spans."""
        if self._spans is not None:
            owners, *_ = self._spans.spans_of(first + np.arange(len(starts)))
            return np.bincount(owners, minlength=len(starts))
        is_turn = (tokens == self._ids["usr"]) | (tokens == self._ids["asst"])
        return np.add.reduceat(is_turn, starts, dtype=np.int64)
