"""The indices of a blend, in Megatron-LM's order.

The directory of each index is named after the hash of everything that decides the index. The runtime's index cache
(niels_cache_runtime/megatron/index_cache.py) locks, stages and commits each index. It uses the same code as other artifacts
(format/commit.py). Only after all indices are open, this artifact knows whether an index was missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import Artifact, Held, Log, Outcome, Work, Written
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.indices.prebuild import BlendPlan, Progress, build_indices, hash_of_all, index_folder, plan_of
from niels_cache_runtime.format.meta import Meta


def prebuild(plan: BlendPlan, *, root: Path, progress: Progress | None = None) -> Outcome:
    """Build the missing indices of a plan. progress: called with (name of the array, done, total).

    Raises NielsCacheError if a data set cannot be opened, if no sample can be made, or if the child process that builds dies. Raises
    NotWrittenError if the folder cannot be written.
    """
    on_progress = None if progress is None else lambda told: progress(*told)
    return materialize(BlendIndex(root=root, name=plan.part, plan=plan), on_progress=on_progress)


@dataclass(frozen=True, kw_only=True)
class BlendIndex(Artifact):
    """The indices of one plan. The plan belongs to a table [blend.NAME] or to any other blend. If `plan` is None, the plan of the table is
    used.

    The record is the result of `write`; it is not stored. indices: the indices of the data sets in their order, then the index of the blend
    (a single data set without weights has no blend index). hash: one hash over all indices, which changes only if the samples of a run
    change.
    """

    registry: Registry | None = None
    root: Path
    name: str
    plan: BlendPlan | None = None

    version = "1"  # every hash also covers the version of the algorithms
    record = None

    @property
    def key(self) -> str:
        return f"index/{self.name}"

    @property
    def directory(self) -> Path:
        return index_folder(self.root)

    def inputs(self) -> Sequence[str]:
        return [f"pretrain/{member}" for member in self.registry.blend[self.name].weights] if self.registry is not None else []

    def finished(self) -> Meta | None:
        return None

    def identity(self, revision: str | None) -> dict[str, Any]:
        return {}

    def lock(self, *, wait: bool, log: Log) -> AbstractContextManager[Held]:
        return nullcontext(Held())

    def stage(self, held: Held, *, log: Log) -> AbstractContextManager[Path]:
        return nullcontext(self.directory)

    def write(self, work: Work) -> Written:
        plan = self.plan
        if plan is None:
            assert self.registry is not None
            plan = plan_of(self.registry, self.name, root=self.root)
        on_progress = work.progress
        progress = None if on_progress is None else lambda *told: on_progress(told)
        indices, built = build_indices(plan, root=self.root, progress=progress)
        return Written(meta={"indices": indices, "hash": hash_of_all(indices)}, changed=built)
