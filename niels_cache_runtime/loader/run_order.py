"""The order of all samples of a run: the blend chooses the source, and the source's own order in this epoch chooses the sample.

    global sample k --Blend--> source and how many of its samples came before --Epochs--> epoch, place --Order--> sample number

With `blocks`, BlockOrder takes the place of Order, and the blend may choose a source for a whole round of lanes.

Everything is computed from k: there is no state and no file, and memory is constant. The sources read the samples.

`plan_batches` locates thousands of samples at once, so that many batches share the cost of the calls. It begins with a single batch, so
that a resumed run waits for one batch only.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Ints
from niels_cache_runtime.loader.blend import Blend, Schedule
from niels_cache_runtime.loader.blocks import BlockOrder, BlockVisit, block_visits
from niels_cache_runtime.loader.growth import CopyEpochs, Epochs, Phases
from niels_cache_runtime.loader.order import MAX_SAMPLES, Order
from niels_cache_runtime.loader.source import SourceBlocks
from niels_cache_runtime.loader.steps import Position, Steps

_PLANNED_SAMPLES = 4096
_MAX_LANES = 8


@dataclass(frozen=True)
class SampleLocations:
    """The places of samples: source, epoch and number.

    Attributes:
        sources: (n,) int64, the index of each sample's source.
        epochs: (n,) int64, the epoch of that source.
        numbers: (n,) int64, the number of the sample in that source.
        same: (source, epoch) if all samples are known to share them, otherwise None.
    """

    sources: Ints
    epochs: Ints
    numbers: Ints
    same: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.sources)

    def part(self, first: int, last: int) -> "SampleLocations":
        """Return the places `first` to `last` - 1."""
        return SampleLocations(self.sources[first:last], self.epochs[first:last], self.numbers[first:last], self.same)

    def groups(self) -> Iterator[tuple[int, int, Ints]]:
        """Yield every pair of source and epoch that occurs, so that one read can take all its samples together.

        Yields:
            The source, the epoch, and the places of its samples in this object, (m,) int64.
        """
        if not len(self):
            return
        if self.same is not None:
            yield *self.same, np.arange(len(self))
            return
        order = np.lexsort((self.epochs, self.sources))
        sources, epochs = self.sources[order], self.epochs[order]
        edges = np.flatnonzero((np.diff(sources, prepend=-1) != 0) | (np.diff(epochs, prepend=-1) != 0)).tolist()
        for first, last in zip(edges, [*edges[1:], len(order)], strict=True):
            yield int(sources[first]), int(epochs[first]), order[first:last]


class RunOrder:
    """The order of a run over several sources.

    Args:
        samples: The number of samples per epoch of each source, by name.
        schedule: The weights; see Blend.
        seed: The seed of every source's order.
        shuffle: With False, the samples of a source come in the order of their numbers.
        blocks: The blocks of each source, for an order in blocks. None means an order of the whole split.
        lanes: The number of lanes of an order in blocks.
        copies: For each source with copies, by name, the number of samples of the source and of each copy. None means no copies.
    """

    def __init__(
        self,
        samples: Mapping[str, int],
        *,
        schedule: Schedule,
        seed: int,
        shuffle: bool,
        blocks: Sequence[SourceBlocks] | None = None,
        lanes: int = 1,
        copies: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.names = tuple(samples)
        self.samples = np.array([*samples.values()], dtype=np.int64)
        self.blend = Blend(self.names, schedule, lanes=lanes)
        self.lanes, self._copies = lanes, copies or {}
        self._blocks, self._seed, self._shuffle = blocks, seed, shuffle
        self._set_epochs({})

    def grown(self, phases: Mapping[str, Phases], blocks: Sequence[SourceBlocks] | None = None) -> "RunOrder":
        """Return the order of a run in which some sources have grown.

        Args:
            phases: The phases of these sources, by name; see Epochs.
            blocks: The blocks of each source, for an order in blocks.
        """
        if phases == self.phases and blocks is None:
            return self
        changed = copy.copy(self)
        changed._blocks = blocks or self._blocks
        changed._set_epochs(phases)
        return changed

    def state_entry(self, name: str) -> dict[str, list[list[int]]]:
        """Return the entry `phases` in the state of a source that has grown; empty for other sources."""
        return {"phases": [list(phase) for phase in self.phases[name]]} if name in self.phases else {}

    def _set_epochs(self, phases: Mapping[str, Phases]) -> None:
        self.phases = dict(phases)
        self._epochs = [
            CopyEpochs(self._copies[name]) if name in self._copies else Epochs(phases.get(name, ((0, n),)))
            for name, n in zip(self.names, self.samples.tolist(), strict=True)
        ]
        self._grown = [source for source, name in enumerate(self.names) if name in {*phases, *self._copies}]
        self._orders = [self._orders_of(source) for source in range(len(self.names))]

    def _orders_of(self, source: int) -> Sequence[Order] | Sequence[BlockOrder]:
        """Return the order of each phase of a source, or nothing if its samples come in the order of their numbers."""
        name, epochs = self.names[source], self._epochs[source]
        if self._blocks is None:
            return [Order(n, seed=self._seed, name=name) for _, n in epochs.phases] if self._shuffle else ()
        settings: dict[str, Any] = {"seed": self._seed, "name": name, "lanes": self.lanes, "shuffle": self._shuffle}
        # A phase before the growth has the first samples, so its last blocks are cut or have none.
        own = self._blocks[source]
        earlier = own.earlier if len(own.earlier) == len(epochs.phases) - 1 else ()  # else they are those of another state
        starts = [*earlier, *(np.minimum(own.samples, n) for _, n in epochs.phases[len(earlier) :])]
        return [
            BlockOrder(of_phase, began=(first, epoch), **settings)
            for of_phase, (first, _), epoch in zip(starts, epochs.phases, epochs.first_epochs.tolist(), strict=True)
        ]

    def locate(self, samples: Ints) -> SampleLocations:
        """Return the places of samples of the run, given their numbers (n,) int64."""
        sources, taken = self.blend.at(samples)
        epochs, numbers = np.divmod(taken, self.samples[sources])
        for source in self._grown:
            chosen = np.flatnonzero(sources == source)
            epochs[chosen], numbers[chosen] = self._epochs[source].at(taken[chosen])
        groups = list(SampleLocations(sources, epochs, numbers).groups())
        for source, epoch, places in groups:
            if orders := self._orders[source]:
                numbers[places] = orders[self._epochs[source].phase(epoch)].at(numbers[places], epoch)
        return SampleLocations(sources, epochs, numbers, groups[0][:2] if len(groups) == 1 else None)

    def samples_of(self, name: str, epoch: int, numbers: Ints) -> Ints:
        """Return the samples of the run at which an epoch of a source comes to its samples `numbers`, (n,), or -1 where it never does.

        This is `locate` backwards.
        """
        source = self.names.index(name)
        epochs, orders = self._epochs[source], self._orders[source]
        phase = epochs.phase(epoch)
        places = orders[phase].positions(numbers, epoch) if orders else np.where(numbers < epochs.phases[phase][1], numbers, -1)
        return np.where(places < 0, -1, self.blend.positions(source, epochs.start(epoch) + places.clip(0)))

    def epochs_begun(self, name: str, samples: int) -> range:
        """Return the epochs of a source that have begun after the first `samples` samples of the run, and the one that comes next."""
        source = self.names.index(name)
        epochs = self._epochs[source]
        return range(int(epochs.first_epochs[0]), int(epochs.at(self.blend.counts(samples)[[source]])[0][0]) + 1)

    def epochs_read(self, samples: int) -> list[Fraction]:
        """Return how often each source was read after the first `samples` samples of the run; see Epochs.read."""
        return [epochs.read(taken) for epochs, taken in zip(self._epochs, self.blend.counts(samples).tolist(), strict=True)]

    def visits(self, names: Collection[str], samples: int, *, machine: int, machines: int) -> Iterator[BlockVisit]:
        """Yield the blocks of the sources `names` that a machine reads after the first `samples` samples of the run; see `block_visits`.

        Raises:
            NielsCacheError: For an order of the whole split.
        """
        if self._blocks is None:
            raise NielsCacheError("order='split': reads the whole split at any time; blocks need TokenLoader(order=Blocks())")
        orders: Any = self._orders  # with blocks, each is a BlockOrder
        return block_visits(self.names, self._blocks, orders, self.blend, samples=samples, machine=machine, machines=machines, chosen=names)

    def end_of_pass(self, start: int, *, epochs: int) -> tuple[int, str]:
        """Return the sample at which the pass that begins at `start` ends, and the name of the source that ends it.

        A pass ends at the first sample from `start` on that would begin another `epochs` epochs of a source.

        Raises:
            NielsCacheError: If all weights of the last segment are 0, or if the pass would end beyond the largest sample of a run.
        """
        ends = []
        for source, (name, taken) in enumerate(zip(self.names, self.blend.counts(start).tolist(), strict=True)):
            epoch = int(self._epochs[source].at(np.array([taken], dtype=np.int64))[0][0])
            position = self.blend.position(source, self._epochs[source].start((epoch // epochs + 1) * epochs))
            if position is not None:
                ends.append((position, name))
        if not ends:
            raise NielsCacheError("weights: all of the last segment are 0, so no source ends the pass; give one of them a positive weight")
        end, name = min(ends)
        if end > MAX_SAMPLES:
            raise NielsCacheError(f"epochs={epochs}: a pass would end at sample {end}, and no run counts so many; leave out epochs")
        return end, name


def plan_batches(
    run_order: RunOrder,
    steps: Steps,
    position: Position,
    *,
    worker: int,
    workers: int,
    done: int,
    prepare: Callable[[SampleLocations], None] | None = None,
) -> Iterator[SampleLocations]:
    """Yield the places of the batches that one worker of a DataLoader makes from `position` to the end of the pass.

    Count the batches after `position` from 0. Worker number `worker` makes every `workers`-th batch, beginning with batch number `worker`.
    Its first `done` batches are left out. `prepare` is called with the places of several batches before the first of them comes.
    """
    full, last = steps.full(position), steps.last(position)
    sizes = position.sizes
    planned = _PLANNED_SAMPLES * min(run_order.lanes // sizes.machines, _MAX_LANES)  # each lane is in another block, and costs a call
    own = sizes.samples_of_rank(steps.rank, position.samples, sizes.rows)
    index, block = worker + done * workers, 1
    while full is None or index < full:
        count = block if full is None else min(block, -(-(full - index) // workers))
        batches = index + workers * np.arange(count)
        located = run_order.locate((batches[:, None] * sizes.rows + own).ravel())
        if prepare:
            prepare(located)
        for first in range(0, len(located), sizes.B):
            yield located.part(first, first + sizes.B)
        index += workers * count
        block = max(1, min(2 * block, planned // sizes.B))
    if index == full and last is not None:
        yield run_order.locate(last)
