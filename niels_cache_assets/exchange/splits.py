"""A split of a pretrain cache for an export.

It is read from front to back, in blocks, with ordinary reads, so memory use does not grow.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from niels_cache_runtime.cache.opening import OpenedSplit, require_doc_ends
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, Split, Uints
from niels_cache_runtime.format.meta import Meta, read_meta

_BLOCK_BYTES = 1 << 18  # fits the processor's cache; blocks of megabytes took at least twice as long


@dataclass(frozen=True, kw_only=True)
class ExportSplit:
    """A split to export.

    Attributes:
        name: The name of the data set.
        split: The split.
        folder: The folder of the split.
        opened: The open split.
    """

    name: str
    split: Split
    folder: Path
    opened: OpenedSplit

    @property
    def meta(self) -> Meta:
        """The content of meta.json, or nothing if there is none."""
        return self.opened.meta or {}

    @property
    def eot_id(self) -> int | None:
        """The id of the tokenizer's EOT, even if documents do not end with it, or None if meta.json names no EOT."""
        eot = (self.meta.get("special_token_ids") or {}).get("eot")
        return eot if isinstance(eot, int) else None

    @property
    def eot(self) -> int | None:
        """The id that all documents end with, or None if they do not end with EOT or if meta.json names no EOT."""
        return self.eot_id if self.meta.get("append_eot") is True else None

    @property
    def vocab_size(self) -> int | None:
        """The number of ids, or None if meta.json names none."""
        return self.meta.get("vocab_size")

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the tokens, uint16 or uint32."""
        return self.opened.tokens.dtype

    @property
    def tokens(self) -> int:
        return int(self.opened.tokens.shard_lengths.sum())

    @property
    def doc_ends(self) -> Uints:
        """The exclusive ends of the documents, in tokens: (documents,) uint64."""
        return require_doc_ends(self.folder, self.opened.doc_ends)

    def blocks(self, first: int, end: int) -> Iterator[bytes]:
        """Yield the tokens from `first` to `end` - 1 of the split, with the same bytes as in the cache."""
        begin, size = 0, self.dtype.itemsize
        for path, length in zip(self.opened.shards, self.opened.tokens.shard_lengths.tolist(), strict=True):
            start, left = max(first - begin, 0), (min(end - begin, length) - max(first - begin, 0)) * size
            begin += length
            if left <= 0:
                continue
            with open(path, "rb") as shard:
                shard.seek(start * size)
                while left:
                    block = shard.read(min(left, _BLOCK_BYTES))
                    if not block:
                        raise NielsCacheError(f"{path}: was cut short while it was being exported; rebuild this data set")
                    left -= len(block)
                    yield block

    def blocks_with_eot_before(self, first: int, end: int) -> Iterator[bytes]:
        """Yield the tokens from `first` to `end` - 1 of a stream that has EOT before each document.

        This stream is the last EOT of the split, then all other tokens in order. No other change is needed, because each document ends with
        exactly one EOT.
        """
        assert self.eot is not None
        if first == 0 and end:
            last = np.frombuffer(b"".join(self.blocks(self.tokens - 1, self.tokens)), dtype=self.dtype)
            if last[0] != self.eot:
                raise NielsCacheError(
                    f"{self.folder}: ends with token {last[0]} and not with EOT ({self.eot}); run niels-cache verify {self.name}"
                )
            yield last.tobytes()
        yield from self.blocks(max(first - 1, 0), end - 1)

    def require_same_build(self) -> None:
        """Raise NielsCacheError if the data set was rebuilt since it was opened, because some files may be from a different build."""
        if self.opened.meta is not None and read_meta(self.folder.parent / META_NAME) != self.opened.meta:
            raise NielsCacheError(f"{self.folder.parent}: was rebuilt while it was being exported; export it again")
