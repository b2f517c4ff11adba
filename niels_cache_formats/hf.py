"""A cache as a `datasets.Dataset`, for training code that takes such an object: Trainer, accelerate, trl, a notebook.

    shards --memory map--> Arrow buffers over the same bytes --> documents | windows | examples

Tokens are not copied: columns are views of the mapped files, and a row is read when it is requested. The only exceptions are the few rows
that begin in one shard and end in the next. These rows are copied if the shards are not contiguous in memory (if the shard size is not a
multiple of a page). Memory: 8 bytes per row. Unpickling opens the cache again, even in a spawned worker process.

For order, blends, packing and exact resume, use `niels_cache_runtime.TokenLoader`. TokenLoader is also the faster reader, because a Dataset
converts rows to Python lists on their way to a batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, NamedSplit
from datasets.table import InMemoryTable

from niels_cache_assets.base.choices import raise_unknown_choice
from niels_cache_assets.project.registry import cache_root, load_registry
from niels_cache_runtime import NielsCacheError, open_cache
from niels_cache_runtime.cache.checks import check_positive
from niels_cache_runtime.cache.mmap import slice_pieces
from niels_cache_runtime.cache.opening import check_same_build_id
from niels_cache_runtime.cache.sft import example_target_mask, resolve_id
from niels_cache_runtime.cache.targets import map_targets
from niels_cache_runtime.catalog import Cache, CacheDataset, CacheSplit, TokenStream
from niels_cache_runtime.format.layout import (
    FAMILIES,
    IGNORE_INDEX,
    SIDES,
    SPLITS,
    Family,
    Ints,
    Split,
    Tokens,
    has_pairs,
    has_spans,
    token_dtype_of,
)
from niels_cache_runtime.format.meta import build_id, is_foreign, sha256_text
from niels_cache_runtime.format.reading import find_files

_MODULE_OF_1_0 = "niels_cache_assets.exchange.hf"  # of the transforms: `datasets` finds the results of `map` by their names
_FORM = 1  # version of rows and columns; part of the fingerprint with which `datasets` finds earlier results
_LABELS = "labels"  # with a chat template, the column that labels are made from; Trainer removes columns that no model takes
_FIRST_TOKEN, _BOUNDS = "first_token", "targets"  # what the column holds


def open_rows(name: str, split: str, T: int | None, cache_dir: str | Path | None) -> Dataset:
    """Return a split of a built data set. `niels_cache_assets.exchange.hf.to_hf_dataset` documents the arguments, rows and errors."""
    if split not in SPLITS:
        raise_unknown_choice(name, "no split", split, SPLITS)
    if T is not None:
        check_positive("T", T)
    cache = open_cache(cache_root(load_registry()) if cache_dir is None else cache_dir)
    found = _find(cache, name)
    opened = found.train if split == "train" else found.val
    root = str(Path(cache.root).absolute())
    table = _CacheTable(_arrow_table(opened, T), root, found.family, found.name, opened.split, T, build_id(found.meta))
    known = [_FORM, _content_identity(found), found.meta.get("tokenizer_sha256"), found.family, split, T]
    fingerprint = sha256_text(" ".join(map(str, known)))[:16]
    dataset = Dataset(table, split=NamedSplit(split), fingerprint=fingerprint)
    if found.family == "pretrain":
        return dataset
    if has_pairs(found.meta):
        return dataset.with_transform(_WithPairs(T=T))
    if has_spans(found.meta):
        return dataset.with_transform(_WithSpans(T=T))
    ids = {role: resolve_id(role, None, meta=found.meta, tokens_path=opened.folder) for role in ("eot", "asst")}
    return dataset.with_transform(_WithLabels(**ids, T=T))


def _content_identity(found: CacheDataset) -> str:
    """Return the identity of the content, for `datasets`.

    This is the hash of the content. If another program made the cache without a hash, it is the sizes and modification times of the files.
    """
    if not is_foreign(found.meta):
        return str(found.meta.get("content_sha256"))
    folder = Path(found.folder)
    return str([(name, size, (folder / name).stat().st_mtime_ns) for name, size in find_files(folder).sizes.items()])


def _find(cache: Cache, name: str) -> CacheDataset:
    families = {family: getattr(cache, family) for family in FAMILIES}
    family, _, own_name = name.partition("/")
    if family in families and own_name:
        return families[family][own_name]
    matches = [family for family, datasets in families.items() if name in datasets]
    if len(matches) > 1:
        raise NielsCacheError(f"{cache.root}: {name!r} is in both families; write {' or '.join(f'{family}/{name}' for family in matches)}")
    if not matches:
        raise_unknown_choice(cache.root, "no data set", name, [name for datasets in families.values() for name in datasets])
    return families[matches[0]][name]


def _arrow_table(split: CacheSplit, T: int | None) -> pa.Table:
    stream = split.stream
    token_type = pa.from_numpy_dtype(token_dtype_of(split.dataset.meta).newbyteorder("="))
    if split.dataset.family == "sft" or T is None:
        chunks = [pa.LargeListArray.from_arrays(pa.array(offsets), _values(tokens)) for tokens, offsets in _pieces(stream, stream.offsets)]
        if has_pairs(split.dataset.meta):
            ids = chunks[0] if chunks else pa.array([], pa.large_list(token_type))  # all tokens are in one file
            columns = {"input_ids": ids, _LABELS: _spans_of(split)}
            return pa.table({name: pa.FixedSizeListArray.from_arrays(sides, len(SIDES)) for name, sides in columns.items()})
        ids = pa.chunked_array(chunks, type=pa.large_list(token_type))
        return pa.table({"input_ids": ids, **({_LABELS: _spans_of(split)} if has_spans(split.dataset.meta) else {})})
    total = int(stream.offsets[-1])
    if total < T:
        raise NielsCacheError(f"{split.folder}: T={T} needs {T} tokens and this split has {total}")
    windows = np.arange(0, total + 1, T)
    chunks = [
        pa.FixedSizeListArray.from_arrays(_values(tokens[offsets[0] : offsets[-1]]), T) for tokens, offsets in _pieces(stream, windows)
    ]
    column = pa.chunked_array(chunks, type=pa.list_(token_type, T))
    return pa.table({"input_ids": column, "labels": column})


def _spans_of(split: CacheSplit) -> pa.StructArray:
    """Return the first token of each example in the split, and the bounds of its spans. The bounds are a view of their memory map."""
    offsets = split.stream.offsets
    spans = map_targets(Path(split.dataset.folder), split.split, starts=offsets[:-1], token_count=int(offsets[-1]))
    ends = np.append(0, 2 * spans.ends.astype(np.int64))
    bounds = pa.LargeListArray.from_arrays(pa.array(ends), _values(spans.bounds.reshape(-1)))
    return pa.StructArray.from_arrays([pa.array(offsets[:-1]), bounds], names=[_FIRST_TOKEN, _BOUNDS])


def _pieces(stream: TokenStream, offsets: Ints) -> Iterator[tuple[Tokens, Ints]]:
    """Yield (tokens, offsets of some rows in these tokens) for all rows between `offsets` (rows + 1,), in order.

    All rows inside one piece of the stream are yielded together, without a copy. A row that crosses into the next piece is yielded alone,
    as a copy.
    """
    ends = np.cumsum([len(piece) for piece in stream.pieces])
    row, rows = 0, len(offsets) - 1
    while row < rows:
        index = int(ends.searchsorted(offsets[row], side="right"))
        begin = int(ends[index]) - len(stream.pieces[index])
        stop = int(offsets.searchsorted(ends[index], side="right")) - 1  # rows before `stop` end inside this piece
        if stop > row:
            yield stream.pieces[index], offsets[row : stop + 1] - begin
            row = stop
            continue
        tokens = np.concatenate([*slice_pieces(stream.pieces[index:], *(offsets[row : row + 2] - begin).tolist())])
        yield tokens, np.array([0, len(tokens)])
        row += 1


def _values(tokens: Tokens) -> pa.Array:
    """Return an Arrow array that uses the memory of `tokens`, and keeps it mapped."""
    tokens = np.asarray(tokens, dtype=tokens.dtype.newbyteorder("="))  # copies if the byte orders of machine and file differ
    return pa.Array.from_buffers(pa.from_numpy_dtype(tokens.dtype), len(tokens), [None, pa.py_buffer(tokens)])


class _CacheTable(InMemoryTable):
    """A table that is pickled without its content, only with what `_open_table` opens again.

    A part that `datasets` cuts from it is an ordinary table.
    """

    def __init__(self, table: pa.Table, *opened: Any) -> None:
        super().__init__(table)
        self.opened = opened

    def replace_schema_metadata(self, *args: Any, **kwargs: Any) -> "_CacheTable":  # `datasets` calls this method to add its features
        return _CacheTable(self.table.replace_schema_metadata(*args, **kwargs), *self.opened)

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_table, (*self.opened, self.table.schema.metadata)


def _open_table(root: str, family: Family, name: str, split: Split, T: int | None, build: str | None, metadata: Any) -> _CacheTable:
    """Open a split of a cache again, which must still be the same build."""
    dataset = CacheDataset(root, family, name)
    check_same_build_id(dataset.folder, opened=build, reopened=build_id(dataset.meta))
    table = _arrow_table(dataset.train if split == "train" else dataset.val, T)
    return _CacheTable(table.replace_schema_metadata(metadata), root, family, name, split, T, build)


@dataclass(kw_only=True)
class _WithLabels:
    """A transform that adds `labels` to rows of SFT examples, and truncates the rows to T tokens."""

    __module__ = _MODULE_OF_1_0

    eot: int
    asst: int
    T: int | None

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        if "input_ids" not in batch:
            return batch
        rows = [np.asarray(row, dtype=np.int64) for row in batch["input_ids"]]
        starts = np.cumsum([0, *map(len, rows)])[:-1]
        tokens = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
        labels = np.where(example_target_mask(tokens, starts, self.asst, self.eot), tokens, IGNORE_INDEX)
        labels_of_rows = np.split(labels, starts)[1:]  # nothing comes before the first start
        return {
            **batch,
            "input_ids": [row[: self.T].tolist() for row in rows],
            "labels": [row[: self.T].tolist() for row in labels_of_rows],
        }


@dataclass(kw_only=True)
class _WithSpans:
    """The transform of `_WithLabels` for examples with target spans."""

    __module__ = _MODULE_OF_1_0

    T: int | None

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        if _LABELS not in batch:
            return {**batch, "input_ids": [row[: self.T] for row in batch["input_ids"]]} if "input_ids" in batch else batch
        if not all(isinstance(spans, dict) for spans in batch[_LABELS]):  # `map` has replaced them
            return batch
        if "input_ids" not in batch:
            raise NielsCacheError("labels are made from whole rows; read a row with its 'input_ids', such as dataset[0]['labels']")
        rows, labels = [], []
        for row, spans in zip(batch["input_ids"], batch[_LABELS], strict=True):
            tokens = np.asarray(row, dtype=np.int64)
            targets = np.full(len(tokens), IGNORE_INDEX)
            for begin, end in np.asarray(spans[_BOUNDS], dtype=np.int64).reshape(-1, 2) - spans[_FIRST_TOKEN]:
                targets[begin:end] = tokens[begin:end]
            rows.append(tokens[: self.T].tolist())
            labels.append(targets[: self.T].tolist())
        return {**batch, "input_ids": rows, _LABELS: labels}


@dataclass(kw_only=True)
class _WithPairs:
    """A transform that makes the columns of both sides from rows of preference pairs, and truncates each side to T tokens."""

    __module__ = _MODULE_OF_1_0

    T: int | None

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        pairs = {name: batch[name] for name in ("input_ids", _LABELS) if name in batch}
        result = {name: values for name, values in batch.items() if name not in pairs}
        for number, side in enumerate(SIDES):
            found = _WithSpans(T=self.T)({name: [sides[number] for sides in values] for name, values in pairs.items()})
            result |= {f"{side}_{name}": values for name, values in found.items()}
        return result
