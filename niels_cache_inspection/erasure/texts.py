"""Readers of everything that may hold a document: sources, Parquet files, tokens, and any other file.

Each reader yields a few documents or bytes at a time. Sources are read as a build reads them, before cleaning and without `exclude`. Tokens
are decoded by joining the bytes of their pieces. Nothing is compared here (`scanning.py`).
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from niels_cache_assets.disk.table_file import open_table
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.conversations import contents
from niels_cache_assets.sources.interleave import Interleave
from niels_cache_assets.sources.types import SftSource, Source, SourceWithParts, StreamContext
from niels_cache_assets.tokenizer.kinds import TextTokenizer
from niels_cache_inspection.find.pieces import PieceTable
from niels_cache_runtime.cache.mmap import slice_pieces
from niels_cache_runtime.cache.opening import open_split, require_doc_ends
from niels_cache_runtime.cache.sft import open_examples
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import (
    FAMILIES,
    META_NAME,
    SPLITS,
    Ints,
    Split,
    Tokens,
    built_names,
    documents_name,
    entries_per_example,
    examples_name,
    idx_name,
    parts_root,
    tokens_name,
)
from niels_cache_runtime.format.meta import Meta, read_meta

_ROWS = 1 << 12  # of a Parquet file, at a time
_TOKENS = 1 << 18  # of a split, at a time, except for a longer document
_NAMES = {"source_id", "file", "row", "ordinal", "split", "reason", "kind", "group", "category"}  # columns that are no text


class StoredText(NamedTuple):
    """A document in one of the places where it is stored.

    Attributes:
        source_id: Its id, or "" if this place has none.
        file: Its file at the source.
        row: Its row in this file.
        texts: Its text, or those of its messages. In a Parquet file, the title and kept values follow the text.
    """

    source_id: str
    file: str
    row: int
    texts: list[str]


def reason_not_read(source: Source, *, with_remote: bool) -> str | None:
    """Return why the documents of a source are not read, or None if they are. It is empty if there is nothing to read.

    Raises:
        NielsCacheError: If its files do not exist.
    """
    if isinstance(source, Interleave) or source.missing_setting():  # the members of a mixture are read
        return ""
    if not source.enabled:
        return "it is not enabled"
    if with_remote:
        return None
    if getattr(source, "dataset", None) and not getattr(source, "local_key", None):
        return "its source is on the hub; --sources reads it"
    return "its source is remote; --sources reads it" if any(file.is_remote for file in source.every_file()) else None


def source_texts(registry: Registry, source: Source) -> Iterator[StoredText]:
    """Yield all documents of a source as builds see them before cleaning, also those that `exclude` names.

    Raises:
        NielsCacheError: If the source cannot be read.
    """
    files = source.every_file() if isinstance(source, SourceWithParts) else None
    context = StreamContext(seed=registry.build.seed, siblings=registry.pretrain, files=files or None)
    if isinstance(source, SftSource):
        for each in chain.from_iterable(source.conversations(context)):
            yield StoredText(each.source_id, each.file, each.row, contents(each))
        return
    for document in chain.from_iterable(source.documents(context)):  # type: ignore[attr-defined]  # the other family
        yield StoredText(document.source_id, document.file, document.row, [document.text])


def parquet_texts(path: Path) -> Iterator[list[StoredText]]:
    """Yield the rows of a Parquet file of a cache or a corpus, some thousands at a time.

    Raises:
        NielsCacheError: If the file cannot be read.
    """
    import pyarrow as pa

    with open_table(path, "rebuild this data set, or remove the file") as parquet:
        fields = [field for field in parquet.schema_arrow if field.name not in _NAMES and _has_text(field.type)]
        texts = sorted((field.name for field in fields), key=lambda name: name != "text")
        is_flat = all(pa.types.is_string(field.type) or pa.types.is_large_string(field.type) for field in fields)
        known = [name for name in ("source_id", "file", "row") if name in parquet.schema_arrow.names]
        for batch in parquet.iter_batches(batch_size=_ROWS, columns=[*texts, *known]):
            columns = {name: batch.column(name).to_pylist() for name in [*texts, *known]}
            origins = [columns.get(name) or [blank] * len(batch) for name, blank in (("source_id", ""), ("file", ""), ("row", 0))]
            rows = zip(*origins, *(columns[name] for name in texts), strict=True)
            yield [
                StoredText(source_id or "", file or "", row or 0, [*filter(None, own if is_flat else _strings(own))])
                for source_id, file, row, *own in rows
            ]


def _has_text(kind: Any) -> bool:
    """Return whether values of an Arrow type may have text, such as the messages of a conversation."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _has_text(kind.value_type)
    if pa.types.is_nested(kind):
        return any(_has_text(kind.field(number).type) for number in range(kind.num_fields))
    return "string" in str(kind) or "binary" in str(kind)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str | bytes):
        yield value if isinstance(value, str) else value.decode(errors="replace")
    elif isinstance(value, dict):
        yield from _strings([*value.values()])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _strings(each)


