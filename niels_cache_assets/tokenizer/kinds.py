"""The conversion of text to token ids: the SentencePiece tokenizer, and one view of any tokenizer that is passed to a builder.

Text never yields a special id. `SentencePieceTokenizer.encode*` raise an error for text that would yield a special id, and the builders
count and drop such a document. SentencePiece releases the GIL while it encodes, so more threads encode faster. Training is in training.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_cache_assets.config.defaults import ROLE_KEYS, SPECIAL_TOKENS
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import MAX_VOCAB_SIZE, TOKEN_DTYPES, TOKENIZER_MODEL_NAME, token_dtype_name, tokenizer_dir
from niels_cache_runtime.format.meta import sha256_file

if TYPE_CHECKING:
    import sentencepiece
    import torch

    from niels_cache_assets.config.registry import Registry

TEXTS_PER_TASK = 64

EncodeFlat = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]
"""Texts to (ids of all texts back to back, number of ids of each text), two 1-D int arrays."""


def load_model(path: str | Path) -> tuple[sentencepiece.SentencePieceProcessor, str]:
    """Load any SentencePiece model, and return it with the sha256 of its bytes.

    Every piece is read once, which costs some milliseconds. The reason is that SentencePiece loads a damaged model whose pieces are not
    text, and fails only later. Raises NielsCacheError for a file that cannot be read or is not a SentencePiece model.
    """
    import sentencepiece

    try:
        content = Path(path).read_bytes()
        processor = sentencepiece.SentencePieceProcessor(model_proto=content)
        processor.id_to_piece(list(range(processor.get_piece_size())))
    except UnicodeDecodeError as error:
        raise NielsCacheError(f"{path}: a damaged SentencePiece model: a piece is not UTF-8; copy the file again") from error
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be read: {error.strerror or error}") from error
    except RuntimeError as error:
        raise NielsCacheError(f"{path}: not a SentencePiece model; give a .model file that SentencePiece wrote") from error
    return processor, hashlib.sha256(content).hexdigest()


class SentencePieceTokenizer:
    """A SentencePiece model with four special tokens. Each special token is one id.

    `model_path` is a .model file. `special_tokens` maps sys, usr, asst and eot to their strings; the ids are looked up by these strings.
    Raises NielsCacheError if the file cannot be read, has more pieces than a cache can hold, or lacks a special token. Pickling stores the
    path of the model, not its content.
    """

    def __init__(self, model_path: str, *, special_tokens: Mapping[str, str] = SPECIAL_TOKENS) -> None:
        self.model_path = str(model_path)
        self.special_tokens = dict(special_tokens)
        self.model_sha256: str | None = None  # sha256 of the loaded bytes
        self._special_ids = _lookup_special_ids(self._processor, self.special_tokens, self.model_path)

    @cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        if not Path(self.model_path).is_file():
            raise NielsCacheError(f"{self.model_path}: no such tokenizer model; materialize the tokenizer first or correct the path")
        processor, loaded = load_model(self.model_path)
        require_vocab_fits(processor.get_piece_size(), self.model_path)
        if self.model_sha256 not in (None, loaded):
            raise NielsCacheError(f"{self.model_path}: the tokenizer has changed since this object was pickled; create it again")
        self.model_sha256 = loaded
        return processor

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_processor"}

    @property
    def vocab_size(self) -> int:
        """The number of pieces, including special tokens. All ids are below this number."""
        return int(self._processor.get_piece_size())

    def special_token_ids(self) -> dict[str, int]:
        """Return the ids of the special tokens by role: {"sys", "usr", "asst", "eot"}."""
        return dict(self._special_ids)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without any special token. Raises NielsCacheError if the text itself would yield a special id."""
        return self.encode_batch([text], threads=1)[0].tolist()

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[np.ndarray]:
        """Return the ids of each text as a 1-D array, in the order of `texts`. Uses `threads` threads. Raises the errors of `encode`.

        The arrays have the narrowest token dtype that holds every id: uint16 or uint32.
        """
        tasks = [texts[start : start + TEXTS_PER_TASK] for start in range(0, len(texts), TEXTS_PER_TASK)]
        if threads > 1 and len(tasks) > 1:
            with ThreadPoolExecutor(threads) as executor:
                arrays = [ids for task in executor.map(self.encode_unchecked, tasks) for ids in task]
        else:
            arrays = [ids for task in tasks for ids in self.encode_unchecked(task)]
        special = np.array(sorted(self._special_ids.values()))
        for text, ids in zip(texts, arrays, strict=True):
            if np.isin(ids, special).any():
                raise NielsCacheError(f"the text contains a special token: {_excerpt_around(text, self.special_tokens)}; remove it")
        dtype = TOKEN_DTYPES[token_dtype_name(self.vocab_size)]
        return [ids.astype(dtype) for ids in arrays]

    def encode_unchecked(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text as int32 arrays. If a text yields special ids, they are included; the caller must check for them."""
        try:
            return self._processor.encode_as_numpy(list(texts), num_threads=1)
        except (RuntimeError, TypeError) as error:  # the type of the error depends on the version
            raise NielsCacheError("the text has a lone surrogate, which UTF-8 cannot encode; replace or drop it") from error

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all texts back to back, int32, and the number of ids of each text, int64.

        Like `encode_unchecked`, it does not check for special ids.
        """
        return _flat(self.encode_unchecked(texts))

    def encode_torch(self, text: str) -> torch.Tensor:
        """Return the ids of `text` as a 1-D int64 tensor on the CPU. Raises the errors of `encode`."""
        import torch

        return torch.from_numpy(self.encode_batch([text])[0].astype(np.int64))

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of `ids`; a special id becomes its string. Raises NielsCacheError for an id that is not in the vocabulary."""
        try:
            return self._processor.decode([int(token) for token in ids])
        except (IndexError, RuntimeError) as error:
            raise NielsCacheError(f"an id to decode is not in 0 ... {self.vocab_size - 1}; is it of another tokenizer?") from error

    def piece_bytes(self) -> list[bytes]:
        """Return the text of each id as UTF-8 bytes, with blanks for U+2581. For a byte piece, this is the byte.

        Joining these bytes gives the same text as `decode` of the ids, except for a blank at the start. For many documents, joining is
        faster. The bytes of an unknown or control id are empty.
        """
        pieces = self._processor

        def bytes_of(token: int) -> bytes:
            if pieces.is_unknown(token) or pieces.is_control(token):
                return b""
            piece = pieces.id_to_piece(token)
            return bytes.fromhex(piece[3:5]) if pieces.is_byte(token) else piece.replace("\u2581", " ").encode()

        return [bytes_of(token) for token in range(self.vocab_size)]


def load_tokenizer(registry: Registry, root: Path) -> SentencePieceTokenizer:
    """Return the tokenizer in the cache root. Raises NielsCacheError if it is not built yet; the message says what to do."""
    model = tokenizer_dir(root) / TOKENIZER_MODEL_NAME
    if not model.exists():
        raise NielsCacheError(f"{model}: no tokenizer yet; materialize the asset 'tokenizer' first (niels-cache build-all does)")
    return SentencePieceTokenizer(str(model), special_tokens=registry.tokenizer.special_tokens)


@dataclass(frozen=True, kw_only=True)
class BuildTokenizer:
    """One view of any tokenizer (duck typing): the methods and values that the builders use."""

    encode_flat: EncodeFlat  # may give special ids
    vocab_size: int
    special_ids: dict[str, int | None]  # by role key; None for a missing token
    model_sha256: str | None

    @property
    def eot(self) -> int:
        eot = self.special_ids["eot"]
        assert eot is not None  # view_tokenizer rejects a tokenizer without eot
        return eot

    @cached_property
    def is_special(self) -> np.ndarray:
        """Whether each id is a special token: (vocab_size,) bool."""
        special = np.zeros(self.vocab_size, dtype=bool)
        special[[token for token in self.special_ids.values() if token is not None]] = True
        return special

    def require(self, keys: Sequence[str]) -> None:
        """Raise NielsCacheError unless each of these roles has an id, and all ids differ."""
        missing = [key for key in keys if self.special_ids[key] is None]
        if missing:
            raise NielsCacheError(f"the tokenizer has no special token for {', '.join(missing)}; add them (special_token_ids)")
        if len({self.special_ids[key] for key in keys}) != len(keys):
            raise NielsCacheError(f"the tokenizer's special tokens share an id: {self.special_ids}; each needs its own")


def view_tokenizer(tokenizer: Any) -> BuildTokenizer:
    """Return a view of a tokenizer.

    The tokenizer needs `encode`, `vocab_size` (attribute or method) and `special_token_ids()`, which returns ids by role or by the four
    strings. It may have `encode_flat(texts)` (see EncodeFlat) or `encode_batch(texts, threads)`. It may have `model_path`. Raises
    NielsCacheError if a required attribute is missing.
    """
    size = getattr(tokenizer, "vocab_size", None)
    size = size() if callable(size) else size
    if not isinstance(size, int) or size < 1:
        raise NielsCacheError(f"the tokenizer's vocab_size is {size!r}; it must be a positive int (attribute or method)")
    require_vocab_fits(size, "the tokenizer")
    if not callable(getattr(tokenizer, "special_token_ids", None)):
        raise NielsCacheError("the tokenizer has no special_token_ids(); it must return at least the id of eot")
    given: Mapping[str, int | None] = tokenizer.special_token_ids()
    special_ids = {key: given.get(key, given.get(SPECIAL_TOKENS[key])) for key in ROLE_KEYS}
    for key, token in special_ids.items():
        if token is not None and not 0 <= token < size:
            raise NielsCacheError(f"the tokenizer's {key} id {token} is not below its vocab_size {size}")
    model_path, loaded_sha256 = getattr(tokenizer, "model_path", None), getattr(tokenizer, "model_sha256", None)
    view = BuildTokenizer(
        encode_flat=_encode_flat_of(tokenizer),
        vocab_size=size,
        special_ids=special_ids,
        model_sha256=loaded_sha256 or (sha256_file(str(model_path)) if model_path else None),
    )
    view.require(["eot"])
    return view


def require_vocab_fits(size: int, where: str) -> None:
    """Raise NielsCacheError for a vocabulary that no cache can hold."""
    if size > MAX_VOCAB_SIZE:
        raise NielsCacheError(f"{where}: {size:,} ids are too many for a cache; use a vocabulary of at most {MAX_VOCAB_SIZE:,}")


def _encode_flat_of(tokenizer: Any) -> EncodeFlat:
    if hasattr(tokenizer, "encode_flat"):
        return tokenizer.encode_flat
    if hasattr(tokenizer, "encode_batch"):
        return lambda texts: _flat(tokenizer.encode_batch(texts, 1))
    return lambda texts: _flat(map(tokenizer.encode, texts))


def _flat(encoded: Iterable[Any]) -> tuple[np.ndarray, np.ndarray]:
    arrays = [ids if isinstance(ids, np.ndarray) else np.array(ids, dtype=np.int64) for ids in encoded]
    lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
    return np.concatenate(arrays) if arrays else np.empty(0, np.int32), lengths


def _lookup_special_ids(processor: sentencepiece.SentencePieceProcessor, special_tokens: Mapping[str, str], where: str) -> dict[str, int]:
    if set(special_tokens) != set(ROLE_KEYS):
        raise NielsCacheError(f"special tokens are needed for exactly {', '.join(ROLE_KEYS)}; got {', '.join(special_tokens) or 'none'}")
    ids = {key: int(processor.piece_to_id(special_tokens[key])) for key in ROLE_KEYS}
    missing = [special_tokens[key] for key in ROLE_KEYS if ids[key] == processor.unk_id()]
    if missing:
        raise NielsCacheError(
            f"{where}: has no piece for {', '.join(missing)}; train it with these as user-defined symbols, or set special_tokens"
        )
    if len(set(ids.values())) != len(ids):
        raise NielsCacheError(f"{where}: special tokens share an id: {ids}; each needs its own")
    return ids


def _excerpt_around(text: str, special_tokens: Mapping[str, str]) -> str:
    found = [token for token in special_tokens.values() if token in text]
    return repr(found[0] if found else text[:60])
