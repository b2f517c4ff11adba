"""An exact index of the documents of val. It finds texts that equal, or are near to, one of them. Usually it reads only a third of a text.

First the documents of val are added, then the index is sealed, then any number of threads may call `find`. A text T is near a document V if
the Jaccard similarity of their word 5-grams (dedup/signatures.py) reaches the threshold t. No similarity is estimated.
Three bounds save work:

1. J(T, V) >= t means |T and V| >= t |T|: at most (1 - t) |T| shingles of T are in no document of val. First only the start of T is read. If
   too many of its shingles are in no document of val, T is rejected, however long the rest is. Otherwise all of T is read. A table of
   bits tells whether a shingle is in val; at most a sixteenth of the bits is set. Different shingles may share a bit. Then more of T may be
   read, but the result is the same. Nearly all texts are rejected here.
2. The prefix filter (Chaudhuri, Ganti and Kaushik 2006; Bayardo, Ma and Srikant 2007): sort the shingles of every set in the same order
   (here: by hash). Two sets with J >= t then have a common shingle among the first |X| - ceil(t |X|) + 1 shingles of each set X. Only
   these first shingles of the val documents are indexed.
3. The remaining texts are compared with the documents of val that share such a shingle and have a similar length
   (t <= |T| / |V| <= 1 / t).

With "exact", t is 1 in the first bound, and the SHA-1 of the canonical text then decides.

Memory is bounded by val, not by train: at threshold 0.8, up to 7 bytes for each word of val and about 200 bytes for each document. The
shingles (8 bytes for each word) are in an unlinked file. In the worst case, one text is compared with every document of val. Splits,
batches and counters are in decontaminate.py.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.dedup.canonical import BLANK, code_points
from niels_cache_assets.dedup.signatures import Shingles, Signer, jaccard
from niels_cache_runtime.errors import NielsCacheError

Kind = Literal["exact", "near"]
Hashes = NDArray[np.uint64]

_BITS_PER_SHINGLE = 16
_BLOCK = 1 << 20
_MINIMAL_HEAD = 100  # characters
_HEAD = 1.5  # length of the start that is read first / length that may be missing from val; a wrong guess only costs time
_ROUNDING = 1e-9  # 0.8 * 15 is 12.000000000000002: bounds must be wide enough


class Match(NamedTuple):
    """A match of a text with a document of val: the earliest document that equals the text, or otherwise the earliest that is near to it.

    `ordinal`: the number of this document in the index. `similarity`: 1 if `kind` is "exact", otherwise the Jaccard similarity of the word
    5-grams.
    """

    kind: Kind
    ordinal: int
    similarity: float


class ValIndex:
    """An index of the documents of val. A context manager, because it keeps a temporary file in `folder` (None: the system's folder).

    Documents get the ordinals 0, 1, 2, ... in the order in which they are added.
    """

    def __init__(self, kind: Kind, *, threshold: float | None = None, folder: Path | None) -> None:
        self._near = kind == "near"
        if threshold is None:
            if self._near:
                raise NielsCacheError("near duplicates need a threshold, above 0 and below 1")
        elif not 0 < threshold < 1:
            raise NielsCacheError(f"the threshold of near duplicates is {threshold}; it must be above 0 and below 1")
        self._threshold = threshold if self._near and threshold is not None else 1.0
        self._head_share = _HEAD * (1 - self._threshold)
        self._signer = Signer()
        self._spool = TemporaryFile(dir=folder)  # noqa: SIM115  (closed by __exit__)
        self._first: dict[bytes, int] = {}  # ordinal by digest
        self._sizes: list[int] = []
        self._prefixes: list[Hashes] = []
        self.sealed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._spool.close()

    def add(self, texts: Sequence[str]) -> None:
        """Add documents of val."""
        shingles = self._signer.shingle(texts)
        for index in range(len(texts)):
            self._add(shingles, index)

    def add_new(self, texts: Sequence[str]) -> list[int]:
        """Add the texts whose canonical text is not in the index yet, and return their positions in `texts`.

        After `seal`, nothing is added; the positions are still returned.
        """
        shingles = self._signer.shingle(texts)
        new = []
        for index, digest in enumerate(shingles.digests):
            if digest.tobytes() not in self._first:
                new.append(index)
                if not self.sealed:
                    self._add(shingles, index)
        return new

    def seal(self) -> None:
        """Close the index for additions. After that, any thread may call `find`."""
        if self.sealed:
            return
        self._spool.flush()
        count = sum(self._sizes)
        self._hashes: Hashes = np.memmap(self._spool, np.uint64, "r", shape=(count,)) if count else np.empty(0, np.uint64)
        self._starts = np.cumsum([0, *self._sizes], dtype=np.int64)
        bits = max(6, (count * _BITS_PER_SHINGLE - 1).bit_length())
        self._shift = np.uint64(64 - bits)
        self._members = np.zeros(1 << (bits - 3), np.uint8)
        for start in range(0, count, _BLOCK):
            slots = self._hashes[start : start + _BLOCK] >> self._shift
            np.bitwise_or.at(self._members, slots >> np.uint64(3), np.uint8(1) << (slots & np.uint64(7)).astype(np.uint8))
        if self._near:
            lengths = np.fromiter(map(len, self._prefixes), np.int64, len(self._prefixes))
            prefixes = np.concatenate([*self._prefixes, np.empty(0, np.uint64)])
            self._prefixes.clear()
            order = np.argsort(prefixes, kind="stable")
            self._prefix_hashes = prefixes[order]
            self._prefix_ordinals = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)[order]
        self.sealed = True

    def find(self, texts: Sequence[str]) -> list[Match | None]:
        """Return a Match or None for each text.

        The match is the earliest document of val that equals the text. If no document equals the text, it is the earliest that is near to
        it.
        """
        matches: list[Match | None] = [None] * len(texts)
        suspects = self._suspects(texts)
        if suspects:
            shingles = self._signer.shingle([texts[index] for index in suspects])
            missing = self._missing_by_text(shingles).tolist()
            for position, (index, count) in enumerate(zip(suspects, _counts(shingles), strict=True)):
                if missing[position] <= self._may_miss(count):
                    matches[index] = self._compare(shingles, position)
        return matches

    def _add(self, shingles: Shingles, index: int) -> None:
        hashes = shingles.of(index)
        self._first.setdefault(shingles.digests[index].tobytes(), len(self._sizes))
        self._sizes.append(len(hashes))
        if self._near:
            self._prefixes.append(hashes[: self._prefix_length(len(hashes))].copy())
        self._spool.write(hashes.data)

    def _suspects(self, texts: Sequence[str]) -> list[int]:
        """Return the positions of the texts that may have a match.

        A text is left out if its start proves that too many of its shingles are in no document of val.
        """
        heads = [self._head(text) for text in texts]
        suspects = [index for index, head in enumerate(heads) if head is None]
        looked_at = [index for index, head in enumerate(heads) if head is not None]
        if not looked_at:
            return suspects
        shown = [head for head in heads if head is not None]
        shingles = self._signer.shingle(shown)
        missing_by_text = self._missing_by_text(shingles).tolist()
        for index, head, count, missing in zip(looked_at, shown, _counts(shingles), missing_by_text, strict=True):
            most = count + (most_words(texts[index][len(head) :]) if self._near else 0)
            # The last word of the start may go on in the text, as in `- b`, so the whole text may not have the last shingle of the start. A
            # start with fewer words than a shingle has only this one.
            if count < 2 or missing <= self._may_miss(most) + 1:
                suspects.append(index)
        return sorted(suspects)

    def _head(self, text: str) -> str | None:
        """Return the start of the text, up to a blank, or None if it is not worth checking the start alone.

        The words of the start, except the last one, are the first words of the text.
        """
        length = max(_MINIMAL_HEAD, math.ceil(len(text) * self._head_share))
        end = text.rfind(" ", 0, length) if length < 0.8 * len(text) else -1
        return text[:end] if end > 0 else None

    def _missing_by_text(self, shingles: Shingles) -> NDArray[np.int64]:
        """Return (n,) int64: for each text, the number of different shingles that are in no document of val. The number may be too small,
        rarely.

        Nothing is sorted. Each text has at least four times as many flags (`marks`) as shingles, and each missing shingle sets one of them.
        """
        marks = 4 << np.ceil(np.log2(np.maximum(_counts(shingles), 1))).astype(np.int64)
        firsts = np.cumsum(marks) - marks
        missing = np.flatnonzero(~self._is_member(shingles.hashes))
        text = np.repeat(np.arange(len(shingles)), _counts(shingles))[missing]
        marked = np.zeros(int(marks.sum()), dtype=bool)
        marked[firsts[text] + (shingles.hashes[missing].view(np.int64) & (marks[text] - 1))] = True
        return np.add.reduceat(marked, firsts, dtype=np.int64)

    def _is_member(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Return bool (n,): False for shingles that are certainly in no document of val."""
        slots = hashes >> self._shift
        bits = self._members[slots >> np.uint64(3)] >> (slots & np.uint64(7)).astype(np.uint8)
        return (bits & np.uint8(1)).astype(bool)

    def _may_miss(self, size: int) -> int:
        return size - math.ceil(self._threshold * size - _ROUNDING)

    def _prefix_length(self, size: int) -> int:
        return min(size, self._may_miss(size) + 1)

    def _compare(self, shingles: Shingles, position: int) -> Match | None:
        hashes = shingles.of(position)
        if len(hashes) - int(np.count_nonzero(self._is_member(hashes))) > self._may_miss(len(hashes)):
            return None
        ordinal = self._first.get(shingles.digests[position].tobytes())
        if ordinal is not None:
            return Match("exact", ordinal, 1.0)
        return self._nearest(hashes) if self._near else None

    def _nearest(self, hashes: Hashes) -> Match | None:
        prefix = hashes[: self._prefix_length(len(hashes))]
        first = self._prefix_hashes.searchsorted(prefix, side="left").tolist()
        stop = self._prefix_hashes.searchsorted(prefix, side="right").tolist()
        sharing = [self._prefix_ordinals[start:end] for start, end in zip(first, stop, strict=True) if start < end]
        for ordinal in np.unique(np.concatenate(sharing)).tolist() if sharing else ():
            shorter, longer = sorted((self._sizes[ordinal], len(hashes)))
            if shorter < self._threshold * longer - _ROUNDING:
                continue
            similarity = jaccard(hashes, self._hashes[self._starts[ordinal] : self._starts[ordinal + 1]])
            if similarity >= self._threshold:
                return Match("near", ordinal, similarity)
        return None


def _counts(shingles: Shingles) -> list[int]:
    """Return the number of shingles of each text, with repetitions."""
    return np.diff(shingles.ends, prepend=0).tolist()


def most_words(text: str) -> int:
    """Return an upper bound of the number of words that the canonical form of a text adds to the text before it.

    It counts the characters that begin or end a word: blanks and signs once, a character that is a word of its own twice. An HTML entity
    may be such a character.
    """
    inside_words, weights = _weights_of_bytes()
    encoded = text.encode("utf-8", "surrogatepass")
    count = len(encoded.translate(None, inside_words)) + encoded.count(b"&") + 1
    if text.isascii():
        return count
    others = np.frombuffer(encoded.translate(None, bytes(range(128))), np.uint8).astype(np.uint16)
    return count + int(weights[others[:-1] << 8 | others[1:]].sum())


@lru_cache(maxsize=1)
def _weights_of_bytes() -> tuple[bytes, NDArray[np.uint8]]:
    """Return the bytes of ASCII that neither begin nor end a word, with all bytes above ASCII, and the weight of each pair of bytes above
    ASCII, (65536,) uint8: that of the heaviest character that begins with this pair, and 0 if there is none.
    """
    table = code_points()
    of_kind = np.array([0, 2, 1, 1, 1, 1, 0], dtype=np.uint8)  # letters, ALONE, SIGN, CLOSING, DASH, MARK, QUOTE
    weights = np.where(table == BLANK, np.uint8(1), of_kind[table >> 24])
    inside_words = bytes(byte for byte in range(256) if byte >= 128 or not weights[byte])
    heavy = 128 + np.flatnonzero(weights[128:])
    long, longer = heavy >= 0x800, heavy >= 0x10000  # in UTF-8 three bytes at least, four bytes
    shift = 6 * (1 + long + longer)
    first = np.where(longer, 0xF0, np.where(long, 0xE0, 0xC0)) | heavy >> shift
    pairs = np.zeros(1 << 16, dtype=np.uint8)
    np.maximum.at(pairs, first << 8 | 0x80 | heavy >> shift - 6 & 0x3F, weights[heavy])
    return inside_words, pairs
