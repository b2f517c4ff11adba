"""Decontamination: keep documents of val out of train. This part of a build compares train with val and counts the documents it drops.

    encoding threads: chunk -> tokens -> screen (after val is complete) --.
    the builder's thread, in order: admit: val is indexed ... then sealed; chunks that came too early to be screened are, here

Val is complete when the first document of train comes: from then on the index (val_index.py) does not change. The threads screen only after
the budget of val is met, too: before that they cannot tell train from val as the builder's thread does. So the result does not depend on
which thread screens, and when. Cost of a build: about 10% more with exact, 20-40% with near. A val that is given in advance is tokenized
twice. Memory: bounded by val. The split of documents is in splits.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from niels_cache_assets.streaming.intake import describe_item
from niels_cache_assets.streaming.types import EncodedDocuments
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS

if TYPE_CHECKING:
    from niels_cache_assets.streaming.val_index import ValIndex

Decontaminate = Literal["off", "exact", "near"]

CODE_VERSION = "1"  # raise it by hand when other documents are dropped for the same input
VAL = SPLITS.index("val")
REASONS = {"exact": "in_val", "near": "near_val"}


def decontamination_identity(kind: Decontaminate, threshold: float, *, val_is_given: bool) -> dict[str, Any]:
    """Return the settings that decide which documents are dropped, for fingerprints and meta.json. Empty if decontamination is off.

    `val_is_given`: the documents of val are read before the build; otherwise they are taken from the stream.
    """
    if kind == "off":
        return {}
    identity: dict[str, Any] = {"kind": kind, "code_version": CODE_VERSION}
    if kind == "near":
        identity["threshold"] = threshold
    if val_is_given:
        identity["val_is_given"] = True
    return {"decontaminate": identity}


@contextmanager
def open_guard(kind: Decontaminate, threshold: float, folder: Path, *, val_is_full: Callable[[], bool]) -> "Iterator[TrainGuard | None]":
    """Yield a guard with unlinked files in `folder`, or None if `kind` is "off", which loads nothing.

    `val_is_full`: returns whether all further documents without a split go to train. Any thread may call it, and it never changes back to
    False.
    """
    if kind == "off":
        yield None
        return
    if kind not in REASONS:
        raise NielsCacheError(f"decontaminate is {kind!r}; choose from off, exact, near")
    from niels_cache_assets.streaming.val_index import ValIndex

    with ValIndex(kind, threshold=threshold, folder=folder) as index:
        yield TrainGuard(index, val_is_full)


class TrainGuard:
    """A guard that indexes the documents of val, and removes documents of train that equal, or are near to, one of them."""

    def __init__(self, index: "ValIndex", val_is_full: Callable[[], bool]) -> None:
        self._index = index
        self._val_is_full = val_is_full

    @property
    def val_is_known(self) -> bool:
        """Whether val is complete. Once the first document of train has come, no document is added to val."""
        return self._index.sealed

    def read_val(self, batch: EncodedDocuments) -> None:
        """Index documents of val before the build: its stream may bring them too late. Only encoded documents are in val."""
        self._index.add_new(batch.documents.text.tolist())

    def screen(self, batch: EncodedDocuments) -> EncodedDocuments:
        """Return the batch without copies of val; unchanged if val is not complete, or a budget may add to it. Any thread may call it."""
        if not (self._index.sealed and self._val_is_full()):
            return batch
        return self._screened(batch, is_val=batch.documents.split == VAL)

    def admit(self, batch: EncodedDocuments, *, is_val: np.ndarray) -> EncodedDocuments:
        """Return the batch to write: its val is indexed, and its train has no copies of val. Call it on one thread, with batches in stream
        order.

        `is_val`: bool (documents,), True for val. Raises NielsCacheError if a val document comes after a train document and is not in the
        index yet.
        """
        train_begins = int(np.argmin(is_val)) if not is_val.all() else len(is_val)
        val = np.flatnonzero(is_val).tolist()
        if val:
            new = [val[index] for index in self._index.add_new(batch.documents.text[val].tolist())]
            late = next((position for position in new if self._index.sealed or position > train_begins), None)
            if late is not None:
                (document,) = batch.documents[late : late + 1]
                raise NielsCacheError(
                    f"{describe_item(document, late)}: belongs to val, and comes after a document of train that was not"
                    " compared with it; decontaminate needs val first: put val first, or give its documents as val_texts, too"
                )
        if train_begins == len(is_val):
            return batch
        self._index.seal()
        return batch if batch.screened else self._screened(batch, is_val=is_val)

    def _screened(self, batch: EncodedDocuments, *, is_val: np.ndarray) -> EncodedDocuments:
        candidates = np.flatnonzero(~is_val).tolist()
        matches = self._index.find(batch.documents.text[candidates].tolist())
        kept = np.ones(len(batch.documents), dtype=bool)
        dropped = batch.dropped.copy()
        for position, match in zip(candidates, matches, strict=True):
            if match is not None:
                kept[position] = False
                dropped[REASONS[match.kind]] += 1
        return replace(batch.keep(kept), dropped=dropped, screened=True)
