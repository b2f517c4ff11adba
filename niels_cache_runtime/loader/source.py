"""The sources that a loader mixes. A source has numbered samples; each is a row of T+1 tokens with its boundaries and targets.

    sample number, epoch  --SampleSource.read-->  SampleRows: tokens, document boundaries, targets
                          --SampleSource.origins-->  TokenOrigins: file, offset and document of every token

A pretrain split gives windows of its stream (`windows`). An SFT split gives rows of packed examples (`packing`). The loader chooses the
samples and their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Bools, Floats, Ints, Tokens
from niels_cache_runtime.format.meta import Meta


@dataclass(frozen=True, kw_only=True)
class DocumentStarts:
    """The starts of documents inside rows of T inputs and T targets.

    There is one entry for every document that begins at an input column 1..T-1. A document or a part of one begins at column 0 of every
    row; this start is not listed.

    Attributes:
        rows: (K,) int64, the row of each entry. Entries are sorted by row and then column.
        columns: (K,) int64, the column of each entry.
        continues: (rows,) bool, whether the last target (column T of the row of T+1 tokens) belongs to the document of the last input.
    """

    rows: Ints
    columns: Ints
    continues: Bools


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The tokens before those parts of documents in rows whose document began earlier, in the same document.

    Attributes:
        rows: (S,) int64, the row of each part.
        columns: (S,) int64, the column where it begins.
        tokens: (S, H), the tokens before it, the nearest one last. What lies before the document has any value.
        lengths: (S,) int64, how many of these tokens belong to the document.
    """

    rows: Ints
    columns: Ints
    tokens: Tokens
    lengths: Ints


@dataclass(frozen=True, kw_only=True)
class SampleRows:
    """Samples that were read.

    Attributes:
        tokens: (n, T+1) uint16 or uint32.
        boundaries: The starts of documents, or None unless requested.
        targets: (n, T) bool, whether a model should learn each of `tokens[:, 1:]`. None means all of them.
        ignored: The places of targets that a model should not learn, in the flattened targets. None if `targets` says it.
        padding: The places of padding in the flattened inputs, in ascending order, if pieces have padding of their own.
        filled: (n,) int64, the number of tokens of each row before its padding. None means T+1.
        heads: The tokens before parts of documents. None if there are none, or if the source was opened without `head`.
        weights: (n, T) float32, the weights of the targets. None means 1.
    """

    tokens: Tokens
    boundaries: DocumentStarts | None = None
    targets: Bools | None = None
    ignored: Ints | None = None
    padding: Ints | None = None
    filled: Ints | None = None
    heads: Heads | None = None
    weights: Floats | None = None


@dataclass(frozen=True, kw_only=True)
class TokenOrigins:
    """The origins of the tokens of samples. All arrays are (n, T+1) int64. Padding, and a BOS that was added, have -1 in all of them.

    A token that FIM added has only a document.

    Attributes:
        files: The index into the source's `files`.
        offsets: The position in that file, in tokens.
        documents: The number of the document (or example) in its split, -1 if unknown.
        document_offsets: The position in that document, in tokens, -1 if the document is unknown.
    """

    files: Ints
    offsets: Ints
    documents: Ints
    document_offsets: Ints


class DocumentRows(NamedTuple):
    """The rows of an epoch with tokens of some documents: an entry for each document and row. All arrays are (n,) int64.

    Attributes:
        documents: The number of the document (or example) in its split.
        numbers: The number of the sample in its source.
        firsts: The first column of the row that the document has, among T+1.
        ends: The column after the last one.
        offsets: The first token of the document that the row has, from the start of the document.
        tokens: How many tokens it has from there on. These are as many as the columns, but for what FIM adds.
    """

    documents: Ints
    numbers: Ints
    firsts: Ints
    ends: Ints
    offsets: Ints
    tokens: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceBlocks:
    """A source that is cut into blocks of consecutive files. All arrays are int64.

    Attributes:
        samples: (blocks + 1,). Block b has the samples `samples[b]` .. `samples[b + 1] - 1`. It may have none.
        files: (blocks + 1,). Block b has the files `files[b]` .. `files[b + 1] - 1`.
        tails: (blocks,), the number of tokens after the files of a block that the last sample of the block also reads.
        earlier: `samples` before each time that the source has grown. Without them, these are the first samples of the source.
    """

    samples: Ints
    files: Ints
    tails: Ints
    earlier: Sequence[Ints] = ()


class SampleSource(Protocol):
    """A split of a cache as numbered samples.

    A source can be pickled: a copy opens the files again, and raises an error if they belong to another build.

    Attributes:
        folder: The folder as the user gave it.
        files: The paths of the split's token files.
        meta: The content of the data set's meta.json, or None if there is no meta.json.
        fingerprint: A hex string that changes if any sample may have changed.
        samples: The number of samples per epoch.
        tokens: The number of inputs per epoch that are not padding.
        examples: The number of examples in the rows of an epoch, None for a stream of documents.
        packs: Whether rows hold several examples, so that every model needs boundaries and targets.
        copies: The sources that later epochs read instead; see `of_epoch`.
    """

    folder: str
    files: list[str]
    meta: Meta | None
    samples: int
    tokens: int
    examples: int | None
    packs: bool
    copies: Sequence[Any]

    @property
    def fingerprint(self) -> str: ...

    def fingerprint_of(self, meta: Meta) -> str:
        """Return the fingerprint with this meta.json of ours."""
        ...

    def read(self, numbers: Ints, *, epoch: int, boundaries: bool) -> SampleRows:
        """Read samples of an epoch.

        Args:
            numbers: (n,) int64, the numbers of the samples.
            epoch: The epoch.
            boundaries: Whether to find document boundaries. A source that packs examples finds them in any case.
        """

    def origins(self, numbers: Ints, *, epoch: int) -> TokenOrigins:
        """Return the origin of every token of the samples `numbers` (n,) of an epoch."""

    def samples_of(self, documents: Ints, *, epoch: int) -> DocumentRows:
        """Return the samples of an epoch with tokens of these documents: `origins` backwards. No token is read.

        Args:
            documents: (n,) int64, the numbers of documents, in ascending order, each once.
            epoch: The epoch.

        Raises:
            NielsCacheError: For a document that the split does not have, and for a split without document ends.
        """

    def blocks(self, files: int) -> SourceBlocks:
        """Return the blocks of `files` files each. The last block may have fewer."""


def check_numbers(folder: str, documents: Ints, count: int) -> None:
    """Raise NielsCacheError if some of these numbers are not below `count`."""
    if documents.max(initial=-1) >= count:
        raise NielsCacheError(f"document={documents.max()}: {folder} has documents 0 to {count - 1}")


_Source = TypeVar("_Source", bound=SampleSource)
NamedSources = Mapping[str, SampleSource]  # the sources of a run by name, in its order


def of_epoch(source: _Source, epoch: int) -> _Source:
    """Return what an epoch reads: the source, or one of its copies in turn."""
    return [source, *source.copies][epoch % (1 + len(source.copies))]
