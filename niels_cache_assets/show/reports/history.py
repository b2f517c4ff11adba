"""What Dagster recorded of caches, as plain data and in the words of reports: defs/home/history.py reads it, and a report that is made
without it says so.

Times are seconds since 1970, as Dagster's clock had them; none of them is in a file of a cache.
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
    """The newest result of a check of what lies here now. `said`: what it found, empty where nothing."""

    name: str
    outcome: Outcome
    said: str
    when: float


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """What is known of a data set's upstream. first_seen: when the revision of the cache was met first, by a look or by a build.

    newest, looked_at: the revision that upstream had when it was last observed, and when that was; None where it never was.
    """

    first_seen: float | None = None
    newest: str | None = None
    looked_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Of one folder. built: when what lies there was first recorded, None where it never was."""

    built: float | None = None
    upstream: Upstream = Upstream()
    checks: tuple[Check, ...] = ()

    @property
    def passed(self) -> str:
        """`4 of 4`: the checks that passed."""
        passed = sum(check.outcome == "passed" for check in self.checks)
        return f"{passed} of {len(self.checks)}" if self.checks else UNKNOWN

    def revision_age(self, revision: str | None, now: float) -> str:
        """How long ago the revision of what was built was first met."""
        return age(self.upstream.first_seen if revision is not None else None, now)

    def upstream_words(self, revision: str | None, now: float) -> str:
        """What is known of upstream, in a sentence or two. Empty where what was built has no revision."""
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
    """`source`: in words, where it comes from or why there is none. `folders`: by absolute path. `checks`: those of whole families."""

    source: str
    folders: Mapping[Path, Recorded] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()

    def of(self, folder: Path) -> Recorded:
        return self.folders.get(folder.absolute(), Recorded())


def date(seconds: float | None) -> str:
    """`2026-11-21 22:05 UTC`."""
    return UNKNOWN if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def age(seconds: float | None, now: float) -> str:
    """`12 days`, in the largest unit of which there are two or more; `moments` below two minutes."""
    if seconds is None:
        return UNKNOWN
    return next((f"{(now - seconds) // length:,.0f} {unit}s" for unit, length in _UNITS if now - seconds >= 2 * length), "moments")
