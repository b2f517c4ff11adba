"""The records of Dagster about caches, as plain data and as text for reports. defs/home/history.py reads the records. A report without
records gives the reason.

Times are seconds since 1970 from Dagster's clock. No file of a cache contains these times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from niels_cache_assets.show.wording import UNKNOWN

Outcome = Literal["passed", "warning", "failed"]

_UNITS = (("year", 365.25 * 86_400), ("month", 30.44 * 86_400), ("day", 86_400.0), ("hour", 3_600.0), ("minute", 60.0))


@dataclass(frozen=True, kw_only=True)
class Check:
    """The newest result of a check of the current cache. `said`: the finding of the check, or an empty text."""

    name: str
    outcome: Outcome
    said: str
    when: float


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """The records about the upstream of a data set. first_seen: the time at which an observation or a build first found the revision of the
    cache.

    looked_at: the time of the last observation of upstream. newest: the revision at that time. Both are None if upstream was never
    observed.
    """

    first_seen: float | None = None
    newest: str | None = None
    looked_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The records of one folder. built: when the current cache in this folder was first recorded, or None."""

    built: float | None = None
    upstream: Upstream = Upstream()
    checks: tuple[Check, ...] = ()

    @property
    def passed(self) -> str:
        """The number of passed checks and of all checks, such as `4 of 4`."""
        passed = sum(check.outcome == "passed" for check in self.checks)
        return f"{passed} of {len(self.checks)}" if self.checks else UNKNOWN

    def revision_age(self, revision: str | None, now: float) -> str:
        """Return the time since the revision of the cache was first found."""
        return age(self.upstream.first_seen if revision is not None else None, now)

    def upstream_words(self, revision: str | None, now: float) -> str:
        """Return one or two sentences about upstream, or an empty text if the cache has no revision."""
        if revision is None:
            return ""
        found, said = self.upstream, []
        if found.first_seen is not None:
            said.append(f"first seen {date(found.first_seen)}, {age(found.first_seen, now)} ago")
        if found.looked_at is not None:
            where = "unchanged" if found.newest == revision else f"now at {found.newest}"
            said.append(f"upstream last looked at {date(found.looked_at)}, {age(found.looked_at, now)} ago: {where}")
        return "; ".join(said) or "its age is not recorded"


@dataclass(frozen=True, kw_only=True)
class History:
    """All records for a report. `source`: a text with the place of the records, or with the reason why there are no records. `folders`: the
    records of
    each folder, by absolute path. `checks`: the checks of whole families.
    """

    source: str
    folders: Mapping[Path, Recorded] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()

    def of(self, folder: Path) -> Recorded:
        return self.folders.get(folder.absolute(), Recorded())


def date(seconds: float | None) -> str:
    """Return a time such as `2026-11-21 22:05 UTC`."""
    return UNKNOWN if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def age(seconds: float | None, now: float) -> str:
    """Return an age such as `12 days`. The unit is the largest unit with a value of at least 2. Below two minutes, return `moments`."""
    if seconds is None:
        return UNKNOWN
    return next((f"{(now - seconds) // length:,.0f} {unit}s" for unit, length in _UNITS if now - seconds >= 2 * length), "moments")
