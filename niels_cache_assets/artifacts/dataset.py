"""The caches of data sets: pretrain, SFT, and the cache of a data set that is switched off.

If a data set has `prepare`, its cache is built from its corpus and not from its source. The documents in its drop list (the list of
duplicates) are left out. Only the build of the corpus then asks upstream for its revision.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import Artifact, BuildJob, WriteResult, add_unmatched_ids
from niels_cache_assets.artifacts.cache_identity import cache_identity, is_prepared, val_may_come_late
from niels_cache_assets.artifacts.prepared_corpora import open_prepared, with_corpus_readers
from niels_cache_assets.base.config_path import SENTINELS
from niels_cache_assets.base.documents import Document, DocumentBatch, Documents
from niels_cache_assets.base.fingerprint import fingerprint_of
from niels_cache_assets.build_cache import CODE_VERSIONS, OnProgress, Provenance
from niels_cache_assets.build_cache.base import CacheBuild, choose_token_dtype, write_unbuilt
from niels_cache_assets.build_cache.pretrain import PretrainBuild
from niels_cache_assets.build_cache.resume import JournalFingerprint, Resume
from niels_cache_assets.build_cache.sft import SftBuild
from niels_cache_assets.chats.templates import Template, find_template
from niels_cache_assets.corpus.held_out import HeldOutDocuments, reference_texts
from niels_cache_assets.corpus.identity import mixture_dependencies
from niels_cache_assets.corpus.prepared import PreparedCorpus
from niels_cache_assets.disk.space import SpaceNeed, pretrain_need, sft_need
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.facts.contents import budget_rule
from niels_cache_assets.facts.disjoint import OverlapSettings, compare_splits
from niels_cache_assets.facts.drops import DropSummary, summarize_drops
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.project.tables import BuildSettings
from niels_cache_assets.sources.notes import notes_on_source
from niels_cache_assets.sources.reading.files import file_bytes
from niels_cache_assets.sources.reading.keep import kept_columns
from niels_cache_assets.sources.reading.references import own_revision, revision_with_references
from niels_cache_assets.sources.text_column import reading_warning, with_text_field
from niels_cache_assets.sources.types import PretrainSource, SftSource, Source, StreamContext
from niels_cache_assets.streaming.decontaminate import ReferenceTexts
from niels_cache_assets.streaming.feed import Feed, ValShare
from niels_cache_assets.streaming.splits import UNLIMITED
from niels_cache_assets.tokenizer.encoder import EngineMismatchError
from niels_cache_assets.tokenizer.engines import reference_of
from niels_cache_assets.tokenizer.kinds import TextTokenizer, load_tokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, SPLITS, TOKEN_DTYPES, Family, dataset_dir
from niels_cache_runtime.format.meta import ForeignMetaError, Meta, check_location, is_foreign, load_meta, location_problem


@dataclass(frozen=True, kw_only=True)
class Dataset(Artifact):
    """The cache of one data set.

    Attributes:
        source: The table of the data set, with the settings of this run.
        build: The table [build], with the settings of this run.
    """

    registry: Registry
    root: Path
    name: str
    source: Source
    build: BuildSettings

    resumable = True
    uses_network = True
    noun = "cache"

    @abstractmethod
    def builder(self, context: StreamContext, provenance: Provenance, progress: OnProgress | None) -> CacheBuild:
        """Return the builder that streams the source in this context."""

    @property
    def family(self) -> Family:
        """The family, `pretrain` or `sft`."""
        return self.source.family

    @property
    def key(self) -> str:
        return f"{self.family}/{self.name}"

    @property
    def directory(self) -> Path:
        return dataset_dir(self.root, self.family, self.name)

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer in the folder `root`.

        Raises:
            NielsCacheError: If it does not exist.
        """
        return load_tokenizer(self.registry.tokenizer, self.root)

    @property
    def reference(self) -> str | None:
        return reference_of(self.tokenizer)

    @property
    def token_bytes(self) -> int:
        """The size of a token of the cache.

        Raises:
            NielsCacheError: If [build] token_dtype is too narrow for the tokenizer.
        """
        return TOKEN_DTYPES[choose_token_dtype(self.tokenizer.vocab_size, self.build.token_dtype)].itemsize

    @cached_property
    def siblings(self) -> Mapping[str, PretrainSource]:
        """The pretrain tables by name, for a mixture. A table with a corpus is replaced by a reader of this corpus."""
        return with_corpus_readers(self.registry, self.root)

    @cached_property
    def prepared(self) -> PreparedCorpus | None:
        """The corpus that the cache is built from instead of the source, or None if the data set has no `prepare`."""
        if not is_prepared(self.source):
            return None
        return open_prepared(self.registry, self.name, root=self.root, source=self.source, build=self.build)

    @cached_property
    def text_bytes(self) -> int | None:
        """The number of bytes of the data set's text, or None if it is unknown."""
        if self.prepared is not None:
            return int(self.prepared.meta["bytes"]["after"])
        return file_bytes(getattr(self.source, "files", None), self.source.endings)

    def inputs(self) -> Sequence[str]:
        others = {*mixture_dependencies(self.registry, self.source), *getattr(self.source, "decontaminate_against", ())}
        read = [each for each in self.registry.prepared() if each == self.name or each in others]
        searched = any("dedup" in self.registry.pretrain[each].prepare for each in read)
        return ["tokenizer", *(f"corpus/{each}" for each in read), *(["corpus/duplicates"] if searched else [])]

    def unavailable(self) -> str | None:
        missing = self.source.missing_setting()
        if missing is not None:
            raise NielsCacheError(f"{self.registry.origin}: [{self.family}.{self.name}] cannot be built: it needs {missing}")
        return None

    def finished(self) -> Meta | None:
        meta = finished_meta(self.directory)
        if meta is not None and meta.get("built"):
            check_location(meta, self.directory)  # a folder that was swapped or copied is not a cache hit, and a build must not replace it
        if self.is_of_another_program():
            raise NielsCacheError(
                f"{self.directory / META_NAME}: this cache was made by another program; move its folder away, or replace it with --force"
            )
        return meta

    def is_of_another_program(self) -> bool:
        """Return whether a program other than niels-cache made the existing cache. The cache may be complete or incomplete."""
        try:
            return is_foreign(load_meta(str(self.directory / META_NAME)))
        except ForeignMetaError:
            return True
        except NielsCacheError:
            return False

    def revision(self) -> str | None:
        assert self.tokenizer  # fail early: nothing can be built without it
        return revision_with_references(self.source, self._own_revision(), self.siblings)

    def _own_revision(self) -> str | None:
        """Return the revision of what the build reads: the corpus, or the source if there is no corpus."""
        if self.prepared is None:
            return self.source.revision(self.siblings)
        revision: str | None = self.prepared.meta["dataset_revision"]
        return revision

    def source_revision(self, revision: str | None) -> str | None:
        """Return the revision of the source alone.

        Args:
            revision: The revision that `revision` returned for this build.
        """
        return own_revision(self.source, self._own_revision, self.siblings, revision)

    def identity(self, revision: str | None) -> dict[str, Any]:
        return self.identity_with(self.tokenizer.model_sha256, self.tokenizer.vocab_size, revision)

    def identity_with(self, tokenizer_sha256: str | None, vocab_size: int | None, revision: str | None) -> dict[str, Any]:
        """Return everything that decides the bytes of the cache if this tokenizer is used."""
        return cache_identity(
            self.registry,
            self.source,
            self.build,
            tokenizer_sha256=tokenizer_sha256,
            vocab_size=vocab_size,
            revision=revision,
            siblings=self.siblings,
            prepared=self.prepared,
        )

    def write(self, work: BuildJob) -> WriteResult:
        for note in notes_on_source(self.source) if self.prepared is None else ():
            work.log(note)
        with HeldOutDocuments(self.registry, root=self.root, siblings=self.siblings, tokenizer=self.tokenizer) as held_out:
            revision = self.source_revision(work.revision)
            context = StreamContext(
                seed=self.build.seed, revision=revision, log=work.log, siblings=self.siblings, held_out=held_out, building=self.key
            )
            build, resume = self.builder(context, self.provenance(work.revision, work.fingerprint), work.report), work.resume
            try:
                meta = build.write(work.directory, resume)
            except EngineMismatchError as error:
                command = self.registry.build_command(self.name, self.root, "tokenizer.engine=reference")
                raise NielsCacheError(f"{self.key}: {error}; go on with the reference: {command}") from error
        meta = {**meta, **with_text_field(meta["source"], meta["facts"])}
        # the corpus has already given this warning
        warning = None if self.prepared else reading_warning(meta)
        return WriteResult(meta=meta, resumed=resume.resumed_tokens, warning=warning, engines=build.encoder.uses)

    def drop_summary(self, meta: Meta) -> DropSummary:
        if self.is_part:
            return DropSummary()
        if self.prepared is not None:  # the corpus has given its own warning
            return summarize_drops(meta, already_reported=self.prepared.dropped)
        return add_unmatched_ids(summarize_drops(meta), self.source, meta)

    def journal(self, revision: str | None) -> JournalFingerprint:
        if self.prepared is not None and not getattr(self.source, "decontaminate_against", ()):
            revision = self.prepared.meta["dataset_revision"]
        identity = self.identity(revision)
        resume = Resume(fingerprint=fingerprint_of(identity), identity=identity)
        context = StreamContext(seed=self.build.seed, revision=revision, siblings=self.siblings)
        build = self.builder(context, self.provenance(revision, resume.fingerprint), None)
        return build.journal_fingerprint(resume)

    def provenance(self, revision: str | None, fingerprint: str) -> Provenance:
        """Return the entries of meta.json about the origin of the cache."""
        return Provenance(
            dataset_name=self.name,
            dataset_config=self.source.hub_config,
            dataset_revision=revision,
            source=self.source.describe(),
            split_rule=self.split_rule(),
            fingerprint=fingerprint,
        )

    @abstractmethod
    def split_rule(self) -> str:
        """Return the rule that splits the data set into train and val, as one line for meta.json."""


