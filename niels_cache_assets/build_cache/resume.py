"""Where a build resumes: which journal fits, and how the stream continues after the items that are done.

    open_journal    the fingerprint of this build (fingerprint_of_journal) against the journal on the disk (disk/journal.py):
                    equal: the files are cut back to the record; different: a fresh start, with the reason in the log
    resume_stream   from the recorded position (BuildPosition) to the rest of the stream: the source is opened at the latest ResumePoint
                    before the position; the items from there up to the position are read and skipped, but not encoded again

Between two chunks, a builder records its position and the state of its files. artifacts/unfinished.py predicts whether a build will resume.
"""

import platform
import time
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter

from niels_cache_assets.base.defaults import RECORD_SECONDS
from niels_cache_assets.base.fingerprint import fingerprint_of
from niels_cache_assets.disk.identity import Identity, as_recorded
from niels_cache_assets.disk.journal import Journal, Keep
from niels_cache_assets.streaming.types import BuildPosition, ResumePoint
from niels_cache_assets.tokenizer.engines import installed_version
from niels_cache_runtime.errors import NielsCacheError

Batch = TypeVar("Batch", bound=Sized)

CODE_VERSIONS = {"pretrain": "1", "sft": "1"}  # raise one by hand if a change writes different bytes for the same input

# Libraries that decide the bytes. A cache must not come partly from one version and partly from another. The code versions stand for
# niels-cache itself, so a release that writes the same bytes continues the builds of an earlier one.
_LIBRARIES = (
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

    Attributes:
        fingerprint: A hash of everything outside the builder that decides the bytes: the source and its revision. A source with the same
            fingerprint must yield the same items in the same order.
        log: Called with each message. The default discards messages.
        afresh: Whether to start from the beginning in any case. The default resumes if it can.
        identity: The values that the fingerprint hashes, for messages about differences. None records no values.
        attempt: The number that the records of the journal name. None records no number.
        record_seconds: The time in seconds after which a record is due.
        check: Called before each record. It raises NielsCacheError if this build must not continue. The default does nothing.
        keep: Called with each record, which it keeps in a store with the files that the record names. None: the directory is enough.
        resumed_tokens: The number of tokens that an interrupted build had already written. The builder sets it.
    """

    fingerprint: str
    log: Callable[[str], None] = lambda message: None
    afresh: bool = False
    identity: Identity | None = None
    attempt: int | None = None
    record_seconds: float = RECORD_SECONDS
    check: Callable[[], None] = lambda: None
    keep: Keep | None = None
    resumed_tokens: int = field(default=0, init=False)


class JournalFingerprint(NamedTuple):
    """The fingerprint of a builder's journal, and the values that it hashes."""

    fingerprint: str
    identity: Identity | None


def open_journal(partial: Path, resume: Resume, journalled: JournalFingerprint, *, name: str, state: type[Any]) -> Journal:
    """Open the journal of a build in `partial`.

    Args:
        partial: The folder of the unfinished build.
        resume: The request to keep a journal.
        journalled: The fingerprint of this build (see `fingerprint_of_journal`).
        name: The name of the build, for the log.
        state: The data class of the journal's state. The state is None if there is nothing to resume.
    """
    journal = Journal(
        partial,
        fingerprint=journalled.fingerprint,
        log=resume.log,
        afresh=resume.afresh,
        parse=TypeAdapter(state).validate_python,
        identity=journalled.identity,
        attempt=resume.attempt,
    )
    journal.check, journal.seconds = resume.check, resume.record_seconds
    if resume.keep is not None:
        journal.keep_in_store(resume.keep)
    if journal.state is not None:
        resume.log(f"resuming {name}{'' if journal.share is None else f' at {journal.share:.0%}'}")
    return journal


def fingerprint_of_journal(resume: Resume, identity: Identity, *, reference: str | None = None) -> JournalFingerprint:
    """Return the fingerprint of a journal, which also covers the versions of libraries that decide the bytes.

    Args:
        resume: The request to keep a journal, with the fingerprint of the source.
        identity: All values in the builder that decide the bytes.
        reference: The library that defines the ids of the tokenizer. None if it counts for every build, as sentencepiece does.
    """
    # Python's version counts, too: its Unicode tables decide the result of cleaning.
    libraries = (*_LIBRARIES, *([reference] if reference else []))
    versions = {"python": platform.python_version(), **{library: installed_version(library) for library in libraries}}
    recorded_identity = None if resume.identity is None else as_recorded({**resume.identity, "versions": versions})
    return JournalFingerprint(fingerprint_of({"given": resume.fingerprint, "versions": versions, **identity}), recorded_identity)


def resume_stream(
    stream: Callable[[ResumePoint | None], Iterator[Batch]],
    reached: BuildPosition,
    *,
    log: Callable[[str], None],
    replay: Callable[[Iterator[Batch]], None] | None = None,
) -> Iterator[Batch]:
    """Return the items after the position that the earlier build reached.

    Args:
        stream: Opens the source at a resume point, or with None at the beginning.
        reached: The position of the earlier build.
        log: Called with a message about the skipped items.
        replay: Called with the items from the beginning up to this position; it may read only some of them. None: the items are not read if
            the source can be opened at a later point.

    Raises:
        NielsCacheError: If the stream ends before this position.
    """
    started = time.monotonic()
    batches = stream(None)

    def first(count: int) -> Iterator[Batch]:
        """Yield the first `count` items of the stream, and leave the others in it, even if this divides a batch."""
        nonlocal batches
        while count:
            batch = next(batches, None)
            if batch is None:
                raise NielsCacheError("the source is now shorter than the part that is already built; build again with --force")
            taken = min(count, len(batch))
            count -= taken
            if taken < len(batch):
                batches = chain([batch[taken:]], batches)  # type: ignore[index]
            yield batch[:taken]  # type: ignore[index]

    done = first(reached.items)
    if replay is not None:
        replay(done)
    if reached.mark is not None:
        batches, done = stream(reached.mark), first(reached.items - reached.mark.items)
    for _ in done:
        pass
    log(f"skipped the {reached.items:,} items that were done, in {time.monotonic() - started:.1f} s")
    return batches
