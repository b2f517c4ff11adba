"""The removal of parts that a complete cache no longer needs: of an earlier plan, or of a data set that is no longer in parts.

With a store, it removes what interrupted attempts and earlier plans have left there (parts/store_prune.py).

If no data set is searched for duplicates any more, the hashes and the ranges of an unfinished search are removed too.
"""

from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from niels_cache_assets.artifacts.base import lease_times
from niels_cache_assets.artifacts.duplicates import remove_ranges
from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.parts.part import planned_by
from niels_cache_assets.artifacts.parts.seal import JoinedCache
from niels_cache_assets.artifacts.stored import StorePlace
from niels_cache_assets.corpus.layout import corpus_parts_dir
from niels_cache_assets.parts.attempts import PrunedPart, remove_target, targets_in
from niels_cache_assets.parts.exclusion import FOUND_NAME
from niels_cache_assets.parts.layout import PLAN_NAME, PLAN_STAGED, VAL_BITS, part_name, parts_dir
from niels_cache_assets.parts.lease import hold_lease
from niels_cache_assets.parts.store import PLAN
from niels_cache_assets.parts.store_prune import find_garbage, remove_garbage
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_runtime.errors import NielsCacheError, NotWrittenError
from niels_cache_runtime.format.commit import remove
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import read_meta


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
    kept, kept_of_corpus = set[str](), set[str]()
    if isinstance(dataset, JoinedCache):
        members = [each for each in dataset.members() if not each.directory.exists() or _plan_of(each.directory) == planned_by(each)]
        kept = {PLAN_STAGED, *(each.directory.name for each in members)}
    source = dataset.spec.source
    if isinstance(source, PretrainSource) and source.corpus_parts > 1:
        kept.add(PLAN_STAGED)
        kept_of_corpus = {*map(part_name, range(source.corpus_parts))}  # a part whose files have not changed outlives a plan
    try:
        removed = [*_remove_parts(graph, folder, kept), *_remove_parts(graph, corpus_folder, kept_of_corpus)]
        if not graph.registry.prepared("dedup"):
            removed += remove_ranges(graph.registry, graph.root)
        if not kept:
            for path in [folder / PLAN_NAME, *folder.glob(VAL_BITS)]:
                remove(path)
        for each, kept_names in ((folder, kept), (corpus_folder, kept_of_corpus)):
            if not kept_names:
                remove(each / FOUND_NAME)
                with suppress(OSError):  # something else is in the folder
                    each.rmdir()
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


def _remove_parts(graph: Graph, folder: Path, kept: Collection[str]) -> list[PrunedPart]:
    """Remove all parts in a folder except those that are kept, and return them, in order."""
    removed: list[PrunedPart] = []
    for target in targets_in(folder):
        if target.name in kept:
            continue
        with hold_lease(target, times=lease_times(graph.registry), wait=False, log=lambda line: None) as lease:
            removed += remove_target(lease)
    return removed


def _plan_of(part: Path) -> object:
    try:
        return read_meta(str(part / META_NAME)).get("part", {}).get("plan")
    except NielsCacheError:
        return None
