"""The removal of objects that nothing names: what attempts without a lease have written, unfinished parts, and parts of earlier plans.

Kept are all files of the published build and of the build that was published before it, which a loader may still read, all files of
finished parts of the current plan, and everything of its unfinished parts. What belongs to another plan may be in use, so it is removed
when nothing has changed there for a day. Leases stay, because the number of an attempt must never be used twice.

Records are removed first. A process that was frozen before it finished a part swaps the record that it has signed, so when it wakes up, it
cannot finish a part whose files are gone. Cost: a listing, and a GET for each record.
"""

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import groupby

from niels_cache_assets.parts.store import CLOCKS, PARTS, PLAN, RECORDS, read_small, record_of
from niels_cache_assets.parts.store_attempt import READS_AT_ONCE, read_part
from niels_cache_runtime.remote.objects import parse_objects
from niels_cache_runtime.remote.record import read_published, record_at
from niels_cache_runtime.remote.store import ListedObject, Store

GRACE = timedelta(days=1)  # of what belongs to another plan


def find_garbage(store: Store, current: Collection[str], *, keeps_finished: bool = False) -> list[ListedObject]:
    """Return the objects of a data set that nothing names, the records first.

    Args:
        store: The store, below the address of the data set.
        current: The folders of the current plan's parts (store.py), and the keys of the files that the plan names.
        keeps_finished: Whether finished parts of other plans stay.

    Raises:
        NielsCacheError: If a record is damaged, or a file is missing that describes the published build.
    """
    listed = [*store.list(PARTS), *store.list(RECORDS)]  # files first: a record that changes in the meantime names newer files
    folders: dict[str, list[ListedObject]] = {}
    for each in listed:
        _, member, identity, *_ = each.key.removesuffix(".json").split("/")
        folders.setdefault(f"{PARTS}/{member}/{identity}", []).append(each)
    with ThreadPoolExecutor(READS_AT_ONCE) as pool:
        records = [*pool.map(partial(read_part, store), folders)]
    named, now = _named_by_builds(store, listed), store.now(f"{CLOCKS}/prune")
    garbage = [each for each in store.list(PLAN) if each.key not in current and now - each.modified >= GRACE]
    for (folder, objects), (files, has_journal) in zip(folders.items(), records, strict=True):
        if files and (folder in current or keeps_finished):
            named |= {file.key for file in files.values()} | {record_of(folder)}
        if (files and not has_journal) if folder in current else now - max(each.modified for each in objects) >= GRACE:
            garbage += objects
    return sorted((each for each in garbage if each.key not in named), key=lambda each: not each.key.startswith(RECORDS))


def _named_by_builds(store: Store, listed: Collection[ListedObject]) -> set[str]:
    """Return the keys of the files of the published build and of the one before it."""
    if record_at(store)[0] is None:
        return set()
    published = read_published(store)
    named = {file.key for file in published.files}
    if (key := published.record.replaced) is not None and (found := read_small(store, key)) is not None:
        named |= {file.key for file in parse_objects(found.content, store.name_of(key)).values()}
        named |= {each.key for each in listed if each.key.startswith(f"{key.rpartition('/')[0]}/")}  # the files of its tokenizer
    return named


def remove_garbage(store: Store, garbage: Sequence[ListedObject]) -> Sequence[ListedObject]:
    """Remove the objects that `find_garbage` has returned, in this order, and return them."""
    for _, group in groupby(garbage, key=lambda each: each.key.startswith(RECORDS)):
        store.delete([each.key for each in group])
    return garbage
