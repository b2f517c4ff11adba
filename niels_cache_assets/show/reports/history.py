"""What Dagster recorded of caches, as plain data: defs/history.py reads it, and a report that is made without it says so.

Times are seconds since 1970, as Dagster's clock had them; none of them is in a file of a cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Outcome = Literal["passed", "warning", "failed"]


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


@dataclass(frozen=True, kw_only=True)
class History:
    """`source`: in words, where it comes from or why there is none. `folders`: by absolute path. `checks`: those of whole families."""

    source: str
    folders: Mapping[Path, Recorded] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()

    def of(self, folder: Path) -> Recorded:
        return self.folders.get(folder.absolute(), Recorded())
