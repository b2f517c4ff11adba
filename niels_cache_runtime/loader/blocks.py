"""The order in blocks: windows are shuffled inside blocks of consecutive shards, so that a machine needs only a few shards at a time.

Everything is computed from the epoch and the place, and nothing is stored for each window.

A source has N samples. Block b holds the samples w[b] .. w[b+1]-1, which are those whose first token is in the block's shards. So a window
that crosses into the next block belongs to the earlier block. G is the number of lanes, e the epoch, and p = 0 .. N-1 the place in it.

    1. The row of an epoch.   A permutation of the blocks that have samples, from seed, name and e, gives blocks b_0, b_1, ... They lie side
                              by side in a row of N cells. Block b_j has as many cells as samples, and cell i of block b holds sample
                              w[b] + s(i). s is a permutation of the block's samples, from seed, name, b and e.
    2. The lanes.             The row is cut into G runs, one for each lane in turn. The lengths of two runs differ by at most 1.
    3. The place.             c = C + p counts the samples of the source over all epochs, and C = e*N is the first of this epoch. Sample
                              c belongs to lane c mod G, and it is number p // G of this lane in this epoch.
    4. The direction.         An even lane reads its run from left to right, an odd lane from right to left.

    row      | b_0 . . . . | b_1 . . . . | b_2 . . | b_3 . . . . | b_4 . . . . |      N cells, 5 blocks, G = 3
    lanes    | 0 ------------------> | <------------------ 1 | 2 ------------> |      at the same time, one sample each in turn

Each sample comes exactly once per epoch. In an epoch, lane g gets the places p with (C + p) mod G = g. The first of them is
f = (g - C) mod G, so their number is ceil((N - f) / G). Step 2 gives the lane a run of exactly this length, so steps 2 to 4 map the
places one to one to the cells. Step 1 maps the cells one to one to the samples.

Consequences:

* Runs, not whole blocks, are dealt, because lanes of whole blocks have unequal lengths. At the end of an epoch a machine would then have
  to read from other lanes, wait, or leave out windows. The price is that the G - 1 cuts may each divide a block between two lanes.
* Because of step 4, two lanes that share a block read it at the same time: both at the start of the epoch, or both at its end. So a machine
  needs each block only once per epoch.
* If a source grows, N and C change at the end of an epoch, and the rest stays as it is.
* Lane c mod G does not depend on the epoch. With M machines, M a divisor of G, machine m takes the samples with c mod M = m, and these are
  all samples of the lanes m, m+M, m+2M, ... and no others.

`block_visits` computes when a machine needs a block. Code that keeps only a part of a cache on the machine uses it to decide what to fetch
next. An epoch costs one pass over its blocks. `blend` mixes sources so that the number of a sample in the run and c have the same lane.

Ranks count machine by machine, as torchrun counts them: machine m has the ranks m * R .. (m+1) * R - 1, where R is the number of ranks per
machine. `resolve_machines` finds their number, and `steps` divides the samples.
"""

import heapq
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Ints
from niels_cache_runtime.loader.blend import Blend
from niels_cache_runtime.loader.order import Order
from niels_cache_runtime.loader.source import SourceBlocks

BLOCK_ORDER_VERSION = 1  # must change whenever the same blocks, seed, name, lanes and epoch would give another order
MAX_LANES = 2**16

_KEPT_EPOCHS = 2  # a batch may cross from one epoch to the next
_KEPT_ORDERS = 3  # of blocks, for each lane: the block that ends, the one that begins, and one of the other epoch


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochRow:
    """The row of one epoch and its cuts. A slot is the place of a block in the row.

    Attributes:
        blocks: (slots,) int64, the block at each slot.
        ends: (slots,) int64, the cell after the last one of each slot.
        cuts: (lanes + 1,) int64. The run of lane g has the cells `cuts[g]` .. `cuts[g + 1] - 1`.
        first_lane: The lane of place 0.
    """

    blocks: Ints
    ends: Ints
    cuts: Ints
    first_lane: int


