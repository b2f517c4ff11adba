"""`trace`: which data sets, documents and texts a batch of a training run came from.

The loader is built again from its saved state and computes the batch that training saw. Where its tokens came from is the runtime's to
say; reading states, and lineage and text of a row, are below (show/).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from niels_cache_assets.cli.console import new_table, output, print_json
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.cli.overrides import WHERE
from niels_cache_assets.decoding import spell_controls
from niels_cache_assets.lineage import Lineage
from niels_cache_assets.registry import refuse_choice
from niels_cache_assets.show.loader_states import read_loader_state
from niels_cache_assets.show.origins import UNKNOWN, Cache, Row, Segment, row_of, segments_of
from niels_cache_assets.wording import counted
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Split, tokens_name
from niels_cache_runtime.loader.loader import TokenLoader
from niels_cache_runtime.loader.trace import BatchTrace

TOKEN_STYLE = "reverse"
EXCERPT_CHARACTERS = 64  # and as many tokens are decoded for it: hardly any text has more tokens than characters
NEIGHBOURHOOD_TOKENS = 48  # on either side of a token


def run(arguments: argparse.Namespace) -> int:
    if arguments.step < 0:
        raise NielsCacheError(f"{WHERE}: --step {arguments.step}: steps are counted from 0")
    if arguments.column is not None and arguments.row is None:
        raise NielsCacheError(f"{WHERE}: --column {arguments.column}: of which row? give --row too")
    state = read_loader_state(arguments.state)
    loader = _open_loader(arguments.state, state, dict(arguments.sources))
    trace = loader.trace(arguments.step, rank=arguments.rank)
    assert isinstance(trace, BatchTrace)  # no row was asked for
    if arguments.row is not None:
        trace.token(arguments.row, arguments.column or 0)  # refuses a row or column that is not there
    numbers = range(len(trace.tokens)) if arguments.row is None else [arguments.row]
    if arguments.json:
        _print_json(trace, numbers, arguments)
        return DONE
    _print(trace, numbers, arguments, taken=None if "worker" in state else loader.step)
    return DONE


def _open_loader(path: str, state: dict[str, Any], moved: Mapping[str, str]) -> TokenLoader:
    """Raises NielsCacheError for a cache that is not there any more or has changed, and for a state that no loader can take."""
    try:
        folders = {name: str(source["folder"]) for name, source in state["sources"].items()}
        for name in moved:
            if name not in folders:
                refuse_choice(f"{WHERE}: --source", "no data set", name, folders)
        for name, folder in {**folders, **moved}.items():
            if not _is_split(Path(folder)):
                seen_from = "" if Path(folder).is_absolute() else f" (seen from {Path.cwd()})"
                raise NielsCacheError(f"{name}: {folder} is not there{seen_from}; if it was moved: --source {name}=FOLDER")
        # A DataLoader's worker knows its own place in the run; steps are counted over all of them.
        return TokenLoader.from_state({key: value for key, value in state.items() if key != "worker"}, moved)
    except (KeyError, TypeError, AttributeError) as error:
        raise NielsCacheError(f"{path}: holds a loader's state that cannot be read ({error!r}); it is cut or was edited") from error


def _is_split(folder: Path) -> bool:
    return folder.is_dir() or (folder.parent / tokens_name(cast(Split, folder.name))).exists()


def _caches(trace: BatchTrace, numbers: Sequence[int]) -> dict[int, Cache]:
    """Of the data sets that these rows came from."""
    shown = trace.dataset_ids[list(numbers)]
    return {
        source: Cache(trace.names[source], trace.folders[source], trace.file_names[source], trace.documents[list(numbers)][shown == source])
        for source in np.unique(shown).tolist()
    }


def _print_json(trace: BatchTrace, numbers: Sequence[int], arguments: argparse.Namespace) -> None:
    caches = _caches(trace, numbers)
    rows = [_row_json(row_of(trace, number), caches[int(trace.dataset_ids[number])], column=arguments.column) for number in numbers]
    notes = [note for cache in caches.values() for note in cache.notes]
    print_json({"step": trace.step, "rank": arguments.rank, "rows": rows, "notes": notes})


def _print(trace: BatchTrace, numbers: Sequence[int], arguments: argparse.Namespace, *, taken: int | None) -> None:
    rows, columns = trace.tokens.shape
    console = output()
    ahead = ""
    if taken is not None and trace.step >= taken:
        ahead = f"; not taken yet when this state was saved, after {counted(taken, 'step')}"
    console.print(
        f"step {trace.step:,}, rank {arguments.rank}: {counted(rows, 'row')}, columns 0 to {columns - 1:,}{ahead}",
        style="bold",
        soft_wrap=True,
    )
    caches = _caches(trace, numbers)
    for number in numbers:
        row, cache = row_of(trace, number), caches[int(trace.dataset_ids[number])]
        console.print()
        if arguments.column is None:
            print_row(console, row, cache, whole=arguments.row is not None)
        else:
            _print_token(console, row, arguments.column, cache)
    notes = [note for cache in caches.values() for note in cache.notes]
    if notes:
        console.print()
    for note in notes:
        console.print(f"({note})", style="dim", soft_wrap=True)


def print_row(console: Console, row: Row, cache: Cache, *, whole: bool) -> None:
    """A table of the row's documents with the beginning of each (below it on a narrow terminal), or (`whole`) followed by all text."""
    segments = segments_of(row)
    console.print(f"--- row {row.number}: {row.dataset}, epoch {row.epoch}, sample {row.sample:,}", style="bold", soft_wrap=True)
    table = _table_of(segments, cache)
    excerpts = [] if whole else [Text(_excerpt(row, segment, cache), no_wrap=True, overflow="ellipsis") for segment in segments]
    if not whole and Measurement.get(console, console.options, table).maximum + EXCERPT_CHARACTERS // 2 <= console.width:
        console.print(_table_of(segments, cache, excerpts))
        return
    console.print(table)
    for segment, excerpt in zip(segments, excerpts, strict=False):
        if segment.file != UNKNOWN:
            console.print(Text.assemble(f"{_columns(segment)}: ", excerpt), no_wrap=True, overflow="ellipsis")
    for segment in segments if whole else []:
        if segment.file != UNKNOWN:
            console.print(f"\ncolumns {_columns(segment)}:", style="bold")
            console.print(Text(cache.text(row, segment.first, segment.last)), soft_wrap=True)


