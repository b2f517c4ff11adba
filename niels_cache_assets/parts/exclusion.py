"""The key `exclude` of a data set in parts: a part is built again only if it contains one of the ids.

The fingerprint of a part covers only those ids of the list that affect it: the ids that its build removed (`facts` of meta.json), and the
ids that are still in its lineage. A corpus also has examples of documents that cleaning dropped. Their ids count, too, because an example
contains the beginning of the text. A list with other ids therefore leaves the part and its bytes as they are. A part that is not built yet
removes all ids of the list, and its fingerprint then covers those that it found.

The lineage of a finished part is read once for each list. `excluded.json` next to the parts records which ids were found in it, by the
sha256 of the lineage file. The joined cache has the same lineage files. This record only saves time: reading the lineage of a million
documents takes a quarter of a second.
"""

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from niels_cache_assets.base.fingerprint import Identity, fingerprint_of
from niels_cache_assets.disk.build_lock import path_stamp
from niels_cache_assets.disk.identity import without_keys
from niels_cache_assets.disk.journal import write_atomically
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.disk.table_file import LineageFile
from niels_cache_assets.sources.excluding import EXCLUDED, excluded_ids, identity_of_ids
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, documents_folder, documents_name
from niels_cache_runtime.format.meta import Meta

FOUND_NAME = "excluded.json"
_CORPUS_PREFIXES = ("documents_", "rejected")  # files of documents, and the examples of dropped ones
_ROWS = 1 << 18


class ExcludeList(NamedTuple):
    """The list of ids `exclude` of a data set in parts, and what it means for the finished builds of these parts.

    Each method raises NielsCacheError if the list cannot be read.

    Attributes:
        path: The file of the list, or None if no ids are excluded.
        parts_folder: The folder of the parts.
    """

    path: str | None
    parts_folder: Path

    @property
    def ids(self) -> frozenset[str]:
        """The ids of the list."""
        return frozenset() if self.path is None else excluded_ids(self.path)

    def present_identity(self, meta: Meta, identity: Identity, directory: Path, *, also: Collection[str] = ()) -> Identity:
        """Return an identity with only those ids of the list that the finished build in `directory` contains or has removed.

        If the lineage cannot be read, all ids count, so that the part is built again.

        Args:
            meta: The meta.json of the build.
            identity: The identity of the part.
            directory: The folder of the build.
            also: Further ids that count if they are in the list.
        """
        if self.path is None:
            return identity
        try:
            return _identity_with_ids(identity, self.ids_in_build(meta, directory) | (self.ids & {*also}))
        except NielsCacheError:
            return identity

    def with_removed_ids_only(self, meta: Meta, identity: Identity, *, also: Collection[str] = ()) -> Meta:
        """Return the meta.json of a new build, with the fingerprint recomputed for only the ids that this build removed, and `also`."""
        if self.path is None:
            return meta
        return {**meta, "fingerprint": fingerprint_of(_identity_with_ids(identity, {*_removed_ids(meta), *also}))}

    def ids_in_build(self, meta: Meta, directory: Path) -> frozenset[str]:
        """Return those ids of the list that the finished build in `directory` contains or has removed.

        Raises:
            NielsCacheError: If the lineage cannot be read.
        """
        present = self.find_documents(meta, directory)
        return self.ids & ({source_id for source_id, _ in present} | _removed_ids(meta))

    def ids_in_parts(self, folders: Iterable[Path]) -> set[str]:
        """Return the ids of the list that the finished parts in these folders contain or have removed. An unreadable part has none."""
        found = set[str]()
        for folder in folders if self.ids else ():
            with suppress(NielsCacheError):
                meta = finished_meta(folder)
                if meta is not None:
                    found |= self.ids_in_build(meta, folder)
        return found

    def find_documents(self, meta: Meta, directory: Path) -> frozenset[tuple[str, str]]:
        """Return the id and the file of each document in the lineage of a finished cache or corpus that has an id of the list.

        This reads the ids of all documents, but only once for each list.

        Raises:
            NielsCacheError: If the lineage cannot be read.
        """
        excluded, record_path = self.ids, self.parts_folder / FOUND_NAME
        (digest,) = identity_of_ids(excluded).values()
        recorded = _recorded_ids(record_path, digest)
        files = [(directory / name, str(entry["sha256"])) for name, entry in meta["files"].items() if _has_ids(name)]
        found = {sha256: recorded[sha256] if sha256 in recorded else [*_read(path, excluded)] for path, sha256 in files}
        if found.keys() - recorded.keys():
            with suppress(OSError):  # without the record, the next call reads the lineage again
                content = json.dumps({"ids": digest, "found": {**recorded, **found}}).encode()
                write_atomically(record_path, content, spare=f"new-{os.getpid()}")
        return frozenset((source_id, file) for entries in found.values() for source_id, file in entries)


def _identity_with_ids(identity: Identity, ids: Collection[str]) -> Identity:
    """Return an identity in which exactly these ids are excluded."""
    if "exclude" in identity:
        return without_keys(identity, "exclude") | identity_of_ids(ids)
    return {**identity, "source": without_keys(identity["source"], "exclude") | identity_of_ids(ids)}


def _removed_ids(meta: Meta) -> set[str]:
    """Return the ids that a build has removed. A val part also records those in the head of each part (`part` of meta.json)."""
    of_heads = meta.get("part", {}).get(EXCLUDED, {})
    return {*meta.get("facts", {}).get(EXCLUDED, {}), *(each for ids in of_heads.values() for each in ids)}


def _has_ids(name: str) -> bool:
    """Return whether a file of a cache or of a corpus contains the ids of documents."""
    is_lineage = any(name == documents_name(split) or name.startswith(f"{documents_folder(split)}/") for split in SPLITS)
    return is_lineage or name.startswith(_CORPUS_PREFIXES)


def _read(path: Path, excluded: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the id and the file of each document that has one of these ids."""
    import pyarrow
    import pyarrow.compute

    ids, columns = pyarrow.array(list(excluded), "string"), ["source_id", "file"]
    with LineageFile(path, None).open(columns) as parquet:
        for batch in parquet.iter_batches(batch_size=_ROWS, columns=columns):
            matching = batch.filter(pyarrow.compute.is_in(batch["source_id"], value_set=ids))
            yield from zip(matching["source_id"].to_pylist(), matching["file"].to_pylist(), strict=True)


def _recorded_ids(path: Path, digest: str) -> Mapping[str, list[Any]]:
    """Return what was found for this list, by the sha256 of a lineage file."""
    try:
        recorded_digest, found = _recorded(path, path_stamp(path))
    except (OSError, ValueError, KeyError, TypeError):  # missing or damaged
        return {}
    return found if recorded_digest == digest else {}


@lru_cache(maxsize=8)
def _recorded(path: Path, stamp: object) -> tuple[str, dict[str, list[Any]]]:
    recorded = json.loads(path.read_bytes())
    found = {sha256: [(str(source_id), str(file)) for source_id, file in each] for sha256, each in recorded["found"].items()}
    return recorded["ids"], found
