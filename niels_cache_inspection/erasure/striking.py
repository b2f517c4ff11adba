"""An erasure in place: documents of finished caches are struck, so that a run in the middle can go on (`tombstone.py`).

What training does not read is deleted: the corpora of their data sets, and the parts that have the documents. The next build makes them
again, and the caches too, without the documents.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from niels_cache_assets.disk.table_file import lineage_files
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.interleave import Interleave
from niels_cache_inspection.erasure.texts import CacheFolder, cache_folders, meta_of
from niels_cache_inspection.erasure.tombstone import strike
from niels_cache_runtime.format.layout import FAMILIES, SPLITS, Split, documents_name, examples_name, parts_root

Ids = Mapping[tuple[str, str], Sequence[str]]
"""Source ids by the family and the name of their data set."""


def strike_everywhere(registry: Registry, root: Path, ids: Ids, *, progress: Callable[[str], None]) -> None:
    """Strike documents out of all caches of a root, and delete corpora and parts that have them.

    Args:
        registry: The configuration, which names the members of mixtures.
        root: The cache root.
        ids: The documents.
        progress: Called with a line about what is being done.

    Raises:
        NielsCacheError: If a cache is being built, or cannot be changed.
    """
    names = {name for _, name in ids}
    for folder in [*cache_folders(root)]:
        numbers = {split: [*_numbers(registry, folder, split, ids)] for split in SPLITS}
        if not any(numbers.values()):
            continue
        if folder.directory.is_relative_to(parts_root(root)):
            progress(f"deleting {folder.directory}")
            shutil.rmtree(folder.directory)
            continue
        progress(f"striking documents of {folder.name}")
        (family,) = (each for each in FAMILIES if each == folder.family)
        strike(folder.directory, family, numbers)
    for corpus in (root / "corpus", parts_root(root, "corpus")):
        for name in names:
            shutil.rmtree(corpus / name, ignore_errors=True)


def _numbers(registry: Registry, folder: CacheFolder, split: Split, ids: Ids) -> Iterator[int]:
    """Yield the number of each document of a split that has one of the ids. A mixture has those of its members."""
    meta = meta_of(folder.directory)
    if meta is None or not meta.get("built"):
        return
    source = registry.sources.get(folder.name)
    members = source.members if isinstance(source, Interleave) else ()
    own = {*ids.get((folder.family, folder.name), ())}
    of_members = {(member, each) for member in members for each in ids.get(("pretrain", member), ())}
    if not own and not of_members:
        return
    first = 0
    for table in lineage_files(folder.directory / (documents_name(split) if folder.family == "pretrain" else examples_name(split)), meta):
        with table.open(["source_id", "file"]) as parquet:
            for batch in parquet.iter_batches(columns=["source_id", "file"]):
                rows = zip(batch["source_id"].to_pylist(), batch["file"].to_pylist(), strict=True)
                for number, (source_id, file) in enumerate(rows, first):
                    if source_id in own or (file.partition("/")[0], source_id) in of_members:
                        yield number
                first += len(batch)
