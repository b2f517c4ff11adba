"""The definition of the numbers in a signature.

`kernels` computes them, and a test compares it with a version in plain Python (tests/helpers/plain_signatures.py).

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
"""

from functools import lru_cache

import numpy as np

from niels_cache_runtime.format.layout import Uint32s

SIGNATURE_VERSION = "1"  # raise it by hand when canonical text, shingle hashes or slots change for the same text
WORD_START = 0xCBF29CE484222325
WORD_FACTOR = 0x9FB21C651E98DF25
SHINGLE_BASE = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
SLOT_SEED = 42
LAST_SLOT_VALUE = 0xFFFFFFFE
NO_SHINGLE = 0xFFFFFFFF  # a text with words never has this slot value
PADDING = 8  # blanks after the last canonical text, because the kernels read a word eight bytes at a time
_MASK = 0xFFFFFFFFFFFFFFFF


def mix(value: int) -> int:
    """Return `value` after the finalizer of splitmix64, a bijection of 64-bit integers in which every bit depends on every bit."""
    value = ((value ^ (value >> 30)) * MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * MIX_2) & _MASK
    return value ^ (value >> 31)


@lru_cache(maxsize=8)
def slot_constants(num_perm: int) -> tuple[Uint32s, Uint32s]:
    """Return XORS and FACTORS, (num_perm,) uint32 each, read-only. FACTORS are odd, so multiplying by them is a bijection."""
    stream = [mix((SLOT_SEED + SHINGLE_BASE * (index + 1)) & _MASK) for index in range(num_perm)]
    xors = np.array([value >> 32 for value in stream], dtype=np.uint32)
    factors = np.array([value & 0xFFFFFFFF | 1 for value in stream], dtype=np.uint32)
    xors.flags.writeable = factors.flags.writeable = False
    return xors, factors
