"""The removal of parts that a complete cache no longer needs: of an earlier plan, or of a data set that is not in parts any more."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.parts.seal import Sealed
from niels_cache_assets.disk.space import bytes_below
from niels_cache_assets.disk.staging import locked
from niels_cache_assets.parts.layout import PLAN_NAME, parts_dir
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import lock_path, remove
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import read_meta


class Pruned(NamedTuple):
    """A removed part. bytes: the size of its files; hard links of the cache keep the bytes that they share with it."""

    directory: Path
    bytes: int


def prune_parts(graph: Graph, name: str) -> list[Pruned]:
    """Remove the parts of a data set that its complete cache does not need to be repaired. Return the removed parts, in order.

    The parts of the current plan stay. Raises NielsCacheError if the cache is not complete, or if a part that would be removed is being
    built.
    """
    state = graph.dataset_state(name)
    if state.state != "in sync":
        raise NielsCacheError(f"{state.directory}: is {state.state}, so its parts are still needed; build it first: {state.advice}")
    dataset, folder = graph.dataset(name), parts_dir(graph.root, name)
    kept: set[str] = set()
    plan = None
    if isinstance(dataset, Sealed):
        plan = dataset.plan.fingerprint
        kept = {step.directory.name for step in dataset.steps() if step.directory != folder}
    found = sorted(path for path in folder.glob("*") if path.is_dir() and not path.name.startswith("."))
    removed = []
    for path in found:
        if path.name in kept and _plan_of(path) == plan:
            continue
        with locked(path):
            removed.append(Pruned(path, bytes_below(path)))
            remove(path)
        remove(lock_path(path))
    if plan is None:
        remove(folder / PLAN_NAME)
        for left in folder.glob(".*.lock"):
            remove(left)
        with suppress(OSError):  # something else lies there
            folder.rmdir()
    return removed


def _plan_of(part: Path) -> object:
    try:
        return read_meta(str(part / META_NAME)).get("part", {}).get("plan")
    except NielsCacheError:
        return None
