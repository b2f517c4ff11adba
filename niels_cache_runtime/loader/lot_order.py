"""The order of one phase of a run: which lots of each source it reads, and the order of their rows.

    an epoch     a permutation of all lots of the source
    a phase      the next lots of the epoch, and then those of the next epochs

Inside a phase, BlockOrder orders the rows as if each lot were a block. The permutation depends on the documents, the seed and the epoch,
not on T or the packing. So no document is read twice before its source is exhausted.

Each source gives as many lots as come nearest to its share of the phase. What is too little or too much is made up for in later phases. The
weights of the blend are the numbers of rows in these lots, so that all sources end with the phase. `phases` chains the phases.
"""

from fractions import Fraction
from typing import Any

import numpy as np

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Ints
from niels_cache_runtime.loader.blend import Blend, Schedule, schedule_of_counts
from niels_cache_runtime.loader.blocks import BlockOrder
from niels_cache_runtime.loader.growth import Epochs
from niels_cache_runtime.loader.run_order import RunOrder
from niels_cache_runtime.loader.settings import Averages, LoaderSettings, Lots, row_weights
from niels_cache_runtime.loader.source import NamedSources

_NEVER = 2**59  # a sample that no run reaches


class _NextLots:
    """The lots of a source from one of them on.

    Args:
        starts: (lots + 1,), the first sample of every lot, and then the number of all.
        first: The first lot, counted over all epochs.
        **settings: The arguments of BlockOrder that all its orders share.
    """

    def __init__(self, starts: Ints, first: int, **settings: Any) -> None:
        self._starts, self._first, self._settings = starts, first, settings
        self.lots = len(starts) - 1
        self._epoch, self._place = divmod(first, self.lots)
        self._every = self._order(self._epoch)

    def _order(self, epoch: int, first: int | None = None, end: int | None = None) -> BlockOrder:
        return BlockOrder(self._starts, began=(0, epoch), part=slice(first, end), **self._settings)

    def _ends(self, epoch: int) -> Ints:
        """Return 0, and then the number of samples up to the end of each lot of an epoch."""
        return np.cumsum(np.append(0, np.diff(self._starts)[self._every.blocks_of(epoch)]))

    def nearest(self, samples: int) -> int:
        """Return the lot that is about `samples` samples after the first one."""
        epochs, rest = divmod(int(self._ends(self._epoch)[self._place]) + samples, self._every.samples)
        epoch = self._epoch + epochs
        return max(self._first, epoch * self.lots + int(np.abs(self._ends(epoch) - rest).argmin()))

    def orders(self, end: int | None) -> list[BlockOrder]:
        """Return the orders up to the lot `end`: of the first epoch, of all whole ones after it, and of the last one.

        If `end` is None, all epochs after the first are whole.
        """
        last, rest = (self._epoch + 1, None) if end is None else divmod(end, self.lots)
        return [
            self._order(epoch, self._place if epoch == self._epoch else 0, rest if epoch == last else None)
            for epoch in sorted({self._epoch, min(self._epoch + 1, last), last})
        ]


class LotRunOrder(RunOrder):
    """The order of a phase.

    Args:
        sources: The sources.
        settings: The settings of the loader. The order is Lots.
        averages: As in `row_weights`.

    Attributes:
        end: The number of samples of the phase, or None for a phase without end.
        after: For each source, the two numbers that the next phase needs; see Lots.

    Raises:
        NielsCacheError: If a source has less than half a lot in the phase, and for invalid shares.
    """

    def __init__(self, sources: NamedSources, settings: LoaderSettings, averages: Averages) -> None:
        lots = settings.order
        assert isinstance(lots, Lots)
        if lots.tokens <= settings.T:
            raise NielsCacheError(f"T={settings.T}: a row has more tokens than a lot; give more lot_tokens than {lots.tokens}")
        schedule: Schedule = [*row_weights(sources, settings, averages), (_NEVER, dict.fromkeys(sources, 1))]
        weights = Blend([*sources], schedule).weights[0][1]
        tokens = lots.phase["tokens"]
        found = []
        counts: list[int] = []
        self.after: dict[str, list[int]] = {}
        for (name, source), weight in zip(sources.items(), weights, strict=True):
            first, owed = lots.phase["sources"][name]
            inputs = owed + (tokens or 0) * weight // sum(weights)
            following = _NextLots(
                source.blocks(1).samples, first, name=name, seed=settings.seed, lanes=lots.lanes, shuffle=settings.shuffle
            )
            end = None if tokens is None else following.nearest(max(0, inputs // settings.T)) if weight else first
            orders = following.orders(end)
            first_epochs = [order.began[1] for order in orders]
            sizes = [order.samples for order in orders]
            *firsts, count = np.cumsum([0, *(np.diff([*first_epochs, first_epochs[-1] + 1]) * sizes)]).tolist()
            epochs = Epochs([*zip(firsts, [max(1, size) for size in sizes], strict=True)], first_epochs)
            found.append((following, orders, epochs))
            counts.append(count)
            self.after[name] = [end or 0, inputs - count * settings.T]
            if weight and not count:
                raise NielsCacheError(
                    f"{name}: has {max(0, inputs):,} inputs left for this phase, less than half of its next lot; give fewer lot_tokens "
                    f"than {lots.tokens:,}, or the phase more tokens"
                )
        self.end = None if tokens is None else sum(counts)
        super().__init__(
            {name: source.samples for name, source in sources.items()},
            schedule=schedule if tokens is None else schedule_of_counts([*sources], counts),
            seed=settings.seed,
            shuffle=settings.shuffle,
        )
        self._next, self._orders, self._epochs = map(list, zip(*found, strict=True))
        self.lanes, self._grown = lots.lanes, [*range(len(found))]  # their epochs differ in length, as if they had grown

    def samples_of(self, name: str, epoch: int, numbers: Ints) -> Ints:
        if self.end is not None and epoch > self._epochs[self.names.index(name)].first_epochs[-1]:  # the last of the phase
            return np.full_like(numbers, -1)
        return super().samples_of(name, epoch, numbers)

    def epochs_read(self, samples: int) -> list[Fraction]:
        """Return how often each source was read after the phase."""
        return [Fraction(end, each.lots) for (end, _), each in zip(self.after.values(), self._next, strict=True)]

    def end_of_pass(self, start: int, *, epochs: int) -> tuple[int, str]:
        return self.end or _NEVER, self.names[0]
