"""The import of Megatron-LM's tokens as a pretrain cache: PREFIX.bin becomes shards, and PREFIX.idx becomes the ends of documents.

Each split of the cache is made from one PREFIX. If a document has several sequences, they are joined. Megatron's files contain neither the
tokenizer nor the vocabulary nor EOT. The caller gives these values, or they are recorded as unknown. Cost: each token is read, checked and
written once, and read again by the runtime's verifier before the new cache replaces the old one. If the vocabulary is unknown and tokens
have more than 16 bits, they are read once more beforehand, to find the dtype that can hold all of them. Memory does not grow with tokens or
documents.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from niels_cache_assets.base.defaults import ROLE_KEYS
from niels_cache_assets.base.fingerprint import fingerprint_of
from niels_cache_assets.build_cache import CODE_VERSIONS
from niels_cache_assets.build_cache.base import choose_token_dtype, token_dtype_identity
from niels_cache_assets.build_cache.pretrain_writer import LINEAGE
from niels_cache_assets.disk.lineage_files import LineageWriter
from niels_cache_assets.disk.space import SpaceNeed, explain_disk_full, require_free_space
from niels_cache_assets.disk.staging import atomic_directory
from niels_cache_assets.disk.table_file import sealing
from niels_cache_assets.disk.writers import Files, NpyWriter, ShardWriter, require_shard_bytes
from niels_cache_runtime.cache.mmap import map_doc_ends
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import (
    DOC_ENDS_DTYPE,
    MAX_VOCAB_SIZE,
    META_NAME,
    SPLITS,
    TOKEN_DTYPE,
    TOKEN_DTYPES,
    Array,
    Ints,
    Split,
    doc_ends_name,
    documents_name,
    max_vocab_size,
)
from niels_cache_runtime.format.meta import Meta, content_sha256, write_meta
from niels_cache_runtime.megatron.indexed import IndexedDataset
from niels_cache_runtime.verify import verify_dataset

OnImportProgress = Callable[[str, int, int], None]  # "looking at", "importing" or "verifying"; bytes done, bytes in total

_DOCUMENTS = 1 << 16  # number of documents that are processed together
_TOKENS = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What is known about token ids. A value is None if it is unknown.

    Attributes:
        tokenizer_sha256: The hash of the tokenizer.
        vocab_size: The number of ids.
        special_ids: The ids of special tokens by role, including EOT.
    """

    tokenizer_sha256: str | None = None
    vocab_size: int | None = None
    special_ids: Mapping[str, int | None] | None = None

    @property
    def eot(self) -> int | None:
        return (self.special_ids or {}).get("eot")

    def check(self) -> None:
        """Raise NielsCacheError if a cache cannot hold the vocabulary, or if EOT is outside of it."""
        if self.vocab_size is not None and not 0 < self.vocab_size <= MAX_VOCAB_SIZE:
            raise NielsCacheError(f"vocab_size={self.vocab_size}: must be from 1 to {MAX_VOCAB_SIZE}, the most ids of a cache")
        largest = (self.vocab_size or MAX_VOCAB_SIZE) - 1
        if self.eot is not None and not 0 <= self.eot <= largest:
            raise NielsCacheError(f"eot={self.eot}: must be from 0 to {largest}, inside the vocabulary")


