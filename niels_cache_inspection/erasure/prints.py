"""Prints: numbers by which a piece of text is found again in any file, without the text.

    bytes --> only letters, digits and what is not ASCII, in lower case --> a hash of each 24 bytes --> the least hash of each 24 in a row

These least hashes are the prints (winnowing: Schleimer, Wilkerson, Aiken, 2003). Two texts that share 47 such bytes share a print, wherever
these bytes are. So a document is found in one that contains it, its excerpt in a report, and a part of it beyond the border of a shard, and
neither white space, punctuation, case nor the escapes of JSON hide it. A text has a print for about every 13 bytes.

A text with less than 47 such bytes is also searched as it is (`short`), and one with less than 12 is not searched.

Cost: about 80 MB of text a second on a core, and 10 MB with keyed hashes, in blocks, so memory does not grow with the files.
"""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from niels_cache_runtime.format.layout import Bools, Ints, Uints

GRAM = 24  # bytes that a hash covers
RUN = 2 * GRAM - 1  # bytes that two texts must share, so that they surely share a print
LEAST = 12  # bytes of the shortest text that is searched
_BLOCK = 1 << 16  # bytes whose hashes are in memory
_LOWER = bytes(range(65)) + bytes(range(97, 123)) + bytes(range(91, 256))
_LEFT_OUT = bytes(each for each in range(128) if not chr(each).isalnum()) + b"\xff"  # which stands for special tokens
_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_CODE = re.compile(r"\\u([0-9a-fA-F]{4})")
_BREAK = re.compile(r"\\[nrtfb]")


def normalize(text: bytes) -> bytes:
    """Return the letters and digits of a text in lower case, and all bytes that are not ASCII."""
    return text.translate(_LOWER, _LEFT_OUT)


def unescape(text: bytes) -> bytes:
    """Return text of a JSON, HTML or log file without the escapes of JSON and HTML."""
    decoded = _CODE.sub(lambda match: chr(int(match[1], 16)), text.decode(errors="replace"))
    joined = decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # escaped pairs of surrogates are one character
    return html.unescape(_BREAK.sub(" ", joined)).encode()


def prints_of(normalized: bytes) -> Uints:
    """Return the prints of a normalized text, sorted, each once. A text with less than 24 bytes has none."""
    return np.unique(np.concatenate([np.empty(0, np.uint64), *map(_least, _hashes(normalized))]))


def _hashes(normalized: bytes) -> Iterator[Uints]:
    """Yield the hashes of all 24 bytes in a row, in blocks that overlap by all but one of those that a print is the least of."""
    for start in range(0, len(normalized), _BLOCK):
        block = normalized[start : start + _BLOCK + RUN - 1]
        count = len(block) - GRAM + 1
        if count < 1:
            return
        every = np.ndarray(count + 16, "<u8", block, 0, (1,)).copy()  # the word of eight bytes that each byte begins
        words = [every[offset : offset + count] for offset in (0, 8, 16)]
        with np.errstate(over="ignore"):
            hashes = words[0] * np.uint64(_FACTORS[0])
            for word, factor in zip(words[1:], _FACTORS[1:], strict=False):
                hashes ^= hashes >> np.uint64(29)
                hashes += word
                hashes *= np.uint64(factor)
            hashes ^= hashes >> np.uint64(32)
            hashes *= np.uint64(_FACTORS[3])
        yield hashes


def _least(hashes: Uints) -> Uints:
    """Return the least of each 24 consecutive hashes, or of all if there are fewer."""
    if len(hashes) < GRAM:
        return hashes.min(keepdims=True)
    for step in (1, 2, 4, 8):  # the least of 2, 4, 8 and 16
        hashes = np.minimum(hashes[:-step], hashes[step:])
    hashes = np.minimum(hashes[:-8], hashes[8:])  # of 24
    return hashes[np.flatnonzero(np.diff(hashes, prepend=hashes[:1] + np.uint64(1)))]


@dataclass(frozen=True, kw_only=True)
class TextPrints:
    """What is known of one text to look for.

    Attributes:
        prints: Its prints, sorted.
        short: The normalized text itself, if it is too short to be found by prints alone, or empty.
        is_whole: Whether a short text is a whole document, so that only equal documents are copies of it: many may contain "thank you".
    """

    prints: Uints
    short: bytes = b""
    is_whole: bool = False

    @classmethod
    def of(cls, texts: Iterable[str], *, is_whole: bool = False) -> TextPrints:
        """Return the prints of the texts of one document, such as the messages of a conversation."""
        normalized = [normalize(text.encode(errors="replace")) for text in texts]
        joined = b"".join(normalized)
        every = [prints_of(each) for each in normalized]
        prints = np.unique(np.concatenate([np.empty(0, np.uint64), *every]))
        return cls(prints=prints, short=joined if len(joined) < RUN else b"", is_whole=is_whole)

    @property
    def has_prints(self) -> bool:
        """Whether it is found by prints, as all but short texts."""
        return len(self.prints) > 0 and not self.short

    @property
    def is_searchable(self) -> bool:
        """Whether the text is long enough to be told from others."""
        return self.has_prints or len(self.short) >= LEAST


