"""The sources of a loader that may be addresses.

a folder                       `settings.open_source`
a pretrain split               CopiedWindows, with order="blocks"; RangeWindows, with fetch="windows"
an SFT split                   fetched whole into the local copy, and then read as a folder
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from niels_cache_runtime.cache.checks import check_choice
from niels_cache_runtime.cache.opening import Verify
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, Split
from niels_cache_runtime.format.meta import canonical_json, sha256_text
from niels_cache_runtime.loader.batch import Batch
from niels_cache_runtime.loader.blocks.visits import BlockVisit
from niels_cache_runtime.loader.mixture import Located
from niels_cache_runtime.loader.remote.feed import BlockFeed, fed
from niels_cache_runtime.loader.remote.ranges import RangeWindows
from niels_cache_runtime.loader.remote.windows import CopiedWindows
from niels_cache_runtime.loader.settings import LoaderSettings, name_sources, open_source
from niels_cache_runtime.loader.source import Source
from niels_cache_runtime.remote.copied_build import CopiedBuild, published_build, split_address
from niels_cache_runtime.remote.local_copy import LocalCopy
from niels_cache_runtime.remote.store import is_address

_FETCHES = ("shards", "windows")
_BLOCKS_AHEAD = 2  # in each lane, as far as they fit: with one, the streams would wait for the batches at the end of each block


class Sources:
    """The sources of a loader by name, some of which may be addresses.

    folders: a path or an address for each name. The name of a single address is that of its data set.
    Raises NielsCacheError if the settings do not fit: an address needs a local copy or fetch="windows", and only an address does.
    """

    def __init__(
        self,
        sources: str | Mapping[str, str],
        *,
        local_dir: str | os.PathLike[str] | None,
        limit_bytes: float | None,
        fetch: str,
        order: str,
    ) -> None:
        check_choice("fetch", fetch, _FETCHES)
        self._fetch, self._order = fetch, order
        self.folders = name_sources(sources)
        addresses = [folder for folder in self.folders.values() if is_address(folder)]
        self.copy: LocalCopy | None = None
        self._opened: dict[str, tuple[CopiedBuild, Split]] = {}
        if not addresses:
            for name, value in (("local_dir", local_dir), ("limit_bytes", limit_bytes), ("fetch", None if fetch == _FETCHES[0] else fetch)):
                if value is not None:
                    raise NielsCacheError(f"{name}={value!r:.80}: belongs to an address such as s3://bucket/prefix; leave {name} out")
            return
        for address in addresses:
            split_address(address)
        if local_dir is not None:
            if limit_bytes is None:
                raise NielsCacheError(f"limit_bytes=None: give the most bytes that {local_dir} may take, such as limit_bytes=200e9")
            self.copy = LocalCopy(local_dir, limit_bytes=limit_bytes)
        for address in addresses:
            self._opened[address] = self._open(address)
        if not isinstance(sources, Mapping):
            self.folders = {self._opened[address][0].record.name: address for address in addresses}

    def _open(self, address: str) -> tuple[CopiedBuild, Split]:
        if self.copy is None and self._fetch != "windows":
            raise NielsCacheError(
                f"{address}: needs local_dir, a folder on a local disk, and limit_bytes, the most bytes that it may take; "
                "for a small run, fetch='windows' needs neither"
            )
        build, split = published_build(address) if self.copy is None else self.copy.open(address)
        if build.record.family == "pretrain" and self._order != "blocks" and self._fetch != "windows":
            raise NielsCacheError(
                f"{address}: order={self._order!r} reads any shard at any time, so a part of the cache cannot serve it; give "
                "order='blocks', or fetch='windows' for a small run, or pull the cache and read it from a folder"
            )
        if build.record.family == "sft" and self.copy is None:
            raise NielsCacheError(f"{address}: is an SFT data set, which is fetched whole; give local_dir and limit_bytes")
        return build, split or SPLITS[0]

    def open(self, settings: LoaderSettings, *, verify: Verify) -> list[Source]:
        """Open all sources. Files from an address are hashed when they come, so `verify` changes nothing for them."""
        found = [self._source(folder, settings, verify) for folder in self.folders.values()]
        copied = [source for source in found if isinstance(source, CopiedWindows)]
        if copied and self.copy is not None:
            lanes = settings.lanes // settings.machines
            blocks = [source.block_bytes() for source in copied]
            shards = {source.build.place(file.path): file.size for source in copied for file in source.build.shards(source.split)}
            needed = min(lanes * sum(blocks) + max(blocks), sum(shards.values()))
            self.copy.require(needed, f"{lanes * len(blocks) + 1} blocks", files=shards)
        return found

    def _source(self, folder: str, settings: LoaderSettings, verify: Verify) -> Source:
        if folder not in self._opened:
            return open_source(folder, settings, verify=verify)
        build, split = self._opened[folder]
        if build.record.family == "sft" and self.copy is not None:
            self.copy.fetch_build(build, split)
            source = open_source(str(self.copy.folder / build.place(split)), settings)
            source.folder = folder
            return source
        if self._fetch == "windows" or self.copy is None:
            return RangeWindows(folder, build=build, split=split, T=settings.T, stride=settings.stride)
        return CopiedWindows(
            folder,
            copy=self.copy,
            build=build,
            split=split,
            T=settings.T,
            stride=settings.stride,
            block_shards=settings.block_shards,
        )


def batches_of(
    plan: Iterator[Located],
    make: Callable[[Located], Batch],
    named: Mapping[str, Source],
    settings: LoaderSettings,
    visits: Callable[[Collection[str]], Iterator[BlockVisit]],
    *,
    end: int | None,
    first: int,
    worker: int,
    workers: int,
    done: int,
) -> Iterator[Batch]:
    """Return the batches of a plan, with a feed if any source is in a local copy.

    visits: returns those of some sources. end: the sample at which the pass ends. first: the sample at which the plan begins. The other
    arguments are those of `plan_batches`.
    """
    copied = {name: source for name, source in named.items() if isinstance(source, CopiedWindows)}
    if not copied:
        return map(make, plan)
    said: dict[str, Any] = {"settings": settings.of_samples(), "weights": settings.weights, "machines": settings.machines}
    run = sha256_text(canonical_json({**said, "sources": {name: source.fingerprint for name, source in named.items()}}))
    rows = settings.B * settings.world_size
    own = {"first": first + (worker + done * workers) * rows, "rows": rows, "step": workers * rows}
    ahead = _BLOCKS_AHEAD * len(copied) * settings.lanes // settings.machines
    return fed(plan, BlockFeed(copied, visits(copied), make, names=tuple(named), run=run, end=end, ahead=ahead, **own))
