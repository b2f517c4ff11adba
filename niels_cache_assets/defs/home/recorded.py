"""What Dagster recorded when a cache was built, held against what lies on disk now: `niels-cache verify --against-dagster`.

Whoever changes a cache and makes every hash in it anew passes `verify`; the meta_sha256 in Dagster's event log, which meta.json's hash of
every file goes into, is elsewhere. Reads the log and each meta.json; that the files are those of meta.json is `verify`'s business.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from niels_cache_assets.corpus.layout import corpus_dir, duplicates_dir
from niels_cache_assets.defs.home.instance import CONFIG_NAME, HOME_VARIABLE, dagster_home, ensure_instance
from niels_cache_assets.defs.home.refusals import home_refusals
from niels_cache_assets.defs.keys import DOCUMENTS, DUPLICATES, META_KEYS, TOKENIZER
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES, META_NAME, dataset_dir, tokenizer_dir
from niels_cache_runtime.format.meta import load_meta
from niels_cache_runtime.verify import Finding

_RECORDS = 1000  # of one asset and partition, the newest: a home may serve many cache roots
_DIGITS = 12


def recorded_findings(root: Path, folders: Sequence[Path]) -> list[Finding]:
    """Folders below `root` that Dagster built otherwise, or of which it has no record; indices, which can be built again, are left out.

    Raises NielsCacheError if there is no Dagster home, NotWrittenError if its disk or database refuses.
    """
    home = dagster_home()
    if not (home / CONFIG_NAME).exists():
        raise NielsCacheError(f"{home}: no Dagster home; point {HOME_VARIABLE} at the one that the cache was built with")
    with home_refusals(home), ensure_instance(home) as instance:
        return [finding for folder in folders for finding in _findings(instance, root, folder)]


def _findings(instance: dg.DagsterInstance, root: Path, folder: Path) -> Iterator[Finding]:
    key, partition = asset_of(root, folder)
    if key is None:
        return
    try:
        meta_sha256 = load_meta(str(folder / META_NAME)).get("meta_sha256")
    except NielsCacheError:  # among the findings of verify
        return
    if meta_sha256 is None:  # another program's: among the notes of verify
        return
    wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=None if partition is None else [partition])
    recorded = _recorded_sha256(instance.fetch_materializations(wanted, limit=_RECORDS).records, folder)
    if recorded is None:
        problem = "Dagster has no record of a build here (imported, built without it, or recorded in another home)"
    elif recorded != meta_sha256:
        problem = f"its meta_sha256 is {meta_sha256[:_DIGITS]}, Dagster recorded {recorded[:_DIGITS]}: changed since, or built without it"
    else:
        return
    yield Finding(kind="recorded", folder=str(folder), path=META_NAME, problem=problem)


def asset_of(root: Path, folder: Path) -> tuple[dg.AssetKey | None, str | None]:
    name = folder.name
    if folder == tokenizer_dir(root):
        return TOKENIZER, None
    if folder == duplicates_dir(root):
        return DUPLICATES, None
    if folder == corpus_dir(root, name):
        return DOCUMENTS, name
    return next(((META_KEYS[family], name) for family in FAMILIES if folder == dataset_dir(root, family, name)), (None, None))


def _recorded_sha256(records: Sequence[dg.EventLogRecord], folder: Path) -> str | None:
    """Of the newest build at this place; of the newest anywhere where none was here, for a cache that was moved."""
    found: dict[bool, str] = {}
    for record in records:
        metadata = metadata_of(record)
        if isinstance(metadata.get("meta_sha256"), str):
            here = str(metadata.get("dagster/uri", "")).startswith(folder.absolute().as_uri())
            found.setdefault(here, metadata["meta_sha256"])
    return found.get(True, found.get(False))


def metadata_of(record: dg.EventLogRecord) -> dict[str, Any]:
    """Of a materialization, as plain values; empty where the record is of something else."""
    event = record.asset_materialization
    return {} if event is None else {name: value.value for name, value in event.metadata.items()}