@dataclass(frozen=True, kw_only=True)
class SwitchedOff(Artifact):
    """The empty cache of a data set that is switched off, with a meta.json that says so. A finished cache is kept instead."""

    dataset: Dataset

    states = ("disabled", "disabled")

    @property
    def key(self) -> str:
        return self.dataset.key

    @property
    def directory(self) -> Path:
        return self.dataset.directory

    def unavailable(self) -> str | None:
        return self.dataset.unavailable()

    def finished(self) -> Meta | None:
        meta = finished_meta(self.directory)
        if meta is not None and meta.get("built"):
            check_location(meta, self.directory)
        elif meta is not None and location_problem(meta, family=self.dataset.family, name=self.dataset.name) is not None:
            return None  # an empty cache may be replaced
        return meta

    def reason_to_keep_stale(self) -> str | None:
        meta = self.finished()
        if not self.dataset.is_of_another_program() and not (meta is not None and meta.get("built")):
            return None
        return f"{self.dataset.name} is switched off; its finished cache is kept (force replaces it)"

    def identity(self, revision: str | None) -> dict[str, Any]:
        return {"enabled": False, "source": self.dataset.source.source}

    def write(self, work: BuildJob) -> WriteResult:
        provenance = self.dataset.provenance(None, work.fingerprint)
        return WriteResult(meta=write_unbuilt(work.directory, family=self.dataset.family, provenance=provenance))


