"""A fast engine for unigram models of SentencePiece, which remembers the pieces of words.

Most words of a text have occurred before. In a unigram model whose pieces do not cross a blank, the pieces of a word do not depend on the
words around it, except for the rounding of sums (unigram_kernels.py). Texts are given to the loop as one array of bytes. SentencePiece
encodes a text that the loop cannot encode: one with a user-defined symbol, U+2581 or NUL, with a word of more than 1,536 bytes, or of more
than about 40 KB.

Cost: a second to import numba and to build the trie, six seconds more where numba has not compiled the loop yet, and 9 MB for each thread.
So builds load the engine only after some megabytes of text (encoder.py). It releases the GIL. Without numba, SentencePiece encodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from niels_cache_assets.base.strings import Strings, buffers_of
from niels_cache_assets.tokenizer.base import FlatIds, TextTokenizer, concatenate_ids, first_line
from niels_cache_assets.tokenizer.sentencepiece_model import BLANK, BYTE, NORMAL, USER_DEFINED, DescribedModel, SentencePieceTokenizer

_TABLE_ROWS = 1 << 17  # the table is emptied when half of them are used
_POOL = 6 * _TABLE_ROWS  # numbers for the ids, scores and bytes of all words in a table
_UNKNOWN_PENALTY = np.float32(10)
_ROOT = -2  # in the row of the root, instead of an edge
_FACTOR = 0x9E3779B97F4A7C15  # of the hash of an edge: see unigram_kernels


class VocabularyTrie(NamedTuple):
    """The pieces of a model, as a trie over bytes in which a blank stands for U+2581.

    The node after an edge is the edge's index in a hash table. The root is the last row.

    Attributes:
        nodes: (2**k, 2) int32. For each node the edge to it (the node before * 256 + the byte; -1 for a free row), and the id of the piece
            that ends there (-1: none; REFUSED: no text may have it).
        scores: (pieces,) float32, by id.
        bytes: (256,) int32, the id of each byte.
        unknown: Score of a character without a piece.
    """

    nodes: np.ndarray
    scores: np.ndarray
    bytes: np.ndarray
    unknown: np.float32


class WordTable(NamedTuple):
    """The words that one thread has encoded.

    Attributes:
        rows: (2**k, 5) int64. For each word its hash (0 for a free row), its index in `pool`, its bytes, and its number of ids.
        leads: The same memory as float64, in which the fifth number of a row is the lead.
        pool: int32. For each word its ids and scores in turn, and then its bytes.
        pool_scores: The memory of `pool` as float32.
        pool_bytes: The memory of `pool` as uint8.
        filled: (2,) int64, the number of words and of used numbers in `pool`.
    """

    rows: np.ndarray
    leads: np.ndarray
    pool: np.ndarray
    pool_scores: np.ndarray
    pool_bytes: np.ndarray
    filled: np.ndarray

    @classmethod
    def empty(cls) -> WordTable:
        """Return a table without words."""
        rows, pool = np.zeros((_TABLE_ROWS, 5), np.int64), np.zeros(_POOL, np.int32)
        return cls(rows, rows.view(np.float64), pool, pool.view(np.float32), pool.view(np.uint8), np.zeros(2, np.int64))


class UnigramWords:
    """A unigram model with its table of words. Several threads may encode at the same time, each with a table of its own."""

    name = "unigram-words"
    version = "1"  # raise this by hand if a change may give other ids

    def __init__(self, processor: Any, pieces: VocabularyTrie, *, is_line_feed_alone: bool) -> None:
        from niels_cache_assets.tokenizer import unigram_kernels

        self._encode = unigram_kernels.encode
        self._processor, self._pieces, self._is_line_feed_alone = processor, pieces, is_line_feed_alone
        self._tables: deque[WordTable] = deque()  # those that no thread uses now

    @classmethod
    def load(cls, tokenizer: TextTokenizer) -> UnigramWords | str:
        """Load the model of a tokenizer, or return why that is impossible."""
        assert isinstance(tokenizer, SentencePieceTokenizer)
        model = DescribedModel.of(tokenizer)
        if not (model.is_unigram and model.keeps_text and model.adds_blank):
            return f"{cls.name} does not support a model that changes text or lacks pieces for bytes"
        if find_spec("numba") is None:
            return f"{cls.name} needs numba, which is not installed"
        try:
            import numba

            if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
                return f"{cls.name} needs numba, which NUMBA_DISABLE_JIT switches off"
            found = _pieces_of(model.pieces)
        except Exception as error:  # numba cannot be loaded
            return f"{cls.name} cannot load the model: {first_line(error)}"
        if found is None:
            return f"{cls.name} does not support a model with pieces of several words"
        return cls(tokenizer.library_processor, found[0], is_line_feed_alone=found[1])

    def encode_flat(self, texts: Sequence[str] | Strings) -> FlatIds:
        column = texts if isinstance(texts, Strings) else Strings.of(texts)
        assert column is not None  # a build drops texts with a lone surrogate before
        content, ends = _with_blanks(column)
        ids, lengths = self._encoded(content, ends)
        is_whole = lengths < 0
        if (positions := _unsupported(content)).size:
            is_whole[np.searchsorted(ends, positions, side="right")] = True
            ids = ids[np.repeat(~is_whole, np.maximum(lengths, 0))]
        if not is_whole.any():
            return ids, lengths
        whole = [texts[number] for number in np.flatnonzero(is_whole).tolist()]
        others, lengths[is_whole] = concatenate_ids(self._processor.encode_as_numpy(whole, num_threads=1))
        is_from_whole = np.repeat(is_whole, lengths)
        every = np.empty(len(is_from_whole), np.int32)
        every[is_from_whole], every[~is_from_whole] = others, ids
        return every, lengths

    def _encoded(self, content: np.ndarray, ends: np.ndarray) -> FlatIds:
        """Return ids, and the number of ids of each text, -1 for a text to encode whole.

        Args:
            content: Bytes of the texts, as `source` in unigram_kernels.encode.
            ends: End of each text, as in unigram_kernels.encode.
        """
        ids, lengths = np.empty(len(content), np.int32), np.empty(len(ends), np.int64)
        try:
            table = self._tables.pop()
        except IndexError:
            table = WordTable.empty()
        count = self._encode(content, ends, self._is_line_feed_alone, *self._pieces, *table, ids, lengths)
        self._tables.append(table)
        return ids[:count], lengths


def _with_blanks(texts: Strings) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of texts with a blank before each, and the end of each text in them, (n,) int64."""
    import pyarrow as pa
    from pyarrow import compute

    empty, blank = (pa.scalar(each, pa.large_string()) for each in ("", " "))
    content, offsets = buffers_of(compute.binary_join_element_wise(empty, texts.arrow(), blank))
    return content, offsets[1:]


