"""A bounded copy of published caches on a local disk, which all processes of a machine may share.

    with a bucket:     LocalCopy.open --record, meta.json--> CopiedBuild    LocalCopy.acquire --demand--> fetcher --> files
    without a bucket:  LocalCopy.open reads what the copy knows             LocalCopy.acquire finds all files there

A process that needs files takes them, and waits until they are there. A taken file stays until the process gives it back or ends. `ledger`
records this on disk, `eviction` chooses what to remove, and `fetcher` downloads. Opening a build costs each process one request, for its
record, and the first process of the machine another one, for the meta.json that the record lists.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from niels_cache_runtime.errors import NielsCacheError, NotWrittenError
from niels_cache_runtime.format.layout import META_NAME, SPLITS, Split
from niels_cache_runtime.remote.copied_build import CopiedBuild, recorded_build, try_both_addresses
from niels_cache_runtime.remote.eviction import TakeoverTimeout, blocks_slower, choose_evictions, files_over_limit, pinned_bytes
from niels_cache_runtime.remote.fetcher import group_of_environment, start_fetcher
from niels_cache_runtime.remote.ledger import (
    FileDemand,
    Ledger,
    LedgerEntry,
    LedgerState,
    ProcessFile,
    Reader,
    call_unlocked,
    end_presences,
    failure_key,
)
from niels_cache_runtime.remote.record import TOKENIZER, Record, described_by, published_of, read_beside, read_record
from niels_cache_runtime.remote.store import MissingError, RemoteError, Store, open_store

_PAUSES = (0.001, 0.005)  # seconds between two checks of the manifest's time: the first and the longest
_DESCRIBED_SECONDS = 10.0  # to wait for another process that downloads what describes a build
_LOOK_SECONDS = 0.5  # the longest time between two looks at the ledger
GIVE_UP_SECONDS = 1800.0  # without any change of the copy

_LOOK_AGAIN_SECONDS = 1.0  # between two looks whether this process is in the way of another one (rule 4 of `eviction`)

_copies: weakref.WeakSet[LocalCopy] = weakref.WeakSet()


class MapOwner(Protocol):
    """An object that maps files of the copy, such as a source of a loader.

    Its methods are called while `LocalCopy.reading` is held, or in a forked child.
    """

    def leave(self, *, everything: bool = False) -> Collection[str]:
        """Unmap what is not in use, or everything, and return these files."""

    def forget(self) -> None:
        """Unmap everything, and read without a feed from now on. The copy is not notified."""


class LocalCopy:
    """A copy in a folder of at most `limit` bytes, for this process and its forked children.

    The limit covers all files of the copy, including downloads in progress. If several processes use one folder, the smallest limit
    applies. Several threads may use one object. A forked child counts as a separate reader.

    Args:
        folder: The folder of the copy.
        limit: The largest total size in bytes. `Copy` checks it. None means no limit.

    Attributes:
        files: The files of the folder.
        reading: A lock to hold while mapped files are read, so that no other thread unmaps them.
        is_fed: Whether the holder of `reading` reads a batch of the blocks that it has asked for.

    Raises:
        NotWrittenError: If the folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], *, limit: float | None = None) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self.limit = sys.maxsize if limit is None else int(min(limit, sys.maxsize))
        self._ledger = Ledger(self.folder)
        self._ledger.make()
        self.files = self._ledger.files
        self._lock = threading.RLock()
        self._is_watched = False  # whether a thread calls `_yield_space`
        self.reading, self.is_fed = threading.RLock(), False
        self._pinned: set[str] = set()
        self._taken: Counter[str] = Counter()  # how many owners in this process have a file
        self._takeover, self._owners, self._gave_way = TakeoverTimeout(), weakref.WeakSet[MapOwner](), False
        self._set_again(None)
        self._presence: list[ProcessFile] = []  # holds one if this process has used this object
        self._addresses: dict[str, str] = {}  # the addresses of the builds that this object has opened
        self._reader = self._new_reader()
        _copies.add(self)
        weakref.finalize(self, call_unlocked, partial(end_presences, self._ledger, self._presence))

    def open(self, address: str) -> tuple[CopiedBuild, Split | None]:
        """Return the build that is published at an address, and the split that the address names, or None.

        If the store does not answer, return the build that the copy last opened at this address, with a warning.

        Raises:
            MissingError: If nothing is published there.
            NielsCacheError: If the address cannot be copied.
            RemoteError: If the store refuses, or does not answer and the copy knows no build of this address.
        """
        return try_both_addresses(address, self._open)

    def fetch_split(self, address: str) -> Path:
        """Download a whole split, and return its path in the form that TokenLoader takes. The files stay until `close`.

        Args:
            address: The address of the split.

        Raises:
            NielsCacheError: If the address names no split, or the split does not fit below the limit.
        """
        build, split = self.open(address)
        if split is None:
            raise NielsCacheError(f"{address}: names no split; give {address}/{SPLITS[0]}")
        return self.fetch_build(build, split)

    def fetch_build(self, build: CopiedBuild, split: Split) -> Path:
        """Download a whole split of an open build, and return its path in the form that TokenLoader takes. The files stay until `close`."""
        self._fetch(build, build.split_files(split))
        if build.record.family == "pretrain":
            self.files.make_folder(build.path_in_copy(split))
        return self.folder / build.path_in_copy(split)

    def fetch_of(self, build: CopiedBuild, paths: Sequence[str]) -> Path:
        """Download some files of an open build, and return the folder of the data set. The files stay until `close`.

        Args:
            build: The build.
            paths: Paths relative to the data set, or `tokenizer/...`. A path that ends with a slash stands for all files below it.
        """
        self._fetch(build, build.chosen(paths))
        return (self.folder / build.path_in_copy(META_NAME)).parent

    def _fetch(self, build: CopiedBuild, names: Iterable[str]) -> None:
        names_with_meta = [*names, META_NAME, *([f"{TOKENIZER}{META_NAME}"] if build.published.tokenizer else [])]
        paths = list(dict.fromkeys(map(build.path_in_copy, names_with_meta)))
        self._addresses[build.id] = build.address
        self.require(sum(build.files[path].size for path in paths), build.address, files=paths)
        self.pin(paths)

    def require(self, needed: int, what: str, *, files: Collection[str]) -> None:
        """Raise an error if `needed` bytes can never fit below the limit, next to the files that readers hold until they end.

        Args:
            needed: The number of bytes.
            what: What the bytes belong to, for the message.
            files: The files that these bytes belong to.

        Raises:
            NielsCacheError: If the bytes do not fit.
        """
        with self._registered() as state:
            limit = state.limit()
            needed, pinned = needed + state.overhead, pinned_bytes(state, files)
        if needed + pinned > limit:
            other = "" if limit == self.limit else f" (the limit of another process that uses {self.folder})"
            raise NielsCacheError(
                f"{what}: needs {needed:,} bytes in {self.folder} at a time, beside {pinned:,} that are held until a process ends, but "
                f"limit={limit:,}{other}; raise it, or read fewer shards at a time: Blocks() with fewer shards or fewer lanes"
            )

    def pin(self, paths: Iterable[str]) -> None:
        """Download files, and keep them until `close`. Paths are relative to the copy."""
        self.acquire(list(paths), self._pinned.add, mine=self._pinned)

    def acquire(
        self, paths: Sequence[str], use: Callable[[str], None], *, mine: Set[str], also: Iterable[str] = (), is_fed: bool | None = None
    ) -> bool:
        """Wait until the files `paths` are there. Take them, and take those of `also` that are already there.

        Args:
            paths: The files to wait for, relative to the copy.
            use: Called for each taken file that is not in `mine`.
            mine: The files that this owner has already taken. `use` adds to it.
            also: More files, relative to the copy.
            is_fed: True if a feed reads the files for a batch, False for a read outside of a run (`Reader.aside`), None if they are held.

        Returns:
            False if the feed had to give up all its files because a slower process of its run has no room. Call this method again then.

        Raises:
            RemoteError: If a file cannot be downloaded.
            NielsCacheError: If there is no room for it.
        """
        began_at = changed_at = time.monotonic()
        looked_at, seen_change, pause, free_at = began_at - _LOOK_SECONDS, (-1, -1), _PAUSES[0], began_at
        also, missing, is_asked = list(also), list(paths), False
        while True:
            change = self._ledger.changed()
            changed_at = changed_at if change == seen_change else time.monotonic()
            if change != seen_change or time.monotonic() - looked_at >= _LOOK_SECONDS:
                looked_at, seen_change = time.monotonic(), change
                with self._registered() as state:
                    if not is_asked:  # a failure of an earlier request says nothing about this one
                        for path in paths:
                            state.failed.pop(failure_key(self._reader.group, path), None)
                    is_asked, self._reader.aside, waited = True, is_fed is False, looked_at - began_at
                    has_mapped = len(self._taken) > len(self._pinned)
                    gives_way = is_fed and blocks_slower(state, self._reader) and not self._takeover.is_over(state, self._reader, waited)
                    if not gives_way:
                        free_at, self._gave_way = looked_at, False
                    gives_way = gives_way and (self._gave_way or looked_at - free_at > _LOOK_SECONDS)
                    if has_mapped or not gives_way:
                        missing = self._take_ready(state, paths, use, also, mine, waited=waited)
                        if not missing:
                            return True
                    if gives_way:  # demanded and mapped files stay in the copy
                        for owner in self._owners:
                            self._release_paths(owner.leave(everything=True))
                        self._gave_way = True
                        self._clear_demand()
                        if has_mapped:
                            return False
                    is_served = self._ledger.is_alive("fetchers", self._reader.group)
                self._ledger.wake()
                if not is_served:
                    start_fetcher(self._ledger, self._reader.group)
            if time.monotonic() - changed_at > GIVE_UP_SECONDS:
                with self._registered():
                    self._clear_demand()
                raise NielsCacheError(
                    f"{self.folder}: nothing has changed for {GIVE_UP_SECONDS / 60:.0f} minutes, and this process waits for {missing[0]}; "
                    "other processes hold all the room, or the store hangs; raise the limit, or give each job a copy of its own"
                )
            time.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])

    def _take_ready(
        self, state: LedgerState, paths: Sequence[str], use: Callable[[str], None], also: list[str], mine: Set[str], *, waited: float
    ) -> list[str]:
        """Take the files that are there. Return those of `paths` that are missing, and record that this reader waits for them."""
        reader, missing = self._reader, []
        for index, path in enumerate((*paths, *also)):
            if path in mine:
                continue
            if self._is_whole(state, path):
                use(path)
                self._taken[path] += 1
                state.use(path)
            elif index < len(paths):
                missing.append(path)
        failed = next((key for path in missing if (key := failure_key(reader.group, path)) in state.failed), None)
        reader.starved = bool(missing) and self._takeover.is_over(state, reader, waited)
        reader.demand = [] if failed else missing
        self._write()
        if failed:
            raise RemoteError(state.failed[failed])  # the entry stays, because other ranks may wait for this file, too
        return missing

    def _is_whole(self, state: LedgerState, path: str) -> bool:
        """Return whether a file is there. Remove one with a wrong size, so that it is downloaded again."""
        if not state.is_ready(path):
            return False
        if self.files.size(path) == state.entries[path].size:
            return True
        if path not in state.mapped():
            self._ledger.remove(state, path)
        return False

    def _clear_demand(self) -> None:
        self._reader.demand, self._reader.starved = [], False
        self._write()

    def release(self, paths: Iterable[str], unuse: Callable[[str], None]) -> None:
        """Call `unuse` for each of these taken files. The copy may then remove a file that no other owner has taken."""
        with self._registered():
            for path in (chosen := list(paths)):
                unuse(path)
            self._release_paths(chosen)
            self._write()

    def declare_needs(
        self,
        run: str,
        position: int,
        wants: Sequence[FileDemand],
        *,
        owners: Sequence[MapOwner] = (),
        again: Callable[[], None] | None = None,
    ) -> None:
        """Record what this process needs next in a run, whose processes on this machine need the same files in the same order.

        Args:
            run: The run.
            position: The next sample of the run for this process.
            wants: The next parts of the run, in order.
            owners: Objects that unmap what is not in use.
            again: A method that unmaps everything if `blocks_slower`. A thread calls it after other processes have needed something new.
        """
        with self._registered() as state:
            reader = self._reader
            reader.run, reader.position, reader.wants = run, position, list(wants)
            for owner in owners:
                self._release_paths(owner.leave())
            self._write()
            self._shrink(state)
            is_idle = all(state.is_ready(path) for demand in wants if demand.now for path in demand.paths())
            is_served = is_idle or self._ledger.is_alive("fetchers", self._reader.group)
            woken = self._ledger.woken()  # under the lock, so that every later change is seen
            self._set_again(again, woken)
            if again and not self._is_watched:
                threading.Thread(target=_watch, args=[weakref.WeakMethod(self._yield_space)], name="local copy", daemon=True).start()
                self._is_watched = True
        if not is_idle:
            self._ledger.wake()
        if not is_served:
            start_fetcher(self._ledger, self._reader.group)

    def _set_again(self, again: Callable[[], None] | None, woken: tuple[int, int] = (0, 0)) -> None:
        """Set the method that gives shards back, or None, and the value of `Ledger.woken` at the most recent record or look."""
        self._again, self._woken = again and weakref.WeakMethod(again), woken

    def _yield_space(self) -> bool:
        """Give shards back if another process may need their space. Return whether to call this again later.

        A thread calls this, because a process may yield no batch for a long time, for example while it waits for the evaluation of another
        rank. If that rank needs room, the shards must go in the meantime. After an error, the next call tries again.
        """
        with self.reading, self._lock:
            again, woken = self._again, self._ledger.woken()
            if again is not None and woken != self._woken:
                if (call := again()) is not None:
                    call()
                if self._again is again:  # nothing had to be recorded
                    self._woken = woken
            self._is_watched = self._again is not None
            return self._is_watched

    def blocks_slower(self) -> bool:
        """Return whether a slower process of the run waits for space that this process could give back."""
        with self._lock, self._ledger.changing() as state:
            return blocks_slower(state, self._reader)

    def is_reader(self) -> bool:
        """Return whether this process counts as a reader: it has used this object, and has not closed it since."""
        return bool(self._presence)

    def counts(self) -> dict[str, int]:
        """Return counts since the copy was created, by name.

        Returns:
            `files` and `bytes`: what was downloaded. `tails` and `tail_bytes`: ranges at the end of blocks. `again`: files whose first
            content was wrong or that were damaged later. `removed`: files that were removed to make room.
        """
        with self._lock, self._ledger.changing() as state:
            return dict(state.counts)

    def add_owner(self, owner: MapOwner) -> None:
        """Register an object that gives back all its files when a slower process needs their space, and forgets them in a forked child."""
        self._owners.add(owner)

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "limit": self.limit, "addresses": self._addresses}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["folder"], limit=state["limit"])  # type: ignore[misc]
        self._addresses.update(state["addresses"])

    def close(self) -> None:
        """Give everything back. None of the taken files may still be mapped. The object can be used again."""
        with self._lock:
            end_presences(self._ledger, self._presence)
            self._taken.clear()
            self._pinned.clear()
            self._reader = self._new_reader()
            self._set_again(None)

    def _open(self, address: str) -> CopiedBuild:
        with self._registered() as state:
            known = state.addresses.get(address, "")
            has_known = known in state.builds and state.is_ready(f"builds/{known}/{META_NAME}")
        try:
            build = self._published(address, is_hasty=has_known)
        except RemoteError as error:
            if not has_known or isinstance(error, MissingError):
                raise
            warnings.warn(f"{error}; the files that {self.folder} has are used: build {known[:12]}", RuntimeWarning, stacklevel=4)
            with self._registered() as state:
                build = recorded_build(state, known, self.files, address=address)
                self._pin_meta(state, build)
        return build

    def _published(self, address: str, *, is_hasty: bool) -> CopiedBuild:
        """Read the record at an address, and what describes its build, and keep the latter in the copy."""
        store = open_store(address, is_hasty=is_hasty)
        record, _ = read_record(store)
        contents = {name: self._described(store, record, name) for name in described_by(record)}
        build = CopiedBuild(address, published_of(record, contents, store.name_of(META_NAME)))
        with self._registered() as state:
            state.add_build(build.id, address, record.content().decode())
            for name, content in contents.items():  # another process may have removed it meanwhile
                if not self._is_whole(state, build.path_in_copy(name)):
                    self._write_meta(state, build.path_in_copy(name), content)
            self._pin_meta(state, build)
        return build

    def _described(self, store: Store, record: Record, name: str) -> bytes:
        """Return the bytes of a file of `described_by`. One process of the machine downloads it, and the others find it in the copy.

        They wait for the first one for some seconds only, because it may be stopped, or its store may not answer.
        """
        path, sha256 = f"builds/{record.content_sha256}/{record.family}/{record.name}/{name}", record.beside[name]["sha256"]

        def found() -> bytes | None:
            with self._registered() as state:
                content = self.files.read(path) if self._is_whole(state, path) else b""
            return content if hashlib.sha256(content).hexdigest() == sha256 else None

        content = found()
        if content is None:
            with self._ledger.locked(lock := f"describing-{record.content_sha256}", seconds=_DESCRIBED_SECONDS):
                content = found()
                if content is None:
                    content = read_beside(store, record, name)
                    if hashlib.sha256(content).hexdigest() == sha256:
                        with self._registered() as state:
                            self._write_meta(state, path, content)
            self.files.remove(lock)  # a process that waits for it has it open
        return content

    def _write_meta(self, state: LedgerState, path: str, content: bytes) -> None:
        """Write a meta.json or an objects.json into the copy.

        Raises:
            NielsCacheError: If the file does not fit below the limit, or if there is a different file that the copy has not written.
            NotWrittenError: If the file cannot be written.
        """
        evicted, sha256 = choose_evictions(state, len(content), state.limit(), path=path), hashlib.sha256(content).hexdigest()
        if evicted is None:
            raise NielsCacheError(f"{self.folder}: limit={state.limit():,} is too small for {path} ({len(content):,} bytes); raise it")
        self._ledger.remove(state, *evicted)
        if path not in state.entries and self.files.exists(path) and self.files.sha256(path) != sha256:  # a killed process may leave it
            raise NielsCacheError(f"{self.folder / path}: is there, but this copy has not downloaded it; choose another dir")
        try:
            self.files.write(path, content)
        except OSError as error:
            raise NotWrittenError(f"{self.folder / path}: cannot be written: {error.strerror or error}; free room there") from error
        state.entries[path] = LedgerEntry(len(content), sha256)
        state.use(path)

    def _pin_meta(self, state: LedgerState, build: CopiedBuild) -> None:
        """Hold what describes a build before another process can remove it, and use its address to download the files of the build."""
        self._addresses[build.id] = build.address
        self._take_ready(state, [*map(build.path_in_copy, described_by(build.record))], self._pinned.add, [], self._pinned, waited=0.0)

    def _new_reader(self) -> Reader:
        return Reader(os.getpid(), self.limit, group_of_environment(), maps=sorted(self._pinned), addresses=self._addresses)

    def _release_paths(self, paths: Iterable[str]) -> None:
        self._taken -= Counter(paths)  # this drops the files that no owner has any more

    def _write(self) -> None:
        """Record this reader. The caller holds the lock of the ledger."""
        reader = self._reader
        reader.maps = sorted(self._taken)
        self._presence[0].write(reader)

    @contextmanager
    def _registered(self) -> Iterator[LedgerState]:
        """Hold both locks as a live reader. If becoming one lowers the limit, remove files until they fit."""
        with self._lock, self._ledger.changing() as state:
            is_new = not self._presence
            if is_new:
                self._presence.append(ProcessFile(self._ledger, "readers"))
                self._write()
                self._ledger.wake()  # a reader that is in the way checks whether it has to unmap files
            state.readers[self._presence[0].name] = self._reader
            if is_new:
                self._shrink(state)
            yield state

    def _shrink(self, state: LedgerState) -> None:
        """Remove files until the copy is below the limit, or as close to it as mapped files allow."""
        self._ledger.remove(state, *files_over_limit(state, state.limit()))

    def _forked(self) -> None:
        """Become a separate reader in a forked child, which has mapped only the held files."""
        for presence in self._presence:
            presence.forget()
        self._presence.clear()
        self._lock, self.reading = threading.RLock(), threading.RLock()  # another thread of the parent may have held them
        for owner in self._owners:
            owner.forget()
        self._taken = Counter(self._pinned)
        self._reader = self._new_reader()
        self._set_again(None)
        self._is_watched = False


def _watch(yield_space: weakref.WeakMethod[Callable[[], bool]]) -> None:
    """Give way once per second, until nothing is mapped for a run or the copy is gone."""
    is_needed = True
    while is_needed:
        time.sleep(_LOOK_AGAIN_SECONDS)
        call = yield_space()
        if call is None:
            return
        with suppress(NielsCacheError, OSError):  # the disk is full or the folder was removed: the next attempt may succeed
            is_needed = call()


def _after_fork() -> None:
    for copy in list(_copies):
        copy._forked()


os.register_at_fork(after_in_child=_after_fork)
