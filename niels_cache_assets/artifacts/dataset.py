"""The caches of data sets: pretrain, SFT, and the cache of a data set that is switched off.

If a data set has `prepare`, its cache is built from its corpus and not from its source. The documents in its drop list (the list of
duplicates) are left out. Only the build of the corpus then asks upstream for its revision.

A part of a pretrain data set is a `PretrainCache` that reads other documents, has other budgets, and takes a lease instead of a lock. Its
classes are in artifacts/parts/part.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from niels_cache_assets.artifacts.base import Artifact, BuildJob, WriteResult, add_unmatched_ids, corpus_keys
from niels_cache_assets.artifacts.cache_identity import cache_identity, is_prepared, val_may_come_late
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.artifacts.prepared_corpora import open_prepared, with_corpus_readers
from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.base.config_path import SENTINELS
from niels_cache_assets.base.documents import Document, DocumentBatch, Documents
from niels_cache_assets.base.fingerprint import Identity, fingerprint_of
from niels_cache_assets.build_cache import CODE_VERSIONS
from niels_cache_assets.build_cache.base import CacheBuild, OnProgress, Provenance, choose_token_dtype, write_unbuilt
from niels_cache_assets.build_cache.resume import JournalFingerprint, Resume
from niels_cache_assets.chats.templates import Template, find_template
from niels_cache_assets.corpus.identity import mixture_dependencies
from niels_cache_assets.corpus.prepared import PreparedCorpus
from niels_cache_assets.disk.space import SpaceNeed, pretrain_need, sft_need
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.facts.contents import budget_rule
from niels_cache_assets.facts.drops import DropSummary, summarize_drops
from niels_cache_assets.facts.published import finished_cache
from niels_cache_assets.parts.exclusion import ExcludeList
from niels_cache_assets.parts.layout import parts_dir
from niels_cache_assets.parts.plan import Plan, divide_in_proportion
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.project.tables import BuildSettings
from niels_cache_assets.sources.excluding import ids_of_key
from niels_cache_assets.sources.notes import notes_on_source
from niels_cache_assets.sources.reading.keep import kept_columns
from niels_cache_assets.sources.reading.references import own_revision, revision_with_references
from niels_cache_assets.sources.text_column import reading_warning, with_text_field
from niels_cache_assets.sources.types import PretrainSource, SftSource, Siblings, Source, SourceWithParts, StreamContext
from niels_cache_assets.streaming.decontaminate import ReferenceTexts
from niels_cache_assets.streaming.feed import Feed, ValShare
from niels_cache_assets.streaming.splits import UNLIMITED
from niels_cache_assets.tokenizer.encoder import EngineMismatchError
from niels_cache_assets.tokenizer.engines import reference_of
from niels_cache_assets.tokenizer.kinds import TextTokenizer, load_tokenizer, recorded_tokenizer
from niels_cache_runtime.cache.opening import Verify, check_sizes, listed_files
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, SPLITS, TOKEN_DTYPES, Family, dataset_dir
from niels_cache_runtime.format.meta import ForeignMetaError, Meta, check_location, is_foreign, load_meta, location_problem

if TYPE_CHECKING:
    from niels_cache_assets.build_cache.pretrain import PretrainBuild
    from niels_cache_assets.build_cache.sft import SftBuild

S = TypeVar("S", bound=Source, covariant=True)


@dataclass(frozen=True, kw_only=True)
class DatasetSpec(Generic[S]):
    """A data set with the settings of one run, and everything that its caches read.

    The tokenizer, the plan and the corpus are opened once for all artifacts that hold the same spec.

    Attributes:
        source: The table of the data set, with the settings of this run.
        build: The table [build], with the settings of this run.
        given_plan: The plan of a data set in parts, if the caller has made it in memory. None: the plan on disk.
    """

    registry: Registry
    root: Path
    name: str
    source: S
    build: BuildSettings
    given_plan: Plan | None = field(default=None, compare=False)

    @property
    def family(self) -> Family:
        """The family, `pretrain` or `sft`."""
        return self.source.family

    @property
    def key(self) -> str:
        """The key of the cache of the whole data set."""
        return f"{self.family}/{self.name}"

    @property
    def directory(self) -> Path:
        """The folder of the cache of the whole data set."""
        return dataset_dir(self.root, self.family, self.name)

    @property
    def parts_folder(self) -> Path:
        """The folder of the plan and the parts."""
        return parts_dir(self.root, self.name)

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer in the folder `root`.

        Raises:
            NielsCacheError: If it does not exist.
        """
        tokenizer, (recorded, _) = load_tokenizer(self.registry.tokenizer, self.root), self.recorded_tokenizer
        if tokenizer.model_sha256 != recorded:  # the fingerprint of a build is that of the record
            raise NielsCacheError(f"{tokenizer.model_path}: is not the model that its meta.json describes; build the tokenizer again")
        return tokenizer

    @cached_property
    def recorded_tokenizer(self) -> tuple[str | None, int]:
        """The sha256 and the vocabulary size of the tokenizer, which decide a cache. The model is not loaded.

        Raises:
            NielsCacheError: If it does not exist.
        """
        return recorded_tokenizer(self.registry.tokenizer, self.root)

    @property
    def token_bytes(self) -> int:
        """The size of a token of the cache, in all copies of train together.

        Raises:
            NielsCacheError: If [build] token_dtype is too narrow for the tokenizer.
        """
        fim = getattr(self.source, "fim", None)
        return TOKEN_DTYPES[choose_token_dtype(self.recorded_tokenizer[1], self.build.token_dtype)].itemsize * (fim.copies if fim else 1)

    @cached_property
    def siblings(self) -> Siblings:
        """The pretrain tables by name, for a mixture. A table with a corpus is replaced by a reader of this corpus."""
        return with_corpus_readers(self.registry, self.root)

    @cached_property
    def prepared(self) -> PreparedCorpus | None:
        """The corpus that the cache is built from instead of the source, or None if the data set has no `prepare`."""
        if not is_prepared(self.source):
            return None
        return open_prepared(self.registry, self.name, root=self.root, source=self.source, build=self.build)

    @property
    def corpus(self) -> PreparedCorpus:
        """The corpus of a data set with `prepare`.

        Raises:
            NielsCacheError: If the corpus or its drop list is not current.
        """
        assert self.prepared is not None  # the table has `prepare`
        return self.prepared

    @property
    def parts_plan(self) -> PartsPlan:
        """The artifact of the plan of a data set in parts."""
        assert isinstance(self.source, SourceWithParts)  # other kinds refuse `parts`
        return PartsPlan(self.registry, self.root, name=self.name, source=self.source, build=self.build)

    @property
    def exclude_list(self) -> ExcludeList:
        """The list `exclude` of a data set in parts. A corpus has left out what it names, so its caches have none."""
        path = None if is_prepared(self.source) else getattr(self.source, "exclude", None)
        return ExcludeList(path, self.parts_folder)

    @cached_property
    def plan(self) -> Plan:
        """The plan of a data set in parts.

        Raises:
            NielsCacheError: If the plan is missing or has other settings.
        """
        return self.given_plan or self.parts_plan.read()

    @cached_property
    def corpus_plan(self) -> str:
        """The fingerprint of the kept documents, their splits, and the parts of the corpus. It decides a cache in parts as a plan does."""
        return fingerprint_of({**self.corpus.identity(), "parts": [len(part) for part in self.corpus.parts]})

    @cached_property
    def corpus_budgets(self) -> dict[str, list[int]]:
        """The shares of the parts of the corpus in `train_tokens` and `val_tokens`, by the number of their documents."""
        source, weights = self.source, [len(part) for part in self.corpus.parts]
        totals = {"train_tokens": source.train_tokens, "val_tokens": source.val_tokens} if isinstance(source, PretrainSource) else {}
        return {key: divide_in_proportion(total, weights) for key, total in totals.items() if total}

    @cached_property
    def text_bytes(self) -> int | None:
        """The number of bytes of the data set's text, or None if it is unknown."""
        if self.prepared is not None:
            return int(self.prepared.meta["bytes"]["after"])
        return self.source.text_bytes()

    def inputs(self) -> list[str]:
        """Return the keys of the artifacts that the cache of the whole data set is built from."""
        others = {*mixture_dependencies(self.registry, self.source), *getattr(self.source, "decontaminate_against", ())}
        read = [each for each in self.registry.prepared() if each == self.name or each in others]
        return ["tokenizer", *corpus_keys(self.registry, read)]

    def finished(self) -> Meta | None:
        """Return the meta.json of the finished cache of the whole data set, or None.

        Raises:
            NielsCacheError: If there is a build that must be neither used nor replaced.
        """
        meta = finished_cache(self.registry, self.root, self.family, self.name)
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
            return is_foreign(load_meta(self.directory / META_NAME))
        except ForeignMetaError:
            return True
        except NielsCacheError:
            return False

    def revision(self) -> str | None:
        """Return the revision of everything that a build reads."""
        assert self.recorded_tokenizer  # fail early: nothing can be built without it
        return revision_with_references(self.source, self.unreferenced_revision(), self.siblings)

    def unreferenced_revision(self) -> str | None:
        """Return the revision of what the build reads: the corpus, or the source if there is no corpus."""
        return self.source.revision(self.siblings) if self.prepared is None else self.prepared.meta["dataset_revision"]

    def provenance(self, revision: str | None, fingerprint: str, split_rule: str, *, member: str | None = None) -> Provenance:
        """Return the entries of meta.json about the origin of a cache.

        Args:
            revision: The revision of upstream.
            fingerprint: The hash of everything that decides the bytes.
            split_rule: The rule that splits the data set into train and val, as one line.
            member: The name of a part, or None for the whole data set.
        """
        return Provenance(
            dataset_name=self.name if member is None else f"{self.name}/{member}",
            dataset_config=self.source.hub_config,
            dataset_revision=revision,
            source=self.source.describe(),
            split_rule=split_rule,
            fingerprint=fingerprint,
        )


