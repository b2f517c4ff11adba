"""The common part of the caches that are built in parts: the val part, the parts and the seal.

A plan decides the parts. With `prepare`, the parts of the corpus decide them (`OfCorpus`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from niels_cache_assets.artifacts.dataset import Dataset
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.artifacts.pretrain import Pretrain
from niels_cache_assets.build_cache import CODE_VERSIONS, Provenance
from niels_cache_assets.config.fingerprint import fingerprint_of
from niels_cache_assets.corpus.cache_identity import dtype_identity
from niels_cache_assets.corpus.prepared import PreparedCorpus
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.parts.excluded import removed_ids, with_held_ids, with_ids
from niels_cache_assets.parts.layout import parts_dir
from niels_cache_assets.parts.plan import Plan, PlannedPart
from niels_cache_assets.sources.excluding import EXCLUDED, exclude_identity
from niels_cache_assets.sources.reading.part_stream import PartStream, part_stream
from niels_cache_assets.sources.with_parts import SourceWithParts
from niels_cache_assets.streaming.decontaminate import decontamination_identity
from niels_cache_runtime.cache.opening import check_sizes, listed_files, short_sha256
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.format.place import place_problem

Kind = TypeVar("Kind")


@dataclass(frozen=True, kw_only=True)
class OfPlan(Pretrain):
    """A cache that is built by a plan. Its identity is the plan and the tokenizer; the plan covers the settings and the revision."""

    source: SourceWithParts

    def beside(self, kind: Callable[..., Kind], **own: Any) -> Kind:
        """Return another artifact of this data set. own: its other fields."""
        return kind(registry=self.registry, root=self.root, name=self.name, source=self.source, build=self.build, **own)

    @property
    def parts_plan(self) -> PartsPlan:
        """The artifact of the plan."""
        return self.beside(PartsPlan)

    @cached_property
    def plan(self) -> Plan:
        """The plan of these settings. Raises NielsCacheError if it is missing or of other settings."""
        return self.parts_plan.read()

    @property
    @abstractmethod
    def member(self) -> str:
        """The name of the cache among the parts of its data set."""

    @property
    @abstractmethod
    def key(self) -> str: ...

    @property
    def directory(self) -> Path:
        return parts_dir(self.root, self.name) / self.member

    @property
    def planned_by(self) -> str:
        """The fingerprint of the plan, or of the group of its parts, that decides this cache. Growth never changes that of a part."""
        return self.plan.fingerprint

    def inputs(self) -> Sequence[str]:
        return ["tokenizer", f"plan/{self.name}"]

    def revision(self) -> str | None:
        assert self.tokenizer  # fail early: nothing can be built without it
        return self.plan.revision

    def identity_with(self, tokenizer_sha256: str | None, vocab_size: int | None, revision: str | None) -> dict[str, Any]:
        return {
            "plan": self.planned_by,
            "member": self.member,
            "special_tokens": self.registry.tokenizer.special_tokens,
            "tokenizer_sha256": tokenizer_sha256,
            "code_version": CODE_VERSIONS["pretrain"],
            **dtype_identity(self.build, vocab_size),
            **exclude_identity(self.source.exclude),
            **decontamination_identity(self.source.decontaminate, self.source.decontaminate_threshold, val_is_given=True),
        }

    def finished(self) -> Meta | None:
        meta = finished_meta(self.directory)
        if meta is not None and (problem := place_problem(meta, family="pretrain", name=self._full_name)):
            raise NielsCacheError(f"{self.directory}: {problem}")
        return meta if meta is not None and self.holds(meta) else None

    def holds(self, meta: Meta) -> bool:
        """Return whether the content of the files is that of meta.json. Reads them only with verify_parts = "sha256" in [build]."""
        if self.build.verify_parts == "sha256":
            try:
                self.check_files(meta)
            except NielsCacheError:
                return False
        return True

    def check_files(self, meta: Meta, directory: Path | None = None) -> None:
        """Raise NielsCacheError for a file that differs from meta.json, by size or by content ([build] verify_parts).

        directory: the folder of the cache, if it is another one.
        """
        directory = directory or self.directory
        listed = listed_files(meta, directory)
        found = {name: (directory / name).stat().st_size for name in listed if (directory / name).is_file()}
        check_sizes(directory, listed, found, verify=self.build.verify_parts)

    def provenance(self, revision: str | None, fingerprint: str) -> Provenance:
        return replace(super().provenance(revision, fingerprint), dataset_name=self._full_name)

    @property
    def _full_name(self) -> str:
        return f"{self.name}/{self.member}"

    def stream_of(self, planned: PlannedPart, **how: Any) -> PartStream:
        """Return the stream of a part. how: `skip`, `only` and `excludes` of `part_stream`. Raises NielsCacheError for a missing file."""
        return part_stream(
            self.source, planned.files, revision=planned.revision, text_field=planned.text_field, seed=self.build.seed, **how
        )

    def is_current(self, meta: Meta) -> bool:
        """Return whether the cache with this meta.json belongs to the plan and to the tokenizer."""
        return self.is_made_of(meta, self.identity(self.revision()))

    def is_made_of(self, meta: Meta, made_of: Mapping[str, Any]) -> bool:
        return super().is_made_of(meta, self.with_held_ids(meta, made_of))

    def with_held_ids(self, meta: Meta, made_of: Mapping[str, Any]) -> dict[str, Any]:
        """Return an identity in which only those ids of `exclude` count that this finished cache holds or has removed."""
        directory, beside, also = self.directory_of(meta), parts_dir(self.root, self.name), self.ids_elsewhere()
        return with_held_ids(made_of, self.source.exclude, meta, directory, beside=beside, also=also)

    def directory_of(self, meta: Meta) -> Path:
        """Return the folder of the cache with this meta.json."""
        return self.directory

    def ids_elsewhere(self) -> frozenset[str]:
        """Return the ids of `exclude` that decide this cache although they are not in its lineage, and its build did not remove them."""
        return frozenset()

    def of_removed_ids(self, meta: Meta, made_of: Mapping[str, Any]) -> Meta:
        """Return the meta.json of a new cache with a fingerprint for which only those ids of `exclude` count that this build removed."""
        if self.source.exclude is None:
            return meta
        return {**meta, "fingerprint": fingerprint_of(with_ids(made_of, removed_ids(meta) | self.ids_elsewhere()))}

    def difference(self, meta: Meta) -> str:
        """Return why the part with this meta.json does not belong to the plan."""
        part, then = meta.get("part", {}), meta.get("dataset_revision")
        if part.get("plan") != self.planned_by:
            if then != self.revision():
                return f"was built from revision {then}, but the plan is of revision {self.revision()}"
            return f"was built by another plan ({short_sha256(part.get('plan'))}), with other settings"
        if meta.get("tokenizer_sha256") != self.tokenizer.model_sha256:
            used, now = (short_sha256(sha256) for sha256 in (meta.get("tokenizer_sha256"), self.tokenizer.model_sha256))
            return f"was built with tokenizer {used}, but the cache now holds {now}"
        if self.source.exclude is not None or meta.get("facts", {}).get(EXCLUDED):
            return "was built with other ids in the list `exclude`, with other settings or by another code version"
        return "was built with other settings or by another code version"

    def split_rule(self) -> str:
        if self.source.has_own_splits:
            return super().split_rule()
        if self.source.seeded_val_frac is not None:
            return f"val by hash of seed, file and row: {self.source.seeded_val_frac:g} of documents, seed {self.build.seed}"
        return super().split_rule()


@dataclass(frozen=True, kw_only=True)
class OfCorpus(OfPlan):
    """A cache that is built from a corpus in parts. Its identity is the documents that stay, their splits, and the parts of the corpus."""

    @cached_property
    def corpus(self) -> PreparedCorpus:
        """The corpus, without its duplicates. Raises NielsCacheError if it or its drop list is not current."""
        assert self.prepared is not None  # the table has `prepare`
        return self.prepared

    @property
    def planned_by(self) -> str:
        return fingerprint_of({**self.corpus.identity(), "parts": [len(part) for part in self.corpus.parts]})

    def inputs(self) -> Sequence[str]:
        return Dataset.inputs(self)

    def revision(self) -> str | None:
        return Dataset.revision(self)

    def identity_with(self, tokenizer_sha256: str | None, vocab_size: int | None, revision: str | None) -> dict[str, Any]:
        of_cache = Dataset.identity_with(self, tokenizer_sha256, vocab_size, revision)
        return {**of_cache, "plan": self.planned_by, "member": self.member}

    def with_held_ids(self, meta: Meta, made_of: Mapping[str, Any]) -> dict[str, Any]:
        """Return the identity itself: the corpus has left out what `exclude` names."""
        return dict(made_of)

    def of_removed_ids(self, meta: Meta, made_of: Mapping[str, Any]) -> Meta:
        return meta

    def split_rule(self) -> str:
        return Pretrain.split_rule(self)
