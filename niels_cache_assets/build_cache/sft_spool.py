"""A spool of SFT examples on disk, which stores examples as they come and divides them between the splits when their number is known.

The spool is in the staging directory, where a resumed build finds it. It is read back by memory map, so memory does not grow with the
source, except for a few numbers for each example while the spool is divided.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from niels_cache_assets.base.documents import NO_SPLIT, Conversation
from niels_cache_assets.base.strings import Strings, hash_strings
from niels_cache_assets.chats.encoding import EncodedChat
from niels_cache_assets.disk.journal import SCRATCH_NAME
from niels_cache_assets.disk.lineage_files import LineageWriter, RowSpool
from niels_cache_assets.disk.table_file import sealing
from niels_cache_assets.disk.writers import Files, HashedFile, NpyWriter
from niels_cache_assets.sources.val_share import val_mask
from niels_cache_runtime.format.layout import (
    IDX_DTYPE,
    SPLITS,
    TARGETS_DTYPE,
    WEIGHTS_DTYPE,
    Split,
    examples_name,
    idx_name,
    target_ends_name,
    target_weights_name,
    targets_name,
    tokens_name,
)

LINEAGE = {"source_id": "string", "file": "string", "row": "int64", "group": "string", "category": "string", "tokens": "int64"}

_SPOOL_COLUMNS = {**LINEAGE, "split": "int64", "unit": "int64"}  # an index of SPLITS or NO_SPLIT, and the number of the conversation
_TOKENS_PER_BLOCK = 1 << 21
_EXAMPLES_PER_BLOCK = 1 << 18
_NO_GROUP = -1
_EXCLUDED = (-2, -3)  # as the split of an example that is left out: one that counts when val is chosen, and one that has a split of its own
_NO_TOKENS = EncodedChat(np.empty(0, np.uint16), np.empty((0, 2), np.int64))
_WEIGHT_BITS = 32  # the upper bits of the end of a span in the spool, which hold its weight as a float32, or 0 if the weight is 1


@dataclass(frozen=True, kw_only=True)
class SpoolState:
    """The state of a spool at a checkpoint. The default is that of an empty spool."""

    examples: int = 0
    tokens: int = 0
    spans: int = 0
    row_bytes: int = 0


class SftSpool:
    """A spool of encoded examples, which `write_splits` divides between the two splits.

    Use it as a context manager, so that files are always closed.

    Args:
        root: The folder of the unfinished build.
        dtype: The dtype of the tokens.
        state: The checkpoint to resume from. The journal has already cut the files back to their sizes at this checkpoint.
        sides: The number of sides of an example, 2 for preference pairs.
        exclude: The ids of examples to leave out, whose tokens are never stored.

    Attributes:
        files: The entries of the files that `write_splits` has written.
        unfinished: The files of the spool.
    """

    def __init__(self, root: Path, *, dtype: np.dtype, state: SpoolState, sides: int, exclude: Collection[str]) -> None:
        self._root, self._dtype, self._sides, self._exclude = root, dtype, sides, exclude
        self.files: Files = {}
        self.examples, self.tokens, self._spans = state.examples, state.tokens, state.spans

        def growing(name: str, resume_at: int) -> HashedFile:
            return HashedFile(root, f"{SCRATCH_NAME}/{name}", resume_at=resume_at)

        self._ids = growing("tokens.bin", state.tokens * dtype.itemsize)
        self._sizes = growing("sizes.bin", state.examples * sides * 2 * IDX_DTYPE.itemsize)  # the tokens and the spans of each side
        self._bounds = growing("spans.bin", state.spans * 2 * TARGETS_DTYPE.itemsize)  # relative to the first token of the side
        self._rows = RowSpool(root, f"{SCRATCH_NAME}/rows.arrow", _SPOOL_COLUMNS, resume_at=state.row_bytes)
        self.unfinished = (self._ids, self._sizes, self._bounds, self._rows)

    def __enter__(self) -> "SftSpool":
        return self

    def __exit__(self, *_: object) -> None:
        for part in self.unfinished:
            part.abandon()

    @property
    def bytes(self) -> int:
        """The number of bytes written so far."""
        return sum(part.bytes for part in self.unfinished)

    @property
    def state(self) -> SpoolState:
        """The state to resume from."""
        return SpoolState(examples=self.examples, tokens=self.tokens, spans=self._spans, row_bytes=self._rows.bytes)

    def write(self, conversations: Sequence[Conversation], chats: Sequence[EncodedChat], units: np.ndarray | None = None) -> None:
        """Append conversations.

        The two sides of a pair come one after the other, and each has a length and spans.

        Args:
            conversations: The origins of the conversations.
            chats: The tokens of each conversation, of the spool's dtype, and its targets.
            units: (examples,) int64, the number of the conversation of each example. The examples of a conversation stay in one split.
                None: each example is a conversation of its own.
        """
        if not conversations:
            return
        if units is None:
            units = np.arange(self.examples, self.examples + len(conversations))
        excluded = [each.source_id in self._exclude for each in conversations]
        chats = [_NO_TOKENS if excluded[index // self._sides] else chat for index, chat in enumerate(chats)]
        splits = [
            _EXCLUDED[each.split is not None] if out else NO_SPLIT if each.split is None else SPLITS.index(each.split)
            for each, out in zip(conversations, excluded, strict=True)
        ]
        sizes = np.array([(len(each.ids), len(each.spans)) for each in chats], np.int64)
        tokens = np.concatenate([each.ids for each in chats], dtype=self._dtype)
        self._ids.append(tokens.data.cast("B"))
        self._sizes.append(sizes.astype(IDX_DTYPE).tobytes())
        spans = np.concatenate([each.spans for each in chats]).astype(TARGETS_DTYPE)
        if any(each.weights is not None for each in chats):
            weights = np.concatenate([np.ones(len(each.spans)) if each.weights is None else each.weights for each in chats])
            bits = np.where(weights == 1, 0, weights).astype(WEIGHTS_DTYPE).view("<u4")
            spans[:, 1] |= bits.astype(TARGETS_DTYPE) << _WEIGHT_BITS
        self._bounds.append(spans.tobytes())
        self.examples += len(conversations)
        self.tokens += len(tokens)
        self._spans += int(sizes[:, 1].sum())
        self._rows.write(
            {
                **{name: [getattr(each, name) for each in conversations] for name in ("source_id", "file", "row", "group", "category")},
                "tokens": sizes[:, 0].reshape(-1, self._sides).sum(axis=1),
                "split": splits,
                "unit": units,
            }
        )

    def write_splits(self, *, val_frac: float, seed: int, by_group: bool, with_spans: bool) -> dict[str, int]:
        """Write both splits into the cache directory, in input order.

        An example that has a split keeps it. For all others, `val_mask` chooses the examples (with `by_group`: the groups) that go to val.
        The spool is kept, so that a failed attempt can be repeated.

        Args:
            val_frac: The share that goes to val.
            seed: The seed of the choice.
            by_group: Whether groups are split, and not single examples.
            with_spans: Whether to write the spans of targets, also if all have weight 1.

        Returns:
            The counts of examples and tokens by split, of spans if they are written, and of straddling groups, which have examples in both
            splits.
        """
        for part in self.unfinished[:-1]:
            part.seal()
        self._lengths, self._span_counts = np.fromfile(self._sizes.path, IDX_DTYPE).reshape(-1, 2).T
        self._spooled = (np.memmap if self._spans else np.fromfile)(self._bounds.path, dtype=TARGETS_DTYPE).reshape(-1, 2)
        self._has_weights = bool(self._spooled[:, 1].max(initial=0) >> _WEIGHT_BITS)
        is_val, is_kept, groups = self._choose(val_frac=val_frac, seed=seed, by_group=by_group)
        counts = {f"{split}_{what}": 0 for split in SPLITS for what in ("examples", "tokens")}
        for split in SPLITS:
            chosen = is_kept & (is_val if split == "val" else ~is_val)
            self._write_lineage(split, chosen)
            counts[f"{split}_examples"] = int(chosen.sum())
            chosen_sides = np.repeat(chosen, self._sides)
            counts[f"{split}_tokens"] = self._write_tokens(split, chosen_sides)
            if with_spans or self._has_weights:
                counts[f"{split}_targets"] = self._write_spans(split, chosen_sides)
        grouped = is_kept & (groups != _NO_GROUP)
        counts["straddling_groups"] = len(np.intersect1d(groups[grouped & is_val], groups[grouped & ~is_val]))
        return counts

    def _choose(self, *, val_frac: float, seed: int, by_group: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return whether each example goes to val, whether it is kept, and the hash of its group, or _NO_GROUP."""
        columns = []
        for rows in self._rows.read():
            names = rows.column("group")
            hashes = hash_strings(Strings(names.fill_null("").cast("large_string"))) & np.iinfo(np.int64).max
            groups = np.where(names.is_null().to_numpy(zero_copy_only=False), _NO_GROUP, hashes)
            columns.append(np.stack([rows.column("split").to_numpy(), rows.column("unit").to_numpy(), groups]))
        splits, units, groups = np.concatenate(columns, axis=1)
        is_val = splits == SPLITS.index("val")
        undecided = np.flatnonzero((splits == NO_SPLIT) | (splits == _EXCLUDED[0]))
        # A conversation without a group counts as one group. Its number is below those of the groups.
        numbers = np.where(by_group & (groups != _NO_GROUP), groups, -2 - units)[undecided]
        _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
        in_order = np.argsort(np.argsort(first))[inverse]  # groups in order of first appearance
        is_val[undecided] = val_mask(len(first), val_frac=val_frac, seed=seed)[in_order]
        return is_val, ~np.isin(splits, _EXCLUDED), groups

    def _write_tokens(self, split: Split, chosen: np.ndarray) -> int:
        lengths = self._lengths
        idx = NpyWriter(self._root, idx_name(split), IDX_DTYPE, self.files)
        out = HashedFile(self._root, tokens_name(split), self.files)
        spooled = np.fromfile if not self.tokens else np.memmap
        stream = spooled(self._ids.path, dtype=self._dtype)
        read = written = 0
        blocks = (np.cumsum(lengths) - 1) // _TOKENS_PER_BLOCK  # examples that end in the same range of tokens
        starts = np.flatnonzero(np.diff(blocks, prepend=-1)).tolist()
        for start, stop in zip(starts, [*starts[1:], len(lengths)], strict=True):
            block, keep = lengths[start:stop], chosen[start:stop]
            kept = block[keep]
            idx.write(written + np.cumsum(kept) - kept)
            tokens = stream[read : read + int(block.sum())]
            out.append(tokens[np.repeat(keep, block)].data.cast("B"))
            read += len(tokens)
            written += int(kept.sum())
        out.seal()
        idx.seal()
        return written

    def _write_spans(self, split: Split, chosen: np.ndarray) -> int:
        """Write the spans of one split, and their weights if any span of the spool has one. Return the number of spans."""
        lengths, counts = self._lengths, self._span_counts
        targets = NpyWriter(self._root, targets_name(split), TARGETS_DTYPE, self.files, width=2)
        ends = NpyWriter(self._root, target_ends_name(split), TARGETS_DTYPE, self.files)
        weights = NpyWriter(self._root, target_weights_name(split), WEIGHTS_DTYPE, self.files) if self._has_weights else None
        read = begin = 0  # spans that were read, and the first token of the next example of the split
        for first in range(0, len(lengths), _EXAMPLES_PER_BLOCK):
            block = slice(first, first + _EXAMPLES_PER_BLOCK)
            keep, block_counts = chosen[block], counts[block]
            kept, kept_lengths = block_counts[keep], lengths[block][keep]
            starts = begin + np.cumsum(kept_lengths) - kept_lengths
            end = read + int(block_counts.sum())
            ends.write(targets.items + np.cumsum(kept))
            bounds = self._spooled[read:end][np.repeat(keep, block_counts)]
            if weights is not None:
                bits = (bounds[:, 1] >> _WEIGHT_BITS).astype("<u4").view(WEIGHTS_DTYPE)
                weights.write(np.where(bits == 0, 1, bits))
                bounds[:, 1] &= 2**_WEIGHT_BITS - 1
            targets.write(bounds.astype(np.int64) + np.repeat(starts, kept)[:, None])
            read, begin = end, begin + int(kept_lengths.sum())
        for file in filter(None, (targets, ends, weights)):
            file.seal()
        return targets.items

    def _write_lineage(self, split: Split, chosen: np.ndarray) -> None:
        import pyarrow

        with sealing(LineageWriter(self._root, examples_name(split), LINEAGE, self.files)) as writer:
            first = 0
            for rows in self._rows.read():
                writer.write_batch(rows.select([*LINEAGE]).filter(pyarrow.array(chosen[first : first + len(rows)])))
                first += len(rows)
