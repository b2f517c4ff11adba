"""What a classifier does to documents: precision and recall at each threshold, and the documents and unique tokens that stay.

A document stays if its score is above the threshold, as with `where = "score > 0.5"`. Copies are found by the signatures of deduplication:
two documents are copies if their canonical text is the same, or if the estimated Jaccard similarity of their word 5-grams reaches the
threshold of `[dedup]`. Copies of copies are copies. Of a group of copies, the tokens of the first document that stays are unique.

The memory is about 250 bytes for each document. Its signature (512 bytes) and its excerpt are in unlinked files.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.base.documents import Document
from niels_cache_assets.dedup.bands import NO_BUCKET, band_hashes, bands_for_recall
from niels_cache_assets.dedup.signatures import DIGEST_BYTES, Signer, estimated_jaccard
from niels_cache_runtime.format.layout import Bools, Ints, Uint32s

THRESHOLDS = tuple(round(step / 20, 2) for step in range(1, 20))
EXCERPT_CHARACTERS = 400
ERRORS = 10  # documents of each side that are shown
NEAREST = 2  # documents on each side of each threshold that are shown
_BINS = 20
_CURVE_POINTS = 200
_SIGNED_AT_ONCE, _SIGNED_CHARACTERS = 256, 1 << 23
_AT_ONCE = 1 << 16  # signatures or pairs

Floats = NDArray[np.float64]


NewFile = Callable[[], IO[bytes]]


@contextmanager
def open_files(folder: str | None) -> Iterator[NewFile]:
    """Yield a function that opens unlinked files in a folder, or in the system's folder. They are closed at the end of the block."""
    with ExitStack() as files:
        yield lambda: files.enter_context(TemporaryFile(dir=folder))


class Scored:
    """Documents with their scores and tokens."""

    def __init__(self, new_file: NewFile, score: Callable[[str], float], count: Callable[[str], int]) -> None:
        """Create an empty list of documents.

        Args:
            new_file: Opens the files of excerpts and signatures.
            score: Returns the score of a text.
            count: Counts the tokens of a text.
        """
        self._score, self._count = score, count
        self._excerpts, self._slots = new_file(), new_file()
        self._starts, self._digests, self._unsigned = list[int](), list[bytes](), list[str]()
        self._signer = Signer()
        self.scores, self.tokens, self.sides = list[float](), list[int](), list[str | None]()
        self.characters = self._signed_characters = 0

    def add(self, document: Document, side: str | None = None) -> None:
        """Score a document, whose side may be known."""
        self.scores.append(self._score(document.text))
        self.tokens.append(self._count(document.text))
        self.sides.append(side)
        self.characters += len(document.text)
        self._starts.append(self._excerpts.tell())
        shown = document._replace(text=document.text[:EXCERPT_CHARACTERS])
        self._excerpts.write(json.dumps(shown[:5]).encode() + b"\n")
        self._unsigned.append(document.text)
        if len(self._unsigned) >= _SIGNED_AT_ONCE or self.characters - self._signed_characters > _SIGNED_CHARACTERS:
            self._sign()

    def sample(self, number: int) -> dict[str, Any]:
        """Return the score, the origin and the beginning of a document."""
        self._excerpts.seek(self._starts[number])
        text, source_id, file, row, title = json.loads(self._excerpts.readline())
        origin = {"title": title, "source_id": source_id, "file": file, "row": row, "excerpt": text}
        return {"score": self.scores[number], "side": self.sides[number], **origin}

    def groups(self, similarity: float) -> Ints:
        """Return for each document the number of the first document of its group of copies, (n,)."""
        self._sign()
        self._slots.flush()
        slots: Uint32s = np.memmap(self._slots, np.uint32, "r").reshape(-1, self._signer.num_perm)
        digests = np.frombuffer(b"".join(self._digests), f"V{DIGEST_BYTES}")
        _, first, same = np.unique(digests, return_index=True, return_inverse=True)
        group = first[same]
        for one, other in sorted({*zip(*(numbers.tolist() for numbers in _near_pairs(slots, similarity)), strict=True)}):
            low, high = sorted((_root(group, one), _root(group, other)))
            group[high] = low
        while (group != group[group]).any():
            group = group[group]
        return group

    def _sign(self) -> None:
        if self._unsigned:
            signed = self._signer.sign(self._unsigned)
            self._slots.write(signed.slots.data)
            self._digests += map(bytes, signed.digests)
            self._unsigned.clear()
            self._signed_characters = self.characters


def _root(group: Ints, number: int) -> int:
    while group[number] != number:
        number = int(group[number])
    return number


def _near_pairs(slots: Uint32s, similarity: float) -> tuple[Ints, Ints]:
    """Return pairs of documents that reach the similarity.

    Of the documents that share a bucket, each is compared with the first and with the one before it.
    """
    bands, rows = bands_for_recall(similarity, slots.shape[1])
    hashes = np.concatenate([band_hashes(slots[block], bands, rows) for block in _blocks(len(slots))])
    pairs = [np.empty(0, np.int64)]
    for band in range(bands):
        order = np.argsort(hashes[:, band], kind="stable")
        ordered = hashes[order, band]
        is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
        first = order[np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))]
        later = np.flatnonzero(~is_first & (ordered != NO_BUCKET))
        pairs += [other * len(order) + order[later] for other in (first[later], order[later - 1])]
    ones, others = np.divmod(np.unique(np.concatenate(pairs)), len(slots))
    near = [estimated_jaccard(slots[ones[block]], slots[others[block]]) >= similarity for block in _blocks(len(ones))]
    is_near = np.concatenate([np.empty(0, np.bool_), *near])
    return ones[is_near], others[is_near]


