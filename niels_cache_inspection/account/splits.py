"""The documents of a split as planned: chunks with their places, values and figures, from lineage and the ends of documents.

Every count is compared: the tokens of each document in lineage with the ends of documents, and the sums with meta.json. Memory does not
grow with the split: a chunk is a row group of lineage, and what is kept for each document is in temporary files. Pretrain costs no reading
of tokens. The tokens of conversations are read once, to count sentinels and targets.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from niels_cache_assets.disk.table_file import TEXT_HASH, lineage_files
from niels_cache_assets.facts.split_tokens import SplitTokens
from niels_cache_assets.facts.targets import ExampleTargets
from niels_cache_inspection.account.dimensions import DIMENSIONS, UNKNOWN, Dimensions
from niels_cache_inspection.account.tables import INDEX, no_figures
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, Bools, Family, Ints, Split, entries_per_example
from niels_cache_runtime.format.meta import Meta, foreign_family, is_foreign, load_meta

_DOCUMENTS, _EXAMPLES = 65_536, 8_192  # in a chunk
_SORTED_AT_ONCE = 1 << 22
_MEMBERS = "interleave"  # the kind of source whose documents say from which data set they are: `member/file`


@dataclass(frozen=True, kw_only=True)
class AccountedCache:
    """A data set of the account.

    Attributes:
        name: Its name; for a data set outside of the root, the path of its folder.
        family: Its family.
        directory: Its folder.
        meta: Its meta.json.
    """

    name: str
    family: Family
    directory: Path
    meta: Meta

    @classmethod
    def open(cls, directory: Path, *, name: str | None = None) -> "AccountedCache":
        """Open a data set.

        Raises:
            NielsCacheError: If it has no meta.json, or an invalid one.
        """
        meta = load_meta(directory / META_NAME)
        family = foreign_family(meta) if is_foreign(meta) else meta["kind"]
        if family not in ("pretrain", "sft"):
            raise NielsCacheError(f"{directory}: is {family!r}, and an account has data sets of pretrain and SFT; give such a folder")
        return cls(name=name or meta.get("dataset_name") or directory.name, family=family, directory=directory, meta=meta)

    @property
    def special_ids(self) -> list[int]:
        """The ids of the tokens that the build has added to texts. Text never has one of them."""
        ids = {role: value for role, value in (self.meta.get("special_token_ids") or {}).items() if isinstance(value, int)}
        if self.family == "pretrain":
            ids = {role: value for role, value in ids.items() if role == "bos" or (role == "eot" and self.ends_with_eot)}
        return sorted(set(ids.values()))

    @property
    def ends_with_eot(self) -> bool:
        """Whether each document ends with EOT, and EOT is nowhere else."""
        return self.meta.get("append_eot") is True

    @property
    def begins_with_bos(self) -> bool:
        """Whether each document of pretrain begins with BOS."""
        return self.family == "pretrain" and isinstance((self.meta.get("special_token_ids") or {}).get("bos"), int)

    def tokens(self, split: Split) -> int:
        """Return the number of tokens that meta.json has for a split."""
        return int(self.meta.get(f"{split}_tokens") or 0) if self.meta.get("built", True) else 0

    def count(self, split: Split) -> int | None:
        """Return the number of documents or examples that meta.json has for a split, or None if it has none."""
        found = self.meta.get(f"{split}_examples") if self.family == "sft" else (self.meta.get("documents") or {}).get(split)
        return None if found is None else int(found)


@dataclass(frozen=True, kw_only=True)
class DocumentChunk:
    """Consecutive documents of a split.

    Attributes:
        first: The number of the first one.
        starts: The first token of each, counted in the split.
        ends: The token after its last one.
        values: Its value in each dimension.
        sources: Its source: the data set, and for mixtures the member.
        figures: Its figures, (documents, columns).
    """

    first: int
    starts: Ints
    ends: Ints
    values: dict[str, list[str]]
    sources: list[str]
    figures: Ints


class PlannedSplit:
    """A split of a cache.

    Args:
        cache: The cache.
        split: The split.

    Attributes:
        documents: The number of its documents or examples.

    Raises:
        NielsCacheError: If files are missing or inconsistent.
    """

    def __init__(self, cache: AccountedCache, split: Split) -> None:
        self.cache, self.split = cache, split
        self._tokens = SplitTokens(cache.directory, cache.family, split, cache.meta)
        if len(self._tokens) != cache.tokens(split):
            raise _unequal(cache, split, "tokens in its files", len(self._tokens), cache.tokens(split))
        self.ends: Any = self._tokens.ends
        self.documents = len(self.ends)
        expected = cache.count(split)
        if expected not in (None, self.documents):
            raise _unequal(cache, split, "documents in its files", self.documents, expected)

    def chunks(self, dimensions: Dimensions) -> Iterator[DocumentChunk]:
        """Yield all documents in chunks.

        Raises:
            NielsCacheError: If lineage does not agree with the ends of documents, or cannot be read.
        """
        repeated, first = self._repeated(), 0
        for lengths, kept, files in self._lineage():
            count = len(kept)
            ends = np.asarray(self.ends[first : first + count]).astype(np.int64)
            before = int(self.ends[first - 1]) if first else 0
            starts = np.append(before, ends[:-1])
            if len(ends) != count or (lengths is not None and not np.array_equal(ends - starts, lengths)):
                where = f"{self._tokens.lineage}: from document {first:,} on"
                raise NielsCacheError(f"{where}, its tokens differ from the ends of documents; rebuild this data set")
            yield DocumentChunk(
                first=first,
                starts=starts,
                ends=ends,
                values=dimensions.values(kept) if any(kept) else {name: [UNKNOWN] * count for name in DIMENSIONS},
                sources=[self.cache.name] * count if files is None else [self._source_of(file) for file in files],
                figures=self._figures(first, starts, ends, None if repeated is None else repeated[first : first + count]),
            )
            first += count
        if first != self.documents:
            raise _unequal(self.cache, self.split, "documents in its lineage", first, self.documents)

    @property
    def knows_repeats(self) -> bool:
        """Whether lineage has hashes of texts, so that texts that occur again are counted."""
        return self._columns(TEXT_HASH) == [TEXT_HASH]

    def _columns(self, *wanted: str) -> list[str]:
        files = lineage_files(self._tokens.lineage, self.cache.meta)
        if not files or not files[0].path.exists():
            return []
        with files[0].open() as parquet:
            return [name for name in wanted if name in parquet.schema_arrow.names]

    def _source_of(self, file: str | None) -> str:
        return f"{self.cache.name}: {(file or '').partition('/')[0] or UNKNOWN}"

    def _lineage(self) -> Iterator[tuple[Ints | None, list[str | None], list[str] | None]]:
        """Yield the tokens, the kept values and, for mixtures, the files of documents in chunks. Without lineage, nothing is kept."""
        size = _DOCUMENTS if self.cache.family == "pretrain" else _EXAMPLES
        is_mixture = (self.cache.meta.get("source") or {}).get("kind") == _MEMBERS
        columns = self._columns("tokens", "kept", *(["file"] if is_mixture else []))
        if not columns:
            for first in range(0, self.documents, size):
                yield None, [None] * min(size, self.documents - first), None
            return
        for table in lineage_files(self._tokens.lineage, self.cache.meta):
            with table.open(columns) as parquet:
                for rows in parquet.iter_batches(batch_size=size, columns=columns):
                    kept = rows.column("kept").to_pylist() if "kept" in columns else [None] * len(rows)
                    yield rows.column("tokens").to_numpy(), kept, rows.column("file").to_pylist() if is_mixture else None

    def _figures(self, first: int, starts: Ints, ends: Ints, repeated: Bools | None) -> Ints:
        figures, lengths = no_figures(len(starts)), ends - starts
        figures[:, INDEX["documents"]] = 1
        if self.cache.family == "pretrain":
            special = np.minimum(lengths, int(self.cache.ends_with_eot) + int(self.cache.begins_with_bos))
            targets = lengths
        else:
            special, targets = self._count_of_examples(first, starts, ends)
        figures[:, INDEX["special"]] = special
        figures[:, INDEX["targets"]], figures[:, INDEX["masked"]] = targets, lengths - targets
        is_repeated = np.zeros(len(starts), dtype=np.bool_) if repeated is None else repeated
        figures[:, INDEX["repeats"]] = np.where(is_repeated, lengths - special, 0)
        figures[:, INDEX["unique"]] = np.where(is_repeated, 0, lengths - special)
        return figures

    def _count_of_examples(self, first: int, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Return how many tokens of examples are special, and how many are targets."""
        begin, entries = int(starts[0]), entries_per_example(self.cache.meta)
        tokens = self._tokens.read(begin, int(ends[-1]) - begin)
        entry_ends = np.asarray(self._tokens.entry_ends[entries * first : entries * (first + len(starts))]).astype(np.int64)
        targets = ExampleTargets(self.cache.directory, self.split, self.cache.meta, token_count=len(self._tokens))
        mask = targets.mask(tokens, np.append(begin, entry_ends[:-1]) - begin, first=entries * first, begin=begin)
        is_special = np.isin(tokens, self.cache.special_ids)
        return np.add.reduceat(is_special, starts - begin, dtype=np.int64), np.add.reduceat(mask, starts - begin, dtype=np.int64)

    def _repeated(self) -> Any:
        """Return which documents have a text that occurred before, (documents,) bool, or None without hashes of texts.

        Hashes are in a temporary file. They are sorted in parts, by their first bits.
        """
        if not self.knows_repeats or not self.documents:
            return None
        hashes, found = temporary_array(self.documents, np.uint64), temporary_array(self.documents, np.bool_)
        first = 0
        for table in lineage_files(self._tokens.lineage, self.cache.meta):
            with table.open([TEXT_HASH]) as parquet:
                for rows in parquet.iter_batches(batch_size=_DOCUMENTS, columns=[TEXT_HASH]):
                    hashes[first : first + len(rows)] = rows.column(0).to_numpy().view(np.uint64)
                    first += len(rows)
        bits = max(0, (self.documents // _SORTED_AT_ONCE).bit_length())
        for part in range(1 << bits):
            places = self._places_of_part(hashes, part, bits)
            own = hashes[places]
            order = np.argsort(own, kind="stable")
            is_again = np.append(False, own[order][1:] == own[order][:-1])
            found[places[order[is_again]]] = True
        return found

    @staticmethod
    def _places_of_part(hashes: Any, part: int, bits: int) -> Ints:
        if not bits:
            return np.arange(len(hashes))
        step = _SORTED_AT_ONCE
        parts = (
            first + np.flatnonzero(hashes[first : first + step] >> np.uint64(64 - bits) == part) for first in range(0, len(hashes), step)
        )
        return np.concatenate([*parts])


def temporary_array(count: int, dtype: Any, columns: int | None = None) -> Any:
    """Return zeros, (count,) or (count, columns), in a temporary file that is deleted with the array. Small ones are in memory."""
    shape = (count,) if columns is None else (count, columns)
    if count < 1 << 20:
        return np.zeros(shape, dtype=dtype)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype=dtype, mode="w+", shape=shape)


def _unequal(cache: AccountedCache, split: Split, what: str, found: int, expected: int | None) -> NielsCacheError:
    return NielsCacheError(f"{cache.directory}: {split} has {found:,} {what}, but meta.json says {expected or 0:,}; rebuild this data set")
