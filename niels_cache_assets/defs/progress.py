"""Reports of a running build: Dagster gets one every ten seconds and at the end, and a listener in this process gets every report.

Each log line and each observation is a row in Dagster's database. A row costs milliseconds and kilobytes, so there is a minimum time
between two reports to Dagster.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

import dagster as dg

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.base.wording import DEBUG
from niels_cache_assets.defs.keys import DefinitionNames
from niels_cache_assets.defs.launch_events import LaunchListener
from niels_cache_assets.facts.progress import BuildProgress, SpeedEstimate, SpeedMeter, Throttle, describe
from niels_cache_runtime.errors import NielsCacheError

_WARNING = "WARNING: "  # the code outside of defs/ marks important log lines with this prefix


class ProgressSink:
    """A resource by which steps and a program that launches them in its process know of each other.

    Attributes:
        builds_parts_here: Whether the step of a part builds it in its own process, and not in a child.
        passes_over: Whether the step of a part that another process builds ends without it, neither waiting nor failing.
        built: Keys of all artifacts that the program has built, or found.
        ends: Outcomes and errors of parts that the program has built ahead of their steps, by key.
        outcome: Outcome of the last build that did not fail.
        listener: Receives the progress after every chunk of a build, many times a second, and the lines of the log, including warnings.
    """

    builds_parts_here = False
    passes_over = False

    def __init__(self) -> None:
        self.built: set[str] = set()
        self.ends: dict[str, Outcome | NielsCacheError] = {}
        self.outcome: Outcome | None = None
        self.listener = LaunchListener()

    def outcome_of(self, key: str) -> Outcome | None:
        """Return the outcome of a part that was built ahead of its step, or None. Raise the error of that build, if any."""
        end = self.ends.pop(key, None)
        if isinstance(end, NielsCacheError):
            raise end
        return end


def sink_of(context: dg.AssetExecutionContext, names: DefinitionNames) -> ProgressSink:
    """Return the progress sink, in a step, from its resource."""
    return getattr(context.resources, names.progress_sink)


@contextmanager
def readable_failures(passes_on: tuple[type[NielsCacheError], ...] = ()) -> Iterator[None]:
    """Turn NielsCacheError into a failure that shows only the message of the error, and is never retried.

    All other errors keep their traceback. Errors of the types `passes_on` are raised unchanged.
    """
    try:
        yield
    except passes_on:
        raise
    except NielsCacheError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from None


def result_line(metadata: Mapping[str, Any]) -> str:
    """Return the result of a build in one line, from the metadata of its materialization. The line of a cache hit begins with `hit`."""
    entries = [str(metadata["state"])]
    entries += [str(metadata[key]) for key in ("contents", "note") if key in metadata]
    entries += [f"dropped {metadata['dropped']}"] if metadata.get("dropped") else []
    return "; ".join(entries)


class BuildReporter:
    """A reporter that passes the callbacks of one build to Dagster and to the sink.

    Args:
        context: Context of the step.
        sink: Receives the progress in this process.
        name: Name of the build.
        observed: Asset that gets the observations of a long build, in the partition of this run if it has one. None: no asset gets them.
    """

    def __init__(self, context: dg.AssetExecutionContext, sink: ProgressSink, *, name: str, observed: dg.AssetKey | None) -> None:
        self._context = context
        self._sink = sink
        self._name = name
        self._observed = observed
        self._pace = SpeedMeter()
        self._throttle: Throttle | None = None  # set when the first chunk arrives

    def log(self, message: str) -> None:
        """Write a line to the log of the run, and pass it to the sink unless it is only for the log."""
        if message.startswith(DEBUG):  # a line only for the run's log; dagster.yaml hides lines below INFO there
            self._context.log.info(message.removeprefix(DEBUG))
            return
        if message.startswith(_WARNING):
            self._context.log.warning(message.removeprefix(_WARNING))
        else:
            self._context.log.info(message)
        self._sink.listener.logged(self._name, message)

    def end(self, outcome: Outcome) -> None:
        """Pass the outcome of a build to the sink, and log its warning and what it left out."""
        self._sink.outcome = outcome
        if outcome.warning:
            self.log(_WARNING + outcome.warning)
        for message in outcome.drops.warnings:
            self._context.log.warning(f"{self._name}: {message}")
        if outcome.drops.requested:
            self._context.log.info(f"{self._name}: {outcome.drops.requested}")

    def progress(self, progress: BuildProgress) -> None:
        """Pass the progress of a build to the sink, and report it to Dagster if a report is due."""
        self._sink.listener.progressed(self._name, progress)
        now = monotonic()
        estimate = self._pace.estimate(progress, now)
        self._throttle = self._throttle or Throttle(now)
        if self._throttle.is_due(now):
            self._context.log.info(f"{self._name}: {describe(progress, estimate, with_share=True)}")
            if self._observed is not None:
                partition, metadata = self._context.partition_key, _figures(progress, estimate)
                self._context.log_event(dg.AssetObservation(asset_key=self._observed, partition=partition, metadata=metadata))


def _figures(progress: BuildProgress, estimate: SpeedEstimate) -> dict[str, int | float]:
    """Return the values of `describe` as numbers that the UI plots."""
    found: dict[str, int | float] = {**progress.counts, f"{[*progress.counts][-1]}_per_second": round(estimate.per_second or 0.0)}
    if progress.share is not None:
        found["share"] = round(progress.share, 4)
    if estimate.seconds_left is not None:
        found["eta_seconds"] = round(estimate.seconds_left)
    return found
