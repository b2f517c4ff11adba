"""What a long build says of itself: to Dagster every ten seconds, to an in-process listener always.

A log line and an observation are rows in Dagster's database (milliseconds, kilobytes), so they are throttled by time.
"""

import time
from collections.abc import Callable, Mapping

import dagster as dg

from niels_cache_assets.build_cache import Progress
from niels_cache_assets.corpus.prepare import CorpusProgress
from niels_cache_assets.defaults import PROGRESS_SECONDS
from niels_cache_assets.progress import Estimate, Pace

_WARNING = "WARNING: "  # how the plain code marks a log line that deserves attention


class ProgressSink:
    """Resource: who else is told while a build runs in this process. This one tells nobody."""

    def progressed(self, name: str, progress: Progress) -> None:
        """After every chunk of a build, many times a second."""

    def prepared(self, name: str, progress: CorpusProgress) -> None:
        """After every chunk of a corpus."""

    def logged(self, name: str, message: str) -> None:
        """A line of the log, a warning's included."""


class BuildReporter:
    """Hands the callbacks of one build to Dagster and to the sink.

    `observed` is the asset that long builds are observed on, if any; `partition` is of that, where it is not the build's name.
    """

    def __init__(
        self,
        context: dg.AssetExecutionContext,
        sink: ProgressSink,
        *,
        name: str,
        observed: dg.AssetKey | None = None,
        partition: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._sink = sink
        self._name = name
        self._observed = observed
        self._partition = partition or name
        self._clock = clock
        self._pace = Pace()
        self._last_report: float | None = None  # or when the first chunk came

    def log(self, message: str) -> None:
        if message.startswith(_WARNING):
            self._context.log.warning(message.removeprefix(_WARNING))
        else:
            self._context.log.info(message)
        self._sink.logged(self._name, message)

    def warn(self, message: str) -> None:
        self.log(_WARNING + message)

    def progress(self, progress: Progress) -> None:
        self._sink.progressed(self._name, progress)
        now = self._clock()
        estimate = self._pace.estimate(progress, now)
        if self._is_time(now):
            self._report(progress, estimate)

    def prepared(self, progress: CorpusProgress) -> None:
        self._sink.prepared(self._name, progress)
        if self._is_time(self._clock()):
            self._context.log.info(f"{self._name}: {progress.documents:,} documents, {progress.kept:,} kept")
            self._observe({"documents": progress.documents, "kept": progress.kept, "characters": progress.characters})

    def indexing(self, array: str, done: int, total: int) -> None:
        if self._is_time(self._clock()):
            self._context.log.info(f"{self._name}: {array}, {done:,} of {total:,}")
            self._observe({"entries": done, "of": total})

    def _is_time(self, now: float) -> bool:
        """Ten seconds after the first call, and after the last one that was told so."""
        if self._last_report is not None and now - self._last_report < PROGRESS_SECONDS:
            return False
        first, self._last_report = self._last_report is None, now
        return not first

    def _report(self, progress: Progress, estimate: Estimate) -> None:
        rate = estimate.tokens_per_second or 0.0
        metadata: dict[str, int | float] = {"tokens": progress.tokens, "documents": progress.documents, "tokens_per_second": round(rate)}
        line = f"{self._name}: {progress.tokens:,} tokens, {rate:,.0f} tokens/s"
        if progress.share:
            metadata["share"] = round(progress.share, 4)
            line += f", {progress.share:.0%}"
        if estimate.seconds_left is not None:
            metadata["eta_seconds"] = round(estimate.seconds_left)
            line += f", {estimate.seconds_left:,.0f} s left"
        self._context.log.info(line)
        self._observe(metadata)

    def _observe(self, metadata: Mapping[str, int | float]) -> None:
        if self._observed is not None:
            self._context.log_event(dg.AssetObservation(asset_key=self._observed, partition=self._partition, metadata=metadata))
