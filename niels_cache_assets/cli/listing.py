"""`list`: every configured data set and the state of its cache on disk. Costs one small read per data set; upstreams are not asked."""

from __future__ import annotations

import argparse

from rich.text import Text

from niels_cache_assets.cli.console import new_table, output, split_counts
from niels_cache_assets.cli.context import Place, find_places, open_registry
from niels_cache_assets.registry import Registry
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.opening import current_tokenizer_sha256, tokenizer_problem

_STYLES = {"built": "green", "disabled": "dim", "not built": "dim"}


def run(arguments: argparse.Namespace) -> int:
    registry, root = open_registry(arguments)
    places = find_places(registry, root)
    table = new_table("data set", "family", "source", "state", "train", "val", right=frozenset({"train", "val"}), shrinking="source")
    for place in places.values():
        state = _state(place, registry)
        counts = split_counts(place.meta()) if state in ("built", "other tokenizer") else ("-", "-")
        style = _STYLES.get(state, "yellow")
        table.add_row(
            place.name, "" if place.kind == "tokenizer" else place.kind, _source(place, registry), Text(state, style=style), *counts
        )
    console = output()
    console.print(table)
    console.print(f"\n{_origin(registry)}; caches in {root}", soft_wrap=True)
    return 0


def _state(place: Place, registry: Registry) -> str:
    needed = registry.unconfigured().get(place.name)
    if not place.exists:
        if needed:
            return f"needs {needed.partition(' (')[0]}"
        configured = place.kind == "tokenizer" or registry.source(place.name).enabled
        return "not built" if configured else "disabled"
    try:
        meta = place.meta()
        if place.kind != "tokenizer" and tokenizer_problem(meta, current_tokenizer_sha256(place.directory)):
            return "other tokenizer"
    except NielsCacheError:
        return "damaged"
    return "built" if meta.get("built", True) else "disabled"


def _source(place: Place, registry: Registry) -> str:
    if place.kind == "tokenizer":
        return "trained" if registry.tokenizer.model is None else "imported"
    configured = registry.datasets(place.kind)
    return configured[place.name].source if place.name in configured else "not configured"


def _origin(registry: Registry) -> str:
    profile = f"profile {registry.profile}"
    return profile if registry.origin == profile else f"{registry.origin} on {profile}"
