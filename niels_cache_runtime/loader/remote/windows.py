"""Windows of a pretrain split whose shards come and go in a local copy.

    numbers --places--> shards that the windows need --LocalCopy.acquire--> slots (`SlotTokens`) --gather--> tokens

`BlockFeed` says which blocks are in use: their shards are mapped together, and leave their slots when no sample needs them any more. If all
of them are in their slots, a batch of the feed costs the same as with a folder. Before that, each batch looks for its shards, and waits for
the missing ones. Without a feed, as in `trace`, the shards of the last batch stay. A block's last window also needs the first tokens of the
next shards, its tail. The tail is a small file of its own in the copy, and it is put into the slots of these shards.

`RangeWindows` reads the windows of a published split by one request each instead: for small runs and evaluation. Nothing is written to the
disk. A window costs a round trip to the store, and a window over two shards costs two. Eight requests run at a time. Nothing is hashed,
because a hash covers a whole shard. The size, the recorded hash and the ETag of each object are compared. meta.json and the document ends
are in memory, and these are hashed. A forked process cannot send requests, so the workers of a DataLoader must be spawned.
"""

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from niels_cache_runtime.cache.mmap import SlotTokens, check_doc_ends, check_offsets_form, map_doc_ends
from niels_cache_runtime.cache.opening import OpenedSplit
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, Bools, Ints, Split, Tokens, Uints, doc_ends_name, token_dtype_of
from niels_cache_runtime.loader.blocks import BlockVisit
from niels_cache_runtime.loader.packing.documents import PackedDocuments
from niels_cache_runtime.loader.windows import PretrainWindows
from niels_cache_runtime.remote.copied_build import CopiedBuild, slices
from niels_cache_runtime.remote.download import changed_object_error, read_range
from niels_cache_runtime.remote.ledger import FileDemand, is_tail, tail_of, tail_path
from niels_cache_runtime.remote.local_copy import LocalCopy
from niels_cache_runtime.remote.record import RemoteFile
from niels_cache_runtime.remote.store import RemoteError, Store, open_store


class PublishedWindows(PretrainWindows):
    """Windows of one split of a published build. The object can be pickled: a copy reads the same build.

    Args:
        folder: The address, for messages.
        build: The build.
        split: The split.
        T: Inputs per window.
        stride: Tokens from the start of one window to the start of the next. None means T.
        path: The path or the address of the split.
        shards: The paths or the addresses of its shards.
        head: How many tokens before each window to read with it.

    Attributes:
        requests: The number of requests of this process so far.
        bytes: The bytes that they have read.

    Raises:
        NielsCacheError: If the split is shorter than one window, or its document ends do not fit it.
    """

    arguments: tuple[str, ...] = ("folder", "build", "split", "T", "stride", "head")

    def __init__(
        self, folder: str, *, build: CopiedBuild, split: Split, T: int, stride: int | None, path: str, shards: Sequence[str], head: int = 0
    ) -> None:
        self.requests, self.bytes = 0, 0
        self._store: Store | None = None
        self._e_tags: dict[str, str | None] = {}
        self.T, self.stride, self.folder, self.build, self.path = T, T if stride is None else stride, folder, build, path
        self.head = head
        meta, self._objects = build.published.meta, build.shards(split)
        self._slots = SlotTokens([file.size for file in self._objects], dtype=token_dtype_of(meta))
        ends = next((file for file in build.published.data if file.path == doc_ends_name(split)), None)
        doc_ends = None if ends is None else self._doc_ends_of(ends, int(self._slots.shard_lengths.sum()))
        self._use(OpenedSplit(meta=meta, shards=[*shards], tokens=self._slots, doc_ends=doc_ends))

    def _doc_ends_of(self, file: RemoteFile, token_count: int) -> Uints:
        raise NotImplementedError

    def _request(self, file: RemoteFile, start: int, length: int) -> bytes:
        if self._store is None:
            self._store = open_store(self.build.address)
        found = read_range(self._store, file, length, start=start)
        self.requests, self.bytes = self.requests + 1, self.bytes + length
        if self._e_tags.setdefault(file.key, found.e_tag) != found.e_tag:
            raise changed_object_error(self._store, file)
        return found.content

    def _requested(self, start: int, stop: int) -> Tokens:
        """Request the tokens start to stop - 1 of the stream."""
        shard, itemsize = int(self._stream_ends.searchsorted(start, side="right")), self._dtype.itemsize
        skipped = (start - int(self._stream_starts[shard])) * itemsize
        parts = slices(self._objects, shard, (stop - start) * itemsize, start=skipped)
        content = b"".join(self._request(self._objects[number], begin, length) for number, begin, length in parts)
        return np.frombuffer(content, dtype=self._dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.arguments}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


