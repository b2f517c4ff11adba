"""Signatures of texts: a SHA-1 of the canonical text for exact duplicates, and MinHash slots for near duplicates.

    signer = Signer(num_perm=128, ngram=5)
    signer.sign(texts)  ->  Signatures(digests, slots)

Shingle hashes, for the exact similarity, are computed too. `canonical` and `hashing` define all these numbers, and `canonical_kernels` and
`kernels` compute them. They do not depend on the process, the machine, the version of Python, or the hash seed. A text whose canonical text
is empty has no shingle. So its slots are all NO_SHINGLE, it is in no band, and its similarity to any text is 0. Its digest is that of the
text itself, so only an identical text is its duplicate.

Signing takes about 6 us/KB of text (benchmarks/dedup.py), and the kernels release the GIL. The memory is two copies of a group of texts,
one as UTF-8 and one as canonical text. A group is about a megabyte of texts, or one longer text. The slots need no additional memory.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.base.strings import Strings
from niels_cache_assets.dedup import hashing
from niels_cache_assets.dedup.canonical import compose, decode_entities, marked_code_points
from niels_cache_assets.dedup.hashing import PADDING
from niels_cache_runtime.format.layout import Bools, Bytes, Ints, Uint32s, Uints

DIGEST_BYTES = 20
_CHARACTERS_AT_ONCE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Signatures:
    """Signatures of n documents.

    Attributes:
        digests: (n, 20) uint8, SHA-1 of the canonical text as UTF-8, or of a NUL and the text if its canonical text is empty.
        slots: (n, num_perm) uint32, MinHash.
    """

    digests: Bytes
    slots: Uint32s

    def __len__(self) -> int:
        return len(self.digests)


@dataclass(frozen=True, kw_only=True)
class Shingles:
    """Shingles of n documents.

    Attributes:
        digests: (n, 20) uint8.
        hashes: (total,) uint64, the shingle hashes of all documents, in text order with repetitions.
        ends: (n,) int64, the end of each document in `hashes`.
    """

    digests: Bytes
    hashes: Uints
    ends: Ints

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def sets(self) -> tuple[Uints, Ints]:
        """The hashes of each document, sorted and unique, as `jaccard` takes them, all in one array, and the end of each set."""
        from niels_cache_assets.dedup import kernels

        hashes, ends = self.hashes.copy(), np.empty_like(self.ends)
        kernels.sort_sets(hashes, self.ends, ends)
        return hashes[: ends[-1] if len(ends) else 0], ends


@dataclass(frozen=True, kw_only=True)
class Signer:
    """The settings for signing texts.

    Attributes:
        num_perm: Number of slots.
        ngram: Number of words in a shingle.
        units: What a word is: that of the canonical text, or "code" (niels_cache_cleaning/code.py).
    """

    num_perm: int = 128
    ngram: int = 5
    units: str = "words"

    def sign(self, texts: Sequence[str]) -> Signatures:
        """Return signatures of texts, in order.

        Texts may contain NULs and lone surrogates; the canonical text does not contain them.
        """
        digests = np.empty((len(texts), DIGEST_BYTES), dtype=np.uint8)
        slots = np.empty((len(texts), self.num_perm), dtype=np.uint32)
        for group, canonical, ends in self._digested(texts, digests):
            self._slots(canonical, ends, slots[group])
        return Signatures(digests=digests, slots=slots)

    def shingle(self, texts: Sequence[str]) -> Shingles:
        """Return digests and all shingle hashes of texts, in order. The hashes take 8 bytes per word."""
        from niels_cache_assets.dedup import kernels

        digests = np.empty((len(texts), DIGEST_BYTES), dtype=np.uint8)
        hashes = [np.empty(0, dtype=np.uint64)]
        ends = np.zeros(len(texts), dtype=np.int64)
        total = 0
        for group, canonical, canonical_ends in self._digested(texts, digests):
            words = np.count_nonzero(canonical[: canonical_ends[-1] + 1] == ord(" "))  # an empty text counts as one word
            shingles = np.empty(words, dtype=np.uint64)
            kernels.shingle(canonical, canonical_ends, self.ngram, shingles, ends[group])
            hashes.append(shingles[: ends[group][-1]])
            ends[group] += total
            total += len(hashes[-1])
        return Shingles(digests=digests, hashes=np.concatenate(hashes), ends=ends)

    def shingle_sets(self, texts: Sequence[str]) -> tuple[Uints, Ints]:
        """Return the set of shingle hashes of each text, all in one array, and the end of each set. Each set is sorted."""
        return self.shingle(texts).sets

    def _digested(self, texts: Sequence[str], digests: Bytes) -> Iterator[tuple[slice, Bytes, Ints]]:
        """Write the SHA-1 of each canonical text to `digests`, and yield each group of texts with its canonical texts and their ends."""
        for start, end in _groups(texts):
            if self.units == "code":
                contents, canonical, ends = load_beside("cleaning", "code").compared(texts[start:end])
            else:
                canonical, ends = _canonical(texts[start:end])
                contents = _contents(canonical, ends, texts[start:end])
            found = b"".join(hashlib.sha1(content, usedforsecurity=False).digest() for content in contents)
            digests[start:end] = np.frombuffer(found, dtype=np.uint8).reshape(-1, DIGEST_BYTES)
            yield slice(start, end), canonical, ends

    def _slots(self, canonical: Bytes, ends: Ints, out: Uint32s) -> None:
        from niels_cache_assets.dedup import kernels

        kernels.sign(canonical, ends, self.ngram, *hashing.slot_constants(self.num_perm), out)


def hash_canonical(texts: Strings | Sequence[str]) -> Ints:
    """Return a hash of each canonical text, (n,) int64: the 64 bits of XXH3 of what the SHA-1 in `Signatures` digests, as a signed number.

    It takes 3 ms for each megabyte. Few texts of a `Strings` become Python objects: those with entities or accents, and empty ones.
    """
    from xxhash import xxh3_64_intdigest

    def hashed(canonical: Bytes, ends: Ints, texts: Sequence[str]) -> Uints:
        return np.fromiter(map(xxh3_64_intdigest, _contents(canonical, ends, texts)), np.uint64, len(ends))

    hashes, is_left = np.empty(len(texts), dtype=np.uint64), np.ones(len(texts), dtype=np.bool_)
    if isinstance(texts, Strings):
        source, offsets = texts.buffers()
        canonical, ends, is_left = _canonicalize(source, offsets[1:])
        hashes = hashed(canonical, ends, [""] * len(texts))
        is_left |= np.diff(ends, prepend=-1) == 1  # nothing is left of the text
        is_left[np.searchsorted(offsets[1:], np.flatnonzero(source == ord("&")), side="right")] = True
    left = np.flatnonzero(is_left)
    rest = texts[left].tolist() if isinstance(texts, Strings) else texts
    for start, end in _groups(rest):
        hashes[left[start:end]] = hashed(*_canonical(rest[start:end]), rest[start:end])
    return hashes.view(np.int64)


def jaccard(shingles: Uints, others: Uints) -> float:
    """Return the Jaccard similarity |A and B| / |A or B| of two sorted arrays of unique hashes (`Shingles.sets`).

    The result is 0.0 if one or both arrays are empty. The time is O(n log m) at most, where n is the length of the shorter array.
    """
    if len(shingles) > len(others):
        shingles, others = others, shingles
    if len(shingles) == 0:
        return 0.0
    if len(others) < 8 * len(shingles):
        from niels_cache_assets.dedup import kernels

        shared = kernels.count_shared(shingles, others)
    else:
        places = np.searchsorted(others, shingles)
        shared = int(np.count_nonzero(others[np.minimum(places, len(others) - 1)] == shingles))
    return shared / (len(shingles) + len(others) - shared)


def estimated_jaccard(slots: Uint32s, others: Uint32s) -> NDArray[np.float64]:
    """Return the share of equal slots in each row, (n,) float64, which is 0 for texts without words.

    This share estimates the Jaccard similarity J with variance J(1-J)/num_perm.
    """
    equal = (slots == others) & (slots != np.uint32(hashing.NO_SHINGLE))
    return equal.mean(axis=1)


def _canonical(texts: Sequence[str]) -> tuple[Bytes, Ints]:
    """Return the canonical texts as UTF-8, and the end of each text.

    One blank follows each text, and PADDING more blanks follow the last text.
    """
    decoded = [decode_entities(text) if "&" in text else text for text in texts]
    canonical, ends, to_compose = _canonicalized(decoded)
    if to_compose.any():  # in few groups
        canonical, ends, _ = _canonicalized([compose(text) if to_compose[index] else text for index, text in enumerate(decoded)])
    return canonical, ends


def _canonicalized(texts: Sequence[str]) -> tuple[Bytes, Ints, Bools]:
    """Return the result of `canonical_kernels.canonicalize`: canonical texts, their ends, and which texts must still be composed."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    source = np.frombuffer(b"".join(encoded), dtype=np.uint8)  # one text is not copied
    return _canonicalize(source, np.cumsum([len(text) for text in encoded], dtype=np.int64))


