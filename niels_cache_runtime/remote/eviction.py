"""The choice of files to remove from a local copy, so that a download fits below its limit.

    1. A file that a live process has mapped stays.
    2. Files that no live reader needs soon are removed first, the least recently used one first.
    3. For a file that a reader waits for, files that others need later may also be removed, the one that is needed last first.
    4. Such a file stays if a reader of the same run needs it before the run needs the new file. So a fast reader waits for a slow one, and
       each file is downloaded once. A file of another run stays if that run is reading it now.
       A read outside of the batches of a run, as in `trace`, does not wait for other readers of the run.
       If a slower reader of its run waits, a reader unmaps mapped files that it does not need now, within about a second.
       If it waits for a file itself, and is in the way for half a second, it unmaps everything else, too. It then takes no file before the
       download for the slower reader begins, or rule 5 applies.
    5. A reader that has waited for a minute may also remove files that rule 4 keeps, because a reader that has stopped must not block the
       others forever. As long as some reader of its run has not moved since then, the next wait is only a second.

A reader records what it needs next, up to its limit (`ledger.FileDemand`). The decisions use neither clocks nor files.
"""

from collections.abc import Collection, Iterator

from niels_cache_runtime.remote.ledger import FileDemand, LedgerEntry, LedgerState, Reader, failure_key

TAKEOVER_SECONDS = 60.0
_NEXT_TAKEOVER_SECONDS = 1.0
_SOONEST = -1


class TakeoverTimeout:
    """The time for which a reader waits for slower readers of its run (rule 5)."""

    def __init__(self) -> None:
        self._last_positions: dict[str, int] = {}  # of the other readers of the run, when waiting was over

    def is_over(self, state: LedgerState, reader: Reader, waited: float) -> bool:
        """Return whether a reader that has waited this many seconds may remove files that slower readers of its run need."""
        others = {
            name: each.position for name, each in state.readers.items() if each.run == reader.run != "" and each.position < reader.position
        }
        if waited > TAKEOVER_SECONDS:
            self._last_positions = others
        return waited > (_NEXT_TAKEOVER_SECONDS if self._last_positions.items() & others.items() else TAKEOVER_SECONDS)


def first_demands(reader: Reader) -> dict[str, FileDemand]:
    """Return, for each file that the reader needs, the first part of the run that needs it."""
    found: dict[str, FileDemand] = {}
    for demand in reader.wants:
        for path in demand.paths():
            found.setdefault(path, demand)
    return found


def choose_evictions(state: LedgerState, need: int, limit: int, *, path: str | None = None) -> list[str] | None:
    """Return the files to remove so that `need` more bytes fit below `limit`, or None if they cannot fit now.

    Args:
        state: The state of the ledger.
        need: The number of bytes to make room for.
        limit: The limit in bytes.
        path: The file to download, if a reader waits for it. With None, for a download ahead of time, only rules 1 and 2 apply.
    """
    chosen, missing = _first_files(state.used_bytes() + need - limit, _candidates(state, path))
    return chosen if missing <= 0 else None


def _first_files(missing: int, candidates: Iterator[tuple[str, LedgerEntry]]) -> tuple[list[str], int]:
    """Return the first candidates that together have the missing bytes, and the bytes that are still missing if there are too few."""
    chosen: list[str] = []
    while missing > 0 and (candidate := next(candidates, None)) is not None:
        chosen.append(candidate[0])
        missing -= candidate[1].size
    return chosen, missing


def pinned_bytes(state: LedgerState, files: Collection[str]) -> int:
    """Return the bytes that readers hold until they end, not counting `files`."""
    return _bytes(state, set[str]().union(*(reader.pinned() for reader in state.readers.values())).difference(files))


def blocks_slower(state: LedgerState, reader: Reader) -> bool:
    """Return whether a slower reader of the same run waits for a file whose download has not begun, and may need the space of `reader`."""
    return any(
        path not in state.entries and failure_key(each.group, path) not in state.failed
        for each in state.readers.values()
        if each.run == reader.run != "" and each.position < reader.position
        for path in each.demand
    )


def unreleasable_bytes(state: LedgerState) -> int:
    """Return the bytes that stay mapped while a file cannot be downloaded, whatever all other readers do.

    Readers either hold them until they end, or are themselves waiting for files for which there is no room.
    """
    found = set[str]()
    for reader in state.readers.values():
        if not any(failure_key(reader.group, path) in state.failed for path in reader.demand):  # otherwise it fails and ends
            is_served = any(path in state.entries for path in reader.demand)
            found |= reader.pinned() if is_served or not reader.demand else {*reader.maps}
    return _bytes(state, found)


def _bytes(state: LedgerState, paths: set[str]) -> int:
    return sum(state.entries[path].size for path in paths & state.entries.keys())


def files_over_limit(state: LedgerState, limit: int) -> list[str]:
    """Return files to remove until the copy is below `limit`, or as close to it as mapped files allow."""
    return _first_files(state.used_bytes() - limit, _candidates(state, ""))[0]


def _candidates(state: LedgerState, path: str | None) -> Iterator[tuple[str, LedgerEntry]]:
    """Yield the files that may be removed, in order. With an empty path, no reader waits, and every file that is not mapped may be."""
    readers = state.readers
    mapped = state.mapped()
    free = {name: entry for name, entry in state.entries.items() if not entry.owner and name not in mapped}
    needs = {name: first_demands(reader) for name, reader in readers.items()}
    waited = {name for reader in readers.values() for name in reader.demand}
    soon = waited.union(*needs.values())
    yield from sorted(((name, entry) for name, entry in free.items() if name not in soon), key=lambda item: item[1].used)
    if path is None:
        return
    waiting = [name for name, reader in readers.items() if path in reader.demand]
    own = dict[str, int]()  # the first part of each run that waits for the file
    for name in waiting:
        reader = readers[name]
        first = needs[name][path].first if path in needs[name] and not reader.aside else _SOONEST
        own[reader.run] = min(first, own.get(reader.run, first))
    is_starved = not path or any(readers[name].starved for name in waiting)

    def distance(name: str) -> int | None:
        """Return the number of samples until a file is needed, or None if it must stay."""
        found = []
        for reader_name, reader in readers.items():
            demand = needs[reader_name].get(name)
            if demand is None:
                continue
            is_later = demand.first > own[reader.run] if reader.run in own else demand.first > reader.position
            if not is_later and not (is_starved and reader_name not in waiting):
                return None
            found.append(demand.first - reader.position)
        return min(found, default=0)

    later = [(away, name) for name in free if name in soon - waited and (away := distance(name)) is not None]
    for _, name in sorted(later, reverse=True):
        yield name, free[name]
