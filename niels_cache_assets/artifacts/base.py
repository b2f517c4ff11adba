"""The base class of artifacts, and the values that artifacts exchange with `materialize`.

An artifact is anything that can be built. A new kind of artifact is one class: a frozen dataclass with `key`, `directory`, `identity` and
`write`. The base class has a default for all other methods.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, cast

from niels_cache_assets.base.defaults import RECORD_SECONDS
from niels_cache_assets.base.fingerprint import Identity, fingerprint_of
from niels_cache_assets.build_cache.resume import JournalFingerprint, Resume, fingerprint_of_journal, open_journal
from niels_cache_assets.disk.attempts import staged_attempts
from niels_cache_assets.disk.build_lock import is_cache_name, lock_target, require_target
from niels_cache_assets.disk.journal import Journal, real_path
from niels_cache_assets.disk.space import SpaceNeed, disk_error_message
from niels_cache_assets.disk.staging import finished_meta, staged, sweep_leftovers
from niels_cache_assets.facts.drops import NO_DROPS, DropSummary
from niels_cache_assets.parts.attempts import staged_attempt, sweep_attempts
from niels_cache_assets.parts.lease import HeldLease, Lease, Log, StopRequests, hold_lease
from niels_cache_assets.sources.excluding import require_matches
from niels_cache_assets.sources.types import REPEATS, PrepareStep, PretrainSource, SftSource, Source
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import partial_path
from niels_cache_runtime.format.layout import FAMILIES, META_NAME, Family, tokenizer_model_name
from niels_cache_runtime.format.meta import Meta

if TYPE_CHECKING:
    from niels_cache_assets.parts.store_attempt import StoreAttempt
    from niels_cache_assets.project.registry import Registry
    from niels_cache_assets.tokenizer.encoder import EngineUse


class BuildLock(NamedTuple):
    """The right to build an artifact.

    Attributes:
        waited: Whether the caller had to wait for another build.
        lease: The lease of a shared artifact. None for other artifacts, which have a lock.
    """

    waited: bool = False
    lease: HeldLease | None = None


def corpus_keys(registry: Registry, names: Sequence[str], *, before: PrepareStep | None = None) -> list[str]:
    """Return the keys of the corpora of these data sets, and of the drop lists and the cuts if one of them uses these.

    Args:
        registry: The configuration.
        names: The names of the data sets.
        before: The step whose cuts are not used, as those of later steps. None: all are used.
    """
    steps = {step: f"repeats/{step}" for step in REPEATS[: REPEATS.index(before) if before else None]}
    used = {"dedup": "corpus/duplicates", **steps}
    searched = [key for step, key in used.items() if any(step in registry.pretrain[name].prepare for name in names)]
    return [*(f"corpus/{name}" for name in names), *searched]


def kind_of(key: str) -> str:
    """Return the first part of the key of an artifact: `pretrain`, `corpus`, ..."""
    return key.partition("/")[0]


def listed_name(key: str) -> str:
    """Return the name of an artifact in the results of a build: a data set has its own name, and everything else its key."""
    kind, _, name = key.partition("/")
    return name if kind in FAMILIES else key


State = Literal["built", "cache_hit", "disabled"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of building one artifact.

    Attributes:
        key: The key of the artifact.
        state: Whether it was built, was current, or is switched off.
        meta: The record of the artifact. Empty if the artifact is switched off and was never built.
        directory: The folder of the artifact.
        seconds: The duration of this run.
        warning: The reason if `kept` is True. Otherwise, a remark for the user, or None.
        kept: Whether the existing build is kept although a new build may be needed. This happens if upstream (the origin of the data) is
            not available, or if the artifact is switched off.
        resumed: The number of tokens (for a corpus, characters) that an interrupted build had already written.
        engines: The libraries that encoded the text in this build. Empty for a tokenizer without fast engines, and if nothing was built.
        drops: What the build left out, in words. Empty for parts, because their seal reports it.
    """

    key: str
    state: State
    meta: Meta
    directory: Path
    seconds: float = 0.0
    warning: str | None = None
    kept: bool = False
    resumed: int = 0
    engines: Sequence[EngineUse] = ()
    drops: DropSummary = NO_DROPS

    @property
    def kind(self) -> str:
        """The first part of the key."""
        return kind_of(self.key)

    @property
    def family(self) -> Family:
        """The family of a data set's cache."""
        return cast(Family, self.kind)

    @property
    def model(self) -> Path:
        """The path of a tokenizer's model."""
        return self.directory / tokenizer_model_name(self.meta)

    @property
    def name(self) -> str:
        """The part of the key after the kind, which is the data set. If a kind has only one artifact, the name is the kind itself."""
        return self.key.partition("/")[2] or self.key


