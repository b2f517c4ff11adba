"""What `trace` prints: the documents of a row, and one token with the text around it.

What the runtime says of every token comes in as a `Row`; source ids come from the lineage parquet, text from the cache root's tokenizer,
each opened once per data set. Where one of them is missing, a note says so and the rest is still shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from niels_cache_assets.cli.console import new_table
from niels_cache_assets.decoding import as_text, open_tokenizer, spell_controls
from niels_cache_assets.lineage import Lineage, read_lineage
from niels_cache_assets.tokenization import SentencePieceTokenizer
from niels_cache_runtime.cache.opening import current_tokenizer_sha256
from niels_cache_runtime.format.layout import (
    META_NAME,
    TOKENIZER_MODEL_NAME,
    Split,
    documents_name,
    examples_name,
    tokenizer_dir,
    tokens_name,
)
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.loader.trace import BatchTrace

TOKEN_STYLE = "reverse"
EXCERPT_CHARACTERS = 64  # and as many tokens are decoded for it: hardly any text has more tokens than characters
NEIGHBOURHOOD_TOKENS = 48  # on either side of a token

_UNKNOWN = -1


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a batch: which sample it is, and its T+1 tokens with the origin of each, as in `source.Origins`."""

    number: int
    dataset: str
    epoch: int
    sample: int
    tokens: NDArray[np.uint16]
    files: NDArray[np.int64]
    offsets: NDArray[np.int64]
    documents: NDArray[np.int64]
    document_offsets: NDArray[np.int64]


def row_of(trace: BatchTrace, number: int) -> Row:
    """Row `number`, 0..B-1, of a batch."""
    return Row(
        number=number,
        dataset=trace.names[trace.dataset_ids[number]],
        epoch=int(trace.epochs[number]),
        sample=int(trace.numbers[number]),
        tokens=trace.tokens[number],
        files=trace.files[number],
        offsets=trace.offsets[number],
        documents=trace.documents[number],
        document_offsets=trace.document_offsets[number],
    )


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Columns first..last-1 of a row, one behind the other in one document and one file; padding where `file` is _UNKNOWN."""

    first: int
    last: int
    file: int
    offset: int
    document: int
    document_offset: int


def segments_of(row: Row) -> list[Segment]:
    """The row cut where its document or file changes."""
    changes = (np.diff(row.documents) != 0) | (np.diff(row.files) != 0)
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(row.tokens)]
    return [
        Segment(
            first=first,
            last=last,
            file=int(row.files[first]),
            offset=int(row.offsets[first]),
            document=int(row.documents[first]),
            document_offset=int(row.document_offsets[first]),
        )
        for first, last in pairwise(edges)
    ]


class Cache:
    """What is known of one data set beyond its tokens: lineage and tokenizer, or why there is none (`notes`)."""

    def __init__(self, name: str, folder: str, files: tuple[str, ...], documents: NDArray[np.int64]) -> None:
        """`folder`: its split. `files`: its token files. `documents`: ordinals that will be asked for.

        Raises NielsCacheError for a lineage or tokenizer that is there and cannot be read.
        """
        self.name, self.folder, self._files = name, folder, files
        self._split = Path(folder).absolute()
        split = cast(Split, self._split.name)  # a bare folder may have any name
        packs = (self._split.parent / tokens_name(split)).exists()
        self.unit = "example" if packs else "document"
        self.notes: list[str] = []
        self.lineage = self._read_lineage(examples_name(split) if packs else documents_name(split), documents)
        self.tokenizer = self._open_tokenizer()
        self._special = frozenset(self.tokenizer.special_token_ids().values()) if self.tokenizer else frozenset()

    def _read_lineage(self, file: str, documents: NDArray[np.int64]) -> dict[int, Lineage]:
        path = self._split.parent / file
        if path.exists():
            return read_lineage(path, documents[documents != _UNKNOWN].tolist())
        self.notes.append(f"{self.name}: source ids are not known, there is no {path}")
        return {}

    def _open_tokenizer(self) -> SentencePieceTokenizer | None:
        meta, root = self._split.parent / META_NAME, self._split.parent.parent.parent
        used = read_meta(str(meta)).get("tokenizer_sha256") if meta.exists() else None
        if used is None:
            self.notes.append(f"{self.name}: token ids instead of text, no meta.json names the file of their tokenizer")
        elif used != current_tokenizer_sha256(self._split.parent) or not (tokenizer_dir(root) / TOKENIZER_MODEL_NAME).exists():
            self.notes.append(f"{self.name}: token ids instead of text, their tokenizer is not in {tokenizer_dir(root)}")
        else:
            return open_tokenizer(root)
        return None

    def text(self, row: Row, first: int, last: int) -> str:
        """Columns first..last-1 of a row as text, or their ids."""
        tokens = row.tokens[first:last].tolist()
        if self.tokenizer is None:
            return " ".join(map(str, tokens))
        if first >= last:
            return ""
        begins = row.document_offsets[first] == 0 or (first > 0 and int(row.tokens[first - 1]) in self._special)
        return as_text(tokens, self.tokenizer, continues=not begins)

    def file(self, index: int) -> str:
        """A token file as seen from the data set's folder."""
        return Path(self._files[index]).absolute().relative_to(self._split.parent).as_posix()


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
        if segment.file != _UNKNOWN:
            console.print(Text.assemble(f"{_columns(segment)}: ", excerpt), no_wrap=True, overflow="ellipsis")
    for segment in segments if whole else []:
        if segment.file != _UNKNOWN:
            console.print(f"\ncolumns {_columns(segment)}:", style="bold")
            console.print(Text(cache.text(row, segment.first, segment.last)), soft_wrap=True)


