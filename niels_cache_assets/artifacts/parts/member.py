"""The plan of a data set in parts, as the mixtures that read the data set see it.

If the plan is on disk, a mixture reads the same files at the same revision as the parts. Otherwise the plan is made in memory, in the same
way as on disk.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from niels_cache_assets.artifacts.base import Work
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.parts.plan import Plan
from niels_cache_assets.sources.reading.listed import FilesOfGroup
from niels_cache_runtime.errors import NielsCacheError


class PlanOfMember:
    """A `sources.types.MemberPlan`. Reads the plan on disk once, when it is needed."""

    def __init__(self, artifact: PartsPlan) -> None:
        self._artifact = artifact
        self._found: tuple[str | None, tuple[FilesOfGroup, ...]] | None = None

    def revision(self) -> str | None:
        return None if self._on_disk is None else self._on_disk.revision

    def settled_revision(self) -> str | None:
        meta = self._artifact.finished()
        return meta["dataset_revision"] if meta is not None and self._artifact.is_settled(meta) else None

    def groups(self, revision: str | None) -> tuple[FilesOfGroup, ...]:
        if self._found is None or self._found[0] != revision:
            on_disk = self._on_disk
            plan = on_disk if on_disk is not None and on_disk.revision == revision else self._made_in_memory(revision)
            self._found = (
                revision,
                tuple(
                    FilesOfGroup(
                        listed=group.listed,
                        revision=group.revision,
                        text_field=group.text_field,
                        parts=tuple((part.files, part.val_tokens or 0) for part in group.parts),
                    )
                    for group in plan.groups
                ),
            )
        return self._found[1]

    @cached_property
    def _on_disk(self) -> Plan | None:
        try:
            return self._artifact.read()
        except NielsCacheError:  # missing, or of other settings
            return None

    def _made_in_memory(self, revision: str | None) -> Plan:
        work = Work(directory=Path(), revision=revision, made_of={}, force=False, progress=None, log=lambda message: None)
        return Plan.of(self._artifact.write(work).meta)  # a plan writes no file itself
