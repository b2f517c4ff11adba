"""The cache of a data set in parts: its finished parts, checked and joined (parts/seal.py).

With `prepare`, the parts are those of the corpus (`PreparedSealedDataset`).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import Artifact, BuildJob, WriteResult
from niels_cache_assets.artifacts.dataset import Dataset
from niels_cache_assets.artifacts.parts.free_parts import summarize_parts
from niels_cache_assets.artifacts.parts.part import Part, PlannedCache, PlannedCorpusCache, PreparedPart, ValPart, WholePart
from niels_cache_assets.base.documents import merge_facts
from niels_cache_assets.build_cache import Provenance
from niels_cache_assets.corpus.identity import require_unchanged
from niels_cache_assets.disk.space import SpaceNeed
from niels_cache_assets.parts.seal import CODE_VERSION, SealInput, seal
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, SPLITS, Split, dataset_dir
from niels_cache_runtime.format.meta import Meta, read_meta


@dataclass(frozen=True, kw_only=True)
class SealedDataset(PlannedCache):
    """The cache of a pretrain data set with `parts` above 1."""

    resumable = False
    is_shared = True

    @property
    def member(self) -> str:
        return "all"

    @property
    def key(self) -> str:
        return f"pretrain/{self.name}"

    @property
    def directory(self) -> Path:
        return dataset_dir(self.root, "pretrain", self.name)

    def part(self, number: int) -> Part:
        """Return the artifact of a part. The first part of a data set with one part is built like a data set without parts."""
        kind = WholePart if number == 0 and self.source.parts == 1 else Part
        return self.sibling(kind, number=number)

    def val_part(self) -> ValPart:
        """Return the artifact of the val part."""
        return self.sibling(ValPart)

    def members(self) -> Iterator[PlannedCache]:
        """Yield the val part, if there is one, and the parts. All use the tokenizer, and the plan or the corpus, of this artifact."""
        shared = {"tokenizer": self.tokenizer, **self._shared}  # cached properties of the parts; each part would read them again
        for member in (*([self.val_part()] if self.source.has_val_part else []), *map(self.part, range(self.source.total_parts))):
            vars(member).update(shared)
            yield member

    @property
    def _shared(self) -> dict[str, Any]:
        return {"plan": self.plan}

    def steps(self) -> list[Artifact]:
        """Return everything that is built before this cache, in order, except the tokenizer."""
        val = [self.val_part()] if self.source.has_val_part else []
        return [self.parts_plan, *val, *map(self.part, range(self.source.total_parts))]

    def inputs(self) -> Sequence[str]:
        return ["tokenizer", *(step.key for step in self.steps())]

    def identity_with(self, tokenizer_sha256: str | None, vocab_size: int | None, revision: str | None) -> dict[str, Any]:
        near_check = {"near_check": "all"} if self.build.near_check == "all" else {}
        return {**super().identity_with(tokenizer_sha256, vocab_size, revision), "seal": CODE_VERSION, **near_check}

    def finished(self) -> Meta | None:
        meta = Dataset.finished(self)
        return meta if meta is None or self.content_matches(meta) else None  # links to a damaged part are damaged too

    def split_rule(self) -> str:
        rule = super().split_rule()
        if self.source.parts > 1 or self.source.has_own_splits or self.source.seeded_val_frac is not None:
            return rule
        return f"{rule}; added files go to train"

    def provenance(self, revision: str | None, fingerprint: str) -> Provenance:
        return Dataset.provenance(self, revision, fingerprint)

    def need(self) -> SpaceNeed | None:
        return None  # links take no disk space; if links are refused, the seal requests space itself

    def write(self, work: BuildJob) -> WriteResult:
        members = [*self._members()]
        provenance = self.provenance(work.revision, work.fingerprint)
        meta = {
            "kind": "pretrain",
            "built": True,
            "dataset_name": provenance.dataset_name,
            "dataset_revision": provenance.dataset_revision,
            "split_rule": provenance.split_rule,
            "seed": self.build.seed,
            "fingerprint": provenance.fingerprint,
            **seal(members, work.directory, target=self.directory, log=work.log),
        }
        meta = self.with_removed_ids_only(meta, work.identity)
        self._require_same_builds(members)
        if not meta["train_tokens"]:
            raise NielsCacheError(f"{self.directory}: no part has a document for train; nothing was written")
        meta = self.with_overlap(meta, work)
        return WriteResult(meta=meta, warning=self._shortfall(members))

    def _members(self) -> Iterator[SealInput]:
        """Yield the finished parts in order, the val part first.

        Raises:
            NielsCacheError: If a part cannot be joined.
        """
        of_parts: tuple[Split, ...] = ("train",) if self.source.has_val_part else SPLITS
        for member in self.members():
            splits: tuple[Split, ...] = ("val",) if isinstance(member, ValPart) else of_parts
            yield SealInput(name=member.member, directory=member.directory, meta=self._read_checked_meta(member), splits=splits)

    def _read_checked_meta(self, artifact: PlannedCache) -> Meta:
        """Return the meta.json of a part, after a comparison with the plan, the tokenizer and the files."""
        folder, advice = artifact.directory, f"build it again: {self.parts_plan.build_command}"
        if not (folder / META_NAME).exists():
            raise NielsCacheError(f"{folder}: this part does not exist yet; build it first: {self.parts_plan.build_command}")
        meta = read_meta(str(folder / META_NAME))
        if not artifact.is_current(meta):
            raise NielsCacheError(f"{folder}: {artifact.difference(meta)}; {advice}")
        artifact.check_files(meta)
        return meta

    def _require_same_builds(self, members: Sequence[SealInput]) -> None:
        """Raise NielsCacheError if the plan or a part was replaced since it was read. Its links may then be those of another build."""
        problem = f"was built again while the parts were being joined; run it again: {self.parts_plan.build_command}"
        self._require_same_input(problem)
        for member in members:
            try:
                current = read_meta(str(member.directory / META_NAME))
            except NielsCacheError as error:
                raise NielsCacheError(f"{member.directory}: {problem}") from error
            if current["meta_sha256"] != member.meta["meta_sha256"]:
                raise NielsCacheError(f"{member.directory}: {problem}")

    def _require_same_input(self, problem: str) -> None:
        if self.parts_plan.read().meta != self.plan.meta:
            raise NielsCacheError(f"{self.parts_plan.target}: {problem}")

    def parts_summary(self) -> str:
        """Return the number of parts that are built, stale, unfinished, and being built, in words. It costs a small read a part."""
        folders = [self.part(number).directory for number in range(self.source.total_parts)]
        finished = {folder for folder in folders if (folder / META_NAME).exists()}
        try:
            stale = sum(not self._is_current(member) for member in self.members() if member.directory in finished)
        except NielsCacheError:  # without a plan or a tokenizer, no part can be compared
            stale = 0
        return summarize_parts(folders, stale=stale)

    def _is_current(self, member: PlannedCache) -> bool:
        try:
            meta = read_meta(str(member.directory / META_NAME))
        except NielsCacheError:
            return False
        return member.is_current(meta)

    def _shortfall(self, members: Sequence[SealInput]) -> str | None:
        short = {member.name: member.meta["part"]["short"] for member in members if member.meta["part"]["short"]}
        if not short:
            return None
        return f"{sum(short.values()):,} tokens are missing, because the files of {', '.join(short)} ended early"


@dataclass(frozen=True, kw_only=True)
class PreparedSealedDataset(SealedDataset, PlannedCorpusCache):
    """The cache of a data set with `prepare` and `tokens_in_parts`."""

    def part(self, number: int) -> Part:
        return self.sibling(PreparedPart, number=number)

    def steps(self) -> list[Artifact]:
        return [*map(self.part, range(self.source.parts))]

    def inputs(self) -> Sequence[str]:
        return [*Dataset.inputs(self), *(step.key for step in self.steps())]

    @property
    def _shared(self) -> dict[str, Any]:
        return {"corpus": self.corpus, "prepared": self.corpus}

    def _require_same_input(self, problem: str) -> None:
        require_unchanged(self.corpus.directory, self.corpus.meta)

    def write(self, work: BuildJob) -> WriteResult:
        """Join the parts. Documents that the source or the cleaning have dropped count here, because they belong to no part."""
        written = super().write(work)
        meta, corpus = written.meta, self.corpus.meta
        dropped: Counter[str] = Counter(meta["dropped"]) + Counter(corpus["dropped"])
        return replace(written, meta={**meta, "dropped": dict(dropped), "facts": merge_facts([corpus["facts"], meta["facts"]])})
