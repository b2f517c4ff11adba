"""The kind of tokenizer that SentencePiece trains, which releases the GIL while it encodes, so that more threads encode faster."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from niels_cache_assets.base.defaults import BOS, ROLE_KEYS, SPECIAL_TOKENS
from niels_cache_assets.base.first_bytes import describe_content
from niels_cache_assets.tokenizer.base import Span, TextTokenizer, find_special_ids, token_spans
from niels_cache_assets.tokenizer.limits import remember_last
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKENIZER_MODEL_NAME

if TYPE_CHECKING:
    import sentencepiece

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of pieces in a model
BPE = 2
_UNIGRAM = 1
BLANK = "\u2581"  # stands for a blank in a piece
_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n")


@remember_last
def load_model(content: bytes, path: str) -> tuple[sentencepiece.SentencePieceProcessor, str]:
    """Load any SentencePiece model, and return it with the sha256 of its bytes.

    Every piece is read once, which costs some milliseconds, because SentencePiece loads a damaged model whose pieces are not text, and
    fails only later.

    Raises:
        NielsCacheError: If the file cannot be read or is not a SentencePiece model.
    """
    import sentencepiece

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
        advice = "give a .model file that SentencePiece wrote, a tokenizer.json or its folder, or ranks; or remove model to train one"
        raise NielsCacheError(f"{path}: not a SentencePiece model; {advice}{kind}") from error
    return processor, hashlib.sha256(content).hexdigest()


class DescribedModel(NamedTuple):
    """What a SentencePiece model says about itself, in the fields of sentencepiece_model.proto that engines need.

    Attributes:
        pieces: String, score and type of each piece.
        type: 1 for unigram, BPE for BPE.
        adds_blank: Whether a blank is added before each text.
        keeps_text: Whether a text is encoded as it is apart from this blank, and a character without a piece as its bytes.
    """

    pieces: list[tuple[str, float, int]]
    type: int
    adds_blank: bool
    keeps_text: bool

    @property
    def is_unigram(self) -> bool:
        return self.type == _UNIGRAM

    def pieces_of(self, kind: int) -> list[str]:
        """Return the strings of the pieces of a type."""
        return [piece for piece, _, found in self.pieces if found == kind]

    def spell(self, texts: Iterable[str]) -> list[str]:
        """Return texts as the pieces spell them, with blanks for U+2581, and with the blank before each text."""
        before = " " if self.adds_blank else ""
        return [text and before + text.replace(BLANK, " ") for text in texts]

    @classmethod
    def of(cls, tokenizer: SentencePieceTokenizer) -> DescribedModel:
        """Return the description of a model."""
        return cls._parse(tokenizer.library_processor.serialized_model_proto())

    @classmethod
    @lru_cache(maxsize=1)
    def _parse(cls, content: bytes) -> DescribedModel:
        pieces: list[tuple[str, float, int]] = []
        settings: dict[int, dict[int, Any]] = {2: {}, 3: {}}  # of the trainer and of the normalizer
        for number, value in _fields(content):
            if number == 1:
                each = dict(_fields(value))
                pieces.append((each[1].decode(), struct.unpack("<f", each.get(2, bytes(4)))[0], each.get(3, NORMAL)))
            elif number in settings:
                settings[number] = dict(_fields(value))
        trainer, normalizer = settings.values()
        adds_blank, removes_blanks, escapes_blanks = (bool(normalizer.get(number, 1)) for number in (3, 4, 5))
        changes_text = removes_blanks or not escapes_blanks or normalizer.get(2) or trainer.get(24, 0)
        return cls(pieces, trainer.get(3, _UNIGRAM), adds_blank, bool(trainer.get(35, 0)) and not changes_text)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of each field of a Protocol Buffers message; a value is an int or bytes."""
    position = 0

    def number() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or number()
        yield key >> 3, message[position : position + size]
        position += size


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
        return self._encoded(self.library_processor.encode_as_numpy, texts)

    def _encoded(self, encode: Callable[..., Any], texts: Sequence[str], **options: str) -> Any:
        """Call a method of the library."""
        try:
            return encode(list(texts), num_threads=1, **options)
        except (RuntimeError, TypeError) as error:  # the type of the error depends on the version
            raise NielsCacheError("the text has a lone surrogate, which UTF-8 cannot encode; replace or drop it") from error

    def encode_rendered(self, texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the ids of rendered texts and the spans of ids (see TextTokenizer). Special tokens are always recognized in a text."""
        found = []
        for each, own in zip(self._encoded(self.library_processor.encode, texts, return_type="offset_mapping"), spans, strict=True):
            offsets = np.array(each["offsets"], dtype=np.int64).reshape(-1, 2)
            begins = offsets[:, 0]
            ends = np.maximum(offsets[:, 1], begins + 1)  # only the last of several bytes of a character has an offset of its own
            found.append((np.array(each["ids"], dtype=np.int32), token_spans(begins, ends, own)))
        return found

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return self.library_processor.decode(self._require_known(ids))

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

        def bytes_of(piece: str, kind: int) -> bytes:
            if kind in (UNKNOWN, CONTROL):
                return b""
            return bytes.fromhex(piece[3:5]) if kind == BYTE else piece.replace(BLANK, " ").encode()

        return [bytes_of(piece, kind) for piece, _, kind in DescribedModel.of(self).pieces]

    def token_id(self, token: str) -> int | None:
        """Return the id of a piece, or None."""
        found = int(self.library_processor.piece_to_id(token))
        return None if found == self.library_processor.unk_id() else found

    def special_names(self) -> list[str]:
        """Return the control pieces. A user-defined piece, such as a line break, may be text of any message."""
        return DescribedModel.of(self).pieces_of(CONTROL)

    def save(self, folder: Path) -> None:
        copyfile(self.model_path, folder / TOKENIZER_MODEL_NAME)