def _row_json(row: Row, cache: Cache, *, column: int | None = None) -> dict[str, Any]:
    """The row for programs: its tokens, and each segment with its document and text; of a column, the segment that it is in alone."""
    segments = [segment for segment in segments_of(row) if column is None or segment.first <= column < segment.last]
    whole = {"row": row.number, "data_set": row.dataset, "epoch": row.epoch, "sample": row.sample, "tokens": row.tokens.tolist()}
    if column is not None:
        whole |= {"column": column, "token": int(row.tokens[column]), "offset_in_document": int(row.document_offsets[column])}
    return {**whole, "segments": [_segment_json(segment, row, cache) for segment in segments]}


def _segment_json(segment: Segment, row: Row, cache: Cache) -> dict[str, Any]:
    columns = {"first_column": segment.first, "last_column": segment.last - 1}
    if segment.file == UNKNOWN:
        return {**columns, "padding": True}
    lineage = cache.lineage.get(segment.document)
    return {
        **columns,
        "shard": cache.file(segment.file),
        "offset": segment.offset,
        cache.unit: None if segment.document == UNKNOWN else segment.document,
        "from_token": segment.document_offset,
        "source_id": lineage.source_id if lineage else None,
        "file": lineage.file if lineage else None,
        "row": lineage.row if lineage else None,
        "text": cache.text(row, segment.first, segment.last),
    }


