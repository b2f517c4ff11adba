"""The part that all kinds of tokenizers share: checks for special ids, batches on threads, tensors, and pickling by path.

A kind implements `encode_unchecked`, `decode`, `piece_bytes`, `vocab_size` and `save`. It loads its library when a model is opened, and not
at import.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from niels_cache_assets.base.defaults import BOS, ROLE_KEYS, SPECIAL_TOKENS, ModelKind
from niels_cache_assets.base.toml import as_toml
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_DTYPES, token_dtype_name

if TYPE_CHECKING:
    import torch

TEXTS_PER_TASK = 64

Span = tuple[int, int]
"""The first place and the place past the last one."""

_EXCERPT = 60  # characters of a text in a message
_MOST_NAMED = 5  # the most special tokens that one message names
IN_ORDER = ("eot", *(role for role in ROLE_KEYS if role != "eot"), BOS)
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>", "<EOT>", "<|im_end|>", "[EOS]")  # names of models


class TextTokenizer(ABC):
    """A tokenizer that a file describes. The kinds are SentencePieceTokenizer, HuggingFaceTokenizer and TiktokenTokenizer.

    model_path: the file. special_tokens: the strings of special tokens, by role. model_sha256: the sha256 that caches record as
    `tokenizer_sha256`; None before the file is loaded. Pickling stores the path, not the content.
    """

    kind: ClassVar[ModelKind]
    engine: Literal["auto", "reference"] = "auto"  # whether builders may encode with a fast engine that gave the same ids (engines.py)
    proofs: Path | None = None  # the file with the proofs of engines for the tokenizer of a cache root
    _loaded: ClassVar[Collection[str]] = ()  # attributes that are loaded from the file, so they are not pickled

    def __init__(self, model_path: str | Path, *, special_tokens: Mapping[str, str]) -> None:
        self.model_path = str(model_path)
        self.special_tokens = dict(special_tokens)
        self.model_sha256: str | None = None
        self._special_ids: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in self._loaded}

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The highest id plus one, special tokens included. Some ids below it may have no piece."""

    @abstractmethod
    def encode_unchecked(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text as 1-D integer arrays. If a text yields special ids, they are included; the caller must check for
        them.
        """

    @abstractmethod
    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of `ids`; a special id becomes its string. Bytes that are not UTF-8 become U+FFFD.

        Raises NielsCacheError for an id that is not in the vocabulary.
        """

    @abstractmethod
    def piece_bytes(self) -> list[bytes]:
        """Return the text of each id as UTF-8 bytes, which may be a part of a character. An id without a piece has no bytes."""

    @abstractmethod
    def token_id(self, token: str) -> int | None:
        """Return the id of a special token or a piece by its string, or None."""

    @abstractmethod
    def special_names(self) -> list[str]:
        """Return the strings of tokens that may be special: those that the file marks, and added tokens. Those that it marks come first."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the files that a cache keeps of this tokenizer into a folder. They decode every id without the configuration."""

    @property
    def prepends_bos(self) -> bool:
        """Whether each document of a pretrain cache begins with the BOS of the model: only if the special tokens name it."""
        return BOS in self.special_tokens

    def special_token_ids(self) -> dict[str, int]:
        """Return the ids of the special tokens by role, such as {"eot": 50256}."""
        return dict(self._special_ids)

    def reserved_ids(self) -> list[int]:
        """Return the ids that no text may yield: those of `special_token_ids`, and of tokens that the model's file marks as special."""
        return sorted(set(self._special_ids.values()))

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without any special token. Raises NielsCacheError if the text itself would yield a special id."""
        return self.encode_batch([text], threads=1)[0].tolist()

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[np.ndarray]:
        """Return the ids of each text as 1-D arrays, in the order of `texts`. Uses `threads` threads.

        The dtype is uint16 for a vocabulary of at most 65,536 ids, and uint32 for a larger one. Raises the errors of `encode`.
        """
        arrays = self._encode_on_threads(texts, threads)
        special, dtype = np.array(self.reserved_ids(), dtype=np.int64), TOKEN_DTYPES[token_dtype_name(self.vocab_size)]
        for text, ids in zip(texts, arrays, strict=True):
            if np.isin(ids, special).any():
                raise NielsCacheError(f"the text contains a special token: {_excerpt_around(text, self.special_tokens)}; remove it")
        return [ids.astype(dtype) for ids in arrays]

    @abstractmethod
    def encode_rendered(self, texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the ids of rendered texts, and where the spans of their characters are among the ids.

        The string of a special token in a text yields this token. `spans`: for each text, pairs of the first character and the character
        past the last one. The result has for each text its ids, (n,), and the spans of ids, (m, 2) int64. A token that is partly in a span
        belongs to it. A span without a token is empty.
        """

    def yields_special(self, texts: Sequence[str]) -> list[bool]:
        """Return for each text whether `encode_rendered` gives it a special id."""
        special = np.array(self.reserved_ids(), dtype=np.int64)
        return [bool(np.isin(ids, special).any()) for ids, _ in self.encode_rendered(texts, [()] * len(texts))]

    def count_tokens(self, texts: Sequence[str], threads: int = 1) -> int:
        """Return the number of ids of all texts. Special ids count too."""
        return sum(map(len, self._encode_on_threads(texts, threads)))

    def _encode_on_threads(self, texts: Sequence[str], threads: int) -> list[np.ndarray]:
        tasks = [texts[start : start + TEXTS_PER_TASK] for start in range(0, len(texts), TEXTS_PER_TASK)]
        if threads > 1 and len(tasks) > 1:
            with ThreadPoolExecutor(threads) as executor:
                return [ids for task in executor.map(self.encode_unchecked, tasks) for ids in task]
        return [ids for task in tasks for ids in self.encode_unchecked(task)]

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all texts back to back, and the number of ids of each text, int64.

        Like `encode_unchecked`, it does not check for special ids.
        """
        return flat(self.encode_unchecked(texts))

    def encode_torch(self, text: str) -> torch.Tensor:
        """Return the ids of `text` as a 1-D int64 tensor on the CPU. Raises the errors of `encode`."""
        import torch

        return torch.from_numpy(self.encode_batch([text])[0].astype(np.int64))

    def decode_continued(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` that follow other ids: a blank at their start is a part of the text."""
        return self.decode(ids)

    def _unencodable(self, text: str, error: Exception) -> NielsCacheError:
        """Return the error for a text that the library of this kind cannot encode."""
        said, shown = (str(error).splitlines() or [type(error).__name__])[0], f"{text[:_EXCERPT]!r} ({len(text):,} characters)"
        return NielsCacheError(f"{self.model_path}: its library cannot encode a text: {said:.200}; drop or cut it: {shown}")

    def _require_known(self, ids: Sequence[int] | np.ndarray) -> list[int]:
        known = [int(token) for token in ids]
        if known and not 0 <= min(known) <= max(known) < self.vocab_size:
            raise NielsCacheError(f"an id to decode is not in 0 ... {self.vocab_size - 1}; is it of another tokenizer?")
        return known

    def _require_same(self, sha256: str) -> None:
        """Record the sha256 of the loaded model. Raises NielsCacheError if this object was pickled with another model."""
        if self.model_sha256 not in (None, sha256):
            raise NielsCacheError(f"{self.model_path}: the tokenizer has changed since this object was pickled; create it again")
        self.model_sha256 = sha256


def flat(encoded: Iterable[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of all texts back to back, and the number of ids of each text, int64. Each text is an array or a list of ids."""
    arrays = [ids if isinstance(ids, np.ndarray) else np.array(ids, dtype=np.int64) for ids in encoded]
    lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
    return np.concatenate(arrays) if arrays else np.empty(0, np.int32), lengths


def places_of_spans(begins: np.ndarray, ends: np.ndarray, spans: Sequence[Span]) -> np.ndarray:
    """Return the tokens that overlap each span, (m, 2) int64. begins, ends: (n,), the place of each token; both never decrease."""
    bounds = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return np.stack([np.searchsorted(ends, bounds[:, 0], side="right"), np.searchsorted(begins, bounds[:, 1], side="left")], axis=1)


def find_special_ids(
    special_tokens: Mapping[str, str], id_of: Callable[[str], int | None], candidates: Callable[[], Collection[str]], where: str
) -> dict[str, int]:
    """Return the id of each special token, by role.

    `id_of` returns the id of a string, or None. `candidates`: returns the special tokens of the model, from which messages name the
    nearest. Raises NielsCacheError for a token that the model does not have, and for two roles with the same id.
    """
    ids: dict[str, int] = {}
    for role in IN_ORDER:
        if role not in special_tokens:
            continue
        found = id_of(special_tokens[role])
        if found is None and dict(special_tokens) == SPECIAL_TOKENS:
            raise no_eot_is_named(candidates(), where)
        if found is None:
            raise missing_token(role, special_tokens[role], candidates(), where)
        ids[role] = found
    if len(set(ids.values())) != len(ids):
        raise NielsCacheError(f"{where}: special tokens share an id: {ids}; each needs its own")
    return ids


def likely_eot(candidates: Collection[str]) -> str | None:
    """Return the token that probably ends a document, judged by its name; None if no token has such a name."""
    return next((token for token in _ENDS if token in candidates), None)


def missing_token(role: str, token: str, candidates: Collection[str], where: str) -> NielsCacheError:
    """Return the error for a special token that a model does not have. It names the nearest of `candidates`."""
    near = difflib.get_close_matches(token, [*candidates], n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"its special tokens: {_named(candidates)}"
    return NielsCacheError(f"{where}: has no token {token!r}, which [tokenizer] special_tokens names as {role}; {hint}")


def no_eot_is_named(candidates: Collection[str], where: str) -> NielsCacheError:
    likely = likely_eot(candidates) or next(iter(candidates), "<|endoftext|>")
    add = f"add special_tokens = {{ eot = {as_toml(likely)} }} to [tokenizer]"
    return NielsCacheError(f"{where}: no eot is named, the token after each document; {add} (its special tokens: {_named(candidates)})")


def _named(candidates: Collection[str]) -> str:
    first = [*sorted(candidates, key=lambda token: token not in _ENDS)][:_MOST_NAMED]
    return ", ".join(first) + (", ..." if len(candidates) > len(first) else "") if first else "none"


def _excerpt_around(text: str, special_tokens: Mapping[str, str]) -> str:
    found = [token for token in special_tokens.values() if token in text]
    return repr(found[0] if found else text[:_EXCERPT])
