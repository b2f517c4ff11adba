"""What must hold inside a data set whose meta.json another program wrote: no more than what that file itself says of its tokens.

Counts, ids below the vocabulary, and offsets that fit the tokens where there are any. No file is listed, and there is no hash to compare
with. How it is checked: `invariants`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.foreign_meta import foreign_family
from niels_cache_runtime.format.layout import SPLITS, TOKEN_BYTES, Split, doc_ends_name, idx_name, list_shards, tokens_name
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.format.reading import Look
from niels_cache_runtime.verify.invariants import Part, Problem, as_problem, tokens_of, total_problems
from niels_cache_runtime.verify.offset_file import OffsetFile


def foreign_parts(meta: Meta, folder: Path, sizes: Mapping[str, int]) -> Iterator[Part]:
    """Of both splits. sizes: bytes of the files that are there."""
    for split in SPLITS:
        yield _ForeignSplit(meta, folder, split, sizes)


def foreign_size_problems(meta: Meta, folder: Path, sizes: Mapping[str, int]) -> Iterator[Problem]:
    """What of both splits shows without reading a file. Raises NielsCacheError if a shard is missing between others."""
    for split in SPLITS:
        yield from _ForeignSplit(meta, folder, split, sizes).size_problems()


class _ForeignSplit:
    def __init__(self, meta: Meta, folder: Path, split: Split, sizes: Mapping[str, int]) -> None:
        self._meta, self._folder, self._split, self._sizes = meta, folder, split, sizes
        self._family = foreign_family(meta)
        found = list_shards(folder / split) if self._family == "pretrain" else [folder / tokens_name(split)]
        self._files = [name for name in (path.relative_to(folder).as_posix() for path in found) if name in sizes]
        self._tokens = sum(sizes[name] for name in self._files) // TOKEN_BYTES
        self._needed = (tokens_name(split), idx_name(split)) if self._family == "sft" else ()
        self._missing = [name for name in self._needed if name not in sizes]
        self._largest = dict.fromkeys(self._files, -1)
        self.inputs = frozenset(self._files)
        self.looks: dict[str, Look] = {name: self._looking_at(name) for name in self._files}

    def _looking_at(self, name: str) -> Look:
        def look(block: memoryview) -> None:
            self._largest[name] = max(self._largest[name], int(tokens_of(block).max(initial=0)))

        return look

    def size_problems(self) -> Iterator[Problem]:
        """Those of sizes alone."""
        for name in self._files:
            if self._sizes[name] % TOKEN_BYTES:
                yield name, f"{self._sizes[name]} bytes is no whole number of uint16 tokens"
        if f"{self._split}_tokens" in self._meta:
            yield from total_problems(self._meta, f"{self._split}_tokens", self._tokens)
        if self._missing and len(self._missing) == len(self._needed):  # as an empty pretrain split has no shards
            yield from total_problems(self._meta, f"{self._split}_examples", 0)
        else:
            yield from ((name, "missing, or no plain file; a split of conversations needs it") for name in self._missing)

    def problems(self) -> Iterator[Problem]:
        yield from self.size_problems()
        for name, largest in self._largest.items():
            if largest >= self._meta["vocab_size"]:
                yield name, f"holds id {largest}, the vocabulary has {self._meta['vocab_size']}"
        ends, starts = doc_ends_name(self._split), idx_name(self._split)
        try:
            if self._family == "pretrain" and ends in self._sizes:
                OffsetFile.of_doc_ends(self._folder / ends, token_count=self._tokens)
            elif self._needed and not self._missing:
                found = len(OffsetFile.of_example_starts(self._folder / starts, token_count=self._tokens))
                yield from total_problems(self._meta, f"{self._split}_examples", found)
        except NielsCacheError as error:
            yield as_problem(error, self._folder)
