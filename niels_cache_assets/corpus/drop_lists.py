"""What decides the drop lists: of which corpora, in which order, by which settings; and in what two of them differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from niels_cache_assets.config.fingerprint import settings_that_count
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.config.tables import DedupSettings
from niels_cache_assets.corpus.identity import split_identity
from niels_cache_assets.corpus.layout import DIGESTS_NAME, SIGNATURES_NAME
from niels_cache_runtime.format.meta import Meta

CODE_VERSION = "1"  # bumped by hand when other documents go for the same signatures and settings


def drop_lists_identity(registry: Registry, corpora: Mapping[str, Meta], missing: Collection[str]) -> dict[str, Any]:
    """What decides the lists of these corpora, for their meta.json. `missing`: data sets that have none."""
    return {
        **dedup_identity(registry.dedup),
        "order": [*corpora],
        "missing": sorted(missing),
        "inputs": {name: meta["content_sha256"] for name, meta in corpora.items()},
        "signatures": {name: [meta["files"][file]["sha256"] for file in (DIGESTS_NAME, SIGNATURES_NAME)] for name, meta in corpora.items()},
        "splits": {name: split_identity(registry.pretrain[name], registry.build.seed) for name in corpora},
    }


def dedup_order(registry: Registry) -> list[str]:
    """The data sets with "dedup" in the order in which the first one wins: [dedup] priority, then table order."""
    names = registry.prepared("dedup")
    first = [name for name in registry.dedup.priority if name in names]
    return [*first, *(name for name in names if name not in first)]


def dedup_identity(dedup: DedupSettings) -> dict[str, Any]:
    """`settings` of [dedup], and the `bands` and `rows` that follow from them or are given. Whose documents win is `dedup_order`'s."""
    from niels_cache_assets.dedup.bands import choose_bands

    bands, rows = (dedup.bands, dedup.rows) if dedup.bands and dedup.rows else choose_bands(dedup.threshold, dedup.num_perm)
    return {"settings": settings_that_count(dedup, "dedup", without={"bands", "rows", "priority"}), "bands": bands, "rows": rows}


def what_is_otherwise(meta: Meta, wanted: dict[str, Any]) -> str:
    """The first difference between what made the lists and what is asked for, as the end of "the duplicates were found ..."."""
    if any(meta[key] != wanted[key] for key in ("settings", "bands", "rows")):
        return "with other settings of [dedup]"
    if meta["order"] != wanted["order"]:
        return f"among {', '.join(meta['order'])} in this order, not {', '.join(wanted['order'])}"
    for name in wanted["order"]:
        if any(meta[key][name] != wanted[key][name] for key in ("inputs", "signatures")):
            return f"before the corpus of {name!r} was made as it is"
        if meta["splits"][name] != wanted["splits"][name]:
            return f"for splits by {meta['splits'][name]} of {name!r}, not {wanted['splits'][name]}"
    if meta["missing"] != wanted["missing"]:
        return f"without {', '.join(meta['missing']) or 'any other data set'}, now without {', '.join(wanted['missing']) or 'none'}"
    return "by another version of this program"
