"""The origin of the tokens of a batch: data set, file, offset, document.

It is computed from the step; nothing is recorded while training. The parquet files beside the tokens describe the documents (source, file
there); the asset package reads them (`niels-cache trace`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.loader.mixture import Located
from niels_cache_runtime.loader.source import Source


@dataclass(frozen=True, kw_only=True)
class TokenOrigin:
    """The origin of one token.

    dataset: the name of its source. folder: the folder of its split.
    file, offset: the file of tokens that holds it, and its position in that file, in tokens.
    document: the number of its document in the split; None for padding, and for a bare folder without documents.
    document_offset: its position in tokens from the start of the document.
    epoch, number: the epoch and the number of the sample within its source.
    sample: the number of the sample within the run. token: the id of the token.
    """

    dataset: str
    folder: str
    file: str | None
    offset: int | None
    document: int | None
    document_offset: int | None
    epoch: int
    number: int
    sample: int
    token: int


@dataclass(frozen=True, kw_only=True)
class BatchTrace:
    """The origin of every token of one rank's batch. Row arrays (B,) int64, token arrays (B, T+1): column c is x[:, c] and y[:, c - 1].

    samples: of the run. dataset_ids: index into `names` and `folders`. epochs, numbers: of the samples in their sources.
    tokens: uint16. files: index into the source's list in `file_names`. offsets: in tokens from the file's start. documents: ordinal
        in the split; document_offsets: in tokens from the document's start. These four int64, -1 if a token is padding or its
        document is unknown.
    """

    step: int
    names: tuple[str, ...]
    folders: tuple[str, ...]
    file_names: tuple[tuple[str, ...], ...]
    samples: NDArray[np.int64]
    dataset_ids: NDArray[np.int64]
    epochs: NDArray[np.int64]
    numbers: NDArray[np.int64]
    tokens: NDArray[np.uint16]
    files: NDArray[np.int64]
    offsets: NDArray[np.int64]
    documents: NDArray[np.int64]
    document_offsets: NDArray[np.int64]

    def token(self, row: int, column: int) -> TokenOrigin:
        """Return the origin of one token, row 0..B-1, column 0..T. Raises NielsCacheError outside these ranges."""
        rows, columns = self.tokens.shape
        if not 0 <= row < rows:
            raise NielsCacheError(f"row={row}: step {self.step} has rows 0 to {rows - 1}")
        if not 0 <= column < columns:
            raise NielsCacheError(f"column={column}: rows have columns 0 to {columns - 1} (the last is the last target)")
        source, place = int(self.dataset_ids[row]), (row, column)
        file = int(self.files[place])
        return TokenOrigin(
            dataset=self.names[source],
            folder=self.folders[source],
            file=None if file < 0 else self.file_names[source][file],
            offset=_known(self.offsets[place]),
            document=_known(self.documents[place]),
            document_offset=_known(self.document_offsets[place]),
            epoch=int(self.epochs[row]),
            number=int(self.numbers[row]),
            sample=int(self.samples[row]),
            token=int(self.tokens[place]),
        )


def trace_samples(
    names: Sequence[str], sources: Sequence[Source], *, step: int, samples: NDArray[np.int64], located: Located
) -> BatchTrace:
    """Return the trace of the global `samples` (n,), which are at `located`."""
    found: list[tuple[NDArray[np.int64], tuple[NDArray[np.generic], ...]]] = []
    for source, epoch, places in located.groups():
        numbers = located.numbers[places]
        origins = sources[source].origins(numbers, epoch=epoch)
        tokens = sources[source].read(numbers, epoch=epoch, boundaries=False).tokens
        found.append((places, (tokens, origins.files, origins.offsets, origins.documents, origins.document_offsets)))
    order = np.argsort(np.concatenate([places for places, _ in found]))
    tokens, files, offsets, documents, document_offsets = (
        np.concatenate(arrays)[order] for arrays in zip(*(arrays for _, arrays in found), strict=True)
    )
    return BatchTrace(
        step=step,
        names=tuple(names),
        folders=tuple(source.folder for source in sources),
        file_names=tuple(tuple(source.files) for source in sources),
        samples=samples,
        dataset_ids=located.sources,
        epochs=located.epochs,
        numbers=located.numbers,
        tokens=tokens,
        files=files,
        offsets=offsets,
        documents=documents,
        document_offsets=document_offsets,
    )


def _known(value: np.int64) -> int | None:
    return None if value < 0 else int(value)
