"""The removal of objects that nothing names: what attempts without a lease have written, unfinished parts, and parts of earlier plans.

Kept are all files of the published build, all files of finished parts of the current plan, and everything of its unfinished parts. A part
of an earlier plan that is not finished may be in progress, so it is removed when nothing has changed there for a day. Leases stay, because
an epoch must never be used twice. Cost: a listing, and a GET for each finished part.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from niels_cache_assets.parts.store import CLOCK_NAME, PARTS
from niels_cache_assets.parts.store_attempt import read_objects
from niels_cache_runtime.remote.objects import OBJECTS_NAME
from niels_cache_runtime.remote.record import read_published
from niels_cache_runtime.remote.store import ListedObject, MissingError, Store

UNFINISHED = timedelta(days=1)
_FOLDER = re.compile(rf"({PARTS}/[^/]+/[0-9a-f]{{16}})/.+")
_DELETED_AT_ONCE = 1000


@dataclass(frozen=True, kw_only=True)
class StoreGarbage:
    """Objects of one folder that were removed.

    Attributes:
        folder: The address of the folder.
        objects: The number of objects.
        bytes: Their size.
    """

    folder: str
    objects: int
    bytes: int


def find_garbage(store: Store, current: Collection[str]) -> list[ListedObject]:
    """Return the objects of a data set that nothing names.

    Args:
        store: The store, below the address of the data set.
        current: The folders of the current plan's parts (store.py).

    Raises:
        NielsCacheError: If a record is damaged.
    """
    try:
        named = {file.key for file in read_published(store).files}
    except MissingError:
        named = set()
    now = store.now(f"{PARTS}/{CLOCK_NAME}")
    folders: dict[str, list[ListedObject]] = {}
    for each in store.list(PARTS):
        if match := _FOLDER.fullmatch(each.key):
            folders.setdefault(match[1], []).append(each)
    garbage: list[ListedObject] = []
    for folder, objects in folders.items():
        finished = read_objects(store, folder)
        is_current = folder in current
        if finished is not None:
            named |= {file.key for file in finished.values()} | {f"{folder}/{OBJECTS_NAME}"} if is_current else set()
        elif is_current or now - max(each.modified for each in objects) < UNFINISHED:
            continue
        garbage += objects
    return [each for each in garbage if each.key not in named]


def prune_store(store: Store, current: Collection[str]) -> list[StoreGarbage]:
    """Remove the objects that `find_garbage` returns, and return them by the folder of their attempt."""
    garbage = find_garbage(store, current)
    for start in range(0, len(garbage), _DELETED_AT_ONCE):
        store.delete([each.key for each in garbage[start : start + _DELETED_AT_ONCE]])
    folders: dict[str, list[int]] = {}
    for each in garbage:
        folders.setdefault("/".join(each.key.split("/")[:4]), []).append(each.size)
    return [StoreGarbage(folder=store.name_of(folder), objects=len(sizes), bytes=sum(sizes)) for folder, sizes in sorted(folders.items())]