def _blocks(count: int) -> Iterator[slice]:
    return (slice(start, start + _AT_ONCE) for start in range(0, count, _AT_ONCE))


def report_of(tested: Scored, stays: Scored, *, similarity: float) -> dict[str, Any]:
    """Return the report.

    Args:
        tested: Documents whose sides are known.
        stays: Documents to count at each threshold.
        similarity: The similarity of near copies.
    """
    groups = stays.groups(similarity)
    scores, is_good = np.array(tested.scores), np.array([side == "good" for side in tested.sides])
    rows = [_row(threshold, scores, is_good) for threshold in THRESHOLDS]
    best = max(rows, key=lambda row: (row["f1"], -abs(row["threshold"] - 0.5)))
    precision, recall, curve = _curve(scores, is_good)
    order = np.argsort(scores, kind="stable")
    good, bad = order[is_good[order]], order[~is_good[order]][::-1]
    return {
        "thresholds": rows,
        "best": {"threshold": best["threshold"], "f1": best["f1"]},
        "average_precision": round(float(np.sum(np.diff(recall, prepend=0.0) * precision)), 6),
        "curve": curve,
        "histogram": _histogram(scores, is_good),
        "stays": _stays(stays, groups, similarity),
        "nearest": _nearest(stays, groups),
        "errors": {
            side: [tested.sample(number) for number in numbers[:ERRORS].tolist()] for side, numbers in (("good", good), ("bad", bad))
        },
    }


def _row(threshold: float, scores: Floats, is_good: Bools) -> dict[str, Any]:
    """Return how the held-out documents are divided at a threshold."""
    is_above = scores > threshold
    kept_good, kept_bad = int((is_above & is_good).sum()), int((is_above & ~is_good).sum())
    good, kept = int(is_good.sum()), kept_good + kept_bad
    return {
        "threshold": threshold,
        "precision": round(kept_good / kept, 6) if kept else None,
        "recall": round(kept_good / good, 6),
        "f1": round(2 * kept_good / (good + kept), 6),
        "false_positive_rate": round(kept_bad / (len(is_good) - good), 6),
        "good_kept": kept_good,
        "good_dropped": good - kept_good,
        "bad_kept": kept_bad,
        "bad_dropped": len(is_good) - good - kept_bad,
    }


def _curve(scores: Floats, is_good: Bools) -> tuple[Floats, Floats, list[dict[str, float]]]:
    """Return precision and recall if the documents down to each score stay, highest score first, and some of these points."""
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.diff(scores[order], append=-1.0))
    kept_good = np.cumsum(is_good[order])[ends]
    precision, recall = kept_good / (ends + 1), kept_good / is_good.sum()
    shown = np.unique(np.linspace(0, len(ends) - 1, min(len(ends), _CURVE_POINTS)).round().astype(np.int64))
    points = zip(scores[order][ends][shown].tolist(), recall[shown].tolist(), precision[shown].tolist(), strict=True)
    return precision, recall, [{"score": score, "recall": round(x, 6), "precision": round(y, 6)} for score, x, y in points]


def _histogram(scores: Floats, is_good: Bools) -> list[dict[str, Any]]:
    bins = np.minimum((scores * _BINS).astype(np.int64), _BINS - 1)  # a score may be 1.00001
    good, bad = (np.bincount(bins[chosen], minlength=_BINS).tolist() for chosen in (is_good, ~is_good))
    return [{"from": number / _BINS, "to": (number + 1) / _BINS, "good": good[number], "bad": bad[number]} for number in range(_BINS)]


def _stays(documents: Scored, groups: Ints, similarity: float) -> dict[str, Any]:
    """Return how many documents, tokens and unique tokens there are, and stay at each threshold."""
    scores, tokens = np.array(documents.scores), np.array(documents.tokens)

    def counted(chosen: Ints) -> dict[str, int]:
        _, first = np.unique(groups[chosen], return_index=True)
        return {"documents": len(chosen), "tokens": int(tokens[chosen].sum()), "unique_tokens": int(tokens[chosen][first].sum())}

    rows = [{"threshold": threshold, **counted(np.flatnonzero(scores > threshold))} for threshold in THRESHOLDS]
    copies = int((groups != np.arange(len(groups))).sum())
    return {**counted(np.arange(len(scores))), "copies": copies, "similarity": similarity, "thresholds": rows}


def _nearest(documents: Scored, groups: Ints) -> list[Mapping[str, Any]]:
    """Return the documents nearest to each threshold, on both sides, without copies."""
    order = np.argsort(documents.scores, kind="stable")
    order = order[groups[order] == order]
    ends = np.searchsorted(np.array(documents.scores)[order], THRESHOLDS, side="right").tolist()
    return [
        {
            "threshold": threshold,
            "below": [documents.sample(number) for number in order[max(0, end - NEAREST) : end][::-1].tolist()],
            "above": [documents.sample(number) for number in order[end : end + NEAREST].tolist()],
        }
        for threshold, end in zip(THRESHOLDS, ends, strict=True)
    ]
