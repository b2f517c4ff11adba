"""The definition of canonical text, hashes and slots in plain Python and numpy. Tests compare the compiled loops with it.

`niels_cache_assets.dedup.canonical` and `hashing` describe the rules.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.dedup.canonical import (
    ALONE,
    CLOSING,
    DASH,
    ELLIPSIS,
    QUOTE,
    REMOVED,
    SIGN,
    TO_COMPOSE,
    code_points,
    compose,
    decode_entities,
)
from niels_cache_assets.dedup.hashing import (
    LAST_SLOT_VALUE,
    MIX_1,
    MIX_2,
    NO_SHINGLE,
    PADDING,
    SHINGLE_BASE,
    WORD_FACTOR,
    WORD_START,
    mix,
    slot_constants,
)
from niels_cache_assets.dedup.signatures import Shingles, Signer

_MASK = 0xFFFFFFFFFFFFFFFF
_SHINGLES_AT_ONCE = 1024
_HAS_TO_COMPOSE = re.compile("[" + "".join(f"{chr(first)}-{chr(end - 1)}" for first, end in TO_COMPOSE) + "]")


class PlainSigner(Signer):
    """A signer without compiled loops."""

    def shingle_sets(self, texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        shingles = self.shingle(texts)
        sets = [set_of(shingles, index) for index in range(len(texts))]
        return np.concatenate([shingles.hashes[:0], *sets]), np.cumsum([len(each) for each in sets], dtype=np.int64)

    def _canonical(self, texts: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        return _with_blanks([canonical_text(text).encode() for text in texts])

    def _shingles(self, canonical: NDArray[np.uint8], ends: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        parts = [shingle_hashes(text, self.ngram) for text in _split(canonical, ends)]
        return np.concatenate(parts), np.cumsum([len(part) for part in parts], dtype=np.int64)

    def _slots(self, canonical: NDArray[np.uint8], ends: NDArray[np.int64], out: NDArray[np.uint32]) -> None:
        for row, text in zip(out, _split(canonical, ends), strict=True):
            row[:] = slots_of(shingle_hashes(text, self.ngram), self.num_perm)


def sign_canonical(signer: Signer, texts: Sequence[str]) -> NDArray[np.uint32]:
    """Return only the slots, (n, num_perm) uint32, of texts that are already canonical."""
    slots = np.empty((len(texts), signer.num_perm), dtype=np.uint32)
    signer._slots(*_with_blanks([text.encode() for text in texts]), slots)
    return slots


def _with_blanks(canonical: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return canonical texts in the form of `Signer._canonical`."""
    ends = np.cumsum([len(text) + 1 for text in canonical], dtype=np.int64) - 1
    return np.frombuffer(b" ".join([*canonical, b" " * PADDING]), dtype=np.uint8), ends


def _split(canonical: NDArray[np.uint8], ends: NDArray[np.int64]) -> Iterator[bytes]:
    start = 0
    for end in ends.tolist():
        yield canonical[start:end].tobytes()
        start = end + 1


def mix_array(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return `mix` of each value."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(MIX_1)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(MIX_2)
    return values ^ (values >> np.uint64(31))


def word_hash(word: bytes) -> int:
    """Return the hash of a word's UTF-8 bytes."""
    value = WORD_START
    for start in range(0, len(word) + 1, 8):
        value = ((value ^ int.from_bytes(word[start : start + 8], "little")) * WORD_FACTOR) & _MASK
    return mix(value)


def set_of(shingles: Shingles, index: int) -> NDArray[np.uint64]:
    """Return the hashes of one document, sorted and without repetitions."""
    return np.unique(shingles.hashes[shingles.ends[index - 1] if index else 0 : shingles.ends[index]])


def shingles_of(signer: Signer, text: str) -> NDArray[np.uint64]:
    return set_of(signer.shingle([text]), 0)


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


def as_seen(text: str) -> str:
    """Return a text with its HTML entities decoded, its accents composed (NFC of Unicode 3.2), and its ligatures spelled out.

    The words of the result are those of the text: a blank stays where it is.
    """
    text = decode_entities(text)
    return text if text.isascii() or _HAS_TO_COMPOSE.search(text) is None else compose(text)


# In the pure Python code, characters stand for kinds while a text is made. No text has these control characters any more.
_AROUND = {SIGN: "\x01", CLOSING: "\x02", ALONE: "\x05"}
_DASH, _QUOTE = "\x03", "\x04"
_MARK = dict(zip(".,;:!?", "\x0e\x0f\x10\x11\x12\x13", strict=True)) | {chr(ELLIPSIS): "\x0e\x0e\x0e"}
# Each expression begins with a character, and looks behind after it, because this is faster.
_QUOTE_OF_NUMBERS = re.compile("\x04(?<=[0-9]\x04)\x04*(?=[0-9])")
_DASHES = re.compile("(?:\x03(?<=[^\x00-\x04\x06-\x20]\x03)\x03+| (?<=[^\x00-\x04\x06-\x20] )\x03{2,} )(?=[^\x00-\x04\x06-\x20])")
_MARKS_OF_SENTENCES = re.compile("([\x0e-\x13])(?<!\\1\\1)(?:(?<=[^\x00\x01\x03-\x20].)\\1*(?= |\\Z)|(?<=\x05.)\\1*|\\1*(?=\x05))")
_AS_SIGNS = {kind: f"\x01{mark}\x01" for mark, kind in {**_MARK, "-": _DASH}.items() if len(kind) == 1} | {"\x02": "\x01"}
_SIGNS = re.compile("(?:\x01[^\x01]\x01[ \x05]*)+")
_NOT_OF_SIGNS = re.compile("[ \x01\x05]")


class _Translation(dict[int, str | None]):
    """The table in the form that `str.translate` takes. It contains only the code points that have occurred so far."""

    def __missing__(self, code_point: int) -> str | None:
        entry = int(code_points()[code_point])
        kind, character = entry & ~0xFFFFFF, chr(entry & 0xFFFFFF)
        if kind in _AROUND:
            self[code_point] = _AROUND[kind] + character + _AROUND[kind]
        elif kind:
            self[code_point] = {DASH: _DASH, QUOTE: _QUOTE}.get(kind) or _MARK[character]
        else:
            self[code_point] = None if entry == REMOVED else character
        return self[code_point]


_translation = _Translation()


def canonical_text(text: str) -> str:
    """Return the canonical form of a text, which is words with one blank between them, or "" if nothing remains."""
    text = as_seen(text).translate(_translation)
    text = " ".join(_QUOTE_OF_NUMBERS.sub("'", text).replace(_QUOTE, "").split())
    text = _DASHES.sub(_DASH, text) if _DASH + _DASH in text else text
    text = _MARKS_OF_SENTENCES.sub(" ", text)
    for kind, sign in _AS_SIGNS.items():
        text = text.replace(kind, sign)
    text = _SIGNS.sub(lambda signs: " " + _NOT_OF_SIGNS.sub("", signs[0]), text)
    return " ".join(text.replace(_AROUND[ALONE], " ").split())
