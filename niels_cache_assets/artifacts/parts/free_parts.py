"""The order in which one process builds the parts of a data set if other processes build parts of it too.

A part that another process builds is moved behind all others, and waited for only then. So several processes that begin with the same list
take different parts, and none of them waits before every part is started. A process that waits takes over from one that has died or is
frozen (parts/lease.py).
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from niels_cache_assets.artifacts.base import Artifact, Log
from niels_cache_assets.parts.lease import LeaseLostError, lease_owner
from niels_cache_runtime.format.commit import BusyError

P = TypeVar("P", bound=Artifact)


class FreePartsFirst(Iterator[tuple[P, bool]]):
    """The parts that are left, in the order in which to build them, each with whether to wait if another process builds it.

    Several threads may take parts.
    """

    def __init__(self, parts: Sequence[P]) -> None:
        self._left = deque((part, False) for part in parts)

    def __next__(self) -> tuple[P, bool]:
        while True:
            try:
                part, waits = self._left.popleft()
            except IndexError:
                raise StopIteration from None
            if waits or lease_owner(part.directory) is None:
                return part, waits
            self.defer(part)

    def defer(self, part: P) -> None:
        """Move a part that another process builds behind all others. It is then waited for."""
        self._left.append((part, True))


def build_free_parts_first(parts: Sequence[P], build: Callable[[P, bool], object], *, log: Log) -> None:
    """Build all parts, and return when each of them was built here or found.

    Args:
        parts: The parts.
        build: Called with a part, and whether to wait if another process builds it. Without waiting, it raises BusyError or LeaseLostError
            for such a part.
        log: Called with each message.
    """
    pending = FreePartsFirst(parts)
    for part, waits in pending:
        try:
            build(part, waits)
        except (BusyError, LeaseLostError) as error:
            if waits:
                raise
            if isinstance(error, LeaseLostError):
                log(str(error))
            pending.defer(part)
