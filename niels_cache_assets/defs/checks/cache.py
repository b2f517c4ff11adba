"""Checks of a data set's cache after every materialization. They run the runtime's `verify`, which reads the whole cache again.

Dagster 1.13 can run partitioned checks alone through its API, but not from its UI. To verify from the UI, use the button of
`caches_in_sync` (checks/sync.py). There is one partitioned op for each family, so one read of the files serves all checks. The checks
belong to the asset meta_json, because consumers depend on this asset. The checks block, so that a cache that fails a check stops its
consumers. A sound pretrain cache has two more checks: whether the splits are disjoint, and whether they meet their token budgets.

`splits_disjoint` finds documents of val that are also in train, exactly or nearly. Such documents are an error if the configuration should
have removed them. Otherwise, they are a warning, because upstream's own splits may contain them. It also warns of documents of train that
have the text of a document in the val of another data set, by the hashes in lineage. For this check, train and val are decoded once more.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from niels_cache_assets.defs.keys import META_KEYS, partitions
from niels_cache_assets.defs.metadata.entries import table, without_empty
from niels_cache_assets.defs.progress import readable_failures
from niels_cache_assets.defs.resources import RootParam
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.facts.contents import budget_shortfall
from niels_cache_assets.inspection.disjoint import SplitDocument, SplitOverlap, splits_disjoint
from niels_cache_assets.inspection.shared_texts import DocumentOrigin, SharedTexts, advice_against, shared_texts
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_assets.tokenizer.kinds import load_tokenizer
from niels_cache_runtime.format.layout import META_NAME, Family, dataset_dir
from niels_cache_runtime.format.meta import Meta, is_foreign, load_meta
from niels_cache_runtime.verify import Finding, FindingKind, verify_dataset

SPLITS_DISJOINT, BUDGETS_MET = "splits_disjoint", "budgets_met"
MAX_PAIRS = 20
_UNSOUND = "not compared, because the cache fails another check"
CHECK_NAMES: dict[FindingKind, str] = {"files": "files_match_meta", "content": "invariants_hold", "tokenizer": "tokenizer_is_current"}
_DESCRIPTIONS = {
    CHECK_NAMES["files"]: "Every file is there with the size and sha256 of meta.json, and no other.",
    CHECK_NAMES["content"]: "The folder holds this data set; every id is in the vocabulary, EOT tokens match documents, offsets are in "
    "order and in range, totals agree.",
    CHECK_NAMES["tokenizer"]: "The cache was made with the tokenizer that its root holds now; with another one its tokens are wrong.",
}
_OF_PRETRAIN = {  # these checks never block, because the cache is what was configured
    SPLITS_DISJOINT: "No document of train equals one of val (canonical text), or is near to one (Jaccard of word 5-grams). A warning "
    "if the data set has no setting that prevents it; `decontaminate` or `prepare` does. No text of train is in the val of another "
    "data set (hashes of texts).",
    BUDGETS_MET: "Train and val have as many tokens as the data set's train_tokens and val_tokens: the source did not end too early.",
}


def cache_checks(registry: Registry, family: Family) -> dg.AssetChecksDefinition:
    """Return the checks of a family's caches."""
    asset, each = META_KEYS[family], partitions(registry, family)
    specs = [
        dg.AssetCheckSpec(name, asset=asset, blocking=name in _DESCRIPTIONS, description=text, partitions_def=each)
        for name, text in {**_DESCRIPTIONS, **(_OF_PRETRAIN if family == "pretrain" else {})}.items()
    ]

    @dg.multi_asset_check(name=f"verify_{family}_dataset", specs=specs, can_subset=True)  # each check can run alone (API)
    def verify(context: dg.AssetCheckExecutionContext, cache_root: RootParam) -> Iterator[dg.AssetCheckResult]:
        selected = {key.name for key in context.selected_asset_check_keys}
        with readable_failures():
            folder = dataset_dir(cache_root.path, family, context.partition_key)
            context.log.info(f"{context.partition_key}: reading every file of {folder} and comparing it with meta.json")
            findings = verify_dataset(folder, name=context.partition_key)
            skipped = None if findings else _skip_reason(load_meta(str(folder / META_NAME)))
        for kind, name in CHECK_NAMES.items():
            if name not in selected:
                continue
            yield _result(asset, name, [finding for finding in findings if finding.kind == kind], skipped=skipped)
        if SPLITS_DISJOINT in selected:
            with readable_failures():
                context.log.info(f"{context.partition_key}: comparing the documents of train with those of val")
                yield _disjoint_result(registry, context.partition_key, cache_root.path, is_sound=not findings, skipped=skipped)
        if BUDGETS_MET in selected:
            with readable_failures():
                short = _UNSOUND if findings else budget_shortfall(load_meta(str(folder / META_NAME)))
                # only a warning, because the source may have no more text
                yield _pretrain_result(BUDGETS_MET, passed=short is None, description=short)

    return verify


