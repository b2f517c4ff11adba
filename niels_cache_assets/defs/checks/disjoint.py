"""`splits_disjoint`: no document of train is in val, told from the finished cache's own tokens. Runs with the checks of checks/cache.py.

An error where the configuration keeps such documents out of train; a warning where it leaves them in, as upstream's own splits may have
them. It never blocks: the cache is what was asked for. Cost: train and val are decoded once more.
"""

from pathlib import Path
from typing import Any

import dagster as dg

from niels_cache_assets.config.registry import Registry
from niels_cache_assets.defs.keys import META_KEYS
from niels_cache_assets.defs.metadata.tables import table, without_empty
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_assets.streaming.disjoint import SplitOverlap, splits_disjoint
from niels_cache_assets.tokenizer.kinds import load_tokenizer
from niels_cache_runtime.format.layout import dataset_dir

SPLITS_DISJOINT = "splits_disjoint"
MAX_PAIRS = 20


def disjoint_spec(partitions_def: dg.PartitionsDefinition[str]) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(
        SPLITS_DISJOINT,
        asset=META_KEYS["pretrain"],
        description="No document of train equals one of val (canonical text), or is near to one (Jaccard of word 5-grams). A warning where "
        "nothing was to prevent that; `decontaminate` or `prepare` of the data set does.",
        partitions_def=partitions_def,
    )


def disjoint_result(registry: Registry, name: str, root: Path, *, is_sound: bool, skipped: str | None) -> dg.AssetCheckResult:
    """Compare the splits of a cache, unless `skipped` says why not.

    Raises NielsCacheError if it cannot be read with the tokenizer of its root.
    """
    if skipped is not None:
        return _result(passed=True, severity=dg.AssetCheckSeverity.WARN, description=f"{skipped}: there is nothing to compare")
    if not is_sound:
        return _result(passed=False, severity=dg.AssetCheckSeverity.WARN, description="not compared, because the cache fails another check")
    source = registry.pretrain[name]
    threshold = registry.dedup.threshold if "dedup" in source.prepare else source.decontaminate_threshold
    overlap = splits_disjoint(
        dataset_dir(root, "pretrain", name),
        load_tokenizer(registry, root),
        threshold=threshold,
        max_pairs=MAX_PAIRS,
        threads=registry.build.threads,
    )
    pairs = [
        {
            "kind": pair.kind,
            "similarity": round(pair.similarity, 4),
            "train": f"{pair.train.file}:{pair.train.row} ({pair.train.source_id})",
            "val": f"{pair.val.file}:{pair.val.row} ({pair.val.source_id})",
        }
        for pair in overlap.pairs
    ]
    return _result(
        passed=overlap.disjoint,
        severity=dg.AssetCheckSeverity.ERROR if _was_to_be_prevented(source, overlap) else dg.AssetCheckSeverity.WARN,
        description=None if overlap.disjoint else _describe(source, overlap),
        metadata=without_empty(
            {
                "exact": overlap.exact,
                "near": overlap.near,
                "train_documents": overlap.train_documents,
                "val_documents": overlap.val_documents,
                "threshold": threshold,
                "pairs": table(pairs, kind="string", similarity="float", train="string", val="string"),
            }
        ),
    )


def _result(**rest: Any) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(check_name=SPLITS_DISJOINT, asset_key=META_KEYS["pretrain"], **rest)


def _was_to_be_prevented(source: PretrainSource, overlap: SplitOverlap) -> bool:
    """Near ones only by decontaminate = "near", which compares exactly; the bands of dedup miss some at any threshold."""
    kept_out_exact = source.decontaminate != "off" or "dedup" in source.prepare
    return bool((overlap.exact and kept_out_exact) or (overlap.near and source.decontaminate == "near"))


def _describe(source: PretrainSource, overlap: SplitOverlap) -> str:
    found = f"{overlap.exact:,} documents of train equal one of val, {overlap.near:,} are near to one"
    prevented = source.decontaminate != "off" or "dedup" in source.prepare
    return found if prevented else f'{found}; decontaminate = "near" keeps them out'
