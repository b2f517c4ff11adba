"""The check of files that shall be added to a data set, before the table is written. Lists the new files, and reads none of them."""

import os
import re
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
from niels_cache_assets.sources.types import ListedFile
from niels_cache_assets.sources.with_parts import SourceWithParts
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, dataset_dir, documents_name

_WHERE = "part --add"
_COMMIT = re.compile(r"[0-9a-f]{40}")


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
    Raises NielsCacheError for a pattern without files, for files that the data set already has, and for more parts than files. Also raises
    it for a data set of the hub that one process has built, if its pinned commit is not the one that was built.
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
        if source.parts == 1 and is_whole and meta is not None:
            keys |= _pinned(registry, name, source, meta["dataset_revision"])
    grown = _grown(registry, name, {**keys, "added": [*there, entry]})
    plan = PartsPlan(registry=registry, root=root, name=name, source=grown, build=registry.build)
    revision = grown.revision({}) if isinstance(grown, HubData) else None
    group = plan.group(len(grown.added), revision, hashed=False)
    if source.parts == 1:
        grown.list_files(revision, hashed=False)  # raises an error if one process would read the new files
    assert isinstance(source, SourceWithParts)
    known = _known_files(plan, source, is_whole=bool(is_whole))
    new = grown.located(group.listed, None)
    if taken := [file.name for file, place in zip(group.listed, new, strict=True) if _address(file, place.url) in known]:
        raise NielsCacheError(
            f"{_WHERE}: {counted(len(taken), 'file')} of {listed(wanted['files'])} ({listed(taken)}) are in {name} already; "
            "name only new files"
        )
    return Addition(entry=entry, keys=keys, files=group.listed)


def _pinned(registry: Registry, name: str, source: HubData, built: str) -> dict[str, str]:
    """Return the key that pins the commit that one process has built, unless the table names this commit already.

    Without a pin, or with a branch that has moved, the first files would now be those of a later commit, with the new files among them.
    """
    pinned = source.pinned_revision
    if pinned is None or (pinned != built and source.revision({}) != built and not _COMMIT.fullmatch(pinned)):
        return {"pinned_revision": built}
    if _COMMIT.fullmatch(pinned) and pinned != built:
        raise NielsCacheError(
            f"{_WHERE}: {name} was built from commit {built}, but pinned_revision in {registry.origin} is {pinned}; "
            f"build that commit first (niels-cache build-all --only {name}), or pin the commit that was built"
        )
    return {}


def _grown(registry: Registry, name: str, keys: Mapping[str, Any]) -> SourceWithParts:
    """Return the table of a data set with these keys. Raises NielsCacheError if it cannot have them."""
    options = {f"pretrain.{name}.{key}": _WHERE for key in keys} | {f"pretrain.{name}": _WHERE}
    loaded = load_registry(profile=registry.profile, config=registry.origin, overrides={"pretrain": {name: dict(keys)}}, options=options)
    grown = loaded.pretrain[name]
    assert isinstance(grown, SourceWithParts)  # other kinds refuse `added`
    return grown


def _known_files(plan: PartsPlan, source: SourceWithParts, *, is_whole: bool) -> set[str]:
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
    return {_place(file.url) for file in source.every_file() if file.name in names}


def _address(file: ListedFile, url: str) -> str:
    """Return what tells a file apart from others: its name on the hub, else its path or address."""
    return file.name if url.startswith("hf://") else _place(url)


def _place(url: str) -> str:
    """Return an address, or a path without links, because a link may lead to a file that is there already."""
    return url if "://" in url else os.path.realpath(url)