def _table_of(segments: Sequence[Segment], cache: Cache, excerpts: Sequence[Text] = ()) -> Table:
    """One line for each segment, with its excerpt where they are given."""
    columns = ["columns", cache.unit, "from token", "source id", "file", "row", "shard", "offset"]
    right = frozenset({cache.unit, "from token", "row", "offset"})
    table = new_table(*columns, *(["text"] if excerpts else []), right=right, shrinking=["source id", "file", "shard", "text"])
    for segment, excerpt in zip_longest(segments, excerpts):
        table.add_row(*_cells(segment, cache), *([excerpt] if excerpts else []))
    return table


def _print_token(console: Console, row: Row, column: int, cache: Cache) -> None:
    """One token of a row: what and whence, and the text around it with the token marked."""
    segment = next(segment for segment in segments_of(row) if segment.first <= column < segment.last)
    is_text = cache.tokenizer is not None
    named = f" {cache.text(row, column, column + 1)!r}" if is_text else ""
    console.print(f"--- row {row.number}, column {column}: token {row.tokens[column]}{named}", style="bold", soft_wrap=True)
    table = new_table("", "")
    table.show_header = False
    table.add_row("data set", f"{row.dataset} ({cache.folder})")
    table.add_row("epoch, sample", f"{row.epoch}, {row.sample:,}")
    if segment.file == UNKNOWN:
        table.add_row("padding", "of no document")
    else:
        table.add_row("shard, offset", f"{cache.file(segment.file)}, {row.offsets[column]:,}")
    if segment.document != UNKNOWN:
        lineage = cache.lineage.get(segment.document)
        table.add_row(f"{cache.unit}, token", f"{segment.document:,}, {row.document_offsets[column]:,}" + _of_tokens(lineage))
        if lineage:
            table.add_row("source id", _line(lineage.source_id))
            table.add_row("file, row", f"{_line(lineage.file)}, {lineage.row:,}")
    console.print(table)
    first, last = max(0, column - NEIGHBOURHOOD_TOKENS), min(len(row.tokens), column + 1 + NEIGHBOURHOOD_TOKENS)
    gap = "" if is_text else " "
    token = cache.text(row, column, column + 1)
    console.print()
    console.print(
        Text.assemble(
            cache.text(row, first, column) + gap,
            (token if console.is_terminal else f"[[{token}]]", TOKEN_STYLE),
            gap + cache.text(row, column + 1, last),
        ),
        soft_wrap=True,
    )


def _of_tokens(lineage: Lineage | None) -> str:
    return f" of {lineage.tokens:,}" if lineage else ""


def _cells(segment: Segment, cache: Cache) -> list[str]:
    if segment.file == UNKNOWN:
        return [_columns(segment), "padding", "", "", "", "", "", ""]
    known = segment.document != UNKNOWN
    lineage = cache.lineage.get(segment.document)
    whence = [_line(lineage.source_id), _line(lineage.file), f"{lineage.row:,}"] if lineage else ["-"] * 3
    document = [f"{segment.document:,}", f"{segment.document_offset:,}"] if known else ["-"] * 2
    return [_columns(segment), *document, *whence, cache.file(segment.file), f"{segment.offset:,}"]


def _columns(segment: Segment) -> str:
    return f"{segment.first}-{segment.last - 1}"


def _excerpt(row: Row, segment: Segment, cache: Cache) -> str:
    if segment.file == UNKNOWN:
        return ""
    text = _line(cache.text(row, segment.first, min(segment.last, segment.first + EXCERPT_CHARACTERS)))
    return text if len(text) <= EXCERPT_CHARACTERS else f"{text[: EXCERPT_CHARACTERS - 1]}…"


def _line(text: str) -> str:
    """On one line, and harmless to a terminal."""
    return spell_controls(text).replace("\n", "\\n").replace("\t", "\\t")
