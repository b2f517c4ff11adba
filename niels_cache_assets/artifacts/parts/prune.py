"""The removal of parts that a complete cache no longer needs: of an earlier plan, or of a data set that is no longer in parts.

With a store, it removes the objects that nothing names: what attempts without a lease have written, unfinished parts, and parts of earlier
plans. Kept are all files of the published build and of the build that was published before it, which a loader may still read, all files of
finished parts of the current plan, and everything of its unfinished parts. What belongs to another plan may be in use, so it is removed
when nothing has changed there for a day. Leases stay, because the number of an attempt must never be used twice.

Records are removed first. A process that was frozen before it finished a part swaps the record that it has signed, so when it wakes up, it
cannot finish a part whose files are gone. Cost: a listing, and a GET for each record.

If no data set is searched for duplicates any more, the hashes and the ranges of an unfinished search are removed too.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import groupby
from pathlib import Path

from niels_cache_assets.artifacts.duplicates import remove_ranges
from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.parts.seal import JoinedCache
from niels_cache_assets.artifacts.stored import StorePlace
from niels_cache_assets.corpus.layout import corpus_parts_dir
from niels_cache_assets.parts.attempts import PrunedPart, remove_target, targets_in
from niels_cache_assets.parts.exclusion import FOUND_NAME
from niels_cache_assets.parts.layout import PLAN_NAME, PLAN_STAGED, VAL_BITS, part_name, parts_dir
from niels_cache_assets.parts.lease import hold_lease
from niels_cache_assets.parts.store import CLOCKS, PARTS, PLAN, RECORDS, read_small, record_of
from niels_cache_assets.parts.store_attempt import READS_AT_ONCE, read_part
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_runtime.errors import NielsCacheError, NotWrittenError
from niels_cache_runtime.format.commit import remove
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.remote.record import parse_objects, read_published, record_at
from niels_cache_runtime.remote.store import ListedObject, Store

GRACE = timedelta(days=1)  # of what belongs to another plan


def prune_parts(graph: Graph, name: str) -> list[PrunedPart]:
    """Remove the parts and the unfinished parts that the complete cache of a data set does not need for a repair, and return them.

    If no data set has "dedup" any more, also remove the hashes and the ranges of an unfinished search for duplicates. The parts of the
    current plan stay, because a repair and growth need them. With a store, see `_prune_store`.

    Raises:
        NielsCacheError: If the cache is not complete, or a part that would be removed is being built.
    """
    if graph.registry.build.store is not None:
        return _prune_store(graph, name)
    state = graph.dataset_state(name)
    if state.state != "in sync":
        raise NielsCacheError(f"{state.directory}: is {state.state}, so its parts are still needed; build it first: {state.advice}")
    dataset, folder, corpus_folder = graph.dataset(name), parts_dir(graph.root, name), corpus_parts_dir(graph.root, name)
    kept, kept_of_corpus, removed = set[str](), set[str](), list[PrunedPart]()
    if isinstance(dataset, JoinedCache):
        members = [each for each in dataset.members() if not each.directory.exists() or _plan_of(each.directory) == each.planned_by]
        kept = {PLAN_STAGED, *(each.directory.name for each in members)}
    source = dataset.spec.source
    if isinstance(source, PretrainSource) and source.corpus_parts > 1:
        kept.add(PLAN_STAGED)
        kept_of_corpus = {*map(part_name, range(source.corpus_parts))}  # a part whose files have not changed outlives a plan
    try:
        for each, kept_names in ((folder, kept), (corpus_folder, kept_of_corpus)):
            for target in targets_in(each):
                if target.name not in kept_names:
                    with hold_lease(target, times=graph.registry.cluster, wait=False, log=lambda line: None) as lease:
                        removed += remove_target(lease)
            if not kept_names:
                for path in (each / FOUND_NAME, each / PLAN_NAME, *each.glob(VAL_BITS)):
                    remove(path)
                with suppress(OSError):  # something else is in the folder
                    each.rmdir()
        if not graph.registry.prepared("dedup"):
            removed += remove_ranges(graph.registry, graph.root)
        return removed
    except OSError as error:
        raise NotWrittenError(f"{error.filename or folder}: cannot be removed: {error.strerror}; fix this, then prune again") from error


def _prune_store(graph: Graph, name: str) -> list[PrunedPart]:
    """Remove what neither the current plan nor the published build of a data set needs, and what attempts at the tokenizer have left.

    The build that was published before stays as well, because a loader may still read it.

    Raises:
        NielsCacheError: If the store has no tokenizer or no plan of these settings.
    """
    dataset, current = graph.dataset(name), list[str]()
    tokenizer = StorePlace(graph.tokenizer())
    tokenizer.finished()  # copies it from the store
    if isinstance(dataset, JoinedCache):
        StorePlace(dataset.spec.parts_plan).finished()
        current = [*dataset.folders_in_store().values(), *(f"{PLAN}/{group.val[0]}" for group in dataset.spec.plan.groups if group.val)]
    removed = Counter[str]()
    for place in (StorePlace(dataset), tokenizer):
        store = place.store
        for each in remove_garbage(store, find_garbage(store, [place.folder, *current], keeps_finished=place is tokenizer)):
            removed[store.name_of(each.key.rpartition("/")[0])] += each.size
    return [PrunedPart(*each) for each in sorted(removed.items())]


def _plan_of(part: Path) -> object:
    try:
        return read_meta(part / META_NAME).get("part", {}).get("plan")
    except NielsCacheError:
        return None


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