def kept_values(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the id of each row of a Parquet file of a cache or a corpus, and the values of the columns in `keep`, if it has any.

    Raises:
        NielsCacheError: If the file cannot be read.
    """
    with open_table(path, "rebuild this data set, or remove the file") as parquet:
        if "kept" in parquet.schema_arrow.names:
            for batch in parquet.iter_batches(batch_size=_ROWS, columns=["source_id", "kept"]):
                for source_id, kept in zip(*(batch.column(name).to_pylist() for name in ("source_id", "kept")), strict=True):
                    yield source_id, json.loads(kept or "{}")


class TokenText:
    """The text of tokens, also of tokens that are not of a cache.

    Attributes:
        problem: Why it may not be the text, or None.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._table = PieceTable(tokenizer)
        self._special = tokenizer.special_token_ids()["eot"]
        self.problem = self._table.problem

    def decode(self, tokens: Tokens) -> bytes:
        """Return the text of tokens. Special tokens, and ids that are not in the vocabulary, are a byte that is in no text."""
        known = np.where(tokens < len(self._table.pieces), tokens, self._special)
        return self._table.join(known, np.empty(0, np.int64))[0]


class CacheFolder(NamedTuple):
    """The cache of a data set or of a part of it, in a root.

    Attributes:
        family: The family.
        name: The name of the data set.
        directory: The folder.
    """

    family: str
    name: str
    directory: Path


def cache_folders(root: Path) -> Iterator[CacheFolder]:
    """Yield all caches of a root, then their parts."""
    for family in FAMILIES:
        for name in built_names(root / family):
            yield CacheFolder(family, name, root / family / name)
    for path in sorted(parts_root(root).glob(f"*/*/{META_NAME}")):
        yield CacheFolder("pretrain", path.parent.parent.name, path.parent)


class OpenedTokens(NamedTuple):
    """The tokens of a split, in files, and where its documents or examples end.

    Attributes:
        files: The files with the tokens.
        shards: These files, mapped.
        ends: The end of each document or example.
        lineage: The file of the lineage.
    """

    files: list[Path]
    shards: list[Tokens]
    ends: Ints
    lineage: Path


def open_tokens(directory: Path, meta: Meta) -> Iterator[tuple[Split, OpenedTokens]]:
    """Yield the splits of a cache.

    Raises:
        NielsCacheError: If a file is missing or damaged.
    """
    for split in SPLITS:
        if meta["kind"] == "sft":
            path, idx = directory / tokens_name(split), directory / idx_name(split)
            per_example = entries_per_example(meta)
            examples = open_examples(str(path), str(idx), pairs=per_example > 1)
            ends = np.append(examples.starts[::per_example][1:], len(examples.tokens))[: len(examples.starts) // per_example]
            yield split, OpenedTokens([path], [examples.tokens], ends.astype(np.int64), directory / examples_name(split))
        else:
            opened = open_split(directory / split, doc_ends=True)
            ends = require_doc_ends(directory / split, opened.doc_ends) if opened.shards else np.empty(0, np.int64)
            files = [Path(each) for each in opened.shards]
            yield split, OpenedTokens(files, opened.tokens.shards, ends.astype(np.int64), directory / documents_name(split))


def documents_of(tokens: OpenedTokens) -> Iterator[tuple[int, Ints, Tokens]]:
    """Yield the number of a first document, the ends of documents, and their tokens, some hundred thousand tokens at a time.

    The ends are relative to the first token.
    """
    first, start = 0, 0
    while first < len(tokens.ends):
        last = max(int(np.searchsorted(tokens.ends, start + _TOKENS, "right")), first + 1)
        end = int(tokens.ends[last - 1])
        yield first, tokens.ends[first:last] - start, np.concatenate([*slice_pieces(tokens.shards, start, end)] or [np.empty(0, np.uint16)])
        first, start = last, end


def regular_files(folders: Iterable[Path], unread: list[tuple[str, str]] | None = None) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield all regular files below folders. A folder may itself be a file.

    Args:
        folders: The folders.
        unread: Gets the folders that cannot be listed, and the links to other places, which are not followed, each with the reason.
    """
    given, noted = [*folders], [] if unread is None else unread
    inside = [Path(os.path.realpath(each)) for each in given]

    def note(error: OSError) -> None:
        noted.append((str(error.filename), error.strerror or str(error)))

    for folder, real in zip(given, inside, strict=True):
        walk = ((below, [*folders, *files]) for below, folders, files in os.walk(folder, onerror=note))
        for path in [real] if folder.is_file() else (Path(below, name) for below, names in walk for name in sorted(names)):
            try:
                found = path.lstat()
            except OSError:  # it is gone: a temporary file
                continue
            if stat.S_ISLNK(found.st_mode) and path.exists():
                target = Path(os.path.realpath(path))
                if not any(target.is_relative_to(each) for each in inside):
                    noted.append((str(path), f"a link to {target}, which is not followed; search it with --also"))
            if stat.S_ISREG(found.st_mode):
                yield path, found


def meta_of(directory: Path) -> Meta | None:
    """Return the meta.json of a folder, or None if it has none that can be read."""
    try:
        return read_meta(directory / META_NAME)
    except NielsCacheError:
        return None
