"""The needs of a process that reads a local copy, and the files that it has mapped. `ledger` writes them to the disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from niels_cache_runtime.format.layout import shard_name

BUILDS, TAILS = "builds", "tails"


def is_tail(path: str) -> bool:
    return path.startswith(f"{TAILS}/")


class Want(NamedTuple):
    """A part of a run that needs the shards begin .. stop-1 of a split, and `tail` bytes after them.

    first, end: it needs them from sample `first` of the run to sample `end` - 1. now: whether to download them now; otherwise they are only
    kept if they are there. build: CONTENT_SHA256/FAMILY/NAME.
    """

    first: int
    end: int
    now: bool
    build: str
    split: str
    begin: int
    stop: int
    tail: int

    def paths(self) -> list[str]:
        """Return the files, relative to the copy."""
        folder = split_folder(self.build, self.split)
        shards = [f"{folder}{shard_name(index)}" for index in range(self.begin, self.stop)]
        return [*shards, tail_path(self.build, self.split, self.stop, self.tail)] if self.tail else shards


def split_folder(build: str, split: str) -> str:
    """Return the folder of the shards of a split, with a slash at its end."""
    return f"{BUILDS}/{build}/{split}/"


def tail_path(build: str, split: str, stop: int, size: int) -> str:
    """Return the path of the file with the first `size` bytes of the shards from number `stop` on."""
    return f"{TAILS}/{build}/{split}/{stop:05d}-{size}.bin"


@dataclass
class Reader:
    """A process that reads.

    maps: the files that it has mapped. demand: files that it waits for now. starved: whether it has waited for long. aside: whether it
    waits for a read beside the batches of its run, as in `trace`.
    run, position: the run that it takes part in, and its next sample. limit: that of its copy. group: the fetchers that may serve it.
    addresses: the address of each build that it has opened.
    holds_all: whether it may have mapped any file, because its record cannot be read. boot: of its machine (`ledger.boot`).
    """

    pid: int
    limit: int
    group: str
    run: str = ""
    position: int = 0
    wants: list[Want] = field(default_factory=list)
    demand: list[str] = field(default_factory=list)
    maps: list[str] = field(default_factory=list)
    starved: bool = False
    aside: bool = False
    holds_all: bool = False
    boot: str = ""
    addresses: dict[str, str] = field(default_factory=dict)

    def held(self) -> set[str]:
        """Return the files that this process has mapped for no part of its run. It holds them until it ends."""
        return set() if self.aside else {*self.maps}.difference(*(want.paths() for want in self.wants))

    def mapped(self, paths: set[str]) -> set[str]:
        """Return the files that this process may have mapped. paths: all files of the copy."""
        return paths if self.holds_all else {*self.maps}


def next_files(readers: list[Reader]) -> Iterator[tuple[str, Reader | None]]:
    """Yield the files to download next, and the first reader that waits for it. None: for a download ahead of time.

    A slower reader of a run comes before a faster one. Otherwise the faster one could take the last room, and both would wait.
    """
    waiting: dict[str, Reader] = {}
    for reader in sorted(readers, key=lambda reader: (reader.run, reader.position)):
        for path in reader.demand:
            waiting.setdefault(path, reader)
    yield from waiting.items()
    wants = [(want.first - reader.position, want) for reader in readers for want in reader.wants if want.now]
    for _, want in sorted(dict.fromkeys(wants)):
        for path in sorted(want.paths(), key=is_tail, reverse=True):  # a tail is small, and no batch should wait for it alone
            yield path, None
