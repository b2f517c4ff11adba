"""The interface of a source: one typed configuration table that describes and streams its data.

A source class is both the schema of a table in niels_cache.toml and the code that reads the data. A new source is therefore one module and
one line in `sources/__init__.py`.

This module opens no data file. Splitting, tokenizing and writing belong to other subpackages.
"""

import json
import os
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self

from pydantic import BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt, PrivateAttr, model_validator

from niels_cache_assets.base import defaults
from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.base.config_path import SENTINELS, LearnedTurns, NameOrPath, TemplateName
from niels_cache_assets.base.config_path import ConfigPath as ConfigPath
from niels_cache_assets.base.documents import (
    NO_SPLIT,
    Conversation,
    Document,
    DocumentBatch,
    Documents,
    DropReport,
    SourcePosition,
    SourceReport,
)
from niels_cache_assets.base.fingerprint import Identity, identity_settings
from niels_cache_assets.base.schema import Table
from niels_cache_assets.sources.excluding import count_excluded, exclude_identity, ids_of_key, without_excluded
from niels_cache_assets.sources.reading.files import SourceFile, file_bytes
from niels_cache_assets.sources.step_use import CLEANING, StepUse
from niels_cache_assets.sources.val_share import FractionSplitter
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Family, Split

Converted = tuple[list[Document], DropReport, list[tuple[str, Document]]]  # what `convert` returns
CONVERT = -1  # in marks of calls, instead of the number of a step
PrepareStep = Literal["clean", "dedup", "lines", "spans"]
REPEATS: tuple[PrepareStep, ...] = ("lines", "spans")  # the steps that cut repeated text out of corpora, in this order
_DECONTAMINATION = {f"decontaminate{key}" for key in ("", "_threshold", "_against", "_share", "_words", "_units")}

PATH_KEYS = frozenset({"path", "files", "val_files"})  # the location of the data, not its identity: the revision is a digest of the content


class ListedFile(NamedTuple):
    """A file of a data set in parts, as its plan lists it.

    Attributes:
        name: The name of the file in the cache.
        bytes: The size in bytes, or 0 if it is unknown.
        digest: A string that changes with the content: a sha256, a git hash or an ETag.
        split: The split that upstream assigns to the documents of the file, or None.
    """

    name: str
    bytes: int
    digest: str
    split: Split | None


class GroupFiles(NamedTuple):
    """The files of parts that were planned together: the first parts, or those of one table `added`.

    Attributes:
        listed: All files, in their order.
        revision: The revision of upstream at which the files were listed.
        text_field: The field with the text in every file, or None.
        parts: For each part, its files and the number of tokens that its head contributes to val.
        val: With val_frac, the splitter of all documents. Otherwise None.
    """

    listed: tuple[ListedFile, ...]
    revision: str | None
    text_field: str | None
    parts: tuple[tuple[tuple[ListedFile, ...], int], ...]
    val: FractionSplitter | None


class MemberPlan(Protocol):
    """The plan of a data set in parts, as the mixtures that read the data set see it."""

    def revision(self) -> str | None:
        """Return the revision of the plan on disk, or None if there is no plan for these settings."""

    def frozen_revision(self) -> str | None:
        """Return the revision of the plan on disk if builds keep it even when upstream is newer, otherwise None."""

    def groups(self, revision: str | None) -> tuple[GroupFiles, ...]:
        """Return the files of the plan on disk, by group.

        If the plan is missing or has another revision, list the files at `revision` instead.
        """


class HeldOutFilter(Protocol):
    """The val documents of the members of a mixture.

    `corpus/held_out.py` finds these documents before the mixture is read.
    """

    @property
    def seed(self) -> int:
        """The seed with which the members' own builds shuffle and split."""

    def find(self, member: Any) -> None:
        """Find the val documents of one member (`interleave.MixtureMember`).

        Call this for all members before `sort`.
        """

    def sort(self, name: str, documents: Iterable[Document]) -> Iterator[tuple[Document, str | None]]:
        """Yield each document of a member with the reason to leave it out, or with None to keep it."""


Siblings = Mapping[str, "PretrainSource"]
"""The pretrain tables of the configuration, by name."""