def import_megatron(
    prefixes: Mapping[Split, str | Path],
    out_dir: str | Path,
    *,
    vocabulary: Vocabulary,
    shard_bytes: int,
    token_dtype: str | None = None,
    progress: OnImportProgress = lambda what, done, total: None,
) -> Meta:
    """Build the cache `out_dir` from one PREFIX for each split, and return its meta.json.

    At the end, `out_dir` is replaced in one step. Documents without tokens are dropped (counted as `empty`). `append_eot` is recorded as
    true if EOT is known, each document ends with EOT, and no document contains another EOT. Otherwise facts contain the number of documents
    without EOT at the end and the number of EOTs inside documents. If EOT is not given, facts contain the id that all documents end with,
    if there is such an id.

    Args:
        prefixes: The PREFIX of each split. The one of train is required.
        out_dir: The folder of the new cache.
        vocabulary: What is known about token ids.
        shard_bytes: The size of a shard in bytes.
        token_dtype: "uint16-le" or "uint32-le". By default, uint32-le if the vocabulary has more than 65,536 ids or, if it is unknown, if a
            token needs it; otherwise uint16-le.
        progress: Called with ("looking at", "importing" or "verifying", bytes done, bytes in total).

    Raises:
        NielsCacheError: For the reasons of `require_prefixes`; if files cannot be read, are multimodal or contain no token; if a token does
            not fit into the dtype or the vocabulary; if the disk fails; or if the runtime's verifier finds a problem in the result.
    """
    vocabulary.check()
    require_prefixes(prefixes)
    opened = {split: _open(prefix) for split, prefix in prefixes.items()}
    if "train" not in opened or not len(opened["train"].tokens):
        raise NielsCacheError(f"{prefixes.get('train', out_dir)}: holds no tokens for train; nothing was imported")
    total = sum(indexed.tokens.nbytes for indexed in opened.values())
    dtype_name = _dtype_name(opened, vocabulary, token_dtype, total, progress)
    dtype = TOKEN_DTYPES[dtype_name]
    require_shard_bytes(shard_bytes, dtype)
    tokens = sum(len(indexed.tokens) for indexed in opened.values())
    need = SpaceNeed(bytes=tokens * dtype.itemsize, reason=f"{tokens:,} tokens")
    require_free_space(Path(out_dir), need)
    with explain_disk_full(need), atomic_directory(out_dir) as stage:
        files: Files = {}
        counts, done = _Counts(), 0
        for split in SPLITS:
            shards = ShardWriter(stage, split, dtype=dtype, shard_bytes=shard_bytes, files=files)
            _write_documents(stage, split, opened.get(split), counts, files)
            for size in _write_tokens(shards, stage, split, opened[split], vocabulary, counts) if split in opened else ():
                done += size
                progress("importing", done, total)
        meta = _meta(Path(out_dir).name, opened, vocabulary, counts, files, dtype_name=dtype_name, shard_bytes=shard_bytes)
        write_meta(stage / META_NAME, meta)
        findings = verify_dataset(stage, progress=partial(progress, "verifying"))
        if findings:
            raise NielsCacheError(f"{out_dir}: not imported, verification found {findings[0].path}: {findings[0].problem}")
    return meta


def as_prefix(given: str) -> str:
    """Return the PREFIX of a .bin and an .idx. The name of one of these files is also accepted, because shells complete file names."""
    path = Path(given)
    return str(path.with_suffix("")) if path.suffix in (".bin", ".idx") and path.is_file() else given


def require_prefixes(prefixes: Mapping[Split, str | Path]) -> None:
    """Raise NielsCacheError if a PREFIX has no files, or if two splits have the same PREFIX (val would be in train)."""
    for split, prefix in prefixes.items():
        for ending in (".bin", ".idx"):
            if str(prefix).endswith(ending) and Path(prefix).exists():
                raise NielsCacheError(f"{prefix}: is a file, not the prefix of a .bin and an .idx; leave out {ending}")
        for ending in (".idx", ".bin"):
            if not Path(f"{prefix}{ending}").is_file():
                raise NielsCacheError(f"{prefix}{ending}: no such file; give the prefix of a .bin and an .idx")
        if split != "train" and "train" in prefixes and Path(f"{prefix}.bin").samefile(f"{prefixes['train']}.bin"):
            raise NielsCacheError(f"{prefix}: is the prefix of train; give another prefix for {split}")


