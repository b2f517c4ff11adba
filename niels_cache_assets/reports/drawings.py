"""The pictures of each item of a report, as data. The pass of plots/measures.py over a cache takes at most a second or two."""

from collections.abc import Callable, Sequence
from pathlib import Path

from niels_cache_assets.artifacts.corpus_report import corpus_report
from niels_cache_assets.facts.published import address_in_store
from niels_cache_assets.plots.drawing import Picture
from niels_cache_assets.plots.measures import measure_cache
from niels_cache_assets.plots.pictures import cache_pictures, corpus_pictures, ratios_picture
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.reports.cache import CacheItem, CacheReport
from niels_cache_assets.tokenizer.measures import characters_per_token_by_source
from niels_cache_runtime.errors import NielsCacheError

Drawings = dict[Path, Sequence[Picture] | str]


def draw_report(registry: Registry, report: CacheReport, *, progress: Callable[[str], None] = lambda name: None) -> Drawings:
    """Return the pictures of each folder, or the reason why it has none.

    Args:
        registry: The configuration.
        report: The report.
        progress: Called with the name of each item before it is read; by default does nothing.
    """
    found: Drawings = {}
    for item in report.items:
        if item.is_built and item.state.condition != "broken":
            progress(item.name)
            try:
                found[item.state.directory] = _pictures(registry, item, report.root)
            except (NielsCacheError, OSError, LookupError, TypeError, ValueError) as error:  # a malformed meta.json raises the last three
                reason = f"meta.json has no {error}" if isinstance(error, KeyError) else error
                found[item.state.directory] = f"its plots cannot be drawn: {reason}"
    return found


def _pictures(registry: Registry, item: CacheItem, root: Path) -> list[Picture]:
    kind, directory, meta = item.state.kind, item.state.directory, item.meta
    if kind in ("pretrain", "sft"):
        measures = measure_cache(directory, kind, meta, address=address_in_store(registry, kind, item.name))
        return cache_pictures(measures, kind, dropped=meta.get("dropped", {}))
    if kind == "tokenizer":
        return [ratios_picture(characters_per_token_by_source(root, meta))]
    if kind == "corpus" and directory.parent.name == "corpus" and directory.name in registry.prepared():
        return corpus_pictures(corpus_report(registry, directory.name, root=root))
    return []