class AddedTable(Table):
    """The keys of every table `added`."""

    files: list[str] = Field(min_length=1)
    """Globs of the new files; the globs of the main table no longer match these files"""
    parts: PositiveInt = 1
    """Number of parts to add for the new files"""
    train_tokens: PositiveInt | None = None
    """Token budget for train from the new files; by default all tokens"""


class AddedFiles(AddedTable):
    """The keys of a table `added` that names local files or URLs."""

    files: list[ConfigPath] = Field(min_length=1)


class AddedHubFiles(AddedTable):
    """The keys of a table `added` that names files of the hub.

    A pattern is matched from the right: `CC-MAIN-2026-05/*` matches `data/CC-MAIN-2026-05/0.parquet`.
    """

    revision: str | None = None
    """Hub commit that contains the new files; by default the commit of the data set"""


def patterns_without_folders(added: AddedTable) -> list[str]:
    """Return the patterns of a table, those of local files without their folders, so that they are the same on every machine."""
    return [each if "://" in each else os.path.basename(each) for each in added.files]


def growth_identity(added: Sequence[AddedTable]) -> str:
    """Return the part of a data set's revision that its tables `added` determine, or "" if there are none.

    It matters to everything that reads the documents. The revision of local files covers their content, but not the group that a file
    belongs to. A hub commit does not say which of its files were chosen.
    """
    if not added:
        return ""
    groups = [[patterns_without_folders(each), getattr(each, "revision", None)] for each in added]
    return f"\0grown by {json.dumps(groups)}"


@dataclass(frozen=True, kw_only=True)
class StreamContext:
    """The inputs of one pass over a source.

    Attributes:
        seed: The seed of the build.
        revision: The value of `revision()` for this build, which is the version that the pass reads.
        report: Counts and facts, filled while the stream is read.
        log: Receives log lines.
        siblings: All pretrain tables by name, for mixtures.
        start: A position that an earlier pass over the same revision reported, where this pass begins. `report` then already holds the
            counts up to that position. None starts at the beginning.
        revisions: The revisions of the siblings by name, filled by the first pass of a build, because a branch may move between two passes.
        held_out: The val documents of the siblings. If it is None, as for the training sample of a tokenizer, val documents are read like
            all others.
        files: For a part of a data set, the files to read instead of those of the table. None without parts.
        text_field: For a part of a data set, the field with the text. None without parts.
        decided: The field with the text by table, filled by the first pass of a build.
        building: The key of the cache that this pass builds, such as sft/chats, or None for a pass that only inspects texts. Only a build
            stops at a broken row.
    """

    seed: int
    revision: str | None = None
    report: SourceReport = field(default_factory=SourceReport)
    log: Callable[[str], None] = lambda message: None
    siblings: Siblings = field(default_factory=dict)
    start: SourcePosition | None = None
    revisions: dict[str, str | None] = field(default_factory=dict)
    held_out: HeldOutFilter | None = None
    files: Sequence[SourceFile] | None = None
    text_field: str | None = None
    decided: dict[str, str] = field(default_factory=dict)
    building: str | None = None