class BlockOrder:
    """The order in blocks of one source: a permutation of its samples for every epoch, the same on every machine.

    A block without samples changes nothing, so the order follows from the blocks of the samples alone. Memory is that of `starts`, two
    permutations of the blocks, and the keys of a few blocks. A sample costs about as much as with Order. A new block costs about 0.2 ms.

    Args:
        starts: (blocks + 1,) int64, increasing from 0. Block b has the samples `starts[b]` .. `starts[b + 1] - 1`, and may have none.
        seed: The seed, 0 to 2**64 - 1.
        name: The name of the source. Sources with different names have unrelated orders.
        lanes: The number of lanes.
        shuffle: With False, blocks and samples keep their order.
        began: The first sample c of the source that comes in this order, and its epoch. Only a source that has grown has several orders.
        part: Which blocks of an epoch this order has, by their places in the permutation of all blocks. Blocks without samples then have a
            place too, so that the permutation depends on the number of blocks alone.

    Raises:
        NielsCacheError: For values out of range.
    """

    def __init__(
        self,
        starts: Ints,
        *,
        seed: int,
        name: str = "",
        lanes: int = 1,
        shuffle: bool = True,
        began: tuple[int, int] = (0, 0),
        part: slice | None = None,
    ) -> None:
        self.starts = starts
        self.samples, self.lanes = int(starts[-1]), lanes
        self.began = began
        self._seed, self._name, self._shuffle = seed, name, shuffle
        self._sizes = np.diff(starts)
        self._used = np.flatnonzero(self._sizes) if part is None else np.arange(len(self._sizes))
        self._part = part or slice(None)
        self._order_of_blocks = Order(len(self._used), seed=seed, name=f"{name}\0blocks") if shuffle else None
        self._rows: dict[int, EpochRow] = {}
        self._orders: dict[int, Order] = {}
        if part is not None:
            self.samples = int(self._sizes[self.blocks_of(began[1])].sum())

    def at(self, places: Ints, epoch: int) -> Ints:
        """Return the sample number at each place of an epoch, (n,) int64.

        Args:
            places: (n,) int64, counted from 0.
            epoch: The epoch, counted from 0.
        """
        if not places.size:
            return places
        row = self.row(epoch)
        cells = self._cells(places, row)
        first, last = row.ends.searchsorted([cells.min(), cells.max()], side="right").tolist()
        if first == last:
            return self._samples_at(cells, first, row, epoch)
        slots = row.ends.searchsorted(cells, side="right").astype(np.min_scalar_type(len(row.ends)))  # numpy sorts short numbers fast
        found = np.empty_like(cells)
        by_slot = slots.argsort(kind="stable")
        edges = np.flatnonzero(np.diff(slots[by_slot], prepend=-1)).tolist()
        for begin, end in zip(edges, [*edges[1:], len(slots)], strict=True):
            own = by_slot[begin:end]
            found[own] = self._samples_at(cells[own], int(slots[own[0]]), row, epoch)
        return found

    def positions(self, numbers: Ints, epoch: int) -> Ints:
        """Return the place of each sample number in an epoch, (n,) int64: the inverse of `at`. It is -1 for samples of no block of it."""
        row = self.row(epoch)
        firsts = np.full(len(self.starts), -1, dtype=np.int64)  # the first cell of each block, and -1 after the last one
        firsts[row.blocks] = row.ends - self._sizes[row.blocks]
        blocks = self.starts.searchsorted(numbers, side="right") - 1
        found = np.full_like(numbers, -1)
        for block in np.unique(blocks[firsts[blocks] >= 0]).tolist():
            own = np.flatnonzero(blocks == block)
            inside = numbers[own] - self.starts[block]
            if self._shuffle:
                inside = self._order_in(block).positions(inside, epoch)
            cells = inside + firsts[block]
            lanes = row.cuts.searchsorted(cells, side="right") - 1
            in_lane = np.where(lanes % 2 == 0, cells - row.cuts[lanes], row.cuts[lanes + 1] - 1 - cells)
            found[own] = in_lane * self.lanes + (lanes - row.first_lane) % self.lanes
        return found

    def start(self, epoch: int) -> int:
        """Return the number c of the first sample of an epoch."""
        sample, first_epoch = self.began
        return sample + (epoch - first_epoch) * self.samples

    def row(self, epoch: int) -> EpochRow:
        """Return the row of an epoch."""
        row = self._rows.get(epoch)
        if row is None:
            row = self._make_row(epoch)
            # The dict is replaced, not changed, because a prefetch thread and a tracing thread may both be here.
            self._rows = {**dict(list(self._rows.items())[1 - _KEPT_EPOCHS :]), epoch: row}
        return row

    def blocks_of(self, epoch: int) -> Ints:
        """Return the blocks of an epoch, in their order."""
        blocks = self._used
        if self._order_of_blocks is not None:
            blocks = blocks[self._order_of_blocks.at(np.arange(len(blocks)), epoch)]
        return blocks[self._part]

    def _make_row(self, epoch: int) -> EpochRow:
        blocks = self.blocks_of(epoch)
        first_lane = self.start(epoch) % self.lanes
        firsts = (np.arange(self.lanes) - first_lane) % self.lanes
        runs = self.samples // self.lanes + (firsts < self.samples % self.lanes)
        return EpochRow(
            blocks=blocks, ends=np.cumsum(self._sizes[blocks]), cuts=np.concatenate([[0], np.cumsum(runs)]), first_lane=first_lane
        )

    def _cells(self, places: Ints, row: EpochRow) -> Ints:
        """Return the cell of the row at each place: steps 2 to 4 of the module."""
        if self.lanes == 1:
            return places
        numbers, lanes = np.divmod(places, self.lanes)
        lanes += row.first_lane
        lanes %= self.lanes
        return np.where(lanes % 2 == 0, row.cuts[lanes] + numbers, row.cuts[lanes + 1] - 1 - numbers)

    def _samples_at(self, cells: Ints, slot: int, row: EpochRow, epoch: int) -> Ints:
        """Return the sample of each of the `cells` (n,), which are all in one slot of the row: step 1 of the module."""
        block = int(row.blocks[slot])
        inside = cells - (row.ends[slot] - self._sizes[block])
        if self._shuffle:
            inside = self._order_in(block).at(inside, epoch)
        inside += self.starts[block]
        return inside

    def _order_in(self, block: int) -> Order:
        order = self._orders.get(block)
        if order is None:
            order = Order(int(self._sizes[block]), seed=self._seed, name=f"{self._name}\0block {block}")
            self._orders = {**dict(list(self._orders.items())[1 - _KEPT_ORDERS * self.lanes :]), block: order}
        return order


