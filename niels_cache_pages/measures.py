"""The counts for the plots of a cache, taken in one pass over the cache in blocks, so that memory stays constant.

A pass costs about 2 ns per token for pretrain or 20 ns per token for SFT, and a read of 8 bytes per document. If a cache is larger than
MAX_TOKENS, only evenly spaced blocks are counted. So every cache takes at most a second or two. Lengths always cover every document.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from niels_cache_assets.base.wording import format_count
from niels_cache_assets.facts.published import folder_with
from niels_cache_assets.facts.split_tokens import SplitTokens, lengths_of
from niels_cache_assets.facts.targets import ExampleTargets
from niels_cache_runtime.cache.mmap import map_example_starts
from niels_cache_runtime.format.layout import SPLITS, Bools, Family, Ints, Tokens, has_pairs, has_spans, idx_name
from niels_cache_runtime.format.meta import Meta

MAX_TOKENS = 1 << 28
MAX_IDS = 1 << 24  # all larger ids count as one; no tokenizer has this many
CONTEXT = 1024  # tokens: the T of the examples
MAX_TURNS = 20  # examples with more turns count as examples with this many
SHARE_BINS = 20
# Edges of the bins of lengths, in tokens: two to an octave.
LENGTH_EDGES = np.unique(np.ceil(2.0 ** (np.arange(2 * 40) / 2)).astype(np.int64))

_BLOCK_TOKENS = 1 << 20


@dataclass(kw_only=True)
class ConversationMeasures:
    """The counts over the examples that were read.

    Attributes:
        counted: What counts as a turn: `turns` (messages from user and assistant), or `replies` (spans of targets, in a cache with a chat
            template).
        turns: Number of examples for each number of turns.
        target_shares: Histogram of examples by their share of target tokens, with SHARE_BINS bins from 0 to 1.
        target_tokens: Number of target tokens.
    """

    counted: str
    turns: Counter[int] = field(default_factory=Counter)
    target_shares: Ints = field(default_factory=lambda: np.zeros(SHARE_BINS, dtype=np.int64))
    target_tokens: int = 0

    def add(self, is_target: Bools, starts: Ints, turns: Ints) -> None:
        """Count the examples of a block.

        Args:
            is_target: Whether each token is a target, (n,).
            starts: Where each example begins, (examples,).
            turns: Number of turns of each example, (examples,).
        """
        targets = np.add.reduceat(is_target, starts, dtype=np.int64)
        self.turns.update(np.minimum(turns, MAX_TURNS).tolist())
        bins = targets * SHARE_BINS // np.diff(starts, append=len(is_target))
        self.target_shares += np.bincount(np.minimum(bins, SHARE_BINS - 1), minlength=SHARE_BINS)
        self.target_tokens += int(targets.sum())


@dataclass(frozen=True, kw_only=True)
class CacheMeasures:
    """The counts of one cache.

    Attributes:
        lengths: Histogram of items by length, with one count for each of LENGTH_EDGES.
        items: Number of documents, examples, or sides of pairs (`noun`).
        cut: Number of items that are too long for a row of CONTEXT tokens with targets.
        token_counts: How often each id below MAX_IDS occurs in the counted tokens. It ends at the largest id if the vocabulary size is
            unknown.
        vocab_size: Size of the vocabulary, or None if unknown.
        counted: Number of tokens that were counted.
        tokens: Number of all tokens.
        conversations: Counts of conversations, or None unless the cache is SFT.
        noun: What an item is called.
    """

    lengths: Ints
    items: int
    cut: int
    token_counts: Ints
    vocab_size: int | None
    counted: int
    tokens: int
    conversations: ConversationMeasures | None
    noun: Literal["documents", "examples", "sides"]

    @property
    def pieces_used(self) -> int:
        return int(np.count_nonzero(self.token_counts))

    @property
    def pieces_used_text(self) -> str:
        """Number of used pieces in words: `380 of 400 pieces`, or `380 ids` for an unknown vocabulary."""
        if self.vocab_size is None:  # imported tokens
            return format_count(self.pieces_used, "id")
        return f"{self.pieces_used:,} of {format_count(self.vocab_size, 'piece')}"


def measure_cache(directory: Path, family: Family, meta: Meta, *, address: str | None = None) -> CacheMeasures:
    """Return the counts of both splits of a finished cache.

    Args:
        directory: The folder of the cache.
        family: The family of the cache.
        meta: Its meta.json.
        address: Where the cache is, if it is in a store and not in the folder. It is copied into a temporary folder.

    Raises:
        NielsCacheError: If a file is missing or unreadable, or if the cache is too large to be copied.
    """
    lengths = np.zeros(len(LENGTH_EDGES), dtype=np.int64)
    vocab_size = meta["vocab_size"]
    token_counts = np.zeros(min(vocab_size or 0, MAX_IDS), dtype=np.int64)
    conversations = ConversationMeasures(counted="replies" if has_spans(meta) else "turns") if family == "sft" else None
    splits = [split for split in SPLITS if meta.get(f"{split}_tokens")]  # an imported cache may have only one
    all_tokens = sum(meta[f"{split}_tokens"] for split in splits)
    step = max(1, -(-all_tokens // MAX_TOKENS))
    cut = 0
    with folder_with(meta["files"], directory, address) as folder:
        for split in splits:
            stream = SplitTokens(folder, family, split, meta)
            for found in lengths_of(stream.entry_ends):
                cut += int(np.count_nonzero(found > CONTEXT + 1))
                np.add.at(lengths, np.searchsorted(LENGTH_EDGES, found, side="right") - 1, 1)
            blocks = _examples(stream, folder / idx_name(split)) if conversations else _windows(stream)
            targets = ExampleTargets(folder, split, meta, token_count=len(stream)) if conversations else None
            for number, (tokens, starts, first, begin) in enumerate(blocks):
                if number % step:
                    continue
                found = np.bincount(np.minimum(tokens, MAX_IDS - 1) if tokens.dtype.itemsize > 2 else tokens, minlength=len(token_counts))
                if vocab_size is None:
                    token_counts = np.pad(token_counts, (0, len(found) - len(token_counts)))
                token_counts += found[: len(token_counts)]
                if conversations and targets:
                    is_target = targets.mask(tokens, starts, first=first, begin=begin)
                    conversations.add(is_target, starts, targets.turns(tokens, starts, first=first))
    return CacheMeasures(
        lengths=lengths,
        items=int(lengths.sum()),
        cut=cut,
        token_counts=token_counts,
        vocab_size=vocab_size,
        counted=int(token_counts.sum()),
        tokens=all_tokens,
        conversations=conversations,
        noun="documents" if family == "pretrain" else "sides" if has_pairs(meta) else "examples",
    )


_NO_STARTS = np.empty(0, dtype=np.int64)
Block = tuple[Tokens, Ints, int, int]  # tokens, starts of examples in them, the first example, and its position in the split


def _windows(stream: SplitTokens) -> Iterator[Block]:
    for shard in stream.shards:
        for first in range(0, len(shard), _BLOCK_TOKENS):
            yield shard[first : first + _BLOCK_TOKENS], _NO_STARTS, 0, 0


def _examples(stream: SplitTokens, index: Path) -> Iterator[Block]:
    """Yield blocks of whole examples, with the start of each example in its block."""
    (tokens,) = stream.shards
    starts = map_example_starts(index, token_count=len(tokens))
    first = 0
    while first < len(starts):
        begin = int(starts[first])
        end = max(first + 1, int(np.searchsorted(starts, begin + _BLOCK_TOKENS)))
        stop = int(starts[end]) if end < len(starts) else len(tokens)
        yield tokens[begin:stop], starts[first:end] - begin, first, begin
        first = end