class Source(Table):
    """The keys that all tables have.

    Subclasses set `source: Literal["kind"] = "kind"` and add their own keys.
    """

    model_config = ConfigDict(protected_namespaces=())
    family: ClassVar[Family]
    code_version: ClassVar[str] = "1"  # increase this in a kind when a change to its code, or to code that it uses, changes the documents
    never_counts: ClassVar[frozenset[str]] = frozenset()  # keys that do not change the source's output
    endings: ClassVar[tuple[str, ...]] = ()  # a folder in `files` stands for all files below it with one of these endings

    source: str
    enabled: bool = True
    """False disables the data set; only `status --all` lists it"""

    @model_validator(mode="before")
    @classmethod
    def _one_key_for_data(cls, table: Any) -> Any:
        """Accept `files` and `path` as two names of one key.

        A kind that has one of these keys also accepts the other. `files` may be one string instead of a list.
        """
        if not isinstance(table, Mapping):
            return table
        kept, known, given = dict(table), cls.model_fields.keys() & {"files", "path"}, table.keys() & {"files", "path"}
        if len(known) == 1 and given:
            (key,) = known
            if len(given) == 2:
                raise ValueError(f"files and path are one key: give {key} alone")
            kept[key] = kept.pop(*given)
            if key == "path" and isinstance(kept[key], list | tuple):
                if len(kept[key]) != 1:
                    raise ValueError(f"{key} is one place; give one, not {len(kept[key])}")
                (kept[key],) = kept[key]
        for key in ("files", "val_files"):
            if key in cls.model_fields and isinstance(kept.get(key), str):
                kept[key] = [kept[key]]
        return kept

    def missing_setting(self) -> str | None:
        """Return the setting that this table still needs before it can be built, or None, without opening any file."""
        return None

    def input_files(self) -> list[SourceFile]:
        """Return the files that the table names, or an empty list if it reads no files.

        Raises:
            NielsCacheError: If the files do not exist.
        """
        return []

    def text_bytes(self) -> int | None:
        """Return the bytes of text in the local files, or None if they are unknown."""
        return file_bytes(getattr(self, "files", None), self.endings)

    def every_file(self) -> list[SourceFile]:
        """Return `input_files` and the files of the tables `added`."""
        return self.input_files()

    def check_input(self, siblings: Siblings) -> None:
        """Read the beginning of the local files in the same way as a build.

        Args:
            siblings: All pretrain tables by name, for mixtures.

        Raises:
            NielsCacheError: If a build would reject the data at once.
            SourceUnavailableError: If the files cannot be reached now.
        """
        self.readable_files()

    def readable_files(self) -> list[SourceFile]:
        """Return `input_files` after checking that local files can be read.

        Raises:
            NielsCacheError: If a local file is missing, unreadable or not a regular file.
        """
        files = self.input_files()
        for file in files:
            if file.is_remote:
                continue
            if not os.access(file.url, os.R_OK):
                raise NielsCacheError(f"{file.url} does not exist or cannot be read; correct its path or its permissions")
            if not os.path.isfile(file.url):
                raise NielsCacheError(f"{file.name}: not a regular file, so it cannot be read twice; write its content to a file")
        return files

    def revision(self, siblings: Siblings) -> str | None:
        """Return the version of upstream: the hub commit, or a digest of the names and content of the files. None if there is none.

        Args:
            siblings: All pretrain tables by name, for mixtures.

        Raises:
            SourceUnavailableError: If upstream cannot be reached now.
            NielsCacheError: If upstream does not exist.
        """
        return None

    def describe(self) -> dict[str, Any]:
        """Return `source` of meta.json: the kind, whether it is streamed, and the identity of the data.

        The value contains no absolute path, time or machine name.
        """
        return {"kind": self.source, "streaming": True}

    def shown_settings(self) -> dict[str, Any]:
        """Return the settings to show: those of `identity` that have an effect for this table."""
        return self.identity()

    @property
    def hub_config(self) -> str | None:
        """The value of `dataset_config` in meta.json: the configuration of the hub data set, or None if no hub data set is read."""
        return getattr(self, "config", None)

    def identity(self) -> Identity:
        """Return the settings that determine the bytes, for the fingerprint.

        The locations of files are left out. `given` lists the location keys that are set.
        """
        never = frozenset[str]().union(*(vars(base).get("never_counts", ()) for base in type(self).__mro__))
        settings = identity_settings(self, self.source, without=PATH_KEYS | never)
        given = [name for name in sorted(PATH_KEYS) if getattr(self, name, None)]
        return {**settings, "given": given, "code_version": self.code_version}


