"""The plan of a data set that grows: the groups of parts in the last plan stay as they are, and new groups come after them.

The table and upstream decide everything else. So a plan that is made from nothing gives the same parts, if the files that were there are
unchanged. A plan that would change files of built parts is refused, unless it is forced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import Log
from niels_cache_assets.disk.lineage import files_of_lineage
from niels_cache_assets.disk.made_of import recordable
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.parts.plan import Plan, PlannedGroup
from niels_cache_assets.show.wording import counted, listed
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, documents_name
from niels_cache_runtime.format.meta import Meta


@dataclass(frozen=True, kw_only=True)
class Growth:
    """A data set with tables `added`, and the plan and the cache that it has now.

    name, source: of its table. place: the file of the plan. last: the content of this file, or None. cache: the folder of the cache.
    how_to_make: the command that makes the plan and everything after it.
    """

    name: str
    source: PretrainSource
    place: Path
    last: Meta | None
    cache: Path
    how_to_make: str

    def groups(self, fresh: Callable[[int, str | None], PlannedGroup], *, log: Log) -> list[PlannedGroup]:
        """Return the first parts, and then those of each table `added`.

        fresh: returns a group as upstream is now, by its number and the field of the text of the first parts. Raises NielsCacheError for
        files of built parts that were changed or deleted.
        """
        then = () if self.last is None else Plan.of(self.last).groups
        found: list[PlannedGroup] = []
        for number in range(1 + len(self.source.added)):
            now = fresh(number, found[0].text_field if found else None)
            if number < len(then):
                found.append(self._kept(then[number], now, log))
            else:
                if number == 0 and self.source.parts == 1:
                    self._refuse_other_files(now)
                found.append(now)
        self.check(found)
        return found

    def check(self, groups: Sequence[PlannedGroup]) -> None:
        """Raise NielsCacheError if the added files need a val that the first parts were not compared with."""
        if self.source.decontaminate != "off" and any(file.split == "val" for group in groups[1:] for file in group.listed):
            raise NielsCacheError(
                f"{self.name}: the added files have documents for val, so decontaminate would have to read all parts again; "
                'set decontaminate = "off", or make a data set of these files'
            )

    def _kept(self, then: PlannedGroup, now: PlannedGroup, log: Log) -> PlannedGroup:
        """Return the group of the last plan, unless its settings have changed."""
        if settings_of_group(then.made_of) != settings_of_group(now.made_of):
            return now
        there = {file.name: file for file in now.listed}
        changed = [file.name for file in then.listed if file.name in there and there[file.name] != file]
        gone = [file.name for file in then.listed if file.name not in there]
        if changed or gone:
            raise NielsCacheError(
                f"{self.place}: {_told(changed=changed, deleted=gone)} since these parts were planned; "
                f"put the files back, or build the parts again: {self.how_to_make} --force"
            )
        old = {file.name for file in then.listed}
        if new := [file.name for file in now.listed if file.name not in old]:
            log(f"{self.name}: {_told(new=new)}, which no part reads; add them: niels-cache part {self.name} --add PATTERN")
        return then

    def _refuse_other_files(self, now: PlannedGroup) -> None:
        """Raise NielsCacheError if one process has built the data set, from other files than the first ones of today."""
        meta = finished_meta(self.cache)
        if meta is None or not meta.get("built") or "parts" in meta or meta.get("dataset_revision") == now.revision:
            return
        read = {name for split in SPLITS for name in files_of_lineage(self.cache / documents_name(split))}
        there = {file.name for file in now.listed}
        told = _told(deleted=sorted(read - there), new=sorted(there - read)) or "a changed file"
        raise NielsCacheError(
            f"{self.cache}: {told} since this cache was built; put the files back, name new ones with niels-cache part --add, "
            f"or build everything again: {self.how_to_make} --force"
        )


def settings_of_group(made_of: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a group without the revision and the pinned commit. The files themselves are compared instead."""
    values = recordable(made_of)
    values.pop("revision", None)
    return {**values, "source": {key: value for key, value in values.get("source", {}).items() if key != "pinned_revision"}}


def _told(**files: Sequence[str]) -> str:
    return ", ".join(f"{counted(len(names), f'{kind} file')} ({listed(names)})" for kind, names in files.items() if names)