@dataclass(frozen=True, kw_only=True)
class BlockVisit:
    """A block that a machine reads during a part of the run.

    Attributes:
        source: The name of the source.
        epoch: The epoch of the source.
        block: The number of the block.
        files: The files of the block, as indices into the source's token files.
        tail_tokens: The number of tokens after the block's last file that the block's last window also reads. They are in the next files.
        first: The first sample of the run for which the machine reads the block.
        end: The sample after the last one.
    """

    source: str
    epoch: int
    block: int
    files: range
    tail_tokens: int
    first: int
    end: int


class _SampleVisit(NamedTuple):
    """A visit that is counted in samples of its source.

    Attributes:
        first: The first sample that it needs.
        last: The last sample that it needs.
        epoch: The epoch of the source.
        block: The number of the block.
    """

    first: int
    last: int
    epoch: int
    block: int


def block_visits(
    names: Sequence[str],
    blocks: Sequence[SourceBlocks],
    orders: Sequence[Sequence[BlockOrder]],
    blend: Blend,
    *,
    samples: int,
    machine: int,
    machines: int,
    chosen: Collection[str] | None = None,
) -> Iterator[BlockVisit]:
    """Yield the visits of one machine that end after the first `samples` samples of the run, sorted by their `first`.

    The visits that are needed now are those with first <= samples. A machine visits a block once per epoch. If several of its lanes share
    the block, this is one visit. The iterator has no end, unless the weights of all chosen sources end in 0.

    Args:
        names: The names of the sources.
        blocks: The blocks of each source.
        orders: The orders of each source, one after the other. A source that never grew has one.
        blend: The sources of the samples.
        samples: The number of samples of the run that were taken, on all ranks.
        machine: The number of this machine.
        machines: The number of machines.
        chosen: The names of the sources whose visits are wanted. None means all.
    """
    taken = blend.counts(samples).tolist()

    def of_source(source: int) -> Iterator[BlockVisit]:
        own = blocks[source]
        for visit in _visits_of_source(orders[source], taken=taken[source], machine=machine, machines=machines):
            first, last = blend.position(source, visit.first), blend.position(source, visit.last)
            if first is None:
                return
            yield BlockVisit(
                source=names[source],
                epoch=visit.epoch,
                block=visit.block,
                files=range(int(own.files[visit.block]), int(own.files[visit.block + 1])),
                tail_tokens=int(own.tails[visit.block]),
                first=first,
                end=_LAST if last is None else last + 1,
            )

    numbers = [number for number, name in enumerate(names) if chosen is None or name in chosen]
    return heapq.merge(*map(of_source, numbers), key=lambda visit: visit.first)


