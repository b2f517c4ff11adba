"""A whole split of a published cache, for readers that need any token at any time.

The split is downloaded into a local copy before the first token is read, and the copy keeps it as long as the reader lives. A split that is
larger than the copy is refused. `TokenLoader` with order=Blocks() needs no whole split.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from niels_cache_runtime.cache.checks import check_choice
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, Split, idx_name, tokens_name
from niels_cache_runtime.remote.store import is_address

if TYPE_CHECKING:
    from niels_cache_runtime.remote.copied_build import CopiedBuild
    from niels_cache_runtime.remote.local_copy import LocalCopy


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A bounded copy, on a local disk, of what a reader needs from an address such as `s3://bucket/caches/NAME/train`.

    Attributes:
        dir: The folder of the copy. All processes of a machine may share it. It may be None only with fetch="windows".
        limit: The largest total size of the copy in bytes, such as 200e9. None, the default, means no limit.
        fetch: With "shards", the default, whole files are downloaded. With "windows", TokenLoader requests each row of a pretrain split
            separately, so any order is possible, and `dir` and `limit` may be left out.

    Raises:
        NielsCacheError: If a value is out of range, or if "shards" has no folder.
    """

    dir: str | os.PathLike[str] | None = None
    limit: float | None = None
    fetch: Literal["shards", "windows"] = "shards"

    def __post_init__(self) -> None:
        check_choice("Copy: fetch", self.fetch, ("shards", "windows"))
        if self.dir is not None:  # absolute, so that a process in another folder can open the copy again
            object.__setattr__(self, "dir", os.path.abspath(os.path.expanduser(self.dir)))
        elif self.fetch == "shards" or self.limit is not None:
            raise NielsCacheError("Copy(dir=None): give dir, a folder on a local disk, and limit, the most bytes that it may take")
        if self.limit is not None and (isinstance(self.limit, bool) or not isinstance(self.limit, int | float) or not self.limit > 0):
            raise NielsCacheError(f"Copy(limit={self.limit!r}): must be a positive number of bytes, such as 200e9")

    def open(self) -> LocalCopy:
        """Open the copy, which must have a folder."""
        from niels_cache_runtime.remote.local_copy import LocalCopy

        assert self.dir is not None
        return LocalCopy(self.dir, limit=self.limit)


def check_remote(remote: Copy | None, given: str, *, is_remote: bool) -> None:
    """Raise an error unless `remote` is a Copy for an address, and None for a path.

    Args:
        remote: The value to check.
        given: The address or the path, for messages.
        is_remote: Whether it is an address.

    Raises:
        NielsCacheError: If `remote` does not fit.
    """
    if not isinstance(remote, Copy | None):
        raise NielsCacheError(f"remote={remote!r:.80}: must be Copy(dir=..., limit=...)")
    if is_remote and remote is None:
        raise NielsCacheError(
            f"{given}: an address needs remote=Copy(dir=..., limit=...): a folder on a local disk, and the most bytes in it"
        )
    if remote is not None and not is_remote:
        raise NielsCacheError(f"remote={remote!r:.80}: belongs to an address such as s3://BUCKET/PREFIX, but {given} is a path")


@dataclass(frozen=True, kw_only=True)
class SplitLocation:
    """The location of a split, as the caller gave it: a path, or an address with its local copy.

    Attributes:
        given: The path or the address.
        remote: The settings of the local copy, or None for a path.
        build: The build to read, or None for the one that is published when a file is downloaded.
        keeper: A copy that keeps the build's meta.json.
    """

    given: str
    remote: Copy | None = None
    build: CopiedBuild | None = None
    keeper: LocalCopy | None = None

    @classmethod
    def of(cls, given: str | os.PathLike[str], remote: Copy | None) -> SplitLocation:
        """Return the location of a split.

        Raises:
            NielsCacheError: If an address comes without the folder of a copy, or a path with a copy.
        """
        given = os.fspath(given)
        check_remote(remote, given, is_remote=is_address(given))
        if remote is None:
            return cls(given=os.path.abspath(given))
        if remote.fetch != "shards":
            raise NielsCacheError(f"{given}: Copy(fetch={remote.fetch!r}) is for TokenLoader; leave fetch out, and give dir and limit")
        return cls(given=given.rstrip("/"), remote=remote)

    def opened(self) -> tuple[str, SplitLocation]:
        """Open the build that is now published at the address.

        Returns:
            The cache root of the build in the copy, and this location with the build.

        Raises:
            NielsCacheError: If nothing is published there.
            RemoteError: If the store refuses or does not answer.
        """
        assert self.remote is not None
        copy = replace(self.remote, limit=None).open()  # holds only meta.json; its limit must not apply to a run in this folder
        build, _ = copy.open(self.given)
        return str(copy.folder / build.root), replace(self, build=build, keeper=copy)

    def fetch(self, paths: Sequence[str]) -> LocalCopy:
        """Download files of the opened build. Return the copy that keeps them.

        Args:
            paths: Paths relative to the data set, or below `tokenizer/`. A path that ends with a slash stands for all files below it.

        Raises:
            RemoteError: If the store refuses or does not answer.
        """
        assert self.remote is not None
        assert self.build is not None
        copy = self.remote.open()
        copy.fetch_of(self.build, paths)
        return copy

    def whole(self, split: Split | None = None) -> tuple[str, LocalCopy | None]:
        """Return the folder of the split on this machine, and the copy that keeps its files. A path is returned as it is, with None.

        Args:
            split: The split of an opened build.

        Raises:
            NielsCacheError: If the split is larger than the copy, or if the address names no split.
            RemoteError: If the store refuses or does not answer.
        """
        if self.remote is None:
            return self.given, None
        copy = self.remote.open()
        return str(copy.fetch_split(self.given) if self.build is None or split is None else copy.fetch_build(self.build, split)), copy


def whole_pair(tokens_path: str, idx_path: str, remote: Copy | None) -> tuple[str, str, LocalCopy | None]:
    """Return the paths of the two files of an SFT split on this machine, and the copy that keeps them, or None for local files."""
    if not is_address(tokens_path):
        for path in (tokens_path, idx_path):
            SplitLocation.of(path, remote)
        return os.path.abspath(tokens_path), os.path.abspath(idx_path), None
    address, _, name = tokens_path.rpartition("/")
    split = next((split for split in SPLITS if name == tokens_name(split)), None)
    if split is None or idx_path != f"{address}/{idx_name(split)}":
        expected = f"ADDRESS/{tokens_name(SPLITS[0])} and ADDRESS/{idx_name(SPLITS[0])}"
        raise NielsCacheError(f"{tokens_path} and {idx_path}: are not the two files of a split; give {expected}")
    folder, copy = SplitLocation.of(f"{address}/{split}", remote).whole()
    return str(Path(folder).parent / tokens_name(split)), str(Path(folder).parent / idx_name(split)), copy
