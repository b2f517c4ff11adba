"""How reports say figures and times: the same words in Markdown and HTML."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from niels_cache_assets.show.reports.cache import Item
from niels_cache_assets.show.reports.history import Recorded
from niels_cache_assets.show.wording import UNKNOWN, share_of

_UNITS = (("year", 365.25 * 86_400), ("month", 30.44 * 86_400), ("day", 86_400.0), ("hour", 3_600.0), ("minute", 60.0))


def date(seconds: float | None) -> str:
    """`2026-11-21 22:05 UTC`."""
    return UNKNOWN if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def age(seconds: float | None, now: float) -> str:
    """`12 days`, in the largest unit of which there are two or more; `moments` below two minutes."""
    if seconds is None:
        return UNKNOWN
    return next((f"{(now - seconds) // length:,.0f} {unit}s" for unit, length in _UNITS if now - seconds >= 2 * length), "moments")


def share(part: float) -> str:
    """Of a mixture, where a hundredth of a percent may be many tokens."""
    return share_of(part, digits=2)


def uses(item: Item) -> str:
    """Of an index: `letters of blend mix`, `blend mix`. Empty for what is none."""
    said = ", ".join(f"blend {use.blend}" if use.label == "blend" else f"{use.label} of blend {use.blend}" for use in item.uses)
    return said or ("of no configured blend" if item.state.kind == "index" else "")


def checks(recorded: Recorded) -> str:
    """`4 of 4`: those that passed."""
    passed = sum(check.outcome == "passed" for check in recorded.checks)
    return f"{passed} of {len(recorded.checks)}" if recorded.checks else UNKNOWN


def revision_age(item: Item, recorded: Recorded, now: float) -> str:
    """How long ago the revision of what was built was first met."""
    return age(recorded.upstream.first_seen if item.revision is not None else None, now)


def upstream(item: Item, recorded: Recorded, now: float) -> str:
    """What is known of upstream, in a sentence or two. Empty where the item has no revision."""
    if item.revision is None:
        return ""
    found, said = recorded.upstream, []
    if found.first_seen is not None:
        said.append(f"first seen {date(found.first_seen)}, {age(found.first_seen, now)} ago")
    if found.looked_at is not None:
        where = "unchanged" if found.newest == item.revision else f"now at {found.newest}"
        said.append(f"upstream last looked at {date(found.looked_at)}, {age(found.looked_at, now)} ago: {where}")
    return "; ".join(said) or "its age is not recorded"


def outcome_counts(outcomes: Mapping[str, int]) -> str:
    """`12 passed, 1 warning`."""
    words = [f"{outcomes[each]:,} {each}" for each in ("passed", "warning", "failed") if outcomes.get(each)]
    return ", ".join(words) or "none recorded"
