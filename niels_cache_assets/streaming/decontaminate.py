"""Keep out of train what val holds: the part of a build that tells val from train and counts what is left out.

    encoding threads: chunk -> tokens -> screen (once val is complete) --.
    the builder's thread, in order: admit: val is indexed ... then sealed; chunks that came too early to be screened are, here

Val is complete where the first document of train comes: from then on the index (val_index.py) does not change. The threads screen once
val's budget is met as well, since only then they can tell train from val as the builder's thread does; so it does not show in the result
which of them asked, and when. Cost of a build: some 10% exact, 20-40% near; val that is given ahead is tokenized once more. Memory:
bounded by val. Splitting is splits.py's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from niels_cache_assets.streaming.encode import describe_item
from niels_cache_assets.streaming.types import EncodedDocuments
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.streaming.val_index import ValIndex

Decontaminate = Literal["off", "exact", "near"]

CODE_VERSION = "1"  # bumped by hand when other documents are left out for the same input
REASONS = {"exact": "in_val", "near": "near_val"}


def decontamination_identity(kind: Decontaminate, threshold: float, *, val_is_given: bool) -> dict[str, Any]:
    """What decides which documents are left out, for fingerprints and meta.json. Empty where it is off.

    `val_is_given`: val's documents are read before the build; otherwise they are taken as the stream brings them.
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
    """A guard whose files lie, unlinked, in `folder`; None where `kind` is "off", which loads nothing.

    `val_is_full`: whether no document without a split goes to val any more; asked by any thread, and once True it stays so.
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
    """Indexes val's documents as they pass, and takes out of train's what equals or is near one of them."""

    def __init__(self, index: "ValIndex", val_is_full: Callable[[], bool]) -> None:
        self._index = index
        self._val_is_full = val_is_full

    @property
    def val_is_known(self) -> bool:
        """A document of train has come, so nothing is added to val's any more."""
        return self._index.sealed

    def read_val(self, batch: EncodedDocuments) -> None:
        """Index documents of val before the build: those that its stream may bring too late. Encoded, as only those come into val."""
        self._index.add_new([document.text for document in batch.documents])

    def screen(self, batch: EncodedDocuments) -> EncodedDocuments:
        """The batch without copies of val, if val is complete and no budget brings more of it; otherwise as it is. Any thread."""
        if not (self._index.sealed and self._val_is_full()):
            return batch
        return self._screened(batch, is_val=np.array([document.split == "val" for document in batch.documents], dtype=bool))

    def admit(self, batch: EncodedDocuments, *, is_val: np.ndarray) -> EncodedDocuments:
        """The batch as it may be written: val indexed, train without copies of val. Batches in stream order, on one thread.

        `is_val`: bool (documents,), who goes to val. Raises NielsCacheError for one not indexed that comes after a document of train.
        """
        train_begins = int(np.argmin(is_val)) if not is_val.all() else len(is_val)
        val = np.flatnonzero(is_val).tolist()
        if val:
            new = [val[index] for index in self._index.add_new([batch.documents[position].text for position in val])]
            late = next((position for position in new if self._index.sealed or position > train_begins), None)
            if late is not None:
                raise NielsCacheError(
                    f"{describe_item(batch.documents[late], late)}: is of val and comes after the first document of train, which was not"
                    " compared with it; decontaminate needs val first: order the stream so, or give val's documents as val_texts, too"
                )
        if train_begins == len(is_val):
            return batch
        self._index.seal()
        return batch if batch.screened else self._screened(batch, is_val=is_val)

    def _screened(self, batch: EncodedDocuments, *, is_val: np.ndarray) -> EncodedDocuments:
        candidates = np.flatnonzero(~is_val).tolist()
        matches = self._index.find([batch.documents[position].text for position in candidates])
        kept = np.ones(len(batch.documents), dtype=bool)
        dropped = batch.dropped.copy()
        for position, match in zip(candidates, matches, strict=True):
            if match is not None:
                kept[position] = False
                dropped[REASONS[match.kind]] += 1
        return replace(batch.keep(kept), dropped=dropped, screened=True)
