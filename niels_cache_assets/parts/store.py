"""A store in place of a shared folder (`[build] store`): the keys of a data set that machines without a common disk build.

    ADDRESS/meta.json                                      the record that readers follow (remote/record.py)
    ADDRESS/leases/part-00017.json                         who builds the part (store_lease.py)
    ADDRESS/records/part-00017/IDENTITY.json               where an unfinished part continues, and then the keys of its files
    ADDRESS/parts/part-00017/IDENTITY/00003-NONCE/...      what attempt 3 has written; no other attempt ever writes there

IDENTITY is the fingerprint of everything that decides the bytes, so a part of other settings is another object, and nothing is replaced.
Leases and records have folders of their own, so that a short listing shows which of them have changed.
"""

from niels_cache_runtime.remote.store import MissingError, SmallObject, Store

PARTS, LEASES, RECORDS = "parts", "leases", "records"
PLAN = "plan"  # the folder of the files that a plan names
CLOCKS = "clocks"  # of objects that tell the store's time: one for each lease, because some stores limit the writes of one object
MAX_RECORD_BYTES = 1 << 27


def folder_of(member: str, fingerprint: str) -> str:
    """Return the folder of a part and its identity, as a key relative to the address of the data set."""
    return f"{PARTS}/{member}/{fingerprint[:16]}"


def lease_of(member: str) -> str:
    """Return the key of the lease of a part."""
    return f"{LEASES}/{member}.json"


def record_of(folder: str) -> str:
    """Return the key of the record of a folder of `folder_of`."""
    return f"{RECORDS}{folder.removeprefix(PARTS)}.json"


def read_small(store: Store, key: str, *, most_bytes: int = MAX_RECORD_BYTES) -> SmallObject | None:
    """Return a small object, or None if it does not exist."""
    try:
        return store.get(key, most_bytes=most_bytes)
    except MissingError:
        return None
