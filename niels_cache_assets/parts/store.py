"""A store in place of a shared folder (`[build] store`): the keys of a data set that machines without a common disk build, and safe writes.

    ADDRESS/meta.json                                      the record that readers follow (remote/record.py)
    ADDRESS/leases/part-00017.json                         who builds the part (store_lease.py)
    ADDRESS/records/part-00017/IDENTITY.json               where an unfinished part continues, and then the keys of its files
    ADDRESS/parts/part-00017/IDENTITY/00003-NONCE/...      what attempt 3 has written; no other attempt ever writes there

IDENTITY is the fingerprint of everything that decides the bytes, so a part of other settings is another object, and nothing is replaced.
Leases and records have folders of their own, so that a short listing shows which of them have changed.
"""

import time
from contextlib import suppress

from niels_cache_runtime.remote.store import ConflictError, MissingError, RemoteError, SmallObject, Store

PARTS, LEASES, RECORDS = "parts", "leases", "records"
PLAN = "plan"  # the folder of the files that a plan names
CLOCKS = "clocks"  # of objects that tell the store's time: one for each lease, because some stores limit the writes of one object
MAX_RECORD_BYTES = 1 << 27
_WAITS = (0.2, 1.0, 5.0)  # seconds before another try of a request that failed for a short time


def folder_of(member: str, fingerprint: str) -> str:
    """Return the folder of a part and its identity, as a key relative to the address of the data set."""
    return f"{PARTS}/{member}/{fingerprint[:16]}"


def lease_of(member: str) -> str:
    """Return the key of the lease of a part."""
    return f"{LEASES}/{member}.json"


def record_of(folder: str) -> str:
    """Return the key of the record of a folder of `folder_of`."""
    return f"{RECORDS}{folder.removeprefix(PARTS)}.json"


def write_if(store: Store, key: str, content: bytes, *, state: str | None) -> str | None:
    """Write a small object, if it is still in a state, and return its new state.

    A refused or lost request may have succeeded before, so the object is read back: if it has this content, it was this process.

    Args:
        store: The store.
        key: The key of the object.
        content: Its content, which no other process writes.
        state: The state to replace, or None to create the object.

    Raises:
        ConflictError: If another process has written the object.
        RemoteError: If the store refuses or does not answer.
    """
    for seconds in (*_WAITS, None):
        try:
            return store.create(key, content) if state is None else store.exchange(key, content, state=state)
        except RemoteError as error:
            is_refused = isinstance(error, ConflictError | MissingError)
            if not is_refused and not error.is_transient:
                raise
            with suppress(RemoteError):  # the next try may succeed
                found = read_small(store, key)
                if found is not None and found.content == content:
                    return found.state
            if isinstance(error, MissingError):
                raise ConflictError(f"{store.name_of(key)}: was deleted in the meantime") from None
            if is_refused or seconds is None:
                raise
        time.sleep(seconds)
    raise AssertionError("the last try returns or raises")


def read_small(store: Store, key: str) -> SmallObject | None:
    """Return a small object, or None if it does not exist."""
    try:
        return store.get(key, most_bytes=MAX_RECORD_BYTES)
    except MissingError:
        return None
