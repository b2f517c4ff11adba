"""The command `trace`, which prints the data sets, documents and texts that a batch of a training run comes from.

The command creates the loader from its saved state, and this loader computes the batch that training saw. The runtime returns the origin of
each token in the batch. loader_states.py reads states, loaders.py makes loaders of them; origins.py adds lineage and text.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from niels_cache_assets.base.wording import format_count
from niels_cache_assets.cli.command import WHERE, Command, option, whole_number
from niels_cache_assets.cli.console import display, mark, new_table, print_json, styled
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from rich.table import Table

    from niels_cache_inspection.origins import BatchRow, Segment, TracedCache
    from niels_cache_runtime.loader.trace import TokenOrigin
    from niels_cache_runtime.remote.local_copy import LocalCopy

TOKEN_STYLE = "reverse"
EXCERPT_CHARACTERS = 64  # number of tokens that are decoded for an excerpt, because text rarely has more tokens than characters
NEIGHBOURHOOD_TOKENS = 48  # on each side of a token


def name_and_folder(text: str) -> tuple[str, str]:
    """Return the two sides of NAME=FOLDER."""
    name, equals, folder = text.partition("=")
    if not name or not equals or not folder:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER")
    return name, folder


COMMAND = Command(
    options=(
        option("--state", "FILE", "JSON file or torch checkpoint that contains the loader state", required=True),
        option("--step", "N", "number of the batch, counted from 0 like loader.step", type=whole_number, required=True),
        option("--rank", "R", "rank that received the batch (default: 0)", type=whole_number, default=0),
        option("--row", "I", "show only this row, with its full text", type=whole_number),
        option("--column", "J", "show only this token of the row: x[I, J], which is y[I, J - 1]", type=whole_number),
        option("--side", "SIDE", "for preference pairs: chosen (the default) or rejected", choices=("chosen", "rejected")),
        option(
            "--source",
            "NAME=FOLDER",
            "new folder of a split that was moved after training",
            nargs="+",
            type=name_and_folder,
            action="extend",
            default=[],
            dest="sources",
        ),
    ),
    usage="--state FILE --step N ",
    description="""\
Show the origin of a training batch: the data set, epoch, sample, shard and offset of every row, and, for
every document in the row, its text and its id, file and row at the source.