@dataclass(frozen=True, kw_only=True)
class DatasetFolder(Artifact, Generic[S]):
    """The folder of a data set, or of one part of it."""

    spec: DatasetSpec[S]

    @property
    def registry(self) -> Registry:
        """The configuration."""
        return self.spec.registry

    @property
    def key(self) -> str:
        return self.spec.key

    @property
    def directory(self) -> Path:
        return self.spec.directory

    def unavailable(self) -> None:
        """Check that the table has every setting that a build needs.

        Raises:
            NielsCacheError: If one is missing.
        """
        missing = self.spec.source.missing_setting()
        if missing is not None:
            raise NielsCacheError(f"{self.registry.origin}: [{self.spec.family}.{self.spec.name}] cannot be built: it needs {missing}")


class DatasetArtifact(DatasetFolder[S]):
    """The cache of a data set, or one part of it."""

    uses_network = True
    noun = "cache"

    @property
    def reference(self) -> str | None:
        return reference_of(self.spec.tokenizer)

    def with_spec(self, spec: DatasetSpec[Any]) -> Self:
        """Return the same artifact of another spec."""
        return replace(self, spec=spec)

    def uncached(self) -> Self:
        return self.with_spec(replace(self.spec))

    def inputs(self) -> list[str]:
        return self.spec.inputs()

    def finished(self) -> Meta | None:
        return self.spec.finished()

    def revision(self) -> str | None:
        return self.spec.revision()

    def identity(self, revision: str | None) -> Identity:
        """Return everything that decides the bytes of the cache of the whole data set."""
        spec = self.spec
        tables = (spec.registry, spec.source, spec.build, spec.siblings)
        return cache_identity(*tables, tokenizer=spec.recorded_tokenizer, revision=revision, prepared=spec.prepared)

    def drop_summary(self, meta: Meta) -> DropSummary:
        if self.is_part:
            return DropSummary()
        if self.spec.prepared is not None:  # the corpus has given its own warning
            return summarize_drops(meta, already_reported=self.spec.prepared.dropped)
        return add_unmatched_ids(summarize_drops(meta), self.spec.source, meta)


