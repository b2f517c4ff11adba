"""The ledger of a local copy: the files that it holds, and the processes that read them.

    LOCAL_DIR/manifest.json   every file that the copy has downloaded or is downloading; the copy never removes any other file
    LOCAL_DIR/readers/ID      one reading process, with the files that it needs next and the files that it has mapped
    LOCAL_DIR/fetchers/ID     one downloading process
    LOCAL_DIR/lock            held while one of these files is read or changed: milliseconds, never during a download
    LOCAL_DIR/describing-ID   held while a process downloads the meta.json of a build, which the others of the machine then find
    LOCAL_DIR/wake            its modification time changes when a reader needs something new

Each reader and each fetcher holds a lock on its file. The kernel releases this lock when the process ends, however it ends, so no entry can
outlive its process. Nothing here compares clocks: `used` counts uses. Reading the ledger takes about a millisecond per thousand files.
`eviction` chooses the files to remove, and `fetcher` downloads. `Reader` and `FileDemand` describe what a reader needs.

After a power failure, a file may have lost its content although its size is right. The manifest therefore also records the boot of the
machine. After another boot, all files are `unchecked`: a reader uses one only after the fetcher has hashed it again. If a reader of the
recorded boot is alive, there was no other boot: two machines share the folder, or two containers that report different names for the same
boot.
"""

import errno
import fcntl
import json
import math
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from niels_cache_runtime.errors import NielsCacheError, NotWrittenError
from niels_cache_runtime.format.commit import is_same_file, release_lock, try_lock
from niels_cache_runtime.format.layout import META_NAME, shard_name
from niels_cache_runtime.format.safe_open import OwnedFolder

_POLL_SECONDS = 0.05  # between two attempts to take a lock
BUILDS, TAILS = "builds", "tails"


def is_tail(path: str) -> bool:
    """Return whether a path, relative to the copy, is the path of a tail."""
    return path.startswith(f"{TAILS}/")


class FileDemand(NamedTuple):
    """A part of a run that needs the shards begin to stop - 1 of a split, and `tail` bytes after them.

    Attributes:
        first: The first sample of the run that needs the shards.
        end: One more than the last sample that needs them.
        now: Whether to download them now. Otherwise they are only kept if the copy has them.
        build: The build, as CONTENT_SHA256/FAMILY/NAME.
        split: The split.
        begin: The number of the first shard.
        stop: One more than the number of the last shard.
        tail: The number of bytes after the last shard.
    """

    first: int
    end: int
    now: bool
    build: str
    split: str
    begin: int
    stop: int
    tail: int

    def paths(self) -> list[str]:
        """Return the paths of the files, relative to the copy."""
        shards = [f"{BUILDS}/{self.build}/{self.split}/{shard_name(index)}" for index in range(self.begin, self.stop)]
        return [*shards, tail_path(self.build, self.split, self.stop, self.tail)] if self.tail else shards


def tail_of(path: str) -> tuple[str, int, int]:
    """Return the split, the number of the first shard and the size in bytes of a tail, given its path."""
    split, name = path.split("/")[-2:]
    stop, size = name.removesuffix(".bin").split("-")
    return split, int(stop), int(size)


def tail_path(build: str, split: str, stop: int, size: int) -> str:
    """Return the path of the file with the first `size` bytes of the shards from number `stop` on."""
    return f"{TAILS}/{build}/{split}/{stop:05d}-{size}.bin"


@dataclass
class Reader:
    """A process that reads from the copy.

    Attributes:
        pid: The id of the process.
        limit: The limit of its copy in bytes.
        group: The fetchers that may download for it.
        run: The run that it takes part in.
        position: Its next sample in the run.
        wants: The next parts of the run, in order.
        demand: The files that it is waiting for.
        maps: The files that it has mapped.
        starved: Whether it has waited for a long time.
        aside: Whether it waits for a read outside of the batches of its run, as in `trace`.
        holds_all: Whether it may have mapped any file, because its record cannot be read.
        boot: The boot of its machine (`ledger.boot`).
        addresses: The address of each build that it has opened.
    """

    pid: int
    limit: int
    group: str
    run: str = ""
    position: int = 0
    wants: list[FileDemand] = field(default_factory=list)
    demand: list[str] = field(default_factory=list)
    maps: list[str] = field(default_factory=list)
    starved: bool = False
    aside: bool = False
    holds_all: bool = False
    boot: str = ""
    addresses: dict[str, str] = field(default_factory=dict)

    def pinned(self) -> set[str]:
        """Return the files that this process has mapped, but for no part of its run. It holds them until it ends."""
        return set() if self.aside else {*self.maps}.difference(*(demand.paths() for demand in self.wants))


