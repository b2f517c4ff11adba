"""An index of texts that stay out of train: the val of other data sets, and questions of evaluations (`decontaminate_against`). held_out.py
opens these texts.

A document of train overlaps a text of the index in one of three ways, and the first one counts:

* exact: both have the same canonical text.
* near: the Jaccard similarity of their word 5-grams reaches a threshold (val_index.py, exactly).
* n-grams (13 words, as in Brown et al. 2020, GPT-3): the document has at least a share of the 13-grams of one text, or a run of words as
  long as a limit that is in the texts. So a question inside a long page is found. A text of fewer than 13 words has no such n-gram.

Memory: that of val_index.py, and 12 bytes for each word of the texts. The cost of a document is about that of `decontaminate = "near"`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from niels_cache_assets.dedup.canonical import canonical_text
from niels_cache_assets.dedup.signatures import Signer
from niels_cache_assets.sources.config_path import is_name
from niels_cache_assets.streaming.intake import in_lists
from niels_cache_assets.streaming.val_index import ValIndex

if TYPE_CHECKING:
    from niels_cache_assets.sources.types import PretrainSource

CODE_VERSION = "1"  # raise this by hand if a change drops different documents of the same input
NGRAM = 13
REASONS = {"exact": "in_held_out", "near": "near_held_out", "ngrams": "shares_ngrams_with_held_out"}


class Place(NamedTuple):
    """The origin of a text of the index. `of`: the data set, or "" for a file of questions."""

    of: str
    file: str
    row: int


class Overlap(NamedTuple):
    """The overlap of a document with the text at `place`. `reason`: one of REASONS.

    `value`: 1 if they are equal, the similarity if they are near, otherwise the share of the text's 13-grams. `run`: the longest run of
    words, for n-grams only.
    """

    reason: str
    place: Place
    value: float
    run: int = 0


@dataclass(frozen=True, kw_only=True)
class ReferenceTexts:
    """The texts to keep out of train, and how they are compared.

    `identity`: everything that decides which documents are dropped, for fingerprints and meta.json. `texts`: a function that opens the
    texts. `threshold`, `share`, `run`: the limits (see the module).
    """

    identity: dict[str, Any]
    texts: Callable[[], Iterator[tuple[Place, str]]]
    threshold: float
    share: float
    run: int


class References:
    """The index. A context manager, because it keeps a temporary file in `folder`. After opening, any thread may call `find`."""

    def __init__(self, wanted: ReferenceTexts, *, folder: Path) -> None:
        self._wanted = wanted
        self._index = ValIndex("near", threshold=wanted.threshold, folder=folder)
        self._signer = Signer(ngram=NGRAM)
        self._places: list[Place] = []
        grams, owners = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        try:
            for chunk in in_lists(wanted.texts()):
                first = len(self._places)
                self._index.add([text for _, text in chunk])
                self._places += [place for place, _ in chunk]
                shingles = self._signer.shingle([text for _, text in chunk])
                for number, (_, text) in enumerate(chunk):
                    if canonical_text(text).count(" ") >= NGRAM - 1:
                        grams.append(shingles.of(number))
                        owners.append(np.full(len(grams[-1]), first + number, np.int64))
            self._index.seal()
        except BaseException:
            self._index.__exit__(None, None, None)
            raise
        everything, of = np.concatenate(grams), np.concatenate(owners)
        order = np.argsort(everything, kind="stable")
        self._grams, self._owners = everything[order], of[order]
        self._sizes = np.bincount(of, minlength=len(self._places))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._index.__exit__(kind, error, trace)

    def __len__(self) -> int:
        return len(self._places)

    def find(self, texts: list[str]) -> list[Overlap | None]:
        """Return an Overlap or None for each text. It names the earliest equal text, otherwise the earliest near text, otherwise the text
        with the largest share of its 13-grams in the document.
        """
        if not self._places:
            return [None] * len(texts)
        found: list[Overlap | None] = [
            None if match is None else Overlap(REASONS[match.kind], self._places[match.ordinal], match.similarity)
            for match in self._index.find(texts)
        ]
        if len(self._grams):
            shingles = self._signer.shingle(texts)
            first = np.searchsorted(self._grams, shingles.hashes, side="left")
            is_hit = self._grams[np.minimum(first, len(self._grams) - 1)] == shingles.hashes
            ends = shingles.ends.tolist()
            for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
                if found[number] is None and is_hit[start:end].any():
                    found[number] = self._by_ngrams(shingles.hashes[start:end], is_hit[start:end])
        return found

    def _by_ngrams(self, hashes: np.ndarray, is_hit: np.ndarray) -> Overlap | None:
        edges = np.flatnonzero(np.diff(np.concatenate([[False], is_hit, [False]]).astype(np.int8)))
        run = int((edges[1::2] - edges[::2]).max()) + NGRAM - 1
        shared = np.unique(hashes[is_hit])
        first, last = (np.searchsorted(self._grams, shared, side=side) for side in ("left", "right"))
        owners = np.concatenate([self._owners[start:end] for start, end in zip(first.tolist(), last.tolist(), strict=True)])
        counts = np.bincount(owners, minlength=len(self._places))
        shares = counts / np.maximum(self._sizes, 1)
        best = int(shares.argmax())
        if shares[best] < self._wanted.share and run < self._wanted.run:
            return None
        return Overlap(REASONS["ngrams"], self._places[best], round(float(shares[best]), 6), run)


def references_identity(source: PretrainSource, *, seed: int) -> dict[str, Any]:
    """Return everything that decides which documents `decontaminate_against` drops, except the texts. The revision covers the texts.

    The result is empty without this key. `seed`: the seed of [build], which splits the other data sets.
    """
    if not source.decontaminate_against:
        return {}
    settings = {"threshold": source.decontaminate_threshold, "share": source.decontaminate_share, "words": source.decontaminate_words}
    names = [name for name in source.decontaminate_against if is_name(name)]
    others = {"data_sets": names, "seed": seed} if names else {}
    return {"decontaminate_against": {**settings, **others, "code_version": CODE_VERSION}}
