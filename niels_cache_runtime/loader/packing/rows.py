"""Rows of packed SFT examples. The loader decides their order.

    examples --cut (overflow)--> lengths --packing--> rows of T+1 tokens, each several whole examples, then padding
    row         | usr .. EOT asst A EOT | usr .. EOT asst B C EOT | EOT EOT |
    documents     0                       1                         2          padding is a separate document
    targets                       A EOT                     B C EOT           never the first token of an example, never padding

An example of more than T+1 tokens is cut:

    usr .. EOT asst A EOT usr .. EOT asst B C EOT        an example of 14 tokens
    `------- T+1 = 10 -------'                           truncate_right: its first tokens
                 `------- T+1 = 10 -------'              truncate_left: its last tokens; assistant spans are found before the cut

That reads no token, and takes 32 bytes per example. A row is a list of examples; tokens stay in their file and are gathered when a row
is read. Opening a split costs one pass over its tokens, to find the targets of each example. Targets that sentinels mark stay in memory,
16 bytes for each span and 8 for each example. Each epoch costs a plan of the examples in each row, a quarter of a second for a million
examples. Reading a row then costs less than in `SFTExampleDataset`. Batches and attention masks belong to the loader.
"""

import hashlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from niels_cache_runtime.cache.checks import check_choice, check_positive
from niels_cache_runtime.cache.opening import Verify, check_same_build, listed_files
from niels_cache_runtime.cache.sft import OpenedExamples, find_spans, open_examples, resolve_target_ids
from niels_cache_runtime.cache.targets import ExampleSlices, TargetSpans
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Array, Ints, Split, Tokens, idx_name, span_names, tokens_name
from niels_cache_runtime.format.meta import Meta, content_sha256, is_foreign
from niels_cache_runtime.loader.packing.plan import PACKING_VERSION, place_examples, shape_rows
from niels_cache_runtime.loader.packing.segments import RowSegments, number_ranges
from niels_cache_runtime.loader.source import DocumentRows, Heads, SampleRows, SourceBlocks, TokenOrigins, check_numbers

LossOn = Literal["assistant", "last_assistant", "all"]
Overflow = Literal["truncate_right", "truncate_left", "drop"]
_PROBE_TOKENS = 2048


@dataclass(frozen=True, kw_only=True)
class KeptExamples:
    """The examples that are kept.

    Attributes:
        ordinals: (n,) int64, the number of each example in the split.
        example_starts: (n,) int64, where the whole example begins, in tokens of the split.
        starts: (n,) int64, where the kept part of the example begins, in tokens of the split.
        lengths: (n,) int64, how many tokens the kept part has.
        truncated: How many of the kept examples were cut.
        truncated_tokens: How many tokens were cut off in total.
        dropped: How many examples are not kept, for each reason.
    """

    ordinals: Ints
    example_starts: Ints
    starts: Ints
    lengths: Ints
    truncated: int
    truncated_tokens: int
    dropped: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class PackingReport:
    """The result of packing a split.

    Attributes:
        examples: The number of examples in rows.
        rows: The number of rows per epoch.
        tokens: How many places in all rows hold a token of an example.
        padding: How many places in all rows hold padding.
        truncated: How many of the examples in rows were cut.
        truncated_tokens: How many tokens were cut off in total.
        dropped: The number of examples in no row, for each reason (`too_long`, `without_target`).
        sides: 2 for preference pairs: an example is a pair then, and each of its sides has rows of its own.
    """

    examples: int
    rows: int
    tokens: int
    padding: int
    truncated: int
    truncated_tokens: int
    dropped: dict[str, int]
    sides: int = 1

    @property
    def fill(self) -> float:
        """The share of all places in rows that hold a token of an example."""
        return self.tokens / (self.tokens + self.padding)

    def __str__(self) -> str:
        width = (self.tokens + self.padding) // (self.rows * self.sides)
        noun, part, times = ("examples", "examples", "") if self.sides == 1 else ("pairs", "sides", f"{self.sides} x ")
        rows = f"{self.rows:,} rows of {times}{width:,} tokens"
        lines = [f"{self.examples:,} {noun} in {rows}: {self.fill:.2%} filled, {self.padding:,} padding"]
        if self.truncated:
            lines.append(f"{self.truncated:,} {part} cut by {self.truncated_tokens:,} tokens")
        lines += [f"{count:,} {noun} left out: {reason.replace('_', ' ')}" for reason, count in self.dropped.items()]
        return "; ".join(lines)


