"""The kind of tokenizer that SentencePiece trains, which releases the GIL while it encodes, so that more threads encode faster."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING

import numpy as np

from niels_cache_assets.base.defaults import BOS, ROLE_KEYS, SPECIAL_TOKENS
from niels_cache_assets.base.first_bytes import describe_content
from niels_cache_assets.tokenizer.base import Span, TextTokenizer, find_special_ids, token_spans
from niels_cache_assets.tokenizer.limits import read_model
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKENIZER_MODEL_NAME

if TYPE_CHECKING:
    import sentencepiece

_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n")


def load_model(path: str | Path) -> tuple[sentencepiece.SentencePieceProcessor, str]:
    """Load any SentencePiece model, and return it with the sha256 of its bytes.

    Every piece is read once, which costs some milliseconds, because SentencePiece loads a damaged model whose pieces are not text, and
    fails only later.

    Raises:
        NielsCacheError: If the file cannot be read or is not a SentencePiece model.
    """
    import sentencepiece

    content = read_model(path)
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=content)
        processor.id_to_piece(list(range(processor.get_piece_size())))
    except UnicodeDecodeError as error:
        raise NielsCacheError(f"{path}: a damaged SentencePiece model: a piece is not UTF-8; copy the file again") from error
    except RuntimeError as error:
        if _RANK_LINE.match(content):  # Meta published ranks as tokenizer.model
            raise NielsCacheError(
                f'{path}: a rank file of tiktoken, not a SentencePiece model; set [tokenizer] kind = "tiktoken"'
            ) from error
        kind = describe_content(content, "JSON")
        raise NielsCacheError(f"{path}: not a SentencePiece model; give a .model file that SentencePiece wrote{kind}") from error
    return processor, hashlib.sha256(content).hexdigest()


class SentencePieceTokenizer(TextTokenizer):
    """A SentencePiece model with special tokens, each of which is one id.

    Pickling stores the path of the model, not its content.

    Args:
        model_path: Path of the .model file.
        special_tokens: String of each special token by role: eot and, where they are needed, sys, usr, asst and bos. The ids are looked up
            by these strings. By default the strings that this project trains with.

    Raises:
        NielsCacheError: If the file cannot be read or lacks a special token.
    """

    kind = "sentencepiece"
    _loaded = ("library_processor",)

    def __init__(self, model_path: str | Path, *, special_tokens: Mapping[str, str] = SPECIAL_TOKENS) -> None:
        super().__init__(model_path, special_tokens=special_tokens)
        self.vocab_size = int(self.library_processor.get_piece_size())
        ids = find_special_ids(self.special_tokens, self.token_id, self.special_names, self.model_path)
        self._special_ids = {role: ids[role] for role in (*ROLE_KEYS, BOS) if role in ids}

    @cached_property
    def library_processor(self) -> sentencepiece.SentencePieceProcessor:
        """Model object of the library `sentencepiece`."""
        processor, sha256 = load_model(self.model_path)
        self._require_same(sha256)
        return processor

    def encode_unchecked(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text as 1-D int32 arrays, special ids included."""
        try:
            return self.library_processor.encode_as_numpy(list(texts), num_threads=1)
        except (RuntimeError, TypeError) as error:  # the type of the error depends on the version
            raise NielsCacheError("the text has a lone surrogate, which UTF-8 cannot encode; replace or drop it") from error

    def encode_rendered(self, texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the ids of rendered texts and the spans of ids (see TextTokenizer). Special tokens are always recognized in a text."""
        try:
            encoded = self.library_processor.encode(list(texts), return_type="offset_mapping", num_threads=1)
        except (RuntimeError, TypeError) as error:
            raise NielsCacheError("the text has a lone surrogate, which UTF-8 cannot encode; replace or drop it") from error
        found = []
        for each, own in zip(encoded, spans, strict=True):
            offsets = np.array(each["offsets"], dtype=np.int64).reshape(-1, 2)
            begins = offsets[:, 0]
            ends = np.maximum(offsets[:, 1], begins + 1)  # only the last of several bytes of a character has an offset of its own
            found.append((np.array(each["ids"], dtype=np.int32), token_spans(begins, ends, own)))
        return found

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        try:
            return self.library_processor.decode([int(token) for token in ids])
        except (IndexError, RuntimeError) as error:
            raise NielsCacheError(f"an id to decode is not in 0 ... {self.vocab_size - 1}; is it of another tokenizer?") from error

    def decode_continued(self, ids: Sequence[int]) -> str:
        """Return the text of ids that follow other ids, with the blank at their start, which SentencePiece itself drops."""
        eot = self._special_ids.get("eot")
        if eot is not None and (before := self.decode([eot])):
            return self.decode([eot, *ids]).removeprefix(before)
        pieces = self.piece_bytes()  # a control piece decodes to nothing
        return b"".join(pieces[token] for token in self._require_known(ids)).decode(errors="replace")

    def piece_bytes(self) -> list[bytes]:
        """Return the text of each id as UTF-8 bytes, with blanks for U+2581. For a byte piece, this is the byte.

        Joining these bytes gives the same text as `decode` of the ids, except for a blank at the start. For many documents, joining is
        faster. An unknown or control id has no bytes.
        """
        pieces = self.library_processor

        def bytes_of(token: int) -> bytes:
            if pieces.is_unknown(token) or pieces.is_control(token):
                return b""
            piece = pieces.id_to_piece(token)
            return bytes.fromhex(piece[3:5]) if pieces.is_byte(token) else piece.replace("\u2581", " ").encode()

        return [bytes_of(token) for token in range(self.vocab_size)]

    def token_id(self, token: str) -> int | None:
        """Return the id of a piece, or None."""
        found = int(self.library_processor.piece_to_id(token))
        return None if found == self.library_processor.unk_id() else found

    def special_names(self) -> list[str]:
        """Return the control pieces."""
        return [self.library_processor.id_to_piece(token) for token in range(self.vocab_size) if self.library_processor.is_control(token)]

    def save(self, folder: Path) -> None:
        copyfile(self.model_path, folder / TOKENIZER_MODEL_NAME)
