"""The process that downloads into a local copy: `python -m niels_cache_runtime.remote.fetcher LOCAL_DIR GROUP`.

    readers --wants, demands--> ledger --> Fetcher: choose, make room, reserve, download, hash, rename --> ledger --> readers

A reader starts it when it waits for a file and no fetcher of its group lives. It ends when no reader of its group is left, also within a
download: a store that does not answer would keep it for long, with the room of the file and the stderr of the reader. A group is the
readers with the same credentials in their environment. It is a process of its own for two reasons: obstore cannot be used after a fork, as
in the workers of a DataLoader, and a download must neither stop the training loop nor end with the rank that needed it first.

A file that a reader waits for comes first, then the files of the block in use, then those of the next blocks. Room for the whole file is
reserved before its download begins. Memory: a piece of 1 MiB for each stream.

A tail is the first bytes of the shards after a block, for the last window of the block. It comes by a range request, so no recorded hash
covers it. When one of its shards is fetched whole, both are compared. If an object was damaged, and somebody repairs it later, a tail from
before the repair must not stay.
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
from niels_cache_runtime.format.layout import shard_name
from niels_cache_runtime.format.safe_open import OwnFiles
from niels_cache_runtime.remote.copied_build import CopiedBuild, known_build
from niels_cache_runtime.remote.ledger import PART, TAILS, Entry, Ledger, Presence, Reader, State, failure_key, is_tail, next_files
from niels_cache_runtime.remote.pieces import WrongContentError, another_object, complete, read_range
from niels_cache_runtime.remote.record import RemoteFile
from niels_cache_runtime.remote.room import make_room, stuck_bytes, surplus
from niels_cache_runtime.remote.store import Store, open_store

_VARIABLES = ("AWS_", "GOOGLE_", "AZURE_", "HTTP_", "HTTPS_", "NO_PROXY")  # requests depend on them
_PAUSE_SECONDS = 0.01
_START_SECONDS = 20.0  # of one start; a second fetcher ends at once if the first one was only slow
_STARTS = 3


def group_of_environment() -> str:
    """Return the group of this process: a hash of the user and of the environment that requests depend on."""
    chosen = sorted(f"{name}={value}" for name, value in os.environ.items() if name.upper().startswith(_VARIABLES))
    return hashlib.sha256("\0".join([str(os.getuid()), *chosen]).encode(errors="surrogateescape")).hexdigest()[:16]


def start_fetcher(ledger: Ledger, group: str) -> None:
    """Start a fetcher of the group, and wait until it is ready. Return at once if another process is starting it.

    If a signal has ended the fetcher before it was ready, such as that of a full memory, another one is started. Raises NielsCacheError if
    it cannot start.
    """
    with ledger.changing():
        if ledger.is_alive("fetchers", group) or ledger.is_alive("fetchers", f"{group}.starting"):
            return
        starting = Presence(ledger, "fetchers", f"{group}.starting")
    try:
        for _ in range(_STARTS):
            code = 0
            with suppress(ChildProcessError):  # if this process ignores SIGCHLD, the kernel tells it no status
                _, status = os.waitpid(_spawn(ledger.folder, group), 0)  # it forks the fetcher, and ends
                code = os.waitstatus_to_exitcode(status)
            began = time.monotonic()
            while not code and time.monotonic() - began < _START_SECONDS:
                with ledger.changing():
                    if ledger.is_alive("fetchers", group):
                        return
                time.sleep(_PAUSE_SECONDS)
            if code > 0:  # an error that comes again
                break
        raise NielsCacheError(
            f"{ledger.folder}: the process that downloads did not start (exit status {code}); its message stands above; "
            f"try {sys.executable} -m niels_cache_runtime.remote.fetcher"
        )
    finally:
        with ledger.changing():
            starting.end()


def _spawn(folder: Path, group: str) -> int:
    """Start the process in a session of its own, so that Ctrl-C in a terminal does not reach it. Return its number.

    It imports nothing from the working directory, which may have a json.py.
    """
    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-P", "-m", "niels_cache_runtime.remote.fetcher", str(folder), group]
    nothing = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return os.posix_spawn(sys.executable, command, environment, file_actions=nothing, setsid=True)


def tail_of(path: str) -> tuple[str, int, int]:
    """Return the split, the number of the first shard and the bytes of a tail, from its path."""
    split, name = path.split("/")[-2:]
    stop, size = name.removesuffix(".bin").split("-")
    return split, int(stop), int(size)


def tails_over(state: State, build: CopiedBuild, path: str) -> Iterator[tuple[str, int, int]]:
    """Yield the complete tails that hold bytes of a shard: their paths, and the begin and the end of these bytes in the tail.

    path: of the shard, relative to the copy.
    """
    split = path.split("/")[-2]
    for tail, entry in state.entries.items():
        if entry.owner or not tail.startswith(f"{TAILS}/{build.id}/{split}/"):
            continue
        _, shard, size = tail_of(tail)
        begin = 0
        while begin < size:
            place = build.place(f"{split}/{shard_name(shard)}")
            end = min(size, begin + build.files[place].size)
            if place == path and begin < end:
                yield tail, begin, end
            begin, shard = end, shard + 1


def doubt(state: State, tails: Iterable[str]) -> None:
    """Take these tails out of use. When a reader needs one, the fetcher removes it, and fetches it again."""
    for tail in list(tails):
        state.entries[tail].sha256 = ""
        state.unchecked.add(tail)


def other_tails(files: OwnFiles, state: State, build: CopiedBuild, path: str) -> list[str]:
    """Return the tails that differ from a shard, whose content has the recorded sha256."""
    found = []
    for tail, begin, end in tails_over(state, build, path):
        with suppress(OSError), os.fdopen(files.open(path), "rb") as shard, os.fdopen(files.open(tail), "rb") as file:
            file.seek(begin)
            if file.read(end - begin) != shard.read(end - begin):
                found.append(tail)
    return found


STREAMS = 4
_POLL_SECONDS = 0.005
_PASS_SECONDS = 0.25  # at most so long without a look at the ledger
_LEAVE_SECONDS = 1.0
_AGAIN_SECONDS = 5.0  # after a download ahead of time has failed
_DISK_SECONDS = 30.0  # how long a full disk counts as full
_HOPELESS_SECONDS = 5.0  # then a reader fails for which there can be no room
_SMALLER_SECONDS = 60.0  # instead, if there is none only because of the smaller limit of another reader, which may end
_WAS_DAMAGED = (
    "came from an object that was damaged then, and is fetched again; earlier batches may hold wrong tokens in the last window of a block"
)


class Fetcher:
    """Downloads for the readers of one group, on several threads."""

    def __init__(self, folder: Path, group: str) -> None:
        self._ledger, self._group = Ledger(folder), group
        self._builds: dict[tuple[str, str], CopiedBuild] = {}  # by name and address
        self._stores: dict[str, Store] = {}
        self._active: set[str] = set()
        self._failed_at: dict[str, float] = {}
        self._disk_limit: tuple[int, float] | None = None
        self._hopeless: dict[str, float] = {}  # files that readers wait for and that can have no room, and since when
        self._finished = threading.Event()
        self._presence: Presence | None = None

    def run(self) -> None:
        """Download until no reader of the group is left, or the copy is gone. Return at once if another fetcher of the group lives."""
        with self._ledger.changing():
            if self._ledger.is_alive("fetchers", self._group):
                return
            self._presence = presence = Presence(self._ledger, "fetchers", self._group)
        pool = ThreadPoolExecutor(STREAMS)
        try:
            self._loop(lambda path, is_reserved: pool.submit(self._work, path, is_reserved=is_reserved))
        except NotWrittenError:
            if self._ledger.exists():
                raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            with suppress(NotWrittenError), self._ledger.changing() as state:  # somebody may have removed the whole folder
                if self._is_current():
                    for path in [path for path, entry in state.entries.items() if entry.owner == self._group]:
                        self._ledger.remove(state, path)
                presence.end()

    def _loop(self, submit: Callable[[str, bool], object]) -> None:
        seen, looked, left = -1, 0.0, time.monotonic()
        while True:
            woken, now = self._ledger.woken(), time.monotonic()
            if woken != seen or self._finished.is_set() or now - looked > _PASS_SECONDS:
                self._finished.clear()
                seen, looked = woken, now
                with self._ledger.changing() as state:
                    if not self._is_current():
                        return
                    mine = self._readers(state)
                    chosen = self._choose(state, mine)
                for path, is_reserved in chosen:
                    submit(path, is_reserved)
                if mine:
                    left = time.monotonic()
                elif time.monotonic() - left > _LEAVE_SECONDS:
                    return
            self._finished.wait(_POLL_SECONDS)

    def _is_current(self) -> bool:
        """Return whether this process downloads for the group. If somebody removes the whole folder and begins again, another one does."""
        return self._presence is not None and self._presence.is_there()

    def _choose(self, state: State, mine: list[Reader]) -> list[tuple[str, bool]]:
        """Make room for the next downloads, reserve it, and return their files with True. Unchecked files come with False."""
        for path in [path for path, entry in state.entries.items() if entry.owner == self._group and path not in self._active]:
            self._ledger.remove(state, path)  # the end of its download could not be recorded, because the disk was full
        self._remove(state, surplus(state, state.limit() or sys.maxsize))
        limit = self._limit(state)
        before, self._hopeless = self._hopeless, {}
        chosen: list[tuple[str, bool]] = []
        refused: dict[str, int] = {}  # the position in each run that waits for room: what comes after it must not take the room
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
            gone = make_room(state, size, limit, path=None if waiting is None else path)
            if gone is None:
                if waiting is None:
                    break
                refused.setdefault(waiting.run, waiting.position)
                stuck = stuck_bytes(state) if stuck is None else stuck
                self._tell_if_hopeless(state, path, size, limit, stuck=stuck, since=before.get(path))
                continue
            self._remove(state, gone)
            state.entries[path] = Entry(size, sha256, owner=self._group)
            self._active.add(path)
            chosen.append((path, True))
        return chosen

    def _limit(self, state: State) -> int:
        limit = state.limit()
        if limit is None:
            return sys.maxsize
        if self._disk_limit is not None and time.monotonic() - self._disk_limit[1] < _DISK_SECONDS:
            return min(limit, self._disk_limit[0])
        return limit

    def _remove(self, state: State, paths: list[str]) -> None:
        for path in paths:
            self._ledger.remove(state, path)
            state.counts["removed"] += 1

    def _tell_if_hopeless(self, state: State, path: str, size: int, limit: int, *, stuck: int, since: float | None) -> None:
        """Let the readers of a file fail if it can never fit, or if mapped files have left no room for it for some seconds.

        stuck: the bytes that stay mapped. since: when the file had no room first, or None if it had room a moment ago.
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
        why, mend = ("the disk is full below the limit", "make room") if is_disk else ("the limit is too small", "raise it")
        state.failed[failure_key(self._group, path)] = (
            f"{self._ledger.folder}: {why}: {path} needs {size:,} bytes more, and other files that stay mapped have {stuck:,} of "
            f"{limit:,} bytes; {mend}, or give each job a copy of its own"
        )

    def _expected(self, state: State, path: str) -> tuple[int, str]:
        """Return the size and the sha256 of a file. The sha256 of a tail is not known before."""
        if self._ledger.files.exists(path):
            raise NielsCacheError(f"{self._ledger.folder / path}: is there, but this copy has not downloaded it; choose another dir")
        build = self._build(state, path)
        if is_tail(path):
            return tail_of(path)[2], ""
        file = build.files[path]
        return file.size, file.sha256

    def _build(self, state: State, path: str) -> CopiedBuild:
        name = "/".join(path.split("/")[1:4])
        for build in [name] if name in state.builds else [each for each in state.builds if each.startswith(name.split("/")[0])]:
            address = self._address(state, build, path)
            if (build, address) not in self._builds:
                self._builds[build, address] = known_build(state, build, self._ledger.files, address=address)
            if is_tail(path) or path in self._builds[build, address].files:
                return self._builds[build, address]
        raise NielsCacheError(f"{self._ledger.folder / path}: belongs to no build of this copy; choose another dir")

    def _address(self, state: State, build: str, path: str) -> str:
        """Return the address that a reader of the group has opened the build at, which may be published at others too."""
        readers = sorted(self._readers(state), key=lambda reader: path not in reader.demand)
        return next((reader.addresses[build] for reader in readers if build in reader.addresses), state.builds[build]["address"])

    def _readers(self, state: State) -> list[Reader]:
        return [reader for reader in state.readers.values() if reader.group == self._group]

    def _work(self, path: str, *, is_reserved: bool) -> None:
        """Check or download one file, on a thread of the pool. is_reserved: whether its download is certain, because it has its room."""
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
        except (NielsCacheError, OSError) as error:
            problem, cause = str(error), error.__cause__  # of a record that the ledger cannot write
            if isinstance(error, OSError):
                cause = error
                problem = f"{self._ledger.folder}: cannot be written: {error.strerror or error}; free room there, or choose another dir"
            if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
                problem = ""
                with suppress(OSError):  # at once, because others need room for their records
                    self._ledger.files.remove(path + PART)
            self._stores.pop(build.address if build else "", None)  # the next try takes new credentials, if a service gives them
        except BaseException as error:
            problem = f"{self._ledger.folder / path}: cannot be fetched: {type(error).__name__}: {error}"
            raise
        finally:
            with suppress(NotWrittenError):
                self._record(path, problem, counts, sha256)

    def _record(self, path: str, problem: str | None, counts: dict[str, int], sha256: str) -> None:
        """Record the end of a download, and give the file its name. problem: None if it succeeded, and empty if the disk is full."""
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
                for tail in other_tails(self._ledger.files, state, self._build(state, path), path):
                    doubt(state, [tail])
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
        """Download what `part` lacks of a file. Return how many bytes were fetched, which are more than it has if some were wrong."""
        try:
            return complete(part, self._store(build), file, tally=_Uncounted())
        except WrongContentError:
            with self._ledger.changing() as state:
                doubt(state, [tail for tail, *_ in tails_over(state, build, build.place(file.path))])
            raise

    def _tail(self, build: CopiedBuild, path: str) -> tuple[bytes, dict[str, int]]:
        """Return the first bytes of the shards from number `stop` on, and the counts of requests and bytes."""
        split, stop, size = tail_of(path)
        shards, found, requests, fetched = build.shards(split), b"", 0, 0
        while len(found) < size:
            file = shards[stop]
            length = min(size - len(found), file.size)
            content = self._local_bytes(build.place(file.path), length)
            if content is None:
                content = self._remote_bytes(build, file, length)
                requests, fetched = requests + 1, fetched + length
            found, stop = found + content, stop + 1
        return found, {"tails": requests, "tail_bytes": fetched}

    def _local_bytes(self, path: str, length: int) -> bytes | None:
        """Return the first bytes of a shard that the copy has, or None. Hash the shard first if it is unchecked."""
        self._check(path)
        with self._ledger.changing() as state:  # a file that is open here may be removed meanwhile
            if not state.is_ready(path):
                return None
            with suppress(OSError), os.fdopen(self._ledger.files.open(path), "rb") as file:
                return file.read(length)
        return None

    def _remote_bytes(self, build: CopiedBuild, file: RemoteFile, length: int) -> bytes:
        store = self._store(build)
        found = read_range(store, file, length)
        with self._ledger.changing() as state:
            known = state.etags.setdefault(build.place(file.path), found.e_tag or "")
            if found.sha256 == file.sha256:  # a repair sends the object again, and its ETag may change
                known = state.etags[build.place(file.path)] = found.e_tag or ""
        if known != (found.e_tag or ""):
            raise another_object(store, file)
        return found.content


class _Uncounted:
    def add(self, count: int) -> None: ...

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


def main() -> None:
    folder, group = sys.argv[1:]
    if os.fork():  # the process that starts a fetcher waits for this one, and not for the fetcher
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