def _disjoint_result(registry: Registry, name: str, root: Path, *, is_sound: bool, skipped: str | None) -> dg.AssetCheckResult:
    """Compare the splits of a cache. If `skipped` is given, do not compare, and return `skipped` as the reason.

    Raises:
        NielsCacheError: If the cache cannot be read with the tokenizer of its root.
    """
    if skipped is not None:
        return _pretrain_result(SPLITS_DISJOINT, passed=True, description=f"{skipped}: there is nothing to compare")
    if not is_sound:
        return _pretrain_result(SPLITS_DISJOINT, passed=False, description=_UNSOUND)
    source = registry.pretrain[name]
    threshold = registry.dedup.threshold if "dedup" in source.prepare else source.decontaminate_threshold
    folder = dataset_dir(root, "pretrain", name)
    overlap = splits_disjoint(
        folder, load_tokenizer(registry.tokenizer, root), threshold=threshold, max_pairs=MAX_PAIRS, threads=registry.build.threads
    )
    shared = shared_texts({name: folder, **_other_caches(registry, name, root)}, trains=[name])
    elsewhere = [{"data_set": each.val, "documents": each.documents, "first": _describe_origin(each.first)} for each in shared.found]
    pairs = [
        {
            "kind": pair.kind,
            "similarity": round(pair.similarity, 4),
            "train": _describe_origin(pair.train),
            "val": _describe_origin(pair.val),
        }
        for pair in overlap.pairs
    ]
    return _pretrain_result(
        SPLITS_DISJOINT,
        passed=overlap.disjoint and not shared.found,
        severity=dg.AssetCheckSeverity.ERROR if _should_have_been_prevented(source, overlap) else dg.AssetCheckSeverity.WARN,
        description="; ".join([_describe_overlap(source, overlap)] * (not overlap.disjoint) + _describe_shared(registry, name, shared))
        or None,
        metadata=without_empty(
            {
                "exact": overlap.exact,
                "near": overlap.near,
                "train_documents": overlap.train_documents,
                "val_documents": overlap.val_documents,
                "threshold": threshold,
                "pairs": table(pairs, kind="string", similarity="float", train="string", val="string"),
                "in_val_of_others": table(elsewhere, data_set="string", documents="int", first="string"),
            }
        ),
    )


def _describe_origin(document: SplitDocument | DocumentOrigin) -> str:
    return f"{document.file}:{document.row} ({document.source_id})"


def _pretrain_result(
    name: str, *, passed: bool, severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN, **rest: Any
) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(check_name=name, asset_key=META_KEYS["pretrain"], passed=passed, severity=severity, **rest)


def _should_have_been_prevented(source: PretrainSource, overlap: SplitOverlap) -> bool:
    """Return whether the settings should have prevented the overlap of train and val.

    The settings prevent all near duplicates only with decontaminate = "near", because only this setting compares documents exactly. The LSH
    bands of dedup miss some near duplicates at any threshold.
    """
    kept_out_exact = source.decontaminate != "off" or "dedup" in source.prepare
    return bool((overlap.exact and kept_out_exact) or (overlap.near and source.decontaminate == "near"))


def _describe_overlap(source: PretrainSource, overlap: SplitOverlap) -> str:
    found = f"{overlap.exact:,} documents of train equal one of val, {overlap.near:,} are near to one"
    prevented = source.decontaminate != "off" or "dedup" in source.prepare
    return found if prevented else f'{found}; decontaminate = "near" keeps them out'


def _other_caches(registry: Registry, name: str, root: Path) -> dict[str, Path]:
    found = {}
    for other in registry.pretrain:
        folder = dataset_dir(root, "pretrain", other)
        meta = finished_meta(folder) if other != name else None
        if meta is not None and meta.get("built") and meta.get("val_tokens"):
            found[other] = folder
    return found


def _describe_shared(registry: Registry, name: str, shared: SharedTexts) -> list[str]:
    """Return the documents of train whose text is in the val of another data set, and the caches that cannot be checked.

    If a key keeps these documents out, it is named.
    """
    problems = []
    if shared.found:
        names = [each.val for each in shared.found]
        found = f"{sum(each.documents for each in shared.found):,} documents equal one in the val of {', '.join(names)}"
        advice = advice_against(registry, name, names)
        problems.append(found if advice is None else f"{found}; {advice}")
    if shared.not_checked:
        problems.append(f"not compared with other data sets: the lineage of {', '.join(shared.not_checked)} has no hashes of texts")
    return problems


def _skip_reason(meta: Meta) -> str | None:
    """Return why a folder with this meta.json needs no check, or None if a check is needed."""
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