def next_files(readers: list[Reader]) -> Iterator[tuple[str, Reader | None]]:
    """Yield the files to download next, each with the first reader that waits for it, or None if it is downloaded ahead of time.

    A slower reader of a run comes before a faster one. Otherwise the faster one could take the last space, and both would wait.
    """
    waiting: dict[str, Reader] = {}
    for reader in sorted(readers, key=lambda reader: (reader.run, reader.position)):
        for path in reader.demand:
            waiting.setdefault(path, reader)
    yield from waiting.items()
    demands = [(demand.first - reader.position, demand) for reader in readers for demand in reader.wants if demand.now]
    for _, demand in sorted(dict.fromkeys(demands)):
        for path in sorted(demand.paths(), key=is_tail, reverse=True):  # a tail is small, and no batch should wait only for a tail
            yield path, None


VERSION = 1
_MANIFEST = "manifest.json"
PART = ".part"  # the suffix of an incomplete file
_TABLES = ("counts", "addresses", "builds", "failed", "etags")
_COUNTS = ("files", "bytes", "tails", "tail_bytes", "again", "removed")


class _DeferredCalls(threading.local):
    """The calls that wait until this thread releases the lock of a ledger.

    Attributes:
        later: The calls, or None if this thread holds no such lock.
    """

    later: list[Callable[[], None]] | None = None


_deferred = _DeferredCalls()


def call_unlocked(call: Callable[[], None]) -> None:
    """Call `call` now, or as soon as this thread releases the lock of a ledger.

    Code that the garbage collector may run needs this. The collector can run at any time, also on a thread that holds the lock, and the
    call would then wait for this lock forever.
    """
    if _deferred.later is None:
        call()
    else:
        _deferred.later.append(call)


@dataclass
class LedgerEntry:
    """A file of the copy.

    Attributes:
        size: Its size in bytes.
        sha256: Its sha256.
        owner: The fetcher that is downloading it, or an empty string if it is complete.
        used: A number that increases with each use.
    """

    size: int
    sha256: str
    owner: str = ""
    used: int = 0


@dataclass
class LedgerState:
    """The content of the ledger, while its lock is held.

    Attributes:
        entries: The files of the copy, by path.
        builds: For each build, its record and the address that it came from.
        addresses: The most recent build of each address.
        failed: Why a fetcher could not download a file that a reader of its group waits for, by `failure_key`.
        etags: The ETags of objects whose first bytes were read.
        counts: The counts that `LocalCopy.counts` returns.
        tick: The most recent value of `LedgerEntry.used`.
        readers: The live readers.
        overhead: The size of the ledger itself in bytes.
        unchecked: The complete files that have not been hashed since the boot.
        boot: The boot that `unchecked` refers to.
    """

    entries: dict[str, LedgerEntry]
    builds: dict[str, dict[str, str]]
    addresses: dict[str, str]
    failed: dict[str, str]
    etags: dict[str, str]
    counts: dict[str, int]
    tick: int
    readers: dict[str, Reader]
    overhead: int
    unchecked: set[str] = field(default_factory=set)
    boot: str = ""

    def used_bytes(self) -> int:
        """Return the disk space in bytes that the copy takes once all downloads are done."""
        return sum(entry.size for entry in self.entries.values()) + self.overhead

    def limit(self) -> int:
        """Return the smallest limit of all live readers, or sys.maxsize without readers."""
        return min((reader.limit for reader in self.readers.values()), default=sys.maxsize)

    def is_ready(self, path: str) -> bool:
        """Return whether a file is complete and may be used."""
        entry = self.entries.get(path)
        return entry is not None and not entry.owner and path not in self.unchecked

    def add_build(self, build: str, address: str, record: str) -> None:
        """Record the build of an address, and forget builds whose meta.json is no longer in the copy."""
        self.builds = {each: entry for each, entry in self.builds.items() if f"{BUILDS}/{each}/{META_NAME}" in self.entries}
        self.builds[build] = {"address": address, "record": record}
        self.addresses = {each: known for each, known in self.addresses.items() if known in self.builds} | {address: build}

    def use(self, path: str) -> None:
        """Mark a file as the most recently used one."""
        self.tick += 1
        self.entries[path].used = self.tick

    def mapped(self) -> set[str]:
        """Return the files that live readers may have mapped."""
        return set[str]().union(*(self.entries if reader.holds_all else reader.maps for reader in self.readers.values()))


def failure_key(group: str, path: str) -> str:
    """Return the key of a failure. It includes the group, because other groups may have other credentials."""
    return f"{group}/{path}"


