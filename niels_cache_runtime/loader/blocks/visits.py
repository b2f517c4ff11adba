"""The times at which a machine needs a block. Code that keeps only a part of a cache on the machine asks here what to fetch next.

    position of the run --block_visits--> BlockVisit, BlockVisit, ...     in the order in which the machine first needs them

Everything is computed from the position, so a resumed run gets the same visits. An epoch costs one pass over its blocks.
"""

import heapq
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from niels_cache_runtime.loader.blend import Blend, BlendInRounds
from niels_cache_runtime.loader.blocks.order import BlockOrder
from niels_cache_runtime.loader.source import SourceBlocks


@dataclass(frozen=True, kw_only=True)
class BlockVisit:
    """A block that a machine reads during a part of the run.

    source: the name of the source. epoch: the epoch of the source. block: the number of the block.
    files: the files of the block, as indices into the source's token files.
    tail_tokens: the number of tokens after the block's last file that the block's last window also reads. They are in the next files.
    first, end: the machine reads the block from sample `first` of the run to sample `end` - 1.
    """

    source: str
    epoch: int
    block: int
    files: range
    tail_tokens: int
    first: int
    end: int


class _Counted(NamedTuple):
    """A visit that is counted in samples of its source: the first and the last sample that it needs."""

    first: int
    last: int
    epoch: int
    block: int


def block_visits(
    names: Sequence[str],
    blocks: Sequence[SourceBlocks],
    orders: Sequence[Sequence[BlockOrder]],
    blend: Blend | BlendInRounds,
    *,
    samples: int,
    machine: int,
    machines: int,
    chosen: Collection[str] | None = None,
) -> Iterator[BlockVisit]:
    """Yield the visits of one machine that end after the first `samples` samples of the run, sorted by their `first`.

    orders: the orders of each source, one after the other; a source that never grew has one.
    chosen: the names of the sources whose visits are wanted; None for all.
    The visits of the present are those with first <= samples. A machine visits a block once per epoch. If several of its lanes share the
    block, this is one visit. The iterator has no end, unless the weights of all chosen sources end in 0.
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


def _visits_of_source(orders: Sequence[BlockOrder], *, taken: int, machine: int, machines: int) -> Iterator[_Counted]:
    """Yield the visits that are not over after `taken` samples of the source, epoch by epoch."""
    order = next(order for order in reversed(orders) if order.began[0] <= taken)
    epoch = order.began[1] + (taken - order.began[0]) // order.samples
    while True:
        order = next(order for order in reversed(orders) if order.began[1] <= epoch)
        yield from (visit for visit in _visits_of_epoch(order, epoch, machine=machine, machines=machines) if visit.last >= taken)
        epoch += 1


def _visits_of_epoch(order: BlockOrder, epoch: int, *, machine: int, machines: int) -> list[_Counted]:
    """Return the visits of one epoch, sorted."""
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
            known = found.get(block, (first, last))
            found[block] = min(first, known[0]), max(last, known[1])
    return sorted(_Counted(first, last, epoch, block) for block, (first, last) in found.items())


_LAST = 2**60  # after the last sample of any run
