"""The process that downloads into a local copy: `python -m niels_cache_runtime.remote.fetcher LOCAL_DIR GROUP`.

    readers --wants, demands--> ledger --> Fetcher: choose, make room, reserve, download, hash, rename --> ledger --> readers

A reader starts the fetcher when it waits for a file and its group has no live fetcher. The fetcher ends when its group has no reader left,
even during a download: with a store that does not answer, it would otherwise keep the reserved space and the reader's stderr for a long
time. A group is all readers with the same credentials in their environment. The fetcher is a separate process for two reasons: obstore
cannot be used after a fork, as in the workers of a DataLoader, and a download must neither stop the training loop nor end with the rank
that needed it first.

Files that a reader waits for come first, then the files of the block in use, then those of the next blocks. Space for the whole file is
reserved before its download begins. Memory: a piece of 1 MiB for each stream.

A tail is the first bytes of the shards after a block, for the last window of the block. It is downloaded with a range request, so no
recorded hash covers it. When one of its shards is downloaded as a whole, the two are compared: if an object was damaged and repaired later,
a tail from before the repair must not stay.
"""

import errno
import hashlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from niels_cache_runtime.errors import NielsCacheError, NotWrittenError
from niels_cache_runtime.format.safe_open import OwnedFolder
from niels_cache_runtime.remote.copied_build import CopiedBuild, recorded_build, slices
from niels_cache_runtime.remote.download import WrongContentError, changed_object_error, complete_download, read_range
from niels_cache_runtime.remote.eviction import choose_evictions, files_over_limit, unreleasable_bytes
from niels_cache_runtime.remote.ledger import (
    PART,
    TAILS,
    Ledger,
    LedgerEntry,
    LedgerState,
    ProcessFile,
    Reader,
    failure_key,
    is_tail,
    next_files,
    tail_of,
)
from niels_cache_runtime.remote.record import RemoteFile
from niels_cache_runtime.remote.store import Store, open_store

_VARIABLES = ("AWS_", "GOOGLE_", "AZURE_", "HTTP_", "HTTPS_", "NO_PROXY")  # requests depend on them
_PAUSE_SECONDS = 0.01
_START_SECONDS = 20.0  # for one start; if the first fetcher was only slow, a second one ends at once
_STARTS = 3


def group_of_environment() -> str:
    """Return the group of this process: a hash of the user and of the environment that requests depend on."""
    chosen = sorted(f"{name}={value}" for name, value in os.environ.items() if name.upper().startswith(_VARIABLES))
    return hashlib.sha256("\0".join([str(os.getuid()), *chosen]).encode(errors="surrogateescape")).hexdigest()[:16]


def start_fetcher(ledger: Ledger, group: str) -> None:
    """Start a fetcher of the group, and wait until it is ready. Return at once if another process is starting it.

    If a signal ends the fetcher before it is ready, as when memory runs out, another one is started.

    Raises:
        NielsCacheError: If the fetcher cannot start.
    """
    with ledger.changing():
        if ledger.is_alive("fetchers", group) or ledger.is_alive("fetchers", f"{group}.starting"):
            return
        starting = ProcessFile(ledger, "fetchers", f"{group}.starting")
    try:
        for _ in range(_STARTS):
            code = 0
            with suppress(ChildProcessError):  # if this process ignores SIGCHLD, the kernel reports no status
                _, status = os.waitpid(_spawn(ledger.folder, group), 0)  # it forks the fetcher and exits
                code = os.waitstatus_to_exitcode(status)
            began = time.monotonic()
            while not code and time.monotonic() - began < _START_SECONDS:
                with ledger.changing():
                    if ledger.is_alive("fetchers", group):
                        return
                time.sleep(_PAUSE_SECONDS)
            if code > 0:  # a retry would fail with the same error
                break
        raise NielsCacheError(
            f"{ledger.folder}: the process that downloads did not start (exit status {code}); its message stands above; "
            f"try {sys.executable} -m niels_cache_runtime.remote.fetcher"
        )
    finally:
        with ledger.changing():
            starting.end()


