"""The cache of a data set in parts: its finished parts, checked and joined (parts/seal.py).

The parts are those of the plan. With `prepare`, they are those of the corpus.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from niels_cache_assets.artifacts.base import Artifact, BuildJob, WriteResult
from niels_cache_assets.artifacts.dataset import (
    DatasetArtifact,
    PretrainCache,
    SftCache,
    check_files,
    content_matches,
    split_rule,
    with_overlap,
)
from niels_cache_assets.artifacts.parts.part import GrownPart, PartCache, PartFolder, PartOfCorpus, PartOfPlan, ValPart, planned_identity
from niels_cache_assets.base.documents import merge_facts
from niels_cache_assets.base.fingerprint import Identity, fingerprint_of
from niels_cache_assets.build_cache import CODE_VERSIONS
from niels_cache_assets.corpus.identity import require_unchanged
from niels_cache_assets.disk.journal import SCRATCH_NAME
from niels_cache_assets.parts.seal import CODE_VERSION, SealInput, seal
from niels_cache_assets.parts.store import folder_of
from niels_cache_assets.sources.types import SourceWithParts
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, SPLITS, Split, copy_name, doc_ends_name, file_edges_name
from niels_cache_runtime.format.meta import Meta, read_meta


class JoinedCache(DatasetArtifact[SourceWithParts]):
    """The cache of a pretrain data set in parts."""

    version = CODE_VERSIONS["pretrain"]
    member = "all"
    is_shared = True

    @property
    def is_of_corpus(self) -> bool:
        """Whether the parts are those of the corpus, and not those of a plan."""
        return self.spec.source.has_corpus

    @property
    def planned_by(self) -> str:
        """The fingerprint of the plan, or of the corpus and its parts."""
        return self.spec.corpus_plan if self.is_of_corpus else self.spec.plan.fingerprint

    def part(self, number: int) -> PartCache:
        """Return the artifact of a part."""
        is_grown = number == 0 and self.spec.source.parts == 1
        kind = PartOfCorpus if self.is_of_corpus else GrownPart if is_grown else PartOfPlan
        return kind(spec=self.spec, number=number)

    def val_part(self) -> ValPart:
        """Return the artifact of the val part."""
        return ValPart(spec=self.spec)

    def members(self) -> list[PartFolder]:
        """Return the val part, if there is one, and the parts. All use the tokenizer, and the plan or the corpus, of this artifact.

        Raises:
            NielsCacheError: If one of these is missing or has other settings.
        """
        self.revision()
        return self._members()

    def _members(self) -> list[PartFolder]:
        val = [self.val_part()] if self.spec.source.has_val_part else []
        return [*val, *map(self.part, range(self.spec.source.total_parts))]

    def steps(self) -> list[Artifact]:
        """Return everything that is built before this cache, in order, except the tokenizer and the corpus."""
        return [*([] if self.is_of_corpus else [self.spec.parts_plan]), *self._members()]

    def inputs(self) -> list[str]:
        return [*(self.spec.inputs() if self.is_of_corpus else ["tokenizer"]), *(step.key for step in self.steps())]

    def finished(self) -> Meta | None:
        meta = super().finished()
        return meta if meta is None or content_matches(self.spec, self.directory, meta) else None  # links to a damaged part are damaged too

    def revision(self) -> str | None:
        assert self.spec.recorded_tokenizer  # fail early: nothing can be built without it
        return self.spec.revision() if self.is_of_corpus else self.spec.plan.revision

    def identity(self, revision: str | None) -> Identity:
        if self.is_of_corpus:
            own = {**super().identity(revision), "plan": self.planned_by, "member": self.member}
        else:
            own = planned_identity(self.spec, self.member, self.planned_by)
        near_check = {"near_check": "all"} if self.spec.build.near_check == "all" else {}
        return {**own, "seal": CODE_VERSION, **near_check}

    def matches(self, meta: Meta, identity: Identity) -> bool:
        return super().matches(meta, self.spec.exclude_list.present_identity(meta, identity, self.directory))

    @property
    def split_rule(self) -> str:
        """The rule that splits the documents into train and val, as one line for meta.json."""
        source, rule = self.spec.source, split_rule(self.spec)
        if source.seeded_val_frac and source.added:
            return f"{rule}; each addition has the next seed"
        is_same = source.parts > 1 or source.has_own_splits or source.seeded_val_frac is not None
        return rule if is_same else f"{rule}; added files go to train"

    def write(self, work: BuildJob) -> WriteResult:
        spec = self.spec
        of_parts: tuple[Split, ...] = ("train",) if spec.source.has_val_part else SPLITS
        stored = work.stored
        folder, link = spec.parts_folder, None
        if stored is not None:
            folders = {directory.name: key for directory, key in self.folders_in_store().items()}
            copies = map(copy_name, range(1, spec.source.fim.copies if spec.source.fim else 1))
            folder, names = (
                work.directory / SCRATCH_NAME,
                [META_NAME, *map(doc_ends_name, (*SPLITS, *copies)), *map(file_edges_name, SPLITS)],
            )
            link = stored.join(folders, names, folder)
        members = [
            SealInput(
                name=member.directory.name,
                directory=folder / member.directory.name,
                meta=self._read_checked_meta(member, folder / member.directory.name),
                splits=("val",) if isinstance(member, ValPart) else of_parts,
            )
            for member in self.members()
        ]
        meta = {
            "kind": "pretrain",
            "built": True,
            "dataset_name": spec.name,
            "dataset_revision": work.revision,
            "split_rule": self.split_rule,
            "seed": spec.build.seed,
            "fingerprint": work.fingerprint,
            **seal(members, work.directory, target=self.directory, log=work.log, link=link),
        }
        meta = spec.exclude_list.with_removed_ids_only(meta, work.identity)
        self._require_same_builds(members)
        if not meta["train_tokens"]:
            raise NielsCacheError(f"{self.directory}: no part has a document for train; nothing was written")
        if self.is_of_corpus:  # documents that the source or the cleaning have dropped count here, because they belong to no part
            corpus = spec.corpus.meta
            dropped: Counter[str] = Counter(meta["dropped"]) + Counter(corpus["dropped"])
            meta = {**meta, "dropped": dict(dropped), "facts": merge_facts([corpus["facts"], meta["facts"]])}
        short = {member.name: member.meta["part"]["short"] for member in members if member.meta["part"]["short"]}
        missing = f"{sum(short.values()):,} tokens are missing, because the files of {', '.join(short)} ended early" if short else None
        return WriteResult(meta=with_overlap(spec, meta, work), warning=missing)

    def folders_in_store(self) -> dict[Path, str]:
        """Return the folder of each part in a store, by its folder on this machine."""
        found = ((each.directory, fingerprint_of(each.identity(each.revision()))) for each in self.members())
        return {directory: folder_of(directory.name, fingerprint) for directory, fingerprint in found}

    def _read_checked_meta(self, member: PartFolder, folder: Path) -> Meta:
        """Return the meta.json of a part, after a comparison with the plan, the tokenizer and the files.

        Args:
            member: The part.
            folder: Where its meta.json is. Its files are there, too, unless they are in a store.

        Raises:
            NielsCacheError: If the part cannot be joined.
        """
        command = self.spec.parts_plan.build_command
        if not (folder / META_NAME).exists():
            raise NielsCacheError(f"{folder}: this part does not exist yet; build it first: {command}")
        meta = read_meta(folder / META_NAME)
        if not member.is_current(meta):
            raise NielsCacheError(f"{folder}: {member.difference(meta)}; build it again: {command}")
        if folder == member.directory:
            check_files(folder, meta, verify=self.spec.build.verify_parts)
        return meta

    def _require_same_builds(self, members: Sequence[SealInput]) -> None:
        """Raise NielsCacheError if the plan or a part was replaced since it was read. Its links may then be those of another build."""
        plan = self.spec.parts_plan
        problem = f"was built again while the parts were being joined; run it again: {plan.build_command}"
        if self.is_of_corpus:
            require_unchanged(self.spec.corpus.directory, self.spec.corpus.meta)
        elif plan.read().meta != self.spec.plan.meta:
            raise NielsCacheError(f"{plan.target}: {problem}")
        for member in members:
            try:
                require_unchanged(member.directory, member.meta)
            except NielsCacheError as error:
                raise NielsCacheError(f"{member.directory}: {problem}") from error


DatasetCache = PretrainCache | JoinedCache | SftCache  # what a data set builds in its folder
