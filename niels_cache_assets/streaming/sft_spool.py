"""A spool of SFT examples on disk. It stores the examples as they come, and divides them between the splits when their number is known.

The spool is in the staging directory, where a resumed build finds it. It is read back by memory map, so memory does not grow with the
source. The length of each example takes 8 bytes on disk. If examples have groups (in oasst1: message trees), each group takes one
dictionary entry in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from niels_cache_assets.disk.journal import SCRATCH_NAME
from niels_cache_assets.disk.lineage_files import LineageWriter, RowSpool
from niels_cache_assets.disk.writers import NPY_HEADER_BYTES, Files, GrowingFile, HashedFile, NpyWriter, Sizes
from niels_cache_assets.documents import Conversation
from niels_cache_assets.sources.val_share import val_mask
from niels_cache_runtime.format.layout import (
    IDX_DTYPE,
    SPLITS,
    TARGETS_DTYPE,
    Split,
    examples_name,
    idx_name,
    target_ends_name,
    targets_name,
    tokens_name,
)

LINEAGE = {"source_id": "string", "file": "string", "row": "int64", "group": "string", "category": "string", "tokens": "int64"}

_UNITS = "units.npy"
_SPAN_COUNTS = "span_counts.npy"
_SPAN_BOUNDS = "spans.npy"
_TOKENS_PER_BLOCK = 1 << 21
_EXAMPLES_PER_BLOCK = 1 << 18
_NO_GROUP = -1
_UNDECIDED = 2  # not an index of SPLITS: the example has no split of its own


@dataclass(frozen=True, kw_only=True)
class SpoolState:
    """The state of a spool at a checkpoint."""

    examples: int = 0
    tokens: int = 0
    lineage_bytes: int = 0


class SftSpool:
    """A spool of encoded examples, which `deal` divides between the two splits. A context manager, which closes open files in any case.

    `dtype`: the dtype of the tokens. `state`: the checkpoint to resume from. The journal has already cut the files back to their sizes at
    this checkpoint. `sides`: 2 if examples are preference pairs, whose groups are hashes of their prompts. Then no group is in memory.
    `with_units`: whether several examples may be of one conversation, and stay in one split.
    """

    def __init__(self, root: Path, *, dtype: np.dtype, state: SpoolState | None = None, sides: int = 1, with_units: bool = False) -> None:
        state = state or SpoolState()
        self._root, self._dtype, self._sides = root, dtype, sides
        self._scratch: Files = {}
        self._tokens = GrowingFile(root, f"{SCRATCH_NAME}/tokens.bin", resume_at=state.tokens * dtype.itemsize)
        self._lengths = NpyWriter(root, f"{SCRATCH_NAME}/lengths.npy", IDX_DTYPE, self._scratch, resume_at=state.examples * sides)
        self._groups = NpyWriter(root, f"{SCRATCH_NAME}/groups.npy", IDX_DTYPE, self._scratch, resume_at=state.examples)
        self._own_splits = NpyWriter(root, f"{SCRATCH_NAME}/splits.npy", np.dtype("u1"), self._scratch, resume_at=state.examples)
        self._units = (
            NpyWriter(root, f"{SCRATCH_NAME}/{_UNITS}", IDX_DTYPE, self._scratch, resume_at=state.examples) if with_units else None
        )
        self._spans = _SpanSpool(root, self._scratch, examples=state.examples * sides)
        self._lineage = RowSpool(root, f"{SCRATCH_NAME}/lineage.arrow", LINEAGE, resume_at=state.lineage_bytes)
        self._group_numbers: dict[str, int] = {}
        for rows in self._lineage.read() if sides == 1 else ():
            for group in rows.column("group").to_pylist():
                self._group_number(group)
        self.tokens = state.tokens

    def __enter__(self) -> "SftSpool":
        return self

    def __exit__(self, *_: object) -> None:
        for part in self._parts:
            part.abandon()

    @property
    def _parts(self) -> tuple[GrowingFile, ...]:
        of_spans, of_units = (self._spans.counts, self._spans.bounds), () if self._units is None else (self._units,)
        return self._tokens, self._lengths, self._groups, self._own_splits, self._lineage, *of_spans, *of_units

    @property
    def examples(self) -> int:
        return self._groups.items

    @property
    def bytes(self) -> int:
        """The bytes written so far."""
        return sum(part.bytes for part in self._parts)

    def checkpoint(self) -> tuple[SpoolState, Sizes]:
        """Flush all written data to the disk (fsync). Return the state to resume from, and the size of each file at this state."""
        sizes = Sizes()
        for part in self._parts:
            part.checkpoint(sizes)
        return SpoolState(examples=self.examples, tokens=self.tokens, lineage_bytes=self._lineage.bytes), sizes

    def write(
        self,
        conversations: Sequence[Conversation],
        tokens: np.ndarray,
        lengths: np.ndarray,
        spans: Sequence[np.ndarray],
        units: np.ndarray | None = None,
    ) -> None:
        """Append conversations. tokens: of the spool's dtype, one conversation after the other. lengths: int64, tokens per conversation.
        spans: for each conversation, its spans of targets, (m, 2), relative to its first token. The two sides of a pair come one after the
        other, and each has a length and spans. units: int64, the number of the conversation of each example.
        """
        if not conversations:
            return
        self.tokens += len(tokens)
        self._tokens.append(tokens.data.cast("B"))
        self._lengths.write(lengths)
        self._spans.counts.write(np.fromiter(map(len, spans), np.int64, len(spans)))
        self._spans.bounds.write(np.concatenate(spans))
        if self._units is not None and units is not None:
            self._units.write(units)
        self._groups.write(np.array([self._group_number(conversation.group) for conversation in conversations]))
        self._own_splits.write(
            np.array([_UNDECIDED if conversation.split is None else SPLITS.index(conversation.split) for conversation in conversations])
        )
        self._lineage.write(
            {
                "source_id": [conversation.source_id for conversation in conversations],
                "file": [conversation.file for conversation in conversations],
                "row": [conversation.row for conversation in conversations],
                "group": [conversation.group for conversation in conversations],
                "category": [conversation.category for conversation in conversations],
                "tokens": lengths.reshape(-1, self._sides).sum(axis=1),
            }
        )

    def deal(self, files: Files, *, val_frac: float, seed: int, by_group: bool, with_spans: bool) -> dict[str, int]:
        """Write both splits into the cache directory, in input order. Return the counts of examples, tokens and spans by split, and of
        straddling groups. `with_spans`: whether to write the spans of targets.

        A straddling group has examples in both splits. An example that has a split keeps it. For all others, `val_mask` chooses the
        examples (with `by_group`: the groups) that go to val. The spool is kept, so that a failed attempt can be repeated.
        """
        for part in (each for each in self._parts if each is not self._lineage):
            part.seal()
        is_val, groups = self._choose(val_frac=val_frac, seed=seed, by_group=by_group)
        self._write_lineage(is_val, files)
        counts = {f"{split}_{what}": 0 for split in SPLITS for what in ("examples", "tokens")}
        for split in SPLITS:
            chosen = is_val if split == "val" else ~is_val
            counts[f"{split}_examples"] = int(chosen.sum())
            of_sides = np.repeat(chosen, self._sides)
            counts[f"{split}_tokens"] = self._write_tokens(split, of_sides, files)
            if with_spans:
                counts[f"{split}_targets"] = self._write_spans(split, of_sides, files)
        grouped = groups != _NO_GROUP
        counts["straddling_groups"] = len(np.intersect1d(groups[grouped & is_val], groups[grouped & ~is_val]))
        return counts

    def _group_number(self, group: str | None) -> int:
        if group is not None and self._sides > 1:
            return int(group, 16)  # 60 bits
        return _NO_GROUP if group is None else self._group_numbers.setdefault(group, len(self._group_numbers))

    def _load(self, name: str) -> np.ndarray:
        return np.load(self._root / SCRATCH_NAME / name, allow_pickle=False)

    def _choose(self, *, val_frac: float, seed: int, by_group: bool) -> tuple[np.ndarray, np.ndarray]:
        own_splits, groups = self._load("splits.npy"), self._load("groups.npy")
        is_val = own_splits == SPLITS.index("val")
        undecided = np.flatnonzero(own_splits == _UNDECIDED)
        if by_group or self._units is not None:
            numbers = groups[undecided] if by_group else np.full(len(undecided), _NO_GROUP, dtype=groups.dtype)
            solitary = numbers == _NO_GROUP  # an example, or a conversation, without a group counts as one group
            alone = np.arange(len(groups)) if self._units is None else self._load(_UNITS)
            numbers[solitary] = len(self._group_numbers) + alone[undecided][solitary]
            _, first, units = np.unique(numbers, return_index=True, return_inverse=True)
            units = np.argsort(np.argsort(first))[units]  # groups in order of first appearance
            is_val[undecided] = val_mask(len(first), val_frac=val_frac, seed=seed)[units]
        else:
            is_val[undecided] = val_mask(len(undecided), val_frac=val_frac, seed=seed)
        return is_val, groups

    def _write_tokens(self, split: Split, chosen: np.ndarray, files: Files) -> int:
        lengths = self._load("lengths.npy")
        idx = NpyWriter(self._root, idx_name(split), IDX_DTYPE, files)
        out = HashedFile(self._root, tokens_name(split), files)
        spooled = np.fromfile if not self.tokens else np.memmap
        stream = spooled(self._tokens.path, dtype=self._dtype)
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

    def _write_spans(self, split: Split, chosen: np.ndarray, files: Files) -> int:
        """Write the spans of one split. Return their number."""
        lengths, counts = self._load("lengths.npy"), self._load(_SPAN_COUNTS)
        bounds = np.load(self._root / SCRATCH_NAME / _SPAN_BOUNDS, mmap_mode="r", allow_pickle=False)
        targets = NpyWriter(self._root, targets_name(split), TARGETS_DTYPE, files, width=2)
        ends = NpyWriter(self._root, target_ends_name(split), TARGETS_DTYPE, files)
        read = begin = 0  # spans that were read, and the first token of the next example of the split
        for first in range(0, len(lengths), _EXAMPLES_PER_BLOCK):
            block = slice(first, first + _EXAMPLES_PER_BLOCK)
            keep, block_counts = chosen[block], counts[block]
            kept, kept_lengths = block_counts[keep], lengths[block][keep]
            starts = begin + np.cumsum(kept_lengths) - kept_lengths
            end = read + int(block_counts.sum())
            ends.write(targets.items + np.cumsum(kept))
            targets.write(bounds[read:end][np.repeat(keep, block_counts)].astype(np.int64) + np.repeat(starts, kept)[:, None])
            read, begin = end, begin + int(kept_lengths.sum())
        targets.seal()
        ends.seal()
        return targets.items

    def _write_lineage(self, is_val: np.ndarray, files: Files) -> None:
        import pyarrow

        for split in SPLITS:
            chosen = is_val if split == "val" else ~is_val
            writer = LineageWriter(self._root, examples_name(split), LINEAGE, files)
            try:
                first = 0
                for rows in self._lineage.read():
                    writer.write_batch(rows.filter(pyarrow.array(chosen[first : first + len(rows)])))
                    first += len(rows)
                writer.seal()
            finally:
                writer.abandon()


class _SpanSpool:
    """The number of spans of each example, and their bounds, relative to the first token of the example."""

    def __init__(self, root: Path, files: Files, *, examples: int) -> None:
        counts = root / SCRATCH_NAME / _SPAN_COUNTS
        there = 0
        if examples:
            there = int(np.fromfile(counts, IDX_DTYPE, count=examples, offset=NPY_HEADER_BYTES).sum())
        self.counts = NpyWriter(root, f"{SCRATCH_NAME}/{_SPAN_COUNTS}", IDX_DTYPE, files, resume_at=examples)
        self.bounds = NpyWriter(root, f"{SCRATCH_NAME}/{_SPAN_BOUNDS}", TARGETS_DTYPE, files, width=2, resume_at=there)