@dataclass(frozen=True, kw_only=True)
class WriteResult:
    """The result of `Artifact.write`.

    Attributes:
        meta: The record, which is written after all other files.
        changed: False if everything existed already. Only kinds of artifacts that find this out while they write set it to False.
        resumed: See Outcome.
        warning: See Outcome.
        engines: See Outcome.
    """

    meta: Meta
    changed: bool = True
    resumed: int = 0
    warning: str | None = None
    engines: Sequence[EngineUse] = ()


@dataclass(frozen=True, kw_only=True)
class ReportedProgress:
    """The progress of a job.

    Attributes:
        counts: What it has read or written, by unit.
        share: Its finished share, 0 to 1. None if unknown.
    """

    counts: Mapping[str, int]
    share: float | None


@dataclass(frozen=True, kw_only=True)
class BuildJob:
    """The arguments of `Artifact.write`.

    Attributes:
        directory: The folder to write to. It is empty, or holds the files of an interrupted build if the kind of artifact is resumable.
        revision: The revision of upstream for which `identity` was computed.
        identity: Everything that decides the bytes.
        force: Whether to start from the beginning instead of resuming.
        progress: Called with the progress of the build. Each kind of artifact passes its own type. None: no reports.
        log: Called with each message.
        lease: The lease of this attempt. None for artifacts that are not shared.
        reference: See `Artifact.reference`.
        record_seconds: The time in seconds after which a record of the journal is due.
    """

    directory: Path
    revision: str | None
    identity: Identity
    force: bool
    progress: Callable[[Any], None] | None
    log: Log
    lease: HeldLease | None = None
    reference: str | None = None
    record_seconds: float = RECORD_SECONDS

    @property
    def fingerprint(self) -> str:
        """The hash of everything that decides the bytes."""
        return fingerprint_of(self.identity)

    @property
    def stored(self) -> StoreAttempt | None:
        """The files of this attempt in a store, or None if they are in `directory`."""
        return None if self.lease is None else self.lease.stored

    @property
    def resume(self) -> Resume:
        """A request to a builder to keep a journal in this directory, and to resume from a journal that it finds there."""
        lease, stored = self.lease, self.stored
        of_lease: dict[str, Any] = {} if lease is None else {"attempt": lease.attempt, "check": lease.check, "keep": stored and stored.keep}
        return Resume(
            fingerprint=self.fingerprint,
            log=self.log,
            afresh=self.force,
            identity=self.identity,
            record_seconds=self.record_seconds,
            **of_lease,
        )

    def report(self, progress: Any) -> None:
        """Check the lease, which then records the progress, and pass the progress to `progress`.

        Raises:
            LeaseLostError: If a renewal of the lease has found that another process has taken it over.
            StopRequested: If a renewal of the lease has found a request to stop.
        """
        if self.lease is not None:
            self.lease.check_quickly()
            self.lease.report(progress)
        if self.progress is not None:
            self.progress(progress)

    def open_journal(self, name: str, *, state: type[Any]) -> Journal:
        """Open the journal of a build.

        Args:
            name: The name of the build, for the log.
            state: The data class of the journal's state. The state is None if there is nothing to resume.
        """
        journalled = fingerprint_of_journal(self.resume, {}, reference=self.reference)
        return open_journal(self.directory, self.resume, journalled, name=name, state=state)


