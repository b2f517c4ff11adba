"""The records of Dagster about caches, as plain data and as text for reports. defs/home/history.py reads the records.

A report without records gives the reason. Times are seconds since 1970 from Dagster's clock. No file of a cache contains these times.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from niels_cache_assets.base.wording import UNKNOWN

CheckOutcome = Literal["passed", "warning", "failed"]


@dataclass(frozen=True, kw_only=True)
class CheckRecord:
    """The newest result of a check of the current cache.

    Attributes:
        name: Name of the check.
        outcome: Its outcome.
        said: What the check found, or an empty text.
        when: When it ran, in seconds since 1970.
    """

    name: str
    outcome: CheckOutcome
    said: str
    when: float


@dataclass(frozen=True, kw_only=True)
class FolderHistory:
    """The records of one folder.

    Attributes:
        newest_revision: Revision of its upstream at the last observation, or None.
        checks: Results of its checks.
        seconds: How long the build of the current content took, or None if no record says so.
    """

    newest_revision: str | None = None
    checks: tuple[CheckRecord, ...] = ()
    seconds: float | None = None

    @property
    def passed(self) -> str:
        """Number of passed checks and of all checks, such as `4 of 4`."""
        passed = sum(check.outcome == "passed" for check in self.checks)
        return f"{passed} of {len(self.checks)}" if self.checks else UNKNOWN


@dataclass(frozen=True, kw_only=True)
class History:
    """All records for a report.

    Attributes:
        source: Where the records come from, or why there are none.
        folders: Records of each folder, by absolute path.
        checks: Checks of whole families.
    """

    source: str
    folders: Mapping[Path, FolderHistory] = field(default_factory=dict)
    checks: tuple[CheckRecord, ...] = ()

    def of_folder(self, folder: Path) -> FolderHistory:
        return self.folders.get(folder.absolute(), FolderHistory())


def date(seconds: float) -> str:
    """Return a time such as `2026-11-21 22:05 UTC`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
