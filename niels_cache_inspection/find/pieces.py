"""The table of pieces: the bytes of each id, joined for many tokens at a time.

Arrow joins the bytes, at about 80 million tokens a second on one core, without the interpreter lock. A loop that numba compiles joins them
2.5 times as fast, and takes a second or two to start, so it is used for large searches (`compile`).

Special tokens and the token for unknown characters are the byte 0xFF, which is never in UTF-8, so that no text is found across them.
Tokenizers that put a blank before each text drop it when they decode; so does the table at the start of a text.

The joined bytes are the text for every kind of BPE and unigram model. They are not for models whose decoder changes more than the blank at
the start, such as WordPiece; `PieceTable.problem` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa

from niels_cache_assets.tokenizer.kinds import TextTokenizer
from niels_cache_runtime.format.layout import Array, Bools, Bytes, Ints, Tokens

SEPARATOR = b"\xff"
_BLANK = 32
_HEAD_BYTES = 8  # piece_kernels.HEAD_BYTES, which is imported when numba is needed
_PROBE = "Unbelievable tokenizations: it isn't 12,345 naïve (re)readings of  two\n\tlines, 你好 😀."
_MARK = "."  # stands before and after a text that is normalized, so that no blank of it is at the start or the end


class PieceTable:
    """The bytes of each id of a tokenizer.

    Attributes:
        pieces: The bytes of each id.
        is_special: Whether an id is special, (vocab_size,) bool.
        strips: Whether a blank at the start of a text is dropped.
        problem: Why the joined bytes are not the text, or None.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer, special = tokenizer, tokenizer.reserved_ids()
        self.pieces = [piece or SEPARATOR for piece in tokenizer.piece_bytes()]
        for token in [*special, *_unknown_ids(tokenizer)]:
            self.pieces[token] = SEPARATOR
        self._labels = {token: f"<|{role}|>".encode() for role, token in tokenizer.special_token_ids().items()}
        self.is_special: Bools = np.zeros(len(self.pieces), dtype=np.bool_)
        self.is_special[special] = True
        word = next((token for token, piece in enumerate(self.pieces) if piece[:1] == b" " and piece[1:].isalpha()), None)
        self.strips = word is not None and not tokenizer.decode([word]).startswith(" ")
        starts = [token for token, piece in enumerate(self.pieces) if piece[:1] == b" "] if self.strips else []
        self._stripped = np.arange(len(self.pieces), dtype=np.int32)  # the ids of pieces without their blank follow the others
        self._stripped[starts] = np.arange(len(self.pieces), len(self.pieces) + len(starts))
        self._table = pa.array([*self.pieces, *(self.pieces[token][1:] for token in starts)], pa.large_binary())
        self._join: Callable[[Array], tuple[bytes, Ints]] = self._join_with_arrow
        self.problem = self._find_problem()

    def _find_problem(self) -> str | None:
        ids = self._tokenizer.encode_unchecked([_PROBE])[0]
        known = ids[[self.pieces[token] != SEPARATOR for token in ids.tolist()]]
        expected = self._tokenizer.decode(known).encode()
        joined = b"".join(self.pieces[token] for token in known.tolist())
        if joined.removeprefix(b" ") == expected.removeprefix(b" "):
            return None
        return "its tokenizer does not spell text piece by piece, so only --tokens can search it"

    @cached_property
    def crossed(self) -> frozenset[int]:
        """The bytes that a piece has before a blank."""
        inner = (piece for piece in self.pieces if b" " in piece[1:])
        return frozenset(piece[place - 1] for piece in inner for place in range(1, len(piece)) if piece[place] == _BLANK)

    def has(self, tokens: Tokens) -> bool:
        """Return whether all of these ids are in the vocabulary. The loops of numba do not check it."""
        return not len(tokens) or int(tokens.max()) < len(self.pieces)

    def join(self, tokens: Tokens, starts: Ints) -> tuple[bytes, Ints]:
        """Return the bytes of tokens.

        Args:
            tokens: The tokens, all of which it has.
            starts: The tokens at which a text starts, ascending.

        Returns:
            The bytes, and where those of each token begin, (tokens + 1,).
        """
        ids: Array = tokens
        if self.strips and len(starts):
            ids = tokens.astype(np.int32)
            ids[starts] = self._stripped[ids[starts]]
        return self._join(ids)

    def _join_with_arrow(self, ids: Array) -> tuple[bytes, Ints]:
        _, offsets, content = self._table.take(pa.array(ids)).buffers()
        begins: Ints = np.frombuffer(offsets, np.int64)[: len(ids) + 1]
        return content.slice(0, int(begins[-1])).to_pybytes(), begins

    def compile(self) -> None:
        """Join tokens with the compiled loop from now on, if numba is installed."""
        if find_spec("numba") is not None and self._join == self._join_with_arrow:
            from niels_cache_inspection.find.piece_kernels import count_bytes, join_pieces

            self._join = self.joiner(count_bytes, join_pieces)

    def joiner(self, count_bytes: Callable[..., int], join_pieces: Callable[..., None]) -> Callable[[Array], tuple[bytes, Ints]]:
        """Return a function that joins tokens with these two loops of `piece_kernels`."""
        _, offsets, buffer = self._table.buffers()
        bounds: Ints = np.frombuffer(offsets, np.int64)[: len(self._table) + 1]
        pieces: Bytes = np.frombuffer(buffer, np.uint8)
        sizes, starts = np.diff(bounds).astype(np.uint32), bounds[:-1].astype(np.uint64)
        heads: Bytes = np.zeros((len(sizes), _HEAD_BYTES), dtype=np.uint8)
        for place in range(_HEAD_BYTES):
            longer = sizes > place
            heads[longer, place] = pieces[bounds[:-1][longer] + place]

        def join(ids: Array) -> tuple[bytes, Ints]:
            size = int(count_bytes(ids, sizes))
            content, begins = np.empty(size + _HEAD_BYTES, dtype=np.uint8), np.empty(len(ids) + 1, dtype=np.int64)
            join_pieces(ids, sizes, heads, starts, pieces, content, begins)
            return content[:size].tobytes(), begins

        return join

    def spell(self, tokens: Tokens, starts: Ints) -> list[bytes]:
        """Return the bytes of each token, for people: a special token is its label, such as <|eot|>."""
        content, begins = self.join(tokens, starts)
        ranges = zip(tokens.tolist(), begins[:-1].tolist(), begins[1:].tolist(), strict=True)
        return [self._labels.get(token, b" " if content[begin:end] == SEPARATOR else content[begin:end]) for token, begin, end in ranges]

    def bytes_of(self, text: str) -> bytes:
        """Return the bytes of a text's own tokens: the text as a cache has it, which differs if the tokenizer normalizes text."""
        mark = _MARK.encode()
        ids = self._tokenizer.encode_unchecked([f"{_MARK}{text}{_MARK}"])[0].tolist()
        joined = b"".join(self.pieces[token] for token in ids)
        joined = joined.removeprefix(b" ") if self.strips else joined
        return joined[1:-1] if len(joined) > 1 and joined[:1] == joined[-1:] == mark else text.encode()

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """Return the ids of texts, special ids included."""
        return self._tokenizer.encode_unchecked(texts)


def _unknown_ids(tokenizer: Any) -> list[int]:
    """Return the id of the token for unknown characters, if there is one: for SentencePiece, it has no bytes anyway."""
    if tokenizer.kind != "tokenizer.json":
        return []
    unknown = getattr(tokenizer.library_tokenizer.model, "unk_token", None)
    found = None if unknown is None else tokenizer.token_id(unknown)
    return [] if found is None else [found]