def _visits_of_source(orders: Sequence[BlockOrder], *, taken: int, machine: int, machines: int) -> Iterator[_SampleVisit]:
    """Yield the visits that are not over after `taken` samples of the source, epoch by epoch."""
    order = next(order for order in reversed(orders) if order.began[0] <= taken)
    epoch = order.began[1] + (taken - order.began[0]) // order.samples
    while True:
        order = next(order for order in reversed(orders) if order.began[1] <= epoch)
        yield from (visit for visit in _visits_of_epoch(order, epoch, machine=machine, machines=machines) if visit.last >= taken)
        epoch += 1


def _visits_of_epoch(order: BlockOrder, epoch: int, *, machine: int, machines: int) -> list[_SampleVisit]:
    row, lanes = order.row(epoch), order.lanes
    found: dict[int, tuple[int, int]] = {}
    for lane in range(machine, lanes, machines):
        begin, end = int(row.cuts[lane]), int(row.cuts[lane + 1])
        if begin == end:
            continue
        slots = np.arange(row.ends.searchsorted(begin, side="right"), row.ends.searchsorted(end - 1, side="right") + 1)
        lefts = np.concatenate([[begin], row.ends[slots[:-1]]])
        rights = np.minimum(row.ends[slots], end)
        numbers = (lefts - begin, rights - 1 - begin) if lane % 2 == 0 else (end - rights, end - 1 - lefts)
        start = order.start(epoch) + (lane - row.first_lane) % lanes
        firsts, lasts = (start + lanes * number for number in numbers)
        for block, first, last in zip(row.blocks[slots].tolist(), firsts.tolist(), lasts.tolist(), strict=True):
            earlier = found.get(block, (first, last))
            found[block] = min(first, earlier[0]), max(last, earlier[1])
    return sorted(_SampleVisit(first, last, epoch, block) for block, (first, last) in found.items())


_LAST = 2**60  # after the last sample of any run


_SHOWN = 12


def resolve_machines(given: int | None, *, lanes: int, world_size: int, environment: Mapping[str, str]) -> int:
    """Return the number of machines, a divisor of `lanes` and of `world_size`.

    If none is given, the variables of torchrun in `environment` decide. Without these variables, or with a single rank, there is one
    machine.

    Raises:
        NielsCacheError: For any other number. The message names the allowed ones.
    """
    machines = _torchrun_machines(world_size, environment) if given is None else given
    origin = " (from torchrun)" if given is None and machines > 1 else ""
    allowed = [count for count in range(1, math.gcd(lanes, world_size) + 1) if lanes % count == 0 == world_size % count]
    if machines not in allowed:
        other = "" if world_size % machines else f"; for {machines} machines, give lanes={machines} or a multiple of it"
        raise NielsCacheError(
            f"machines={machines}{origin}: must divide lanes={lanes} and world_size={world_size}; allowed are {_listed(allowed)}"
            f"{other}; with machines=1, each machine reads all lanes"
        )
    return machines


def _torchrun_machines(world_size: int, environment: Mapping[str, str]) -> int:
    """Return the number of machines that torchrun set: 1 without torchrun and for a single rank.

    Raises:
        NielsCacheError: If the variables do not give equally many ranks on each machine.
    """
    names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
    if world_size == 1 or "LOCAL_WORLD_SIZE" not in environment:
        return 1
    try:
        everywhere, here, groups = (int(environment[name]) if name in environment else None for name in names)
    except ValueError:
        everywhere = here = groups = 0
    variables = ", ".join(f"{name}={environment[name]}" for name in names if name in environment)
    if not here or everywhere not in (None, world_size) or groups not in (None, world_size // here) or world_size % here:
        raise NielsCacheError(
            f"world_size={world_size}: {variables} in the environment do not give equally many ranks on each machine; "
            f"give Blocks(machines=n) (machines=1: each machine reads all lanes)"
        )
    return world_size // here


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    return f"{shown}, ..." if len(numbers) > _SHOWN else shown
