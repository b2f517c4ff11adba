"""Samples of a finished cache. They are notable documents or examples, and random samples in the form that training reads.

`pick_samples` returns the first document or example, the longest, the shortest, and one chosen by the hash of the content. It reads 8 bytes
for each document or example of the split, and the shown tokens. `niels-cache sample` prints the results of `windows`, `examples` and
`notable`. These functions mark a target or document that is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.show.split_tokens import SplitTokens
from niels_cache_assets.show.targets import ExampleTargets
from niels_cache_assets.show.wording import counted
from niels_cache_runtime.cache.mmap import Offsets
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import (
    META_NAME,
    Family,
    Split,
    Tokens,
    entries_per_example,
    has_pairs,
    idx_name,
    list_shards,
    shard_name,
    token_dtype_of,
)
from niels_cache_runtime.format.meta import Meta, build_id, cut_ordinals, is_foreign, load_meta

if TYPE_CHECKING:
    import torch

    from niels_cache_assets.tokenizer.kinds import TextTokenizer

SHOWN_TOKENS = 200

_MAX_TOKENS = 1 << 62  # more than any document has
_BLOCK_OFFSETS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A notable document, example or side of a pair. `what`: why it was picked. `noun`: its kind, in one word. `number`: its number in the
    split. `start`: its place in the split, in tokens. `length`: its number of tokens. `tokens`: (n,), its first tokens.
    """

    what: str
    noun: str
    number: int
    start: int
    length: int
    tokens: Tokens


def pick_samples(directory: Path, family: Family, split: Split, meta: Meta, *, shown: int = SHOWN_TOKENS) -> list[Sample]:
    """Return at most four different samples, or none if the split is empty. Of a preference pair, both sides are returned.

    Raise NielsCacheError for missing or unreadable files.
    """
    tokens = SplitTokens(directory, family, split, dtype=token_dtype_of(meta), entries=entries_per_example(meta))
    ends = tokens.ends
    if not len(ends):
        return []
    longest, shortest = _extremes(ends)
    numbers: dict[int, str] = {}
    drawn = int(build_id(meta) or "0" if is_foreign(meta) else meta["content_sha256"], 16) % len(ends)
    for what, number in (("first", 0), ("random", drawn), ("longest", longest), ("shortest", shortest)):
        numbers[number] = f"{numbers[number]}, {what}" if number in numbers else what
    noun = _noun(family, meta)
    return [sample for number, what in numbers.items() for sample in _samples(what, noun, number, tokens, shown)]


def _extremes(ends: Offsets) -> tuple[int, int]:
    """Return the number of the longest and of the shortest document or example. If several have this length, return the first."""
    longest = shortest = (0, int(ends[0]))
    for first in range(0, len(ends), _BLOCK_OFFSETS):
        before = int(ends[first - 1]) if first else 0
        lengths = np.diff(ends[first : first + _BLOCK_OFFSETS].astype(np.int64), prepend=before)
        most, least = int(lengths.argmax()), int(lengths.argmin())
        longest = max(longest, (first + most, int(lengths[most])), key=lambda found: found[1])
        shortest = min(shortest, (first + least, int(lengths[least])), key=lambda found: found[1])
    return longest[0], shortest[0]


def _noun(family: Family, meta: Meta) -> str:
    return "document" if family == "pretrain" else "pair" if has_pairs(meta) else "example"


def _samples(what: str, noun: str, number: int, tokens: SplitTokens, shown: int) -> Iterator[Sample]:
    for side, start, end in tokens.sides(number):
        read = tokens.read(start, min(end - start, shown))
        named = f"{what}, {side}" if side else what
        yield Sample(what=named, noun=noun, number=number, start=start, length=end - start, tokens=read)


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The marking of a text that is cut. mark: printed at the end of the text. explanation: printed once for all samples."""

    mark: str
    explanation: str


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A window, an example or a document to show. tokens: (n,), as in the cache. is_target: (n,) bool. hidden_tokens, hidden_targets: the
    number of tokens and targets that are not shown. is_cut_by_budget: whether the token budget cut the document."""

    title: str
    tokens: Tokens
    is_target: NDArray[np.bool_]
    hidden_tokens: int = 0
    hidden_targets: int = 0
    is_cut_by_budget: bool = False

    @property
    def cut(self) -> Cut | None:
        if self.hidden_targets:
            return Cut(
                mark=f"[cut: {self.hidden_targets:,} of its targets follow]",
                explanation="[cut: ...]: the example is longer than --tokens, so its target is cut. A small T in training cuts it in the "
                "same way, and the rest is never learned. Choose T so that few examples are cut; niels-cache report shows lengths.",
            )
        if self.is_cut_by_budget and not self.hidden_tokens:
            return Cut(
                mark="[cut by the token budget]",
                explanation="[cut by the token budget]: the document is longer in its source, but train_tokens or val_tokens was reached.",
            )
        return None


def _of_example(title: str, tokens: Tokens, is_target: NDArray[np.bool_], *, shown: int) -> Drawn:
    """Return the first `shown` tokens of a whole example. is_target: (n,), which of them are targets."""
    cut = f", the first {shown:,} of them shown" if len(tokens) > shown else ""
    return Drawn(
        title=f"{title}, {counted(len(tokens), 'token')}{cut}",
        tokens=tokens[:shown],
        is_target=is_target[:shown],
        hidden_tokens=max(0, len(tokens) - shown),
        hidden_targets=int(is_target[shown:].sum()),
    )


