"""Cuts for people: the places of repeated text in a data set, each with the copy that stays, for `niels-cache duplicates` and reports.

One column of the file of cuts is read, the chosen rows, and the row groups of the texts. Nothing is compared here.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_cache_assets.artifacts.corpus_report import cuts_table
from niels_cache_assets.artifacts.repeats import Repeats, open_prepared
from niels_cache_assets.base.documents import object_array
from niels_cache_assets.base.wording import format_count
from niels_cache_assets.corpus.identity import require_prepared
from niels_cache_assets.corpus.layout import CUTS, corpus_dir, duplicates_file, repeats_dir
from niels_cache_assets.corpus.prepared import PreparedCorpus, document_files, open_documents
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.inspection.corpora import column, ordinal_of, rows_at, seeded_choice
from niels_cache_assets.sources.types import PrepareStep
from niels_cache_assets.tokenizer.decoding import spell_controls
from niels_cache_repeats.cuts import CutList
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta

if TYPE_CHECKING:
    from niels_cache_assets.project.registry import Registry

_ORIGIN = ("source_id", "title", "file", "row")
_EXAMPLE_BATCHES = 8  # of each data set, 65,536 cuts each, of which the most frequent are shown
CONTEXT = 80  # bytes of text shown before and after a cut
MAX_SHOWN = 600  # bytes of a cut


def find_cuts(
    registry: Registry, root: Path, name: str, step: PrepareStep, *, count: int, seed: int, document: str | None = None
) -> dict[str, Any]:
    """Return the counts of a data set's cuts, and some cuts with their texts, as plain data.

    Args:
        registry: The configuration.
        root: The cache root.
        name: The name of the data set.
        step: The step, lines or spans.
        count: The number of cuts to return, drawn by `seed`.
        seed: The seed of the draw.
        document: The source id of a document, all of whose cuts are returned. None: cuts of all documents are drawn.

    Raises:
        NielsCacheError: If the cuts are missing or not current, or there is no such document.
    """
    source = require_prepared(registry, name)
    if step not in source.prepare:
        raise NielsCacheError(f'{name}: no {step} are cut; add "{step}" to prepare in [pretrain.{name}] and build it')
    opened: dict[str, PreparedCorpus] = {name: open_prepared(registry, name, root=root, before=step)}
    cuts = Repeats(registry, root, step=step).cut(opened[name]).cuts[-1]
    ordinals = column(cuts.path, "ordinal")
    if document is None:
        positions = seeded_choice(len(ordinals), count, seed)
    else:
        positions = np.flatnonzero(ordinals == _ordinal_of(opened[name], document))
    rows = rows_at([cuts.path], positions, list(CUTS)) if len(positions) else {}
    found = []
    for row in (rows[position] for position in positions.tolist()):
        other = row["because_dataset"]
        if other not in opened:
            opened[other] = open_prepared(registry, other, root=root, before=step)
        own, copy = _document(opened[name], row["ordinal"]), _document(opened[other], row["because_ordinal"])
        length = len(own["data"][row["start"] : row["end"]].rstrip())
        found.append(
            {
                **row,
                **{key: own[key] for key in _ORIGIN},
                **{f"because_{key}": copy[key] for key in _ORIGIN},
                **_shown("", own["data"], row["start"], row["end"]),
                **_shown("because_", copy["data"], row["because_start"], row["because_start"] + length),
            }
        )
    return {"name": name, "step": step, "counts": cuts.counts, "cuts": found}


def _ordinal_of(prepared: PreparedCorpus, source_id: str) -> int:
    ordinal = ordinal_of(prepared, source_id)
    if ordinal is None:
        raise NielsCacheError(f"{prepared.name}: has no document with the id {source_id!r} in its corpus; `niels-cache trace` shows ids")
    return ordinal


def _document(prepared: PreparedCorpus, ordinal: int) -> dict[str, Any]:
    (document,) = prepared.select(np.array([ordinal]))
    return {
        "source_id": document.source_id,
        "title": document.title,
        "file": document.file,
        "row": document.row,
        "data": document.text.encode(),
    }


def _shown(prefix: str, data: bytes, start: int, end: int) -> dict[str, str]:
    """Return a place of a text, and the text around it."""
    parts = {
        "before": data[max(0, start - CONTEXT) : start],
        "text": data[start : min(end, start + MAX_SHOWN)],
        "after": data[end : end + CONTEXT],
    }
    return {f"{prefix}{key}": part.decode(errors="ignore") for key, part in parts.items()}


def most_cut(root: Path, step: str, meta: Meta, *, count: int = 8) -> list[tuple[str, str]]:
    """Return a title and the text of the copies that stay of the most often cut texts, most frequent first, for the report.

    Texts of data sets that have changed since are left out.

    Args:
        root: The cache root.
        step: The step.
        meta: The meta.json of the cuts.
        count: The number of texts.
    """
    keys = ["because_dataset", "because_ordinal", "because_start", "because_split", "start", "end"]
    copies: Counter[tuple[Any, ...]] = Counter()
    lengths: dict[tuple[Any, ...], int] = {}
    for name in meta["datasets"]:
        with open_documents(repeats_dir(root, step) / duplicates_file(name)) as parquet:
            for batch in islice(parquet.iter_batches(columns=keys), _EXAMPLE_BATCHES):
                for row in zip(*(batch[key].to_pylist() for key in keys), strict=True):
                    place, (start, end) = row[:-2], row[-2:]
                    copies[place] += 1
                    lengths[place] = min(end - start, lengths.get(place, end - start))  # without blank lines after it
    found = []
    for place, number in copies.most_common(count):
        name, ordinal, start, split = place
        text = _compared_text(root, meta, name, ordinal)
        if text is not None:
            data = text.encode()[start : start + min(lengths[place], MAX_SHOWN)]
            title = f"cut {number:,} times; stays in {name} {f'{split} ' if split else ''}{ordinal:,}"
            found.append((title, data.decode(errors="ignore").strip()))
    return found


def _compared_text(root: Path, meta: Meta, name: str, ordinal: int) -> str | None:
    """Return the text of a document as the search has read it, or None if its corpus or its earlier cuts have changed since."""
    inputs, directory = meta["inputs"][name], corpus_dir(root, name)
    corpus = finished_meta(directory)
    if corpus is None or corpus["content_sha256"] != inputs["content_sha256"]:
        return None
    texts = object_array([rows_at(document_files(directory, corpus), [ordinal], ["text"])[ordinal]["text"]], 1)
    for step, sha256 in inputs.get("cuts", {}).items():
        earlier = finished_meta(repeats_dir(root, step))
        if earlier is None or earlier["datasets"].get(name, {}).get("cuts_sha256") != sha256:
            return None
        CutList(step=step, name=name, directory=repeats_dir(root, step), meta=earlier).apply(np.array([ordinal]), texts)
    return texts[0]


def print_cuts(arguments: argparse.Namespace, registry: Registry, root: Path, seed: int, console: Any) -> None:
    """Print the cuts of a data set, or the counts of all data sets without a name.

    Args:
        arguments: The arguments of the command `duplicates`.
        registry: The configuration.
        root: The cache root.
        seed: The seed of the draw.
        console: The module that prints (cli/console.py), because only the command line imports it.
    """
    step, name, display = arguments.cuts, arguments.name, console.display
    if name is None:
        _print_counts(arguments, Repeats(registry, root, step=step), console)
        return
    found = find_cuts(registry, root, name, step, count=arguments.count, seed=seed, document=arguments.document)
    if console.print_facts(arguments, found):
        return
    counts = found["counts"]
    cuts = format_count(sum(counts["cuts"].values()), "cut")
    total = f"{cuts} in {counts['cut_documents']:,} of {counts['compared']:,} documents"
    display(f"{name}: {total}, {counts['bytes']:,} bytes; nothing is left of {counts['emptied']:,} documents", style="bold")
    for cut in found["cuts"]:
        size = f"{cut['end'] - cut['start']:,} bytes from byte {cut['start']:,}"
        display(f"\n--- {cut['kind']}, {size}", style="bold")
        for verb, dataset, prefix in (("cut from", name, ""), ("stays in", cut["because_dataset"], "because_")):
            split, ordinal, title, file, row = (cut[f"{prefix}{key}"] for key in ("split", "ordinal", "title", "file", "row"))
            display(f"{verb}: {dataset} {f'{split} ' if split else ''}{ordinal:,}, {console.title_of(title, file, row)}", style="bold")
            display(_marked(cut, prefix, console))
    if found["cuts"] and arguments.document is None:
        display(f"\n(--seed {seed} shows the same cuts again)", style="dim")


def _marked(cut: Mapping[str, Any], prefix: str, console: Any) -> Any:
    before, text, after = (spell_controls(cut[f"{prefix}{key}"]) for key in ("before", "text", "after"))
    parts = [f"{console.ELLIPSIS if before else ''}{before}", console.mark(text.strip(), console.DIFFERENCE_STYLE), after]
    return console.styled(" ").join(console.styled(part) for part in [*parts, *([console.ELLIPSIS] if after else [])])


def _print_counts(arguments: argparse.Namespace, repeats: Repeats, console: Any) -> None:
    meta = repeats.finished()
    if not repeats.registry.prepared(repeats.step):
        raise NielsCacheError(f'no data set has repeated {repeats.step} cut; give one prepare = [..., "{repeats.step}"] and build it')
    if meta is None:
        raise NielsCacheError(f"{repeats.directory}: there are no cuts of repeated {repeats.step} yet; build them: niels-cache build-all")
    if console.print_facts(arguments, {key: meta[key] for key in ("datasets", "order", "settings")}):
        return
    rows = cuts_table(meta["datasets"])
    numbers = [key for key in rows[0] if key != "data_set"]
    names = [key.replace("_", " ") for key in numbers]
    table = console.new_table("data set", *names, right=names)
    for row in rows:
        table.add_row(row["data_set"], *(f"{row[key]:,}" for key in numbers))
    console.display(table)
    console.display("\nof several copies the first stays: val before train over all data sets, then data sets in this order")
