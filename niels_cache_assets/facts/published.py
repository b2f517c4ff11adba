"""The finished caches of data sets, which are in their folders or, with `[build] store`, published in a store.

A store costs three requests for a meta.json. Files are copied into a temporary folder only where someone asks for them.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from niels_cache_assets.base.wording import file_size
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Family, dataset_dir
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.remote.download import append_file
from niels_cache_runtime.remote.record import read_published
from niels_cache_runtime.remote.store import MissingError, Store, open_store

MAX_COPIED_BYTES = 1 << 30


def address_in_store(registry: Registry, family: str, name: str = "") -> str | None:
    """Return the address of a data set, or of the tokenizer (`family` "tokenizer" and no name). None without a store."""
    store = registry.build.store
    return None if store is None else "/".join(filter(None, (store.rstrip("/"), family, name)))


def store_of(registry: Registry, family: str, name: str = "") -> Store | None:
    """Return the store below this address, or None without a store."""
    address = address_in_store(registry, family, name)
    return None if address is None else open_store(address, make=True)


def finished_cache(registry: Registry, root: Path, family: Family, name: str) -> Meta | None:
    """Return the meta.json of the finished cache of a data set, or None.

    Raises:
        NielsCacheError: If its record in the store is damaged.
        RemoteError: If the store refuses or does not answer.
    """
    store = store_of(registry, family, name)
    if store is None:
        return finished_meta(dataset_dir(root, family, name))
    with suppress(MissingError):
        return read_published(store).meta
    return None


@contextmanager
def folder_with(paths: Collection[str], folder: Path, address: str | None) -> Iterator[Path]:
    """Yield a folder with these files of a finished cache: its own `folder`, or a temporary one with copies of files at an address.

    Raises:
        NielsCacheError: If more than MAX_COPIED_BYTES would be copied.
        RemoteError: If the store refuses or does not answer, or if the content of a file is not the recorded one.
    """
    if address is None:
        yield folder
        return
    store = open_store(address)
    files = [file for file in read_published(store).data if file.path in paths]
    if (size := sum(file.size for file in files)) > MAX_COPIED_BYTES:
        raise NielsCacheError(f"{address}: {file_size(size)} would have to be copied here; pull it: niels-cache pull {address} --out DIR")
    with TemporaryDirectory() as copy:
        for file in files:
            append_file(store, file, Path(copy, file.path))
        yield Path(copy)
