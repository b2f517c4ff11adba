"""Documents and examples of a finished cache to look at: notable ones, and what training will see, drawn.

`pick_samples` takes the first, one drawn by the content's hash, the longest and the shortest. It costs 8 bytes read for each document or
example, and the few tokens that are shown. `windows`, `examples` and `notable` are what `niels-cache sample` prints: where a target, or a
document, ends early, what is drawn says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.show.split_tokens import SplitTokens
from niels_cache_assets.show.wording import counted
from niels_cache_runtime.cache.mmap import Offsets
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.foreign_meta import is_foreign
from niels_cache_runtime.format.layout import (
    META_NAME,
    TOKEN_BYTES,
    Family,
    Split,
    idx_name,
    list_shards,
)
from niels_cache_runtime.format.meta import Meta, build_id, load_meta
from niels_cache_runtime.format.meta_keys import is_count

if TYPE_CHECKING:
    import torch

    from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer

SHOWN_TOKENS = 200

_MAX_TOKENS = 1 << 62  # all of them
_BLOCK_OFFSETS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Sample:
    """`tokens` (uint16): those to show, the first of the `length` that the document or example has. `number`: its place in the split."""

    what: str
    number: int
    length: int
    tokens: NDArray[np.uint16]


def pick_samples(directory: Path, family: Family, split: Split, meta: Meta, *, shown: int = SHOWN_TOKENS) -> list[Sample]:
    """At most four different ones; none of an empty split. Raises NielsCacheError for files that are missing or cannot be read."""
    tokens = SplitTokens(directory, family, split)
    ends = tokens.ends
    if not len(ends):
        return []
    longest, shortest = _extremes(ends)
    numbers: dict[int, str] = {}
    drawn = int(build_id(meta) or "0" if is_foreign(meta) else meta["content_sha256"], 16) % len(ends)
    for what, number in (("first", 0), ("random", drawn), ("longest", longest), ("shortest", shortest)):
        numbers[number] = f"{numbers[number]}, {what}" if number in numbers else what
    return [_sample(what, number, tokens, shown) for number, what in numbers.items()]


def _extremes(ends: Offsets) -> tuple[int, int]:
    """Numbers of the longest and the shortest, the first of each."""
    longest = shortest = (0, int(ends[0]))
    for first in range(0, len(ends), _BLOCK_OFFSETS):
        before = int(ends[first - 1]) if first else 0
        lengths = np.diff(ends[first : first + _BLOCK_OFFSETS].astype(np.int64), prepend=before)
        most, least = int(lengths.argmax()), int(lengths.argmin())
        longest = max(longest, (first + most, int(lengths[most])), key=lambda found: found[1])
        shortest = min(shortest, (first + least, int(lengths[least])), key=lambda found: found[1])
    return longest[0], shortest[0]


def _sample(what: str, number: int, tokens: SplitTokens, shown: int) -> Sample:
    start, end = tokens.bounds(number)
    return Sample(what=what, number=number, length=end - start, tokens=tokens.read(start, min(end - start, shown)))


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Where a text ends early. mark: stands there. explanation: a sentence or two, said once for all samples."""

    mark: str
    explanation: str


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What is shown of a window, an example or a document. tokens: (n,) uint16, is_target: (n,) bool. hidden_tokens, hidden_targets: of an
    example, those that are not shown. is_cut_by_budget: of a document, whether the token budget ended before it did."""

    title: str
    tokens: NDArray[np.uint16]
    is_target: NDArray[np.bool_]
    hidden_tokens: int = 0
    hidden_targets: int = 0
    is_cut_by_budget: bool = False

    @property
    def cut(self) -> Cut | None:
        if self.hidden_targets:
            return Cut(
                mark=f"[cut: {self.hidden_targets:,} of its targets are behind this]",
                explanation="[cut: ...]: the example is longer than --tokens, so its target is cut. Training with a T that is too short "
                "does the same, and never learns what is behind: choose T so that few examples are cut (niels-cache report shows lengths).",
            )
        if self.is_cut_by_budget and not self.hidden_tokens:
            return Cut(
                mark="[cut by the token budget]",
                explanation="[cut by the token budget]: the source has more of this document, but train_tokens or val_tokens was reached.",
            )
        return None


def _of_example(title: str, tokens: NDArray[np.uint16], *, shown: int, ids: Mapping[str, int]) -> Drawn:
    """The first `shown` tokens of a whole example. ids: of the special tokens."""
    from niels_cache_runtime.cache.sft import assistant_target_mask  # torch

    is_target = assistant_target_mask(tokens, ids["asst"], ids["eot"])
    cut = f", the first {shown:,} of them shown" if len(tokens) > shown else ""
    return Drawn(
        title=f"{title}, {counted(len(tokens), 'token')}{cut}",
        tokens=tokens[:shown],
        is_target=is_target[:shown],
        hidden_tokens=max(0, len(tokens) - shown),
        hidden_targets=int(is_target[shown:].sum()),
    )


def windows(directory: Path, split: Split, *, count: int, length: int, generator: torch.Generator) -> Iterator[Drawn]:
    """Windows as the training sampler draws them, shorter where no shard is long enough."""
    from niels_cache_runtime.samplers.pretrain_dataset import PretrainTokenStreamDataset  # torch

    folder = directory / split
    longest = max((shard.stat().st_size // TOKEN_BYTES for shard in list_shards(folder)), default=0)
    dataset = PretrainTokenStreamDataset(str(folder), T=max(1, min(length, longest - 1)), device="cpu")
    x, _ = dataset.get_batch(B=count, generator=generator)
    for number, tokens in enumerate(x.numpy().astype(np.uint16), start=1):
        title = f"{split} window {number} of {count}, {counted(len(tokens), 'token')}"
        yield Drawn(title=title, tokens=tokens, is_target=np.zeros(len(tokens), dtype=np.bool_))


def notable(directory: Path, family: Family, split: Split, *, length: int, tokenizer: SentencePieceTokenizer | None) -> Iterator[Drawn]:
    """The same documents or examples that the UI shows."""
    noun = "document" if family == "pretrain" else "example"
    meta = load_meta(str(directory / META_NAME))
    # Of an example all is read: how many of its targets are not shown is told.
    picked = pick_samples(directory, family, split, meta, shown=length if family == "pretrain" else _MAX_TOKENS)
    if not picked:
        raise NielsCacheError(f"{directory}: this split is empty (0 {noun}s); nothing can be sampled from {split}")
    cut_document = (meta.get("cut_document") or {}).get(split)
    for sample in picked:
        title = f"{sample.what}: {split} {noun} {sample.number:,}"
        if family == "sft":
            yield _of_example(title, sample.tokens, shown=length, ids=_target_ids(directory, tokenizer))
            continue
        cut = f", the first {length:,} of them shown" if sample.length > length else ""
        yield Drawn(
            title=f"{title}, {counted(sample.length, 'token')}{cut}",
            tokens=sample.tokens,
            is_target=np.zeros(len(sample.tokens), dtype=np.bool_),
            hidden_tokens=sample.length - len(sample.tokens),
            is_cut_by_budget=family == "pretrain" and sample.number == cut_document,
        )


def examples(
    directory: Path, split: Split, *, count: int, length: int, generator: torch.Generator, tokenizer: SentencePieceTokenizer | None
) -> Iterator[Drawn]:
    """Different examples, the long ones cut for display."""
    import torch

    stream = SplitTokens(directory, "sft", split)
    total = len(stream.ends)
    if not total:
        raise NielsCacheError(f"{directory / idx_name(split)}: this split is empty (0 examples); nothing can be sampled from it")
    ids = _target_ids(directory, tokenizer)
    for example in torch.randperm(total, generator=generator)[:count].tolist():
        start, end = stream.bounds(example)
        yield _of_example(f"{split} example {example:,} of {total:,}", stream.read(start, end - start), shown=length, ids=ids)


def _target_ids(directory: Path, tokenizer: SentencePieceTokenizer | None) -> dict[str, int]:
    """Of the tokenizer or, of what another program made, its meta.json's. Raises NielsCacheError if that does not name them."""
    if tokenizer is not None:
        return tokenizer.special_token_ids()
    ids = load_meta(str(directory / META_NAME))["special_token_ids"]
    if not is_count(ids.get("asst")):
        raise NielsCacheError(f"{directory / META_NAME}: special_token_ids has no asst, which begins the targets; add its id there")
    return {role: ids[role] for role in ("eot", "asst")}
