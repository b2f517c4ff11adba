"""Samples of a finished cache: notable documents or examples, and random samples in the form that training reads.

`niels-cache sample` prints the results of `windows`, `examples` and `notable`. These functions mark a target or document that is cut.
`notable` reads 8 bytes for each document or example of the split, and the shown tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from niels_cache_assets.base.wording import format_count
from niels_cache_assets.facts.split_tokens import SplitTokens, lengths_of
from niels_cache_assets.facts.targets import ExampleTargets
from niels_cache_runtime.cache.mmap import Offsets
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import (
    META_NAME,
    Bools,
    Family,
    Split,
    Tokens,
    has_pairs,
    shard_name,
    token_dtype_of,
)
from niels_cache_runtime.format.meta import Meta, build_id, cut_ordinals, is_foreign, load_meta

if TYPE_CHECKING:
    import torch

    from niels_cache_assets.tokenizer.kinds import TextTokenizer


_TOKENS_AT_ONCE = 1 << 22


def notable_numbers(ends: Offsets, meta: Meta) -> dict[int, str]:
    """Return the numbers of at most four different documents or examples, each with the reason why it was picked.

    Args:
        ends: Where each document or example of the split ends, in tokens.
        meta: The meta.json.
    """
    if not len(ends):
        return {}
    longest, shortest = _extremes(ends)
    numbers: dict[int, str] = {}
    drawn = int(build_id(meta) or "0" if is_foreign(meta) else meta["content_sha256"], 16) % len(ends)
    for what, number in (("first", 0), ("random", drawn), ("longest", longest), ("shortest", shortest)):
        numbers[number] = f"{numbers[number]}, {what}" if number in numbers else what
    return numbers


def _extremes(ends: Offsets) -> tuple[int, int]:
    """Return the number of the longest and of the shortest document or example, each the first of its length."""
    longest = shortest = (0, int(ends[0]))
    first = 0
    for lengths in lengths_of(ends):
        most, least = int(lengths.argmax()), int(lengths.argmin())
        longest = max(longest, (first + most, int(lengths[most])), key=lambda found: found[1])
        shortest = min(shortest, (first + least, int(lengths[least])), key=lambda found: found[1])
        first += len(lengths)
    return longest[0], shortest[0]


@dataclass(frozen=True, kw_only=True)
class DisplayedSample:
    """A window, an example or a document to show.

    Attributes:
        title: Its title.
        tokens: Its tokens as in the cache, (n,).
        is_target: Whether each token is a target, (n,) bool.
        hidden_tokens: Number of tokens that are not shown.
        hidden_targets: Number of targets that are not shown.
        is_cut_by_budget: Whether the token budget cut the document.
    """

    title: str
    tokens: Tokens
    is_target: Bools
    hidden_tokens: int = 0
    hidden_targets: int = 0
    is_cut_by_budget: bool = False

    @property
    def cut(self) -> tuple[str, str] | None:
        """The mark at the end of a text that is cut, and its explanation, which is printed once for all samples."""
        if self.hidden_targets:
            return (
                f"[cut: {self.hidden_targets:,} of its targets follow]",
                "[cut: ...]: the example is longer than --tokens, so its target is cut. A small T in training cuts it in the "
                "same way, and the rest is never learned. Choose T so that few examples are cut; niels-cache report shows lengths.",
            )
        if self.is_cut_by_budget and not self.hidden_tokens:
            return (
                "[cut by the token budget]",
                "[cut by the token budget]: the document is longer in its source, but train_tokens or val_tokens was reached.",
            )
        return None


def _displayed_samples(
    tokens: SplitTokens, titles: Mapping[int, str], targets: ExampleTargets | None, *, length: int, cut_by_budget: Collection[int] = ()
) -> Iterator[DisplayedSample]:
    """Yield documents or examples, or both sides of each preference pair, cut after `length` tokens.

    Args:
        tokens: Tokens of the split.
        titles: Titles by number.
        targets: Targets of the split, or None for documents.
        length: Maximum number of tokens.
        cut_by_budget: Numbers of documents that the token budget cut; by default none.
    """
    for number, title in titles.items():
        for side, start, end in tokens.sides(number):
            count = end - start
            shown = tokens.read(start, count if targets else min(count, length))  # an example is read in full, to count its hidden targets
            is_target = targets.of_example(shown, number, start) if targets else np.zeros(len(shown), dtype=np.bool_)
            note = f", the first {length:,} of them shown" if count > length else ""
            yield DisplayedSample(
                title=f"{title}{f', {side}' if side else ''}, {format_count(count, 'token')}{note}",
                tokens=shown[:length],
                is_target=is_target[:length],
                hidden_tokens=max(0, count - length),
                hidden_targets=int(is_target[length:].sum()),
                is_cut_by_budget=number in cut_by_budget,
            )


def windows(
    directory: Path,
    split: Split,
    *,
    count: int,
    length: int,
    generator: torch.Generator,
    fetch: Callable[[Sequence[str]], Path] | None = None,
) -> Iterator[DisplayedSample]:
    """Yield windows that the training sampler draws. The windows are shorter than `length` if no shard is long enough.

    Args:
        directory: The folder of the cache.
        split: The split.
        count: Number of windows.
        length: Number of tokens of a window.
        generator: Draws the windows.
        fetch: For a cache of which only the meta.json is here: fetches files by their path in the data set, and returns their folder. Only
            shards with a drawn window are fetched.
    """
    from niels_cache_runtime.cache.gather import draw_uniform  # torch
    from niels_cache_runtime.cache.opening import open_split
    from niels_cache_runtime.samplers.pretrain_dataset import count_windows

    meta = load_meta(directory / META_NAME)
    dtype = token_dtype_of(meta)
    if fetch is None:
        lengths = open_split(directory / split).tokens.shard_lengths
    else:
        sizes = {path: entry["bytes"] for path, entry in meta["files"].items() if path.startswith(f"{split}/")}
        lengths = np.array([sizes[f"{split}/{shard_name(index)}"] // dtype.itemsize for index in range(len(sizes))], dtype=np.int64)
    T = max(1, min(length, int(lengths.max(initial=0)) - 1))
    ends, starts = count_windows(lengths, T)
    if not len(ends) or not ends[-1]:
        raise NielsCacheError(f"{split}: has too few tokens, so there is nothing to sample; choose another --split")
    numbers = draw_uniform(int(ends[-1]), B=count, generator=generator)
    shards = ends.searchsorted(numbers, side="right")
    paths, offsets = [f"{split}/{shard_name(shard)}" for shard in shards.tolist()], numbers - starts[shards]
    folder = directory if fetch is None else fetch(sorted(set(paths)))
    for number, (path, offset) in enumerate(zip(paths, offsets.tolist(), strict=True), start=1):
        tokens = np.fromfile(folder / path, dtype, count=T, offset=offset * dtype.itemsize)
        title = f"{split} window {number} of {count}, {format_count(len(tokens), 'token')}"
        yield DisplayedSample(title=title, tokens=tokens, is_target=np.zeros(len(tokens), dtype=np.bool_))


def repetitive(directory: Path, split: Split, *, count: int, length: int, rule: tuple[int, int]) -> tuple[str, Iterable[DisplayedSample]]:
    """Return how many windows `mask_repetitive=rule` of TokenLoader masks, in words, and the first of them. All windows are read.

    Args:
        directory: The folder of the cache.
        split: The split.
        count: Number of windows to show.
        length: Number of inputs of a window.
        rule: The longest period, and the number of repetitions.
    """
    from niels_cache_runtime.loader.target_weights import repetitive_rows  # torch
    from niels_cache_runtime.loader.windows import PretrainWindows

    windows = PretrainWindows(str(directory / split), T=length)
    at_once = max(1, _TOKENS_AT_ONCE // length)
    blocks = (np.arange(first, min(first + at_once, windows.samples)) for first in range(0, windows.samples, at_once))
    found = np.concatenate([block[repetitive_rows(windows.read(block, epoch=0, boundaries=False), *rule)] for block in blocks])
    blank = np.zeros(length + 1, dtype=np.bool_)
    rows = zip(found.tolist(), windows.read(found[:count], epoch=0, boundaries=False).tokens, strict=False)
    shown = [DisplayedSample(title=f"{split} window {number:,}", tokens=row, is_target=blank) for number, row in rows]
    return f"{len(found):,} of {windows.samples:,} windows of T={length:,} repeat up to {rule[0]} tokens {rule[1]} times", shown


def notable(directory: Path, family: Family, split: Split, *, length: int, tokenizer: TextTokenizer | None) -> Iterator[DisplayedSample]:
    """Yield the first document or example, the longest, the shortest, and one chosen by the hash of the content."""
    meta, tokens, targets, noun = _open(directory, family, split, tokenizer)
    titles = {number: f"{what}: {split} {noun} {number:,}" for number, what in notable_numbers(tokens.ends, meta).items()}
    return _displayed_samples(tokens, titles, targets, length=length, cut_by_budget=cut_ordinals(meta, split))


def examples(
    directory: Path, split: Split, *, count: int, length: int, generator: torch.Generator, tokenizer: TextTokenizer | None
) -> Iterator[DisplayedSample]:
    """Yield distinct random examples. Long examples are cut for display."""
    import torch

    _, tokens, targets, noun = _open(directory, "sft", split, tokenizer)
    total = len(tokens.ends)
    numbers = torch.randperm(total, generator=generator)[:count].tolist()
    titles = {number: f"{split} {noun} {number:,} of {total:,}" for number in numbers}
    return _displayed_samples(tokens, titles, targets, length=length)


def _open(
    directory: Path, family: Family, split: Split, tokenizer: TextTokenizer | None
) -> tuple[Meta, SplitTokens, ExampleTargets | None, str]:
    """Return meta.json, the tokens, the targets of examples, and what an item is called.

    Without a tokenizer, the ids that mark targets are those in meta.json.

    Raises:
        NielsCacheError: If the split is empty, or as ExampleTargets does.
    """
    meta = load_meta(directory / META_NAME)
    tokens = SplitTokens(directory, family, split, meta)
    noun = "document" if family == "pretrain" else "pair" if has_pairs(meta) else "example"
    if not len(tokens.ends):
        raise NielsCacheError(f"{directory}: {split} is empty (0 {noun}s), so there is nothing to sample; choose another --split")
    if family == "pretrain":
        return meta, tokens, None, noun
    ids = tokenizer.special_token_ids() if tokenizer else None
    return meta, tokens, ExampleTargets(directory, split, meta, token_count=len(tokens), ids=ids), noun