class PretrainSource(Source):
    """A table of [pretrain.*]. Give token budgets (streams) or val_frac (finite sources), not both.

    Expensive work per document, such as converting markup to text, belongs in `convert`, which a corpus runs in worker processes.
    """

    family = "pretrain"
    val_unit: ClassVar[str] = "documents"  # what val_frac counts
    is_watched: ClassVar = False  # whether `convert` may take too long, or end its process
    # Separate fingerprints cover these keys: those of preparation and of decontamination.
    # A plan has its own identity for `added`, and the fingerprint has the ids in the file for `exclude`.
    never_counts = frozenset(
        {"prepare", "cleaning", "steps", "added", "fim", "exclude", "exclude_must_match", "tokens_in_parts", *_DECONTAMINATION}
    )

    train_tokens: PositiveInt | None = None
    """Token budget for train; reading stops when it is met"""
    val_tokens: NonNegativeInt | None = None
    """Token budget for val, which is filled first; 0 means no val"""
    val_frac: float | None = Field(None, ge=0, lt=1, description=f"Share of documents that go to val (default {defaults.VAL_FRAC})")
    shuffle_buffer: NonNegativeInt = 0
    """Size of the shuffle buffer in documents; 0 keeps the input order"""
    prepare: tuple[PrepareStep, ...] = Field((), strict=False)
    """Any of 'clean', 'dedup', 'lines' and 'spans', applied to the whole source before tokenization and token budgets"""
    cleaning: dict[str, Any] | None = None
    """Keys that override [cleaning] for this data set"""
    steps: tuple[StepUse, ...] = Field((), strict=False)
    """Your own functions, which change or drop documents after the cleaning, in order ([how](steps.md))"""
    decontaminate: Literal["off", "exact", "near"] = "off"
    """'exact' drops train documents that are equal to a val document; 'near' also drops near duplicates of val documents"""
    decontaminate_threshold: float = Field(0.8, gt=0, lt=1)
    """Minimum Jaccard similarity of near duplicates"""
    decontaminate_against: tuple[NameOrPath, ...] = Field((), strict=False)
    """Texts to keep out of train: val of these data sets, and evaluation questions in JSON Lines files"""
    decontaminate_share: float = Field(0.5, gt=0, le=1)
    """Drop train documents that contain this share of the 13-grams of a text in `decontaminate_against`"""
    decontaminate_words: int = Field(50, ge=13)
    """Drop train documents that contain this many consecutive words of a text in `decontaminate_against`"""
    decontaminate_units: Literal["words", "code"] = "words"
    """'code' compares names, numbers and keywords of code with those in `decontaminate_against`, and reads its solutions too"""
    fim: Annotated[Any, BeforeValidator(lambda table: load_beside("corpora", "fim").FIMCopies.of(table))] = None
    """Copies of train with documents rearranged to [fill in the middle](code.md#fill-in-the-middle-with-cuts-inside-tokens)"""
    parts: PositiveInt = 1
    """Number of parts, which several processes can build in parallel"""
    tokens_in_parts: bool = False
    """With `parts` and `prepare` or `steps`: also build the cache in parts, one per corpus part."""
    exclude: ConfigPath | None = None
    """File that lists documents to leave out: one source id or JSON string per line"""
    exclude_must_match: bool = False
    """Treat an id in `exclude` that matches no document as an error"""
    added: tuple[AddedTable, ...] = Field((), strict=False)
    """Files added later, in tables `[[pretrain.NAME.added]]`"""

    _plan: MemberPlan | None = PrivateAttr(None)

    @property
    def plan(self) -> MemberPlan | None:
        """The plan of a data set in parts if a mixture reads this table, otherwise None."""
        return self._plan

    def with_plan(self, plan: MemberPlan) -> Self:
        """Return a copy with the plan of this data set in parts, for the mixtures that read it."""
        copy = self.model_copy()
        copy._plan = plan
        return copy

    @model_validator(mode="after")
    def _one_split_rule(self) -> Self:
        if self.val_frac is not None and (self.train_tokens is not None or self.val_tokens is not None):
            raise ValueError("give token budgets (train_tokens, val_tokens) or val_frac, not both")
        unused = self.model_fields_set & {"train_tokens", "val_tokens", "val_frac"}
        if self.cleaning is not None and "clean" not in self.prepare:
            raise ValueError('cleaning does nothing without prepare = ["clean"]; add that, or remove it')
        if len(set(self.prepare)) != len(self.prepare):
            raise ValueError("prepare names a step twice")
        titles = [step.title for step in self.steps if step.use]
        if twice := {title for title in titles if titles.count(title) > 1}:
            raise ValueError(f"steps has {min(twice)!r} twice; give one of them another name, such as {{use = ..., name = ...}}")
        columns = [*self.cut_columns, *getattr(self, "keep", ()), *(name for each in self.steps for name in each.keep)]
        if twice := {name for name in columns if columns.count(name) > 1}:
            raise ValueError(f"the column {min(twice)!r} is kept twice; let the step return it with another name")
        if CLEANING in titles and "clean" not in self.prepare:
            raise ValueError('steps has "cleaning", so prepare must have "clean"; add that, or remove it')
        if "dedup" in self.prepare and self.decontaminate != "off":
            raise ValueError('prepare = [..., "dedup"] already keeps train and val apart; set decontaminate = "off"')
        if self.has_own_splits and unused:
            raise ValueError(f"upstream's own splits are kept, so {', '.join(sorted(unused))} would do nothing; remove it")
        if self.decontaminate_against and self.is_in_parts:
            raise ValueError(
                "decontaminate_against needs a cache that is not in parts, because each part would have to read val of all of them; "
                "remove it, or parts, added or tokens_in_parts"
            )
        if self.parts > 1 or self.added:
            self._refuse_for_parts()
        return self

    @property
    def fim_identity(self) -> Identity:
        """The settings of `fim`, for the fingerprint of the cache. The documents of the source do not depend on them."""
        return {} if self.fim is None else {"fim": self.fim.model_dump(mode="json", exclude_defaults=True)}

    @property
    def has_corpus(self) -> bool:
        """Whether documents are prepared and stored before they are tokenized."""
        return bool(self.prepared_by)

    @property
    def prepare_of_corpus(self) -> list[str]:
        """The steps in `prepare` that decide the corpus. The others find repeated text in finished corpora."""
        return sorted({*self.prepare} - {*REPEATS})

    @property
    def cut_columns(self) -> list[str]:
        """The kept columns that say how much of a document was cut: the number of places and of bytes, for each step."""
        return [f"{step}_{what}" for step in REPEATS if step in self.prepare for what in ("cut", "cut_bytes")]

    @property
    def prepared_by(self) -> list[str]:
        """What documents of the corpus pass through: the steps in `prepare`, and those of the user."""
        return [*self.prepare, *(each.title for each in self.steps)]

    @property
    def is_in_parts(self) -> bool:
        """Whether the cache is built in parts.

        A data set with tables `added` is in parts even if its first files form a single part. With a corpus, the plan divides the corpus,
        and only `tokens_in_parts` also divides the cache.
        """
        return (self.tokens_in_parts or not self.has_corpus) and (self.parts > 1 or bool(self.added))

    @property
    def corpus_parts(self) -> int:
        """The number of parts of the corpus."""
        return self.parts if self.has_corpus else 1

    @property
    def total_parts(self) -> int:
        """The number of parts, including those of added files."""
        return self.parts + sum(each.parts for each in self.added)

    def _refuse_for_parts(self) -> None:
        """Raise ValueError if the data set cannot be built in parts.

        Kinds that support parts override this method.
        """
        key = "parts" if self.parts > 1 else "added"
        raise ValueError(f"{key} needs a list of files, which the source {self.source} does not have; remove {key}")

    @property
    def has_own_splits(self) -> bool:
        """Whether documents have a `split` that upstream assigned."""
        return False

    @property
    def seeded_val_frac(self) -> float | None:
        """The seeded share of the documents without a split that goes to val.

        None if token budgets or upstream alone determine the split.
        """
        if self.has_own_splits or self.train_tokens is not None or self.val_tokens is not None:
            return None
        return defaults.VAL_FRAC if self.val_frac is None else self.val_frac

    @property
    def has_val_part(self) -> bool:
        """Whether the val of a data set in parts is built before its parts.

        This is the case with a token budget for val, and if train is compared with the val of `val_frac`. A data set that grows
        without `parts` has its val in part 0.
        """
        return (
            self.is_in_parts
            and not self.has_corpus
            and self.parts > 1
            and (bool(self.val_tokens) or (self.decontaminate != "off" and bool(self.seeded_val_frac)))
        )

    def check_input(self, siblings: Siblings) -> None:
        if self.readable_files():
            unshuffled = self.model_copy(update={"shuffle_buffer": 0})
            next(iter(unshuffled.unconverted(StreamContext(seed=0, siblings=siblings))), None)

    @abstractmethod
    def documents(self, context: StreamContext) -> Iterator[Documents]:
        """Yield the documents lazily, in batches of some tens to some hundreds.

        The same context gives the same order.
        """

    def identity(self) -> Identity:
        return super().identity() | exclude_identity(self.exclude)

    def kept_documents(self, context: StreamContext) -> Iterator[Documents]:
        """Yield `documents` without those that `exclude` names."""
        return without_excluded(self.documents(context), self.exclude, context.report)

    def kept_unconverted(self, context: StreamContext) -> Iterator[Documents]:
        """Yield `unconverted` without those that `exclude` names."""
        return without_excluded(self.unconverted(context), self.exclude, context.report)

    def count_unsplit(self, context: StreamContext) -> int:
        """Return the number of documents without a split, which val_frac needs before the first document.

        The documents that `exclude` names count too, so that a longer list does not choose another val. This reads the whole source once.
        It does not change `context.report`.
        """
        unreported = replace(context, report=SourceReport(), start=None)
        return sum(int((DocumentBatch.of(batch).split == NO_SPLIT).sum()) for batch in self.documents(unreported))

    def unconverted(self, context: StreamContext) -> Iterator[Documents]:
        """Yield the documents before `convert`, in batches.

        `documents` applies `unconverted` and `convert`.
        """
        return self.documents(context)

    def convert(self, documents: list[Document]) -> Converted:
        """Convert documents of `unconverted` to their final text.

        The method and its arguments can be pickled, and it changes no other state, so any process can run it.

        Returns:
            The finished documents, the counts of dropped documents, and (reason, document) for dropped documents that a report may show as
            examples.
        """
        return documents, DropReport(), []

    def convert_watched(self, documents: list[Document], skipped: Collection[tuple[int, int]], mark: Any = None) -> Converted:
        """Convert documents in a corpus. If `is_watched`, each call is marked, and can be skipped; see `base.parallel.WatchedWork`.

        Args:
            documents: The documents.
            skipped: (index of the document, CONVERT) for each call that took too long. Steps have other pairs.
            mark: The `CallMark` of the worker, if there is one. The number of the step is CONVERT.
        """
        return self.convert(documents)

    def gives_plain_text(self, document: Document) -> bool:
        """Return whether `convert` turns the markup of this document into plain text, so that cleaning need not remove markup."""
        return False