FILE contains a saved loader.state_dict(): either a JSON file, or a torch checkpoint with the state at
any nesting level. From this state, trace computes any step of the run, with the run's batch size and
ranks. trace rejects a cache that changed after the state was saved.""",
    examples="""\
  niels-cache trace --state checkpoint.pt --step 1200                    every row of rank 0
  niels-cache trace --state checkpoint.pt --step 1200 --rank 3 --row 5   one row, with its whole text
  niels-cache trace --state loader.json --step 0 --row 0 --column 17     one token and the surrounding text""",
    has_caches=False,
)


def run(arguments: argparse.Namespace) -> None:
    """Print the origin of the batch."""
    from niels_cache_inspection.loader_states import read_loader_state
    from niels_cache_inspection.loaders import open_loader
    from niels_cache_inspection.origins import BatchRow, caches_of
    from niels_cache_runtime.loader.trace import BatchTrace

    if arguments.step < 0:
        raise NielsCacheError(f"{WHERE}: --step: must be at least 0, not {arguments.step}; steps are counted from 0")
    if arguments.column is not None and arguments.row is None:
        raise NielsCacheError(f"{WHERE}: --column {arguments.column}: needs a row; add --row")
    state = read_loader_state(arguments.state)
    copies: list[LocalCopy] = []  # they keep the lineage and the tokenizers until these are read
    with TemporaryDirectory(prefix="niels-cache-", ignore_cleanup_errors=True) as copy:
        loader = open_loader(arguments.state, state, dict(arguments.sources), copy=copy)
        trace = loader.trace(arguments.step, rank=arguments.rank, **({"side": arguments.side} if arguments.side else {}))
        assert isinstance(trace, BatchTrace)  # because no row is given
        if arguments.row is not None:
            trace.token(arguments.row, arguments.column or 0)  # raises an error for a row or column out of range
        numbers = range(len(trace.tokens)) if arguments.row is None else [arguments.row]
        rows = [BatchRow(trace, number) for number in numbers]
        caches = caches_of(trace, numbers, beside=partial(_fetch_beside, copy, copies))
    notes = [note for cache in caches.values() for note in cache.notes]
    if arguments.json:
        found = [_row_json(row, caches[row.origin().dataset], column=arguments.column) for row in rows]
        print_json({"step": trace.step, "rank": arguments.rank, "rows": found, "notes": notes})
        return
    ahead = ""
    if "worker" not in state and trace.step >= loader.step:
        ahead = f"; this state was saved earlier, after {format_count(loader.step, 'step')}"
    count, columns = trace.tokens.shape
    display(f"step {trace.step:,}, rank {arguments.rank}: {format_count(count, 'row')}, columns 0 to {columns - 1:,}{ahead}", style="bold")
    for row in rows:
        display()
        if arguments.column is None:
            print_row(row, caches[row.origin().dataset], whole=arguments.row is not None)
        else:
            _print_token(row, arguments.column, caches[row.origin().dataset])
    if notes:
        display()
    for note in notes:
        display(f"({note})", style="dim")


def _fetch_beside(copy: str, copies: list[LocalCopy], folder: str) -> Path:
    """Return the folder of a split on this machine. For an address, its lineage and its tokenizer are fetched, and `copies` keep them."""
    from niels_cache_runtime.format.layout import Split, documents_folder, documents_name, examples_name
    from niels_cache_runtime.remote.copied_build import split_address
    from niels_cache_runtime.remote.local_copy import LocalCopy
    from niels_cache_runtime.remote.record import TOKENIZER
    from niels_cache_runtime.remote.store import is_address

    if not is_address(folder):
        return Path(folder)
    address, named = split_address(folder)
    split, opened = cast(Split, named), LocalCopy(copy)
    lineage = (documents_name(split), examples_name(split), f"{documents_folder(split)}/")
    copies.append(opened)
    build, _ = opened.open(address)
    files = [path for path in build.published.meta["files"] if path.startswith(lineage)]
    return opened.fetch_of(build, [*files, TOKENIZER]) / split


def print_row(row: BatchRow, cache: TracedCache, *, whole: bool) -> None:
    """Print the documents of a row, then the beginning of each text, or all text if `whole`."""
    segments, origin = [segment for segment in row.segments if not segment.is_padding], row.origin()
    display(f"--- row {row.number}: {origin.dataset}, epoch {origin.epoch}, sample {origin.number:,}", style="bold")
    display(_table_of(row.segments, cache))
    for segment in segments:
        if whole:
            display(f"\ncolumns {_columns(segment)}:", style="bold")
            display(cache.text(row, segment.first, segment.last))
        else:
            text = _line(cache.text(row, segment.first, min(segment.last, segment.first + EXCERPT_CHARACTERS)))
            text = text if len(text) <= EXCERPT_CHARACTERS else f"{text[: EXCERPT_CHARACTERS - 1]}…"
            display(f"{_columns(segment)}: {text}", soft_wrap=False, no_wrap=True, overflow="ellipsis")


def _row_json(row: BatchRow, cache: TracedCache, *, column: int | None = None) -> dict[str, Any]:
    """Return the row as JSON data: its tokens, and each segment with its document and text.

    If `column` is given, only the segment with this column is included.
    """
    segments = [segment for segment in row.segments if column is None or segment.first <= column < segment.last]
    origin = row.origin()
    whole = {"row": row.number, "data_set": origin.dataset, "epoch": origin.epoch, "sample": origin.number, "tokens": row.tokens}
    if column is not None:
        offset = row.trace.document_offsets[row.number, column]
        whole |= {"column": column, "token": row.tokens[column], "offset_in_document": offset, "path": cache.path(row.origin(column))}
    return {**whole, "segments": [_segment_json(segment, row, cache) for segment in segments]}


def _segment_json(segment: Segment, row: BatchRow, cache: TracedCache) -> dict[str, Any]:
    columns = {"first_column": segment.first, "last_column": segment.last - 1}
    if segment.is_padding:
        return {**columns, "padding": True}
    return {**columns, **_describe_origin(segment.origin, cache), "text": cache.text(row, segment.first, segment.last)}


def _describe_origin(origin: TokenOrigin, cache: TracedCache) -> dict[str, Any]:
    """Return where the tokens of a segment come from. What is not known is None; without `keep`, there are no kept values."""
    from niels_cache_assets.sources.reading.keep import kept_values

    lineage = None if origin.document is None else cache.lineage.get(origin.document)
    return {
        **({"fim": True} if origin.is_sentinel else {}),
        "shard": None if origin.is_sentinel else cache.file(origin),
        "offset": origin.offset,
        cache.unit: origin.document,
        "from_token": origin.document_offset,
        **{name: getattr(lineage, name, None) for name in ("source_id", "file", "row")},
        **({"path": path} if (path := cache.path(origin)) else {}),
        **({"kept": kept_values(lineage.kept)} if lineage and lineage.kept is not None else {}),
    }


def _table_of(segments: Sequence[Segment], cache: TracedCache) -> Table:
    names = [cache.unit, "from_token", "source_id", "file", "row", "shard", "offset"]
    origins = [None if segment.is_padding else _describe_origin(segment.origin, cache) for segment in segments]
    names += [name for name in ("path", "kept") if any(origin and origin.get(name) for origin in origins)]
    right, shrinking = (cache.unit, "from token", "row", "offset"), ("source id", "file", "shard", "path", "kept")
    table = new_table("columns", *(name.replace("_", " ") for name in names), right=right, shrinking=shrinking)
    for segment, origin in zip(segments, origins, strict=True):
        cells = ["padding"] if origin is None else [_cell(origin.get(name)) for name in names]
        table.add_row(_columns(segment), *cells)
    return table


def _cell(value: Any) -> str:
    if isinstance(value, dict):  # kept values, such as `url: https://a.org, score: 3`
        return ", ".join(f"{name}: {_line(item if isinstance(item, str) else json.dumps(item))}" for name, item in value.items())
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else _line(value)


def _print_token(row: BatchRow, column: int, cache: TracedCache) -> None:
    """Print one token of a row, its document, and the surrounding text with the token marked."""
    segment, origin = next(segment for segment in row.segments if segment.first <= column < segment.last), row.origin(column)
    is_text = cache.tokenizer is not None
    token = cache.text(row, column, column + 1)
    named = f" {token!r}" if is_text else ""
    display(f"--- row {row.number}, column {column}: token {row.tokens[column]}{named}", style="bold")
    position = "" if origin.document_offset is None else f"token {origin.document_offset:,} of {cache.unit} {origin.document:,}, "
    if origin.is_sentinel:
        offset = f"added to {cache.unit} {origin.document:,} by FIM"
    else:
        offset = "padding" if segment.is_padding else f"{cache.file(origin)} at {origin.offset:,}"
    if path := cache.path(origin):
        position += f"{path}, "
    display(f"{position}{offset}; {origin.dataset} ({cache.folder}), epoch {origin.epoch}, sample {origin.number:,}")
    display(_table_of([segment], cache))
    first, last = max(0, column - NEIGHBOURHOOD_TOKENS), min(len(row.tokens), column + 1 + NEIGHBOURHOOD_TOKENS)
    gap = "" if is_text else " "
    before, after = cache.text(row, first, column), cache.text(row, column + 1, last)
    display()
    display(styled(before + gap, mark(token, TOKEN_STYLE), gap + after))


def _columns(segment: Segment) -> str:
    return f"{segment.first}-{segment.last - 1}"


def _line(text: str) -> str:
    """Return the text on one line, without control characters."""
    from niels_cache_assets.tokenizer.decoding import spell_controls

    return spell_controls(text).replace("\n", "\\n").replace("\t", "\\t")