@dataclass
class _Counts:
    """The counts of an import.

    Attributes:
        documents: The number of documents with tokens, by split.
        tokens: The number of tokens, by split.
        empty: The number of documents without tokens.
        joined: The number of documents with several sequences.
        without_eot: The number of documents that do not end with EOT.
        eot_inside: The number of EOTs inside documents.
        lasts: Ids that documents end with: the only one, or at least two of several.
    """

    documents: dict[Split, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    tokens: dict[Split, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    empty: int = 0
    joined: int = 0
    without_eot: int = 0
    eot_inside: int = 0
    lasts: set[int] = field(default_factory=set)


def _open(prefix: str | Path) -> IndexedDataset:
    indexed = IndexedDataset(prefix)
    if indexed.sequence_modes is not None:
        raise NielsCacheError(f"{indexed.idx_path}: has modes, so it is multimodal; only data sets of tokens can be imported")
    return indexed


def _dtype_name(
    opened: Mapping[Split, IndexedDataset], vocabulary: Vocabulary, token_dtype: str | None, total: int, progress: OnImportProgress
) -> str:
    """Return the name of the dtype of the new cache's tokens. Tokens are read only if nothing else decides it."""
    if vocabulary.vocab_size is not None:
        return choose_token_dtype(vocabulary.vocab_size, token_dtype)
    least = choose_token_dtype((vocabulary.eot or 0) + 1, token_dtype)
    narrow = max_vocab_size(TOKEN_DTYPE) - 1
    if token_dtype is not None or TOKEN_DTYPES[least] != TOKEN_DTYPE:
        return least
    done = 0
    for indexed in opened.values():
        if np.iinfo(indexed.dtype).max <= narrow:
            continue
        for tokens in _blocks(indexed):
            if tokens.max() > narrow:
                return choose_token_dtype(MAX_VOCAB_SIZE, None)
            done += tokens.nbytes
            progress("looking at", done, total)
    return least


def _blocks(indexed: IndexedDataset) -> Iterator[Array]:
    """Yield the tokens of a .bin in blocks.

    Raises:
        NielsCacheError: If the .bin cannot be read.
    """
    try:
        with open(indexed.bin_path, "rb") as file:
            while block := file.read(_TOKENS * indexed.dtype.itemsize):
                yield np.frombuffer(block, dtype=indexed.dtype)
    except OSError as error:
        raise NielsCacheError(f"{indexed.bin_path}: cannot be read: {error.strerror or error}; copy the file again") from error


def _write_documents(root: Path, split: Split, indexed: IndexedDataset | None, counts: _Counts, files: Files) -> None:
    """Write the ends of the documents and their lineage; without `indexed`, there are none.

    In lineage, source_id and row are the document's number in the .idx. Empty documents are counted too.
    """
    first = 0
    with (
        sealing(LineageWriter(root, documents_name(split), LINEAGE, files)) as lineage,
        sealing(NpyWriter(root, doc_ends_name(split), DOC_ENDS_DTYPE, files)) as doc_ends,
    ):
        for starts, ends, sequences in _documents(indexed):
            kept = ends > starts
            rows = (first + np.flatnonzero(kept)).tolist()
            sizes = (ends - starts)[kept].tolist()
            file = "" if indexed is None else Path(indexed.bin_path).name
            doc_ends.write(ends[kept])
            lineage.write({"source_id": list(map(str, rows)), "file": [file] * len(rows), "row": rows, "tokens": sizes})
            counts.empty += len(ends) - len(rows)
            counts.joined += int(np.count_nonzero(sequences[kept] > 1))
            first += len(ends)
    counts.documents[split] = doc_ends.items


def _write_tokens(
    shards: ShardWriter, root: Path, split: Split, indexed: IndexedDataset, vocabulary: Vocabulary, counts: _Counts
) -> Iterator[int]:
    """Write the tokens of a split whose document ends are written. Yield the number of bytes of .bin after each read."""
    ends = map_doc_ends(root / doc_ends_name(split), token_count=len(indexed.tokens))
    dtype, eot = shards.dtype, vocabulary.eot
    limit = vocabulary.vocab_size or max_vocab_size(dtype)
    with sealing(shards):
        for block in _blocks(indexed):
            begin = shards.tokens
            outside = (block < 0) | (block >= limit) if limit <= np.iinfo(block.dtype).max else block < 0
            if outside.any():
                index = int(outside.argmax())
                reason = f"the vocabulary has {limit}" if vocabulary.vocab_size else f"tokens of this cache are {dtype.name}, below {limit}"
                raise NielsCacheError(f"{indexed.bin_path}: token {begin + index} is {block[index]}; {reason}")
            tokens = block.astype(dtype)
            first, stop = ends.searchsorted(np.array([begin + 1, begin + len(tokens) + 1], dtype=np.uint64))
            lasts = tokens[(ends[first:stop] - np.uint64(begin + 1)).astype(np.int64)]
            counts.lasts.update(np.unique(lasts)[:2].tolist())
            if eot is not None:
                ending = int(np.count_nonzero(lasts == eot))
                counts.without_eot += len(lasts) - ending
                counts.eot_inside += int(np.count_nonzero(tokens == eot)) - ending
            shards.write(tokens)
            yield block.nbytes
    counts.tokens[split] = shards.tokens


def _documents(indexed: IndexedDataset | None) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Yield (starts in tokens, ends in tokens, numbers of sequences) of the documents, block by block."""
    if indexed is None:
        return
    indices, itemsize = indexed.document_indices, indexed.dtype.itemsize
    pointers, tokens = indexed.sequence_pointers, len(indexed.tokens)
    for first in range(0, len(indices) - 1, _DOCUMENTS):
        block = indices[first : first + _DOCUMENTS + 1]
        bounds = np.full(len(block), tokens, dtype=np.int64)  # after the last sequence
        inside = block < len(indexed)
        bounds[inside] = pointers[block[inside]] // itemsize
        yield bounds[:-1], bounds[1:], np.diff(block)


def _meta(
    name: str,
    opened: Mapping[Split, IndexedDataset],
    vocabulary: Vocabulary,
    counts: _Counts,
    files: Files,
    *,
    dtype_name: str,
    shard_bytes: int,
) -> Meta:
    known = {
        "tokenizer_sha256": vocabulary.tokenizer_sha256,
        "vocab_size": vocabulary.vocab_size,
        "special_token_ids": {role: (vocabulary.special_ids or {}).get(role) for role in ROLE_KEYS},
    }
    prefixes = {split: Path(indexed.prefix).name for split, indexed in opened.items()}
    inputs: dict[str, Any] = {split: indexed.fingerprint for split, indexed in opened.items()}
    content = content_sha256(files)
    return {
        "kind": "pretrain",
        "built": True,
        "dataset_name": name,
        "dataset_config": None,
        "dataset_revision": fingerprint_of(inputs),
        "source": {"kind": "megatron", "prefixes": prefixes},
        "split_rule": "one prefix for each split",
        "seed": None,
        "token_dtype": dtype_name,
        **known,
        "append_eot": _all_end_with_eot(vocabulary, counts),
        "shard_bytes": shard_bytes,
        **{f"{split}_tokens": tokens for split, tokens in counts.tokens.items()},
        "documents": counts.documents,
        "dropped": {"empty": counts.empty} if counts.empty else {},
        "facts": _facts(vocabulary, counts),
        "fingerprint": fingerprint_of(
            {
                "content": content,
                **known,
                "shard_bytes": shard_bytes,
                "code_version": CODE_VERSIONS["pretrain"],
                **token_dtype_identity(dtype_name),
            }
        ),
        "files": files,
        "content_sha256": content,
    }


def _all_end_with_eot(vocabulary: Vocabulary, counts: _Counts) -> bool:
    return vocabulary.eot is not None and not counts.without_eot and not counts.eot_inside


def _facts(vocabulary: Vocabulary, counts: _Counts) -> dict[str, Any]:
    facts: dict[str, Any] = {"documents_of_several_sequences": counts.joined} if counts.joined else {}
    if vocabulary.eot is None:
        return facts | ({"every_document_ends_with": min(counts.lasts)} if len(counts.lasts) == 1 else {})
    if _all_end_with_eot(vocabulary, counts):
        return facts
    return facts | {"documents_without_eot": counts.without_eot, "eot_inside_documents": counts.eot_inside}
