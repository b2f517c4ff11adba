"""`list`: every configured data set and the state of its cache on disk. Costs one small read per data set; upstreams are not asked."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.text import Text

from niels_cache_assets.cache_state import CacheState, cache_state, tokenizer_state, unlisted_state
from niels_cache_assets.cli.console import new_table, output, split_counts
from niels_cache_assets.cli.context import Place, find_places, open_registry, settings_origin
from niels_cache_assets.cli.corpora import corpus_names, corpus_summary
from niels_cache_assets.registry import Registry

_STYLES = {"in sync": "green", "built": "green", "disabled": "dim", "missing": "dim"}
_WITHOUT_COUNTS = ("missing", "disabled", "unreadable", "not configured")


def run(arguments: argparse.Namespace) -> int:
    registry, root = open_registry(arguments)
    places = find_places(registry, root)
    corpora = corpus_names(registry, root)
    right = ("corpus", "train", "val") if corpora else ("train", "val")
    table = new_table("data set", "family", "source", "state", *right, right=frozenset(right), shrinking="source")
    for place in places.values():
        judged = _judge(place, registry, root)
        counts = ("-", "-") if judged.state in _WITHOUT_COUNTS or not place.meta().get("built", True) else split_counts(place.meta())
        state = f"needs {judged.advice.partition(' (')[0]}" if judged.state == "not configured" else judged.state
        style = _STYLES.get(state, "yellow")
        corpus = [corpus_summary(registry, root, place.name) if place.name in corpora else "-"] if corpora else []
        family = "" if place.kind == "tokenizer" else place.kind
        table.add_row(place.name, family, _source(place, registry), Text(state, style=style), *corpus, *counts)
    console = output()
    console.print(table)
    console.print(f"\n{settings_origin(registry)}; caches in {root}", soft_wrap=True)
    return 0


def _judge(place: Place, registry: Registry, root: Path) -> CacheState:
    if place.kind == "tokenizer":
        return tokenizer_state(root)
    if place.name in registry.datasets(place.kind):
        return cache_state(registry, place.name, root=root)
    return unlisted_state(place.kind, place.name, root=root)


def _source(place: Place, registry: Registry) -> str:
    if place.kind == "tokenizer":
        return "trained" if registry.tokenizer.model is None else "imported"
    configured = registry.datasets(place.kind)
    return configured[place.name].source if place.name in configured else "not configured"
