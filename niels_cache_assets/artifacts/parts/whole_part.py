"""The first part of a data set that grew from one part: the cache that one process built, `pretrain/.parts/NAME/part-00000`.

Its split is that of a data set without parts. If this cache is still in `pretrain/NAME`, its files are linked, and nothing is read from the
source. Otherwise it is built again, which gives the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import Work, Written
from niels_cache_assets.artifacts.dataset import Dataset
from niels_cache_assets.artifacts.parts.part import Part
from niels_cache_assets.artifacts.parts.progress import checked
from niels_cache_assets.artifacts.pretrain import Pretrain
from niels_cache_assets.build_cache import OnProgress, Provenance
from niels_cache_assets.build_cache.pretrain import PretrainBuild
from niels_cache_assets.config.fingerprint import fingerprint_of
from niels_cache_assets.disk.space import Need
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.parts.seal import link_all
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.reading.part_stream import require_unchanged
from niels_cache_assets.sources.types import StreamContext
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import remove
from niels_cache_runtime.format.layout import dataset_dir
from niels_cache_runtime.format.meta import Meta

_BEFORE_THE_PIN = (None, "main")  # `part --add` replaces these by the commit; a cache of another branch is built again, with the same bytes


@dataclass(frozen=True, kw_only=True)
class WholePart(Part):
    """All first files of a data set as one part."""

    def identity_with(self, tokenizer_sha256: str | None, vocab_size: int | None, revision: str | None) -> dict[str, Any]:
        return Dataset.identity_with(self, tokenizer_sha256, vocab_size, revision)

    def is_made_of(self, meta: Meta, made_of: Any) -> bool:
        """Return whether the cache is this part. It may have been built before its commit was pinned.

        All ids of `exclude` count for a cache that one process built, also those that it does not hold.
        """
        return any(self._is_made_of(meta, each) for each in (self.with_held_ids(meta, made_of), dict(made_of)))

    def _is_made_of(self, meta: Meta, made_of: dict[str, Any]) -> bool:
        source, forms = dict(made_of["source"]), [made_of]
        if source.get("pinned_revision") is not None and source["pinned_revision"] == made_of["revision"]:
            forms += [{**made_of, "source": {**source, "pinned_revision": pinned}} for pinned in _BEFORE_THE_PIN]
        return meta.get("fingerprint") in [fingerprint_of(each) for each in forms]

    def directory_of(self, meta: Meta) -> Path:
        return self.directory if "part" in meta else self._place

    @cached_property
    def built(self) -> Meta | None:
        """The meta.json of the cache that one process built, if it is still in the place of the data set and has these settings."""
        meta = self._of_one_process()
        if meta is None or not self.is_current(meta):
            return None
        if self.build.verify_parts == "sha256":
            try:
                self.check_files_of(meta, self._place)
            except NielsCacheError:
                return None
        return meta

    @property
    def is_there(self) -> bool:
        """Whether one process has built the data set. It may have had other settings."""
        return self._of_one_process() is not None

    def _of_one_process(self) -> Meta | None:
        meta = finished_meta(self._place)
        if meta is None or not meta.get("built") or "parts" in meta or meta.get("dataset_name") != self.name:
            return None
        return meta

    @property
    def _place(self) -> Path:
        return dataset_dir(self.root, "pretrain", self.name)

    def need(self) -> Need | None:
        return None if self.built is not None else Pretrain.need(self)

    def split_rule(self) -> str:
        return Pretrain.split_rule(self)

    def builder(self, context: StreamContext, provenance: Provenance, progress: OnProgress | None) -> PretrainBuild:
        return Pretrain.builder(self, self._of_plan(context), provenance, progress)

    def _of_plan(self, context: StreamContext) -> StreamContext:
        """Return the context with the files of the plan, because the patterns may match other files now. A commit of the hub cannot."""
        return context if isinstance(self.source, HubData) else replace(context, files=[file for _, file in self.stream.files])

    def write(self, work: Work) -> Written:
        if self.built is None or work.force:
            require_unchanged(self.stream.files)
            written = Dataset.write(self, replace(work, progress=checked(work.lease, work.progress)))
            meta = self._with_part(self.of_removed_ids(written.meta, work.made_of))
            return Written(meta=meta, resumed=written.resumed, warning=written.warning, engines=written.engines)
        meta = self.built
        for left in work.directory.iterdir():  # of an unfinished build that was kept
            remove(left)
        link_all(meta, self._place, work.directory, target=self.directory, log=work.log)
        if finished_meta(self._place) != meta:
            raise NielsCacheError(f"{self._place}: was built again while its files were being linked; run it again")
        return Written(meta=self._with_part(self.of_removed_ids({**meta, "dataset_name": self._full_name}, work.made_of)))

    def _with_part(self, meta: Meta) -> Meta:
        budget = self.source.train_tokens
        short = 0 if budget is None else max(0, budget - meta["train_tokens"])
        return {
            **{key: value for key, value in meta.items() if key != "meta_sha256"},
            "part": {"number": self.number, "plan": self.planned.plan, "short": short},
        }