class PackedExamples:
    """A `source.SampleSource` of rows of T+1 tokens, each of which holds several whole examples of one SFT split.

    Each example is in one row per epoch. Examples without a target in the kept part are in no row. `report()` and one warning give the
    number of such examples. Rows have the same shapes in every epoch, so `samples` does not change. The object can be pickled: a copy maps
    the files again, and raises an error if they belong to another build. All files are of one build, even if a rebuild replaces the data
    set while its files are being opened.

    Args:
        folder: The data set's folder followed by the split. `cache/sft/NAME/train` stands for the files `train_tokens.bin` and
            `train_idx.npy` in `cache/sft/NAME`.
        T: Inputs per row.
        seed: The seed. Seed and epoch decide which examples share a row.
        loss_on: Which tokens are targets. "assistant" means the assistant's messages, each with the end-of-text token (EOT) that closes it,
            without those that the data marks not to be trained on. "last_assistant" means only the last of these messages that has a target
            in the kept part. "all" means every token, whatever the data marks. The first token of an example and padding are never targets.
        overflow: What to keep of an example that is longer than T+1 tokens. "truncate_right" keeps the first T+1 tokens, "truncate_left"
            keeps the last T+1 (the most recent turns), "drop" keeps nothing. Assistant spans are found before an example is cut.
        eot_id: The id of EOT, which is also the padding. None means that of the data set's meta.json.
        asst_id: The id of the assistant sentinel. None means that of the data set's meta.json. It is not used for "all". It must be None
            for a data set with a chat template, whose targets are spans in further files.
        pack: With False, each row holds one example, and with shuffle=False, row n the n-th of them.
        shuffle: With False, the rows are the same in every epoch.
        verify: "size" compares sizes with meta.json. "sha256" also reads both files and compares their content.
        files: The paths of the tokens and of their idx, if they are others than those of `folder`, which is then a name for messages.
        head: How many tokens before the kept part of an example to read with it (`source.Heads`).

    Raises:
        NielsCacheError: If a file is missing, malformed or not the file that meta.json lists, or if the data set was never built.
        NielsCacheError: If the cache has another tokenizer now than at the build, or if an id is unknown or differs from meta.json.
        NielsCacheError: For an invalid setting, and if no example is left.
    """

    packs = True
    copies: Sequence[Any] = ()
    sides = 1  # of each example

    def __init__(
        self,
        folder: str,
        *,
        T: int,
        seed: int,
        loss_on: LossOn = "assistant",
        overflow: Overflow = "truncate_right",
        eot_id: int | None = None,
        asst_id: int | None = None,
        pack: bool = True,
        shuffle: bool = True,
        verify: Verify = "size",
        files: tuple[str, str] | None = None,
        head: int = 0,
    ) -> None:
        self.T, self._head = check_positive("T", T), head
        check_choice("loss_on", loss_on, get_args(LossOn))
        check_choice("overflow", overflow, get_args(Overflow))
        self.loss_on, self.overflow = loss_on, overflow
        self.seed = seed if shuffle else None
        self.folder, self._pack = folder, pack
        split = Path(os.path.abspath(folder))
        tokens_path, self._idx_path = files or (str(split.parent / name(split.name)) for name in (tokens_name, idx_name))  # type: ignore[arg-type]
        self.files = [tokens_path]
        if not os.path.exists(self.files[0]):
            raise NielsCacheError(f"{self.files[0]}: no such tokens file; {_hint(split)}")
        opened = self._open(verify)
        starts = opened.starts
        self.eot_id, self.asst_id = resolve_target_ids(eot_id, asst_id, opened=opened, tokens_path=tokens_path, all_count=loss_on == "all")
        if not len(starts):
            raise NielsCacheError(f"{folder}: this split is empty (0 examples); nothing can be packed")
        self.fingerprint = self._find_fingerprint(starts)
        self._marked = None if self.asst_id is None else find_spans(self._tokens, starts, asst_id=self.asst_id, eot_id=self.eot_id)
        self._kept_sides = self._keep_sides(starts)
        self._kept = self._kept_sides[0]
        self._check_kept(len(starts) // self.sides)
        lengths = np.maximum.reduce([kept.lengths for kept in self._kept_sides])
        self._room = lengths if pack else np.full_like(lengths, self.T + 1)
        self._shapes = shape_rows(self._room, capacity=self.T + 1)
        self._plans: dict[int, Ints] = {}
        self.examples: int | None = len(self._room)
        self.samples = len(self._shapes.row_starts) - 1
        self.tokens = self._inputs()

    def _inputs(self) -> int:
        """Return the number of inputs that are not padding. In a row without padding, the last token is a target only."""
        filled = np.add.reduceat(self._kept.lengths[self._plan(0)], self._shapes.row_starts[:-1])
        return int(np.minimum(filled, self.T).sum())

    def read(self, numbers: Ints, *, epoch: int, boundaries: bool = True) -> SampleRows:
        """Return rows of an epoch, always with boundaries and targets.

        Args:
            numbers: (n,) int64, the numbers of the rows, from 0 to samples - 1.
            epoch: The epoch.
            boundaries: Ignored.

        Raises:
            NielsCacheError: If a number is out of range.
        """
        segments, chosen = self._segments(numbers, epoch)
        rows = self._gather(segments, chosen)
        if self._targets is None:
            found: Array = segments.targets()
        else:
            kept, places = self._kept, segments.places
            parts = ExampleSlices(examples=kept.ordinals[chosen], starts=kept.starts[chosen], lengths=kept.lengths[chosen], places=places)
            found = self._targets.weigh(rows.size, parts, only_last=self.loss_on == "last_assistant")
        by_row = found.reshape(rows.shape)
        segments.fill(by_row, False)
        by_row = by_row[:, 1:]
        return SampleRows(
            tokens=rows,
            boundaries=segments.boundaries(),
            targets=by_row > 0,
            weights=by_row if by_row.dtype == np.float32 else None,
            filled=segments.filled,
            heads=self._heads(segments, chosen) if self._head and self.overflow == "truncate_left" else None,
        )

    def _heads(self, segments: RowSegments, chosen: Ints) -> Heads:
        kept = self._kept
        cut = np.minimum(kept.starts[chosen] - kept.example_starts[chosen], self._head)
        parts = np.flatnonzero(cut)
        places = kept.starts[chosen[parts], None] - np.arange(self._head, 0, -1)
        tokens = self._tokens.take(places, mode="clip")  # clip: before the example there may be nothing
        return Heads(rows=segments.rows[parts], columns=segments.columns[parts], tokens=tokens, lengths=cut[parts])

    @property
    def _targets(self) -> TargetSpans | None:
        """The targets of the split, or None if every token is one."""
        if self.loss_on == "all":
            return None
        return self._spans if self._marked is None else self._marked

    def origins(self, numbers: Ints, *, epoch: int) -> TokenOrigins:
        """Return offset and example of every token of the rows `numbers` (n,) in `epoch`. Padding has -1."""
        segments, chosen = self._segments(numbers, epoch)
        padding = segments.is_padding()

        def spread(values: Ints, *, moving: bool = False) -> Ints:
            grid = segments.spread(values) + (np.arange(self.T + 1) if moving else 0)
            grid[padding] = -1
            return grid

        kept_at = self._kept.starts[chosen] - segments.columns
        return TokenOrigins(
            files=spread(np.zeros_like(chosen)),
            offsets=spread(kept_at, moving=True),
            documents=spread(self._kept.ordinals[chosen] // self.sides),
            document_offsets=spread(kept_at - self._kept.example_starts[chosen], moving=True),
        )

    def samples_of(self, documents: Ints, *, epoch: int) -> DocumentRows:
        """Return the rows with these examples, or pairs; see `SampleSource.samples_of`. Those that are dropped have none."""
        kept = self._kept
        ordinals = kept.ordinals // self.sides
        check_numbers(self.folder, documents, len(ordinals) + sum(kept.dropped.values()))
        wanted = np.isin(ordinals, documents)
        places = np.flatnonzero(wanted[self._plan(epoch)])
        numbers = np.unique(self._shapes.row_starts.searchsorted(places, side="right") - 1)
        segments, chosen = self._segments(numbers, epoch)
        own = np.flatnonzero(wanted[chosen])
        columns, lengths, chosen = segments.columns[own], segments.lengths[own], chosen[own]
        offsets = kept.starts[chosen] - kept.example_starts[chosen]
        return DocumentRows(ordinals[chosen], numbers[segments.rows[own]], columns, columns + lengths, offsets, lengths)

    def blocks(self, files: int) -> SourceBlocks:
        """Return one block, because a split of conversations is one file."""
        return SourceBlocks(samples=np.array([0, self.samples]), files=np.array([0, 1]), tails=np.zeros(1, dtype=np.int64))

    def report(self) -> PackingReport:
        """Return the fill rate, the padding, and the numbers of cut and dropped examples. They are the same in every epoch."""
        tokens = sum(int(kept.lengths.sum()) for kept in self._kept_sides)
        return PackingReport(
            examples=len(self._kept.lengths),
            rows=self.samples,
            tokens=tokens,
            padding=self.sides * self.samples * (self.T + 1) - tokens,
            truncated=self._kept.truncated,
            truncated_tokens=self._kept.truncated_tokens,
            dropped=dict(self._kept.dropped),
            sides=self.sides,
        )

    def _open(self, verify: Verify = "size") -> OpenedExamples:
        opened = open_examples(self.files[0], self._idx_path, verify=verify, pairs=self.sides > 1)
        self.meta, self._tokens, self._spans = opened.meta, opened.tokens, opened.spans
        return opened

    def _find_fingerprint(self, starts: Ints) -> str:
        """Return a sha256 over the split's files, as meta.json lists them, and over the settings that decide the content of rows.

        If meta.json has no such list, the sha256 covers the offsets, the spans of targets, the number of tokens, and the first and last
        2048 tokens instead. In this case a change in the middle is not detected.
        """
        if self.meta is not None and not is_foreign(self.meta):
            return self.fingerprint_of(self.meta)
        of_spans = () if self._spans is None else (self._spans.bounds, self._spans.ends)
        probe = (self._tokens[:_PROBE_TOKENS], self._tokens[-_PROBE_TOKENS:], starts, *of_spans)
        return self._with_settings(f"{len(self._tokens)} " + hashlib.sha256(b"".join(array.tobytes() for array in probe)).hexdigest())

    def fingerprint_of(self, meta: Meta) -> str:
        """Return the fingerprint with this meta.json of ours."""
        listed = listed_files(meta, Path(self.files[0]).parent)
        names = {os.path.basename(path) for path in (self.files[0], self._idx_path)}
        if self._spans is not None:
            split: Split = "train" if os.path.basename(self.files[0]) == tokens_name("train") else "val"
            names.update(span_names(meta, split))
        return self._with_settings(content_sha256({name: entry for name, entry in listed.items() if name in names}))

    def _with_settings(self, content: str) -> str:
        settings = (PACKING_VERSION, self.T, self.seed, self.loss_on, self.overflow, self.eot_id, self.asst_id)
        return hashlib.sha256(f"{content} {settings}".encode()).hexdigest()

    def _keep_sides(self, starts: Ints) -> list[KeptExamples]:
        """Cut examples of more than T+1 tokens, and leave out those without a target in the kept part.

        Args:
            starts: (examples,) int64, where each example begins.

        Returns:
            The examples that are kept: one side, or in a subclass several sides of the same examples.
        """
        ends = np.append(starts[1:], len(self._tokens))
        whole = ends - starts
        cut, lengths = whole > self.T + 1, np.minimum(whole, self.T + 1)
        kept_starts = ends - lengths if self.overflow == "truncate_left" else starts
        has_target = lengths > 1 if self._targets is None else self._targets.have_targets(kept_starts, lengths)
        too_long = cut if self.overflow == "drop" else np.zeros_like(cut)
        kept = np.flatnonzero(has_target & ~too_long)
        counts = {"too_long": np.count_nonzero(too_long), "without_target": np.count_nonzero(~has_target & ~too_long)}
        return [
            KeptExamples(
                ordinals=kept,
                example_starts=starts[kept],
                starts=kept_starts[kept],
                lengths=lengths[kept],
                truncated=int(np.count_nonzero(cut[kept])),
                truncated_tokens=int((whole - lengths)[kept].sum()),
                dropped={reason: int(count) for reason, count in counts.items() if count},
            )
        ]

    def _check_kept(self, count: int) -> None:
        """Raise NielsCacheError if none of `count` examples is kept, and warn if some have no target."""
        dropped = self._kept.dropped
        if not len(self._kept.ordinals):
            hint = "" if self._spans is not None else f", or check asst_id={self.asst_id} and eot_id={self.eot_id}"
            left_out = " and ".join(f"{number} {reason.replace('_', ' ')}" for reason, number in dropped.items())
            raise NielsCacheError(
                f"{self.folder}: none of its {count} examples can be packed at T={self.T} ({left_out}); use a larger T{hint}"
            )
        if without_target := dropped.get("without_target"):
            warnings.warn(
                f"{self.folder}: {without_target} of {count} examples have no target (loss_on={self.loss_on!r}) in the part that is "
                f"kept at T={self.T}, and are left out; a larger T may keep them",
                stacklevel=3,
            )

    def _plan(self, epoch: int) -> Ints:
        """Return the plan of an epoch: the example at each place of the rows.

        The plans of the last two epochs are kept, because a batch may cross from one epoch to the next.
        """
        plan = self._plans.get(epoch)
        if plan is None:
            plan = place_examples(self._shapes, self._room, seed=self.seed, epoch=epoch)
            # The dict is replaced, not changed, because a prefetch thread and a tracing thread may both be here.
            self._plans = {**dict(list(self._plans.items())[-1:]), epoch: plan}
        return plan

    def _segments(self, numbers: Ints, epoch: int) -> tuple[RowSegments, Ints]:
        """Return the segments of some rows, and the index of each segment's example among those that are kept."""
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < self.samples:
            raise NielsCacheError(f"{self.folder}: asked for rows {numbers.min()} to {numbers.max()}, but it has 0 to {self.samples - 1}")
        starts = self._shapes.row_starts
        rows, places = number_ranges(starts[numbers], starts[numbers + 1])
        examples = self._plan(epoch)[places]
        return RowSegments.lay_out(rows, self._kept.lengths[examples], n=len(numbers), T=self.T), examples

    def _gather(self, segments: RowSegments, examples: Ints) -> Tokens:
        """Return tokens, (n, T+1), padded with EOT."""
        sources = segments.spread(self._kept.starts[examples] - segments.columns) + np.arange(self.T + 1)
        rows = self._tokens.take(sources, mode="clip")  # clip: padding may index beyond the last token
        segments.fill(rows, self.eot_id)
        return rows

    def __getstate__(self) -> dict[str, Any]:
        return {**{name: value for name, value in self.__dict__.items() if name not in ("_tokens", "_spans")}, "_plans": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        starts = self._open().starts
        check_same_build(self.folder, opened=state["meta"], reopened=self.meta)
        if self._find_fingerprint(starts) != self.fingerprint:
            raise NielsCacheError(f"{self.folder}: its files changed since it was opened; open it again in every process")


def _hint(split: Path) -> str:
    if (split / tokens_name("train")).exists():
        return f"give the data set's folder and the split: {split / 'train'}"
    return "build this data set first, or check the path: the data set's folder and the split, as in cache/sft/NAME/train"
