"""Where artifacts are built: in their folder, or in a store (`[build] store`), which holds the tokenizer, and data sets with their parts.

`in_store` returns this place. With a store, `materialize` takes a lease there, builds in a scratch directory on this machine, and commits
to the store (parts/store_attempt.py). What other builds read (the tokenizer, the plan, the val part) is also copied into the cache root of
this machine. A finished data set is published: the record at its address names the keys of its files, so readers open it like a pushed one.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import Artifact, BuildJob, BuildLock, Log
from niels_cache_assets.base.fingerprint import fingerprint_of
from niels_cache_assets.disk.build_lock import lock_target
from niels_cache_assets.disk.journal import real_path, write_atomically
from niels_cache_assets.disk.space import SpaceNeed
from niels_cache_assets.disk.staging import staged
from niels_cache_assets.facts.published import store_of
from niels_cache_assets.parts.attempts import attempt_scratch
from niels_cache_assets.parts.layout import PLAN_NAME, VAL_BITS, VAL_NAME
from niels_cache_assets.parts.store import PLAN, folder_of, lease_of, read_small
from niels_cache_assets.parts.store_attempt import StoreAttempt, read_object, read_objects, stored_attempt
from niels_cache_assets.parts.store_lease import StoreLease, hold_store_lease
from niels_cache_runtime.cache.opening import listed_files
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES, META_NAME, tokenizer_dir
from niels_cache_runtime.format.meta import Meta, load_meta, parse_meta, read_meta
from niels_cache_runtime.format.reading import mapped
from niels_cache_runtime.remote.download import append_file
from niels_cache_runtime.remote.record import OBJECTS_NAME, TOKENIZER, Record, RemoteFile, record_at
from niels_cache_runtime.remote.store import ConflictError, SmallObject, Store, open_store

WHOLE = "all"  # the member that is the whole data set
_MEMBERS = {"tokenizer": "tokenizer", "plan": "plan", "val_part": VAL_NAME} | dict.fromkeys(FAMILIES, WHOLE)
_TOKENS_FOR_ORIGINS = 16  # bytes of tokens for a byte of document ends and compressed lineage, at least (docs/cluster.md)
_COPIED = ("tokenizer", "plan", "val_part")


def in_store(artifact: Artifact) -> Artifact | StorePlace:
    """Return where an artifact is built: in its own folder, or in the store of the configuration if it is of a kind that is kept there."""
    is_kept = artifact.kind in (*_MEMBERS, "part") and artifact.states[0] == "built"
    return artifact if artifact.registry.build.store is None or not is_kept else StorePlace(artifact)


def read_finished(artifact: Artifact) -> Meta:
    """Return the record of an artifact that some process has finished.

    Raises:
        NielsCacheError: If it cannot be read.
    """
    place = in_store(artifact)
    if not isinstance(place, StorePlace):
        return read_meta(artifact.record_path)
    if (meta := place.finished(copies=False)) is None:
        raise NielsCacheError(f"{place.store.address}: {artifact.key} is not finished; build it first")
    return meta


class StorePlace:
    """The store as the place where an artifact is built. Its methods replace those of the artifact, which are for a folder.

    Args:
        artifact: The artifact.

    Attributes:
        spec: What has the root and the name of the data set.
        kind: The first part of the key.
        member: The name of the artifact in the store of its data set.
    """

    def __init__(self, artifact: Any) -> None:
        self.artifact, self.spec, self.kind = artifact, getattr(artifact, "spec", artifact), artifact.kind
        self.member = _MEMBERS.get(self.kind) or artifact.key.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The folder of what a build would make now. The published revision of upstream counts as unchanged."""
        meta = self.artifact.finished() if self.kind in FAMILIES else None
        revision = self.artifact.revision() if meta is None else meta.get("dataset_revision")
        return folder_of(self.member, fingerprint_of(self.artifact.identity(revision)))

    @property
    def store(self) -> Store:
        """The store, below the address of the data set."""
        family = self.kind if self.kind in (*FAMILIES, "tokenizer") else "pretrain"
        store = store_of(self.artifact.registry, family, "" if self.kind == "tokenizer" else self.spec.name)
        assert store is not None  # `in_store`
        return store

    def finished(self, *, copies: bool = True) -> Meta | None:
        """See `Artifact.finished`. With `copies`, what other builds read is copied into the cache root of this machine."""
        store, artifact = self.store, self.artifact
        if self.kind == "plan":
            found = read_small(store, PLAN_NAME)
            if found is None:
                return None
            folder: Path = artifact.directory
            folder.mkdir(parents=True, exist_ok=True)
            plan = parse_meta(found.content, store.name_of(PLAN_NAME))
            for name in filter(None, (group["val"] for group in plan["groups"])):
                if not (folder / name).exists():
                    content = store.get(f"{PLAN}/{name}", most_bytes=sys.maxsize).content  # its name has its sha256
                    write_atomically(folder / name, content, spare=f"new-{os.getpid()}")
            if artifact.finished() != plan:
                write_atomically(folder / PLAN_NAME, found.content, spare=f"new-{os.getpid()}")
            return artifact.finished()
        if self.kind in FAMILIES:
            return artifact.finished()
        objects = read_objects(store, self.folder)
        if objects is None:
            return None
        meta = parse_meta(read_object(store, objects[META_NAME]), store.name_of(objects[META_NAME].key))
        directory: Path = artifact.directory
        if self.kind in _COPIED and copies and artifact.finished() != meta:
            with lock_target(directory, wait=True, log=lambda line: None), staged(directory) as copy:
                for name, file in objects.items():
                    append_file(store, file, copy / name)
        return meta

    def need(self) -> SpaceNeed | None:
        """See `Artifact.need`. Conversations are on this disk as a whole; of a pretrain data set, full shards leave it."""
        need: SpaceNeed | None = self.artifact.need()
        if need is None or self.kind not in ("pretrain", "part"):
            return need
        size = min(need.bytes, 2 * self.spec.build.shard_bytes + need.bytes // _TOKENS_FOR_ORIGINS)
        return SpaceNeed(bytes=size, reason="two shards and the origins of documents", certain=False)

    @contextmanager
    def lock(self, *, wait: bool, log: Log) -> Iterator[BuildLock]:
        """See `Artifact.lock`."""
        target, registry = real_path(self.artifact.lease_target), self.artifact.registry
        target.parent.mkdir(parents=True, exist_ok=True)
        _require_conditional_put(registry.build.store)
        with hold_store_lease(
            self.store, lease_of(self.member), target, times=registry.cluster, wait=wait, log=log, stops=self.artifact.stops
        ) as lease:
            yield BuildLock(True, lease)  # another machine may have finished it: nothing on this disk would show that

    @contextmanager
    def stage(self, work: BuildJob) -> Iterator[Path]:
        """See `Artifact.stage`."""
        store, lease = self.store, work.lease
        assert isinstance(lease, StoreLease)
        if self.kind == "plan":
            staging: AbstractContextManager[Path] = self._staged_plan(store, lease)
        else:
            folder = folder_of(self.member, work.fingerprint)
            publish = (
                partial(self._publish, store, lease, record_at(store), read_small(store, PLAN_NAME)) if self.kind in FAMILIES else None
            )
            staging = stored_attempt(store, lease, folder, log=work.log, afresh=work.force, publish=publish)
        with staging as directory:
            yield directory
        if self.kind in _COPIED:
            self.finished()

    @contextmanager
    def _staged_plan(self, store: Store, lease: StoreLease) -> Iterator[Path]:
        """Yield a scratch directory, whose record becomes the plan in the store, and then the copy of it on this machine."""
        found = read_small(store, PLAN_NAME)
        with attempt_scratch(lease) as scratch:
            yield scratch
            for path in scratch.glob(VAL_BITS):
                with open(path, "rb") as opened, mapped(opened) as content:
                    store.put(f"{PLAN}/{path.name}", opened, content, sha256=hashlib.sha256(content).hexdigest())
            lease.check()
            try:
                store.write_if(PLAN_NAME, (scratch / PLAN_NAME).read_bytes(), state=None if found is None else found.state)
            except ConflictError:
                raise lease.lost_error() from None

    def _publish(
        self,
        store: Store,
        lease: StoreLease,
        then: tuple[Record | None, str | None],
        plan: SmallObject | None,
        attempt: StoreAttempt,
        meta: Meta,
        beside: list[RemoteFile],
    ) -> None:
        """Swap the record of the address to a finished data set.

        Raises:
            LeaseLostError: If another process has taken over in the meantime.
            NielsCacheError: If another process has published without the lease, or has changed the plan, so that a prune may remove parts.
        """
        if meta.get("tokenizer_sha256") is not None:
            folder = tokenizer_dir(self.spec.root)
            names = [*sorted(listed_files(load_meta(folder / META_NAME), folder)), META_NAME]
            beside += [attempt.send(folder / name, f"{TOKENIZER}{name}") for name in names]
        found, state = then
        record = Record(
            family=self.spec.family,
            name=self.spec.name,
            content_sha256=meta["content_sha256"],
            meta_sha256=meta["meta_sha256"],
            beside={file.path: {"bytes": file.size, "key": file.key, "sha256": file.sha256} for file in beside},
            replaced=None if found is None else found.beside.get(OBJECTS_NAME, {}).get("key"),
        )
        lease.check()
        if read_small(store, PLAN_NAME) != plan:
            raise NielsCacheError(f"{store.address}: its plan has changed during this build; run the same command again")
        try:
            store.write_if(META_NAME, record.after(found).content(), state=state)
        except ConflictError:
            lease.check()
            raise NielsCacheError(
                f"{store.address}: was published by another process, such as a push; run the same command again"
            ) from None

    def sweep(self, *, resumable: bool) -> None:
        """Do nothing: an attempt removes what earlier ones have left on this machine, and `prune` what they have left in the store."""


@cache
def _require_conditional_put(address: str) -> None:
    """Check once in a process that the store supports what leases need.

    Raises:
        RemoteError: If it does not.
    """
    open_store(address, make=True).require_conditional_put()