class StreamedCache(DatasetArtifact[S]):
    """A cache whose tokens one build writes in the order of a stream."""

    resumable = True

    @property
    def member(self) -> str | None:
        """The name of the part, or None for all of the data set."""
        return None

    @property
    @abstractmethod
    def split_rule(self) -> str:
        """The rule that splits the data set into train and val, as one line for meta.json."""

    @abstractmethod
    def builder(self, context: StreamContext, **own: Any) -> CacheBuild:
        """Return the builder that streams the source in this context. `own` are its `provenance` and `progress`."""

    def _builder_at(self, context: StreamContext, revision: str | None, fingerprint: str, progress: OnProgress | None) -> CacheBuild:
        """Return the builder of a cache with this revision and fingerprint."""
        provenance = self.spec.provenance(revision, fingerprint, self.split_rule, member=self.member)
        return self.builder(context, provenance=provenance, progress=progress)

    def journal(self, revision: str | None) -> JournalFingerprint:
        spec = self.spec
        if spec.prepared is not None and not getattr(spec.source, "decontaminate_against", ()):
            revision = spec.prepared.meta["dataset_revision"]
        identity = self.identity(revision)
        resume = Resume(fingerprint=fingerprint_of(identity), identity=identity)
        context = StreamContext(seed=spec.build.seed, revision=revision, siblings=spec.siblings)
        return self._builder_at(context, revision, resume.fingerprint, None).journal_fingerprint(resume)

    def write_stream(self, work: BuildJob) -> WriteResult:
        """Write the cache, without a comparison of train with val."""
        from niels_cache_assets.corpus.held_out import HeldOutDocuments

        spec = self.spec
        for note in notes_on_source(spec.source) if spec.prepared is None else ():
            work.log(note)
        with HeldOutDocuments(spec.registry, root=spec.root, siblings=spec.siblings, tokenizer=spec.tokenizer) as held_out:
            context = StreamContext(
                seed=spec.build.seed,
                revision=own_revision(spec.source, spec.unreferenced_revision, spec.siblings, work.revision),
                log=work.log,
                siblings=spec.siblings,
                held_out=held_out,
                building=self.key,
            )
            build, resume = self._builder_at(context, work.revision, work.fingerprint, work.report), work.resume
            try:
                meta = build.write(work.directory, resume)
            except EngineMismatchError as error:
                command = spec.registry.build_command(spec.name, spec.root, "tokenizer.engine=reference")
                raise NielsCacheError(f"{self.key}: {error}; go on with the reference: {command}") from error
        meta = {**meta, **with_text_field(meta["source"], meta["facts"])}
        # the corpus has already given this warning
        warning = None if spec.prepared else reading_warning(meta)
        return WriteResult(meta=meta, resumed=resume.resumed_tokens, warning=warning, engines=build.encoder.uses)


