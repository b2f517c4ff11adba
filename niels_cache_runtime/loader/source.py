"""The sources that a loader mixes: numbered samples, each a row of T+1 tokens with its boundaries and targets.

    sample number, epoch  --Source.read-->  Rows: tokens, document boundaries, targets
                          --Source.origins-->  Origins: file, offset and document of every token

A pretrain split gives windows of its stream (`windows`), an SFT split rows of packed examples (`packing`). The loader chooses the samples
and their order.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.format.meta import Meta


@dataclass(frozen=True, kw_only=True)
class Boundaries:
    """The starts of documents inside rows of T inputs and T targets.

    rows, columns: (K,) int64, sorted by row and then column, one entry for every document that begins at an input column 1..T-1.
        In every row a document begins at column 0; it is not listed.
    continues: (rows,) bool, whether the last target (column T of the row of T+1 tokens) belongs to the document of the last input.
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    continues: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Samples that were read.

    tokens: (n, T+1) uint16. boundaries: None unless requested. targets: (n, T) bool, whether a model should learn tokens[:, 1:];
    None for all of them.
    """

    tokens: NDArray[np.uint16]
    boundaries: Boundaries | None = None
    targets: NDArray[np.bool_] | None = None


@dataclass(frozen=True, kw_only=True)
class Origins:
    """The origins of the tokens of samples; arrays (n, T+1) int64, -1 if a token is padding or its document is unknown.

    files: index into the source's `files`. offsets: in tokens from the start of that file. documents: ordinal of the document
    (or example) in its split. document_offsets: in tokens from the start of that document.
    """

    files: NDArray[np.int64]
    offsets: NDArray[np.int64]
    documents: NDArray[np.int64]
    document_offsets: NDArray[np.int64]


class Source(Protocol):
    """A split of a cache as numbered samples; picklable, a copy opens the files again and refuses another build.

    folder: as the user gave it. files: paths of its token files. meta: its meta.json, None without one.
    fingerprint: hex, changes if any sample may have changed. samples: per epoch. tokens: per epoch, inputs that are not padding.
    examples: how many examples an epoch's rows hold, None for a stream of documents.
    packs: whether rows hold several examples, so that every model needs boundaries and targets.
    """

    folder: str
    files: list[str]
    meta: Meta | None
    samples: int
    tokens: int
    examples: int | None
    packs: bool

    @property
    def fingerprint(self) -> str: ...

    def read(self, numbers: NDArray[np.int64], *, epoch: int, boundaries: bool) -> Rows:
        """Read samples `numbers` (n,) of an epoch. `boundaries`: also find document boundaries (a packed source always does)."""
        ...

    def origins(self, numbers: NDArray[np.int64], *, epoch: int) -> Origins:
        """Return the origin of every token of the samples `numbers` (n,) of an epoch."""
        ...