def _canonicalize(source: Bytes, ends: Ints) -> tuple[Bytes, Ints, Bools]:
    from niels_cache_assets.dedup import canonical_kernels

    source.flags.writeable = False  # numba would compile the function once more for other arrays
    room = 2 * len(source) + len(ends) + PADDING
    canonical, canonical_ends = np.empty(room, dtype=np.uint8), np.empty(len(ends), dtype=np.int64)
    to_compose = np.zeros(len(ends), dtype=np.bool_)
    canonical_kernels.canonicalize(source, ends, *_kernel_tables(), canonical, canonical_ends, to_compose)
    return canonical, canonical_ends, to_compose


@lru_cache(maxsize=1)
def _kernel_tables() -> tuple[Uint32s, Bytes, Bytes, Bytes]:
    from niels_cache_assets.dedup import canonical_kernels

    return marked_code_points(), *canonical_kernels.tables_of(marked_code_points())


def _groups(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield ranges of texts as (start, end), each with about a megabyte of text."""
    start = size = 0
    for index, text in enumerate(texts):
        if size and size + len(text) > _CHARACTERS_AT_ONCE:
            yield start, index
            start, size = index, 0
        size += len(text)
    if texts:
        yield start, len(texts)


def _contents(canonical: Bytes, ends: Ints, texts: Sequence[str]) -> Iterator[memoryview | bytes]:
    """Yield the bytes of each canonical text. If it is empty, yield a NUL and the text itself; no canonical text has a NUL."""
    view, start = memoryview(canonical), 0  # type: ignore[arg-type]
    for end, text in zip(ends.tolist(), texts, strict=True):
        yield view[start:end] if end > start else b"\0" + text.encode("utf-8", "surrogatepass")
        start = end + 1
