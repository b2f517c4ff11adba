"""What a build knows of the files of its attempt in a store."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from niels_cache_assets.disk.journal import JournalRecord
from niels_cache_assets.parts.seal import Link
from niels_cache_runtime.format.layout import Split
from niels_cache_runtime.format.meta import Meta


class StoredFiles(Protocol):
    """The files of an attempt in a store (store_attempt.py)."""

    def keep(self, recorded: JournalRecord) -> None:
        """Send the files that a record of the builder names, and the record."""

    def join(self, folders: Mapping[str, str], names: Collection[str], directory: Path, *, log: Callable[[str], None]) -> Link:
        """Return how files of finished parts are linked, after a download of the few files that a seal reads."""

    def link_published(self, folder: Path) -> Link:
        """Return how files of the published data set are linked, as if they were in `folder`."""

    def shards(self, meta: Meta, split: Split) -> Sequence[Any]:
        """Return the token files of a split of this build, most of which are in the store, after a download of its lineage.

        Each has a length, and gives an array for a slice.
        """
