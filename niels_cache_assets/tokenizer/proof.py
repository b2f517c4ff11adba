"""The proof that a fast engine gives the ids of the reference: a fixed set of difficult texts, and the comparison of ids.

The texts are computed from a seed, so every machine gets the same texts for the same model. There are about twenty thousand texts with four
million characters. They contain every code point of the planes 0 and 1, mixtures of scripts, marks, emoji and control characters, long runs
of one character, long documents, and pieces and added tokens of the model itself. Cost: two seconds, mostly for the reference. engines.py
chooses an engine by this proof, and encoder.py compares again during a build.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from niels_cache_assets.base.random_numbers import TorchRandom
from niels_cache_assets.tokenizer.base import FlatIds
from niels_cache_assets.tokenizer.kinds import EncodeFlat
from niels_cache_runtime.errors import NielsCacheError

TEXTS_PER_COMPARISON = 256

_SEED = 22
_MIXTURES = 8_000
_MAX_ADDED = 2_000  # more added tokens are not all tried
_RUN_LENGTHS = (*range(1, 20), 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1_000, 4_096, 10_000)
_LONG_LENGTHS = (20_000, 33_000, 66_000, 130_000, 400_000)  # engines divide long documents
_PLAIN_LENGTHS = (40_000, 50_000, 100_000, 300_000, 1_000_000)

_SURROGATES = range(0xD800, 0xE000)
_VISIBLE = """
a I the Zug été naïve Ελλάδα мир שלום سلام हिन्दी ไทย 中文 日本語 한국어 ქართული ⅷ
ſ K İ ı ß ẞ Ω Å ﬁ Dž ΣΑΣ σς 𝐀 𝒜 аpple ＦＵＬＬ
's 'S 't 'RE 've 'Ll 'd 'ſ ’s ' '' 'sx 'm'm `s ʼs
0 1 12 123 1234 12345678 3.14 1,000,000 ٣ १२३ ½ ² Ⅻ 𝟘𝟙 ① 1e-9 0x1F
. ... ! ?! - -- _ # // \\ " () {} [] < > = == $ € «» 。 、 · —
😀 👍🏽 👩\u200d👩\u200d👧\u200d👦 🏳\ufe0f\u200d🌈 🇩🇪 🇩 ❤\ufe0f 1\ufe0f\u20e3 🧑🏿\u200d🚀 ☃
Ġ Ċ Ġthe ▁ ▁the <0x0A> <0xFF> ÿþ Ã© â€™ ï»¿ \\u0041 &amp; %20 Âµ
<s> </s> <unk> <pad> [CLS] [INST] <|endoftext|> <|im_start|> <|eot_id|> <｜User｜> <|fim_ <|
https://a.b/c?d=e&f=%20#g snake_case_name camelCaseName HTTPServer2 x=[i,j] 2026-11-23T07:00Z a@b.de
"""  # words; letters of odd case and look-alikes; contractions; digits; signs; emoji; bytes as text; special tokens; written by programs
_BLANKS = [" ", "  ", "   ", "\t", "\t\t", " \t", *"\u00a0\u1680\u2003\u200a\u202f\u205f\u3000\u180e\u0085"]
_NEWLINES = ["\n", "\n\n", "\r\n", "\r", "\n ", " \n", " \n \n", "\n\t", "\u2028", "\u2029", "\v", "\f", "\n\n\n\n"]
_MARKS = [*"\u0301\u0345\u20e3\u093f\u0e33\u05bc\u064b\u302a\U0001e8d0", "\u0308\u0323", "\u1dc0\u0300\u0300"]
_INVISIBLE = [*"\u200b\u200c\u200d\u200e\u202e\u2060\ufeff\u00ad\ufe0f\ufe0e\U000e0041\u061c"]
_CONTROLS = [*"\x00\x01\x07\x08\x1c\x1f\x7f\x80\x9f", "\x1b[0m"]
_EDGES = [*"\ud7ff\ue000\ufffd\ufffe\uffff\U00010000\U0001ffff\U000f0000\U0010ffff\ufdd0", "\ufffd\ufffd"]
_POOLS = [*(line.split(" ") for line in _VISIBLE.strip().split("\n")), _BLANKS, _NEWLINES, _MARKS, _INVISIBLE, _CONTROLS, _EDGES]
_RUNS = [*" \n\taZ7-=é中가ا😀\u0301\u00a0\u200d\x00\ufffd", "\r\n", " a", "a1", "\n "]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A text that an engine encodes differently.

    Attributes:
        text: The text.
        expected: Ids of the reference.
        found: Ids of the engine.
    """

    text: str
    expected: list[int]
    found: list[int]

    @property
    def first(self) -> int:
        """Index of the first id that differs."""
        pairs = zip(self.expected, self.found, strict=False)
        return next((number for number, (one, other) in enumerate(pairs) if one != other), min(len(self.expected), len(self.found)))

    def excerpt(self, decode: Callable[[Sequence[int]], str], *, characters: int) -> str:
        """Return the text around the first id that differs, as a Python string literal.

        Args:
            decode: The tokenizer's method that decodes ids.
            characters: Maximum number of characters on each side.
        """
        position = min(len(decode(self.expected[: self.first])), len(self.text))
        start, end = max(0, position - characters), position + characters
        return f"{'... ' if start else ''}{self.text[start:end]!r}{' ...' if end < len(self.text) else ''}"


@dataclass(frozen=True, kw_only=True)
class EngineProof:
    """The result of a comparison.

    Attributes:
        texts: Number of texts.
        differing: How many of them differ.
        unencodable: How many of them the reference cannot encode, so that they were not compared.
        first: The first text that differs, or None.
    """

    texts: int
    differing: int = 0
    unencodable: int = 0
    first: Difference | None = None

    def __add__(self, other: EngineProof) -> EngineProof:
        return EngineProof(
            texts=self.texts + other.texts,
            differing=self.differing + other.differing,
            unencodable=self.unencodable + other.unencodable,
            first=self.first or other.first,
        )


def compare(texts: Iterable[str], *, reference: EncodeFlat, engine: EncodeFlat) -> EngineProof:
    """Encode texts with the reference and with an engine, and compare the ids of each text.

    A text that the engine cannot encode counts as different, with no ids. A text that the reference cannot encode is only counted.

    Args:
        texts: Texts, which must be valid Unicode.
        reference: Encodes texts with the reference.
        engine: Encodes texts with the engine.
    """
    proof, remaining = EngineProof(texts=0), iter(texts)
    while batch := list(islice(remaining, TEXTS_PER_COMPARISON)):
        try:
            proof += compare_encoded(batch, reference(batch), engine(batch))
        except Exception:
            if len(batch) > 1:
                proof = sum((compare([text], reference=reference, engine=engine) for text in batch), proof)
                continue
            try:
                expected, _ = reference(batch)
            except NielsCacheError:
                proof += EngineProof(texts=1, unencodable=1)
                continue
            proof += EngineProof(texts=1, differing=1, first=Difference(text=batch[0], expected=expected.tolist(), found=[]))
    return proof


def compare_encoded(texts: Sequence[str], expected: FlatIds, found: FlatIds) -> EngineProof:
    """Compare the ids of texts that are already encoded.

    Args:
        texts: The texts.
        expected: Ids of the reference, as EncodeFlat returns them.
        found: Ids of the engine, as EncodeFlat returns them.
    """
    if all(map(np.array_equal, expected, found)):
        return EngineProof(texts=len(texts))
    both = [np.split(ids, np.cumsum(lengths)[:-1]) for ids, lengths in (expected, found)]
    differing = [number for number, (one, other) in enumerate(zip(*both, strict=True)) if not np.array_equal(one, other)]
    first = differing[0]
    return EngineProof(
        texts=len(texts),
        differing=len(differing),
        first=Difference(text=texts[first], expected=both[0][first].tolist(), found=both[1][first].tolist()),
    )


def difficult_texts(*, added: Sequence[str] = (), pieces: Sequence[str] = ()) -> Iterator[str]:
    """Yield the fixed set of difficult texts for a model, none of which has a lone surrogate.

    The same arguments always give the same texts.

    Args:
        added: Added tokens of the model, as text.
        pieces: Pieces of its vocabulary that are valid text.
    """
    draw = _Draw(_SEED)
    yield ""
    yield from _code_points()
    for text in _RUNS:
        yield from (text * length for length in _RUN_LENGTHS)
        yield from (f"x{text * length}x" for length in _RUN_LENGTHS if length < 100)
    for pool in _POOLS:
        for one in pool:
            yield from (one, f" {one}", f"{one} ", f"a{one}b", f"{one}{one}", f"\n{one}\n", one.upper(), f"1{one}")
    yield from mixtures(_MIXTURES, pieces=pieces, seed=_SEED)
    for token in added[:_MAX_ADDED]:
        before, after = draw.mixture(_POOLS, parts=2)
        cut = draw.below(len(token)) if token else 0
        yield from (token, f"{before}{token}{after} {token}{token} b", f"{token[:cut]}{after}{token[cut:]} {token[:cut]} {token.upper()}")
    words = [*_VISIBLE.split(), *pieces[:2_000]]
    for length in _LONG_LENGTHS:
        yield _long_text(draw, words, length)
        yield _long_text(draw, [word for word in words if word.isascii()], length)
    letters = [word for word in words if word.isalpha()]  # no special token and no long word, with which some engines leave a text out
    for length in _PLAIN_LENGTHS:
        yield " ".join(draw.several(letters, length // 5))


def mixtures(count: int, *, pieces: Sequence[str], seed: int) -> Iterator[str]:
    """Yield texts that are random mixtures of difficult parts, of difficult ASCII parts, and of pieces of a vocabulary."""
    draw = _Draw(seed)
    ascii_pools = [kept for pool in _POOLS if (kept := [one for one in pool if one.isascii()])]  # engines have other code for ASCII
    for number in range(count):
        if number % 3 == 0:
            yield "".join(draw.mixture(_POOLS, parts=draw.below(40) + 1))
        elif number % 3 == 1 or not pieces:
            yield "".join(draw.mixture(ascii_pools, parts=draw.below(80) + 1))
        else:
            yield (" " if draw.below(4) == 0 else "").join(draw.several(pieces, draw.below(24) + 1))


def _code_points() -> Iterator[str]:
    """Yield each code point of the planes 0 and 1, and the ends of the other planes, between letters and alone."""
    for first in (*range(0, 0x20000, 64), *(plane + edge for plane in range(0x20000, 0x110000, 0x10000) for edge in (0, 0xA6C0, 0xFFC0))):
        characters = [chr(code) for code in range(first, first + 64) if code not in _SURROGATES]
        if characters:
            yield "".join(characters)
            yield " ".join(characters)
            yield "a".join(characters)
    yield from map(chr, range(0x250))


def _long_text(draw: _Draw, words: Sequence[str], length: int) -> str:
    """Return a text of about `length` characters: words with line ends after some of them, and long lines without blanks."""
    parts: list[str] = []
    size = 0
    while size < length:
        joint = (" ", " ", " ", "\n", "")[draw.below(5)]
        part = joint.join(draw.several(words, 50)) + joint
        parts.append(part)
        size += len(part)
    return "".join(parts)


class _Draw:
    """Random choices from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = TorchRandom(seed)
        self._numbers: list[int] = []

    def below(self, limit: int) -> int:
        if not self._numbers:
            self._numbers = self._random.below(1 << 40, 4_096).tolist()
        return self._numbers.pop() % limit

    def several(self, things: Sequence[str], count: int) -> list[str]:
        return [things[self.below(len(things))] for _ in range(count)]

    def mixture(self, pools: Sequence[Sequence[str]], *, parts: int) -> list[str]:
        """Return parts, each from a pool that is drawn first."""
        return [pool[self.below(len(pool))] for pool in (pools[self.below(len(pools))] for _ in range(parts))]
