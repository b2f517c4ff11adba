"""How far a build is, how fast it is and how long it will take, in figures and in words, for the command line and for Dagster alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from niels_cache_assets.config.defaults import PROGRESS_SECONDS
from niels_cache_assets.show.wording import abbreviated, duration


class HowFar(Protocol):
    """What every build says of itself while it runs."""

    @property
    def counts(self) -> Mapping[str, int]:
        """By what is counted; the speed is of what comes last."""

    @property
    def share(self) -> float | None:
        """0 to 1; None where it is not known how much there is."""


class Estimate(NamedTuple):
    """Both None until there is something to tell from; `seconds_left` also where the share is not known."""

    per_second: float | None
    seconds_left: float | None


class Pace:
    """Speed of one build, measured from its first chunk: resolving the upstream and counting documents are not encoding."""

    def __init__(self) -> None:
        self._first: tuple[float, int, float] | None = None  # time, what was done and share of the first chunk

    def estimate(self, progress: HowFar, now: float) -> Estimate:
        """`now` in seconds of any clock that only goes forward. What the first call brings was done before the watch started."""
        (_, done), share = [*progress.counts.items()][-1], progress.share or 0.0
        first_time, first_done, first_share = self._first = self._first or (now, done, share)
        elapsed = now - first_time
        if elapsed <= 0:
            return Estimate(None, None)
        return Estimate(
            per_second=(done - first_done) / elapsed if done > first_done else None,
            seconds_left=elapsed * (1 - share) / (share - first_share) if share > first_share else None,
        )


class Throttle:
    """Lets something through every PROGRESS_SECONDS, the first time that long after `began`."""

    def __init__(self, began: float) -> None:
        self._last = began

    def is_due(self, now: float) -> bool:
        if now - self._last < PROGRESS_SECONDS:
            return False
        self._last = now
        return True


def describe(progress: HowFar, estimate: Estimate, *, with_share: bool) -> str:
    """`20%, 1,234 documents, 1,100 kept, 5.6M characters, 1.2M characters/s, 0:42 left`, without what is not known."""
    *others, (unit, done) = progress.counts.items()
    parts = [f"{progress.share:.0%}"] if with_share and progress.share is not None else []
    parts += [*(f"{count:,} {name}" for name, count in others), f"{abbreviated(done)} {unit}"]
    if estimate.per_second is not None:
        parts.append(f"{abbreviated(estimate.per_second)} {unit}/s")
    if estimate.seconds_left is not None:
        parts.append(f"{duration(estimate.seconds_left)} left")
    return ", ".join(parts)
