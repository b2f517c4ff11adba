"""The cuts of a data set: places of repeated text that a step (lines or spans) leaves out of the documents of a corpus.

A step reads the text that the step before it has left, and its cuts are positions in this text. So cuts are applied step by step. They are
sorted by document, and read one row group at a time. One row group (24 bytes a cut) is in memory, for any number of cuts.
niels_cache_repeats finds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_cache_assets.base.strings import Objects
from niels_cache_assets.corpus.identity import require_unchanged
from niels_cache_assets.corpus.layout import duplicates_file
from niels_cache_assets.disk.table_file import open_table
from niels_cache_assets.sources.reading.keep import encode_kept, kept_values
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Ints
from niels_cache_runtime.format.meta import Meta

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_COLUMNS = ["ordinal", "start", "end"]


@dataclass(frozen=True, kw_only=True)
class CutList:
    """The cuts of one data set. Nothing is read before it is needed.

    Attributes:
        step: The step, lines or spans.
        name: The name of the data set.
        directory: The folder of the step's cuts.
        meta: Its meta.json.
    """

    step: str
    name: str
    directory: Path
    meta: Meta

    @property
    def counts(self) -> Meta:
        """The counts of this data set."""
        return self.meta["datasets"][self.name]

    @property
    def path(self) -> Path:
        """The file of the cuts."""
        return self.directory / duplicates_file(self.name)

    @contextmanager
    def _open(self) -> Iterator[pq.ParquetFile]:
        """Open the file of the cuts.

        Raises:
            NielsCacheError: If it cannot be read, or belongs to other cuts.
        """
        with open_table(self.path, "build it again with --force") as parquet:
            require_unchanged(self.directory, self.meta)
            yield parquet

    @cached_property
    def emptied(self) -> Ints:
        """The ordinals of the documents of which nothing is left, ascending."""
        found = [np.empty(0, np.int64)]
        if self.counts["emptied"]:
            with self._open() as parquet:
                for batch in parquet.iter_batches(columns=["ordinal", "emptied"]):
                    found.append(batch["ordinal"].filter(batch["emptied"]).unique().to_numpy())
        return np.unique(np.concatenate(found))

    @cached_property
    def _bounds(self) -> tuple[Ints, Ints]:
        """The first and the last ordinal of each row group."""
        with self._open() as parquet:
            groups = [parquet.metadata.row_group(number).column(0).statistics for number in range(parquet.num_row_groups)]
        groups = [each for each in groups if each is not None and each.has_min_max]  # a group without rows has none
        return np.array([each.min for each in groups], np.int64), np.array([each.max for each in groups], np.int64)

    @cached_property
    def _open_group(self) -> dict[int, list[Ints]]:
        return {}

    def _group(self, number: int) -> list[Ints]:
        """Return the columns of a row group. The last ones stay in memory."""
        if number not in self._open_group:
            with self._open() as parquet:
                table = parquet.read_row_group(number, columns=_COLUMNS)
            for old in [*self._open_group][:-1]:
                del self._open_group[old]
            self._open_group[number] = [table[name].to_numpy() for name in _COLUMNS]
        return self._open_group[number]

    def within(self, first: int, end: int) -> list[Ints]:
        """Return the columns `ordinal`, `start` and `end` of the cuts in the documents from ordinal `first` to `end`, (n,) int64 each."""
        firsts, lasts = self._bounds
        groups = range(int(np.searchsorted(lasts, first)), int(np.searchsorted(firsts, end)))
        none = [np.empty(0, np.int64)] * len(_COLUMNS)
        columns = [np.concatenate(parts) for parts in zip(none, *(self._group(number) for number in groups), strict=True)]
        chosen = slice(*np.searchsorted(columns[0], [first, end]))
        return [column[chosen] for column in columns]

    def apply(self, ordinals: Ints, texts: Objects, kept: Objects | None = None) -> None:
        """Cut texts in place.

        Args:
            ordinals: The ordinals of the documents, ascending, (n,).
            texts: Their texts, (n,).
            kept: Their kept values, (n,), to which the number of cuts and of cut bytes are added. None: they are not.

        Raises:
            NielsCacheError: If a cut does not fit its text.
        """
        if not len(ordinals):
            return
        cut, starts, ends = self.within(int(ordinals[0]), int(ordinals[-1]) + 1)
        documents, firsts = np.unique(cut, return_index=True)
        rows = np.searchsorted(ordinals, documents)
        bounds = [*firsts.tolist(), len(cut)]
        for number, (ordinal, row) in enumerate(zip(documents.tolist(), rows.tolist(), strict=True)):
            if ordinals[row] != ordinal:
                continue
            own = slice(bounds[number], bounds[number + 1])
            try:
                texts[row] = cut_text(texts[row], starts[own].tolist(), ends[own].tolist())
            except ValueError as error:
                raise NielsCacheError(
                    f"{self.path}: the cuts of document {ordinal} do not fit its text; build it again with --force"
                ) from error
            if kept is not None:
                counts = (own.stop - own.start, int((ends[own] - starts[own]).sum()))
                values: dict[str, Any] = dict(zip((f"{self.step}_cut", f"{self.step}_cut_bytes"), counts, strict=True))
                kept[row] = encode_kept({**kept_values(kept[row]), **values}, self.name, ordinal)


def cut_text(text: str, starts: Sequence[int], ends: Sequence[int]) -> str:
    """Return a text without these places, which are ascending positions in its UTF-8 bytes.

    Raises:
        ValueError: If they are not, or if a place divides a character.
    """
    data = text.encode()
    bounds = [position for place in zip(starts, ends, strict=True) for position in place]
    if bounds != sorted(bounds) or (bounds and bounds[-1] > len(data)):
        raise ValueError("the places are not in the text")
    return b"".join(data[start:end] for start, end in zip([0, *bounds[1::2]], [*bounds[::2], len(data)], strict=True)).decode()