class SourceWithParts(PretrainSource):
    """A table of [pretrain.*] of a kind that lists its files."""

    @abstractmethod
    def list_files(self, revision: str | None, *, group: int = 0, hashed: bool = True) -> list[ListedFile]:
        """Return one group of files at a revision of the data set, in the order in which parts read them.

        No file is in two groups. This hashes local files, or sends requests to upstream.

        Args:
            revision: The revision of the data set.
            group: 0 for the first files, then the number of the table `added`, from 1.
            hashed: If False, files are not hashed, and local files have an empty digest.

        Raises:
            NielsCacheError: If the files cannot be read in parts.
        """

    @abstractmethod
    def revision_of_files(self, number: int, revision: str | None) -> str | None:
        """Return the revision of one group of files.

        Args:
            number: 0 for the first files, then the number of the table `added`, from 1.
            revision: The revision of the data set.
        """

    @abstractmethod
    def located(self, files: Sequence[ListedFile], revision: str | None) -> list[SourceFile]:
        """Return listed files with addresses that open them.

        Raises:
            NielsCacheError: If a file is missing.
        """

    @abstractmethod
    def file_reader(self, names: Sequence[str]) -> Any:
        """Return the GroupedFiles that reads `StreamContext.files`, which have these names.

        It keeps the order of the files; the builder shuffles.
        """

    def _refuse_for_parts(self) -> None:
        if self.has_corpus:
            if self.added:
                raise ValueError(
                    "added keeps val and all tokens as they are, but with prepare or steps all documents are split together; put new files "
                    "into `files`, or make a data set of them"
                )
            if self.tokens_in_parts and self.decontaminate != "off":
                raise ValueError(
                    "tokens_in_parts cannot be combined with decontaminate, because each part would have to read val of all others; use "
                    'prepare = [..., "dedup"] instead of decontaminate, or remove tokens_in_parts'
                )
            return
        if self.tokens_in_parts:
            raise ValueError("tokens_in_parts does nothing without prepare or steps, because the tokens are in parts already; remove it")
        for key, tokens in (("train_tokens", self.train_tokens), ("val_tokens", self.val_tokens)):
            if tokens and tokens < self.parts:
                raise ValueError(f"{key} = {tokens} is fewer than one token for each of {self.parts} parts; raise it, or lower parts")
        for each in self.added:
            if each.train_tokens is not None and (self.has_own_splits or self.seeded_val_frac is not None):
                raise ValueError(
                    "added: train_tokens is for data sets with token budgets, which this one does not have; remove it from added"
                )
            if each.train_tokens is not None and each.train_tokens < each.parts:
                raise ValueError(
                    f"added: train_tokens = {each.train_tokens} is fewer than one token for each of {each.parts} parts; raise it"
                )
        if self.added and self.decontaminate != "off" and (self.parts == 1 or self.seeded_val_frac is not None):
            raise ValueError(
                "added with decontaminate needs parts above 1 and val_tokens, because val would have to be found again otherwise; "
                'make a data set of the new files, or set decontaminate = "off" (which builds all parts again)'
            )