def content_matches(spec: DatasetSpec[PretrainSource], directory: Path, meta: Meta) -> bool:
    """Return whether the content of the files is that of meta.json. They are read only with verify_parts = "sha256" in [build]."""
    if spec.build.verify_parts == "sha256":
        try:
            check_files(directory, meta, verify="sha256")
        except NielsCacheError:
            return False
    return True


def check_files(directory: Path, meta: Meta, *, verify: Verify = "size") -> None:
    """Raise NielsCacheError for a file that differs from meta.json, by size or by content."""
    listed = listed_files(meta, directory)
    found = {name: (directory / name).stat().st_size for name in listed if (directory / name).is_file()}
    check_sizes(directory, listed, found, verify=verify)


def split_rule(spec: DatasetSpec[PretrainSource], *, group: int = 0) -> str:
    """Return the rule that splits a data set into train and val, as one line for meta.json.

    Args:
        spec: The data set.
        group: 0 for the first files, then the number of the table `added`, whose val has a seed of its own.
    """
    source = spec.source
    if source.has_own_splits:
        return "upstream's own splits"
    if source.seeded_val_frac is not None:
        return f"seeded {source.seeded_val_frac:g} of {source.val_unit} to val, seed {spec.build.seed + group}"
    return budget_rule(train_tokens=source.train_tokens, val_tokens=source.val_tokens or 0)


