"""Decontamination: it keeps documents of val out of train. It compares train with val, and drops and counts documents of train.

    encoding threads       chunk -> tokens -> screen: compare train with val, after val is complete
    the builder's thread   admit, in stream order: index val, then seal the index; compare the train documents that `screen` left out

Val is complete when the first document of train comes. After that, the index (val_index.py) does not change. The encoding threads compare
documents only if the token budget of val is met, too. Before that, an encoding thread cannot know which documents go to train; only the
builder's thread knows. So the result does not depend on which thread compares a document, or when. Cost: a build takes about 10% longer
with exact, and 20-40% longer with near. If val is given in advance, it is tokenized twice. Memory: bounded by the size of val. The splits
of documents are decided in splits.py.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from niels_cache_assets.documents import place_of
from niels_cache_assets.streaming.intake import describe_item
from niels_cache_assets.streaming.types import EncodedDocuments
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS

if TYPE_CHECKING:
    from niels_cache_assets.streaming.references import References, ReferenceTexts
    from niels_cache_assets.streaming.val_index import ValIndex

Decontaminate = Literal["off", "exact", "near"]

CODE_VERSION = "1"  # raise this by hand if a change drops different documents of the same input
VAL = SPLITS.index("val")
REASONS = {"exact": "in_val", "near": "near_val"}


def decontamination_identity(kind: Decontaminate, threshold: float, *, val_is_given: bool) -> dict[str, Any]:
    """Return the settings that decide which documents are dropped, for fingerprints and meta.json. Empty if decontamination is off.

    `val_is_given`: whether the documents of val are given before the build. If not, they are taken from the stream.
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
def open_guard(
    kind: Decontaminate,
    threshold: float,
    folder: Path,
    *,
    val_is_full: Callable[[], bool],
    references: "ReferenceTexts | None" = None,
) -> "Iterator[TrainGuard | None]":
    """Yield a TrainGuard, or None if `kind` is "off" and there are no `references`. Then nothing is imported.

    `references`: texts of other origin that stay out of train, too.
    `folder`: a folder for temporary files, which are unlinked at once. `val_is_full`: a function that returns whether all further documents
    without a split go to train. Any thread may call this function. After it has returned True, it never returns False. Raises
    NielsCacheError for an unknown `kind`.
    """
    if kind == "off" and references is None:
        yield None
        return
    if kind != "off" and kind not in REASONS:
        raise NielsCacheError(f"decontaminate is {kind!r}; choose from off, exact, near")
    with ExitStack() as opened:
        index, others = None, None
        if kind != "off":
            from niels_cache_assets.streaming.val_index import ValIndex

            index = opened.enter_context(ValIndex(kind, threshold=threshold, folder=folder))
        if references is not None:
            from niels_cache_assets.streaming.references import References

            others = opened.enter_context(References(references, folder=folder))
        yield TrainGuard(index, val_is_full, others)


class TrainGuard:
    """A guard that indexes the documents of val, and removes each document of train that equals, or is near to, a document of val.

    `index`: None without `decontaminate`. `references`: other texts that stay out of train, or None.
    """

    def __init__(self, index: "ValIndex | None", val_is_full: Callable[[], bool], references: "References | None" = None) -> None:
        self._index = index
        self._val_is_full = val_is_full
        self._references = references

    @property
    def val_is_known(self) -> bool:
        """Whether val is complete. After the first document of train, no document is added to val. Without an index, nothing is needed."""
        return self._index is None or self._index.sealed

    def read_val(self, batch: EncodedDocuments) -> None:
        """Index documents of val before the build, because the stream may bring them too late. Documents that encoding dropped are not
        indexed.
        """
        if self._index is not None:
            self._index.add_new(batch.documents.text.tolist())

    def screen(self, batch: EncodedDocuments) -> EncodedDocuments:
        """Return the batch without documents of train that are copies of val. Any thread may call this method.

        The batch is returned unchanged if val is not complete, or if the token budget of val is not met yet.
        """
        if not (self.val_is_known and self._val_is_full()):
            return batch
        return self._screened(batch, is_val=batch.documents.split == VAL)

    def admit(self, batch: EncodedDocuments, *, is_val: np.ndarray) -> EncodedDocuments:
        """Index the val documents of a batch, and return the batch without documents of train that are copies of val.

        Call this on one thread, with the batches in stream order. `is_val`: bool (documents,), True for val. Raises NielsCacheError if a
        document of val comes after a document of train and is not in the index yet.
        """
        if self._index is None:
            return batch if batch.screened else self._screened(batch, is_val=is_val)
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
        kept = np.ones(len(batch.documents), dtype=bool)
        drops = batch.drops.copy()
        overlaps = []
        if self._index is not None:
            matches = self._index.find(batch.documents.text[candidates].tolist())
            for position, match in zip(candidates, matches, strict=True):
                if match is not None:
                    kept[position] = False
                    drops.drop(REASONS[match.kind], place_of(next(iter(batch.documents[position : position + 1]))))
        if self._references is not None:
            candidates = [position for position in candidates if kept[position]]
            found = self._references.find(batch.documents.text[candidates].tolist())
            for position, overlap in zip(candidates, found, strict=True):
                if overlap is not None:
                    kept[position] = False
                    (document,) = batch.documents[position : position + 1]
                    drops.drop(overlap.reason, place_of(document))
                    origin = {"source_id": document.source_id, "file": document.file, "row": document.row}
                    overlaps.append({**origin, "reason": overlap.reason, "because": overlap.place._asdict(), "value": overlap.value})
        return replace(batch.keep(kept), drops=drops, screened=True, overlaps=tuple(overlaps))
