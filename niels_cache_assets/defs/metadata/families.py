"""The table of all data sets of a family, because the page of an asset shows only the metadata of the partition that was recorded last.

It is as old as its materialization. It costs a read of meta.json for each row, or three requests if the data sets are in a store.
"""

import time
from contextlib import suppress
from pathlib import Path

import dagster as dg

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.base.wording import UNKNOWN, format_share
from niels_cache_assets.defs.metadata.entries import MAX_TABLE_ROWS, table
from niels_cache_assets.facts.published import finished_cache
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, SPLITS, Family, Split, dataset_dir
from niels_cache_runtime.format.meta import Meta, canonical_json, read_meta, sha256_text

ITEMS: dict[Family, str] = {"pretrain": "documents", "sft": "examples"}
_MAX_STORED = 20  # data sets in a store
_DIGITS = 8  # of a sha256, so that the table fits on the page


def family_table(registry: Registry, outcome: Outcome) -> dg.TableMetadataValue:
    """Return the table. The data set of the outcome is in its first row."""
    family, most = outcome.family, MAX_TABLE_ROWS if registry.build.store is None else _MAX_STORED
    rows = [_row(outcome.directory, family, outcome.meta)]
    others = [name for name in registry.partition_keys(family) if name != outcome.name]
    for place, name in enumerate(others, 1):
        folder = dataset_dir(outcome.directory.parent.parent, family, name)
        meta = _read(registry, family, folder) if place < most else None
        rows.append(_row(folder, family, meta) if meta else {"data_set": name, "built_utc": "no" if place < most else "not read here"})
    return table(rows)


def _read(registry: Registry, family: Family, folder: Path) -> Meta | None:
    with suppress(NielsCacheError):
        if registry.build.store is None:
            return read_meta(folder / META_NAME)
        return finished_cache(registry, folder.parent.parent, family, folder.name)
    return None


def _row(folder: Path, family: Family, meta: Meta) -> dict[str, str]:
    items, dropped = sum(items_of(meta, family).values()), sum(meta.get("dropped", {}).values())
    built = UNKNOWN  # in a store
    with suppress(OSError):
        built = time.strftime("%Y-%m-%d %H:%M", time.gmtime((folder / META_NAME).stat().st_mtime))
    return {
        "data_set": folder.name,
        "tokens": f"{tokens_of(meta):,}",
        ITEMS[family]: f"{items:,}",
        "dropped": format_share(dropped, dropped + items),
        "sha256": sha256_text(canonical_json(meta))[:_DIGITS],
        "built_utc": built,
    }


def tokens_of(meta: Meta) -> int:
    """Return the number of tokens of both splits."""
    return sum(meta.get(f"{split}_tokens", 0) for split in SPLITS)


def items_of(meta: Meta, family: Family) -> dict[Split, int]:
    """Return the number of documents or examples of each split."""
    if family == "pretrain":
        return {split: meta.get("documents", {}).get(split, 0) for split in SPLITS}
    return {split: meta.get(f"{split}_examples", 0) for split in SPLITS}