@cache
def boot() -> str:
    """Return a name for the current boot of the machine, or an empty string if the system has none.

    Without a name, files are not hashed again after a boot.
    """
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    return ""


def _needs_check(path: str) -> bool:
    """Return whether a file must be hashed after a boot. The meta.json of a data set is hashed whenever it is read."""
    return not (path.startswith(f"{BUILDS}/") and path.endswith(f"/{META_NAME}") and path.count("/") == 4)


def _reader_of(content: bytes) -> Reader:
    """Return the recorded reader. If a full disk has truncated the record, the reader may have mapped any file."""
    try:
        record = json.loads(content)
        return Reader(**{**record, "wants": [FileDemand(*demand) for demand in record["wants"]]})
    except (ValueError, TypeError, KeyError):
        return Reader(pid=0, limit=sys.maxsize, group="", holds_all=True, boot=boot())


class Ledger:
    """The ledger of one folder. Several threads and processes may use it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, OwnedFolder(folder)
        self._manifest = folder / _MANIFEST

    def make(self) -> None:
        """Create the folders.

        Raises:
            NotWrittenError: If they cannot be created.
        """
        with self.writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in ("readers", "fetchers"):
                self.files.make_folder(name)

    def exists(self) -> bool:
        """Return whether the folder is a local copy."""
        return (self.folder / "readers").is_dir()

    @contextmanager
    def changing(self) -> Iterator[LedgerState]:
        """Hold the lock, and yield the state. Afterwards, write the state back if it has changed.

        Raises:
            NielsCacheError: If the manifest cannot be read.
            NotWrittenError: If a file cannot be written.
        """
        before, _deferred.later = _deferred.later, []
        try:
            with self.locked():
                state, content = self._load()
                try:
                    yield state
                finally:
                    self._save(state, content)
        finally:
            later, _deferred.later = _deferred.later, before
            for call in later:
                call_unlocked(call)

    @contextmanager
    def locked(self, name: str = "lock", *, seconds: float = math.inf) -> Iterator[None]:
        """Hold the lock of the ledger, or another one, which leaves the ledger free. After so many seconds, go on without the lock."""
        deadline = time.monotonic() + seconds
        with self.writing():
            descriptor = self.files.open(name, os.O_RDWR, make=True)
        try:
            while not try_lock(descriptor, self._manifest, fcntl.LOCK_EX) and time.monotonic() < deadline:
                if seconds == math.inf:
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    break
                time.sleep(_POLL_SECONDS)
            yield
        finally:
            release_lock(descriptor)

    def changed(self) -> tuple[int, int]:
        """Return a value that differs after each change of the manifest."""
        return self._stamp(_MANIFEST)

    def wake(self) -> None:
        """Notify the fetchers that a reader needs something new."""
        now = time.monotonic_ns()  # any new value
        with suppress(OSError):
            descriptor = self.files.open("wake", os.O_WRONLY, make=True)
            try:
                os.utime(descriptor, ns=(now, now))
            finally:
                os.close(descriptor)

    def woken(self) -> tuple[int, int]:
        """Return a value that differs after each `wake`."""
        return self._stamp("wake")

    def _stamp(self, name: str) -> tuple[int, int]:
        with suppress(FileNotFoundError):
            found = os.stat(self.folder / name)
            return found.st_ino, found.st_mtime_ns
        return 0, 0

    def is_alive(self, kind: str, name: str) -> bool:
        """Return whether the process of a file in `readers` or `fetchers` is alive. Remove the file if the process has ended."""
        path = self.folder / kind / name
        try:
            descriptor = self.files.open(f"{kind}/{name}")
        except (NielsCacheError, OSError):
            return False
        try:
            if not try_lock(descriptor, path, fcntl.LOCK_SH):
                return True
            with suppress(OSError):
                path.unlink()
            return False
        finally:
            os.close(descriptor)

    def _load(self) -> tuple[LedgerState, str]:
        content = ""
        manifest: dict[str, Any] = {"version": VERSION, "boot": boot(), "tick": 0, "entries": {}, **{name: {} for name in _TABLES}}
        manifest["counts"] = dict.fromkeys(_COUNTS, 0)
        try:
            with suppress(FileNotFoundError):
                content = self.files.read(_MANIFEST).decode()
                manifest = json.loads(content)
            if manifest["version"] != VERSION:
                raise NielsCacheError(f"{self._manifest}: is of version {manifest['version']}, not {VERSION}; choose another dir")
            readers, overhead = self._readers()
            state = LedgerState(
                entries={path: LedgerEntry(*values) for path, values in manifest["entries"].items()},
                tick=int(manifest["tick"]),
                readers=readers,
                overhead=overhead + 2 * len(content),
                unchecked=set(manifest.get("unchecked", ())),
                boot=manifest.get("boot", ""),
                **{name: dict(manifest[name]) for name in _TABLES},
            )
        except NielsCacheError:
            raise
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise NielsCacheError(
                f"{self._manifest}: cannot be read ({type(error).__name__}); remove {self.folder}, and start again"
            ) from error
        groups = {reader.group for reader in readers.values()}
        state.failed = {key: reason for key, reason in state.failed.items() if key.partition("/")[0] in groups}
        if state.boot != boot() and all(reader.boot != state.boot for reader in readers.values()):
            state.unchecked, state.boot = {*filter(_needs_check, state.entries)}, boot()
        owners = {entry.owner for entry in state.entries.values() if entry.owner}
        dead = {owner for owner in owners if not self.is_alive("fetchers", owner)}
        self.remove(state, *[path for path, entry in state.entries.items() if entry.owner in dead])
        return state, content

    def _readers(self) -> tuple[dict[str, Reader], int]:
        """Return the live readers, and the total size of their files in bytes."""
        found, size = {}, 0
        with self.writing():
            names = sorted(os.listdir(self.folder / "readers"))
        for name in names:
            if self.is_alive("readers", name):
                with suppress(OSError):
                    content = self.files.read(f"readers/{name}")
                    size += len(content)
                    if content:  # a reader that has not written anything needs nothing yet
                        found[name] = _reader_of(content)
        return found, size

    def remove(self, state: LedgerState, *paths: str) -> None:
        """Remove files of the copy from the disk and from the state."""
        for path in paths:
            with self.writing():
                self.files.remove(path)
                if state.entries[path].owner:
                    self.files.remove(path + PART)
            del state.entries[path]
            state.unchecked.discard(path)

    def _save(self, state: LedgerState, before: str) -> None:
        manifest = {
            "version": VERSION,
            **{name: getattr(state, name) for name in ("boot", "tick", *_TABLES)},
            "unchecked": sorted(state.unchecked),
            "entries": {path: list(vars(entry).values()) for path, entry in state.entries.items()},
        }
        content = json.dumps(manifest, separators=(",", ":"))
        if content != before:
            with self.writing():
                self.files.write(_MANIFEST, content.encode())

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Raise NotWrittenError if an operation in the block fails with an OSError."""
        try:
            yield
        except OSError as error:
            message = f"{self.folder}: cannot be written: {error.strerror or error}; free room there, or choose another dir"
            raise NotWrittenError(message) from error


