"""The sources of a loader that may be addresses.

    a folder             `settings.open_source`
    a pretrain split     CopiedWindows, with order=Blocks(); RangeWindows, with Copy(fetch="windows")
    an SFT split         fetched whole into the local copy, and then read as a folder

What only an address needs is imported when there is one, because each rank of a run that reads folders would wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from niels_cache_runtime.cache.opening import Verify
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Split
from niels_cache_runtime.loader.settings import (
    LoaderSettings,
    check_named,
    copies_to_read,
    document_packing,
    name_sources,
    open_source,
)
from niels_cache_runtime.loader.source import NamedSources, SampleSource
from niels_cache_runtime.remote.split_location import Copy, check_remote
from niels_cache_runtime.remote.store import is_address

if TYPE_CHECKING:
    from niels_cache_runtime.remote.copied_build import CopiedBuild
    from niels_cache_runtime.remote.local_copy import LocalCopy


class Sources:
    """The sources of a loader by name, some of which may be addresses.

    Args:
        sources: A folder or an address, or a mapping of names to such.
        split: The split to read where a data set's folder or address is given.
        remote: The local copy, or None for folders only.
        order: The `order` of TokenLoader.

    Attributes:
        folders: A path or an address of a split for each name. The name of a single address is that of its data set.
        copy: The open local copy, or None.

    Raises:
        NielsCacheError: If the settings do not fit: an address needs `remote`, and only an address does.
    """

    def __init__(self, sources: str | Mapping[str, str], *, split: Split, remote: Copy | None, order: Any) -> None:
        self._remote, self._order = remote, order
        self.folders = name_sources(sources, split)
        addresses = {name: folder for name, folder in self.folders.items() if is_address(folder)}
        self.copy: LocalCopy | None = None
        self._opened: dict[str, tuple[CopiedBuild, Split]] = {}
        check_remote(remote, next(iter({**self.folders, **addresses}.values())), is_remote=bool(addresses))
        if remote is None:
            return
        from niels_cache_runtime.remote.copied_build import split_address

        for address in addresses.values():
            split_address(address)
        if remote.dir is not None and remote.limit is None:
            raise NielsCacheError(f"Copy(limit=None): give the most bytes that {remote.dir} may take, such as limit=200e9")
        self.copy = None if remote.dir is None else remote.open()
        for name, address in addresses.items():
            build, named = self._open(address)
            check_named(named, split, address)
            folder = address if named else f"{address.rstrip('/')}/{split}"
            self.folders[name] = folder
            self._opened[folder] = build, named or split
        if not isinstance(sources, Mapping):
            self.folders = {build.record.name: address for address, (build, _) in self._opened.items()}

    def _open(self, address: str) -> tuple[CopiedBuild, Split | None]:
        from niels_cache_runtime.remote.copied_build import published_build

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

    def open(self, settings: LoaderSettings, *, verify: Verify) -> NamedSources:
        """Open all sources. Files from an address are hashed when they come, so `verify` changes nothing for them."""
        found = {name: self._source(folder, settings, verify) for name, folder in self.folders.items()}
        if self.copy is None:
            return found
        from niels_cache_runtime.loader.remote.feed import copied_sources

        if copied := copied_sources(found).values():
            lanes = settings.lanes // settings.machines
            blocks = [source.block_bytes for source in copied]
            shards = {source.build.path_in_copy(file.path): file.size for source in copied for file in source.build.shards(source.split)}
            needed = min(lanes * sum(blocks) + max(blocks), sum(shards.values()))
            self.copy.require(needed, f"{lanes * len(blocks) + 1} blocks", files=shards)
        return found

    def _source(self, folder: str, settings: LoaderSettings, verify: Verify) -> SampleSource:
        if folder not in self._opened:
            return open_source(folder, settings, verify=verify)
        from niels_cache_runtime.loader.remote.windows import CopiedDocuments, CopiedWindows, RangeWindows

        build, split = self._opened[folder]
        copies_to_read(folder, build.published.meta, settings, is_remote=True)
        if build.record.family == "sft" and self.copy is not None:
            source = open_source(str(self.copy.fetch_build(build, split)), settings)
            source.folder = folder
            return source
        of_build: dict[str, Any] = {"build": build, "split": split, "T": settings.T}
        of_windows: dict[str, Any] = {"stride": settings.stride, "head": settings.head}
        if self._reads_windows or self.copy is None or settings.order is None:
            if settings.packing:
                raise NielsCacheError(
                    f"{folder}: packing='best_fit' would need a request for every document with Copy(fetch='windows'); give a local copy, "
                    "Copy(dir=..., limit=...), and order=Blocks(...)"
                )
            return RangeWindows(folder, **of_build, **of_windows)
        of_build |= {"copy": self.copy, "block_shards": settings.order.shards}
        if settings.packing:
            return CopiedDocuments(folder, packing=document_packing(settings, settings.packing), head=settings.head, **of_build)
        return CopiedWindows(folder, **of_build, **of_windows)