@dataclass(frozen=True, kw_only=True)
class Pretrain(Dataset):
    """The cache of a pretrain data set."""

    source: PretrainSource

    version = CODE_VERSIONS["pretrain"]

    def need(self) -> SpaceNeed | None:
        # how much text a drop list or `decontaminate_against` removes is unknown
        exact = self.prepared is not None and self.prepared.duplicates is None and not self.source.decontaminate_against
        return pretrain_need(
            train_tokens=self.source.train_tokens,
            val_tokens=self.source.val_tokens,
            token_bytes=self.token_bytes,
            text_bytes=self.text_bytes,
            exact=exact,
        )

    def write(self, work: BuildJob) -> WriteResult:
        written = super().write(work)
        return written if self.is_part else replace(written, meta=self.with_overlap(written.meta, work))

    def with_overlap(self, meta: Meta, work: BuildJob) -> Meta:
        """Return the content of meta.json with the result of comparing train with val, whose files are finished."""
        if meta["val_tokens"]:
            work.log("comparing train with val")
        settings = OverlapSettings.of(self.registry, self.source, self.build)
        overlap = compare_splits(work.directory, meta, self.tokenizer, settings, threads=self.build.threads, scratch=work.directory)
        return {**meta, "overlap": overlap.record}

    def split_rule(self) -> str:
        if self.source.has_own_splits:
            return "upstream's own splits"
        if self.source.seeded_val_frac is not None:
            return f"seeded {self.source.seeded_val_frac:g} of documents to val, seed {self.build.seed}"
        return budget_rule(train_tokens=self.source.train_tokens, val_tokens=self.source.val_tokens or 0)

    def builder(self, context: StreamContext, provenance: Provenance, progress: OnProgress | None) -> PretrainBuild:
        source, feed = self.source, self._feed(context)

        def val_documents() -> Iterator[Document]:
            context.log("reading val, to keep its documents out of train")
            for batch in feed.read_unreported():  # only the second pass counts dropped documents
                documents = DocumentBatch.of(batch)
                yield from documents[documents.split == SPLITS.index("val")]

        return self.new_build(
            items=feed,
            max_train_tokens=UNLIMITED if source.train_tokens is None else source.train_tokens,
            max_val_tokens=source.val_tokens or 0,
            seed=self.build.seed,
            shuffle_buffer=source.builder_shuffle or None,
            val_texts=val_documents() if source.decontaminate != "off" and val_may_come_late(source) else None,
            references=self._references(context),
            provenance=provenance,
            progress=progress,
        )

    def new_build(self, **own: Any) -> PretrainBuild:
        """Return a build with the settings that all builds for this data set have.

        Args:
            **own: The other fields of the build.
        """
        return PretrainBuild(
            out_dir=str(self.directory),
            tokenizer=self.tokenizer,
            shard_bytes=self.build.shard_bytes,
            threads=self.build.threads,
            token_dtype=self.build.token_dtype,
            decontaminate=self.source.decontaminate,
            decontaminate_threshold=self.source.decontaminate_threshold,
            keep=self.keep,
            **own,
        )

    @property
    def keep(self) -> tuple[str, ...]:
        """The columns whose values are kept in lineage."""
        return kept_columns(self.source, self.registry.pretrain)

    def _references(self, context: StreamContext) -> ReferenceTexts | None:
        """Return the texts of `decontaminate_against`, or None without this key."""
        if not self.source.decontaminate_against:
            return None
        held_out = context.held_out if isinstance(context.held_out, HeldOutDocuments) else None
        return reference_texts(self.registry, self.source, context, held_out)

    def _feed(self, context: StreamContext) -> Feed[Documents]:
        """Return the documents of the corpus, or the documents of the source if the data set has no corpus.

        Documents of a corpus already have a split.
        """
        if self.prepared is not None:
            return Feed(self.prepared.stream, context, expected=self.prepared.kept if self.source.train_tokens is None else None)
        if self.source.seeded_val_frac is None:
            return Feed(self.source.kept_documents, context)

        def count() -> int:
            context.log("counting documents, to split them by val_frac")
            return self.source.count_unsplit(context)

        share = ValShare(val_frac=self.source.seeded_val_frac, seed=self.build.seed, count=count, exclude=self.source.exclude)
        return Feed(self.source.documents, context, share=share)


