"""What a launch reports: its results, and the events of the builds on the way."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from niels_cache_assets.facts.progress import BuildProgress
from niels_cache_runtime.format.meta import Meta

LaunchFamily = Literal["tokenizer", "corpus", "parts", "pretrain", "sft", "index", "suffixes"]
LaunchState = Literal["built", "cache_hit", "disabled", "skipped", "failed"]


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """The result of building one data set, or of one step before that.

    Attributes:
        name: Name of the data set, or key of the step.
        family: Its family, or the kind of the step.
        state: How the build ended.
        meta: Content of the current meta.json, or of report.json for a report. None for an index, a plan, and a step of a search that
            another process has finished.
        directory: Folder of the build, or None.
        seconds: Duration of the build.
        message: Why the build failed or was skipped, or a remark.
        left_out: What the settings requested to leave out, or None.
        drop_warnings: What was left out otherwise, a line for each reason.
    """

    name: str
    family: LaunchFamily
    state: LaunchState
    meta: Meta | None = None
    directory: Path | None = None
    seconds: float = 0.0
    message: str | None = None
    left_out: str | None = None
    drop_warnings: Sequence[str] = ()


class LaunchListener:
    """A receiver of events during a launch, which ignores them; a subclass may use them.

    Its methods are called in the main thread.
    """

    def started(self, name: str, family: LaunchFamily) -> None: ...

    def progressed(self, name: str, progress: BuildProgress) -> None: ...

    def logged(self, name: str, message: str) -> None: ...

    def finished(self, result: LaunchResult) -> None: ...
