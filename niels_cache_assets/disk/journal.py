"""The journal of a build that can be resumed: which data are safely on disk, and the state that the builder needs to continue.

    Journal(...)   the latest record, with every file truncated to its recorded size; or an empty directory and `state` None
    due, record    a new record after 32 MiB of written data, a finished file, or 10 s; the builder flushes its files to disk first

A record is one small JSON file. A new record is written next to the old one and then renamed over it, so one of the two exists after a
kill. A record contains the fingerprint of everything that determines the bytes. A build with a different fingerprint starts from the
beginning. A record costs an fsync of each unfinished file, of the journal, and of the directories with new files, and some microseconds for
each finished file that it names. If records take more than a fiftieth of the time, they become rarer, but there is one every minute, or
after `record_seconds` if that is longer. The builders define the state. Locks are in build_lock.py, and the exchange of directories is in
staging.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from niels_cache_assets.base.defaults import RECORD_SECONDS
from niels_cache_assets.disk.attempts import staged_attempts
from niels_cache_assets.disk.identity import Identity, as_recorded, differences
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import partial_path, remove, sync
from niels_cache_runtime.format.meta_keys import is_count
from niels_cache_runtime.format.safe_open import link_problem, name_problem, read_regular

if TYPE_CHECKING:
    from pydantic import TypeAdapter

JOURNAL_NAME = "journal.json"
SCRATCH_NAME = "scratch"  # a folder of files that a build needs to finish or to resume; it is not part of the result
BYTES_VARIABLE = "NIELS_CACHE_JOURNAL_BYTES"

_FORMAT = 1
_UNREADABLE = "the unfinished build has no readable journal"
_BLOCK_BYTES = 1 << 20
_MAX_BYTES = 1 << 28  # a damaged file may have any size


class JournalRecord(NamedTuple):
    """One record: the files on disk by relative path, and the progress of the build.

    Attributes:
        fingerprint: The fingerprint of everything that determines the bytes.
        state: What the builder needs to continue.
        finished: {bytes, sha256} of each complete file, as in meta.json.
        files: The size in bytes of each unfinished file.
        sums: For some unfinished files, an offset and the sha256 of the bytes after it.
        share: The progress from 0 to 1, or None if unknown.
        documents: The number of documents or conversations so far, or None if unknown.
        made_of: The values that the fingerprint hashes, to explain differences, or None if the caller of a builder gave none.
        notes: Facts that do not affect the bytes, such as the engines that encoded the text.
        attempt: The number of the attempt that made the record, or None for a target without attempts.
    """

    fingerprint: str
    state: dict[str, Any]
    finished: dict[str, dict[str, Any]]
    files: dict[str, int]
    sums: dict[str, tuple[int, str]]
    share: float | None
    documents: int | None
    made_of: Identity | None = None
    notes: dict[str, Any] | None = None
    attempt: int | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """The size of every file in bytes."""
        return {**{name: entry["bytes"] for name, entry in self.finished.items()}, **self.files}


Keep = Callable[[JournalRecord, bool], None]  # a new record, and whether it is the first one of a build that has begun from the start


class Journal:
    """The journal of an unfinished build in a directory.

    Attributes:
        state: The state in the latest record, or None without a record.
        share: The progress in the latest record, or None without a record.
        finished: The files that were finished at that record.
        notes: The notes of that record.
        take_notes: A function that returns the notes for each new record, or None.
        seconds: The time after which a record is due, [build] record_seconds.
        check: Called before each new record. It raises NielsCacheError if this build must stop.
    """

    BYTES = 1 << 25  # bytes written between two records; NIELS_CACHE_JOURNAL_BYTES replaces this
    MOST_SECONDS = 60.0  # between two records, even if they take long
    STORED_BYTES = 1 << 28  # between two records in a store, because each one sends unfinished files
    REST = 50  # minimal ratio of building time to recording time, unless NIELS_CACHE_JOURNAL_BYTES is set

    def __init__(
        self,
        directory: Path,
        *,
        fingerprint: str,
        log: Callable[[str], None],
        afresh: bool = False,
        parse: Callable[[dict[str, Any]], Any] = dict,
        identity: Identity | None = None,
        attempt: int | None = None,
    ) -> None:
        """Open the journal of the unfinished build in `directory`. If the build cannot be resumed, log the reason and clear the directory.

        Each file is truncated to its recorded size, and files without an entry in the record are removed, so all files are as they were at
        the record. Directories stay.

        Args:
            directory: The staging directory.
            fingerprint: The fingerprint of this build.
            log: Called with the reason why the build starts from the beginning.
            afresh: Whether to clear the directory in any case.
            parse: Converts the recorded values to `state`, or raises ValueError.
            identity: The values that the fingerprint hashes (identity.py), which the journal records.
            attempt: The number of this attempt, which the journal also records.
        """
        self._directory, self._fingerprint, self._attempt = directory, fingerprint, attempt
        self._identity = identity and as_recorded(identity)
        self.state: Any = None
        latest = _read(directory)
        reason = "a fresh build was requested" if afresh else _resume_problem(directory, latest, fingerprint, self._identity)
        if reason is None and isinstance(latest, JournalRecord):
            try:
                self.state = parse(latest.state)
            except ValueError:
                reason = "the journal of the unfinished build is of another kind of build"
        if reason is not None or isinstance(latest, str):
            if any(directory.iterdir()):
                log(f"starting afresh: {reason}")
            clear_directory(directory)
            latest = JournalRecord(fingerprint, {}, {}, {}, {}, None, None)
        else:
            _restore(directory, latest.sizes)
        self.recorded = reason is None  # whether there is a record to resume from
        self.check: Callable[[], None] = lambda: None
        self.seconds = RECORD_SECONDS
        self.share, self.finished = latest.share, latest.finished
        self.notes: dict[str, Any] = latest.notes or {}
        self.take_notes: Callable[[], dict[str, Any]] | None = None
        self._named = {*latest.sizes}
        interval = os.environ.get(BYTES_VARIABLE)
        self._interval, self._rest = int(interval or self.BYTES), 0 if interval else self.REST
        self._written = None if self.recorded else (0, 0)  # bytes and finished files at the last record; if resumed, `due` sets them
        self._time = self._asked = time.monotonic()
        self._took = 0.0
        self._keep: Keep | None = None

    def keep_in_store(self, keep: Keep) -> None:
        """Call `keep` with each new record, and make a record after each finished file and rarely otherwise."""
        self._keep, self._rest = keep, 0
        if BYTES_VARIABLE not in os.environ:
            self._interval = self.STORED_BYTES

    def due(self, bytes_written: int, *, finished: int = 0, seconds: float | None = None) -> bool:
        """Return whether it is time for a new record.

        A record is due after 32 MiB of written data, after a finished file, or some time after the last record. A record that takes long
        delays the next one.

        Args:
            bytes_written: The bytes written to all files since the build began, including those that existed at the start.
            finished: The number of complete files, including those that existed at the start.
            seconds: The longest delay. The default is 60, or [build] record_seconds if that is longer.
        """
        before, finished_before = self._written = self._written or (bytes_written, finished)
        self._asked = time.monotonic()
        passed, longest = self._asked - self._time, max(self.MOST_SECONDS, self.seconds) if seconds is None else seconds
        is_wanted = bytes_written - before >= self._interval or finished > finished_before or passed >= self.seconds
        return passed >= longest or (is_wanted and passed >= self._rest * self._took)

    def record(
        self,
        state: dict[str, Any],
        *,
        files: Mapping[str, int],
        finished: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        sums: Mapping[str, tuple[int, str]] = MappingProxyType({}),
        bytes_written: int = 0,
        share: float | None = None,
        documents: int | None = None,
    ) -> None:
        """Replace the record. The caller must first flush the files in `files` to disk (flush, fsync).

        Args:
            state: The state of the builder, as JSON values.
            files: The size of each unfinished file by relative path. Together with `finished`, it names every file that must exist at the
                next start. A file may then be longer than recorded.
            finished: {bytes, sha256} of each complete file (see `JournalRecord`).
            sums: What the next start compares the files with (see `JournalRecord`). Without it, bytes that changed in the meantime
                would enter the hash unnoticed.
            bytes_written: The value that was passed to the latest call of `due`.
            share: The progress from 0 to 1, or None if unknown.
            documents: The number of documents or conversations so far, or None if unknown.
        """
        self.check()
        named = files.keys() | finished.keys()
        for folder in {(self._directory / name).parent for name in named - self._named}:
            sync(folder)
        notes = self.notes if self.take_notes is None else self.take_notes()
        recorded = JournalRecord(
            self._fingerprint,
            state,
            {name: dict(entry) for name, entry in finished.items()},
            dict(files),
            dict(sums),
            share,
            documents,
            self._identity,
            notes or None,
            self._attempt,
        )
        write_journal(self._directory, recorded)
        if self._keep is not None:
            self._keep(recorded, not self.recorded)
        self._named, self._written, self._time = named, (bytes_written, len(finished)), time.monotonic()
        self._took = self._time - self._asked  # includes the time in which the caller flushed its files
        self.recorded = True

    def record_writer(self, writer: Any, state: Any, into: str, *, share: float | None, documents: int) -> None:
        """Flush the files of a writer to disk, and replace the record.

        Args:
            writer: The writer, with its `state` and its `unfinished` files.
            state: The state of the builder, a data class.
            into: The field of `state` that gets the state of the writer.
            share: See `record`.
            documents: See `record`.
        """
        for file in writer.unfinished:
            file.flush()
        self.record(
            asdict(replace(state, **{into: writer.state})),
            finished=writer.files,
            files={file.relative: file.bytes for file in writer.unfinished},
            sums={file.relative: (file.header, file.sha256) for file in writer.unfinished},
            bytes_written=getattr(writer, "bytes", 0),  # 0 for a builder that itself decides when a record is due
            share=share,
            documents=documents,
        )


def write_journal(directory: Path, recorded: JournalRecord) -> None:
    """Replace the record in a directory in one step. The files that it names must already be on disk."""
    write_atomically(directory / JOURNAL_NAME, encode_record(recorded))


def encode_record(recorded: JournalRecord) -> bytes:
    """Return the bytes of a record, which `decode_record` parses."""
    fields = {key: value for key, value in recorded._asdict().items() if value is not None or key not in ("notes", "attempt")}
    text = json.dumps({"format": _FORMAT, **fields}, sort_keys=True, allow_nan=False).encode()
    return hashlib.sha256(text).hexdigest().encode() + b"\n" + text + b"\n"


def read_journal(directory: Path) -> JournalRecord | None:
    """Return the latest record in a directory, or None if it is missing or invalid.

    Raises:
        OSError: If the journal cannot be read.
    """
    recorded = _read(directory)
    return recorded if isinstance(recorded, JournalRecord) else None


def _read(directory: Path) -> JournalRecord | str:
    """Return the latest record in a directory, or the reason why it cannot be used."""
    try:
        content = read_regular(directory / JOURNAL_NAME, most_bytes=_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError, NielsCacheError):
        return _UNREADABLE
    return decode_record(content)


def write_atomically(path: Path, content: bytes, *, spare: str = "new") -> None:
    """Write a file in one step, replacing an existing one. After a kill or a power loss, either the old or the new file is there.

    Args:
        path: The file to write.
        content: Its content.
        spare: The suffix of the new file until it is renamed. Processes that may write at the same time need different ones.
    """
    new = path.with_name(f"{path.name}.{spare}")
    try:
        with open(new, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    sync(path.parent)


def decode_record(content: bytes) -> JournalRecord | str:
    """Parse the bytes of a journal, which are a line with a sha256 and a line of JSON.

    Returns:
        The record, or the reason why the journal cannot be used.
    """
    sha256, _, text = content.removesuffix(b"\n").partition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != sha256:
        return _UNREADABLE
    try:
        value = json.loads(text)
        if value.get("format") != _FORMAT:
            return "the journal of the unfinished build is in the format of another version of niels-cache"
        value["sums"] = {name: tuple(pair) for name, pair in value["sums"].items()}
        recorded = _record_type().validate_python({key: value.get(key) for key in JournalRecord._fields}, strict=True)
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
        return _UNREADABLE
    is_valid = (
        all(file.keys() == {"bytes", "sha256"} and isinstance(file["sha256"], str) for file in recorded.finished.values())
        and recorded.files.keys().isdisjoint(recorded.finished)
        and all(name_problem(name) is None and is_count(size) for name, size in recorded.sizes.items())
        and recorded.sums.keys() <= recorded.files.keys()
        and all(is_count(first) for first, _ in recorded.sums.values())
        and 0 <= (recorded.share or 0) <= 1
        and is_count(recorded.documents or 0)
        and is_count(recorded.attempt or 0)
    )
    return recorded if is_valid else _UNREADABLE


@cache
def _record_type() -> TypeAdapter[JournalRecord]:
    from pydantic import TypeAdapter

    return TypeAdapter(JournalRecord)


def _sha256(path: Path, first: int, end: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        file.seek(first)
        while (left := end - file.tell()) > 0 and (block := file.read(min(left, _BLOCK_BYTES))):
            digest.update(block)
    return digest.hexdigest()


def _resume_problem(directory: Path, recorded: JournalRecord | str, fingerprint: str, identity: Identity | None) -> str | None:
    """Return the reason why a build cannot resume from this record, or None."""
    if isinstance(recorded, str):
        return recorded
    if recorded.fingerprint != fingerprint:
        changes = differences(recorded.made_of, identity) if recorded.made_of is not None and identity is not None else []
        return f"the unfinished build had other settings, other data or another version{': ' if changes else ''}{'; '.join(changes)}"
    if problem := files_problem(directory, recorded.sizes):
        return problem
    for name, (first, sha256) in recorded.sums.items():
        if _sha256(directory / name, first, recorded.files[name]) != sha256:
            return f"{name} of the unfinished build is damaged: its bytes differ from the checksum in its journal"
    return None


def files_problem(directory: Path, sizes: Mapping[str, int]) -> str | None:
    """Return why a build cannot resume from files that should have at least these sizes, or None."""
    for name, size in sizes.items():
        path = directory / name
        if path.is_symlink() or not path.is_file() or path.stat().st_size < size:
            return f"{name} of the unfinished build is missing or shorter than its journal says"
    problem = link_problem(directory, sizes)
    return problem and f"{problem[0]} of the unfinished build {problem[1]}"


def _restore(directory: Path, files: Mapping[str, int]) -> None:
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            relative = path.relative_to(directory).as_posix()
            if relative in files:
                if path.stat().st_size > files[relative]:
                    os.truncate(path, files[relative])
            elif relative != JOURNAL_NAME:
                path.unlink()


def clear_directory(directory: Path) -> None:
    """Empty the directory of an unfinished build. The journal is removed first, so that a half-removed build is never resumed."""
    journal = directory / JOURNAL_NAME
    if journal.exists():
        journal.unlink()
        sync(directory)
    for path in directory.iterdir():
        remove(path)


def partial_directory(target: str | Path) -> Path:
    """Return the staging directory of the latest build of `target`. It contains JOURNAL_NAME if the build can be resumed."""
    target = real_path(target)
    return next(iter(staged_attempts(target)), partial_path(target))


def real_path(target: str | Path) -> Path:
    """Return the absolute path without symbolic links."""
    return Path(os.path.realpath(target))  # a link to a larger disk stays a link