def _spawn(folder: Path, group: str) -> int:
    """Start the process in its own session, so that Ctrl-C in a terminal does not reach it. Return its process id.

    It imports nothing from the working directory, which could contain, for example, a json.py.
    """
    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-P", "-m", "niels_cache_runtime.remote.fetcher", str(folder), group]
    null_files = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return os.posix_spawn(sys.executable, command, environment, file_actions=null_files, setsid=True)


def overlapping_tails(state: LedgerState, build: CopiedBuild, path: str) -> Iterator[tuple[str, int, int]]:
    """Yield the complete tails that contain bytes of a shard: the path of each, and the begin and the end of these bytes in the tail.

    Args:
        state: The state of the ledger.
        build: The build of the shard.
        path: The path of the shard, relative to the copy.
    """
    split = path.split("/")[-2]
    shards = build.shards(split)
    for tail, entry in state.entries.items():
        if entry.owner or not tail.startswith(f"{TAILS}/{build.id}/{split}/"):
            continue
        (_, first, size), begin = tail_of(tail), 0
        for number, _, length in slices(shards, first, size):
            if build.path_in_copy(shards[number].path) == path:
                yield tail, begin, begin + length
            begin += length


def invalidate_tails(state: LedgerState, tails: Iterable[str]) -> None:
    """Take these tails out of use. When a reader needs one, the fetcher removes it and downloads it again."""
    for tail in list(tails):
        state.entries[tail].sha256 = ""
        state.unchecked.add(tail)


def differing_tails(files: OwnedFolder, state: LedgerState, build: CopiedBuild, path: str) -> list[str]:
    """Return the tails that differ from a shard whose sha256 has been verified."""
    found = []
    for tail, begin, end in overlapping_tails(state, build, path):
        with suppress(OSError), os.fdopen(files.open(path), "rb") as shard, os.fdopen(files.open(tail), "rb") as file:
            file.seek(begin)
            if file.read(end - begin) != shard.read(end - begin):
                found.append(tail)
    return found


STREAMS = 4
_POLL_SECONDS = 0.005
_PASS_SECONDS = 0.25  # the longest time between two passes over the ledger
_LEAVE_SECONDS = 1.0
_AGAIN_SECONDS = 5.0  # after a download ahead of time has failed
_DISK_SECONDS = 30.0  # how long a disk counts as full
_HOPELESS_SECONDS = 5.0  # a file without room for this long makes its readers fail
_SMALLER_SECONDS = 60.0  # instead, if only the smaller limit of another reader is in the way, which may end
_WAS_DAMAGED = (
    "came from an object that was damaged then, and is fetched again; earlier batches may hold wrong tokens in the last window of a block"
)


