"""Published builds of data sets with erased documents: the new build replaces the old one, and older builds are deleted.

A store or the hub may keep versions of deleted files. They cannot be deleted from here, and are named in the receipt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from niels_cache_assets.project.registry import Registry
from niels_cache_assets.publish.hub import SCHEME, push_to_hub
from niels_cache_assets.publish.push import open_local_build, prune, push
from niels_cache_inspection.erasure.remains import Remaining
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import dataset_dir
from niels_cache_runtime.remote.record import read_record
from niels_cache_runtime.remote.store import MissingError, check_address, open_store

_AGAIN = "then run the same erasure again, or `niels-cache push NAME ADDRESS --replace --prune`"


def replace_published(
    registry: Registry, root: Path, names: Collection[str], others: Collection[str], *, progress: Callable[[str], None]
) -> list[Remaining]:
    """Replace the published builds of data sets, and return what remains of them.

    Args:
        registry: The configuration, whose [publish] names an address.
        root: The cache root.
        names: The names of the data sets.
        others: Further addresses of published data sets.
        progress: Called with a line about what is being done.
    """
    known = [f"{registry.publish.address}/{family}/{name}" for family in ("pretrain", "sft") for name in registry.published(family)]
    remaining: list[Remaining] = []
    for address in [*known, *others]:
        try:
            remaining += _replace(registry, root, names, address, progress, is_named=address in others)
        except MissingError as error:
            if address in others:  # somebody says that there is a build
                remaining.append(Remaining(what="published build", where=address, advice=f"{error}; check the address; {_AGAIN}"))
        except (NielsCacheError, OSError) as error:
            remaining.append(Remaining(what="published build", where=address, advice=f"{error}; {_AGAIN}"))
    return remaining


def _replace(
    registry: Registry, root: Path, names: Collection[str], address: str, progress: Callable[[str], None], *, is_named: bool
) -> list[Remaining]:
    record, _ = read_record(open_store(check_address(address)))
    if record.name not in names:
        advice = (
            f"its data set {record.name} was not built again, so it was neither searched nor replaced; `niels-cache pull` it, and search "
            "the copy with --also"
        )
        return [Remaining(what="published build", where=address, advice=advice)] if is_named else []
    build = open_local_build(dataset_dir(root, record.family, record.name))
    progress(f"replacing {address}")
    if address.startswith(SCHEME):
        push_to_hub(build, address, license=registry.publish.licenses.get(record.name), replace_other=True)
        advice = "the hub keeps the old files in its history; squash it (HfApi.super_squash_history), or delete the repository"
        return [Remaining(what="older versions", where=address, advice=advice)]
    push(build, address, replace_other=True)
    pruned = prune(address)
    kept = [
        Remaining(what="published build", where=f"{address}: {each[:12]}", advice="a push may be running; prune again in a day")
        for each in pruned.kept
    ]
    if not address.startswith("file:"):
        advice = "if the bucket keeps versions of objects, delete those that are not current"
        kept.append(Remaining(what="older versions", where=address, advice=advice))
    return kept