@dataclass(frozen=True)
class WantedTexts:
    """Texts to look for, all at once. Those that are too short are not looked for."""

    texts: tuple[TextPrints, ...]

    @cached_property
    def prints(self) -> Uints:
        """The prints of all texts, sorted."""
        return np.unique(np.concatenate([np.empty(0, np.uint64), *(each.prints for each in self.texts if each.has_prints)]))

    @cached_property
    def _shorts(self) -> list[bytes]:
        return [each.short for each in self.texts if each.short and each.is_searchable]

    def found_in(self, normalized: bytes) -> Uints:
        """Return the prints that a normalized text has, and for a short text that it contains, the hash of this text."""
        found = map(self._matching, _hashes(normalized))
        shorts = [_hash(each) for each in self._shorts if each in normalized]
        return np.unique(np.concatenate([np.array(shorts, np.uint64), *found]))

    @cached_property
    def _may_match(self) -> Bools:
        """Whether a hash with these upper 16 bits may be a print of the texts, which few are."""
        table = np.zeros(1 << 16, np.bool_)
        table[self.prints >> np.uint64(48)] = True
        return table

    def _matching(self, hashes: Uints) -> Uints:
        """Return those of all hashes of a text that are prints of the texts.

        They need not be the least ones here: a passage that is too short to have a print of its own in a document that stays must be known
        from it, because it may have one elsewhere, such as at the end of an excerpt of this document.
        """
        if not len(self.prints):
            return hashes[:0]
        own = hashes[self._may_match[hashes >> np.uint64(48)]]
        near = self.prints.searchsorted(own) % len(self.prints)
        return own[self.prints[near] == own]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to look for."""
        return not (len(self.prints) or self._shorts)

    def share(self, found: Uints, normalized: bytes | None = None) -> float:
        """Return the largest share of one of the texts that a document with these prints contains.

        Args:
            found: The prints.
            normalized: The normalized text of the document, which is compared with short texts that are whole documents.
        """
        if not len(found):
            return 0.0
        shorts = [each for each in self.texts if each.short and (not each.is_whole or each.short == normalized)]
        shares = [float(_hash(each.short) in found) for each in shorts]
        prints, owners, counts = self._owners
        bounds = zip(prints.searchsorted(found).tolist(), prints.searchsorted(found, "right").tolist(), strict=True)
        own = np.concatenate([owners[:0], *(owners[first:last] for first, last in bounds)])
        return max([*shares, *(np.bincount(own, minlength=len(counts)) / counts).tolist()], default=0.0)

    @cached_property
    def _owners(self) -> tuple[Uints, Ints, Ints]:
        """The prints of all texts, sorted, the number of the text of each, and the number of prints of each text."""
        every = [each.prints for each in self.texts if each.has_prints]
        counts = np.array([len(each) for each in every], np.int64)
        prints = np.concatenate([np.empty(0, np.uint64), *every])
        order = np.argsort(prints, kind="stable")
        return prints[order], np.repeat(np.arange(len(every)), counts)[order], counts


def _hash(short: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(short, digest_size=8).digest(), "little")


class KeyedTexts(WantedTexts):
    """Texts of which only keyed hashes of their prints are known, as a receipt has them.

    Args:
        key: The key.
        groups: The keyed hashes of the prints of each text.
    """

    def __init__(self, key: bytes, groups: Sequence[Collection[str]]) -> None:
        super().__init__(())
        self.__dict__.update(_key=key, _groups=[frozenset(each) for each in groups], _every=frozenset().union(*groups))

    def _matching(self, hashes: Uints) -> Uints:
        own = np.unique(_least(hashes))  # a keyed hash takes a microsecond
        found = [digest in self.__dict__["_every"] for digest in keyed_prints(self.__dict__["_key"], own)]
        return own[np.array(found, bool)]

    @property
    def is_empty(self) -> bool:
        return not self.__dict__["_every"]

    def share(self, found: Uints, normalized: bytes | None = None) -> float:
        digests = {*keyed_prints(self.__dict__["_key"], found)}
        return max((len(digests & group) / len(group) for group in self.__dict__["_groups"] if group), default=0.0)


def keyed(key: bytes, value: bytes) -> str:
    """Return a hash that nobody can compute, and so nobody can guess values by, without the key."""
    return hashlib.blake2b(value, key=key, digest_size=16).hexdigest()


def keyed_prints(key: bytes, prints: Uints) -> Iterator[str]:
    """Yield the keyed hash of each print."""
    content = prints.astype("<u8").tobytes()
    return (keyed(key, content[start : start + 8]) for start in range(0, len(content), 8))
