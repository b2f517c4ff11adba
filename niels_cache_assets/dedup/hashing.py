"""The definition of the numbers in a signature, in plain Python and numpy. `kernels` computes the same numbers faster, and a test compares
both.

* word hash: the UTF-8 bytes of a word are split into little-endian blocks of eight bytes; the last block is shorter, and may be empty. The
  hash h begins as WORD_START. Each block changes it to (h ^ block) * WORD_FACTOR, and `mix` ends it. A word contains no NUL, so words of up
  to seven bytes cannot collide.
* shingle hash, uint64: a shingle is a run of `ngram` consecutive words. Its hash is `mix` of the polynomial in SHINGLE_BASE whose
  coefficients are the word hashes; the first word has the highest power. A text with fewer words is one shingle of all its words. A text
  without words has no shingle.
* slot k, uint32: the minimum of (x ^ XORS[k]) * FACTORS[k] over all shingles, but at most LAST_SLOT_VALUE. x is the upper half of the
  shingle's hash. This is MinHash (Broder 1997) with permutations of 32 bits. All slots are NO_SHINGLE if there is no shingle.

All integers wrap at their width. `mix` is the finalizer of splitmix64 (Steele, Lea, Flood 2014). The constants of the slots are the output
of splitmix64 from SLOT_SEED, and are the same on every machine. The constants of 16 slots are the first constants of 128 slots.

This code takes about 0.35 ms/KB of text, which is about fifty times the time of the kernels (benchmarks/dedup.py).
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SIGNATURE_VERSION = "1"  # raise it by hand when canonical text, shingle hashes or slots change for the same text
WORD_START = 0xCBF29CE484222325
WORD_FACTOR = 0x9FB21C651E98DF25
SHINGLE_BASE = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
SLOT_SEED = 42
LAST_SLOT_VALUE = 0xFFFFFFFE
NO_SHINGLE = 0xFFFFFFFF  # a text with words never has this slot value
PADDING = 8  # number of blanks after the last canonical text, because the kernels read a word eight bytes at a time
_MASK = 0xFFFFFFFFFFFFFFFF
_SHINGLES_AT_ONCE = 1024  # the pure Python code takes this x num_perm x 4 bytes of memory


def mix(value: int) -> int:
    """Return `value` after the finalizer of splitmix64. This is a bijection of 64-bit integers in which every bit depends on every bit."""
    value = ((value ^ (value >> 30)) * MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * MIX_2) & _MASK
    return value ^ (value >> 31)


def mix_array(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return `mix` of each value."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(MIX_1)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(MIX_2)
    return values ^ (values >> np.uint64(31))


@lru_cache(maxsize=8)
def slot_constants(num_perm: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return XORS and FACTORS, (num_perm,) uint32 each, read-only. FACTORS are odd, so multiplying by them is a bijection."""
    stream = [mix((SLOT_SEED + SHINGLE_BASE * (index + 1)) & _MASK) for index in range(num_perm)]
    xors = np.array([value >> 32 for value in stream], dtype=np.uint32)
    factors = np.array([value & 0xFFFFFFFF | 1 for value in stream], dtype=np.uint32)
    xors.flags.writeable = factors.flags.writeable = False
    return xors, factors


def word_hash(word: bytes) -> int:
    """Return the hash of a word's UTF-8 bytes."""
    value = WORD_START
    for start in range(0, len(word) + 1, 8):
        value = ((value ^ int.from_bytes(word[start : start + 8], "little")) * WORD_FACTOR) & _MASK
    return mix(value)


def shingle_hashes(canonical: bytes, ngram: int) -> NDArray[np.uint64]:
    """Return the hash of each shingle of a canonical text, in text order, with repetitions: (words - ngram + 1,) uint64."""
    words = canonical.split(b" ") if canonical else []
    hash_of = {word: word_hash(word) for word in set(words)}
    hashes = np.array([hash_of[word] for word in words], dtype=np.uint64)
    width = min(ngram, len(words))
    if width == 0:
        return hashes
    shingles = np.zeros(len(words) - width + 1, dtype=np.uint64)
    for offset in range(width):
        shingles = shingles * np.uint64(SHINGLE_BASE) + hashes[offset : offset + len(shingles)]
    return mix_array(shingles)


def slots_of(shingles: NDArray[np.uint64], num_perm: int) -> NDArray[np.uint32]:
    """Return the MinHash of shingles (runs of words), (num_perm,) uint32. The argument has the hashes of the shingles."""
    xors, factors = slot_constants(num_perm)
    slots = np.full(num_perm, LAST_SLOT_VALUE if len(shingles) else NO_SHINGLE, dtype=np.uint32)
    values = (shingles >> np.uint64(32)).astype(np.uint32)
    for start in range(0, len(values), _SHINGLES_AT_ONCE):
        permuted = (values[start : start + _SHINGLES_AT_ONCE, None] ^ xors) * factors
        np.minimum(slots, permuted.min(axis=0), out=slots)
    return slots