class SftSource(Source):
    """A table of [sft.*]."""

    family = "sft"
    never_counts = frozenset({"template", "exclude", "exclude_must_match"})  # the fingerprint has the template's text and the ids instead
    val_frac: float = Field(defaults.VAL_FRAC, ge=0, lt=1)
    """Share of examples that go to val"""
    template: TemplateName = SENTINELS
    """Conversation format: 'sentinels' for the special tokens in [tokenizer], 'chatml' for ChatML, 'model' for the chat template in the
    folder of the tokenizer model, or the path of a .jinja file"""
    turns: LearnedTurns = "all"
    """With a template: 'all' makes one example that trains on all assistant turns; 'each' makes one example per assistant turn; 'last'
    makes one example, for the last turn"""
    exclude: ConfigPath | None = None
    """File that lists examples to leave out: one source id or JSON string per line; all others keep their split"""
    exclude_must_match: bool = False
    """Treat an id in `exclude` that matches no example as an error"""

    @model_validator(mode="before")
    @classmethod
    def _only_for_pretrain(cls, table: Any) -> Any:
        for key, advice in (("parts", "remove it"), ("steps", "change or drop conversations in the files, before the build")):
            if isinstance(table, Mapping) and key in table:
                raise ValueError(f"{key} is for pretrain data sets only; {advice}")
        return table

    def shown_settings(self) -> dict[str, Any]:
        own = {"template": self.template, "turns": self.turns}
        return super().shown_settings() | {key: value for key, value in own.items() if value not in (SENTINELS, "all")}

    @property
    def roles(self) -> frozenset[str]:
        """The roles that messages may have."""
        return frozenset(defaults.ROLE_TO_KEY) | (defaults.TEMPLATE_ROLES if self.template != SENTINELS else set())

    @property
    def split_unit(self) -> Literal["example", "group", "prompt", "conversation"]:
        """The unit that val_frac counts: examples, or groups of examples that must stay in one split.

        Groups of preference pairs share a prompt, or a conversation.
        """
        return "example"

    @property
    def is_preference(self) -> bool:
        """Whether the examples are preference pairs."""
        return False

    def check_input(self, siblings: Siblings) -> None:
        if self.readable_files():
            next(iter(self.conversations(StreamContext(seed=0, siblings=siblings))), None)

    def identity(self) -> Identity:
        return super().identity() | exclude_identity(self.exclude)

    def counted_conversations(self, context: StreamContext) -> Iterator[list[Conversation]]:
        """Yield `conversations`, and count those that `exclude` names."""
        return count_excluded(self.conversations(context), ids_of_key(self.exclude), context.report)

    def first_examples(self, count: int) -> Sequence[Conversation | str]:
        """Return up to `count` examples from the start of the data, each as a conversation or as the reason why it is dropped."""
        return next(iter(self.conversations(StreamContext(seed=0))), [])[:count]

    @abstractmethod
    def conversations(self, context: StreamContext) -> Iterator[list[Conversation]]:
        """Yield the conversations lazily, in batches. The same context gives the same order."""
