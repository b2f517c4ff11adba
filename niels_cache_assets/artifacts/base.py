"""What an artifact is: the questions that `materialize` asks of it, and the words in which it is told and tells.

A new kind is one class: a frozen dataclass with `key`, `directory`, `identity` and `write`; all else has an answer here.
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
    """What happened to one artifact.

    meta: its record, empty if it is switched off and was never built. `kept`: what is there stays though a build may make another:
    upstream could not be asked, or it is switched off; `warning` says so. `warning` also tells what to know of a build. seconds: of this
    run. resumed: how much of it (tokens, of a corpus characters) an earlier, stopped build had made already.
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
        """Return the first part of the key: `pretrain`, `corpus`, ..."""
        return self.key.partition("/")[0]

    @property
    def family(self) -> Family:
        """Return the family of a data set's cache."""
        return cast(Family, self.kind)

    @property
    def model(self) -> Path:
        """Return where the model of a tokenizer lies."""
        return self.directory / TOKENIZER_MODEL_NAME

    @property
    def name(self) -> str:
        """Return the rest of the key: the data set, or the kind itself if there is one of it."""
        return self.key.partition("/")[2] or self.key


@dataclass(frozen=True, kw_only=True)
class Written:
    """What `write` has made: the record of it, which is written last. `resumed`, `warning`: as of an Outcome.

    changed: False if all of it was there, for kinds of which only writing can tell.
    """

    meta: Meta
    changed: bool = True
    resumed: int = 0
    warning: str | None = None


@dataclass(frozen=True, kw_only=True)
class Work:
    """What `write` is given. `directory`: empty, or as a stopped build left it, if the kind is resumable.

    revision: of upstream, as `made_of` has it. progress: told how far it is, in the kind's own words. `force`: nothing is resumed.
    """

    directory: Path
    revision: str | None
    made_of: Mapping[str, Any]
    force: bool
    progress: Callable[[Any], None] | None
    log: Log

    @property
    def fingerprint(self) -> str:
        """Return the hash of all that decides the bytes."""
        return fingerprint_of(dict(self.made_of))

    @property
    def resume(self) -> Resume:
        """Return what asks a builder to keep a journal here, and to resume from the one that it finds."""
        return Resume(fingerprint=self.fingerprint, log=self.log, afresh=self.force, made_of=self.made_of)

    def open_journal(self, name: str, *, state: type[Any]) -> Journal:
        """Open the journal of a build called `name` in the log. Its `state` is None or of that data class."""
        journal = open_journal(self.directory, self.resume, name=name, identity={}, state=state)
        assert journal is not None
        return journal


class Artifact(ABC):
    """One thing that can be built. Subclasses are frozen dataclasses; what their properties cache is of one look (`afresh`).

    version: bumped by hand when the bytes change for the same input. record: the file that is written last,
    None if each of its parts has its own.
    """

    version: ClassVar[str] = "1"
    record: ClassVar[str | None] = META_NAME
    resumable: ClassVar[bool] = False
    noun: ClassVar[str] = "build"  # in "kept the finished ..."
    takes_what_is_there: ClassVar[bool] = False  # it is built of those inputs that are built, and again when others are
    states: ClassVar[tuple[State, State]] = ("built", "cache_hit")  # after a build, and after none

    @property
    @abstractmethod
    def key(self) -> str:
        """Return its name in a root: `tokenizer`, `corpus/NAME`, `pretrain/NAME`, ..."""

    @property
    @abstractmethod
    def directory(self) -> Path:
        """Return where it lies."""

    @abstractmethod
    def identity(self, revision: str | None) -> dict[str, Any]:
        """Return all that decides its bytes, if upstream is at `revision`. Raises NielsCacheError if an input is not there."""

    @abstractmethod
    def write(self, work: Work) -> Written:
        """Build it in `work.directory`. Raises NielsCacheError if nothing can be built; what was there before then stays."""

    @property
    def network_patience(self) -> float | None:
        """Return the seconds for which requests are repeated, None if nothing is asked of the network."""
        return None

    def inputs(self) -> Sequence[str]:
        """Return the keys of what it is built from, the only place that knows. Upstream is no artifact."""
        return ()

    def unavailable(self) -> str | None:
        """Return why it is not built and nothing stands for it: it is switched off. Raises NielsCacheError if a setting is missing."""
        return None

    def finished(self) -> Meta | None:
        """Return the record of what is there and whole. Raises NielsCacheError if it must neither be used nor replaced."""
        return finished_meta(self.directory)

    def keeps(self) -> str | None:
        """Return why what is there stays, whatever would be built now."""
        return None

    def revision(self) -> str | None:
        """Return the revision of upstream. Raises SourceUnavailable if it cannot be asked now."""
        return None

    def is_made_of(self, meta: Meta, made_of: Mapping[str, Any]) -> bool:
        """Return whether what is there is what a build would make."""
        return bool(meta.get("fingerprint") == fingerprint_of(dict(made_of)))

    def need(self) -> Need | None:
        """Return the room that a build takes, as far as it is known."""
        return None

    def owns(self, name: str) -> bool:
        """Return whether a file or folder of this name in `directory` may be replaced."""
        return is_cache_name(name)

    def warning(self) -> str | None:
        """Return what to know of it, built or not."""
        return None

    def journal(self, revision: str | None) -> JournalFingerprint:
        """Return what the journal of a build would have now. It writes nothing, and asks nothing of upstream."""
        made_of = self.identity(revision)
        return fingerprint_of_journal(Resume(fingerprint=fingerprint_of(made_of), made_of=made_of), {})

    def current(self) -> Meta:
        """Return the record of what is there, if it is what would be built at the revision that it has.

        A newer upstream is for `materialize` to see. Raises NielsCacheError that says what to build.
        """
        meta = self.finished()
        if meta is None or not self.is_made_of(meta, self.identity(meta.get("dataset_revision"))):
            raise NielsCacheError(f"{self.directory}: {self.key} is not built as it is configured; build it first")
        return meta

    def afresh(self) -> Self:
        """Return the same artifact, with nothing that it has looked at before."""
        return dataclasses.replace(self)  # type: ignore[type-var]

    def lock(self, *, wait: bool, log: Log) -> AbstractContextManager[bool]:
        """Return a context that keeps other builds of it away, and says whether it had to wait for one."""
        return locked(self.directory, is_ours=self.owns, wait=wait, log=log)

    def stage(self) -> AbstractContextManager[Path]:
        """Return a context that gives the folder to build in, which takes the place of `directory` at its end."""
        return staged(self.directory, resumable=self.resumable)