def _unsupported(content: np.ndarray) -> np.ndarray:
    """Return the positions of NUL and of U+2581, which SentencePiece takes for a blank."""
    found = content == 0
    first, middle, last = BLANK.encode()
    found[1:-1] |= (content[1:-1] == middle) & (content[:-2] == first) & (content[2:] == last)
    return np.flatnonzero(found)


def _pieces_of(parsed: list[tuple[str, float, int]]) -> tuple[VocabularyTrie, bool] | None:
    """Return the pieces, and whether no piece has a line feed beside other characters, or None if a piece has several words."""
    from niels_cache_assets.tokenizer.unigram_kernels import REFUSED, WORST_SCORE

    byte_ids = np.full(256, -1, np.int32)
    ids: dict[bytes, int] = {}
    scores = np.array([score for _, score, _ in parsed], np.float32)
    normal = np.array([kind == NORMAL for _, _, kind in parsed])
    for number, (string, _, kind) in enumerate(parsed):
        if kind == BYTE:
            byte_ids[int(string[3:5], 16)] = number
        elif kind in (NORMAL, USER_DEFINED):
            if BLANK in string.lstrip(BLANK) or " " in string:
                return None
            ids[string.replace(BLANK, " ").encode()] = number if kind == NORMAL else REFUSED
    if not normal.any() or scores[normal].max() > 0 or scores[normal].min() < _UNKNOWN_PENALTY - WORST_SCORE:
        return None
    is_line_feed_alone = all(b"\n" not in string or string == b"\n" for string in ids)
    return VocabularyTrie(_trie(ids), scores, byte_ids, scores[normal].min() - _UNKNOWN_PENALTY), is_line_feed_alone


def _trie(ids: dict[bytes, int]) -> np.ndarray:
    """Return `nodes` of VocabularyTrie, given the id of each piece."""
    prefixes = sorted({string[:end] for string in ids for end in range(1, len(string) + 1)}, key=lambda prefix: (len(prefix), prefix))
    size = 1 << (2 * len(prefixes)).bit_length()
    edges, ends = [-1] * size, [-1] * size
    edges[-1] = _ROOT  # not free, because an edge may be stored after it
    node_of = {b"": size - 1}
    for prefix in prefixes:
        edge = node_of[prefix[:-1]] << 8 | prefix[-1]
        node = (edge * _FACTOR & (1 << 64) - 1) >> 40 & size - 1
        while edges[node] != -1:
            node = node + 1 & size - 1
        edges[node], node_of[prefix] = edge, node
        ends[node] = ids.get(prefix, -1)
    return np.array([edges, ends], np.int32).T.copy()
