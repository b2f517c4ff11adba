"""Numbered windows over the whole stream of a pretrain split. The loader decides their order.

    shards      | shard 0         | shard 1         | shard 2   |
    stream      0 .............................................. tokens
    sample i          [i*stride, i*stride + T]                      T+1 tokens, across shards

The stream is the split's tokens, shard after shard, so a sample does not depend on the size of the shards. The cost per batch is constant.
If the shards lie back to back in memory, a batch is one gather (one indexed read); full shards can lie like this, because their size is a
multiple of the page size. Otherwise the few windows that cross from one shard to the next are copied in pieces. Epochs and batches belong
to the loader.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from niels_cache_runtime.cache.checks import check_has_window, check_positive
from niels_cache_runtime.cache.gather import WindowReader, gather_pieces
from niels_cache_runtime.cache.mmap import slice_pieces
from niels_cache_runtime.cache.opening import OpenedSplit, Verify, check_same_build, listed_of_split, open_split, require_doc_ends
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import IDX_DTYPE, TOKEN_DTYPE, Array, Ints, Tokens, doc_ends_name
from niels_cache_runtime.format.meta import Meta, content_sha256, is_foreign
from niels_cache_runtime.loader.documents import find_boundaries
from niels_cache_runtime.loader.packing.segments import number_ranges
from niels_cache_runtime.loader.source import DocumentRows, Heads, SampleRows, SourceBlocks, TokenOrigins, check_numbers

_PROBE_BYTES = 4096


class PretrainWindows:
    """A `source.SampleSource` of windows of T+1 tokens from one split, such as `cache/pretrain/NAME/train`.

    The windows are the same in every epoch. At the end of the stream, up to `stride` - 1 tokens after the last whole window are not read.
    The ends of documents come from `../NAME_doc_ends.npy`, where NAME is the name of the folder. Without that file, boundaries cannot be
    requested, and origins have no document. The object can be pickled: a copy opens the files again, and raises an error if they belong to
    another build. All files are of one build, even if a rebuild replaces the data set while its files are being opened.

    Args:
        folder: The folder of `shard_00000.bin`, `shard_00001.bin`, ... (headerless little-endian uint16 or uint32). If its parent folder
            has a meta.json, the shards are compared with it, and it gives the dtype. A folder without meta.json works too; it holds uint16.
        T: Inputs per window. Sample i is the tokens `[i * stride, i * stride + T]` of the stream, both ends included.
        stride: Tokens from the start of one window to the start of the next. None means T: then every token that is read, except the first,
            is a target exactly once.
        verify: "size" compares sizes with meta.json. "sha256" also reads every file of the split and compares its content.
        head: How many tokens before each window to read with it (`source.Heads`).
        lot_tokens: The tokens of a lot (`lots`), if blocks are lots instead of files.

    Raises:
        NielsCacheError: If the split cannot be opened (see `opening.open_split`), or is shorter than one window.
        NielsCacheError: If T or stride is below 1.
    """

    is_copied = False  # whether its shards come and go in a local copy
    lot_tokens: int | None = None
    copies: Sequence[Any] = ()
    _arguments: tuple[str, ...] = ("T", "stride", "head")  # of the constructor, for a pickled copy

    def __init__(
        self, folder: str, *, T: int, stride: int | None = None, verify: Verify = "size", head: int = 0, lot_tokens: int | None = None
    ) -> None:
        self.T, self.head, self.lot_tokens = check_positive("T", T), head, lot_tokens
        self.stride = T if stride is None else check_positive("stride", stride)
        self.folder = folder
        self.path = os.path.abspath(folder)
        self._use(open_split(self.path, doc_ends=True, verify=verify))

    def _use(self, split: OpenedSplit) -> None:
        """Read from an open split.

        Raises:
            NielsCacheError: If it is shorter than one window.
        """
        folder, T = self.folder, self.T
        self.meta, self.files, self.doc_ends = split.meta, split.shards, split.doc_ends
        self._mapped = mapped = split.tokens
        self._dtype = mapped.dtype
        self._stream_ends = np.cumsum(mapped.shard_lengths)
        self._stream_starts = self._stream_ends - mapped.shard_lengths
        total = int(self._stream_ends[-1]) if self.files else 0
        check_has_window(folder, total, T=T)
        self.samples = self.count_samples(total)
        self.tokens = self.samples * T
        self.examples: int | None = None
        self.packs = False
        self._reader = WindowReader(mapped, length=self.head + T + 1)
        self._back_to_back = mapped.stream is not None
        # In each shard, windows begin in a first range of starts, where they lie inside the shard, and then in a range where they cross its
        # end. `_shifts` has the place in memory minus the place in the stream for the first ranges, and -1 for the others. Here a window
        # begins with its head.
        last = np.maximum(self._stream_ends - T - self.head, self._stream_starts)
        self._range_ends = np.stack([last, self._stream_ends], axis=1).ravel()
        self._shifts = np.stack([mapped.shard_starts - self._stream_starts, np.full_like(last, -1)], axis=1).ravel()

    @property
    def split(self) -> str:
        """The name of the split."""
        return os.path.basename(self.path)

    def count_samples(self, tokens: int) -> int:
        """Return the number of samples in a stream of more than T tokens."""
        return (tokens - self.T - 1) // self.stride + 1

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 over lines `path bytes sha256`, one for each token file and doc_ends file of the split, as meta.json lists them.

        If meta.json has no such list, the sha256 is over the files' names, sizes, and first and last 4 KiB. In this case a change in the
        middle of a file is not detected.
        """
        if self.meta is not None and not is_foreign(self.meta):
            return self.fingerprint_of(self.meta)
        digest = hashlib.sha256()
        if self._dtype != TOKEN_DTYPE:
            digest.update(f"{self._dtype}\n".encode())
        arrays: dict[str, Array] = dict(zip(map(os.path.basename, self.files), self._mapped.shards, strict=True))
        if self.doc_ends is not None:
            arrays[doc_ends_name(self.split)] = self.doc_ends
        for name, array in arrays.items():  # hash the open files, not files that may have replaced them
            probed = _PROBE_BYTES // array.itemsize
            digest.update(f"{name} {array.nbytes}\n".encode())
            digest.update(array[:probed].tobytes())
            digest.update(array[-probed:].tobytes())
        return digest.hexdigest()

    def fingerprint_of(self, meta: Meta) -> str:
        """Return the fingerprint with this meta.json of ours."""
        paths = [self.path, *(copy.path for copy in self.copies)]
        return content_sha256({k: v for path in paths for k, v in listed_of_split(meta, path, doc_ends=True).items()})

    def read(self, numbers: Ints, *, epoch: int, boundaries: bool) -> SampleRows:
        """Return samples. They do not depend on `epoch`.

        Args:
            numbers: (n,) int64, the numbers of the samples, from 0 to samples - 1.
            epoch: Any epoch.
            boundaries: Whether to find document boundaries.

        Raises:
            NielsCacheError: For a number out of range, and for `boundaries` if the split has no doc_ends file.
        """
        starts = self._starts(numbers)
        if not boundaries:
            return SampleRows(tokens=self._read_tokens(starts)[:, self.head :])
        ends = require_doc_ends(self.folder, self.doc_ends)
        tokens, found = self._read_tokens(starts), find_boundaries(ends, starts, T=self.T)
        if not self.head:
            return SampleRows(tokens=tokens, boundaries=found)
        rows, columns = np.arange(len(starts)), np.zeros_like(starts)
        heads = Heads(rows=rows, columns=columns, tokens=tokens[:, : self.head], lengths=self._before(starts))
        return SampleRows(tokens=tokens[:, self.head :], boundaries=found, heads=heads)

    def _before(self, starts: Ints) -> Ints:
        """Return how many of the `head` tokens before some places belong to the document that is there."""
        ends = np.asarray(self.doc_ends).view(IDX_DTYPE)
        before = ends.searchsorted(starts, side="right")
        return np.minimum(starts - np.where(before > 0, ends[before - 1], 0), self.head)

    def origins(self, numbers: Ints, *, epoch: int) -> TokenOrigins:
        """Return shard, offset and document of every token of the samples `numbers` (n,). Documents are -1 without a doc_ends file."""
        return self._origins_of(self._starts(numbers)[:, None] + np.arange(self.T + 1))

    def _origins_of(self, positions: Ints) -> TokenOrigins:
        """Return the origin of the token at each of these places in the stream."""
        files = self._stream_ends.searchsorted(positions, side="right")
        documents = document_offsets = np.full_like(positions, -1)
        if self.doc_ends is not None:
            ends = self.doc_ends.view(IDX_DTYPE)  # if the ends were uint64, a search for int64 places would convert both to float64
            documents = ends.searchsorted(positions, side="right")
            document_offsets = positions - np.where(documents > 0, ends[documents - 1], 0)
        return TokenOrigins(
            files=files, offsets=positions - self._stream_starts[files], documents=documents, document_offsets=document_offsets
        )

    def samples_of(self, documents: Ints, *, epoch: int) -> DocumentRows:
        """Return the samples with tokens of these documents. They do not depend on `epoch`; see `SampleSource.samples_of`."""
        starts, ends = self._bounds_of(documents)
        which, numbers = number_ranges(*self._windows_over(starts, ends))
        begins = self._starts(numbers)
        firsts, lasts = np.maximum(starts[which] - begins, 0), np.minimum(ends[which] - begins, self.T + 1)
        return DocumentRows(documents[which], numbers, firsts, lasts, begins + firsts - starts[which], lasts - firsts)

    def _windows_over(self, starts: Ints, ends: Ints, first: Ints | int = 0, stop: Ints | int | None = None) -> tuple[Ints, Ints]:
        """Return the first window, of those from `first` to `stop` - 1, that reaches into each range of tokens, and the one after the last.

        Ranges are counted from where the window `first` begins.
        """
        begin = np.maximum(-((self.T - starts) // self.stride), 0)
        end = np.minimum(first + (ends - 1) // self.stride + 1, self.samples if stop is None else stop)
        return first + begin, np.maximum(first + begin, end)

    def _bounds_of(self, documents: Ints) -> tuple[Ints, Ints]:
        """Return the first token in the stream of these documents, and their ends.

        Raises:
            NielsCacheError: For a document that the split does not have, and for a split without document ends.
        """
        ends = require_doc_ends(self.folder, self.doc_ends).view(IDX_DTYPE)
        check_numbers(self.folder, documents, len(ends))
        return np.where(documents > 0, ends[documents - 1], 0), ends[documents]

    def blocks(self, files: int) -> SourceBlocks:
        """Return the blocks of `files` shards each; the last block may have fewer. A window belongs to the block of its first token."""
        first_files, starts = self._block_edges(files)
        samples = np.minimum(-(-starts // self.stride), self.samples)
        samples[-1] = self.samples
        return SourceBlocks(samples=samples, files=first_files, tails=self._read_after(starts[:-1], starts[1:]))

    def _block_edges(self, files: int) -> tuple[Ints, Ints]:
        """Return the first file of every block of `files` files, and its first token in the stream, with the ends after the last ones.

        Lots have their own numbers instead of files.
        """
        if self.lot_tokens is not None:
            ends = require_doc_ends(self.folder, self.doc_ends).view(IDX_DTYPE)
            multiples = np.arange(1, int(ends[-1]) // self.lot_tokens) * self.lot_tokens
            edges = np.unique(np.concatenate([[0], ends[ends.searchsorted(multiples)], ends[-1:]]))
            return np.arange(len(edges)), edges
        first_files = np.append(np.arange(0, len(self.files), files), len(self.files))
        return first_files, np.append(self._stream_starts, self._stream_ends[-1])[first_files]

    def _read_after(self, starts: Ints, ends: Ints) -> Ints:
        """Return how many tokens after some ranges of the stream their last windows also read, (n,)."""
        last = np.minimum((ends - 1) // self.stride, self.samples - 1) * self.stride
        return np.where(last >= starts, np.maximum(last + self.T + 1 - ends, 0), 0)

    def _starts(self, numbers: Ints) -> Ints:
        return self._checked(numbers, self.samples) * self.stride

    def _checked(self, numbers: Ints, samples: int) -> Ints:
        """Return the numbers of some of `samples` samples.

        Raises:
            NielsCacheError: If one is out of range.
        """
        numbers = np.asarray(numbers, dtype=np.int64)
        # A negative number viewed as unsigned is too large.
        if numbers.size and np.maximum.reduce(numbers.view(np.uint64)) >= samples:
            raise NielsCacheError(f"{self.folder}: asked for samples {numbers.min()} to {numbers.max()}, but it has 0 to {samples - 1}")
        return numbers

    def _read_tokens(self, starts: Ints) -> Tokens:
        """Return (n, head+T+1) tokens: one window with its head for each place of `starts` in the stream.

        Before the stream, a head has zeros.
        """
        if self._back_to_back and not self.head:
            return self._reader.read(starts)
        begins = starts - self.head if self.head else starts
        ranges = self._range_ends.searchsorted(begins, side="right")
        shifts = self._shifts.take(ranges)
        if self.head:
            shifts[begins < 0] = -1
        if not len(starts) or np.minimum.reduce(shifts) >= 0:
            return self._reader.read(begins + shifts)
        rows = np.zeros((len(starts), self.head + self.T + 1), dtype=self._dtype)
        inside = shifts >= 0
        rows[inside] = self._reader.read((begins + shifts)[inside])
        for number in np.flatnonzero(~inside).tolist():  # these begin in one shard and end in a later one, or begin before the stream
            start = int(starts[number])
            row = np.concatenate([*self._head_pieces(start), *self._pieces_of(start, start + self.T + 1)])
            rows[number, -len(row) :] = row
        return rows

    def _read_pieces(self, starts: Ints, lengths: Ints, pads: Ints, *, pad_id: int) -> Tokens:
        """Return the tokens of some pieces of the stream, one after the other, and after each of them its padding."""
        mapped, limits = self._mapped, self._stream_ends[-1]
        if self.is_copied or not self._back_to_back:
            starts, lengths, pads = self._split_at_shards(starts, lengths, pads)
            shards = self._stream_ends.searchsorted(starts, side="right")
            starts = starts + (mapped.shard_starts - self._stream_starts)[shards]
            limits = (mapped.shard_starts + mapped.readable)[shards]
        return gather_pieces(mapped.tokens, starts, lengths, pads, limits=limits, pad_id=pad_id)

    def _split_at_shards(self, starts: Ints, lengths: Ints, pads: Ints) -> tuple[Ints, Ints, Ints]:
        """Cut the pieces that cross from one shard to the next."""
        while True:
            ends = self._stream_ends[self._stream_ends.searchsorted(starts, side="right")]
            inside = np.minimum(lengths, ends - starts)
            crosses = np.flatnonzero(inside < lengths)
            if not len(crosses):
                return starts, lengths, pads
            starts = np.insert(starts, crosses + 1, ends[crosses])
            lengths = np.insert(inside, crosses + 1, (lengths - inside)[crosses])
            pads = np.insert(pads, crosses, 0)

    def _pieces_of(self, start: int, stop: int) -> Iterator[Tokens]:
        """Yield the pieces of shards that together are the tokens start to stop - 1 of the stream."""
        shard = int(self._stream_ends.searchsorted(start, side="right"))
        first = int(self._stream_starts[shard])
        return slice_pieces(self._mapped.shards[shard:], start - first, stop - first)

    def _head_pieces(self, start: int) -> Iterator[Tokens]:
        """Yield the pieces of the head of the window at `start`."""
        return self._pieces_of(max(0, start - self.head), start)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("folder", "path", *self._arguments, "copies", "meta", "fingerprint")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"], **{name: state[name] for name in self._arguments})  # type: ignore[misc]
        self.folder, self.copies = state["folder"], state["copies"]
        check_same_build(self.folder, opened=state["meta"], reopened=self.meta)
        if self.fingerprint != state["fingerprint"]:
            raise NielsCacheError(f"{self.folder}: its files changed since it was opened; open it again in every process")
