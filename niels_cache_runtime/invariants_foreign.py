"""What must hold inside a data set whose meta.json another program wrote: no more than what that file itself says of its tokens.

Counts, ids below the vocabulary, and offsets that fit the tokens where there are any. No file is listed and nothing is hashed. How it is
checked: `invariants`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.foreign_meta import foreign_family
from niels_cache_runtime.formats import SPLITS, TOKEN_BYTES, Split, doc_ends_name, idx_name, list_shards, tokens_name
from niels_cache_runtime.invariants import Part, Problem, as_problem, tokens_of, total_problems
from niels_cache_runtime.meta import Meta
from niels_cache_runtime.offset_file import OffsetFile
from niels_cache_runtime.reading import Look


def foreign_parts(meta: Meta, folder: Path, sizes: Mapping[str, int]) -> Iterator[Part]:
    """Of both splits. sizes: bytes of the files that are there."""
    for split in SPLITS:
        yield _ForeignSplit(meta, folder, split, sizes)


class _ForeignSplit:
    def __init__(self, meta: Meta, folder: Path, split: Split, sizes: Mapping[str, int]) -> None:
        self._meta, self._folder, self._split, self._sizes = meta, folder, split, sizes
        self._family = foreign_family(meta)
        found = list_shards(folder / split) if self._family == "pretrain" else [folder / tokens_name(split)]
        self._files = [name for name in (path.relative_to(folder).as_posix() for path in found) if name in sizes]
        self._largest = dict.fromkeys(self._files, -1)
        self.inputs = frozenset(self._files)
        self.looks: dict[str, Look] = {name: self._looking_at(name) for name in self._files}

    def _looking_at(self, name: str) -> Look:
        def look(block: memoryview) -> None:
            self._largest[name] = max(self._largest[name], int(tokens_of(block).max(initial=0)))

        return look

    def problems(self) -> Iterator[Problem]:
        meta, split = self._meta, self._split
        for name in self._files:
            if self._sizes[name] % TOKEN_BYTES:
                yield name, f"{self._sizes[name]} bytes is no whole number of uint16 tokens"
            if self._largest[name] >= meta["vocab_size"]:
                yield name, f"holds id {self._largest[name]}, the vocabulary has {meta['vocab_size']}"
        tokens = sum(self._sizes[name] for name in self._files) // TOKEN_BYTES
        if f"{split}_tokens" in meta:
            yield from total_problems(meta, f"{split}_tokens", tokens)
        ends, starts = doc_ends_name(split), idx_name(split)
        try:
            if self._family == "sft":
                yield from total_problems(
                    meta, f"{split}_examples", len(OffsetFile.of_example_starts(self._folder / starts, token_count=tokens))
                )
            elif ends in self._sizes:
                OffsetFile.of_doc_ends(self._folder / ends, token_count=tokens)
        except NielsCacheError as error:
            yield as_problem(error, self._folder)
