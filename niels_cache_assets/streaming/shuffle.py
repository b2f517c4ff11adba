"""A buffered shuffle: it yields the documents of a stream in a seeded order, with `buffer_size` of them in memory.

Each new document replaces a uniformly drawn one, which is yielded. At the end, the buffer is yielded in a random order. The random numbers
are torch's, drawn in blocks, because one call per document would cost more than the shuffle.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
_DRAWS_PER_BLOCK = 8192


def shuffled(items: Iterable[Item], *, buffer_size: int, seed: int) -> Iterator[Item]:
    """Yield every item of `items` once, in an order that depends only on `seed`, `buffer_size` and the input order."""
    import torch  # takes 1.5 s, so import it only in a process that shuffles

    generator = torch.Generator().manual_seed(seed)
    stream = iter(items)
    buffer: list[Item] = []
    for item in stream:
        buffer.append(item)
        if len(buffer) == buffer_size:
            break
    draws: list[int] = []
    for item in stream:
        if not draws:
            draws = torch.randint(buffer_size, (_DRAWS_PER_BLOCK,), generator=generator).tolist()
        slot = draws.pop()
        leaving, buffer[slot] = buffer[slot], item
        yield leaving
    for slot in torch.randperm(len(buffer), generator=generator).tolist():
        yield buffer[slot]
