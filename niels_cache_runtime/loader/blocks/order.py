"""The mathematics of the order in blocks. Everything is computed from the epoch and the place, and nothing is stored for each window.

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

`visits` tells when a machine needs a block. `blend` mixes sources so that the number of a sample in the run and c have the same lane.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.cache.checks import check_whole
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.loader.order import Order

BLOCK_ORDER_VERSION = 1  # must change whenever the same blocks, seed, name, lanes and epoch would give another order
MAX_LANES = 2**16

_KEPT_EPOCHS = 2  # a batch may cross from one epoch to the next
_KEPT_ORDERS = 3  # of blocks, for each lane: the block that ends, the one that begins, and one of the other epoch


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochRow:
    """The row of one epoch and its cuts. A slot is the place of a block in the row.

    blocks: (slots,) int64, the block at each slot. ends: (slots,) int64, the cell after the last one of each slot.
    cuts: (lanes+1,) int64. The run of lane g has the cells cuts[g] .. cuts[g+1]-1.
    first_lane: the lane of place 0.
    """

    blocks: NDArray[np.int64]
    ends: NDArray[np.int64]
    cuts: NDArray[np.int64]
    first_lane: int


class BlockOrder:
    """The order in blocks of one source: a permutation of its samples for every epoch, the same on every machine.

    starts: (blocks+1,) int64, increasing from 0. Block b has the samples starts[b] .. starts[b+1]-1, and may have none.
    seed, name: as for Order. lanes: the number of lanes. shuffle: with False, blocks and samples keep their order.
    began: the first sample c of the source that comes in this order, and its epoch. Only a source that has grown has several orders.
    Raises NielsCacheError for values out of range.

    A block without samples changes nothing. So the order follows from the samples' blocks alone.
    Memory is that of `starts`, two permutations of the blocks, and the keys of a few blocks. A sample costs about as much as with Order. A
    new block costs about 0.2 ms.
    """

    def __init__(
        self, starts: NDArray[np.int64], *, seed: int, name: str = "", lanes: int = 1, shuffle: bool = True, began: tuple[int, int] = (0, 0)
    ) -> None:
        self.starts = starts
        self.samples = check_whole("samples", int(starts[-1]), least=1)
        self.lanes = check_whole("lanes", lanes, least=1, most=MAX_LANES)
        self.began = began
        self._seed, self._name, self._shuffle = seed, name, shuffle
        self._sizes = np.diff(starts)
        self._used = np.flatnonzero(self._sizes)
        self._order_of_blocks = Order(len(self._used), seed=seed, name=f"{name}\0blocks") if shuffle else None
        self._rows: dict[int, EpochRow] = {}
        self._orders: dict[int, Order] = {}

    def at(self, places: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the sample number at each of the `places` (n,) of an epoch, as (n,) int64. Places and epochs count from 0.

        Raises NielsCacheError for a place outside the epoch, and for an epoch below 0.
        """
        if not places.size:
            return places
        if not 0 <= places.min() <= places.max() < self.samples:
            wrong = places[(places < 0) | (places >= self.samples)][0]
            raise NielsCacheError(f"position {wrong}: there are {self.samples} samples per epoch, from 0")
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

    def start(self, epoch: int) -> int:
        """Return the number c of the first sample of an epoch."""
        sample, first_epoch = self.began
        return sample + (epoch - first_epoch) * self.samples

    def row(self, epoch: int) -> EpochRow:
        """Return the row of an epoch."""
        row = self._rows.get(epoch)
        if row is None:
            row = self._make_row(check_whole("epoch", epoch))
            # The dict is replaced, not changed, because a prefetch thread and a tracing thread may both be here.
            self._rows = {**dict(list(self._rows.items())[1 - _KEPT_EPOCHS :]), epoch: row}
        return row

    def _make_row(self, epoch: int) -> EpochRow:
        blocks = self._used
        if self._order_of_blocks is not None:
            blocks = blocks[self._order_of_blocks.at(np.arange(len(blocks)), epoch)]
        first_lane = self.start(epoch) % self.lanes
        firsts = (np.arange(self.lanes) - first_lane) % self.lanes
        runs = self.samples // self.lanes + (firsts < self.samples % self.lanes)
        return EpochRow(
            blocks=blocks, ends=np.cumsum(self._sizes[blocks]), cuts=np.concatenate([[0], np.cumsum(runs)]), first_lane=first_lane
        )

    def _cells(self, places: NDArray[np.int64], row: EpochRow) -> NDArray[np.int64]:
        """Return the cell of the row at each place: steps 2 to 4 of the module."""
        if self.lanes == 1:
            return places
        numbers, lanes = np.divmod(places, self.lanes)
        lanes += row.first_lane
        lanes %= self.lanes
        return np.where(lanes % 2 == 0, row.cuts[lanes] + numbers, row.cuts[lanes + 1] - 1 - numbers)

    def _samples_at(self, cells: NDArray[np.int64], slot: int, row: EpochRow, epoch: int) -> NDArray[np.int64]:
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
