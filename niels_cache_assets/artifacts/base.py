"""The base class of artifacts: the questions that `materialize` asks, and the values that are passed to and from it.

A new kind is one class: a frozen dataclass with `key`, `directory`, `identity` and `write`. All other methods have a default here.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast

from niels_cache_assets.build_cache.resuming import JournalFingerprint, Resume, fingerprint_of_journal, open_journal
from niels_cache_assets.config.fingerprint import fingerprint_of
from niels_cache_assets.disk.journal import Journal
from niels_cache_assets.disk.space import Need
from niels_cache_assets.disk.staging import finished_meta, is_cache_name, locked, staged
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, TOKENIZER_MODEL_NAME, Family
from niels_cache_runtime.format.meta import Meta

Log = Callable[[str], None]
State = Literal["built", "cache_hit", "disabled"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of building one artifact.

    meta: its record; empty if the artifact is switched off and was never built. kept: an existing build stays although another one may be
    needed, because upstream is not available or the artifact is switched off; `warning` gives the reason. warning: anything else that you
    should know. seconds: the duration of this run. resumed: the part of it (tokens; characters of a corpus) that an interrupted build had
    already made.
    """

    key: str
    state: State
    meta: Meta
    directory: Path
    seconds: float = 0.0
    warning: str | None = None
    kept: bool = False
    resumed: int = 0

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
        return self.directory / TOKENIZER_MODEL_NAME

    @property
    def name(self) -> str:
        """The rest of the key: the data set, or the kind itself if there is only one artifact of this kind."""
        return self.key.partition("/")[2] or self.key


@dataclass(frozen=True, kw_only=True)
class Written:
    """The result of `write`: the record, which is written last. `resumed` and `warning` are those of an Outcome.

    changed: False if everything was already there. Only kinds that find this out while they write set it.
    """

    meta: Meta
    changed: bool = True
    resumed: int = 0
    warning: str | None = None


@dataclass(frozen=True, kw_only=True)
class Work:
    """The arguments of `write`. directory: empty, or as an interrupted build left it if the kind is resumable.

    revision: of upstream, as in `made_of`. progress: called with the progress of the build, in a form of the kind's own. force: do not
    resume.
    """

    directory: Path
    revision: str | None
    made_of: Mapping[str, Any]
    force: bool
    progress: Callable[[Any], None] | None
    log: Log

    @property
    def fingerprint(self) -> str:
        """The hash of everything that decides the bytes."""
        return fingerprint_of(dict(self.made_of))

    @property
    def resume(self) -> Resume:
        """The request to a builder to keep a journal here and to resume from the one that it finds."""
        return Resume(fingerprint=self.fingerprint, log=self.log, afresh=self.force, made_of=self.made_of)

    def open_journal(self, name: str, *, state: type[Any]) -> Journal:
        """Open the journal of a build, named `name` in the log. Its `state` is None or an instance of that data class."""
        journal = open_journal(self.directory, self.resume, name=name, identity={}, state=state)
        assert journal is not None
        return journal


class Artifact(ABC):
    """One thing that can be built. Subclasses are frozen dataclasses; `afresh` gives a copy without their cached properties.

    version: increased by hand when the bytes change for the same input. record: the file that is written last; None if each part has a
    record.
    """

    version: ClassVar[str] = "1"
    record: ClassVar[str | None] = META_NAME
    resumable: ClassVar[bool] = False
    noun: ClassVar[str] = "build"  # used in the message "kept the finished ..."
    takes_what_is_there: ClassVar[bool] = False  # it uses the inputs that exist, and is built again when there are more
    states: ClassVar[tuple[State, State]] = ("built", "cache_hit")  # after a build, and if none was needed

    @property
    @abstractmethod
    def key(self) -> str:
        """The name of the artifact in a root: `tokenizer`, `corpus/NAME`, `pretrain/NAME`, ..."""

    @property
    @abstractmethod
    def directory(self) -> Path:
        """The directory of the artifact."""

    @abstractmethod
    def identity(self, revision: str | None) -> dict[str, Any]:
        """Return everything that decides its bytes if upstream is at `revision`. Raises NielsCacheError if an input is missing."""

    @abstractmethod
    def write(self, work: Work) -> Written:
        """Build it in `work.directory`. Raises NielsCacheError if it cannot be built; the previous build then stays."""

    @property
    def network_patience(self) -> float | None:
        """The number of seconds for which requests are retried; None if the build does not use the network."""
        return None

    def inputs(self) -> Sequence[str]:
        """Return the keys of the artifacts that it is built from. Edges are defined only here. Upstream is not an artifact."""
        return ()

    def unavailable(self) -> str | None:
        """Return why it is not built and has no replacement: it is switched off. Raises NielsCacheError if a setting is missing."""
        return None

    def finished(self) -> Meta | None:
        """Return the record of a complete build, if there is one. Raises NielsCacheError if the build must be neither used nor replaced."""
        return finished_meta(self.directory)

    def keeps(self) -> str | None:
        """Return why the existing build stays even if another one is needed."""
        return None

    def revision(self) -> str | None:
        """Return the revision of upstream. Raises SourceUnavailable if upstream is not available now."""
        return None

    def is_made_of(self, meta: Meta, made_of: Mapping[str, Any]) -> bool:
        """Return whether the build with this record equals the one that would be made from `made_of`."""
        return bool(meta.get("fingerprint") == fingerprint_of(dict(made_of)))

    def need(self) -> Need | None:
        """Return the disk space that a build needs, as far as it is known."""
        return None

    def owns(self, name: str) -> bool:
        """Return whether a file or folder of this name in `directory` may be replaced."""
        return is_cache_name(name)

    def warning(self) -> str | None:
        """Return a warning about the artifact, whether it was built now or earlier."""
        return None

    def journal(self, revision: str | None) -> JournalFingerprint:
        """Return the fingerprint that the journal of a build would have now. Writes nothing and does not ask upstream."""
        made_of = self.identity(revision)
        return fingerprint_of_journal(Resume(fingerprint=fingerprint_of(made_of), made_of=made_of), {})

    def current(self) -> Meta:
        """Return the record of the existing build if it equals the one that would be made at its own revision.

        `materialize` checks for a newer upstream. Raises NielsCacheError, which names what to build.
        """
        meta = self.finished()
        if meta is None or not self.is_made_of(meta, self.identity(meta.get("dataset_revision"))):
            raise NielsCacheError(f"{self.directory}: {self.key} does not exist as configured; build it first")
        return meta

    def afresh(self) -> Self:
        """Return the same artifact without its cached properties."""
        return dataclasses.replace(self)  # type: ignore[type-var]

    def lock(self, *, wait: bool, log: Log) -> AbstractContextManager[bool]:
        """Return a context manager that locks out other builds of it. Its value is True if it had to wait for one."""
        return locked(self.directory, is_ours=self.owns, wait=wait, log=log)

    def stage(self) -> AbstractContextManager[Path]:
        """Return a context manager that provides a staging directory, which replaces `directory` at the end."""
        return staged(self.directory, resumable=self.resumable)