class ProcessFile:
    """A file in `readers` or `fetchers`, locked as long as this object and this process live."""

    def __init__(self, ledger: Ledger, kind: str, name: str | None = None) -> None:
        self.name = name or secrets.token_hex(8)
        self._path = ledger.folder / kind / self.name
        with ledger.writing():
            self.descriptor = ledger.files.open(f"{kind}/{self.name}", os.O_RDWR, make=True)
        try_lock(self.descriptor, self._path, fcntl.LOCK_EX)

    def write(self, reader: Reader) -> None:
        """Record what a reader needs. The caller holds the ledger's lock."""
        record = {name: value for name, value in vars(reader).items() if value or name == "wants"}  # its bytes count towards the limit
        record["boot"] = boot()
        content = json.dumps(record, separators=(",", ":")).encode()
        try:
            if os.pwrite(self.descriptor, content, 0) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.ftruncate(self.descriptor, len(content))
        except OSError as error:
            raise NotWrittenError(f"{self._path}: cannot be written: {error.strerror or error}; free room there") from error

    def is_there(self) -> bool:
        """Return whether the file still exists. It is missing if the whole folder was removed."""
        with suppress(OSError):
            return is_same_file(self._path, self.descriptor)
        return False

    def forget(self) -> None:
        """Close the descriptor in a forked child. The parent keeps the lock."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def end(self) -> None:
        """Remove the file, and release the lock."""
        if self.descriptor >= 0:
            if self.is_there():
                with suppress(OSError):
                    self._path.unlink()
            release_lock(self.descriptor)
            self.descriptor = -1


def end_presences(ledger: Ledger, process_files: list[ProcessFile]) -> None:
    """Remove these process files, with the ledger's lock if the folder still exists. Empty the list."""
    with suppress(NielsCacheError, OSError), ledger.changing():
        for each in process_files:
            each.end()
    for each in process_files:  # without the lock, those that are left
        each.end()
    process_files.clear()