class Fetcher:
    """The downloader for the readers of one group, with several threads."""

    def __init__(self, folder: Path, group: str) -> None:
        self._ledger, self._group = Ledger(folder), group
        self._builds: dict[tuple[str, str], CopiedBuild] = {}  # by name and address
        self._stores: dict[str, Store] = {}
        self._active: set[str] = set()
        self._failed_at: dict[str, float] = {}
        self._disk_limit: tuple[int, float] | None = None
        self._hopeless: dict[str, float] = {}  # files that readers wait for and that cannot get room, and since when
        self._finished = threading.Event()
        self._presence: ProcessFile | None = None

    def run(self) -> None:
        """Download until no reader of the group is left or the copy is gone. Return at once if the group has another live fetcher."""
        ledger = self._ledger
        with ledger.changing():
            if ledger.is_alive("fetchers", self._group):
                return
            self._presence = presence = ProcessFile(ledger, "fetchers", self._group)
        pool = ThreadPoolExecutor(STREAMS)
        try:
            self._loop(lambda path, is_reserved: pool.submit(self._work, path, is_reserved=is_reserved))
        except NotWrittenError:
            if ledger.exists():
                raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            with suppress(NotWrittenError), ledger.changing() as state:  # the whole folder may have been removed
                if self._is_current():
                    ledger.remove(state, *self._downloading(state))
                presence.end()

    def _loop(self, submit: Callable[[str, bool], object]) -> None:
        seen_wake, passed_at, had_readers_at = (-1, -1), 0.0, time.monotonic()
        while True:
            woken, now = self._ledger.woken(), time.monotonic()
            if woken != seen_wake or self._finished.is_set() or now - passed_at > _PASS_SECONDS:
                self._finished.clear()
                seen_wake, passed_at = woken, now
                with self._ledger.changing() as state:
                    if not self._is_current():
                        return
                    mine = self._readers(state)
                    chosen = self._choose(state, mine)
                for path, is_reserved in chosen:
                    submit(path, is_reserved)
                if mine:
                    had_readers_at = time.monotonic()
                elif time.monotonic() - had_readers_at > _LEAVE_SECONDS:
                    return
            self._finished.wait(_POLL_SECONDS)

    def _is_current(self) -> bool:
        """Return whether this process still downloads for the group.

        If the whole folder is removed and created again, another process does.
        """
        return self._presence is not None and self._presence.is_there()

    def _choose(self, state: LedgerState, mine: list[Reader]) -> list[tuple[str, bool]]:
        """Make room for the next downloads, and reserve it. Return their files with True, and files to check with False."""
        # the files whose result could not be recorded because the disk was full
        self._ledger.remove(state, *(self._downloading(state) - self._active))
        self._remove(state, files_over_limit(state, state.limit()))
        limit = self._limit(state)
        before, self._hopeless = self._hopeless, {}
        chosen: list[tuple[str, bool]] = []
        refused: dict[str, int] = {}  # the position that waits for room, by run: later positions must not take that room
        stuck: int | None = None
        for path, waiting in next_files(mine):
            if len(self._active) >= STREAMS:
                break
            if waiting is not None and waiting.position > refused.get(waiting.run, waiting.position):
                continue
            if path in state.unchecked and path not in self._active:
                self._active.add(path)
                chosen.append((path, False))
                continue
            if path in state.entries or failure_key(self._group, path) in state.failed:
                continue
            if waiting is None and time.monotonic() - self._failed_at.get(path, -_AGAIN_SECONDS) < _AGAIN_SECONDS:
                continue
            try:
                size, sha256 = self._expected(state, path)
            except NielsCacheError as error:
                state.failed[failure_key(self._group, path)] = str(error)
                continue
            evicted = choose_evictions(state, size, limit, path=None if waiting is None else path)
            if evicted is None:
                if waiting is None:
                    break
                refused.setdefault(waiting.run, waiting.position)
                stuck = unreleasable_bytes(state) if stuck is None else stuck
                self._fail_if_never_fits(state, path, size, limit, stuck=stuck, since=before.get(path))
                continue
            self._remove(state, evicted)
            state.entries[path] = LedgerEntry(size, sha256, owner=self._group)
            self._active.add(path)
            chosen.append((path, True))
        return chosen

    def _limit(self, state: LedgerState) -> int:
        if self._disk_limit is not None and time.monotonic() - self._disk_limit[1] < _DISK_SECONDS:
            return min(state.limit(), self._disk_limit[0])
        return state.limit()

    def _remove(self, state: LedgerState, paths: list[str]) -> None:
        self._ledger.remove(state, *paths)
        state.counts["removed"] += len(paths)

    def _fail_if_never_fits(self, state: LedgerState, path: str, size: int, limit: int, *, stuck: int, since: float | None) -> None:
        """Record a failure for a file that can never fit, or for which mapped files have left no room for some seconds.

        Args:
            state: The state of the ledger.
            path: The file.
            size: Its size in bytes.
            limit: The limit in bytes, which may be that of a full disk.
            stuck: The bytes that stay mapped.
            since: When it was first found that there is no room for the file, or None if that is new.
        """
        is_disk = self._disk_limit is not None and limit == self._disk_limit[0]
        if size + state.overhead <= limit:
            if size + state.overhead + stuck <= limit or any(entry.owner not in ("", self._group) for entry in state.entries.values()):
                return
            own = max(reader.limit for reader in state.readers.values() if path in reader.demand)
            is_others = not is_disk and size + state.overhead + stuck <= own
            now = time.monotonic()
            self._hopeless[path] = now if since is None else since
            if now - self._hopeless[path] < (_SMALLER_SECONDS if is_others else _HOPELESS_SECONDS):
                return
            self._hopeless.clear()  # when this reader ends, there may be room for the others
        reason, advice = ("the disk is full below the limit", "make room") if is_disk else ("the limit is too small", "raise it")
        state.failed[failure_key(self._group, path)] = (
            f"{self._ledger.folder}: {reason}: {path} needs {size:,} bytes more, and other files that stay mapped have {stuck:,} of "
            f"{limit:,} bytes; {advice}, or give each job a copy of its own"
        )

    def _expected(self, state: LedgerState, path: str) -> tuple[int, str]:
        """Return the size and the sha256 of a file. The sha256 of a tail is an empty string, because it is not known in advance."""
        if self._ledger.files.exists(path):
            raise NielsCacheError(f"{self._ledger.folder / path}: is there, but this copy has not downloaded it; choose another dir")
        build = self._build(state, path)
        if is_tail(path):
            return tail_of(path)[2], ""
        file = build.files[path]
        return file.size, file.sha256

    def _build(self, state: LedgerState, path: str) -> CopiedBuild:
        name = "/".join(path.split("/")[1:4])
        for build in [name] if name in state.builds else [each for each in state.builds if each.startswith(name.split("/")[0])]:
            address = self._address(state, build, path)
            if (build, address) not in self._builds:
                self._builds[build, address] = recorded_build(state, build, self._ledger.files, address=address)
            if is_tail(path) or path in self._builds[build, address].files:
                return self._builds[build, address]
        raise NielsCacheError(f"{self._ledger.folder / path}: belongs to no build of this copy; choose another dir")

    def _address(self, state: LedgerState, build: str, path: str) -> str:
        """Return the address where a reader of the group has opened the build. The same build may be published at other addresses, too."""
        readers = sorted(self._readers(state), key=lambda reader: path not in reader.demand)
        return next((reader.addresses[build] for reader in readers if build in reader.addresses), state.builds[build]["address"])

    def _downloading(self, state: LedgerState) -> set[str]:
        return {path for path, entry in state.entries.items() if entry.owner == self._group}

    def _readers(self, state: LedgerState) -> list[Reader]:
        return [reader for reader in state.readers.values() if reader.group == self._group]

    def _work(self, path: str, *, is_reserved: bool) -> None:
        """Check or download one file, on a thread of the pool.

        Args:
            path: The file.
            is_reserved: Whether space is reserved for it, so that it must be downloaded.
        """
        try:
            if is_reserved or not self._check(path):
                self._fetch(path)
        finally:
            self._active.discard(path)
            self._finished.set()

    def _check(self, path: str) -> bool:
        """Hash an unchecked file, and remove it if it is damaged. Return False if the file must be downloaded instead."""
        with self._ledger.changing() as state:
            if path not in state.unchecked:  # another fetcher may have checked it meanwhile
                return path not in state.entries or state.entries[path].owner != self._group  # it may have been removed, too
            expected = state.entries[path].sha256
        found = self._ledger.files.sha256(path)
        with self._ledger.changing() as state:
            if path in state.unchecked and state.entries[path].sha256 == expected:
                state.unchecked.discard(path)
                if found != expected:
                    self._ledger.remove(state, path)
                    state.counts["again"] += 1
        return True

    def _fetch(self, path: str) -> None:
        problem: str | None = None
        counts: dict[str, int] = {}
        sha256, build = "", None
        try:
            with self._ledger.writing():
                with self._ledger.changing() as state:
                    build = self._build(state, path)
                    # at once, because `Ledger.remove` also removes empty folders, and this one must stay
                    part = open(self._ledger.files.open(path + PART, os.O_RDWR, make=True), "r+b")  # noqa: SIM115
                with part:
                    if is_tail(path):
                        content, counts = self._tail(build, path)
                        part.truncate(0)
                        part.write(content)
                        sha256 = hashlib.sha256(content).hexdigest()
                    else:
                        file = build.files[path]
                        fetched = self._download(build, file, part)
                        sha256, counts = file.sha256, {"files": 1, "bytes": fetched, "again": int(fetched > file.size)}
        except NielsCacheError as error:
            problem = str(error)
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT):
                problem = ""
                with suppress(OSError):  # at once, because others need room for their records
                    self._ledger.files.remove(path + PART)
            self._stores.pop(build.address if build else "", None)  # the next attempt may get new credentials
        except BaseException as error:
            problem = f"{self._ledger.folder / path}: cannot be fetched: {type(error).__name__}: {error}"
            raise
        finally:
            with suppress(NotWrittenError):
                self._record(path, problem, counts, sha256)

    def _record(self, path: str, problem: str | None, counts: dict[str, int], sha256: str) -> None:
        """Record the end of a download, and rename the file to its final name.

        Args:
            path: The file.
            problem: None if the download succeeded, or an empty string if the disk is full.
            counts: What to add to the counts of the copy.
            sha256: The sha256 of the content.
        """
        with self._ledger.changing() as state:
            if not self._is_current():
                return
            if problem is None:
                entry = state.entries[path]
                self._ledger.files.rename(path + PART, path)
                entry.owner, entry.sha256 = "", sha256
                state.use(path)
                for name, count in counts.items():
                    state.counts[name] += count
                for tail in differing_tails(self._ledger.files, state, self._build(state, path), path):
                    invalidate_tails(state, [tail])
                    print(f"niels-cache: {self._ledger.folder / tail}: {_WAS_DAMAGED}", file=sys.stderr, flush=True)
                return
            self._failed_at[path] = time.monotonic()
            if path in state.entries:
                self._ledger.remove(state, path)
            if not problem:
                self._disk_limit = max(0, state.used_bytes() - 1), time.monotonic()
            elif any(path in reader.demand for reader in self._readers(state)):
                state.failed[failure_key(self._group, path)] = problem

    def _store(self, build: CopiedBuild) -> Store:
        if build.address not in self._stores:
            self._stores[build.address] = open_store(build.address)
        return self._stores[build.address]

    def _download(self, build: CopiedBuild, file: RemoteFile, part: BinaryIO) -> int:
        """Download the part of a file that `part` lacks.

        Returns:
            The number of bytes that were downloaded. They are more than were missing if some were wrong.
        """
        try:
            return complete_download(part, self._store(build), file)
        except WrongContentError:
            with self._ledger.changing() as state:
                invalidate_tails(state, [tail for tail, *_ in overlapping_tails(state, build, build.path_in_copy(file.path))])
            raise

    def _tail(self, build: CopiedBuild, path: str) -> tuple[bytes, dict[str, int]]:
        """Return the content of a tail, and the counts of its requests and bytes."""
        split, stop, size = tail_of(path)
        shards, found, requests, fetched = build.shards(split), b"", 0, 0
        for number, _, length in slices(shards, stop, size):
            content = self._local_bytes(build.path_in_copy(shards[number].path), length)
            if content is None:
                content = self._remote_bytes(build, shards[number], length)
                requests, fetched = requests + 1, fetched + length
            found += content
        return found, {"tails": requests, "tail_bytes": fetched}

    def _local_bytes(self, path: str, length: int) -> bytes | None:
        """Return the first bytes of a shard that the copy has, or None. An unchecked shard is hashed first."""
        self._check(path)
        with self._ledger.changing() as state:  # a file may be removed while it is open here
            if not state.is_ready(path):
                return None
            with suppress(OSError), os.fdopen(self._ledger.files.open(path), "rb") as file:
                return file.read(length)
        return None

    def _remote_bytes(self, build: CopiedBuild, file: RemoteFile, length: int) -> bytes:
        store = self._store(build)
        found = read_range(store, file, length)
        with self._ledger.changing() as state:
            known = state.etags.setdefault(build.path_in_copy(file.path), found.e_tag or "")
            if found.sha256 == file.sha256:  # a repair uploads the object again, which may change its ETag
                known = state.etags[build.path_in_copy(file.path)] = found.e_tag or ""
        if known != (found.e_tag or ""):
            raise changed_object_error(store, file)
        return found.content


def main() -> None:
    """Start the fetcher that the command line names in a forked process, and exit."""
    folder, group = sys.argv[1:]
    if os.fork():  # the starting process waits for the parent, not for the fetcher
        os._exit(0)
    status = 1
    try:
        with suppress(KeyboardInterrupt):
            Fetcher(Path(folder), group).run()
        status = 0
    except NielsCacheError as error:
        print(f"niels-cache: {error}", file=sys.stderr, flush=True)
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)  # `sys.exit` would wait for the downloads


if __name__ == "__main__":
    main()