def with_overlap(spec: DatasetSpec[PretrainSource], meta: Meta, work: BuildJob) -> Meta:
    """Return the content of meta.json with the result of comparing train with val, whose files are finished."""
    from niels_cache_assets.facts.disjoint import OverlapSettings, compare_splits

    if meta["val_tokens"]:
        work.log("comparing train with val")
    settings = OverlapSettings.of(spec.registry, spec.source, spec.build)
    stored = work.stored
    shards: dict[str, Any] = {} if stored is None else {"shards": partial(stored.shards, meta)}
    folder, threads = work.directory, spec.build.threads
    overlap = compare_splits(folder, meta, spec.tokenizer, settings, threads=threads, scratch=folder, **shards)
    return {**meta, "overlap": overlap.record}


def pretrain_build(spec: DatasetSpec[PretrainSource], directory: Path, **own: Any) -> PretrainBuild:
    """Return a build with the settings that all builds for a data set have.

    Args:
        spec: The data set.
        directory: The folder of the cache.
        **own: The other fields of the build.
    """
    from niels_cache_assets.build_cache.pretrain import PretrainBuild

    source, build = spec.source, spec.build
    return PretrainBuild(
        out_dir=str(directory),
        tokenizer=spec.tokenizer,
        shard_bytes=build.shard_bytes,
        threads=build.threads,
        token_dtype=build.token_dtype,
        decontaminate=source.decontaminate,
        decontaminate_threshold=source.decontaminate_threshold,
        keep=(*kept_columns(source, spec.registry.pretrain), *source.cut_columns),
        edges=None if source.fim else load_beside("corpora", "code.edges").edge_finder(source, spec.registry.pretrain, spec.tokenizer),
        fim=load_beside("corpora", "fim").CopyMaker(source, spec.tokenizer, seed=build.seed) if source.fim else None,
        **own,
    )


class PretrainCache(StreamedCache[PretrainSource]):
    """The cache of a pretrain data set. Each subclass is the cache of a part."""

    version = CODE_VERSIONS["pretrain"]

    def need(self) -> SpaceNeed | None:
        spec = self.spec
        # how much text a drop list or `decontaminate_against` removes is unknown
        exact = (
            spec.prepared is not None
            and spec.prepared.duplicates is None
            and not spec.prepared.cuts
            and not spec.source.decontaminate_against
        )
        budgets = {"train_tokens": spec.source.train_tokens, "val_tokens": spec.source.val_tokens}
        return pretrain_need(**budgets, token_bytes=spec.token_bytes, text_bytes=spec.text_bytes, exact=exact)

    @property
    def split_rule(self) -> str:
        return split_rule(self.spec)

    def stream(self, context: StreamContext) -> dict[str, Any]:
        """Return the documents to read, their budgets, and what train is compared with, as fields of PretrainBuild."""
        spec, source, feed = self.spec, self.spec.source, self._feed(context)

        def val_documents() -> Iterator[Document]:
            context.log("reading val, to keep its documents out of train")
            for batch in feed.read_unreported():  # only the second pass counts dropped documents
                documents = DocumentBatch.of(batch)
                yield from documents[documents.split == SPLITS.index("val")]

        return {
            "items": feed,
            "max_train_tokens": UNLIMITED if source.train_tokens is None else source.train_tokens,
            "max_val_tokens": source.val_tokens or 0,
            "seed": spec.build.seed,
            "shuffle_buffer": source.shuffle_buffer or None,
            "val_texts": val_documents() if source.decontaminate != "off" and val_may_come_late(source) else None,
            "references": self._references(context),
        }

    def _references(self, context: StreamContext) -> ReferenceTexts | None:
        """Return the texts of `decontaminate_against`, or None without this key."""
        from niels_cache_assets.corpus.held_out import HeldOutDocuments, reference_texts

        if not self.spec.source.decontaminate_against:
            return None
        held_out = context.held_out if isinstance(context.held_out, HeldOutDocuments) else None
        return reference_texts(self.spec.registry, self.spec.source, context, held_out)

    def _feed(self, context: StreamContext) -> Feed[Documents]:
        """Return the documents of the corpus, or the documents of the source if the data set has no corpus.

        Documents of a corpus already have a split.
        """
        source, prepared, seed = self.spec.source, self.spec.prepared, self.spec.build.seed
        if prepared is not None:
            return Feed(prepared.stream, context, expected=prepared.kept if source.train_tokens is None else None)
        if source.seeded_val_frac is None:
            return Feed(source.kept_documents, context)

        def count() -> int:
            context.log("counting documents, to split them by val_frac")
            return source.count_unsplit(context)

        share = ValShare(val_frac=source.seeded_val_frac, seed=seed, count=count, exclude=source.exclude)
        return Feed(source.documents, context, share=share)

    def builder(self, context: StreamContext, **own: Any) -> PretrainBuild:
        return pretrain_build(self.spec, self.directory, **own, **self.stream(context))

    def write(self, work: BuildJob) -> WriteResult:
        written = self.write_stream(work)
        return replace(written, meta=with_overlap(self.spec, written.meta, work))