class CopiedWindows(PublishedWindows):
    """A `source.SampleSource` of windows from one split of a published build, for the order in blocks.

    The object can be pickled: a copy reads the same build.

    Args:
        folder: The address, for messages.
        copy: The local copy.
        build: The build, as LocalCopy.open returns it.
        split: The split.
        T: Inputs per window.
        stride: Tokens from the start of one window to the start of the next. None means T.
        block_shards: The number of shards of a block.
        head: How many tokens before each window to read with it. Those before a block are requested once in each process.

    Attributes:
        feed: The feed that has chosen the blocks in use, or None.
        is_ready: Whether all windows of these blocks can be read.
        early: Windows of the next batch that are read already, by their start (`read_early`).
        block_bytes: The bytes of the largest block.

    Raises:
        NielsCacheError: If the split is shorter than one window, or its document ends do not fit it.
    """

    is_copied = True
    arguments = (*PublishedWindows.arguments, "copy", "block_shards")

    def __init__(self, folder: str, *, copy: LocalCopy, build: CopiedBuild, split: Split, block_shards: int, **windows: Any) -> None:
        self.copy, self.block_shards = copy, block_shards
        self._heads: dict[int, Tokens] = {}  # the tokens before blocks, by the first token of the block
        self._paths = [build.path_in_copy(file.path) for file in build.shards(split)]
        shards, path = [str(copy.folder / path) for path in self._paths], str(copy.folder / build.path_in_copy(split))
        super().__init__(folder, build=build, split=split, path=path, shards=shards, **windows)
        self._sizes = np.array([file.size for file in self._objects], dtype=np.int64)
        own = self.blocks(block_shards)
        tails = own.tails * self._slots.dtype.itemsize
        self._tail_bytes = tails.tolist()
        self.block_bytes = int((np.add.reduceat(self._sizes, own.files[:-1]) + tails).max())
        self._needs = self._read_after(self._stream_starts, self._stream_ends)  # the tokens after each shard that its windows also read
        self.forget()
        copy.add_owner(self)

    def _doc_ends_of(self, file: RemoteFile, token_count: int) -> Uints:
        path = self.build.path_in_copy(file.path)
        self.copy.pin([path])
        return map_doc_ends(self.copy.folder / path, token_count=token_count, is_joined="parts" in self.build.published.meta)

    def forget(self) -> None:
        """Empty all slots, in this process only."""
        self._slots.clear_all()
        self._complete = np.zeros(len(self._paths), dtype=np.bool_)  # whether every window that begins in a shard can be read
        self._tails: dict[str, bytes] = {}
        self._in_use: set[str] = set()
        self._visits: tuple[BlockVisit, ...] | None = None
        self.feed: object | None = None
        self.early: dict[Any, Tokens] = {}
        self.is_ready = self.copy.is_fed = False

    def demand_of(self, visit: BlockVisit, *, now: bool) -> FileDemand:
        """Return what a visit needs, for the record of the copy."""
        return FileDemand(
            visit.first, visit.end, now, self.build.id, self.split, visit.files.start, visit.files.stop, self._tail_bytes[visit.block]
        )

    def bytes_of(self, visit: BlockVisit) -> int:
        """Return the bytes that a visit needs in the copy."""
        return int(self._sizes[visit.files.start : visit.files.stop].sum()) + self._tail_bytes[visit.block]

    def use_visits(self, visits: Sequence[BlockVisit] | None, *, feed: object | None) -> None:
        """Read these visits from here on. With None, read without a feed. Call `leave` next, through `LocalCopy.declare_needs`."""
        self._visits, self.feed = None if visits is None else tuple(visits), feed
        self.is_ready = self._has_visits()

    def _visited(self) -> list[str]:
        """Return the files that the visits in use need."""
        return [path for visit in self._visits or () for path in self.demand_of(visit, now=True).paths()]

    def leave(self, *, everything: bool = False) -> set[str]:
        """Unmap what no visit in use needs, or everything, and return it. The caller holds `copy.reading`."""
        paths = self._in_use.difference(() if everything else self._visited())
        try:
            for path in paths:
                self._unmap(path)
        finally:
            self._refill()
        return paths

    def read_early(self, numbers: Ints, blocks: Sequence[int], *, epoch: int) -> None:
        """Read those of the samples `numbers` of an epoch that are in these blocks, and keep them in `early`.

        So the blocks can leave before the others come. The caller holds `copy.reading`.
        """
        starts = self._starts(numbers)
        starts = starts[self._are_in(blocks, starts)]
        self.early.update(zip(starts.tolist(), self._read_slots(starts), strict=True))

    def _are_in(self, blocks: Sequence[int], starts: Ints) -> Bools:
        return np.isin(self._stream_ends.searchsorted(starts, side="right") // self.block_shards, blocks)

    def _read_tokens(self, starts: Ints) -> Tokens:
        with self.copy.reading:
            if not self.early:
                return self._read_slots(starts)
            is_early = np.array([start in self.early for start in starts.tolist()], dtype=np.bool_)
            rows = np.empty((len(starts), self.head + self.T + 1), dtype=self._dtype)
            rows[~is_early] = self._read_slots(starts[~is_early])
            for row in np.flatnonzero(is_early).tolist():
                rows[row] = self.early[int(starts[row])]
            return rows

    def _read_slots(self, starts: Ints) -> Tokens:
        if not (self.is_ready and self.copy.is_fed):
            begins = np.maximum(starts - self.head, self._block_starts(starts)) if self.head else starts
            first, own = (self._stream_ends.searchsorted(places, side="right") for places in (begins, starts))
            if not (self._complete[first] & self._complete[own]).all():
                self._load_slots(begins, starts + self.T)
        return PretrainWindows._read_tokens(self, starts)  # super() would cost a percent of a batch

    def _block_starts(self, starts: Ints) -> Ints:
        """Return the first token of the block of each window."""
        return self._stream_starts[self._stream_ends.searchsorted(starts, side="right") // self.block_shards * self.block_shards]

    def _head_pieces(self, start: int) -> Iterator[Tokens]:
        begin, first = max(0, start - self.head), int(self._block_starts(np.array([start]))[0])
        if begin < first:
            if first not in self._heads:
                self._heads[first] = self._requested(max(0, first - self.head), first)
            yield self._heads[first][begin - first :]
        yield from self._pieces_of(max(begin, first), start)

    def _load_slots(self, starts: Ints, lasts: Ints) -> None:
        """Let the slots hold everything that windows need, given the places of their first and last tokens."""
        first, last = (self._stream_ends.searchsorted(places, side="right") for places in (starts, lasts))
        readable, lengths = self._slots.readable, self._slots.shard_lengths
        whole = set[int]()  # the shards in the blocks of the windows
        beyond = set[tuple[int, int, int]]()  # the block of a window, a shard after this block, and the tokens that the window needs of it
        in_last = lasts + 1 - self._stream_starts[last]
        for begin, end, tokens in zip(first.tolist(), last.tolist(), in_last.tolist(), strict=True):
            block = begin // self.block_shards
            stop = min((block + 1) * self.block_shards, len(self._paths))
            whole.update(range(begin, min(end + 1, stop)))
            beyond.update((block, shard, tokens if shard == end else int(lengths[shard])) for shard in range(stop, end + 1))

        def missing() -> list[str]:
            tails = {block for block, shard, tokens in beyond if readable[shard] < tokens}
            return [
                *(self._paths[shard] for shard in sorted(whole) if readable[shard] < lengths[shard]),
                *map(self._tail_of, sorted(tails)),
            ]

        if not missing():
            return
        also = self._visited()
        needed = {*(self._paths[shard] for shard in whole), *(self._tail_of(block) for block, _, _ in beyond)}
        try:
            if left := self._in_use.difference(also, needed):  # of a read beside the batches
                self.copy.release(left, self._unmap)
        finally:
            self._refill()
        while (paths := missing()) and not self.copy.acquire(paths, self._map, mine=self._in_use, also=also, is_fed=self.copy.is_fed):
            pass
        self._refill()
        if missing():
            raise NielsCacheError(f"{self.folder}: a shard is not in its slot; report this as a bug")  # reading it would end the process

    def _tail_of(self, block: int) -> str:
        stop = min((block + 1) * self.block_shards, len(self._paths))
        return tail_path(self.build.id, self.split, stop, self._tail_bytes[block])

    def _map(self, path: str) -> None:
        if is_tail(path):
            self._tails[path] = self.copy.files.read(path)
        else:
            self._slots.map(_shard_number(path), self.copy.folder / path, open_file=lambda _: self.copy.files.open(path))
        self._in_use.add(path)

    def _unmap(self, path: str) -> None:
        if is_tail(path):
            content = self._tails.pop(path)
            for shard, _ in self._pieces(path, content):
                if self._slots.readable[shard] < self._slots.shard_lengths[shard]:
                    self._slots.clear(shard)
        else:
            self._slots.clear(_shard_number(path))
        self._in_use.discard(path)

    def _refill(self) -> None:
        """Put the tails into slots that do not hold their shards, and find the shards whose windows can be read."""
        self.is_ready, self._complete = False, np.zeros(len(self._paths), dtype=np.bool_)  # also if the rest fails
        readable, lengths, complete = self._slots.readable, self._slots.shard_lengths, self._complete
        for path, content in self._tails.items():
            for shard, piece in self._pieces(path, content):
                if readable[shard] * self._slots.dtype.itemsize < len(piece):
                    self._slots.fill(shard, piece)
        reach = np.zeros(len(readable) + 1, dtype=np.int64)  # the tokens from the start of a shard on that can be read
        for shard in np.flatnonzero(readable)[::-1].tolist():
            is_whole = readable[shard] == lengths[shard]
            reach[shard] = readable[shard] + (reach[shard + 1] if is_whole else 0)
            complete[shard] = is_whole and reach[shard + 1] >= self._needs[shard]
        self.is_ready = self._has_visits()

    def _has_visits(self) -> bool:
        """Return whether all windows of the visits in use can be read."""
        visits, complete = self._visits, self._complete
        return visits is not None and all(bool(complete[visit.files.start : visit.files.stop].all()) for visit in visits)

    def _pieces(self, path: str, content: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the shards that a tail covers, and its bytes in each of them."""
        done = 0
        for shard, _, length in slices(self._objects, tail_of(path)[1], len(content)):
            yield shard, content[done : done + length]
            done += length


class CopiedDocuments(PackedDocuments, CopiedWindows):
    """A `source.SampleSource` of packed documents from one split of a published build, for the order in blocks.

    `early` holds pieces of documents by their first token and length, and the tokens before a piece by its first token and 0.
    """

    arguments = (*(name for name in CopiedWindows.arguments if name != "stride"), "packing")

    def _beside(self, name: str) -> Path:
        self.copy.pin([self.build.path_in_copy(name)])
        return super()._beside(name)

    @property
    def _plans(self) -> Path:
        return self.copy.folder / "index"

    def read_early(self, numbers: Ints, blocks: Sequence[int], *, epoch: int) -> None:
        """Read the pieces of the rows `numbers` of an epoch that are in these blocks, and keep them in `early`."""
        rows = self._rows(numbers, epoch)
        chosen = self._are_in(blocks, rows.starts)
        for start, length in zip(rows.starts[chosen].tolist(), rows.lengths[chosen].tolist(), strict=True):
            places = np.array([start]), np.array([length]), np.zeros(1, dtype=np.int64)
            self.early[start, length] = self._read_pieces(*places, pad_id=self.eot_id)
        inner = rows.starts[chosen & (self._before(rows.starts) > 0)]
        self.early.update(zip(((start, 0) for start in inner.tolist()), self._read_heads(inner), strict=True))

    def _read_pieces(self, starts: Ints, lengths: Ints, pads: Ints, *, pad_id: int) -> Tokens:
        with self.copy.reading:
            early = [self.early.get(place) for place in zip(starts.tolist(), lengths.tolist(), strict=True)] if self.early else []
            late = np.array([piece is None for piece in early] or np.ones(len(starts)), dtype=np.bool_)
            if not (self.is_ready and self.copy.is_fed):
                self._load_slots(starts[late], (starts + lengths - 1)[late])
            if late.all():
                return super()._read_pieces(starts, lengths, pads, pad_id=pad_id)
            tokens = iter(
                np.split(super()._read_pieces(starts[late], lengths[late], 0 * pads[late], pad_id=pad_id), lengths[late].cumsum())
            )
            pieces = [next(tokens) if piece is None else piece for piece in early]
            padded = [np.append(piece, np.full(pad, pad_id, piece.dtype)) for piece, pad in zip(pieces, pads.tolist(), strict=True)]
            return np.concatenate(padded)

    def _read_heads(self, starts: Ints) -> list[Tokens]:
        with self.copy.reading:
            late = np.array([start for start in starts.tolist() if (start, 0) not in self.early], dtype=np.int64)
            if not (self.is_ready and self.copy.is_fed):
                self._load_slots(np.maximum(late - self.head, self._block_starts(late)), late)
            heads = self.early | {(start, 0): head for start, head in zip(late.tolist(), super()._read_heads(late), strict=True)}
            return [heads[start, 0] for start in starts.tolist()]


def _shard_number(path: str) -> int:
    return int(os.path.basename(path).removeprefix("shard_").removesuffix(".bin"))


_AT_ONCE = 8


class RangeWindows(PublishedWindows):
    """A `source.SampleSource` of windows that are requested one by one. The object can be pickled.

    Args:
        folder: The address, for messages.
        build: The published build.
        split: The split.
        T: Inputs per window.
        stride: Tokens from the start of one window to the start of the next. None means T.
        head: How many tokens before each window to read with it.

    Raises:
        RemoteError: If the store refuses or does not answer.
    """

    def __init__(self, folder: str, *, build: CopiedBuild, split: Split, **windows: Any) -> None:
        shards = [f"{build.address}/{file.key}" for file in build.shards(split)]
        super().__init__(folder, build=build, split=split, path=f"{build.address}/{split}", shards=shards, **windows)

    def _doc_ends_of(self, file: RemoteFile, token_count: int) -> Uints:
        content, name = self._request(file, 0, file.size), f"{self.build.address}/{file.key}"
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise RemoteError(f"{name}: its content has another sha256 than recorded; push it again with --repair")
        ends = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
        check_offsets_form(name, ends, DOC_ENDS_DTYPE)
        check_doc_ends(name, ends, token_count=token_count)
        return ends

    def _read_tokens(self, starts: Ints) -> Tokens:
        rows = np.zeros((len(starts), self.head + self.T + 1), dtype=self._dtype)
        begins = np.maximum(starts - self.head, 0)
        with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(starts)))) as pool:
            for row, found in zip(rows, pool.map(self._requested, begins.tolist(), (starts + self.T + 1).tolist()), strict=True):
                row[-len(found) :] = found
        return rows
