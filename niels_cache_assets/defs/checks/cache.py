"""Checks of a data set's cache after every materialization. They run the runtime's `verify`, which reads the whole cache again.

Dagster 1.13 can run partitioned checks alone through its API, but not from its UI. To verify from the UI, use the button of
`caches_in_sync` (checks/sync.py). There is one partitioned op for each family, so one read of the files serves all checks. The checks
belong to the asset meta_json, because consumers depend on this asset. The checks block, so that a cache that fails a check stops its
consumers. A sound pretrain cache has two more checks: whether the splits are disjoint, and whether they meet their token budgets.

`splits_disjoint` shows the documents of val that are also in train, exactly or nearly, which the build has found and recorded. Such
documents are an error if the configuration should have removed them. Otherwise, they are a warning, because upstream's own splits may
contain them. It also warns of documents of train that have the text of a document in the val of another data set, by the hashes in lineage.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import dagster as dg

from niels_cache_assets.defs.keys import names_of, partitions
from niels_cache_assets.defs.metadata.entries import table, without_empty
from niels_cache_assets.defs.progress import readable_failures
from niels_cache_assets.defs.resources import root_of
from niels_cache_assets.facts.contents import budget_shortfall
from niels_cache_assets.facts.published import address_in_store
from niels_cache_assets.inspection.splits import BUDGETS_MET, SPLITS_DISJOINT, check_splits
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.publish.check import check
from niels_cache_runtime.cache.opening import current_tokenizer_sha256, tokenizer_problem
from niels_cache_runtime.format.layout import META_NAME, SPLITS, Family, dataset_dir
from niels_cache_runtime.format.meta import Meta, is_foreign, load_meta
from niels_cache_runtime.verify import Finding, FindingKind, verify_dataset

_pretrain_result = partial(dg.AssetCheckResult, severity=dg.AssetCheckSeverity.WARN)  # a warning, unless the severity is given
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
    names, each = names_of(registry), partitions(registry, family)
    specs = [
        dg.AssetCheckSpec(name, asset=names.meta[family], blocking=name in _DESCRIPTIONS, description=text, partitions_def=each)
        for name, text in {**_DESCRIPTIONS, **(_OF_PRETRAIN if family == "pretrain" else {})}.items()
    ]

    @dg.multi_asset_check(
        name=names.name(f"verify_{family}_dataset"),
        specs=specs,
        can_subset=True,  # each check can run alone (API)
        required_resource_keys=names.resources,
    )
    def verify(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        root = root_of(context, names)
        selected = {key.name for key in context.selected_asset_check_keys}
        with readable_failures():
            folder = dataset_dir(root, family, context.partition_key)
            address = address_in_store(registry, family, context.partition_key)
            context.log.info(f"{context.partition_key}: comparing the files of {address or folder} with meta.json")
            findings, meta = find_problems(folder, address)
            skipped = None if findings else _skip_reason(meta)
        for kind, name in CHECK_NAMES.items():
            if name not in selected:
                continue
            yield _result(name, [finding for finding in findings if finding.kind == kind], skipped=skipped)
        if SPLITS_DISJOINT in selected:
            with readable_failures():
                context.log.info(f"{context.partition_key}: comparing the texts of train with the val of other data sets")
                yield _disjoint_result(registry, context.partition_key, root, meta, is_sound=not findings, skipped=skipped)
        if BUDGETS_MET in selected:
            with readable_failures():
                short = _UNSOUND if findings else budget_shortfall(meta)
                # only a warning, because the source may have no more text
                yield _pretrain_result(check_name=BUDGETS_MET, passed=short is None, description=short)

    return verify


def find_problems(folder: Path, address: str | None) -> tuple[list[Finding], Meta]:
    """Return the problems of a cache, and its meta.json if there are none.

    All bytes of a cache in a folder are read. Of a cache in a store, the recorded sizes and hashes of its objects are compared.

    Raises:
        NielsCacheError: If nothing is published at the address.
    """
    if address is None:
        findings = verify_dataset(folder, name=folder.name)
        return findings, {} if findings else load_meta(folder / META_NAME)
    checked = check(address)
    meta = checked.published.meta
    found = [Finding(kind="files", folder=address, path=each.object, problem=each.problem) for each in checked.findings]
    if (problem := tokenizer_problem(meta, current_tokenizer_sha256(folder))) is not None:
        found.append(Finding(kind="tokenizer", folder=address, path=META_NAME, problem=problem))
    return found, meta


def _disjoint_result(registry: Registry, name: str, root: Path, meta: Meta, *, is_sound: bool, skipped: str | None) -> dg.AssetCheckResult:
    """Return what the build has recorded. If `skipped` is given, return `skipped` as the reason instead.

    Raises:
        NielsCacheError: If the build has recorded no comparison, and the cache cannot be read with the tokenizer of its root.
    """
    if skipped is not None:
        return _pretrain_result(check_name=SPLITS_DISJOINT, passed=True, description=f"{skipped}: there is nothing to compare")
    if not is_sound:
        return _pretrain_result(check_name=SPLITS_DISJOINT, passed=False, description=_UNSOUND)
    found = check_splits(registry, name, root, meta)
    record, shared = found.overlap.record, found.shared
    estimate = found.overlap.near_estimate
    elsewhere = [
        {"data_set": each.val, "documents": each.documents, "first": _describe_origin(**each.first._asdict())} for each in shared.found
    ]
    pairs = [{**pair, **{split: _describe_origin(**pair[split]) for split in SPLITS}} for pair in record["pairs"]]
    return _pretrain_result(
        check_name=SPLITS_DISJOINT,
        passed=found.overlap.is_disjoint and not shared.found,
        severity=dg.AssetCheckSeverity.ERROR if found.overlap.was_prevented else dg.AssetCheckSeverity.WARN,
        description=found.description or (estimate and f"near copies in train: {estimate}"),
        metadata=without_empty(
            {
                **{key: record[key] for key in ("exact", "near", "compared", "threshold")},
                "near_estimate": estimate,
                "train_documents": found.overlap.documents,
                "pairs": table(pairs, kind="string", similarity="float", train="string", val="string"),
                "in_val_of_others": table(elsewhere),
            }
        ),
    )


def _describe_origin(*, source_id: str, file: str, row: int, **_: object) -> str:
    return f"{file}:{row} ({source_id})"


def _skip_reason(meta: Meta) -> str | None:
    """Return why a folder with this meta.json needs no check, or None if a check is needed."""
    if is_foreign(meta):
        return "made by another program"
    return None if meta["built"] else "switched off"


def _result(name: str, findings: Sequence[Finding], *, skipped: str | None) -> dg.AssetCheckResult:
    rows = [{"file": finding.path, "problem": finding.problem} for finding in findings]
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    note = None if skipped is None else f"{skipped}: there is nothing to verify"
    return dg.AssetCheckResult(
        check_name=name,
        passed=not findings,
        description=f"{findings[0].path}: {findings[0].problem}{more}" if findings else note,
        metadata=without_empty({"findings": len(findings), "problems": table(rows)}),
    )
