"""Decontamination, which keeps documents of val and texts of other origin out of train.

Texts of other origin are the val of other data sets, and questions of evaluations (`decontaminate_against`; corpus/held_out.py opens these
texts). Train is compared with them, and its matching documents are dropped and counted. dedup/text_set.py compares the texts.

    encoding threads       chunk -> tokens -> screen: compare train, after val is complete
    the builder's thread   admit, in stream order: add val, then seal the set; compare the train documents that `screen` left out

Val is complete when the first document of train comes. After that, its set does not change. The encoding threads compare
documents only if the token budget of val is met, too. Before that, an encoding thread cannot know which documents go to train; only the
builder's thread knows. So the result does not depend on which thread compares a document, or when. Cost: a build takes about 10% longer
with exact, and 20-40% longer with near. If val is given in advance, it is tokenized twice. Memory: bounded by the size of val. The splits
of documents are decided in splits.py.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from niels_cache_assets.base.config_path import is_name
from niels_cache_assets.base.documents import describe_origin
from niels_cache_assets.base.fingerprint import Identity
from niels_cache_assets.streaming.intake import describe_item, in_lists
from niels_cache_assets.streaming.types import EncodedDocuments
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS

if TYPE_CHECKING:
    from niels_cache_assets.dedup.text_set import TextSet
    from niels_cache_assets.sources.types import PretrainSource

Decontaminate = Literal["off", "exact", "near"]

CODE_VERSION = "1"  # raise this by hand if a change drops different documents of the same input
VAL = SPLITS.index("val")
REFERENCES_VERSION = "1"  # the same for `decontaminate_against`
REASONS = {"exact": "in_val", "near": "near_val"}
REASONS_OF_REFERENCES = {"exact": "in_held_out", "near": "near_held_out", "ngrams": "shares_ngrams_with_held_out"}


class ReferenceOrigin(NamedTuple):
    """The origin of a text that stays out of train.

    Attributes:
        of: The name of the data set, or "" for a file of questions.
        file: The name of the file.
        row: The number of the row in the file.
    """

    of: str
    file: str
    row: int


@dataclass(frozen=True, kw_only=True)
class ReferenceTexts:
    """Texts of other origin that stay out of train, and how they are compared.

    Attributes:
        identity: Everything that decides which documents are dropped, for fingerprints and meta.json.
        texts: Opens the texts.
        threshold: The Jaccard similarity from which a document is near a text (dedup/text_set.py).
        share: The share of the 13-grams of a text from which a document matches it (dedup/text_set.py).
        run: The number of consecutive words of a text from which a document matches it (dedup/text_set.py).
        units: What a word is (dedup/signatures.py).
    """

    identity: Identity
    texts: Callable[[], Iterator[tuple[ReferenceOrigin, str]]]
    threshold: float
    share: float
    run: int
    units: str = "words"


@dataclass(frozen=True, kw_only=True)
class Screen:
    """Texts that stay out of train.

    Attributes:
        texts: The set of the texts.
        reasons: The reason to drop a document, by the kind of its match.
        origins: The origin of each text. Empty if examples of the dropped documents are not kept.
    """

    texts: "TextSet"
    reasons: Mapping[str, str]
    origins: Sequence[ReferenceOrigin] = ()

    def find(self, texts: list[str]) -> list[str | None]:
        """Return for each text the reason to drop it, or None."""
        return [None if match is None else self.reasons[match.kind] for match in self.texts.find(texts)]


def decontamination_identity(kind: Decontaminate, threshold: float, *, val_is_given: bool) -> Identity:
    """Return the settings that decide which documents are dropped, for fingerprints and meta.json. Empty if decontamination is off.

    Args:
        kind: The value of `decontaminate`.
        threshold: The Jaccard similarity from which documents are near each other.
        val_is_given: Whether the documents of val are given before the build. If not, they are taken from the stream.
    """
    if kind == "off":
        return {}
    identity: Identity = {"kind": kind, "code_version": CODE_VERSION}
    if kind == "near":
        identity["threshold"] = threshold
    if val_is_given:
        identity["val_is_given"] = True
    return {"decontaminate": identity}


def references_identity(source: "PretrainSource", *, seed: int) -> Identity:
    """Return everything that decides which documents `decontaminate_against` drops, except the texts, which the revision covers.

    The result is empty without this key.

    Args:
        source: The table of the data set.
        seed: The seed of [build], which splits the other data sets.
    """
    if not source.decontaminate_against:
        return {}
    settings = {"threshold": source.decontaminate_threshold, "share": source.decontaminate_share, "words": source.decontaminate_words}
    names = [name for name in source.decontaminate_against if is_name(name)]
    others = {"data_sets": names, "seed": seed} if names else {}
    units = {} if source.decontaminate_units == "words" else {"units": source.decontaminate_units}
    return {"decontaminate_against": {**settings, **others, **units, "code_version": REFERENCES_VERSION}}


@contextmanager
def open_references(references: ReferenceTexts, *, folder: Path) -> Iterator[Screen]:
    """Yield the texts that stay out of train, as a sealed set.

    Args:
        references: The texts, and how they are compared.
        folder: A folder for temporary files, which are unlinked at once.
    """
    from niels_cache_assets.dedup.text_set import NGramLimits, TextSet

    origins = list[ReferenceOrigin]()
    limits = NGramLimits(references.share, references.run)
    with TextSet(near=references.threshold, ngrams=limits, units=references.units, folder=folder) as texts:
        for chunk in in_lists(references.texts()):
            texts.add([text for _, text in chunk])
            origins += [origin for origin, _ in chunk]
        texts.seal()
        yield Screen(texts=texts, reasons=REASONS_OF_REFERENCES, origins=origins)


@contextmanager
def open_guard(
    kind: Decontaminate, threshold: float, folder: Path, *, val_is_full: Callable[[], bool], references: ReferenceTexts | None
) -> "Iterator[TrainGuard | None]":
    """Yield a TrainGuard, or None if `kind` is "off" and there are no `references`. For None, no code that compares texts is imported.

    Args:
        kind: The value of `decontaminate`.
        threshold: The Jaccard similarity from which documents are near each other.
        folder: A folder for temporary files, which are unlinked at once.
        val_is_full: Returns whether all further documents without a split go to train. Any thread may call it. After it has returned True,
            it never returns False.
        references: Texts of other origin that stay out of train, too. None if there are none.

    Raises:
        NielsCacheError: If `kind` is unknown.
    """
    if kind != "off" and kind not in REASONS:
        raise NielsCacheError(f"decontaminate is {kind!r}; choose from off, exact, near")
    if kind == "off" and references is None:
        yield None
        return
    with ExitStack() as stack:
        val, others = None, None
        if kind != "off":
            from niels_cache_assets.dedup.text_set import TextSet

            val = stack.enter_context(TextSet(near=threshold if kind == "near" else None, folder=folder))
        if references is not None:
            others = stack.enter_context(open_references(references, folder=folder))
        yield TrainGuard(val, val_is_full, others)


class TrainGuard:
    """A guard that knows the documents of val, and removes each document of train that equals, or is near to, a document of val.

    Args:
        val: The set of the documents of val. None without `decontaminate`.
        val_is_full: See `open_guard`.
        references: Other texts that stay out of train. None if there are none.
    """

    def __init__(self, val: "TextSet | None", val_is_full: Callable[[], bool], references: Screen | None) -> None:
        self._val = val
        self._val_is_full = val_is_full
        screens = (None if val is None else Screen(texts=val, reasons=REASONS), references)
        self._screens = [screen for screen in screens if screen is not None]

    @property
    def val_is_known(self) -> bool:
        """Whether val is complete.

        After the first document of train, no document is added to val. Without `decontaminate`, no val is needed.
        """
        return self._val is None or self._val.sealed

    def read_val(self, batch: EncodedDocuments) -> None:
        """Add documents of val before the build, because they may come too late in the stream.

        Documents that encoding dropped are not added.
        """
        if self._val is not None:
            self._val.add_new(batch.documents.text.tolist())

    def screen(self, batch: EncodedDocuments) -> EncodedDocuments:
        """Return the batch without documents of train that are copies of val. Any thread may call this method.

        The batch is returned unchanged if val is not complete, or if the token budget of val is not met yet.
        """
        if not (self.val_is_known and self._val_is_full()):
            return batch
        return self._screened(batch, is_val=batch.documents.split == VAL)

    def admit(self, batch: EncodedDocuments, *, is_val: np.ndarray) -> EncodedDocuments:
        """Add the val documents of a batch to val, and return the batch without documents of train that are copies of val.

        Call this on one thread, with the batches in stream order.

        Args:
            batch: The documents.
            is_val: bool (documents,), True for val.

        Raises:
            NielsCacheError: If a document of val comes after a document of train and is not known yet.
        """
        if self._val is None:
            return batch if batch.screened else self._screened(batch, is_val=is_val)
        train_begins = int(np.argmin(is_val)) if not is_val.all() else len(is_val)
        val = np.flatnonzero(is_val).tolist()
        if val:
            new = [val[index] for index in self._val.add_new(batch.documents.text[val].tolist())]
            late = next((position for position in new if self._val.sealed or position > train_begins), None)
            if late is not None:
                raise NielsCacheError(
                    f"{describe_item(batch.documents.document(late), late)}: belongs to val, and comes after a document of train that was"
                    " not compared with it; decontaminate needs val first: put val first, or give its documents as val_texts, too"
                )
        if train_begins == len(is_val):
            return batch
        self._val.seal()
        return batch if batch.screened else self._screened(batch, is_val=is_val)

    def _screened(self, batch: EncodedDocuments, *, is_val: np.ndarray) -> EncodedDocuments:
        kept = np.ones(len(batch.documents), dtype=bool)
        drops = batch.drops.copy()
        overlaps = []
        for screen in self._screens:
            candidates = np.flatnonzero(~is_val & kept).tolist()
            for position, match in zip(candidates, screen.texts.find(batch.documents.text[candidates].tolist()), strict=True):
                if match is None:
                    continue
                kept[position] = False
                document, reason = batch.documents.document(position), screen.reasons[match.kind]
                drops.drop(reason, describe_origin(document))
                if screen.origins:
                    origin = {"source_id": document.source_id, "file": document.file, "row": document.row}
                    because = screen.origins[match.ordinal]._asdict()
                    overlaps.append({**origin, "reason": reason, "because": because, "value": match.similarity})
        return replace(batch.keep(kept), drops=drops, screened=True, overlaps=tuple(overlaps))
