"""Tombstones: the tokens of documents are overwritten in a finished cache, and every other token keeps its place.

    documents --> an id that no document holds --> new shards and lineage beside the cache --> one swap

A run that is in the middle of the cache continues: orders, plans and document ends are the same, and the loader masks every target with
the id (`niels_cache_runtime.format.layout.tombstone_id`). Special tokens such as EOT stay, so documents keep their ends. In the lineage,
the id, the file and the row of a struck document stay; the hash of its text and its other columns go. A later build without the documents
is the clean end.

Files that do not change are hard links to those of the cache until the old folder is gone. A process that has mapped the old shards still
reads them until it opens the cache again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_cache_assets.disk.build_lock import lock_target
from niels_cache_assets.disk.table_file import TEXT_HASH, ParquetWriter, lineage_files, sealing
from niels_cache_assets.disk.writers import Files
from niels_cache_assets.facts.split_tokens import SplitTokens
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import remove, replace_folder, sync
from niels_cache_runtime.format.layout import META_NAME, SPLITS, Family, Ints, Split, Tokens, copies_of, tombstone_id
from niels_cache_runtime.format.meta import Meta, content_sha256, is_hashed_content, read_meta, sha256_file, write_meta

if TYPE_CHECKING:
    import pyarrow as pa

_TOKENS_AT_ONCE = 1 << 22
_STAY = {"ordinal", "source_id", "file", "row", "tokens"}  # of the lineage of a struck document


def strike(folder: Path, family: Family, documents: Mapping[Split, Sequence[int]]) -> Meta:
    """Overwrite documents of a finished cache, and return its new meta.json. Documents that are struck already stay so.

    A kill at any moment leaves the old cache or the new one.

    Args:
        folder: The folder of the data set.
        family: Its family.
        documents: The numbers of the documents, examples or pairs in each split.

    Raises:
        BusyError: If a process is building the cache.
        NielsCacheError: If there is no such document, or if the cache has no id that no document holds.
        OSError: If a file cannot be written.
    """
    with lock_target(folder):
        meta = read_meta(folder / META_NAME)
        splits = {split: SplitTokens(folder, family, split, meta) for split in SPLITS}
        copies = [SplitTokens(folder, family, name, meta) for name in copies_of(meta)]  # of train
        known = meta.get("tombstones", {}).get("documents", {})
        wanted = {split: sorted({*documents.get(split, ())} - {*known.get(split, ())}) for split in SPLITS}
        for split, numbers in wanted.items():
            if numbers and not 0 <= numbers[0] <= numbers[-1] < len(splits[split].ends):
                raise NielsCacheError(
                    f"{folder}: {split} has {len(splits[split].ends):,} documents, so there is no document {numbers[-1]:,}"
                )
        if not any(wanted.values()):
            return meta
        token = tombstone_id(meta)
        token = _unused_id(folder, meta, [*splits.values(), *copies]) if token is None else token
        partial = folder.with_name(f".{folder.name}.gone")
        remove(partial)
        files = dict(meta["files"])
        for split, numbers in wanted.items():
            if numbers:
                _strike_lineage_of(folder, partial, splits[split], numbers, meta=meta, files=files)
                for tokens in (splits[split], *(copies if split == "train" else ())):
                    _strike_tokens(folder, partial, tokens, numbers, token=token, meta=meta, files=files)
        for path in folder.rglob("*"):
            copy = partial / path.relative_to(folder)
            if path.is_dir():
                copy.mkdir(parents=True, exist_ok=True)
            elif path.name != META_NAME and not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                _link(path, copy)
        struck = {split: sorted({*numbers, *known.get(split, ())}) for split, numbers in wanted.items()}
        tombstones = {"token_id": token, "documents": struck, "earlier": _earlier_files(meta, files)}
        new = {name: value for name, value in meta.items() if name not in ("meta_sha256", "forms")}
        write_meta(partial / META_NAME, {**new, "files": files, "content_sha256": content_sha256(files), "tombstones": tombstones})
        for place in (partial, *(path for path in partial.rglob("*") if path.is_dir())):
            sync(place)
        replace_folder(partial, folder)
        sync(folder.parent)
        remove(partial)
        return read_meta(folder / META_NAME)


def struck_tokens(tokens: SplitTokens, number: int, meta: Meta) -> Tokens:
    """Return the tokens of a document that are not special tokens, and of which a struck document has only the tombstone."""
    start, end = tokens.bounds(number)
    found = tokens.read(start, end - start)
    return found[~np.isin(found, _special_ids(meta))]


def _special_ids(meta: Meta) -> list[int]:
    return [each for each in meta["special_token_ids"].values() if each is not None]


def _unused_id(folder: Path, meta: Meta, splits: Sequence[SplitTokens]) -> int:
    """Return the largest id of the vocabulary that no token of the cache has, and that loaders do not add."""
    counts = np.zeros(meta["vocab_size"], dtype=np.int64)
    for block in (block for tokens in splits for shard in tokens.shards for block in _blocks(shard)):
        counts += np.bincount(block, minlength=len(counts))
    reserved = [*_special_ids(meta), *meta.get("fim_tokens", {}).values(), *meta.get("fim", {}).get("sentinels", ())]
    counts[[each for each in reserved if each < len(counts)]] = 1  # loaders add the tokens of FIM, which must not be masked
    unused = np.flatnonzero(counts == 0)
    if not len(unused):
        raise NielsCacheError(
            f"{folder}: all {len(counts):,} ids of the vocabulary occur in it, so no id can stand for a struck token; "
            "erase without --tombstone, which builds it again"
        )
    return int(unused[-1])


def _blocks(shard: Tokens) -> Iterator[Tokens]:
    for first in range(0, len(shard), _TOKENS_AT_ONCE):
        yield shard[first : first + _TOKENS_AT_ONCE]


def _strike_tokens(
    folder: Path, partial: Path, tokens: SplitTokens, numbers: Sequence[int], *, token: int, meta: Meta, files: Files
) -> None:
    """Write the shards of a split, or of a copy of train, without these documents into `partial`."""
    special, ends = _special_ids(meta), [0, *np.cumsum([len(shard) for shard in tokens.shards]).tolist()]
    bounds = [tokens.bounds(number) for number in numbers]
    for (first, last), path in zip(pairwise(ends), tokens.paths, strict=True):
        inside = [(max(start, first) - first, min(end, last) - first) for start, end in bounds if start < last and end > first]
        if inside:
            relative = path.relative_to(folder).as_posix()
            copy = partial / relative
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            written = np.memmap(copy, dtype=tokens.dtype, mode="r+")
            for start, end in inside:
                written[start:end][~np.isin(written[start:end], special)] = token
            written.flush()
            del written
            sync(copy)
            files[relative] = {"bytes": copy.stat().st_size, "sha256": sha256_file(copy)}


def _strike_lineage_of(folder: Path, partial: Path, tokens: SplitTokens, numbers: Sequence[int], *, meta: Meta, files: Files) -> None:
    """Write the lineage of a split without these documents into `partial`."""
    rows = 0
    for table in lineage_files(tokens.lineage, meta):
        with table.open() as parquet:
            count = parquet.metadata.num_rows
            own = np.array([number - rows for number in numbers if rows <= number < rows + count], dtype=np.int64)
            if len(own):
                _strike_lineage(parquet, partial, table.path.relative_to(folder).as_posix(), own, meta=meta, files=files)
            rows += count


def _strike_lineage(parquet: Any, partial: Path, relative: str, rows: Ints, *, meta: Meta, files: Files) -> None:
    (partial / relative).parent.mkdir(parents=True, exist_ok=True)
    columns = {field.name: str(field.type) for field in parquet.schema_arrow}
    with sealing(ParquetWriter(partial, relative, columns, files)) as writer:
        first = 0
        for group in range(parquet.num_row_groups):
            table = parquet.read_row_group(group)
            own = rows[(rows >= first) & (rows < first + len(table))] - first
            writer.write_table(_without(table, own, salt=f"{meta['content_sha256']} {relative} {first}"))
            first += len(table)


def _without(table: pa.Table, rows: Ints, *, salt: str) -> pa.Table:
    """Return a table of lineage in which rows say no more than where their document was."""
    import pyarrow as pa

    for number, field in enumerate(table.schema):
        if field.name not in _STAY and len(rows):
            values = table.column(number).to_pylist()
            for row in rows.tolist():
                values[row] = _number(f"{salt} {row}") if field.name == TEXT_HASH else "" if pa.types.is_string(field.type) else None
            table = table.set_column(number, field, pa.array(values, field.type))
    return table


def _number(salt: str) -> int:
    """Return a number in place of the hash of a text, which must not be guessed from the text. Readers need one that no other text has."""
    return int.from_bytes(blake2b(salt.encode(), digest_size=8).digest(), "little", signed=True)


def _link(path: Path, copy: Path) -> None:
    try:
        os.link(path, copy)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, copy)


def _earlier_files(meta: Meta, files: Files) -> list[Files]:
    """Return what `files` had before each time that documents were struck, where it differs from now. Readers know old states by it."""
    changed = {path: entry for path, entry in meta["files"].items() if files[path] != entry and is_hashed_content(path)}
    return [*({**changed, **earlier} for earlier in meta.get("tombstones", {}).get("earlier", [])), changed]
