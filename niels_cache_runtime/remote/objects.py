"""objects.json: under which keys the files of a build are that machines without a common disk wrote into a store.

    {"kind": "objects", "schema_version": 1, "objects": {"train/shard_00000.bin": {"bytes": ..., "key": ..., "sha256": ...}, ...},
     "objects_sha256": the sha256 of this object with an empty string here}

Each machine writes under keys of its own, so a file stays under the key where it was first written, and meta.json lists its logical name.
Reading costs one request, and about 250 bytes for each file.
"""

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import canonical_json, sha256_text
from niels_cache_runtime.format.meta_keys import is_count
from niels_cache_runtime.format.safe_open import name_problem

OBJECTS_NAME = "objects.json"
OBJECTS_VERSION = 1
MAX_OBJECTS_BYTES = 1 << 27  # enough for the files of the largest meta.json
_KIND = "objects"
_ADVICE = "build it again: niels-cache build-all --only NAME --force"
_SHA256 = re.compile(r"[0-9a-f]{64}")


class RemoteFile(NamedTuple):
    """A file of a published cache.

    Attributes:
        path: The path relative to the data set, or `tokenizer/...`.
        key: The key relative to the address.
        size: The size in bytes.
        sha256: The sha256 of the content.
    """

    path: str
    key: str
    size: int
    sha256: str


def encode_objects(files: Iterable[RemoteFile]) -> bytes:
    """Return the bytes of the objects.json of these files. Equal files give equal bytes."""
    objects = {file.path: {"bytes": file.size, "key": file.key, "sha256": file.sha256} for file in files}
    record = {"kind": _KIND, "schema_version": OBJECTS_VERSION, "objects": objects, "objects_sha256": ""}
    record["objects_sha256"] = sha256_text(canonical_json(record))
    return canonical_json(record).encode()


def parse_objects(content: bytes | str, where: str) -> dict[str, RemoteFile]:
    """Return the files in an objects.json, by path.

    Args:
        content: The bytes of the objects.json.
        where: Where it was read, for messages.

    Raises:
        NielsCacheError: If the bytes are not an objects.json of this version.
    """
    try:
        record = json.loads(content)
        if record["kind"] != _KIND or type(record["schema_version"]) is not int:
            raise ValueError
        if record["schema_version"] > OBJECTS_VERSION:
            raise NielsCacheError(
                f"{where}: schema_version {record['schema_version']} is newer than {OBJECTS_VERSION}; upgrade niels-cache"
            )
        if sha256_text(canonical_json({**record, "objects_sha256": ""})) != record["objects_sha256"]:
            raise NielsCacheError(f"{where}: does not match its objects_sha256 (edited by hand?); {_ADVICE}")
        found = {path: RemoteFile(path, each["key"], each["bytes"], each["sha256"]) for path, each in record["objects"].items()}
        for file in found.values():
            if name_problem(file.path) or name_problem(file.key) or not is_count(file.size) or not _SHA256.fullmatch(file.sha256):
                raise ValueError
    except NielsCacheError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise NielsCacheError(f"{where}: does not say where the files of a build are; {_ADVICE}") from error
    return found
