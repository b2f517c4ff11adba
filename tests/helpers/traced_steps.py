"""Compares `steps_of` of a loader with what `trace` says of every token of the run."""

from typing import Any

import numpy as np

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.loader.document_steps import DocumentRead

_MOST_RANKS = 4


def traced_reads(loader: Any, *, until: int, **side: str) -> dict[str, list[DocumentRead]]:
    """Return the rows of the first steps of a run with tokens of each document, by source, as `trace` has them."""
    found: dict[str, list[DocumentRead]] = {name: [] for name in loader.names}
    for step in range(until):
        for rank in range(_MOST_RANKS):
            try:
                trace = loader.trace(step, rank=rank, **side)
            except NielsCacheError as error:
                if "ranks, counted from 0" in str(error) or "no row for rank" in str(error):
                    continue
                raise
            for row, documents in enumerate(trace.documents):
                name = trace.names[int(trace.dataset_ids[row])]
                for document in np.unique(documents[documents >= 0]).tolist():
                    columns = np.flatnonzero(documents == document)
                    of_row = (int(each[row]) for each in (trace.samples, trace.numbers))
                    offsets = trace.document_offsets[row, columns]
                    own = offsets[offsets >= 0]  # sentinels of FIM have none
                    place = int(columns[0]), int(columns[-1]) + 1, int(own.min()), len(own)
                    assert set(own.tolist()) == set(range(own.min(), own.min() + len(own))), "or FIM lost a token"
                    found[name].append(DocumentRead(document, document, int(trace.epochs[row]), step, rank, row, *place, *of_row))
    return {name: sorted(reads, key=lambda read: (read.document, read.sample)) for name, reads in found.items()}


def take_steps(loader: Any, steps: int) -> None:
    """Take so many steps. A pass that ends is followed by the next one."""
    end = loader.step + steps
    while loader.step < end:
        for _ in loader:
            if loader.step >= end:
                break


def check_steps(loader: Any, *, may_be_shorter: int = 0, **side: str) -> int:
    """Check that `steps_of` finds exactly what was read, and what comes next, and return how many rows it found.

    Args:
        loader: A loader that has taken some steps.
        may_be_shorter: How many columns a document may end earlier than said.
        **side: The side of pairs.
    """
    until, middle = loader.step, loader.step * 2 // 3
    seen = 0
    for name, expected in traced_reads(loader, until=until, **side).items():
        last = max((read.document for read in expected), default=0)
        documents = range(last + 1)
        found = loader.steps_of(documents, source=name, **side)
        reads = [*found.read]
        assert [read._replace(end=0) for read in reads] == [read._replace(end=0) for read in expected], name
        ends = [(read.end, own.end) for read, own in zip(reads, expected, strict=True)]
        assert all(end == own or own < end <= own + may_be_shorter for end, own in ends), name
        assert all(read.step >= until for read in found.next)
        earlier = loader.steps_of(documents, source=name, until=middle, **side)
        assert [*earlier.read] == [read for read in reads if read.step < middle], name
        later: dict[int, DocumentRead] = {}
        for read in (*reads, *found.next):
            if read.step >= middle:
                later.setdefault(read.document, read)
        assert {read.document: read for read in earlier.next} == later, name
        seen += len(reads)
    return seen
