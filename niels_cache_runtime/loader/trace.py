"""The origin of the tokens of a batch (data set, file, offset and document).

Origins are computed from the step number; nothing is recorded during training. The parquet files beside the tokens describe each document
(its source, and its file in that source). The package niels_cache_assets reads these files (`niels-cache trace`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Array, Ints, Side, Tokens
from niels_cache_runtime.loader.mixture import Located
from niels_cache_runtime.loader.preference.rows import side_of
from niels_cache_runtime.loader.source import Source


@dataclass(frozen=True, kw_only=True)
class TokenOrigin:
    """The origin of one token.

    dataset: the name of the token's source. folder: the folder of its split.
    file, offset: the token file that holds the token, and the token's position in that file, in tokens.
    document: the number of the token's document, example or pair in the split. None for padding, and for a split without document ends.
    document_offset: the token's position in the document, in tokens from the document's start. None if `document` is None.
    epoch, number: the epoch of the source, and the number of the sample within the source.
    sample: the number of the sample within the run.
    token: the id of the token.
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
    """The origin of every token of one rank's batch.

    Arrays with one value per row are (B,) int64. Arrays with one value per token are (B, T+1); their column c is x[:, c] and y[:, c - 1].

    samples: numbers of the samples in the run. dataset_ids: index into `names` and `folders`.
    epochs, numbers: the epoch of each row's source, and the number of the sample in that source.
    tokens: token ids, uint16, or uint32 if a data set of the batch holds uint32.
    files: int64, index into the entry of `file_names` for the row's source. offsets: int64, in tokens from the start of the file.
    documents: int64, number of the document in the split. document_offsets: int64, in tokens from the start of the document.

    `files`, `offsets`, `documents` and `document_offsets` are -1 for padding. The last two are also -1 for an unknown document.
    """

    step: int
    names: tuple[str, ...]
    folders: tuple[str, ...]
    file_names: tuple[tuple[str, ...], ...]
    samples: Ints
    dataset_ids: Ints
    epochs: Ints
    numbers: Ints
    tokens: Tokens
    files: Ints
    offsets: Ints
    documents: Ints
    document_offsets: Ints

    def token(self, row: int, column: int) -> TokenOrigin:
        """Return the origin of the token at `row` (0..B-1) and `column` (0..T). Raises NielsCacheError outside these ranges."""
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
    names: Sequence[str], sources: Sequence[Source], *, step: int, samples: Ints, located: Located, side: Side | None = None
) -> BatchTrace:
    """Return the trace of the global samples `samples` (n,). `located` has their places. side: see `preference.rows.side_of`."""
    read_from = [side_of(source, side) for source in sources]
    found: list[tuple[Ints, dict[str, Array]]] = []
    for source, epoch, places in located.groups():
        numbers = located.numbers[places]
        tokens = read_from[source].read(numbers, epoch=epoch, boundaries=False).tokens
        found.append((places, {"tokens": tokens, **vars(read_from[source].origins(numbers, epoch=epoch))}))
    order = np.argsort(np.concatenate([places for places, _ in found]))
    arrays = {name: np.concatenate([own[name] for _, own in found])[order] for name in found[0][1]}
    return BatchTrace(
        step=step,
        names=tuple(names),
        folders=tuple(source.folder for source in sources),
        file_names=tuple(tuple(source.files) for source in sources),
        samples=samples,
        dataset_ids=located.sources,
        epochs=located.epochs,
        numbers=located.numbers,
        **arrays,
    )


def _known(value: np.int64) -> int | None:
    return None if value < 0 else int(value)
