"""Progress, speed and remaining time of a build, as numbers and as text, for the command line and for Dagster."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from niels_cache_assets.base.defaults import PROGRESS_SECONDS
from niels_cache_assets.base.wording import abbreviate, format_duration


class BuildProgress(Protocol):
    """The progress that every build reports while it runs."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Counts by unit, at least one. The speed is computed from the last unit."""

    @property
    def share(self) -> float | None:
        """Finished share from 0 to 1, or None if the total is unknown."""


class SpeedEstimate(NamedTuple):
    """The speed and the remaining time, both None before the second report.

    Attributes:
        per_second: Speed in the last unit of the counts.
        seconds_left: Remaining time, also None if the share is unknown.
    """

    per_second: float | None
    seconds_left: float | None


class SpeedMeter:
    """The speed of one build, measured from the first chunk on, so that the time before encoding does not count."""

    def __init__(self) -> None:
        self._first: tuple[float, int, float] | None = None  # time, count and share of the first chunk

    def estimate(self, progress: BuildProgress, now: float) -> SpeedEstimate:
        """Return the estimate. The first call only starts the measurement.

        Args:
            progress: Progress of the build.
            now: Seconds of any monotonic clock.
        """
        (_, done), share = [*progress.counts.items()][-1], progress.share or 0.0
        first_time, first_done, first_share = self._first = self._first or (now, done, share)
        elapsed = now - first_time
        if elapsed <= 0:
            return SpeedEstimate(None, None)
        return SpeedEstimate(
            per_second=(done - first_done) / elapsed if done > first_done else None,
            seconds_left=elapsed * (1 - share) / (share - first_share) if share > first_share else None,
        )


class Throttle:
    """A limit of one event in `seconds`, the first of them so many seconds after `began`."""

    def __init__(self, began: float, seconds: float = PROGRESS_SECONDS) -> None:
        self._last, self._seconds = began, seconds

    def is_due(self, now: float) -> bool:
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


def describe(progress: BuildProgress, estimate: SpeedEstimate, *, with_share: bool) -> str:
    """Return `20%, 1,234 documents, 1,100 kept, 5.6M characters, 1.2M characters/s, 0:42 left`. Unknown parts are omitted."""
    *others, (unit, done) = progress.counts.items()
    parts = [f"{progress.share:.0%}"] if with_share and progress.share is not None else []
    parts += [*(f"{count:,} {name}" for name, count in others), f"{abbreviate(done)} {unit}"]
    if estimate.per_second is not None:
        parts.append(f"{abbreviate(estimate.per_second)} {unit}/s")
    if estimate.seconds_left is not None:
        parts.append(f"{format_duration(estimate.seconds_left)} left")
    return ", ".join(parts)
