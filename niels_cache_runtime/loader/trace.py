"""The origin of the tokens of a batch: data set, file, offset and document.

Origins are computed from the step number. Nothing is recorded during training. The Parquet files beside the tokens describe each document
(its source, and its file in that source). The package niels_cache_assets reads these files (`niels-cache trace`).
"""

from dataclasses import dataclass

import numpy as np

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Array, Bools, Ints, Side, Tokens
from niels_cache_runtime.loader.preference.rows import side_of
from niels_cache_runtime.loader.run_order import SampleLocations
from niels_cache_runtime.loader.source import NamedSources, SampleSource, of_epoch


@dataclass(frozen=True, kw_only=True)
class TokenOrigin:
    """The origin of one token.

    Attributes:
        dataset: The name of the token's source.
        folder: The folder of its split.
        file: The token file that holds the token. None for padding and for a token that FIM added.
        offset: The token's position in that file, in tokens. None for padding and for a token that FIM added.
        document: The number of the token's document, example or pair in the split. None for padding, and for a split without document ends.
        document_offset: The token's position in the document, in tokens from the document's start. None if there is none.
        epoch: The epoch of the source.
        number: The number of the sample within the source.
        sample: The number of the sample within the run.
        token: The id of the token.
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

    @property
    def is_sentinel(self) -> bool:
        """Whether FIM added the token to its document, as one of <pre>, <suf> and <mid>."""
        return self.file is None and self.document is not None


@dataclass(frozen=True, kw_only=True)
class BatchTrace:
    """The origin of every token of one rank's batch.

    Column c of an array with one value per token is `x[:, c]` and `y[:, c - 1]` of the batch. `files`, `offsets`, `documents` and
    `document_offsets` are -1 for padding, and for a BOS that `bos_on_pieces` added. The last two are also -1 for an unknown document. A
    token that FIM added only has a document, and is listed in `sentinels`.

    Attributes:
        step: The step of the batch.
        names: The names of all sources.
        folders: The folders of their splits.
        file_names: The paths of their token files.
        samples: (B,) int64, the numbers of the samples in the run.
        dataset_ids: (B,) int64, the index of each row's source in `names` and `folders`.
        epochs: (B,) int64, the epoch of each row's source.
        numbers: (B,) int64, the number of the sample in that source.
        tokens: (B, T+1), token ids: uint16, or uint32 if a data set of the batch holds uint32.
        files: (B, T+1) int64, the index into the entry of `file_names` for the row's source.
        offsets: (B, T+1) int64, in tokens from the start of the file.
        documents: (B, T+1) int64, the number of the document in the split.
        document_offsets: (B, T+1) int64, in tokens from the start of the document.
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

    @property
    def sentinels(self) -> Bools:
        """Whether FIM added each token to its document, (B, T+1)."""
        return (self.files < 0) & (self.documents >= 0)

    def token(self, row: int, column: int) -> TokenOrigin:
        """Return the origin of one token.

        Args:
            row: The row, 0 to B - 1.
            column: The column, 0 to T.

        Returns:
            The origin of the token.

        Raises:
            NielsCacheError: Outside these ranges.
        """
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


def trace_samples(sources: NamedSources, *, step: int, samples: Ints, located: SampleLocations, side: Side | None) -> BatchTrace:
    """Return the trace of samples of the run.

    Args:
        sources: The open sources.
        step: The step, which the trace records.
        samples: (n,) int64, the numbers of the samples in the run.
        located: Their places.
        side: The side of preference pairs; see `preference.rows.side_of`.
    """
    every = [*sources.values()]
    found: list[tuple[Ints, dict[str, Array]]] = []
    for source, epoch, places in located.groups():
        numbers, own = located.numbers[places], side_of(of_epoch(every[source], epoch), side)
        origins = own.origins(numbers, epoch=epoch)
        if before := _files_of(every[source]).index(own.files[0]):
            origins.files[origins.files >= 0] += before
        found.append((places, {"tokens": own.read(numbers, epoch=epoch, boundaries=False).tokens, **vars(origins)}))
    order = np.argsort(np.concatenate([places for places, _ in found]))
    arrays = {name: np.concatenate([own[name] for _, own in found])[order] for name in found[0][1]}
    return BatchTrace(
        step=step,
        names=tuple(sources),
        folders=tuple(source.folder for source in every),
        file_names=tuple(tuple(_files_of(source)) for source in every),
        samples=samples,
        dataset_ids=located.sources,
        epochs=located.epochs,
        numbers=located.numbers,
        **arrays,
    )


def _files_of(source: SampleSource) -> list[str]:
    """Return the token files of a source and of its copies."""
    return [*source.files, *(file for copy in source.copies for file in copy.files)]


def _known(value: np.int64) -> int | None:
    return None if value < 0 else int(value)
