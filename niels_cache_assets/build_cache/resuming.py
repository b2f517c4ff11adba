"""Resumable builds: the journal that a build keeps, and the way back to its position in the source.

Between two chunks, a build records its position and the state of its files. The next build with the same fingerprint continues from this
record. It opens the source at the latest place before the next item at which the source can be opened. The items between this place and the
next item are read and skipped; they are not encoded again.
"""

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import TypeAdapter

from niels_cache_assets.config.fingerprint import fingerprint_of
from niels_cache_assets.disk.journal import Journal
from niels_cache_assets.disk.made_of import MadeOf, recordable
from niels_cache_assets.streaming.types import Mark
from niels_cache_assets.tokenizer.engines import installed_version
from niels_cache_runtime.errors import NielsCacheError

Batch = TypeVar("Batch", bound=Sized)

# Libraries that decide the bytes. A cache must not come partly from one version and partly from another.
_LIBRARIES = (
    "niels-cache",
    "sentencepiece",
    "torch",
    "numpy",
    "datasets",
    "pyarrow",
    "mwparserfromhell",  # the texts of wikipedia
    "langdetect-rs",  # the language of a text
    "numba",  # band hashes
)


@dataclass(kw_only=True)
class Resume:
    """A request to a builder to keep a journal, and to resume from a journal that it finds.

    `fingerprint` covers everything outside the builder that decides the bytes: the source and its revision. A source with the same
    fingerprint must yield the same items in the same order. `afresh`: start from the beginning in any case. `log` is called with each
    message. `made_of`: the values that the fingerprint hashes, for messages about differences. `attempt`: the number that the records of
    the journal name. `check`: called before each record; it raises NielsCacheError if this build may not go on. `resumed_tokens`: set by
    the builder, the number of tokens that an interrupted build had already made.
    """

    fingerprint: str
    log: Callable[[str], None] = lambda message: None
    afresh: bool = False
    made_of: Mapping[str, Any] | None = None
    attempt: int | None = None
    check: Callable[[], None] = lambda: None
    resumed_tokens: int = field(default=0, init=False)


class JournalFingerprint(NamedTuple):
    """The fingerprint of a builder's journal, and the values that it hashes."""

    fingerprint: str
    made_of: MadeOf | None


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The position that a build has reached in a stream.

    items: the number of items that were taken from the stream. mark: the latest Mark before this position; the stream can be opened there.
    share: the share of the source that was read, 0 to 1; None if unknown.
    """

    items: int
    mark: Mark | None
    share: float | None


def open_journal(
    partial: Path, resume: Resume, *, name: str, identity: dict[str, Any], state: type[Any], reference: str | None = None
) -> Journal:
    """Open the journal of a build in `partial`.

    identity: all values in the builder that decide the bytes. name: the name of the build, for the log. state: the data class of the
    journal's state; the state is None if there is nothing to resume. reference: see fingerprint_of_journal.
    """
    journalled = fingerprint_of_journal(resume, identity, reference=reference)
    parse = TypeAdapter(state).validate_python
    journal = Journal.open(
        partial,
        fingerprint=journalled.fingerprint,
        log=resume.log,
        afresh=resume.afresh,
        parse=parse,
        made_of=journalled.made_of,
        attempt=resume.attempt,
    )
    journal.check = resume.check
    if journal.state is not None:
        resume.log(f"resuming {name}{'' if journal.share is None else f' at {journal.share:.0%}'}")
    return journal


def fingerprint_of_journal(resume: Resume, identity: dict[str, Any], *, reference: str | None = None) -> JournalFingerprint:
    """Return the fingerprint of a journal. It also covers the versions of libraries that decide the bytes. identity: see open_journal.

    reference: the library that defines the ids of the tokenizer. None if it counts for every build, as sentencepiece does.
    """
    # Python's version counts, too: its Unicode tables decide the result of cleaning.
    libraries = (*_LIBRARIES, *([reference] if reference else []))
    versions = {"python": platform.python_version(), **{library: installed_version(library) for library in libraries}}
    made_of = None if resume.made_of is None else recordable({**resume.made_of, "versions": versions})
    return JournalFingerprint(fingerprint_of({"given": resume.fingerprint, "versions": versions, **identity}), made_of)


def take_up(
    stream: Callable[[Mark | None], Iterator[Batch]],
    reached: Reached,
    *,
    log: Callable[[str], None],
    replay: Callable[[Iterator[Batch]], None] | None = None,
) -> Iterator[Batch]:
    """Return the items after the position that the earlier build reached.

    `stream`: opens the source at a Mark, or with None at the beginning. `replay`: called with the items from the beginning up to this
    position; it may read only some of them. Raises NielsCacheError if the stream ends before this position.
    """
    started = time.monotonic()
    batches = _Cut(stream(None))
    past = batches.first(reached.items)
    if replay is not None:
        replay(past)
    if reached.mark is not None:
        batches = _Cut(stream(reached.mark))
        past = batches.first(reached.items - reached.mark.items)
    for _ in past:
        pass
    log(f"skipped the {reached.items:,} items that were done, in {time.monotonic() - started:.1f} s")
    return batches.rest()


class _Cut(Generic[Batch]):
    """A stream of batches that is divided after some items, possibly inside of a batch."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._left: list[Batch] = []  # the end of the batch that was cut

    def first(self, count: int) -> Iterator[Batch]:
        """Yield the first `count` items. Raises NielsCacheError if there are fewer."""
        while count:
            batch = next(self._batches, None)
            if batch is None:
                raise NielsCacheError("the source is now shorter than the part that is already built; build again with --force")
            taken = min(count, len(batch))
            count -= taken
            if taken < len(batch):
                self._left, batch = [batch[taken:]], batch[:taken]  # type: ignore[index]
            yield batch

    def rest(self) -> Iterator[Batch]:
        """Yield the items that `first` has not yielded."""
        yield from self._left
        self._left.clear()
        yield from self._batches
