"""Which global samples each step of a run takes, for every rank, whatever the batch size was when it ran.

Step s of global batch size G = B * world_size takes G consecutive samples, and rank r the r-th B of them: the same global set for
every (rank, world_size) of equal G. The position is counted in samples, so it stays true when B or world_size change. A pass
(`epochs` of the sources) may end within a step: its last batch is then smaller, or dropped.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from niels_cache_runtime.cache.checks import check_whole
from niels_cache_runtime.errors import NielsCacheError

_MOST_SAMPLES = 2**60
_MOST_ROWS = 2**31


class BatchSizes(NamedTuple):
    """From this step on, which begins at this sample: B rows on each of world_size ranks."""

    step: int
    samples: int
    B: int
    world_size: int


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a run has come. samples, step: taken so far. pass_start: the sample at which this pass began.

    batches: every change of batch size, and every pass that ended within a step: what is needed to find any step again.
    """

    samples: int
    step: int
    pass_start: int
    batches: tuple[BatchSizes, ...]

    @classmethod
    def start(cls, *, B: int, world_size: int) -> "Position":
        return cls(samples=0, step=0, pass_start=0, batches=(BatchSizes(0, 0, B, world_size),))

    def resized(self, *, B: int, world_size: int) -> "Position":
        """The same position, going on with another batch size."""
        last = self.batches[-1]
        if (last.B, last.world_size) == (B, world_size):
            return self
        earlier = self.batches[:-1] if last.step == self.step else self.batches
        return replace(self, batches=(*earlier, BatchSizes(self.step, self.samples, B, world_size)))


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The steps of one rank. end_of_pass(pass_start) -> the sample at which that pass ends; None for a run without end."""

    B: int
    rank: int
    world_size: int
    drop_last: bool
    end_of_pass: Callable[[int], int] | None

    def end(self, position: Position) -> int | None:
        """The sample at which the pass of this position ends."""
        return None if self.end_of_pass is None else self.end_of_pass(position.pass_start)

    def full(self, position: Position) -> int | None:
        """How many full batches the pass has left."""
        end = self.end(position)
        return None if end is None else max(0, end - position.samples) // (self.B * self.world_size)

    def last(self, position: Position) -> tuple[int, int] | None:
        """First and last + 1 sample of the batch after the full ones: this rank's even share of what is left. None if that is none."""
        end, full = self.end(position), self.full(position)
        if end is None or full is None or self.drop_last:
            return None
        first = position.samples + full * self.B * self.world_size
        rows = end - first
        mine = _even_share(first, rows, rank=self.rank, world_size=self.world_size)
        return mine if mine[0] < mine[1] else None

    def count(self, position: Position) -> int | None:
        """How many batches this rank has left in the pass."""
        full = self.full(position)
        return None if full is None else full + (self.last(position) is not None)

    def after_last(self, position: Position) -> Position:
        """The position at the end of the pass, the same on every rank: its step counts a last batch even where this rank has none."""
        end, full = self.end(position), self.full(position)
        if end is None or full is None:
            return position
        rest = end - position.samples - full * self.B * self.world_size
        return replace(position, samples=end, step=position.step + full + (rest > 0 and not self.drop_last))

    def next_pass(self, position: Position) -> Position:
        """The start of the pass after that of `position`."""
        moved = self.after_last(position)
        moved = replace(moved, pass_start=moved.samples)
        last = moved.batches[-1]
        if moved.samples - last.samples == (moved.step - last.step) * last.B * last.world_size:
            return moved
        earlier = moved.batches[:-1] if last.step == moved.step else moved.batches
        return replace(moved, batches=(*earlier, BatchSizes(moved.step, moved.samples, self.B, self.world_size)))

    def advance(self, position: Position, steps: int) -> Position:
        """The position `steps` batches of this rank further on, through as many passes as that takes."""
        while True:
            left, full = self.count(position), self.full(position)
            if left is None or full is None or steps <= full:
                return replace(position, samples=position.samples + steps * self.B * self.world_size, step=position.step + steps)
            if steps <= left:
                return self.after_last(position)
            position = self.next_pass(position)
            steps -= left
            if not self.count(position):
                raise NielsCacheError(f"epochs: a pass has no batch of B={self.B} on {self.world_size} ranks; use a smaller batch")

    def find(self, position: Position, step: int, *, rank: int) -> tuple[int, int]:
        """First and last + 1 of the samples that `rank` takes at `step`, earlier or later than `position`, in its batch size then.

        Raises NielsCacheError for a step before 0, after the end of this pass, or a rank that did not exist then.
        """
        if step < 0:
            raise NielsCacheError(f"step={step}: steps are counted from 0")
        index = max(index for index, sizes in enumerate(position.batches) if sizes.step <= step)
        start, samples, B, world_size = position.batches[index]
        if not 0 <= rank < world_size:
            raise NielsCacheError(f"rank={rank}: step {step} ran on {world_size} ranks, counted from 0")
        later = position.batches[index + 1].samples if index + 1 < len(position.batches) else self.end(position)
        first = samples + (step - start) * B * world_size
        rows = B * world_size if later is None else min(B * world_size, later - first)
        if rows <= 0 or (rows < B * world_size and self.drop_last and index + 1 == len(position.batches)):
            raise NielsCacheError(f"step={step}: this run ends before it, at sample {later}")
        if rows == B * world_size:
            return first + rank * B, first + (rank + 1) * B
        return _even_share(first, rows, rank=rank, world_size=world_size)


def _even_share(first: int, rows: int, *, rank: int, world_size: int) -> tuple[int, int]:
    """First and last + 1 of a rank's share of `rows` samples from `first` on. Rank 0, which usually saves the state, has one if any has."""
    return first + -(-rank * rows // world_size), first + -(-(rank + 1) * rows // world_size)


def position_to_state(position: Position) -> dict[str, Any]:
    """JSON-able."""
    return {
        "samples": position.samples,
        "step": position.step,
        "pass_start": position.pass_start,
        "batches": [list(sizes) for sizes in position.batches],
    }


def position_from_state(state: dict[str, Any]) -> Position:
    """The position that `position_to_state` wrote. Raises ValueError where it is none that a run can come to."""
    batches = tuple(BatchSizes(*map(_number, sizes)) for sizes in state["batches"])
    samples, step, pass_start = (_number(state[name]) for name in ("samples", "step", "pass_start"))
    if not batches or batches[0][:2] != (0, 0) or pass_start > samples:
        raise ValueError("it does not begin at sample 0, or its pass begins after it")
    ends = [(later.step, later.samples) for later in batches[1:]] + [(step, samples)]
    for sizes, (next_step, next_samples) in zip(batches, ends, strict=True):
        rows = sizes.B * sizes.world_size
        # The last batch of a pass may be smaller, or left out.
        if (
            not 0 < rows < _MOST_ROWS
            or next_step < sizes.step
            or abs(next_samples - sizes.samples - (next_step - sizes.step) * rows) >= rows
        ):
            raise ValueError(f"from step {sizes.step} to {next_step} it does not count as batches of {rows} rows do")
    return Position(samples=samples, step=step, pass_start=pass_start, batches=batches)


def _number(value: Any) -> int:
    return check_whole("position", value, most=_MOST_SAMPLES - 1)
