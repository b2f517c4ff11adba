"""Which drop lists the configuration asks for: of which corpora, in which order, by which settings; and whether those on disk are these.

One answer for who makes them and for who reads them, so that a list is never read that would be made otherwise now. Costs one small read
for every data set with "dedup"; no document and no signature is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_cache_assets.corpus.identity import current_corpus, split_identity
from niels_cache_assets.corpus.layout import DIGESTS_NAME, SIGNATURES_NAME, duplicates_dir
from niels_cache_assets.dedup.settings import DedupSettings
from niels_cache_assets.fingerprint import fingerprint_of, settings_that_count
from niels_cache_assets.registry import Registry
from niels_cache_assets.streaming.directories import finished_meta
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta

CODE_VERSION = "1"  # bumped by hand when other documents go for the same signatures and settings

_ADVICE = "materialize corpus/duplicates first (niels-cache build-all does)"


@dataclass(frozen=True, kw_only=True)
class WantedDropLists:
    """What the configuration and the corpora on disk ask for.

    `corpora`: meta.json of each, in the order in which the first one wins. `missing`: data sets without a current corpus, and why.
    `identity`: what decides the lists, for their meta.json; `fingerprint`: sha256 over it.
    """

    corpora: dict[str, Meta]
    missing: dict[str, str]
    identity: dict[str, Any]
    fingerprint: str

    @property
    def made_of(self) -> dict[str, Any]:
        """What the fingerprint is of."""
        return {**self.identity, "code_version": CODE_VERSION}


def wanted_drop_lists(registry: Registry, *, root: Path) -> WantedDropLists:
    """Of all data sets with "dedup" whose corpus is there and current."""
    corpora: dict[str, Meta] = {}
    missing: dict[str, str] = {}
    for name in dedup_order(registry):
        try:
            corpora[name] = current_corpus(registry, name, root=root)
        except NielsCacheError as error:
            missing[name] = str(error)
    identity = {
        **dedup_identity(registry.dedup),
        "order": [*corpora],
        "missing": sorted(missing),
        "inputs": {name: meta["content_sha256"] for name, meta in corpora.items()},
        "signatures": {name: [meta["files"][file]["sha256"] for file in (DIGESTS_NAME, SIGNATURES_NAME)] for name, meta in corpora.items()},
        "splits": {name: split_identity(registry.pretrain[name], registry.build.seed) for name in corpora},
    }
    fingerprint = fingerprint_of({**identity, "code_version": CODE_VERSION})
    return WantedDropLists(corpora=corpora, missing=missing, identity=identity, fingerprint=fingerprint)


def current_drop_lists(registry: Registry, name: str, *, root: Path, corpus: Meta, splits: dict[str, Any] | None) -> Meta:
    """meta.json of the drop lists, if they are what would be made now, of this corpus of `name`, divided so.

    Raises NielsCacheError, which says what is otherwise and what to materialize.
    """
    folder = duplicates_dir(root)
    meta = finished_meta(folder)
    if meta is None:
        raise NielsCacheError(f"{folder}: duplicates have not been looked for yet; {_ADVICE}")
    if meta["inputs"].get(name) != corpus["content_sha256"]:
        raise NielsCacheError(f"{folder}: the duplicates were found before the corpus of {name!r} was made as it is; {_ADVICE}")
    wanted = wanted_drop_lists(registry, root=root)
    if meta["fingerprint"] != wanted.fingerprint:
        raise NielsCacheError(f"{folder}: the duplicates were found {_what_is_otherwise(meta, wanted.identity)}; {_ADVICE}")
    if meta["splits"][name] != splits:
        raise NielsCacheError(
            f"{folder}: the duplicates of {name!r} were found for splits by {meta['splits'][name]}, not {splits}; "
            f"set seed and val_frac in the configuration, not for one run, and {_ADVICE}"
        )
    return meta


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


def _what_is_otherwise(meta: Meta, wanted: dict[str, Any]) -> str:
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
