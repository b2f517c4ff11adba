"""The steps of a run that read documents: `trace` backwards.

    documents --SampleSource.samples_of--> rows of an epoch --RunOrder.samples_of--> samples of the run --Steps.rows_of--> step, rank, row

Everything is computed from the position, and no token is read. The cost does not depend on the number of steps: each epoch that has begun
costs some calls of numpy for all documents together, and for SFT data sets its plan, which is made anew.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from niels_cache_runtime.cache.checks import check_whole
from niels_cache_runtime.format.layout import Ints
from niels_cache_runtime.loader.order import MAX_SAMPLES
from niels_cache_runtime.loader.packing.segments import number_ranges
from niels_cache_runtime.loader.run_order import RunOrder
from niels_cache_runtime.loader.source import SampleSource, of_epoch
from niels_cache_runtime.loader.steps import Position, Steps

Documents = Iterable[int | tuple[int, int, int]]
_EPOCHS_AHEAD = 3  # the first of them may lack a document, because a phase has a part of it, and a pass may drop the row in the next


class DocumentRead(NamedTuple):
    """A row of a batch that holds tokens of a document.

    Attributes:
        query: The index of the document in the request.
        document: The number of the document, example or pair in its split.
        epoch: The epoch of its source.
        step: The step of the run.
        rank: The rank.
        row: The row in the batch of this rank.
        first: The first column of the row with a token of the document, 0 to T, as `TokenLoader.trace` counts them.
        end: The column after the last one.
        offset: The first token of the document that the row has, from the start of the document.
        tokens: How many tokens it has from there on. With `fim`, they stand in another order, and there are columns between them.
        sample: The number of the sample in the run.
        number: The number of the sample in its source.
    """

    query: int
    document: int
    epoch: int
    step: int
    rank: int
    row: int
    first: int
    end: int
    offset: int
    tokens: int
    sample: int
    number: int


@dataclass(frozen=True, eq=False)
class DocumentReads:
    """Rows of batches that hold tokens of documents, sorted by query and sample. Iteration gives a DocumentRead for each.

    The attributes are those of DocumentRead, each (n,) int64.
    """

    queries: Ints
    documents: Ints
    epochs: Ints
    steps: Ints
    ranks: Ints
    rows: Ints
    firsts: Ints
    ends: Ints
    offsets: Ints
    tokens: Ints
    samples: Ints
    numbers: Ints

    def __len__(self) -> int:
        return len(self.documents)

    def __iter__(self) -> Iterator[DocumentRead]:
        return (DocumentRead(*values) for values in zip(*(each.tolist() for each in vars(self).values()), strict=True))

    @classmethod
    def joined(cls, parts: Iterable["DocumentReads"], *, only_first: bool = False) -> "DocumentReads":
        """Return several of them as one.

        Args:
            parts: The parts.
            only_first: Whether to keep only the first row of each document.
        """
        values = np.concatenate([np.stack([*vars(part).values()]) for part in parts], axis=1)
        values = values[:, np.lexsort((values[-2], values[0]))]
        return cls(*(values[:, np.unique(values[0], return_index=True)[1]] if only_first else values))

    def chosen(self, which: np.ndarray) -> "DocumentReads":
        """Return those that an index of numpy chooses."""
        return DocumentReads(*(each[which] for each in vars(self).values()))

    def moved(self, steps: int, samples: int) -> "DocumentReads":
        """Return the same rows, counted from so many steps and samples earlier on."""
        return replace(self, steps=self.steps + steps, samples=self.samples + samples)


@dataclass(frozen=True, kw_only=True, eq=False)
class DocumentSteps:
    """Where a run reads documents.

    Attributes:
        until: The number of steps that the run has taken.
        read: The rows before this step.
        next: The next row of each document from this step on, if the run goes on as it is. A document has none if no later row holds it,
            or none in the next epochs of its source or the next 1,000 passes.
    """

    until: int
    read: DocumentReads
    next: DocumentReads


class Wanted(NamedTuple):
    """Tokens of documents. All arrays are (n,) int64.

    Attributes:
        documents: The numbers of the documents.
        starts: The first token of each document that counts.
        ends: The token after the last one.
    """

    documents: Ints
    starts: Ints
    ends: Ints

    @classmethod
    def checked(cls, documents: Documents) -> "Wanted":
        """Return the tokens that a caller gives.

        Raises:
            NielsCacheError: For a number out of range.
        """
        given = [each if isinstance(each, tuple) else (each, 0, MAX_SAMPLES) for each in documents]
        numbers = [[check_whole("document", number, most=MAX_SAMPLES) for number in each] for each in given]
        return cls(*np.array(numbers, dtype=np.int64).reshape(-1, 3).T)


def find_steps(
    name: str, source: SampleSource, wanted: Wanted, *, run_order: RunOrder, steps: Steps, position: Position, until: int
) -> DocumentSteps:
    """Return where a run reads documents of a source.

    Args:
        name: The name of the source.
        source: The source.
        wanted: The documents.
        run_order: The order of the run.
        steps: The steps of the run, of any rank.
        position: Its position.
        until: The step.

    Raises:
        NielsCacheError: For a document that the split does not have, and if the run ends before the step.
    """
    taken = steps.samples_before(position, until)

    def rows_in(epochs: Iterable[int], indices: Ints) -> DocumentReads:
        indices = indices[wanted.documents[indices].argsort(kind="stable")]
        documents = wanted.documents[indices]
        found = []
        for epoch in epochs:
            own = of_epoch(source, epoch).samples_of(np.unique(documents), epoch=epoch)
            samples = run_order.samples_of(name, epoch, own.numbers)
            found.append((own.documents, np.full_like(samples, epoch), *own[2:], samples, own.numbers))
        numbers, of_epochs, firsts, ends, offsets, tokens, samples, of_source = map(np.concatenate, zip(*found, strict=True))
        of_rows, places = number_ranges(documents.searchsorted(numbers), documents.searchsorted(numbers, side="right"))
        columns = numbers, of_epochs, *steps.rows_of(position, samples), firsts, ends, offsets, tokens, samples, of_source
        rows = DocumentReads(indices[places], *(column[of_rows] for column in columns))
        is_inside = (rows.offsets < wanted.ends[rows.queries]) & (rows.offsets + rows.tokens > wanted.starts[rows.queries])
        return rows.chosen(is_inside & (rows.steps >= 0))

    begun, missing = run_order.epochs_begun(name, taken), np.arange(len(wanted.documents))
    rows = rows_in(begun, missing)
    following = [rows.chosen(rows.samples >= taken)]
    for epoch in range(begun.stop, begun.stop + _EPOCHS_AHEAD):
        missing = np.setdiff1d(missing, following[-1].queries)
        if not len(missing):
            break
        following.append(rows_in([epoch], missing))
    read = DocumentReads.joined([rows.chosen(rows.samples < taken)])
    return DocumentSteps(until=until, read=read, next=DocumentReads.joined(following, only_first=True))
