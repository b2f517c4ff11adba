"""The base class of artifacts, and the values that artifacts exchange with `materialize`.

An artifact is one thing that can be built. A new kind of artifact is one class: a frozen dataclass with `key`, `directory`, `identity` and
`write`. The base class has a default for all other methods.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

from niels_cache_assets.base.fingerprint import fingerprint_of
from niels_cache_assets.build_cache.base import JournalFingerprint, Resume, fingerprint_of_journal, open_journal
from niels_cache_assets.disk.attempts import staged_attempts
from niels_cache_assets.disk.journal import Journal, real_path
from niels_cache_assets.disk.space import Need, refusal
from niels_cache_assets.disk.staging import finished_meta, is_cache_name, locked, require_target, staged, sweep_leftovers
from niels_cache_assets.facts.drops import NO_DROPS, DropSummary
from niels_cache_assets.parts.attempts import staged_attempt, sweep_attempts
from niels_cache_assets.parts.lease import Lease, Stops, Times, leased
from niels_cache_assets.project.running import NotifySettings
from niels_cache_assets.sources.excluding import require_matches
from niels_cache_assets.sources.types import PretrainSource, Source
from niels_cache_assets.tokenizer.checked import EngineUse
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import partial_path
from niels_cache_runtime.format.layout import META_NAME, Family, tokenizer_model_name
from niels_cache_runtime.format.meta import Meta

if TYPE_CHECKING:
    from niels_cache_assets.project.registry import Registry


Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Held:
    """The right to build an artifact. waited: whether the caller had to wait for another build. lease: None for most artifacts."""

    waited: bool = False
    lease: Lease | None = None


def times_of(registry: Registry) -> Times:
    """Return the times of leases that [cluster] sets."""
    return Times(renew_seconds=registry.cluster.renew_seconds, lease_seconds=registry.cluster.lease_seconds)


State = Literal["built", "cache_hit", "disabled"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of building one artifact.

    meta: the record of the artifact; empty if the artifact is switched off and was never built.
    kept: whether the existing build stays although a new build may be needed. This happens if upstream (the place of the original data) is
        not available, or if the artifact is switched off.
    warning: the reason if `kept` is True. Otherwise, a remark for the user, or None.
    seconds: the duration of this run.
    resumed: the number of tokens (for a corpus, characters) that an interrupted build had already made.
    engines: the libraries that encoded the text in this build; empty for a tokenizer without fast engines, and if nothing was built.
    drops: what the build left out, in words; empty for parts, whose seal says it.
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
        """The first part of the key: `pretrain`, `corpus`, ..."""
        return self.key.partition("/")[0]

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
        """The part of the key after the kind: the data set. If a kind has only one artifact, the name is the kind itself."""
        return self.key.partition("/")[2] or self.key


@dataclass(frozen=True, kw_only=True)
class Written:
    """The result of `Artifact.write`.

    meta: the record, which is written after all other files.
    resumed, warning, engines: the values for the same fields of Outcome.
    changed: False if everything existed already. Only some kinds of artifacts set `changed`: those that find this out while they write.
    """

    meta: Meta
    changed: bool = True
    resumed: int = 0
    warning: str | None = None
    engines: Sequence[EngineUse] = ()


@dataclass(frozen=True, kw_only=True)
class Reported:
    """The progress of a job: what it has read or made, by unit, and its finished share, 0 to 1. None stands for unknown."""

    counts: Mapping[str, int]
    share: float | None


@dataclass(frozen=True, kw_only=True)
class Work:
    """The arguments of `Artifact.write`.

    directory: the folder to write to. It is empty. If the kind of artifact is resumable, it may hold the files of an interrupted build
        instead.
    revision: the revision of upstream for which `made_of` was computed.
    made_of: everything that decides the bytes.
    progress: called with the progress of the build. Each kind of artifact passes its own type.
    force: do not resume.
    lease: the lease of this attempt; None for most artifacts.
    reference: see `Artifact.reference`.
    """

    directory: Path
    revision: str | None
    made_of: Mapping[str, Any]
    force: bool
    progress: Callable[[Any], None] | None
    log: Log
    lease: Lease | None = None
    reference: str | None = None

    @property
    def fingerprint(self) -> str:
        """The hash of everything that decides the bytes."""
        return fingerprint_of(dict(self.made_of))

    @property
    def resume(self) -> Resume:
        """A request to a builder: keep a journal in this directory, and resume from the journal that is there."""
        resume = Resume(fingerprint=self.fingerprint, log=self.log, afresh=self.force, made_of=self.made_of)
        return resume if self.lease is None else dataclasses.replace(resume, attempt=self.lease.attempt, check=self.lease.check)

    def report(self, progress: Any) -> None:
        """Pass the progress on. Raises LeaseLost or Stopped as soon as a renewal of the lease has found a reason."""
        if self.lease is not None:
            self.lease.check_quickly()
        if self.progress is not None:
            self.progress(progress)

    def open_journal(self, name: str, *, state: type[Any], identity: Mapping[str, Any] = MappingProxyType({})) -> Journal:
        """Open the journal of a build. The log calls the build `name`. The journal's state is None or an instance of the data class
        `state`. `identity`: values that decide the files of an unfinished build, but not its result.
        """
        return open_journal(self.directory, self.resume, name=name, identity=dict(identity), state=state, reference=self.reference)


@dataclass(frozen=True, kw_only=True)
class Artifact(ABC):
    """One thing that can be built. Subclasses are frozen dataclasses; `afresh` gives a copy without cached properties.

    version: increase this number by hand if the code makes different bytes from the same input.
    record: the name of the file that is written last. It is None if each part of the artifact has its own record.
    is_shared: whether machines without common file locks may build the artifact, which then has a lease instead of a lock.
    is_part: whether the artifact is one of several that are joined, and the joined one says what all of them left out.
    option: the option of `niels-cache part` that builds this kind.
    on_stop: called by another thread if a stop of a shared artifact is requested. Without it, the build stops at its next batch.
    stops: the requests to stop that count; None takes those after the lease is asked for.
    """

    version: ClassVar[str] = "1"
    record: ClassVar[str | None] = META_NAME
    resumable: ClassVar[bool] = False
    is_shared = False
    is_part: ClassVar[bool] = False
    uses_network: ClassVar[bool] = False
    option: ClassVar[str | None] = None
    noun: ClassVar[str] = "build"  # used in the message "kept the finished ..."
    takes_what_is_there: ClassVar[bool] = False  # a build uses the inputs that exist; when more inputs exist, the artifact is built again
    states: ClassVar[tuple[State, State]] = ("built", "cache_hit")  # the state after a build, and the state if no build was needed

    on_stop: Callable[[], None] | None = field(default=None, compare=False)
    stops: Stops | None = field(default=None, compare=False)

    @property
    @abstractmethod
    def key(self) -> str:
        """The unique name of the artifact in a root folder: `tokenizer`, `corpus/NAME`, `pretrain/NAME`, ..."""

    @property
    @abstractmethod
    def directory(self) -> Path:
        """The directory of the artifact."""

    @property
    def place(self) -> Path:
        """The path that every build of the artifact replaces."""
        return self.directory

    @abstractmethod
    def identity(self, revision: str | None) -> dict[str, Any]:
        """Return everything that decides the bytes of the artifact, for this `revision` of upstream. Raises NielsCacheError if an input is
        missing.
        """

    @abstractmethod
    def write(self, work: Work) -> Written:
        """Build the artifact in `work.directory`. Raises NielsCacheError if the build fails. The previous build then stays."""

    @property
    def network_patience(self) -> float | None:
        """The number of seconds for which requests are retried. It is None if the build does not use the network."""
        return getattr(self, "registry").build.network_patience if self.uses_network else None  # noqa: B009  each such artifact has one

    @property
    def notify(self) -> NotifySettings:
        """The settings that say who is told about a build."""
        registry = getattr(self, "registry", None)
        return NotifySettings() if registry is None else registry.notify

    @property
    def reference(self) -> str | None:
        """The library that defines the ids of the tokenizer. The journal of a build records its version. It is None if the build does not
        use a tokenizer, or if the library counts for every build.
        """
        return None

    def inputs(self) -> Sequence[str]:
        """Return the keys of the artifacts that this artifact is built from. The graph takes its edges only from this method. Upstream is
        not an artifact.
        """
        return ()

    def unavailable(self) -> str | None:
        """Return why this configuration never builds the artifact (it is switched off or unused), or None. Raises NielsCacheError if a
        setting is missing.
        """
        return None

    def finished(self) -> Meta | None:
        """Return the record of a complete build, or None. Raises NielsCacheError if there is a build that must be neither used nor
        replaced.
        """
        return finished_meta(self.directory)

    def keeps(self) -> str | None:
        """Return why the existing build stays even if a new build is needed, or None if it does not stay."""
        return None

    def is_settled(self, meta: Meta) -> bool:
        """Return whether the existing build with this record stays, without a question to upstream."""
        return False

    def revision(self) -> str | None:
        """Return the revision of upstream. Raises SourceUnavailable if upstream is not available now."""
        return None

    def is_made_of(self, meta: Meta, made_of: Mapping[str, Any]) -> bool:
        """Return whether the build with this record equals a build that would be made from `made_of`."""
        return bool(meta.get("fingerprint") == fingerprint_of(dict(made_of)))

    def need(self) -> Need | None:
        """Return the disk space that a build needs, or None if it is unknown."""
        return None

    def owns(self, name: str) -> bool:
        """Return whether a file or folder of this name in `directory` may be replaced."""
        return is_cache_name(name)

    def warning(self) -> str | None:
        """Return a warning about the artifact, whether it was built now or earlier."""
        return None

    def drops(self, meta: Meta) -> DropSummary:
        """Return what the build with this record left out, in words. Raises NielsCacheError if it may not have left that out."""
        return DropSummary()

    def journal(self, revision: str | None) -> JournalFingerprint:
        """Return the fingerprint that the journal of a build would have now. Writes nothing and does not ask upstream."""
        made_of = self.identity(revision)
        resume = Resume(fingerprint=fingerprint_of(made_of), made_of=made_of)
        return fingerprint_of_journal(resume, {}, reference=self.reference)

    def current(self) -> Meta:
        """Return the record of the existing build, if the build is current. The revision of upstream counts as unchanged.

        Only `materialize` looks for a newer revision of upstream. Raises NielsCacheError if the build is missing or not current. The
        message names the artifact to build.
        """
        meta = self.finished()
        if meta is None or not self.is_made_of(meta, self.identity(meta.get("dataset_revision"))):
            raise NielsCacheError(f"{self.directory}: {self.key} does not exist as configured; build it first")
        return meta

    def afresh(self) -> Self:
        """Return the same artifact without cached properties."""
        return dataclasses.replace(self)

    @property
    def claimed(self) -> Path:
        """The path whose lease a shared artifact takes."""
        return self.directory

    @contextmanager
    def lock(self, *, wait: bool, log: Log) -> Iterator[Held]:
        """Keep other builds of this artifact out. Raises Busy if another process builds it, or waits with `wait`.

        Raises NielsCacheError for a target that must not be replaced, and for errors of the disk.
        """
        if not self.is_shared:
            with locked(self.directory, is_ours=self.owns, wait=wait, log=log) as waited:
                yield Held(waited=waited)
            return
        target, times = real_path(self.claimed), times_of(getattr(self, "registry"))  # noqa: B009  each shared artifact has one
        with ExitStack() as held:
            try:
                require_target(target, self.owns)
                lease = held.enter_context(leased(target, times=times, wait=wait, log=log, on_stop=self.on_stop, stops=self.stops))
            except OSError as error:
                raise NielsCacheError(f"{refusal(error, target)}; the last good build, if there is one, is unchanged: {target}") from error
            yield Held(waited=lease.waited, lease=lease)

    def stage(self, held: Held, *, log: Log) -> AbstractContextManager[Path]:
        """Return a context manager that provides a staging directory, which replaces `directory` at the end. held: what `lock` gave."""
        if held.lease is not None:
            return staged_attempt(held.lease, log=log, resumable=self.resumable)
        return staged(self.directory, resumable=self.resumable)

    def sweep(self, *, resumable: bool) -> None:
        """Remove the files of killed builds, unless a process builds now. resumable: keep an unfinished build that can be resumed."""
        if self.is_shared and self.resumable:
            if not resumable:  # otherwise the next attempt removes what it cannot use
                sweep_attempts(self.directory)
            return
        sweep_leftovers(self.directory, resumable=resumable)
        target = real_path(self.directory)
        if self.is_shared and set(staged_attempts(target)) - {partial_path(target)}:
            sweep_attempts(target)


def with_unmatched(drops: DropSummary, source: Source | None, meta: Meta) -> DropSummary:
    """Return the summary with a warning about ids of `exclude` that match nothing. Raises NielsCacheError if each id must match."""
    if not isinstance(source, PretrainSource) or source.exclude is None or not meta.get("built"):
        return drops
    line = require_matches(source.exclude, meta["facts"], must_match=source.exclude_must_match)
    return drops if line is None else dataclasses.replace(drops, warnings=(*drops.warnings, line))