class SftCache(StreamedCache[SftSource]):
    """The cache of an SFT data set."""

    version = CODE_VERSIONS["sft"]

    def unavailable(self) -> None:
        problem = self.registry.tokenizer.roles_problem if self.spec.source.template == SENTINELS else None
        if problem is not None and self.spec.source.enabled:
            raise NielsCacheError(f"{self.registry.origin}: [{self.key.replace('/', '.')}] cannot be built: {problem}")
        super().unavailable()

    @cached_property
    def template(self) -> Template | None:
        """The chat template, or None for `sentinels`.

        Raises:
            NielsCacheError: If the template is missing.
        """
        return find_template(self.spec.source.template, self.registry.tokenizer)

    def identity(self, revision: str | None) -> Identity:
        identity = super().identity(revision)
        return identity if self.template is None else {**identity, "template": self.template.identity}

    def need(self) -> SpaceNeed | None:
        return sft_need(self.spec.text_bytes, token_bytes=self.spec.token_bytes)

    def write(self, work: BuildJob) -> WriteResult:
        return self.write_stream(work)

    @property
    def split_rule(self) -> str:
        source = self.spec.source
        unit = "conversation" if source.turns == "each" and source.split_unit == "example" else source.split_unit
        return f"seeded {source.val_frac:g} of {unit}s to val, seed {self.spec.build.seed}"

    def builder(self, context: StreamContext, **own: Any) -> SftBuild:
        from niels_cache_assets.build_cache.sft import SftBuild

        source, build = self.spec.source, self.spec.build
        return SftBuild(
            items=Feed(source.counted_conversations, context),
            out_dir=str(self.directory),
            tokenizer=self.spec.tokenizer,
            val_frac=source.val_frac,
            seed=build.seed,
            split_by="example" if source.split_unit == "prompt" else source.split_unit,
            exclude=ids_of_key(source.exclude),
            preference=source.is_preference,
            max_tokens=getattr(source, "max_tokens", None),
            turns=source.turns,
            on_invalid="drop",
            threads=build.threads,
            token_dtype=build.token_dtype,
            template=self.template,
            **own,
        )


@dataclass(frozen=True, kw_only=True)
class SwitchedOff(DatasetFolder[Source]):
    """The empty cache of a data set that is switched off, with a meta.json that says so. A finished cache is kept instead.

    Attributes:
        split_rule: The rule that splits the data set if it is switched on, as one line for meta.json.
    """

    split_rule: str

    states = ("disabled", "disabled")

    def finished(self) -> Meta | None:
        meta, spec = finished_meta(self.directory), self.spec
        if meta is not None and meta.get("built"):
            check_location(meta, self.directory)
        elif meta is not None and location_problem(meta, family=spec.family, name=spec.name) is not None:
            return None  # an empty cache may be replaced
        return meta

    def reason_to_keep_stale(self) -> str | None:
        meta, spec = self.finished(), self.spec
        if not spec.is_of_another_program() and not (meta is not None and meta.get("built")):
            return None
        return f"{spec.name} is switched off; its finished cache is kept (force replaces it)"

    def identity(self, revision: str | None) -> Identity:
        return {"enabled": False, "source": self.spec.source.source}

    def write(self, work: BuildJob) -> WriteResult:
        provenance = self.spec.provenance(None, work.fingerprint, self.split_rule)
        return WriteResult(meta=write_unbuilt(work.directory, family=self.spec.family, provenance=provenance))
