"""Work that is handed out ahead of its results, bounded in number and, where items are long, in characters.

To encode a text takes some forty times its size, so of items with long texts fewer are in flight. Who does the work is the caller's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from typing import TypeVar

LONG_CHARACTERS = 2_000_000  # twice a usual chunk: one text in it is long by itself
MOST_LONG_CHARACTERS = 16_000_000

Item = TypeVar("Item")
Result = TypeVar("Result")


def no_size(item: object) -> int:
    """The size of items that are all short."""
    return 0


def results_in_order(
    submit: Callable[[Item], Future[Result]], items: Iterable[Item], *, most: int, size_of: Callable[[Item], int]
) -> Generator[Result]:
    """The results of all items, in their order, with up to `most` of them in flight.

    `size_of`: characters of an item. Of items that are long, no more are in flight than have 16 million characters together, or one; as
    long as one has more than that, not even the next item is read.
    """
    waiting: deque[tuple[Future[Result], int]] = deque()
    held = 0  # characters of the long items in flight

    def next_result() -> Result:
        nonlocal held
        future, size = waiting.popleft()
        held -= size
        return future.result()

    for item in items:
        size = size_of(item)
        size = size if size > LONG_CHARACTERS else 0
        while size and held and held + size > MOST_LONG_CHARACTERS:
            yield next_result()
        waiting.append((submit(item), size))
        held += size
        del item  # not held here while it is worked on, and the next is read
        while len(waiting) > most or held > MOST_LONG_CHARACTERS:
            yield next_result()
    while waiting:
        yield next_result()
