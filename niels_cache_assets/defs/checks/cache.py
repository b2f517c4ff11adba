"""Checks of a data set's cache, by reading all of it again: the runtime's `verify`, with every materialization.

Dagster 1.13 can run partitioned checks alone through its API, but its UI says that this is not yet supported; the button that verifies is
that of `caches_in_sync` (checks/sync.py). One partitioned op per family, so that one read of the files answers all of its checks. They
stand on meta_json, which is what consumers depend on, and they block: a cache that fails them stops what would use it. A sound pretrain
cache is then asked whether its splits are disjoint, and whether they hold their token budgets.
"""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import dagster as dg

from niels_cache_assets.config.registry import Registry
from niels_cache_assets.defs.assets.failure import readable_failures
from niels_cache_assets.defs.checks.disjoint import SPLITS_DISJOINT, disjoint_result, disjoint_spec
from niels_cache_assets.defs.keys import META_KEYS, partitions
from niels_cache_assets.defs.metadata.tables import table, without_empty
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.show.contents import shortfall
from niels_cache_runtime.format.foreign_meta import is_foreign
from niels_cache_runtime.format.layout import META_NAME, Family, dataset_dir
from niels_cache_runtime.format.meta import Meta, load_meta
from niels_cache_runtime.verify import Finding, Kind, verify_dataset

BUDGETS_MET = "budgets_met"
CHECK_NAMES: dict[Kind, str] = {"files": "files_match_meta", "content": "invariants_hold", "tokenizer": "tokenizer_is_current"}
_DESCRIPTIONS: dict[Kind, str] = {
    "files": "Every file is there with the size and sha256 of meta.json, and no other.",
    "content": "The folder holds this data set; every id is in the vocabulary, EOT tokens match documents, offsets are in order and in "
    "range, totals agree.",
    "tokenizer": "The cache was made with the tokenizer that its root holds now; another one would be a silent mix.",
}


def cache_checks(registry: Registry, family: Family) -> dg.AssetChecksDefinition:
    asset, partitions_def = META_KEYS[family], partitions(registry, family)
    with warnings.catch_warnings():
        # Partitioned checks are a preview in Dagster 1.13, chosen knowingly: nothing the user could do about it.
        warnings.filterwarnings("ignore", message=".*partitions_def", category=dg.PreviewWarning)
        specs = [
            dg.AssetCheckSpec(name, asset=asset, blocking=True, description=_DESCRIPTIONS[kind], partitions_def=partitions_def)
            for kind, name in CHECK_NAMES.items()
        ]
        if family == "pretrain":
            specs += [disjoint_spec(partitions_def), _budgets_spec(partitions_def)]

        @dg.multi_asset_check(name=f"verify_{family}_dataset", specs=specs, can_subset=True)  # each can run alone (API)
        def verify(context: dg.AssetCheckExecutionContext, cache_root: dg.ResourceParam[CacheRoot]) -> Iterator[dg.AssetCheckResult]:
            with readable_failures():
                folder = dataset_dir(cache_root.path, family, context.partition_key)
                context.log.info(f"{context.partition_key}: reading every file of {folder}, to hold it against meta.json")
                findings = verify_dataset(folder, name=context.partition_key)
                skipped = None if findings else _why_skipped(load_meta(str(folder / META_NAME)))
            for kind, name in CHECK_NAMES.items():
                if dg.AssetCheckKey(asset, name) not in context.selected_asset_check_keys:
                    continue
                yield _result(asset, name, [finding for finding in findings if finding.kind == kind], skipped=skipped)
            if dg.AssetCheckKey(asset, SPLITS_DISJOINT) in context.selected_asset_check_keys:
                with readable_failures():
                    context.log.info(f"{context.partition_key}: comparing the documents of train with those of val")
                    yield disjoint_result(registry, context.partition_key, cache_root.path, is_sound=not findings, skipped=skipped)
            if dg.AssetCheckKey(asset, BUDGETS_MET) in context.selected_asset_check_keys:
                with readable_failures():
                    yield _budgets_result(folder, is_sound=not findings)

        return verify


def _budgets_spec(partitions_def: dg.PartitionsDefinition[str]) -> dg.AssetCheckSpec:
    description = "Train and val hold as many tokens as the data set asks for (train_tokens, val_tokens): the source did not end before."
    return dg.AssetCheckSpec(BUDGETS_MET, asset=META_KEYS["pretrain"], description=description, partitions_def=partitions_def)


def _budgets_result(folder: Path, *, is_sound: bool) -> dg.AssetCheckResult:
    """A warning, and never more: what is there is whole, and may be all that there is."""
    short = shortfall(load_meta(str(folder / META_NAME))) if is_sound else "not compared, because the cache fails another check"
    return dg.AssetCheckResult(
        check_name=BUDGETS_MET,
        asset_key=META_KEYS["pretrain"],
        passed=short is None,
        severity=dg.AssetCheckSeverity.WARN,
        description=short,
    )


def _why_skipped(meta: Meta) -> str | None:
    """Why there is nothing to check in a folder with this meta.json, or None if there is."""
    if is_foreign(meta):
        return "made by another program"
    return None if meta["built"] else "switched off"


def _result(asset: dg.AssetKey, name: str, findings: Sequence[Finding], *, skipped: str | None) -> dg.AssetCheckResult:
    rows = [{"file": finding.path, "problem": finding.problem} for finding in findings]
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    note = None if skipped is None else f"{skipped}: there is nothing to verify"
    return dg.AssetCheckResult(
        check_name=name,
        asset_key=asset,
        passed=not findings,
        description=f"{findings[0].path}: {findings[0].problem}{more}" if findings else note,
        metadata=without_empty({"findings": len(findings), "problems": table(rows, file="string", problem="string")}),
    )
