"""What the build of a pretrain cache has found about its splits, in words: copies of val in train, and token budgets that were not met.

The checks of the cache and `part --seal` say the same. Cost: meta.json, and 8 bytes for each document, to compare train with the val of
other data sets. Nothing is decoded, unless the build has recorded no comparison with the current settings.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.facts.contents import budget_shortfall
from niels_cache_assets.facts.disjoint import OverlapSettings, SplitOverlap, compare_splits
from niels_cache_assets.inspection.shared_texts import SharedTexts, advice_against, shared_texts
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.tokenizer.kinds import load_tokenizer
from niels_cache_runtime.format.layout import dataset_dir
from niels_cache_runtime.format.meta import Meta

SPLITS_DISJOINT, BUDGETS_MET = "splits_disjoint", "budgets_met"


@dataclass(frozen=True, kw_only=True)
class SplitsCheck:
    """The copies of documents of val in train.

    Attributes:
        overlap: Those of val of the same data set.
        shared: Those of val of other data sets.
        description: What was found or not compared in one line. None if there is nothing to say.
    """

    overlap: SplitOverlap
    shared: SharedTexts
    description: str | None


def check_splits(registry: Registry, name: str, root: Path, meta: Meta) -> SplitsCheck:
    """Return the copies of documents of val in train of a finished cache. One in a store is not compared again, nor with other data sets.

    Args:
        registry: The configuration.
        name: The name of the data set.
        root: The cache root.
        meta: The meta.json of the cache.

    Raises:
        NielsCacheError: If the build has recorded no comparison, and the cache cannot be read with the tokenizer of its root.
    """
    folder, is_stored = dataset_dir(root, "pretrain", name), registry.build.store is not None
    settings = OverlapSettings.of(registry, registry.pretrain[name], registry.build)
    overlap = SplitOverlap.recorded(meta, None if is_stored else settings)
    if overlap is None:
        overlap = compare_splits(folder, meta, load_tokenizer(registry.tokenizer, root), settings, threads=registry.build.threads)
    if is_stored:
        shared = SharedTexts()
        is_alone = len(registry.partition_keys("pretrain")) < 2
        others: Iterable[str] = () if is_alone else ("not compared with other data sets, which are in a store",)
    else:
        shared = shared_texts({name: folder, **_other_caches(registry, name, root)}, trains=[name])
        others = [*_describe_shared(registry, name, shared)]
    return SplitsCheck(overlap=overlap, shared=shared, description="; ".join(filter(None, [overlap.describe(), *others])) or None)


def warnings_of_splits(registry: Registry, name: str, root: Path, meta: Meta) -> list[str]:
    """Return what the checks of a finished cache say about its splits, with the name of the check before each line.

    The arguments are those of `check_splits`.
    """
    said = {SPLITS_DISJOINT: check_splits(registry, name, root, meta).description, BUDGETS_MET: budget_shortfall(meta)}
    return [f"{check}: {line}" for check, line in said.items() if line]


def _other_caches(registry: Registry, name: str, root: Path) -> dict[str, Path]:
    found = {}
    for other in registry.pretrain:
        folder = dataset_dir(root, "pretrain", other)
        meta = finished_meta(folder) if other != name else None
        if meta is not None and meta.get("built") and meta.get("val_tokens"):
            found[other] = folder
    return found


def _describe_shared(registry: Registry, name: str, shared: SharedTexts) -> Iterator[str]:
    """Yield the documents of train whose text is in the val of another data set, and the caches that cannot be checked.

    If a key keeps these documents out, it is named.
    """
    if shared.found:
        names = [each.val for each in shared.found]
        found = f"{sum(each.documents for each in shared.found):,} documents equal one in the val of {', '.join(names)}"
        advice = advice_against(registry, name, names)
        yield found if advice is None else f"{found}; {advice}"
    if shared.not_checked:
        yield f"not compared with other data sets: the lineage of {', '.join(shared.not_checked)} has no hashes of texts"
