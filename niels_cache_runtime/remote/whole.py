"""A whole split of a published cache, for readers that need any token at any time.

The split is fetched into a local copy before the first token is read, and the copy keeps it as long as the reader lives. A split that is
larger than the copy is refused. `TokenLoader` with order="blocks" needs no whole split.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, idx_name, tokens_name
from niels_cache_runtime.remote.store import is_address

if TYPE_CHECKING:
    from niels_cache_runtime.remote.local_copy import LocalCopy


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place of a split, as the caller gave it: a path, or an address with its local copy.

    given: the path or the address. local_dir, limit_bytes: the folder of the copy, and how many bytes it may take; both None for a path.
    """

    given: str
    local_dir: str | None = None
    limit_bytes: float | None = None

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

    def fetch(self, paths: Sequence[str]) -> tuple[str, LocalCopy]:
        """Fetch files of the cache at the address. Return the cache root of its build in the copy, and the copy, which keeps the files.

        paths: relative to the data set, or below `tokenizer/`. A folder ends with a slash. meta.json is always fetched.
        Raises NielsCacheError if nothing is published there, and RemoteError if the store refuses or does not answer.
        """
        copy = self._copy()
        return str(copy.fetch_files(self.given, paths).parent.parent), copy

    def whole(self) -> tuple[str, LocalCopy | None]:
        """Return the folder of the split on this machine, and the copy that keeps its files. A path is returned as it is.

        Raises NielsCacheError if the split is larger than the copy, or if the address names no split. Raises RemoteError if the store
        refuses or does not answer.
        """
        if self.local_dir is None:
            return self.given, None
        copy = self._copy()
        return str(copy.fetch_split(self.given)), copy

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