@dataclass(frozen=True, kw_only=True)
class Artifact(ABC):
    """Anything that can be built. Subclasses are frozen dataclasses; `uncached` gives a copy without cached properties.

    Attributes:
        version: Increase this number by hand if the code makes different bytes from the same input.
        record: The name of the file that is written last. None if each part of the artifact has its own record.
        uses_network: Whether a build makes requests to other machines.
        noun: What a message such as "kept the finished ..." calls the artifact.
        states: The state after a build, and the state if no build was needed.
        stops: The requests to stop that count, for a shared artifact. None: those after the build has requested the lease.
        forces_steps: Whether `force` also builds again the steps that only this artifact needs: parts of a corpus, hashes and ranges.
    """

    version: ClassVar[str] = "1"
    record: ClassVar[str | None] = META_NAME
    uses_network: ClassVar[bool] = False
    noun: ClassVar[str] = "build"
    states: ClassVar[tuple[State, State]] = ("built", "cache_hit")

    stops: StopRequests | None = field(default=None, compare=False)
    forces_steps: bool = field(default=True, compare=False)

    if TYPE_CHECKING:

        @property
        @abstractmethod
        def registry(self) -> Registry:
            """The configuration."""

    @property
    @abstractmethod
    def key(self) -> str:
        """The unique name of the artifact in a root folder: `tokenizer`, `corpus/NAME`, `pretrain/NAME`, ..."""

    @property
    def kind(self) -> str:
        """The first part of the key."""
        return kind_of(self.key)

    @property
    @abstractmethod
    def directory(self) -> Path:
        """The directory of the artifact."""

    @property
    def is_shared(self) -> bool:
        """Whether machines without common file locks may build the artifact, which then has a lease instead of a lock."""
        return False

    @property
    def is_part(self) -> bool:
        """Whether the artifact is one of several that are joined. The joined artifact reports what all of them left out."""
        return False

    @property
    def resumable(self) -> bool:
        """Whether an interrupted build can be resumed."""
        return False

    @property
    def builds_from_partial_inputs(self) -> bool:
        """Whether a build uses the inputs that exist. When more inputs exist, the artifact is built again."""
        return False

    @property
    def target(self) -> Path:
        """The path that every build of the artifact replaces."""
        return self.directory

    @property
    def record_path(self) -> Path:
        """The file of the record."""
        return self.directory / (self.record or META_NAME)

    @abstractmethod
    def identity(self, revision: str | None) -> Identity:
        """Return everything that decides the bytes of the artifact, for this `revision` of upstream.

        Raises:
            NielsCacheError: If an input is missing.
        """

    @abstractmethod
    def write(self, work: BuildJob) -> WriteResult:
        """Build the artifact in `work.directory`.

        Raises:
            NielsCacheError: If the build fails. The previous build then stays.
        """

    @property
    def reference(self) -> str | None:
        """The library that defines the ids of the tokenizer, whose version the journal of a build records.

        None if the build does not use a tokenizer, or if the library counts for every build.
        """
        return None

    def inputs(self) -> Sequence[str]:
        """Return the keys of the artifacts that this artifact is built from.

        The graph takes its edges only from this method. Upstream is not an artifact.
        """
        return ()

    def unavailable(self) -> str | None:
        """Return why this configuration never builds the artifact (it is switched off or unused), or None.

        Raises:
            NielsCacheError: If a setting is missing.
        """
        return None

    def finished(self) -> Meta | None:
        """Return the record of a complete build, or None.

        Raises:
            NielsCacheError: If there is a build that must be neither used nor replaced.
        """
        return finished_meta(self.directory)

    def reason_to_keep_stale(self) -> str | None:
        """Return why the existing build is kept even if a new build is needed, or None if it is not kept."""
        return None

    def is_frozen(self, meta: Meta) -> bool:
        """Return whether the existing build with this record is kept without asking upstream for its revision."""
        return False

    def revision(self) -> str | None:
        """Return the revision of upstream.

        Raises:
            SourceUnavailableError: If upstream is not available now.
        """
        return None

    def matches(self, meta: Meta, identity: Identity) -> bool:
        """Return whether the build with this record equals a build that would be made from `identity`."""
        return bool(meta.get("fingerprint") == fingerprint_of(identity))

    def is_current(self, meta: Meta) -> bool:
        """Return whether the build with this record is the one that a build would make now."""
        return self.matches(meta, self.identity(self.revision()))

    def need(self) -> SpaceNeed | None:
        """Return the disk space that a build needs, or None if it is unknown."""
        return None

    def owns(self, name: str) -> bool:
        """Return whether a file or folder of this name in `directory` may be replaced."""
        return is_cache_name(name)

    def warning(self) -> str | None:
        """Return a warning about the artifact, whether it was built now or earlier."""
        return None

    def drop_summary(self, meta: Meta) -> DropSummary:
        """Return what the build with this record left out, in words.

        Raises:
            NielsCacheError: If the settings do not allow what the build left out.
        """
        return DropSummary()

    def journal(self, revision: str | None) -> JournalFingerprint:
        """Return the fingerprint that the journal of a build would have now. This writes nothing and does not ask upstream."""
        identity = self.identity(revision)
        resume = Resume(fingerprint=fingerprint_of(identity), identity=identity)
        return fingerprint_of_journal(resume, {}, reference=self.reference)

    def current(self) -> Meta:
        """Return the record of the existing build, if the build is current. The revision of upstream counts as unchanged.

        Only `materialize` looks for a newer revision of upstream.

        Raises:
            NielsCacheError: If the build is missing or not current. The message names the artifact to build.
        """
        meta = self.finished()
        if meta is None or not self.matches(meta, self.identity(meta.get("dataset_revision"))):
            raise NielsCacheError(f"{self.directory}: {self.key} does not exist as configured; build it first")
        return meta

    def uncached(self) -> Self:
        """Return the same artifact without cached properties."""
        return dataclasses.replace(self)

    @property
    def lease_target(self) -> Path:
        """The path whose lease a shared artifact takes."""
        return self.directory

    @contextmanager
    def lock(self, *, wait: bool, log: Log) -> Iterator[BuildLock]:
        """Keep other builds of this artifact out while the block runs.

        Args:
            wait: Whether to wait if another process builds the artifact.
            log: Called with each message.

        Raises:
            BusyError: If another process builds the artifact, without `wait`.
            NielsCacheError: If the target must not be replaced, or the disk reports an error.
        """
        if not self.is_shared:
            with lock_target(self.directory, is_ours=self.owns, wait=wait, log=log) as waited:
                yield BuildLock(waited)
            return
        target, times = real_path(self.lease_target), self.registry.cluster
        with ExitStack() as stack:
            try:
                require_target(target, self.owns)
                lease = stack.enter_context(hold_lease(target, times=times, wait=wait, log=log, stops=self.stops))
            except OSError as error:
                raise NielsCacheError(
                    f"{disk_error_message(error, target)}; the last good build, if there is one, is unchanged: {target}"
                ) from error
            yield BuildLock(lease.waited, lease)

    def stage(self, work: BuildJob) -> AbstractContextManager[Path]:
        """Return a context manager that provides a staging directory, which replaces `directory` at the end.

        Args:
            work: The arguments of `write`, whose `directory` is not the staging directory yet.
        """
        if isinstance(work.lease, Lease):
            return staged_attempt(work.lease, log=work.log, resumable=self.resumable)
        return staged(self.directory, resumable=self.resumable)

    def sweep(self, *, resumable: bool) -> None:
        """Remove the files of killed builds, unless a process builds now.

        Args:
            resumable: Whether to keep an unfinished build that can be resumed.
        """
        if self.is_shared and self.resumable:
            if not resumable:  # otherwise the next attempt removes what it cannot use
                sweep_attempts(self.directory)
            return
        sweep_leftovers(self.directory, resumable=resumable)
        target = real_path(self.lease_target)
        if self.is_shared and set(staged_attempts(target)) - {partial_path(target)}:
            sweep_attempts(target)


@dataclass(frozen=True)
class RootArtifact(Artifact):
    """An artifact of a configuration, in a root folder.

    Attributes:
        registry: The configuration.
        root: The folder of the caches.
    """

    registry: Registry
    root: Path


def add_unmatched_ids(drops: DropSummary, source: Source | None, meta: Meta) -> DropSummary:
    """Return the summary with a warning about ids of `exclude` that match nothing.

    Raises:
        NielsCacheError: If such ids exist and `exclude_must_match` is set.
    """
    if not isinstance(source, PretrainSource | SftSource) or source.exclude is None or not meta.get("built"):
        return drops
    line = require_matches(source.exclude, meta["facts"], must_match=source.exclude_must_match)
    return drops if line is None else dataclasses.replace(drops, warnings=(*drops.warnings, line))