def row_json(row: Row, cache: Cache, *, column: int | None = None) -> dict[str, Any]:
    """The row for programs: its tokens, and each segment with its document and text; of a column, the segment that it is in alone."""
    segments = [segment for segment in segments_of(row) if column is None or segment.first <= column < segment.last]
    whole = {"row": row.number, "data_set": row.dataset, "epoch": row.epoch, "sample": row.sample, "tokens": row.tokens.tolist()}
    if column is not None:
        whole |= {"column": column, "token": int(row.tokens[column]), "offset_in_document": int(row.document_offsets[column])}
    return {**whole, "segments": [_segment_json(segment, row, cache) for segment in segments]}


def _segment_json(segment: Segment, row: Row, cache: Cache) -> dict[str, Any]:
    columns = {"first_column": segment.first, "last_column": segment.last - 1}
    if segment.file == _UNKNOWN:
        return {**columns, "padding": True}
    lineage = cache.lineage.get(segment.document)
    return {
        **columns,
        "shard": cache.file(segment.file),
        "offset": segment.offset,
        cache.unit: None if segment.document == _UNKNOWN else segment.document,
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


def print_token(console: Console, row: Row, column: int, cache: Cache) -> None:
    """One token of a row: what and whence, and the text around it with the token marked."""
    segment = next(segment for segment in segments_of(row) if segment.first <= column < segment.last)
    is_text = cache.tokenizer is not None
    named = f" {cache.text(row, column, column + 1)!r}" if is_text else ""
    console.print(f"--- row {row.number}, column {column}: token {row.tokens[column]}{named}", style="bold", soft_wrap=True)
    table = new_table("", "")
    table.show_header = False
    table.add_row("data set", f"{row.dataset} ({cache.folder})")
    table.add_row("epoch, sample", f"{row.epoch}, {row.sample:,}")
    if segment.file == _UNKNOWN:
        table.add_row("padding", "of no document")
    else:
        table.add_row("shard, offset", f"{cache.file(segment.file)}, {row.offsets[column]:,}")
    if segment.document != _UNKNOWN:
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
    if segment.file == _UNKNOWN:
        return [_columns(segment), "padding", "", "", "", "", "", ""]
    known = segment.document != _UNKNOWN
    lineage = cache.lineage.get(segment.document)
    whence = [_line(lineage.source_id), _line(lineage.file), f"{lineage.row:,}"] if lineage else ["-"] * 3
    document = [f"{segment.document:,}", f"{segment.document_offset:,}"] if known else ["-"] * 2
    return [_columns(segment), *document, *whence, cache.file(segment.file), f"{segment.offset:,}"]


def _columns(segment: Segment) -> str:
    return f"{segment.first}-{segment.last - 1}"


def _excerpt(row: Row, segment: Segment, cache: Cache) -> str:
    if segment.file == _UNKNOWN:
        return ""
    text = _line(cache.text(row, segment.first, min(segment.last, segment.first + EXCERPT_CHARACTERS)))
    return text if len(text) <= EXCERPT_CHARACTERS else f"{text[: EXCERPT_CHARACTERS - 1]}…"


def _line(text: str) -> str:
    """On one line, and harmless to a terminal."""
    return spell_controls(text).replace("\n", "\\n").replace("\t", "\\t")
