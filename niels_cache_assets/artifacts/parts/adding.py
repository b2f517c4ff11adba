"""The check of files that shall be added to a data set, before the table is written. Lists the new files, and reads none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.config.registry import Registry, load_registry
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.parts.plan import Plan
from niels_cache_assets.show.lineage import files_of_lineage
from niels_cache_assets.show.wording import counted, listed
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.types import ListedFile, PretrainSource
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, dataset_dir, documents_name

_WHERE = "parts add"


@dataclass(frozen=True, kw_only=True)
class Addition:
    """Files that can be added. entry: the new table. keys: other keys that the table of the data set needs. files: the new files."""

    entry: Mapping[str, Any]
    keys: Mapping[str, Any]
    files: Sequence[ListedFile]


def check_addition(
    registry: Registry, root: Path, name: str, there: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any]
) -> Addition | None:
    """Return the table to write for files that a data set shall grow by. Return None if the same table is there already.

    there: the tables `added` as the file of the configuration has them. wanted: the new one, without a commit of the hub.
    Raises NielsCacheError for a pattern without files, for files that the data set already has, and for more parts than files.
    """
    for entry in there:
        if entry.get("files") == wanted["files"]:
            if {key: value for key, value in entry.items() if key != "revision"} == dict(wanted):
                return None
            raise NielsCacheError(
                f"{_WHERE}: {listed(wanted['files'])} is in [[pretrain.{name}.added]] of {registry.origin} already, with other settings; "
                "change the table there"
            )
    source = registry.pretrain[name]
    meta = finished_meta(dataset_dir(root, "pretrain", name))
    is_whole = meta is not None and meta.get("built") and "parts" not in meta
    entry, keys = dict(wanted), dict[str, Any]()
    if isinstance(source, HubData) and not source.local_key:
        entry["revision"] = source.model_copy(update={"pinned_revision": None}).revision({})
        if source.parts == 1 and source.pinned_revision is None and is_whole and meta is not None:
            keys["pinned_revision"] = meta["dataset_revision"]
    grown = _grown(registry, name, {**keys, "added": [*there, entry]})
    plan = PartsPlan(registry=registry, root=root, name=name, source=grown, build=registry.build)
    group = plan.group(len(grown.added), grown.revision({}) if isinstance(grown, HubData) else None, hashed=False)
    known = _known_files(plan, source, is_whole=bool(is_whole))
    new = grown.located(group.listed, None)
    if taken := [file.name for file, place in zip(group.listed, new, strict=True) if _address(file, place.url) in known]:
        raise NielsCacheError(
            f"{_WHERE}: {counted(len(taken), 'file')} of {listed(wanted['files'])} ({listed(taken)}) are in {name} already; "
            "name only new files"
        )
    return Addition(entry=entry, keys=keys, files=group.listed)


def _grown(registry: Registry, name: str, keys: Mapping[str, Any]) -> PretrainSource:
    """Return the table of a data set with these keys. Raises NielsCacheError if it cannot have them."""
    options = {f"pretrain.{name}.{key}": _WHERE for key in keys} | {f"pretrain.{name}": _WHERE}
    loaded = load_registry(profile=registry.profile, config=registry.origin, overrides={"pretrain": {name: dict(keys)}}, options=options)
    return loaded.pretrain[name]


def _known_files(plan: PartsPlan, source: PretrainSource, *, is_whole: bool) -> set[str]:
    """Return the addresses of the files that the plan has, or that one process has read if there is no plan."""
    planned = plan.finished()
    if planned is not None:
        names = {file.name for group in Plan.of(planned).groups for file in group.listed}
    elif is_whole:
        cache = dataset_dir(plan.root, "pretrain", plan.name)
        names = {name for split in SPLITS for name in files_of_lineage(cache / documents_name(split))}
    else:
        return set()
    if isinstance(source, HubData):
        return names
    return {file.url for file in source.every_file() if file.name in names}


def _address(file: ListedFile, url: str) -> str:
    """Return what tells a file apart from others: its name on the hub, else its path or address."""
    return file.name if url.startswith("hf://") else url
