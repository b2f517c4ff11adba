"""A set of texts that finds texts which equal one of its texts, are near to it, or share long runs of words with it.

Usually it reads only a third of a text.

    with TextSet(near=0.8, folder=folder) as known:
        known.add(texts)
        known.seal()
        known.find(others)  ->  for each text a TextMatch, or None

First texts are added, then the set is sealed, then any number of threads may call `find`. A text T matches a text V of the set in one of
three ways, and the first one counts:

* exact: both have the same canonical text.
* near: the Jaccard similarity of their word 5-grams (signatures.py) reaches the threshold t. No similarity is estimated.
* ngrams (13 words, as in Brown et al. 2020, GPT-3): T has at least a share of the 13-grams of V, or a run of words as long as a limit that
  is in the texts of the set. So a question inside a long page is found. A text of fewer than 13 words has no such n-gram.

Three bounds save work for the first two:

1. J(T, V) >= t means |T and V| >= t |T|: at most (1 - t) |T| shingles of T are in no text of the set. First only the start of T is read. If
   too many of its shingles are in no text of the set, T is rejected, however long the rest is. Otherwise all of T is read. A table of
   bits shows whether a shingle is in the set; at most a quarter of the bits is set. Different shingles may share a bit. Then more of T
   may be read, but the result is the same. Nearly all texts are rejected here.
2. The prefix filter (Chaudhuri, Ganti and Kaushik 2006; Bayardo, Ma and Srikant 2007): sort the shingles of every set in the same order
   (here: by hash). Two sets with J >= t then have a common shingle among the first |X| - ceil(t |X|) + 1 shingles of each set X. Only
   these first shingles of the texts are indexed.
3. The remaining texts are compared with the texts of the set that share such a shingle and have a similar length
   (t <= |T| / |V| <= 1 / t).

Without `near`, t is 1 in the first bound, and the SHA-1 of the canonical text then decides.

Memory is bounded by the set: up to a byte for each word and 24 bytes for each text, and a flag of up to 8 bytes for each indexed n-gram.
All else is in unlinked files that are mapped: the shingles (8 bytes for each word), the indexed ones (12 bytes each, at threshold 0.8 a
fifth of all) and the digests. `add_new` also remembers the digest of each text. In the worst case, one text is compared with every text of
the set.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.dedup.canonical import BLANK, code_points
from niels_cache_assets.dedup.signatures import DIGEST_BYTES, Shingles, Signer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Array, Bools, Bytes, Ints, Uints

Kind = Literal["exact", "near", "ngrams"]
Hashes = Uints

NGRAM = 13
_SHINGLE = 5
_BITS_PER_SHINGLE = 4
_FLAGS_PER_HASH = 4
_MINIMAL_HEAD = 500  # characters; a shorter start costs more than it saves
_HEAD = 1.5  # length of the start that is read first / length that may be missing from the set; a wrong guess only costs time
_SORTED_AT_ONCE = 1 << 21  # hashes
_ROUNDING = 1e-9  # 0.8 * 15 is 12.000000000000002: bounds must be wide enough


class TextMatch(NamedTuple):
    """A match of a text with a text of the set.

    This is the earliest equal text, otherwise the earliest near text, otherwise the text with the largest share of its 13-grams in the
    text.

    Attributes:
        kind: "exact", "near" or "ngrams".
        ordinal: Number of the matched text in the set.
        similarity: 1 for "exact", the Jaccard similarity for "near", and the share of the 13-grams of the matched text for "ngrams".
        run: Longest run of words that is in the set, for "ngrams" only.
    """

    kind: Kind
    ordinal: int
    similarity: float
    run: int = 0


class NGramLimits(NamedTuple):
    """The limits of a match by 13-grams, of which a text must reach one.

    Attributes:
        share: Minimum share of the 13-grams of a text of the set.
        run: Minimum number of words in a run that is in the set.
    """

    share: float
    run: int


class HashIndex:
    """A table of hashes and their owners. A hash may have several owners, and an owner several hashes."""

    def __init__(self, hashes: Array, owners: Array, *, is_sorted: bool = False) -> None:
        order = slice(None) if is_sorted else np.argsort(hashes, kind="stable")
        self.hashes, self.owners = hashes[order], owners[order]
        self._low_bits = np.int64((_FLAGS_PER_HASH << len(hashes).bit_length()) - 1)

    @cached_property
    def _flags(self) -> Bools:
        """A flag for each value of the low bits of a hash, whether a hash has it. A search takes ten times as long."""
        flags = np.zeros(self._low_bits + 1, dtype=bool)
        flags[self.hashes.view(np.int64) & self._low_bits] = True
        return flags

    def has(self, hashes: Array) -> Bools:
        """Return for each hash whether it has an owner, (n,)."""
        found = np.zeros(len(hashes), dtype=bool)
        found[self._find(hashes)[0]] = True
        return found

    def _find(self, hashes: Array) -> tuple[Ints, Ints]:
        """Return the indices of the hashes that have an owner, and the place of the first owner of each, (m,) each."""
        candidates = np.flatnonzero(self._flags[hashes.view(np.int64) & self._low_bits])
        places = np.searchsorted(self.hashes, hashes[candidates])
        found = self.hashes[np.minimum(places, len(self.hashes) - 1)] == hashes[candidates]
        return candidates[found], places[found]

    def find(self, hashes: Array, *, most: int = sys.maxsize) -> tuple[Ints, Array]:
        """Return (index in `hashes`, owner) for each owner of each hash, (m,) each.

        Indices ascend, and the owners of a hash are in the order in which they were given.

        Args:
            hashes: The hashes.
            most: Maximum number of owners of a hash that count; by default all.
        """
        found, first = self._find(hashes)
        counts = np.minimum(np.searchsorted(self.hashes, hashes[found], side="right") - first, most)
        rows = np.arange(counts.sum()) + np.repeat(first - np.cumsum(counts) + counts, counts)
        return np.repeat(found, counts), self.owners[rows]


class _HashSpool:
    """Hashes of texts in an unlinked file, which become an index in another one. Memory: 4 bytes for each text, and what is sorted at once.

    Args:
        folder: Folder of the files. If None, the system's folder.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.file = TemporaryFile(dir=folder)  # noqa: SIM115  (closed with the set)
        self._counts: list[Ints] = []

    def add(self, hashes: Hashes, counts: Ints) -> None:
        """Add the hashes of some texts, one text after the other, with `counts` hashes each."""
        self.file.write(hashes.data)
        self._counts.append(counts.astype(np.int32))

    def index(self) -> tuple[HashIndex, Ints]:
        """Return an index of the hashes, whose owners are the numbers of the texts, and the number of hashes of each text."""
        counts = np.concatenate([np.empty(0, np.int32), *self._counts])
        starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        every, sample = _map_spool(self.file, np.uint64), np.empty(0, np.uint64)
        ranges = -(-len(every) // _SORTED_AT_ONCE)
        if ranges > 1:
            sample = np.sort(every[:: max(1, len(every) // (64 * ranges))])
        edges = sample[np.arange(1, ranges) * len(sample) // max(1, ranges)]
        with TemporaryFile(dir=self._folder) as in_hashes, TemporaryFile(dir=self._folder) as in_owners:
            for number in range(ranges):
                parts = [*_in_range(every, starts, edges, number)]
                hashes, owners = map(np.concatenate, zip(*parts, strict=True))
                order = np.argsort(hashes, kind="stable")
                in_hashes.write(hashes[order].data)
                in_owners.write(owners[order].data)
            return HashIndex(_map_spool(in_hashes, np.uint64), _map_spool(in_owners, np.int32), is_sorted=True), counts


def _in_range(every: Hashes, starts: Ints, edges: Hashes, number: int) -> Iterator[tuple[Hashes, Ints]]:
    """Yield the hashes of one of the ranges that `edges` divide, and their owners, for some texts at a time."""
    firsts = np.searchsorted(starts, np.arange(0, len(every), _SORTED_AT_ONCE)).tolist()
    for first, stop in zip(firsts, [*firsts[1:], len(starts) - 1], strict=True):
        hashes = every[starts[first] : starts[stop]]
        owners = np.repeat(np.arange(first, stop, dtype=np.int32), np.diff(starts[first : stop + 1]))
        chosen = edges.searchsorted(hashes, side="right") == number
        yield hashes[chosen], owners[chosen]


def _map_spool(file: Any, dtype: Any) -> Array:
    """Return what was written to a file, mapped. The map stays valid when the file is closed."""
    file.flush()
    size = file.tell()
    return np.asarray(np.memmap(file, dtype, "r")) if size else np.empty(0, dtype)


class TextSet:
    """A set of texts (see the module). A context manager, because it keeps a temporary file.

    Texts get the ordinals 0, 1, 2, ... in the order in which they are added.

    Args:
        near: Minimum similarity of near texts, above 0 and below 1. If None, only equal texts match.
        ngrams: Limits of a match by 13-grams; by default there is no such match.
        units: What a word of a 13-gram is (signatures.py). With "code", a run of words may also be one without the comments between them.
        folder: Folder of the temporary file. If None, the system's folder.
    """

    def __init__(self, *, near: float | None, ngrams: NGramLimits | None = None, units: str = "words", folder: Path | None) -> None:
        if near is not None and not 0 < near < 1:
            raise NielsCacheError(f"the threshold of near duplicates is {near}; it must be above 0 and below 1")
        self._near = near is not None
        self._threshold = 1.0 if near is None else near
        self._limits = ngrams
        self._head_share = _HEAD * (1 - self._threshold)
        self._signer, self._ngram_signer = Signer(ngram=_SHINGLE), Signer(ngram=NGRAM, units=units)
        self._units = units
        self._spool = TemporaryFile(dir=folder)  # noqa: SIM115  (closed by __exit__)
        self._digests = TemporaryFile(dir=folder)  # noqa: SIM115
        self._known: set[bytes] = set()  # digests, for `add_new`
        self._count = 0
        self._sizes: list[Ints] = []  # of the texts of each call
        self._prefixes, self._grams = _HashSpool(folder), _HashSpool(folder)
        self.sealed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._spool, self._digests, self._prefixes.file, self._grams.file):
            file.close()

    def shingle(self, texts: Sequence[str]) -> Shingles:
        """Return what `add` needs of texts. Any thread may call this method."""
        shingles = self._signer.shingle(texts)
        shingles.sets  # noqa: B018  computed here, because calls of `add` cannot run at the same time
        return shingles

    def add(self, texts: Sequence[str], shingles: Shingles | None = None) -> None:
        """Add texts, whose `shingle` may have been computed before. After `seal`, nothing is added."""
        self._add(texts, self.shingle(texts) if shingles is None else shingles, np.arange(len(texts)))

    def add_new(self, texts: Sequence[str]) -> list[int]:
        """Add the texts whose canonical text is not in the set yet, and return their positions in `texts`.

        After `seal`, nothing is added; the positions are still returned.
        """
        shingles = self._signer.shingle(texts)
        new = dict[bytes, int]()
        for index, digest in enumerate(map(bytes, shingles.digests)):
            if digest not in self._known:
                new.setdefault(digest, index)
        if not self.sealed:
            self._known.update(new)
        self._add(texts, shingles, np.array([*new.values()], dtype=np.int64))
        return [*new.values()]

    def seal(self) -> None:
        """Close the set. After that, no text can be added, and any thread may call `find`."""
        from niels_cache_assets.dedup import kernels

        if self.sealed:
            return
        self._starts = np.cumsum(np.concatenate([[0], *self._sizes]), dtype=np.int64)
        self._hashes: Hashes = _map_spool(self._spool, np.uint64)
        self._every_digest: Bytes = _map_spool(self._digests, np.uint8).reshape(self._count, DIGEST_BYTES)
        self._by_digest = HashIndex(_first_words(self._every_digest), np.arange(self._count, dtype=np.int32))
        count = len(self._hashes)
        bits = max(6, (count * _BITS_PER_SHINGLE - 1).bit_length())
        self._shift = np.uint64(64 - bits)
        self._members = np.zeros(1 << (bits - 3), np.uint8)
        kernels.set_bits(self._hashes, self._shift, self._members)
        self._by_prefix, _ = self._prefixes.index()
        self._by_ngram, self._ngram_counts = self._grams.index()
        self.sealed = True

    def find(self, texts: Sequence[str]) -> list[TextMatch | None]:
        """Return the match of each text, or None. Call `seal` first."""
        matches: list[TextMatch | None] = [None] * len(texts)
        if suspects := self._suspects(texts) if self._count else []:
            for index, match in zip(suspects, self._compare(self._signer.shingle([texts[index] for index in suspects])), strict=True):
                matches[index] = match
        if self._limits is not None and self._ngram_counts.any():
            rest = [index for index, match in enumerate(matches) if match is None]
            left = [texts[index] for index in rest]
            if self._units == "code":
                left = [*map(load_beside("cleaning", "code").with_and_without_comments, left)]
            shingles = self._ngram_signer.shingle(left)
            is_hit = self._by_ngram.has(shingles.hashes)
            for index, start, end in zip(rest, [0, *shingles.ends.tolist()], shingles.ends.tolist(), strict=False):
                if is_hit[start:end].any():
                    matches[index] = self._shared(shingles.hashes[start:end], is_hit[start:end], self._limits)
        return matches

    def _add(self, texts: Sequence[str], shingles: Shingles, chosen: Ints) -> None:
        if self.sealed:
            return
        hashes, ends = shingles.sets
        sizes = np.diff(ends, prepend=0)
        if len(chosen) < len(shingles):
            firsts = np.zeros_like(sizes)
            firsts[chosen] = sizes[chosen]
            hashes, sizes = _first_hashes(hashes, sizes, firsts), sizes[chosen]
        self._digests.write(shingles.digests[chosen].data)
        self._count += len(chosen)
        self._sizes.append(sizes)
        if self._near:
            firsts = self._prefix_lengths(sizes)
            self._prefixes.add(_first_hashes(hashes, sizes, firsts), firsts)
        if self._limits is not None:
            new = [texts[index] for index in chosen.tolist()]
            grams, gram_ends = self._ngram_signer.shingle(new).sets
            gram_sizes = np.diff(gram_ends, prepend=0)
            # a text of fewer words has one shingle of all its words
            words = _counts(shingles)[chosen] if self._units == "words" else _counts(Signer(ngram=_SHINGLE, units="code").shingle(new))
            firsts = np.where(words > NGRAM - _SHINGLE, gram_sizes, 0)
            self._grams.add(_first_hashes(grams, gram_sizes, firsts), firsts)
        self._spool.write(hashes.data)

    def _shared(self, hashes: Hashes, is_hit: Bools, limits: NGramLimits) -> TextMatch | None:
        """Return the match of a text by its 13-grams, or None.

        Args:
            hashes: Hashes of its 13-grams, in order.
            is_hit: Whether each of them is in the set.
            limits: Limits of a match.
        """
        edges = np.flatnonzero(np.diff(np.concatenate([[False], is_hit, [False]]).astype(np.int8)))
        run = int((edges[1::2] - edges[::2]).max()) + NGRAM - 1
        _, owners = self._by_ngram.find(np.unique(hashes[is_hit]))
        shares = np.bincount(owners, minlength=self._count) / np.maximum(self._ngram_counts, 1)
        best = int(shares.argmax())
        if shares[best] < limits.share and run < limits.run:
            return None
        return TextMatch("ngrams", best, round(float(shares[best]), 6), run)

    def _suspects(self, texts: Sequence[str]) -> list[int]:
        """Return the positions of the texts that may have a match.

        A text is left out if its start proves that too many of its shingles are in no text of the set.
        """
        heads = {index: head for index, text in enumerate(texts) if (head := self._head(text)) is not None}
        suspects = [index for index in range(len(texts)) if index not in heads]
        if not heads:
            return suspects
        shingles = self._signer.shingle([*heads.values()])
        missing_by_text = self._missing_by_text(shingles).tolist()
        for (index, head), count, missing in zip(heads.items(), _counts(shingles).tolist(), missing_by_text, strict=True):
            most = count + (max_words(texts[index][len(head) :]) if self._near else 0)
            # The last word of the start may continue in the text, as in `- b`, so the whole text may lack the last shingle of the start. A
            # start with fewer words than a shingle has only this one.
            if count < 2 or missing <= self._most_missing(most) + 1:
                suspects.append(index)
        return sorted(suspects)

    def _head(self, text: str) -> str | None:
        """Return the start of the text, up to a blank, or None if it is not worth checking the start alone.

        The words of the start, except the last one, are the first words of the text.
        """
        length = max(_MINIMAL_HEAD, math.ceil(len(text) * self._head_share))
        end = text.rfind(" ", 0, length) if length < 0.8 * len(text) else -1
        return text[:end] if end > 0 else None

    def _missing_by_text(self, shingles: Shingles) -> Ints:
        """Return for each text the number of distinct shingles that are in no text of the set, (n,) int64. Rarely, it is too small.

        Nothing is sorted. Each text has at least four times as many flags (`marks`) as shingles, and each missing shingle sets one of them.
        """
        marks = 4 << np.ceil(np.log2(np.maximum(_counts(shingles), 1))).astype(np.int64)
        firsts = np.cumsum(marks) - marks
        missing = np.flatnonzero(~self._is_member(shingles.hashes))
        text = np.repeat(np.arange(len(shingles)), _counts(shingles))[missing]
        marked = np.zeros(int(marks.sum()), dtype=bool)
        marked[firsts[text] + (shingles.hashes[missing].view(np.int64) & (marks[text] - 1))] = True
        return np.add.reduceat(marked, firsts, dtype=np.int64)

    def _is_member(self, hashes: Hashes) -> Bools:
        """Return bool (n,): False for shingles that are certainly in no text of the set."""
        slots = hashes >> self._shift
        bits = self._members[slots >> np.uint64(3)] >> (slots & np.uint64(7)).astype(np.uint8)
        return (bits & np.uint8(1)).astype(bool)

    def _most_missing(self, sizes: Any) -> Any:
        """Return how many shingles of a text may be in no text of the set, for a text of so many shingles or for several."""
        return sizes - np.ceil(self._threshold * sizes - _ROUNDING).astype(np.int64)

    def _prefix_lengths(self, sizes: Ints) -> Ints:
        return np.minimum(sizes, self._most_missing(sizes) + 1)

    def _compare(self, shingles: Shingles) -> list[TextMatch | None]:
        """Return the match of each text as an exact or a near copy, or None."""
        from niels_cache_assets.dedup import kernels

        matches: list[TextMatch | None] = [None] * len(shingles)
        for most in (1, sys.maxsize):  # the second time only if two digests begin with the same word
            texts, equal = self._by_digest.find(_first_words(shingles.digests), most=most)
            same = (shingles.digests[texts] == self._every_digest[equal]).all(axis=1)
            for position, ordinal in zip(texts[same][::-1].tolist(), equal[same][::-1].tolist(), strict=True):  # the earliest wins
                matches[position] = TextMatch("exact", ordinal, 1.0)
            if same.all():
                break
        is_left = self._missing_by_text(shingles) <= self._most_missing(_counts(shingles))
        is_left &= np.array([match is None for match in matches])
        if self._near and is_left.any():
            hashes, ends = shingles.sets
            sizes = np.diff(ends, prepend=0)
            firsts = np.where(is_left, self._prefix_lengths(sizes), 0)
            near, similarities = np.empty_like(ends), np.empty(len(ends))
            index, others, bounds = self._by_prefix, (self._hashes, self._starts), (self._threshold, _ROUNDING)
            kernels.find_near(hashes, ends, firsts, index.hashes, index.owners, *others, *bounds, near, similarities)
            for position in np.flatnonzero(near >= 0).tolist():
                matches[position] = TextMatch("near", int(near[position]), float(similarities[position]))
        return matches


def _first_words(digests: Bytes) -> Hashes:
    """Return the first 8 bytes of each digest as a number, (n,)."""
    return np.ascontiguousarray(digests[:, :8]).view(np.uint64).ravel()


def _first_hashes(hashes: Hashes, sizes: Ints, firsts: Ints) -> Hashes:
    """Return the first hashes of each group, of which there are `firsts`. The groups have `sizes` hashes each."""
    within = np.arange(len(hashes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return hashes[within < np.repeat(firsts, sizes)]


def _counts(shingles: Shingles) -> Ints:
    """Return the number of shingles of each text, with repetitions, (n,) int64."""
    return np.diff(shingles.ends, prepend=0)


def max_words(text: str) -> int:
    """Return an upper bound of the number of words that the canonical form of a text adds to the text before it.

    It counts the characters that begin or end a word: blanks and signs once, a character that is a word of its own twice. An HTML entity
    may be such a character.
    """
    weights, inside_words = _weights()
    if text.isascii():
        ends = len(text.encode().translate(None, inside_words))
    else:
        ends = int(weights[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")].sum())
    return ends + text.count("&") + 1


@lru_cache(maxsize=1)
def _weights() -> tuple[Bytes, bytes]:
    """Return how often each code point begins or ends a word, (0x110000,) uint8, and the ASCII bytes that do neither."""
    table = code_points()
    of_kind = np.array([0, 2, 1, 1, 1, 1, 0], dtype=np.uint8)  # letters, ALONE, SIGN, CLOSING, DASH, MARK, QUOTE
    weights = np.where(table == BLANK, np.uint8(1), of_kind[table >> 24])
    return weights, bytes(np.flatnonzero(weights[:128] == 0).tolist())
