"""The sources of a loader that may be addresses.

a folder                       `settings.open_source`
a pretrain split               CopiedWindows, with order=Blocks(); RangeWindows, with Copy(fetch="windows")
an SFT split                   fetched whole into the local copy, and then read as a folder
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from niels_cache_runtime.cache.opening import Verify
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Split
from niels_cache_runtime.format.meta import canonical_json, sha256_text
from niels_cache_runtime.loader.batch import Batch
from niels_cache_runtime.loader.blocks import BlockVisit
from niels_cache_runtime.loader.mixture import Located
from niels_cache_runtime.loader.remote.feed import BlockFeed, fed
from niels_cache_runtime.loader.remote.ranges import RangeWindows
from niels_cache_runtime.loader.remote.windows import CopiedWindows
from niels_cache_runtime.loader.settings import LoaderSettings, check_named, name_sources, open_source
from niels_cache_runtime.loader.source import Source
from niels_cache_runtime.remote.copied_build import CopiedBuild, published_build, split_address
from niels_cache_runtime.remote.local_copy import LocalCopy
from niels_cache_runtime.remote.store import is_address
from niels_cache_runtime.remote.whole import Copy, check_remote

_BLOCKS_AHEAD = 2  # in each lane, as far as they fit: with one, the streams would wait for the batches at the end of each block


class Sources:
    """The sources of a loader by name, some of which may be addresses.

    folders: a path or an address of a split for each name. The name of a single address is that of its data set.
    Raises NielsCacheError if the settings do not fit: an address needs `remote`, and only an address does.
    """

    def __init__(self, sources: str | Mapping[str, str], *, split: Split, remote: Copy | None, order: Any) -> None:
        self._remote, self._order = remote, order
        self.folders = name_sources(sources, split)
        addresses = {name: folder for name, folder in self.folders.items() if is_address(folder)}
        self.copy: LocalCopy | None = None
        self._opened: dict[str, tuple[CopiedBuild, Split]] = {}
        check_remote(remote, next(iter({**self.folders, **addresses}.values())), is_remote=bool(addresses))
        for address in addresses.values():
            split_address(address)
        if remote is None:
            return
        if remote.dir is not None and remote.limit is None:
            raise NielsCacheError(f"Copy(limit=None): give the most bytes that {remote.dir} may take, such as limit=200e9")
        self.copy = remote.open()
        for name, address in addresses.items():
            build, named = self._open(address)
            check_named(named, split, address)
            folder = address if named else f"{address.rstrip('/')}/{split}"
            self.folders[name] = folder
            self._opened[folder] = build, named or split
        if not isinstance(sources, Mapping):
            self.folders = {build.record.name: address for address, (build, _) in self._opened.items()}

    def _open(self, address: str) -> tuple[CopiedBuild, Split | None]:
        build, split = published_build(address) if self.copy is None else self.copy.open(address)
        if build.record.family == "pretrain" and self._order == "split" and not self._reads_windows:
            raise NielsCacheError(
                f"{address}: order='split' reads any shard at any time, so a part of the cache cannot serve it; give "
                "order=Blocks(), or Copy(fetch='windows') for a small run, or pull the cache and read it from a folder"
            )
        if build.record.family == "sft" and self.copy is None:
            raise NielsCacheError(f"{address}: is an SFT data set, which is fetched whole; give remote=Copy(dir=..., limit=...)")
        return build, split

    @property
    def _reads_windows(self) -> bool:
        return self._remote is not None and self._remote.fetch == "windows"

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
        if self._reads_windows or self.copy is None or settings.order is None:
            return RangeWindows(folder, build=build, split=split, T=settings.T, stride=settings.stride)
        return CopiedWindows(
            folder,
            copy=self.copy,
            build=build,
            split=split,
            T=settings.T,
            stride=settings.stride,
            block_shards=settings.order.shards,
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
