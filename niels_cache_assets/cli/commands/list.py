"""The command `list`. It prints every configured data set, and the state of its cache on disk. The command does one small read for each
data set, and uses no network.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.cli.command import ALL_HELP, Command
from niels_cache_assets.cli.console import new_table, output, print_json
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.show.wording import UNKNOWN

if TYPE_CHECKING:
    from niels_cache_assets.artifacts.state import CacheState
    from niels_cache_assets.cli.context import Place
    from niels_cache_assets.config.registry import Registry
    from niels_cache_runtime.format.meta import Meta

_STYLES = {"in sync": "green", "built": "green", "disabled": "dim", "missing": "dim"}
_WITHOUT_COUNTS = ("missing", "disabled", "unreadable", "other data set", "not configured")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help=ALL_HELP)


COMMAND = Command(
    description="""\
List the data sets that niels_cache.toml names and the state of each, then other caches in the cache
directory. Without that file, list the built data sets.

The states are:

  in sync           built with the current settings
  missing           not built yet
  needs ...         this setting is missing
  other tokenizer   the tokenizer changed after the build
  other settings    the settings changed after the build
  damaged           a file is damaged
  unreadable        meta.json cannot be read
  other data set    the folder was renamed or copied
  unverifiable      another program made the cache
  disabled          enabled = false, and no cache exists (with --all)
  switched off      enabled = false, but an old cache exists (with --all)

`niels-cache status` gives the reason for a state.

The columns train and val show a percentage if the source ended before the token budget was met. The
column corpus shows, for a data set with `prepare`, the documents that are left after cleaning and
deduplication, and the documents that were read.""",
    examples="""\
  niels-cache list
  niels-cache list --all  also switched-off data sets""",
    add_options=_add_options,
    has_json=True,
)


def run(arguments: argparse.Namespace) -> int:
    from rich.text import Text

    from niels_cache_assets.artifacts.graph import graph
    from niels_cache_assets.cli.context import find_places, is_listed, left_out_words, open_registry, tell_advice
    from niels_cache_assets.show.contents import contents, counts_of, shares_met, shortfall
    from niels_cache_assets.show.corpora import corpus_names, corpus_summary

    registry, root = open_registry(arguments)
    tell_advice(registry)
    places = find_places(registry, root)
    judged = {name: _judge(place, registry, root) for name, place in places.items()}
    if not arguments.all:
        judged = {name: state for name, state in judged.items() if is_listed(state, registry)}
    left_out = len(places) - len(judged)
    places = {name: places[name] for name in judged}
    corpora = corpus_names(registry, root)
    if arguments.json:
        rows = [_as_json(place, judged[place.name], registry, root, corpora) for place in places.values()]
        blends = [_blend_as_json(name, registry, root) for name in registry.blend_keys()]
        print_json({"root": str(root), "data_sets": rows, "blends": blends})
        return DONE
    right = ("corpus", "train", "val") if corpora else ("train", "val")
    table = new_table("data set", "family", "source", "state", *right, right=frozenset(right), shrinking=["source"])
    noted: list[str] = []
    for place in places.values():
        state = judged[place.name].advice.partition(" (")[0] if judged[place.name].state == "not configured" else judged[place.name].state
        style = _STYLES.get(state, "yellow")
        corpus = [corpus_summary(registry, root, place.name) if place.name in corpora else UNKNOWN] if corpora else []
        family = "" if place.kind == "tokenizer" else place.kind
        meta = _meta(place, judged[place.name])
        cells = [*corpus, *contents(counts_of(meta), shares_met(meta))]
        table.add_row(place.name, family, _source(place, registry), Text(state, style=style), *cells)
        short = shortfall(meta)
        if short is not None:
            noted.append(f"{place.name}: {short}")
        if place.name in registry.in_parts() and state == "missing":
            noted.append(f"{place.name}: {graph(registry, root).sealed(place.name).progress_of_parts()}")
    for name in registry.blend_keys():
        index = graph(registry, root).state(f"index/{name}")
        stands = Text(index.state, style=_STYLES.get(index.state, "yellow"))
        table.add_row(index.name, index.kind, _mixed(name, registry), stands, *([UNKNOWN] * len(right)))
    console = output()
    console.print(table)
    if noted:
        console.print("\n" + "\n".join(noted), soft_wrap=True)
    more = f"; {left_out_words(left_out, registry)}" if left_out else ""
    where = f"caches in {root}{'' if root.exists() else ' (this folder does not exist yet)'}"
    console.print(f"\n{registry.settings_origin}; {where}{more}", soft_wrap=True)
    return DONE


def _as_json(place: Place, judged: CacheState, registry: Registry, root: Path, corpora: Sequence[str]) -> dict[str, Any]:
    from niels_cache_assets.show.contents import content_hash, counts_of, shortfall
    from niels_cache_assets.show.corpora import corpus_summary

    meta = _meta(place, judged)
    return {
        "name": place.name,
        "kind": place.kind,
        "source": _source(place, registry),
        "directory": str(place.directory),
        "state": judged.state,
        "advice": judged.advice,
        "counts": counts_of(meta),
        "shortfall": shortfall(meta),
        "sha256": content_hash(meta),
        "corpus": corpus_summary(registry, root, place.name) if place.name in corpora else None,
    }


def _blend_as_json(name: str, registry: Registry, root: Path) -> dict[str, Any]:
    from niels_cache_assets.artifacts.graph import graph

    judged = graph(registry, root).state(f"index/{name}")
    return {
        "name": name,
        "kind": judged.kind,
        "weights": dict(registry.blend[name].weights),
        "directory": str(judged.directory),
        "state": judged.state,
        "advice": judged.advice,
    }


def _mixed(name: str, registry: Registry) -> str:
    return ", ".join(f"{weight:g} {member}" for member, weight in registry.blend[name].weights.items())


def _meta(place: Place, judged: CacheState) -> Meta:
    """Return the content of meta.json if its counts can be shown, otherwise an empty dict."""
    return {} if judged.state in _WITHOUT_COUNTS else place.meta()


def _judge(place: Place, registry: Registry, root: Path) -> CacheState:
    from niels_cache_assets.artifacts.graph import graph
    from niels_cache_assets.artifacts.state import unlisted_state

    if place.kind == "tokenizer":
        return graph(registry, root).state("tokenizer")
    if place.name in registry.datasets(place.kind):
        return graph(registry, root).dataset_state(place.name)
    return unlisted_state(place.kind, place.name, root=root)


def _source(place: Place, registry: Registry) -> str:
    from niels_cache_assets.artifacts.state import NOT_NAMED

    if place.kind == "tokenizer":
        return "trained" if registry.tokenizer.model is None else "imported"
    configured = registry.datasets(place.kind)
    return configured[place.name].source if place.name in configured else NOT_NAMED
