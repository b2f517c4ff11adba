"""How figures read wherever they are shown: on the command line, in Dagster's UI, in reports and in messages."""

from __future__ import annotations

from collections.abc import Sequence

UNKNOWN = "-"
SHORT_SHA256 = 12  # digits that tell builds apart
_MOST_NAMES = 10  # in one line; a table has all


def counted(number: int, unit: str) -> str:
    """`1 token`, `12,345 tokens`."""
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"


def listed(names: Sequence[str]) -> str:
    """`a, b, c`; of many the first, and how many more there are."""
    shown = names if len(names) <= _MOST_NAMES else names[: _MOST_NAMES - 1]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def file_size(number: int) -> str:
    """`999 bytes`, `12.3 MB`."""
    from rich.filesize import decimal  # help, which is quick, does without rich

    return decimal(number)


def share_of(part: float, whole: float = 1.0, *, digits: int = 1) -> str:
    """`12.3%`; what is there is never shown as 0."""
    if not whole:
        return UNKNOWN
    least = 10**-digits  # percent that so many digits can show
    return f"<{least:g}%" if 0 < part / whole < least / 200 else f"{part / whole:.{digits}%}"


def abbreviated(number: float) -> str:
    """123, 12.3k, 4.5M, 200.0M, 1.2G."""
    for unit in ("", "k", "M"):
        if number < 1000:
            return f"{number:.1f}{unit}" if unit else f"{number:.0f}"
        number /= 1000
    return f"{number:.1f}G"


def duration(seconds: float) -> str:
    """0:07, 12:34, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
