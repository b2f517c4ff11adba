"""The tails of blocks in a local copy: the first bytes of the shards after a block, for the last window of the block.

A tail comes by a range request, so no recorded hash covers it. When one of its shards is fetched whole, both are compared. If an object was
damaged, and somebody repairs it later, a tail from before the repair must not stay.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

from niels_cache_runtime.format.layout import shard_name
from niels_cache_runtime.format.safe_open import OwnFiles
from niels_cache_runtime.remote.copied_build import CopiedBuild
from niels_cache_runtime.remote.ledger import State
from niels_cache_runtime.remote.needs import TAILS


def tail_of(path: str) -> tuple[str, int, int]:
    """Return the split, the number of the first shard and the bytes of a tail, from its path."""
    split, name = path.split("/")[-2:]
    stop, size = name.removesuffix(".bin").split("-")
    return split, int(stop), int(size)


def tails_over(state: State, build: CopiedBuild, path: str) -> Iterator[tuple[str, int, int]]:
    """Yield the complete tails that hold bytes of a shard: their paths, and the begin and the end of these bytes in the tail.

    path: of the shard, relative to the copy.
    """
    split = path.split("/")[-2]
    for tail, entry in state.entries.items():
        if entry.owner or not tail.startswith(f"{TAILS}/{build.id}/{split}/"):
            continue
        _, shard, size = tail_of(tail)
        begin = 0
        while begin < size:
            place = build.place(f"{split}/{shard_name(shard)}")
            end = min(size, begin + build.files[place].size)
            if place == path and begin < end:
                yield tail, begin, end
            begin, shard = end, shard + 1


def doubt(state: State, tails: Iterable[str]) -> None:
    """Take these tails out of use. When a reader needs one, the fetcher removes it, and fetches it again."""
    for tail in list(tails):
        state.entries[tail].sha256 = ""
        state.unchecked.add(tail)


def other_tails(files: OwnFiles, state: State, build: CopiedBuild, path: str) -> list[str]:
    """Return the tails that differ from a shard, whose content has the recorded sha256."""
    found = []
    for tail, begin, end in tails_over(state, build, path):
        with suppress(OSError), os.fdopen(files.open(path), "rb") as shard, os.fdopen(files.open(tail), "rb") as file:
            file.seek(begin)
            if file.read(end - begin) != shard.read(end - begin):
                found.append(tail)
    return found
