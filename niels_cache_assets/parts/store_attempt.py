"""One attempt to build a part into a store: its files, its journal, and the record that makes the part exist.

    restore   sign the record, after which no earlier attempt can change it; then download the unfinished files that it names, so that this
              attempt goes on after it; finished files stay in the store
    keep      after each record of the builder: send the finished files and remove them here, send what the others have gained, then
              swap the record
    commit    send the remaining files, then swap the record to one that names the key and the sha256 of every file

`keep` works on a thread, while the builder writes the next shard, and the next `keep` waits for it. So at most two shards are on this
machine. A process that lost its lease writes only under keys of its own attempt: its next swap of the record fails, whether another attempt
has signed it since, has finished, or has finished and was pruned. While an attempt replaces a finished part, the journal holds the record
of that part, which stays finished if the attempt fails. Costs: each byte is sent once, except those of an unfinished shard at a
record, which are sent again with the whole shard.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from niels_cache_assets.base.wording import format_list
from niels_cache_assets.disk.journal import JournalRecord, clear_directory, decode_record, encode_record, write_journal
from niels_cache_assets.disk.space import SpaceNeed, free_blocks, require_free_space
from niels_cache_assets.parts.attempts import attempt_scratch
from niels_cache_assets.parts.lease import LeaseLostError, Log
from niels_cache_assets.parts.seal import Link
from niels_cache_assets.parts.store import read_small, record_of
from niels_cache_assets.parts.store_lease import StoreLease
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, SPLITS, Split, Tokens, documents_folder, documents_name, shard_name, token_dtype_of
from niels_cache_runtime.format.meta import MAX_META_BYTES, Meta, read_meta
from niels_cache_runtime.format.reading import mapped
from niels_cache_runtime.remote.download import WrongContentError, append_file, read_range
from niels_cache_runtime.remote.record import OBJECTS_NAME, RemoteFile, encode_objects, parse_objects, read_published
from niels_cache_runtime.remote.store import ConflictError, MissingError, SmallObject, Store

_JOURNAL = "journal"  # the kind of a record while the part is unfinished
READS_AT_ONCE = 16  # of small files


def read_objects(store: Store, folder: str) -> dict[str, RemoteFile] | None:
    """Return the files of a finished part by name, with its meta.json, or None if the part is not finished.

    Args:
        store: The store.
        folder: The folder of the part and its identity.

    Raises:
        NielsCacheError: If the record is damaged.
    """
    return read_part(store, folder)[0]


def read_part(store: Store, folder: str) -> tuple[dict[str, RemoteFile] | None, bool]:
    """Return the files as `read_objects`, and whether the part has a journal. It has both while an attempt replaces a finished part."""
    journal, finished = _parsed(read_small(store, key := record_of(folder)))
    return None if finished is None else parse_objects(finished, store.name_of(key)), bool(journal)


def _parsed(found: SmallObject | None) -> tuple[dict[str, Any], Any]:
    """Return the journal in a record, which is empty without one, and the objects.json of the finished part or None."""
    if found is None:
        return {}, None
    with suppress(ValueError, TypeError, AttributeError):
        fields: dict[str, Any] = json.loads(found.content)
        if fields.get("kind") == _JOURNAL:
            return fields, fields.get("last")
    return {}, found.content.decode(errors="replace")


def read_object(store: Store, file: RemoteFile) -> bytes:
    """Return the content of a small file, which is compared with its recorded sha256.

    Raises:
        WrongContentError: If it differs.
    """
    content = store.get(file.key, most_bytes=max(file.size, MAX_META_BYTES)).content
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise WrongContentError(f"{store.name_of(file.key)}: its content has another sha256 than recorded; build this part again")
    return content


class StoreAttempt:
    """The files of one attempt.

    Args:
        store: The store.
        lease: The lease of the attempt.
        folder: The folder of the part and its identity, as a key.
        directory: The staging directory on this machine.
    """

    def __init__(self, store: Store, lease: StoreLease, folder: str, directory: Path) -> None:
        self._store, self._lease, self._folder, self._directory = store, lease, folder, directory
        self._objects: dict[str, RemoteFile] = {}
        self._pieces: dict[str, list[RemoteFile]] = {}  # what is sent of each unfinished file, in order
        self._key = record_of(folder)
        self._journal: dict[str, Any] = {}
        self._last = None  # the objects.json of the finished part that this attempt replaces
        self._state: str | None = None  # of the record
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._sending: Future[None] | None = None

    def restore(self, *, log: Log, afresh: bool) -> None:
        """Make the staging directory what it was at the record in the journal. Without a journal, it stays empty.

        Args:
            log: Called with the reason if the journal cannot be used.
            afresh: Whether to ignore what the journal says.
        """
        self._sign(afresh=afresh)
        fields, where = self._journal, self._store.name_of(self._key)
        if fields.get("record") is None:
            return
        try:
            objects = parse_objects(json.dumps(fields["objects"]), where)
            pieces = {name: [RemoteFile(*each) for each in found] for name, found in fields["pieces"].items()}
            recorded = decode_record(fields["record"].encode())
            if isinstance(recorded, str):
                raise ValueError(recorded)
            for name, each in pieces.items():
                for piece in each:
                    append_file(self._store, piece, self._directory / name)
        except (MissingError, WrongContentError, ValueError, TypeError, KeyError, AttributeError) as error:
            log(f"starting afresh: {where} cannot be used: {error}")
            clear_directory(self._directory)
            return
        for name, file in objects.items():  # a file without blocks stands for each, because the journal names it
            path = self._directory / name
            path.parent.mkdir(exist_ok=True)
            with open(path, "wb") as opened:
                opened.truncate(file.size)
        self._objects, self._pieces = objects, pieces
        write_journal(self._directory, recorded._replace(attempt=self._lease.attempt))

    def _sign(self, *, afresh: bool) -> None:
        """Put the name of this attempt into the journal. It is empty for a new part, with `afresh`, and if the part was finished before."""
        while True:
            found = read_small(self._store, self._key)
            self._lease.check()  # after the read: a later attempt has not signed what was read, and makes the swap fail if it signs now
            self._state = None if found is None else found.state
            journal, self._last = _parsed(found)
            with suppress(LeaseLostError):  # an earlier attempt was faster, for the last time
                return self._write_journal({} if afresh else journal)

    def _write_journal(self, fields: Mapping[str, Any]) -> None:
        self._journal = {**fields, "kind": _JOURNAL, "attempt": self._lease.folder, "last": self._last}
        self._write_record(json.dumps(self._journal).encode())

    def _write_record(self, content: bytes) -> None:
        """Swap the record.

        Raises:
            LeaseLostError: If it is not what this attempt has written last.
        """
        try:
            self._state = self._store.write_if(self._key, content, state=self._state)
        except ConflictError:
            raise self._lease.lost_error() from None

    def keep(self, recorded: JournalRecord, is_afresh: bool) -> None:
        """Send what a record of the builder names, after the one before is sent.

        Args:
            recorded: The record.
            is_afresh: Whether the builder has begun from the start, and this is its first record. Nothing of the last attempt is then used.

        Raises:
            LeaseLostError: If another process has taken over.
            RemoteError: If the store refuses or does not answer.
        """
        self._wait()
        if is_afresh:
            self._objects, self._pieces = {}, {}
        self._sending = self._sender.submit(self._send_record, recorded)

    def _wait(self) -> None:
        if self._sending is not None:
            self._sending.result()

    def _send_record(self, recorded: JournalRecord) -> None:
        from niels_cache_assets.build_cache.pretrain_writer import spool_name

        self._lease.check_quickly()
        new = [name for name in recorded.finished if name not in self._objects]
        self._send_files(recorded.finished)
        self._pieces = {name: pieces for name, pieces in self._pieces.items() if name in recorded.files}
        for name, size in recorded.files.items():
            pieces = self._pieces.setdefault(name, [])
            if (start := sum(piece.size for piece in pieces)) < size:
                pieces.append(self.send(self._directory / name, name, key=f"{name}.{start}", start=start, end=size))
        objects = json.loads(encode_objects(self._objects.values()))
        self._write_journal({"objects": objects, "pieces": self._pieces, "record": encode_record(recorded).decode()})
        for name in new:
            (self._directory / name).unlink()
        for name in recorded.files.keys() & {*map(spool_name, SPLITS)}:  # only another attempt reads these rows, from the store
            free_blocks(self._directory / name, recorded.files[name])

    def commit(self, publish: "Publish | None") -> None:
        """Send the remaining files and meta.json, and swap the record to one that names all files.

        Args:
            publish: See `stored_attempt`. It gets an objects.json that no later attempt replaces.

        Raises:
            LeaseLostError: If another process has taken over.
            NielsCacheError: If a file has changed on the disk since it was written.
            RemoteError: If the store refuses or does not answer.
        """
        self._wait()
        meta = read_meta(self._directory / META_NAME)
        files = meta.get("files", {})
        self._send_files(files)
        self._objects[META_NAME] = self.send(self._directory / META_NAME, META_NAME)
        self._lease.check()
        named = {name: self._objects[name] for name in (*files, META_NAME)}
        content = encode_objects(named.values())
        if publish is not None:
            self._write_journal(self._journal)  # fails if another attempt has signed it
            (self._directory / OBJECTS_NAME).write_bytes(content)
            publish(self, meta, [named[META_NAME], self.send(self._directory / OBJECTS_NAME, OBJECTS_NAME)])
        self._write_record(content)

    def join(self, folders: Mapping[str, str], names: Collection[str], directory: Path) -> Link:
        """Return how files of finished parts are linked, after a download of the few files that a seal reads.

        Args:
            folders: The folder of each part in the store, by the name of the part.
            names: The files to download.
            directory: Where they are written, each in a folder with the name of its part.

        Raises:
            NielsCacheError: If parts are not finished. The message names them.
        """
        with ThreadPoolExecutor(READS_AT_ONCE) as pool:
            found = dict(zip(folders, pool.map(partial(read_objects, self._store), folders.values()), strict=True))
            if missing := [name for name, objects in found.items() if objects is None]:
                raise NielsCacheError(f"{self._store.address}: {format_list(sorted(missing))} must be built first")
        sources = {directory / part / name: file for part, objects in found.items() for name, file in (objects or {}).items()}
        self._download({path: file for path, file in sources.items() if path.name in names})
        return self._link_from(sources)

    def _download(self, wanted: Mapping[Path, RemoteFile]) -> None:
        """Download files that do not exist here.

        Raises:
            NielsCacheError: If they do not fit on the disk.
        """
        need = SpaceNeed(bytes=sum(file.size for file in wanted.values()), reason="document ends and lineage of the parts")
        require_free_space(self._directory, need)
        with ThreadPoolExecutor(READS_AT_ONCE) as pool:
            for _ in pool.map(partial(append_file, self._store), wanted.values(), wanted):
                pass

    def link_published(self, folder: Path) -> Link:
        """Return how files of the published data set are linked, as if they were in `folder`."""
        return self._link_from({folder / file.path: file for file in read_published(self._store).data})

    def _link_from(self, sources: Mapping[Path, RemoteFile]) -> Link:
        """Return how files in the store are linked: each stays under its key, and no byte moves."""

        def link(source: Path, link: Path, size: int) -> None:
            name = link.relative_to(self._directory).as_posix()
            self._objects[name] = sources[source]._replace(path=name)

        return link

    def shards(self, meta: Meta, split: Split) -> list[Any]:
        """Return the token files of a split of this build in order, after a download of its lineage (`StoredFiles.shards`)."""
        self._wait()
        self._send_files(meta["files"])
        lineage = (documents_name(split), f"{documents_folder(split)}/")
        found = {self._directory / name: file for name, file in self._objects.items() if name.startswith(lineage)}
        self._download({path: file for path, file in found.items() if not path.exists()})
        count = sum(name.startswith(f"{split}/") for name in meta["files"])
        shards = [self._objects[f"{split}/{shard_name(number)}"] for number in range(count)]
        return [StoredShard(self._store, file, token_dtype_of(meta)) for file in shards]

    def close(self) -> None:
        """Wait for what is being sent."""
        self._sender.shutdown(wait=True, cancel_futures=True)

    def _send_files(self, files: Mapping[str, Mapping[str, Any]]) -> None:
        """Send the finished files that are not sent yet.

        Raises:
            NielsCacheError: If a file has changed on the disk since it was written.
        """
        for name, entry in files.items():
            if name not in self._objects or self._objects[name].sha256 != entry["sha256"]:
                self._objects[name] = self.send(self._directory / name, name)
                if self._objects[name].sha256 != entry["sha256"]:
                    path = self._directory / name
                    raise NielsCacheError(f"{path}: its bytes have changed on the disk since they were written; build it again")

    def send(self, path: Path, name: str, *, key: str | None = None, start: int = 0, end: int | None = None) -> RemoteFile:
        """Send a file, or a range of it that no one changes any more, under a key of this attempt (the name, unless given)."""
        with open(path, "rb") as opened, mapped(opened) as content:
            key, sha256 = f"{self._folder}/{self._lease.folder}/{key or name}", hashlib.sha256(content[start:end]).hexdigest()
            self._store.put(key, opened, content[start:end], sha256=sha256)
            return RemoteFile(name, key, len(content[start:end]), sha256)


class StoredShard:
    """A file of tokens in a store. A slice takes one request."""

    def __init__(self, store: Store, file: RemoteFile, dtype: np.dtype) -> None:
        self._store, self._file, self._dtype = store, file, dtype

    def __len__(self) -> int:
        return self._file.size // self._dtype.itemsize

    def __getitem__(self, part: slice) -> Tokens:
        start, stop, _ = part.indices(len(self))
        size = self._dtype.itemsize
        content = read_range(self._store, self._file, (stop - start) * size, start=start * size).content
        return np.frombuffer(content, self._dtype)


Publish = Callable[[StoreAttempt, Meta, list[RemoteFile]], None]


@contextmanager
def stored_attempt(
    store: Store,
    lease: StoreLease,
    folder: str,
    *,
    log: Log,
    afresh: bool,
    publish: Publish | None = None,
) -> Iterator[Path]:
    """Yield the staging directory of an attempt, with the unfinished files of the last one. Commit the attempt at the end.

    The directory is on this machine only, and is removed in any case.

    Args:
        store: The store.
        lease: The lease of the attempt.
        folder: The folder of the part and its identity, as a key.
        log: Called with a line about what cannot be taken over.
        afresh: Whether to start from the beginning, and to replace a finished part.
        publish: Called with the attempt, its meta.json, and that file and objects.json, before the part counts as finished.

    Raises:
        LeaseLostError: If another process has taken over before the end.
        RemoteError: If the store refuses or does not answer.
    """
    with attempt_scratch(lease) as directory:
        attempt = StoreAttempt(store, lease, folder, directory)
        try:
            attempt.restore(log=log, afresh=afresh)
            lease.stored = attempt
            yield directory
            attempt.commit(publish)
        finally:
            attempt.close()