@dataclass(frozen=True, kw_only=True)
class Sft(Dataset):
    """The cache of an SFT data set."""

    source: SftSource

    version = CODE_VERSIONS["sft"]

    def unavailable(self) -> str | None:
        problem = self.registry.tokenizer.roles_problem if self.source.template == SENTINELS else None
        if problem is not None and self.source.enabled:
            raise NielsCacheError(f"{self.registry.origin}: [{self.key.replace('/', '.')}] cannot be built: {problem}")
        return super().unavailable()

    @cached_property
    def template(self) -> Template | None:
        """The chat template, or None for `sentinels`.

        Raises:
            NielsCacheError: If the template is missing.
        """
        return find_template(self.source.template, self.registry.tokenizer)

    def identity_with(self, tokenizer_sha256: str | None, vocab_size: int | None, revision: str | None) -> dict[str, Any]:
        identity = super().identity_with(tokenizer_sha256, vocab_size, revision)
        return identity if self.template is None else {**identity, "template": self.template.identity}

    def need(self) -> SpaceNeed | None:
        return sft_need(self.text_bytes, token_bytes=self.token_bytes)

    def split_rule(self) -> str:
        unit = "conversation" if self.source.turns == "each" and self.source.split_unit == "example" else self.source.split_unit
        return f"seeded {self.source.val_frac:g} of {unit}s to val, seed {self.build.seed}"

    def builder(self, context: StreamContext, provenance: Provenance, progress: OnProgress | None) -> SftBuild:
        return SftBuild(
            items=Feed(self.source.conversations, context),
            out_dir=str(self.directory),
            tokenizer=self.tokenizer,
            val_frac=self.source.val_frac,
            seed=self.build.seed,
            split_by="example" if self.source.split_unit == "prompt" else self.source.split_unit,
            preference=self.source.is_preference,
            max_tokens=getattr(self.source, "max_tokens", None),
            turns=self.source.turns,
            on_invalid="drop",
            threads=self.build.threads,
            token_dtype=self.build.token_dtype,
            template=self.template,
            provenance=provenance,
            progress=progress,
        )
