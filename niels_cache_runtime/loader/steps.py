"""The global samples of each step of a run, for every rank. The batch size may have changed during the run.

The global batch size is G = B * world_size. Step s takes G consecutive samples, and rank r takes the r-th block of B samples. So if G stays
equal, a step has the same samples for any world_size. The position is counted in samples, so it stays valid when B or world_size change. A
pass reads `epochs` epochs of the sources and may end within a step. The last batch of such a pass is smaller, or dropped.

With M machines, machine m takes the samples k with k mod M = m, and its ranks divide these in the same way (`blocks` explains why).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from niels_cache_runtime.cache.checks import check_whole
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Ints

_MAX_SAMPLES = 2**60
_MAX_ROWS = 2**31
_PASSES_AHEAD = 1000


class BatchSizes(NamedTuple):
    """The batch size from one step of the run on.

    Attributes:
        step: The first step.
        samples: The sample of the run at which this step begins.
        B: Rows per batch on each rank.
        world_size: The number of ranks.
        machines: The number of machines.
    """

    step: int
    samples: int
    B: int
    world_size: int
    machines: int = 1

    @property
    def rows(self) -> int:
        """The rows of a batch on all ranks."""
        return self.B * self.world_size

    def samples_of_rank(self, rank: int, first: int, count: int) -> Ints:
        """Return the samples (n,) that a rank takes of the `count` samples from `first` on.

        The ranks of a machine share its samples evenly. If the machine has any sample, its first rank gets one, because rank 0 usually
        saves the state.
        """
        ranks = self.world_size // self.machines
        machine, place = divmod(rank, ranks)
        skipped = (machine - first) % self.machines
        of_machine = -(-max(0, count - skipped) // self.machines)
        share = np.arange(-(-place * of_machine // ranks), -(-(place + 1) * of_machine // ranks), dtype=np.int64)
        return first + skipped + self.machines * share

    def find(self, samples: Ints, firsts: Ints, counts: Ints) -> tuple[Ints, Ints]:
        """Return the rank of each sample, and its row in the batch of this rank: `samples_of_rank` backwards. All arrays are (n,)."""
        ranks = self.world_size // self.machines
        machine = samples % self.machines
        skipped = (machine - firsts) % self.machines
        of_machine = -(-(counts - skipped) // self.machines)
        number = (samples - firsts - skipped) // self.machines
        place = number * ranks // of_machine
        return machine * ranks + place, number - -(-place * of_machine // ranks)


@dataclass(frozen=True, kw_only=True)
class Position:
    """The progress of a run.

    Attributes:
        samples: The number of samples taken so far, on all ranks.
        step: The number of steps taken so far.
        pass_start: The first sample of this pass.
        batches: One entry for the start, for every change of batch size, and for every pass that ended within a step. These entries are
            enough to find any step again. Several entries have the same step if a pass had too few samples for a batch.
    """

    samples: int
    step: int
    pass_start: int
    batches: tuple[BatchSizes, ...]

    @property
    def sizes(self) -> BatchSizes:
        """The batch size at this position."""
        return self.batches[-1]

    def resized(self, sizes: BatchSizes) -> "Position":
        """Return the same position for a run that continues with a new batch size."""
        last = self.sizes
        if last[2:] == sizes[2:]:
            return self
        earlier = self.batches[:-1] if last[:2] == (self.step, self.samples) else self.batches
        return replace(self, batches=(*earlier, sizes._replace(step=self.step, samples=self.samples)))


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The steps of one rank. A position has the size of the batches.

    Attributes:
        rank: The number of this rank.
        drop_last: Whether the smaller batch at the end of a pass is dropped.
        end_of_pass: A function of a pass's first sample that returns the sample at which the pass ends. None for a run without end.
        once: Whether the run ends with the pass.
    """

    rank: int
    drop_last: bool
    end_of_pass: Callable[[int], int] | None
    once: bool = False

    def end(self, position: Position) -> int | None:
        """Return the sample at which the pass of this position ends."""
        return None if self.end_of_pass is None else self.end_of_pass(position.pass_start)

    def full(self, position: Position) -> int | None:
        """Return how many full batches the pass has left, or None if it has no end."""
        end = self.end(position)
        return None if end is None else max(0, end - position.samples) // position.sizes.rows

    def last(self, position: Position) -> Ints | None:
        """Return this rank's samples (n,) of the smaller batch at the end of the pass, or None if there are none.

        The samples that are left after the full batches are divided evenly among the ranks of each machine.
        """
        end, full = self.end(position), self.full(position)
        if end is None or full is None or self.drop_last:
            return None
        first = position.samples + full * position.sizes.rows
        mine = position.sizes.samples_of_rank(self.rank, first, end - first)
        return mine if len(mine) else None

    def count(self, position: Position) -> int | None:
        """Return how many batches this rank has left in the pass, or None if the pass has no end."""
        full = self.full(position)
        return None if full is None else full + (self.last(position) is not None)

    def after_last(self, position: Position) -> Position:
        """Return the position at the end of the pass. It is the same on every rank.

        Its step counts a smaller last batch on every rank, even on a rank that has no row of this batch.
        """
        end, full = self.end(position), self.full(position)
        if end is None or full is None:
            return position
        rest = end - position.samples - full * position.sizes.rows
        return replace(position, samples=end, step=position.step + full + (rest > 0 and not self.drop_last))

    def next_pass(self, position: Position) -> Position:
        """Return the position at the start of the next pass."""
        after = self.after_last(position)
        after = replace(after, pass_start=after.samples)
        last = after.sizes
        if after.samples - last.samples == (after.step - last.step) * last.rows:
            return after
        return replace(after, batches=(*after.batches, last._replace(step=after.step, samples=after.samples)))

    def advance(self, position: Position, steps: int) -> Position:
        """Return the position after `steps` more batches of this rank, across any number of passes.

        Raises:
            NielsCacheError: If a pass has no batch for this rank.
        """
        while True:
            left, full = self.count(position), self.full(position)
            if left is None or full is None or steps <= full:
                return replace(position, samples=position.samples + steps * position.sizes.rows, step=position.step + steps)
            if steps <= left:
                return self.after_last(position)
            position = self.next_pass(position)
            steps -= left
            if not self.count(position):
                sizes = position.sizes
                raise NielsCacheError(f"epochs: a pass has no batch of B={sizes.B} on {sizes.world_size} ranks; use a smaller batch")

    def find(self, position: Position, step: int, *, rank: int) -> Ints:
        """Return the samples (n,) that a rank takes at a step. The batch size is the one that the run had at that step.

        Args:
            position: The position of the run.
            step: A step before or after this position.
            rank: The rank.

        Raises:
            NielsCacheError: For a step after the end of this pass, and for a rank that the run did not have at that step.
        """
        index = max(index for index, sizes in enumerate(position.batches) if sizes.step <= step)
        sizes = position.batches[index]
        if not 0 <= rank < sizes.world_size:
            raise NielsCacheError(f"rank={rank}: step {step} ran on {sizes.world_size} ranks, counted from 0")
        later = position.batches[index + 1].samples if index + 1 < len(position.batches) else self.end(position)
        first = sizes.samples + (step - sizes.step) * sizes.rows
        count = sizes.rows if later is None else min(sizes.rows, later - first)
        if count <= 0 or (count < sizes.rows and self.drop_last and index + 1 == len(position.batches)):
            raise NielsCacheError(f"step={step}: this run ends before it, at sample {later}")
        return sizes.samples_of_rank(rank, first, count)

    def stretches(self, position: Position) -> Iterator[tuple[BatchSizes, BatchSizes | None]]:
        """Yield the parts of the run with batches of one size: each from its first step to that of the next, or None without an end.

        The last batch of a part may be smaller, or dropped. The run ends after the pass of `position`, or goes on with other passes.
        """
        yield from pairwise(position.batches)
        begin = position.sizes
        if self.end_of_pass is None:
            yield begin, None
            return
        for _ in range(_PASSES_AHEAD):
            following = self.next_pass(position)
            end = begin._replace(step=following.step, samples=following.samples)
            yield begin, end
            if self.once or following == position:
                return
            begin, position = end, following

    def samples_before(self, position: Position, step: int) -> int:
        """Return how many samples of the run come before a step. What a pass has dropped before it counts, too.

        Raises:
            NielsCacheError: If the run ends before.
        """
        for begin, end in self.stretches(position):
            if end is None or step < end.step:
                return begin.samples + (step - begin.step) * begin.rows
            if step == end.step:
                return end.samples
        raise NielsCacheError(f"until={step}: this run ends before that step")

    def rows_of(self, position: Position, samples: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the step, rank and row of each sample of the run, all (n,): `find` backwards.

        They are -1 for a sample that is dropped at the end of a pass, after the end of the run, or after many more passes.
        """
        found = np.full((3, len(samples)), -1, dtype=np.int64)
        last = samples.max(initial=-1)
        for begin, end in self.stretches(position):
            if begin.samples > last:
                break
            own = np.flatnonzero((samples >= begin.samples) & (samples < (last + 1 if end is None else end.samples)))
            steps = (samples[own] - begin.samples) // begin.rows
            firsts, counts = begin.samples + steps * begin.rows, np.full_like(own, begin.rows)
            if end is not None:
                read = steps < end.step - begin.step
                own, steps, firsts = own[read], steps[read], firsts[read]
                counts = np.minimum(begin.rows, end.samples - firsts)
            found[:, own] = begin.step + steps, *begin.find(samples[own], firsts, counts)
        return found[0], found[1], found[2]


def position_to_state(position: Position) -> dict[str, Any]:
    """Return the position as JSON-able values."""
    return {**vars(position), "batches": [list(sizes if sizes.machines > 1 else sizes[:4]) for sizes in position.batches]}


def position_from_state(state: dict[str, Any]) -> Position:
    """Return the position that `position_to_state` wrote.

    Raises:
        ValueError: For a position that no run can reach.
    """
    batches = tuple(BatchSizes(*map(_number, sizes)) for sizes in state["batches"])
    samples, step, pass_start = (_number(state[name]) for name in ("samples", "step", "pass_start"))
    if not batches or batches[0][:2] != (0, 0) or pass_start > samples:
        raise ValueError("it does not begin at sample 0, or its pass begins after the position")
    ends = [(later.step, later.samples) for later in batches[1:]] + [(step, samples)]
    for sizes, (next_step, next_samples) in zip(batches, ends, strict=True):
        rows = sizes.rows
        if not sizes.machines or sizes.world_size % sizes.machines:
            raise ValueError(f"from step {sizes.step} on, {sizes.world_size} ranks ran on {sizes.machines} machines")
        # The last batch of a pass may be smaller, or dropped.
        if (
            not 0 < rows < _MAX_ROWS
            or next_step < sizes.step
            or abs(next_samples - sizes.samples - (next_step - sizes.step) * rows) >= rows
        ):
            raise ValueError(f"from step {sizes.step} to {next_step} its count does not match batches of {rows} rows")
    return Position(samples=samples, step=step, pass_start=pass_start, batches=batches)


def _number(value: Any) -> int:
    return check_whole("position", value, most=_MAX_SAMPLES - 1)
