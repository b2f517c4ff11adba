"""The cursor of a sensor whose tick has no time for everything: the next tick begins where this one ended."""

import time
from collections.abc import Iterator, Sequence
from typing import Any


def in_turn(names: Sequence[str], cursor: dict[str, Any], *, until: float) -> Iterator[str]:
    """Yield each name once, but no further name after a time. The first name is yielded in any case.

    Args:
        names: The names.
        cursor: The values of the cursor. Its `next` is the first name. At the end, it is the first name of the next tick.
        until: The time by `time.monotonic`.
    """
    start = names.index(cursor["next"]) if cursor.get("next") in names else 0
    for count, name in enumerate([*names[start:], *names[:start]]):
        if count and time.monotonic() >= until:
            cursor["next"] = name
            return
        yield name
    cursor["next"] = names[start] if names else None
