"""A whole split of a published cache, for readers that need any token at any time.

The split is fetched into a local copy before the first token is read, and the copy keeps it as long as the reader lives. A split that is
larger than the copy is refused. `TokenLoader` with order="blocks" needs no whole split.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, Split, idx_name, tokens_name
from niels_cache_runtime.remote.store import is_address

if TYPE_CHECKING:
    from niels_cache_runtime.remote.copied_build import CopiedBuild
    from niels_cache_runtime.remote.local_copy import LocalCopy


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place of a split, as the caller gave it: a path, or an address with its local copy.

    given: the path or the address. local_dir, limit_bytes: the folder of the copy, and how many bytes it may take; both None for a path.
    build: the build to read, or None for the one that is published when a file is fetched. keeper: a copy that keeps its meta.json.
    """

    given: str
    local_dir: str | None = None
    limit_bytes: float | None = None
    build: CopiedBuild | None = None
    keeper: LocalCopy | None = None

    @classmethod
    def of(cls, given: str | os.PathLike[str], *, local_dir: str | os.PathLike[str] | None, limit_bytes: float | None) -> Place:
        """Return a place. Raises NielsCacheError for an address without `local_dir`, and for a path with the settings of a copy."""
        given = os.fspath(given)
        settings = {"local_dir": local_dir, "limit_bytes": limit_bytes}
        if not is_address(given):
            for name, value in settings.items():
                if value is not None:
                    raise NielsCacheError(f"{name}={value!r}: belongs to an address such as s3://BUCKET/PREFIX, but {given} is a path")
            return cls(given=os.path.abspath(given))
        if local_dir is None:
            raise NielsCacheError(f"{given}: an address needs local_dir=, a folder on a local disk for its files, and limit_bytes=")
        return cls(given=given.rstrip("/"), local_dir=os.path.abspath(local_dir), limit_bytes=limit_bytes)

    @property
    def settings(self) -> dict[str, str | float]:
        """The keyword arguments of a reader that opens the same place again. Empty for a path."""
        found = {"local_dir": self.local_dir, "limit_bytes": self.limit_bytes}
        return {name: value for name, value in found.items() if value is not None}

    def opened(self) -> tuple[str, Place]:
        """Open the build that is published at the address now. Return its cache root in the copy, and this place with the build.

        Raises NielsCacheError if nothing is published there, and RemoteError if the store refuses or does not answer.
        """
        copy = replace(self, limit_bytes=None)._copy()  # it holds only meta.json, and its limit must not count for a run in this folder
        build, _ = copy.open(self.given)
        return str(copy.folder / build.root), replace(self, build=build, keeper=copy)

    def fetch(self, paths: Sequence[str]) -> LocalCopy:
        """Fetch files of the opened build. Return the copy that keeps them.

        paths: relative to the data set, or below `tokenizer/`. A folder ends with a slash.
        Raises RemoteError if the store refuses or does not answer.
        """
        assert self.build is not None
        copy = self._copy()
        copy.fetch_of(self.build, paths)
        return copy

    def whole(self, split: Split | None = None) -> tuple[str, LocalCopy | None]:
        """Return the folder of the split on this machine, and the copy that keeps its files. A path is returned as it is.

        split: of an opened build. Raises NielsCacheError if the split is larger than the copy, or if the address names no split. Raises
        RemoteError if the store refuses or does not answer.
        """
        if self.local_dir is None:
            return self.given, None
        copy = self._copy()
        if self.build is None or split is None:
            return str(copy.fetch_split(self.given)), copy
        copy.fetch_build(self.build, split)
        return str(copy.folder / self.build.place(split)), copy

    def _copy(self) -> LocalCopy:
        from niels_cache_runtime.remote.local_copy import LocalCopy

        assert self.local_dir is not None
        return LocalCopy(self.local_dir, limit_bytes=self.limit_bytes)


def whole_pair(
    tokens_path: str, idx_path: str, local_dir: str | os.PathLike[str] | None, limit_bytes: float | None
) -> tuple[str, str, LocalCopy | None]:
    """Return the paths of the two files of an SFT split on this machine, and the copy that keeps them. See `Place`."""
    if not is_address(tokens_path):
        for path in (tokens_path, idx_path):
            Place.of(path, local_dir=local_dir, limit_bytes=limit_bytes)
        return os.path.abspath(tokens_path), os.path.abspath(idx_path), None
    address, _, name = tokens_path.rpartition("/")
    split = next((split for split in SPLITS if name == tokens_name(split)), None)
    if split is None or idx_path != f"{address}/{idx_name(split)}":
        wanted = f"ADDRESS/{tokens_name(SPLITS[0])} and ADDRESS/{idx_name(SPLITS[0])}"
        raise NielsCacheError(f"{tokens_path} and {idx_path}: are not the two files of a split; give {wanted}")
    folder, copy = Place.of(f"{address}/{split}", local_dir=local_dir, limit_bytes=limit_bytes).whole()
    return str(Path(folder).parent / tokens_name(split)), str(Path(folder).parent / idx_name(split)), copy