def windows(directory: Path, split: Split, *, count: int, length: int, generator: torch.Generator) -> Iterator[Drawn]:
    """Yield windows that the training sampler draws. The windows are shorter than `length` if no shard is long enough."""
    from niels_cache_runtime.samplers.pretrain_dataset import PretrainTokenStreamDataset  # torch

    folder, dtype = directory / split, token_dtype_of(load_meta(str(directory / META_NAME)))
    longest = max((shard.stat().st_size // dtype.itemsize for shard in list_shards(folder)), default=0)
    dataset = PretrainTokenStreamDataset(str(folder), T=max(1, min(length, longest - 1)), device="cpu")
    x, _ = dataset.get_batch(B=count, generator=generator)
    for number, tokens in enumerate(x.numpy().astype(dtype), start=1):
        yield _window(tokens, split, number, count)


def fetched_windows(
    meta: Meta, split: Split, *, count: int, length: int, generator: torch.Generator, fetch: Callable[[Sequence[str]], Path]
) -> Iterator[Drawn]:
    """Yield the windows that `windows` yields, of a cache of which only the meta.json is here.

    fetch: fetches files by their path in the data set, and returns its folder. Only shards with a drawn window are fetched.
    """
    from niels_cache_runtime.cache.gather import draw  # torch
    from niels_cache_runtime.samplers.pretrain_dataset import count_windows

    dtype, files = token_dtype_of(meta), meta["files"]
    shards = [f"{split}/{shard_name(index)}" for index in range(sum(path.startswith(f"{split}/") for path in files))]
    lengths = np.array([files[shard]["bytes"] // dtype.itemsize for shard in shards], dtype=np.int64)
    T = max(1, min(length, int(lengths.max(initial=0)) - 1))
    ends, starts = count_windows(lengths, T)
    if not len(ends) or not ends[-1]:
        raise NielsCacheError(f"{split}: has too few tokens, so there is nothing to sample; choose another --split")
    numbers = draw(int(ends[-1]), B=count, generator=generator)
    found = ends.searchsorted(numbers, side="right").tolist()
    folder = fetch([shards[shard] for shard in sorted(set(found))])
    for number, (window, shard) in enumerate(zip(numbers.tolist(), found, strict=True), start=1):
        offset = (window - int(starts[shard])) * dtype.itemsize
        tokens = np.fromfile(folder / shards[shard], dtype, count=T, offset=offset)
        yield _window(tokens, split, number, count)


def _window(tokens: Tokens, split: Split, number: int, count: int) -> Drawn:
    title = f"{split} window {number} of {count}, {counted(len(tokens), 'token')}"
    return Drawn(title=title, tokens=tokens, is_target=np.zeros(len(tokens), dtype=np.bool_))


def notable(directory: Path, family: Family, split: Split, *, length: int, tokenizer: TextTokenizer | None) -> Iterator[Drawn]:
    """Yield the same documents or examples that the UI shows."""
    meta = load_meta(str(directory / META_NAME))
    noun = _noun(family, meta)
    # An example is read whole, to count its hidden targets.
    picked = pick_samples(directory, family, split, meta, shown=length if family == "pretrain" else _MAX_TOKENS)
    if not picked:
        raise NielsCacheError(f"{directory}: {split} is empty (0 {noun}s), so there is nothing to sample; choose another --split")
    cut_by_budget = cut_ordinals(meta, split)
    targets = targets_of(directory, split, meta, tokenizer) if family == "sft" else None
    for sample in picked:
        title = f"{sample.what}: {split} {noun} {sample.number:,}"
        if targets is not None:
            yield _of_example(title, sample.tokens, targets.of_example(sample.tokens, sample.number, sample.start), shown=length)
            continue
        cut = f", the first {length:,} of them shown" if sample.length > length else ""
        yield Drawn(
            title=f"{title}, {counted(sample.length, 'token')}{cut}",
            tokens=sample.tokens,
            is_target=np.zeros(len(sample.tokens), dtype=np.bool_),
            hidden_tokens=sample.length - len(sample.tokens),
            is_cut_by_budget=family == "pretrain" and sample.number in cut_by_budget,
        )


def examples(
    directory: Path, split: Split, *, count: int, length: int, generator: torch.Generator, tokenizer: TextTokenizer | None
) -> Iterator[Drawn]:
    """Yield different random examples. Long examples are cut for display."""
    import torch

    meta = load_meta(str(directory / META_NAME))
    stream = SplitTokens(directory, "sft", split, dtype=token_dtype_of(meta), entries=entries_per_example(meta))
    total, noun = len(stream.ends), _noun("sft", meta)
    if not total:
        raise NielsCacheError(
            f"{directory / idx_name(split)}: this split is empty (0 {noun}s), so there is nothing to sample; choose another --split"
        )
    targets = targets_of(directory, split, meta, tokenizer)
    for example in torch.randperm(total, generator=generator)[:count].tolist():
        for side, start, end in stream.sides(example):
            tokens = stream.read(start, end - start)
            is_target = targets.of_example(tokens, example, start)
            title = f"{split} {noun} {example:,} of {total:,}{f', {side}' if side else ''}"
            yield _of_example(title, tokens, is_target, shown=length)


def targets_of(directory: Path, split: Split, meta: Meta, tokenizer: TextTokenizer | None) -> ExampleTargets:
    """Return the targets of a split. Without a tokenizer, the ids that mark them are those in meta.json.

    Raises the errors of ExampleTargets.
    """
    total = len(SplitTokens(directory, "sft", split, dtype=token_dtype_of(meta)))
    return ExampleTargets(directory, split, meta, token_count=total, ids=tokenizer.special_token_ids() if tokenizer else None)
