"""The caches to search: all caches of a root, with the parts of data sets, and published caches.

A published cache is not copied: its meta.json, document ends and tokenizer are fetched into a temporary folder, its shards are read from the
store in blocks while they are searched, and its lineage is fetched if something was found.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from niels_cache_runtime.format.layout import Family
from niels_cache_runtime.format.meta import Meta


@dataclass(frozen=True, kw_only=True)
class SearchableCache:
    """A cache to search.

    Attributes:
        dataset: The name of the data set. For a part of a data set, `NAME/PART`.
        family: The family.
        directory: The folder of the cache.
        meta: Its meta.json.
        root: The cache root, which has the tokenizer.
        address: The address of a published cache, or None.
    """

    dataset: str
    family: Family
    directory: Path
    meta: Meta
    root: Path
    address: str | None = None


def caches_of(root: str | Path, published: Collection[str] = (), *, only: Collection[str] = ()) -> Iterator[SearchableCache]:
    """Yield all caches of a root, with parts of data sets, then the published caches at these addresses.

    Args:
        root: The cache root.
        published: Addresses of published data sets.
        only: Names of data sets; none means all.
    """
    raise NotImplementedError
