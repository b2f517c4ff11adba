"""How fast a build is and how long it will take: arithmetic on what it reports, for the command line and for Dagster alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from niels_cache_assets.build_cache import Progress


class Estimate(NamedTuple):
    """Both None until there is something to tell from; `seconds_left` also where the share is not known."""

    tokens_per_second: float | None
    seconds_left: float | None


class Pace:
    """Speed of one build, measured from its first chunk: resolving the upstream and counting documents are not encoding."""

    def __init__(self) -> None:
        self._first: tuple[float, int, float] | None = None  # time, tokens and share of the first chunk

    def estimate(self, progress: Progress, now: float) -> Estimate:
        """`now` in seconds of any clock that only goes forward. What the first call brings was done before the watch started."""
        first_time, first_tokens, first_share = self._first = self._first or (now, progress.tokens, progress.share or 0.0)
        elapsed = now - first_time
        tokens, share = progress.tokens - first_tokens, (progress.share or 0.0) - first_share
        if elapsed <= 0:
            return Estimate(None, None)
        return Estimate(
            tokens_per_second=tokens / elapsed if tokens > 0 else None,
            seconds_left=elapsed * (1 - (progress.share or 0.0)) / share if share > 0 else None,
        )
