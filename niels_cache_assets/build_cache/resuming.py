"""Builds that go on where an earlier one was stopped: the journal they keep, and their way back to the item they were at.

A build records, between two chunks, how far it was and what its files hold. The next one with the same fingerprint is given the directory
as it was then. Its source is opened at the latest place that it can be opened at; what it gives before the item that comes next is read
and thrown away, which costs reading and no encoding.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from niels_cache_assets.config.fingerprint import fingerprint_of
from niels_cache_assets.disk.journal import Journal
from niels_cache_assets.disk.made_of import MadeOf, recordable
from niels_cache_assets.streaming.types import Mark
from niels_cache_runtime.errors import NielsCacheError

Item = TypeVar("Item")

# What reads, encodes, compares, shuffles and writes: half a cache of one version and half of another would be neither's.
_LIBRARIES = (
    "niels-cache",
    "sentencepiece",
    "torch",
    "numpy",
    "datasets",
    "pyarrow",
    "mwparserfromhell",  # the texts of wikipedia
    "pycld2",  # the language of a text
    "numba",  # band hashes
)


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Asks a builder to keep a journal, and to go on from the one it finds.

    `fingerprint` stands for everything the builder cannot know that decides the bytes: the source and its revision. With the same one the
    source must give the same items in the same order. `afresh`: go on from nothing. `log` is told what happens. `made_of`: what the
    fingerprint is of, to say what differs. `only_asked`: the builder raises JournalFingerprint before it reads or writes anything.
    """

    fingerprint: str
    log: Callable[[str], None] = lambda message: None
    afresh: bool = False
    made_of: Mapping[str, Any] | None = None
    only_asked: bool = False


class JournalFingerprint(Exception):
    """No error but an answer: what the journal of a build would have for a fingerprint, and what that is of."""

    def __init__(self, fingerprint: str, made_of: MadeOf | None) -> None:
        super().__init__(fingerprint)
        self.fingerprint, self.made_of = fingerprint, made_of


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What was dropped, and what the source says of itself, when the stream was read to its end or to where the budgets end it."""

    dropped: dict[str, int]
    facts: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Where a stream of items was: `items` had been taken of it, `mark` is the latest before them from which it can be opened.

    `share`: how much of the source that is, 0 to 1; None where it is not known.
    """

    items: int
    mark: Mark | None
    share: float | None


def open_journal(partial: Path, resume: Resume | None, *, name: str, identity: dict[str, Any], state: type[Any]) -> Journal | None:
    """The journal of a build in `partial`, whose `state` is None or of that data class; None for a build that keeps none.

    `identity` is what the builder knows that decides the bytes; `name` is for the log.
    """
    if resume is None:
        return None
    journalled = fingerprint_of_journal(resume, identity)
    parse = TypeAdapter(state).validate_python
    journal = Journal.open(
        partial, fingerprint=journalled.fingerprint, log=resume.log, afresh=resume.afresh, parse=parse, made_of=journalled.made_of
    )
    if journal.state is not None:
        resume.log(f"resuming {name}{'' if journal.share is None else f' at {journal.share:.0%}'}")
    return journal


def fingerprint_of_journal(resume: Resume, identity: dict[str, Any]) -> JournalFingerprint:
    """With the versions of what shapes bytes in it; `identity` as in open_journal."""
    # Python's, too: its Unicode tables decide what cleaning makes of a text.
    versions = {"python": platform.python_version(), **{library: _version(library) for library in _LIBRARIES}}
    made_of = None if resume.made_of is None else recordable({**resume.made_of, "versions": versions})
    return JournalFingerprint(fingerprint_of({"given": resume.fingerprint, "versions": versions, **identity}), made_of)


def take_up(
    stream: Callable[[Mark | None], Iterator[Item]],
    reached: Reached,
    *,
    log: Callable[[str], None],
    replay: Callable[[Iterator[Item]], None] | None = None,
) -> Iterator[Item]:
    """The items that come after those that were reached. `stream` opens them at a mark, or at the beginning.

    `replay` is given the items from the beginning to there, and reads as many as it needs. Raises NielsCacheError if the stream ends
    before.
    """
    started = time.monotonic()
    items = stream(None)
    past = _first(items, reached.items)
    if replay is not None:
        replay(past)
    if reached.mark is not None:
        items = stream(reached.mark)
        past = _first(items, reached.items - reached.mark.items)
    for _ in past:
        pass
    log(f"skipped the {reached.items:,} that were done, in {time.monotonic() - started:.1f} s")
    return items


def _first(items: Iterator[Item], count: int) -> Iterator[Item]:
    for _ in range(count):
        try:
            yield next(items)
        except StopIteration:
            raise NielsCacheError("the source now ends before what is built of it already; build afresh (--force)") from None


@cache
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
