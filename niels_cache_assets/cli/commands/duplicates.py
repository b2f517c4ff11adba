"""`duplicates [NAME]`: pairs of documents, the one that goes beside the one because of which it goes; without NAME, counts by data set.

Costs two columns of the drop list, and the row groups of the texts that are shown. What is a duplicate was decided when corpus/duplicates
was built; here nothing is compared but the words on the screen.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from niels_cache_assets.cli.console import new_table, output, print_json
from niels_cache_assets.cli.context import open_registry
from niels_cache_assets.cli.corpora import find_corpus, find_drop_list, find_drop_lists, require_same_corpus
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.cli.overrides import WHERE
from niels_cache_assets.cli.pairs import print_pair
from niels_cache_assets.cli.parquet_rows import column, rows_at
from niels_cache_assets.cli.seeds import draw_seed, seeded_choice
from niels_cache_assets.corpus.layout import DUPLICATES, duplicates_dir, duplicates_file
from niels_cache_assets.corpus.reading import document_files
from niels_cache_assets.decoding import spell_controls
from niels_cache_assets.registry import Registry, refuse_choice
from niels_cache_assets.wording import counted, share_of
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta

KINDS = ("near", "exact")
MOST_CHARACTERS = 10_000  # of a text that is shown: finding the words that differ takes time quadratic in them

Pair = Mapping[str, Any]  # a row of corpus.layout.DUPLICATES


def run(arguments: argparse.Namespace) -> int:
    registry, root = open_registry(arguments)
    if arguments.count < 1:
        raise NielsCacheError(f"{WHERE}: -n must be at least 1")
    if not 1 <= arguments.characters <= MOST_CHARACTERS:
        raise NielsCacheError(f"{WHERE}: --characters must be from 1 to {MOST_CHARACTERS:,}")
    if arguments.kind not in (None, *KINDS):
        refuse_choice(f"{WHERE}: --kind", "no kind", arguments.kind, KINDS)
    seed = draw_seed(arguments.seed)
    console = output()
    if arguments.name is None:
        lists = find_drop_lists(registry, root)
        if arguments.json:
            print_json({key: lists[key] for key in ("datasets", "order", "settings", "bands", "rows")})
        else:
            _print_counts(console, lists)
        return DONE
    meta = find_drop_list(registry, root, arguments.name)
    counts = meta["datasets"][arguments.name]
    kind = arguments.kind or ("near" if counts["near"] else "exact")
    if arguments.json:
        pairs = _drawn(arguments, root, kind, seed) if counts[kind] else []
        texts = _texts(registry, root, arguments.name, pairs, meta)
        print_json({"name": arguments.name, "counts": counts, "pairs": [_as_json(arguments.name, pair, texts) for pair in pairs]})
        return DONE
    going = f"{counts['exact']:,} go as exact and {counts['near']:,} as near duplicates"
    console.print(f"{arguments.name}: {counted(counts['documents'], 'document')}, of which {going}", style="bold", soft_wrap=True)
    if not counts[kind]:
        return DONE
    pairs = _drawn(arguments, root, kind, seed)
    texts = _texts(registry, root, arguments.name, pairs, meta)
    for pair in pairs:
        titles = _titles(arguments.name, pair, texts)
        sides = (texts[arguments.name, pair["ordinal"]]["text"], texts[pair["because_dataset"], pair["because_ordinal"]]["text"])
        console.print(f"\n--- {pair['kind']} duplicate{_similarity(pair)}", style="bold")
        print_pair(console, titles, sides, characters=arguments.characters)
    if not arguments.closest_call:
        console.print(f"\n(--seed {seed} shows the same again)", style="dim")
    return DONE


def _drawn(arguments: argparse.Namespace, root: Path, kind: str, seed: int) -> list[Pair]:
    path = duplicates_dir(root) / duplicates_file(arguments.name)
    return _choose(path, kind, arguments.count, seed=None if arguments.closest_call else seed)


def _as_json(name: str, pair: Pair, texts: Mapping[tuple[str, int], Mapping[str, Any]]) -> dict[str, Any]:
    """The pair's row of the drop list, and both documents."""
    return {
        **pair,
        "document": texts[name, pair["ordinal"]],
        "because": texts[pair["because_dataset"], pair["because_ordinal"]],
    }


def _print_counts(console: Console, meta: Meta) -> None:
    numbers = ("documents", "exact", "near", "stay")
    table = new_table("data set", *numbers, "", right=frozenset({*numbers, ""}))
    for name in meta["order"]:
        counts = meta["datasets"][name]
        stay = counts["documents"] - counts["exact"] - counts["near"]
        cells = (counts["documents"], counts["exact"], counts["near"], stay)
        table.add_row(name, *(f"{number:,}" for number in cells), share_of(stay, counts["documents"]))
    console.print(table)
    settings = meta["settings"]
    verify = f", verified by {settings['verify']}" if settings["verify"] != "none" else ""
    console.print(
        f"\nnear: similarity {settings['threshold']} of word {settings['ngram']}-grams, {meta['bands']} bands of {meta['rows']} rows"
        f"{verify}; the first of its kind stays, data sets in this order, val before train",
        soft_wrap=True,
    )


def _choose(path: Path, kind: str, count: int, *, seed: int | None) -> list[Pair]:
    """`count` pairs of a kind: any with the same chance, in the order of the corpus; `seed` None: the least similar ones first."""
    places = np.flatnonzero(column(path, "kind") == kind)
    if seed is None:
        similarity = column(path, "similarity")[places].astype(np.float64)
        places = places[np.argsort(similarity, kind="stable")[:count]]
    else:
        places = places[seeded_choice(len(places), count, seed)]
    rows = rows_at([path], places, list(DUPLICATES))
    return [rows[place] for place in places.tolist()]


def _texts(registry: Registry, root: Path, name: str, pairs: Iterable[Pair], duplicates: Meta) -> dict[tuple[str, int], dict[str, Any]]:
    """Text, title, file and row of both documents of every pair, by data set and ordinal."""
    wanted: dict[str, set[int]] = {}
    for pair in pairs:
        wanted.setdefault(name, set()).add(pair["ordinal"])
        wanted.setdefault(pair["because_dataset"], set()).add(pair["because_ordinal"])
    texts: dict[tuple[str, int], dict[str, Any]] = {}
    for dataset, ordinals in wanted.items():
        directory, meta = find_corpus(registry, root, dataset)
        require_same_corpus(duplicates, dataset, meta)
        rows = rows_at(document_files(directory, meta), ordinals, ["text", "title", "file", "row"])
        texts.update(((dataset, ordinal), row) for ordinal, row in rows.items())
    return texts


def _similarity(pair: Pair) -> str:
    known = pair["kind"] == "near" and pair["similarity"] is not None
    return f", similarity {pair['similarity']:.3f}" if known else ""


def _titles(name: str, pair: Pair, texts: Mapping[tuple[str, int], Mapping[str, Any]]) -> tuple[str, str]:
    """`goes: wiki train 12, Title (a.jsonl, row 3)`, and the same of the one that stays."""
    sides = (
        ("goes", name, pair["ordinal"], pair["split"]),
        ("stays", pair["because_dataset"], pair["because_ordinal"], pair["because_split"]),
    )
    titles = []
    for verb, dataset, ordinal, split in sides:
        document = texts[dataset, ordinal]
        place = f"{document['file']}, row {document['row']:,}"
        title = f"{document['title']} ({place})" if document["title"] else place
        titles.append(spell_controls(f"{verb}: {dataset} {f'{split} ' if split else ''}{ordinal:,}, {title}"))
    return titles[0], titles[1]
