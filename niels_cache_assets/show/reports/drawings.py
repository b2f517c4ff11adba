"""The plots of a report. Each item has the same plots as in the UI, and each mixture has one plot.

The pass of show/plots/measures.py over a cache takes at most a second or two. Each plot takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from niels_cache_assets.config.registry import Registry
from niels_cache_assets.show.reports.cache import CacheReport, Item
from niels_cache_runtime.errors import NielsCacheError

# The alternative text of each plot, for readers who cannot see the plot.
_ALTERNATIVES = {
    "lengths": "Histogram of its documents or examples by length",
    "conversations": "Histograms of its examples by turns and by the share of their tokens that are targets",
    "token frequency": "How often the piece of each rank is used, on logarithmic axes, beside the line of Zipf's law",
    "dropped": "Bars: dropped documents or examples, by reason; the table has the figures",
    "pieces": "Histogram of its pieces by characters",
    "characters per token": "Bars: characters per token of each data set",
    "funnel": "Bars: documents and bytes after each stage",
    "reasons": "Bars: documents that cleaning and deduplication dropped, by reason",
    "duplicates": "Clusters of duplicates by size, and the probability of a common band by similarity",
}


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A plot with its title and its alternative text."""

    title: str
    alternative: str
    png: bytes


@dataclass(frozen=True, kw_only=True)
class Drawings:
    """The drawings of a report. items: by directory. mixtures: by name. problems: for each directory without plots, the reason."""

    items: dict[Path, list[Drawing]]
    mixtures: dict[str, Drawing]
    problems: dict[Path, str]


NONE = Drawings(items={}, mixtures={}, problems={})


def draw_report(registry: Registry, report: CacheReport, *, progress: Callable[[str], None] = lambda name: None) -> Drawings:
    """Return all plots of a report. `progress` gets the name of each item before it is drawn."""
    from niels_cache_assets.show.plots.mixtures import mixture_plot  # imports matplotlib, which takes a second or more

    items: dict[Path, list[Drawing]] = {}
    problems: dict[Path, str] = {}
    for item in report.items:
        if not item.is_built or item.state.condition == "broken":
            continue
        progress(item.name)
        try:
            items[item.state.directory] = [
                Drawing(title=title, alternative=f"{item.name}. {_ALTERNATIVES.get(title, title)}.", png=png)
                for title, png in _plots(registry, item, report.root).items()
            ]
        except (NielsCacheError, OSError, LookupError, TypeError, ValueError) as error:  # a malformed meta.json raises the last three
            problems[item.state.directory] = (
                f"its plots cannot be drawn: {f'meta.json has no {error}' if isinstance(error, KeyError) else error}"
            )
    mixtures = {
        mixture.name: Drawing(
            title="shares and epochs",
            alternative=f"{mixture.name}. Bars: shares available, configured and read of each data set, and how often each is read; "
            "the table has the figures.",
            png=mixture_plot(mixture),
        )
        for mixture in report.mixtures
        if mixture.sources
    }
    return Drawings(items=items, mixtures=mixtures, problems=problems)


def _plots(registry: Registry, item: Item, root: Path) -> dict[str, bytes]:
    kind, directory, meta = item.state.kind, item.state.directory, item.meta
    if kind in ("pretrain", "sft"):
        from niels_cache_assets.show.plots.caches import cache_plots
        from niels_cache_assets.show.plots.measures import measure_cache

        return cache_plots(measure_cache(directory, kind, meta), kind, dropped=meta.get("dropped", {}))
    if kind == "tokenizer":
        from niels_cache_assets.show.plots.tokenizers import tokenizer_plots
        from niels_cache_assets.tokenizer.kinds import open_built_model
        from niels_cache_assets.tokenizer.measures import by_source

        tokenizer = open_built_model(directory, meta)
        return tokenizer_plots(
            piece_bytes=tokenizer.piece_bytes(),
            characters_per_token=by_source(root, meta),
        )
    if kind == "corpus" and directory.parent.name == "corpus" and directory.name in registry.prepared():
        from niels_cache_assets.corpus.report import corpus_report
        from niels_cache_assets.show.plots.corpora import draw

        return {Path(name).stem: png for name, png in draw(corpus_report(registry, directory.name, root=root)).items()}
    return {}
