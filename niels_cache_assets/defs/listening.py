"""What a launch reports: its results, and the events of the builds on the way."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from niels_cache_assets.facts.progress import HowFar
from niels_cache_runtime.format.meta import Meta

LaunchFamily = Literal["tokenizer", "corpus", "parts", "pretrain", "sft", "index"]
LaunchState = Literal["built", "cache_hit", "disabled", "skipped", "failed"]


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """The result of building one data set, or of one step before that. `message`: why the build failed or was skipped, or a remark.
    `left_out`: what the settings asked to leave out, or None. `drop_warnings`: what was left out otherwise, a line for each reason.

    `meta`: the content of the current meta.json. For a report, it is the content of report.json. For an index, a plan, and a step of a
    search that another process has finished, it is None.
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
    """A receiver of events during a launch, which ignores them; a subclass may use them. Its methods are called in the main thread."""

    def started(self, name: str, family: LaunchFamily) -> None: ...

    def progressed(self, name: str, progress: HowFar) -> None: ...

    def logged(self, name: str, message: str) -> None: ...

    def finished(self, result: LaunchResult) -> None: ...
