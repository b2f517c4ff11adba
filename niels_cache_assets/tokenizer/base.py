"""The base class of all kinds of tokenizers: checks for special ids, batches on threads, tensors, and pickling by path.

A kind implements `encode_unchecked`, `decode`, `piece_bytes` and `save`, and sets `vocab_size`. It loads its library when a model is
opened, and not at import.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from niels_cache_assets.base.defaults import BOS, ROLE_KEYS, SPECIAL_TOKENS, ModelKind
from niels_cache_assets.base.toml import as_toml
from niels_cache_runtime.errors import NielsCacheError, did_you_mean
from niels_cache_runtime.format.layout import TOKEN_DTYPES, token_dtype_name

if TYPE_CHECKING:
    import torch

TEXTS_PER_TASK = 64

Span = tuple[int, int]
"""The index of the first item and the index after the last one."""

FlatIds = tuple[np.ndarray, np.ndarray]
"""The ids of all texts back to back, and the number of ids of each text: two 1-D int arrays."""

_EXCERPT = 60  # characters of a text that a message shows
_MAX_NAMED = 5  # maximum number of special tokens that one message names
ROLE_ORDER = ("eot", *(role for role in ROLE_KEYS if role != "eot"), BOS)
_EOT_NAMES = ("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>", "<EOT>", "<|im_end|>", "[EOS]")


class TextTokenizer(ABC):
    """A tokenizer that a file describes: the base class of SentencePieceTokenizer, HuggingFaceTokenizer and TiktokenTokenizer.

    Pickling stores the path of the file, not its content.

    Args:
        model_path: Path of the file.
        special_tokens: String of each special token, by role.

    Attributes:
        kind: "sentencepiece", "tokenizer.json" or "tiktoken".
        engine: "auto" (the default) if builders may encode with a fast engine that was proven to give the same ids, otherwise "reference".
        proofs: Path of the file with the results of these proofs, beside the tokenizer of a cache root, or None.
        model_path: Path of the file.
        special_tokens: String of each special token, by role.
        model_sha256: The sha256 that caches record as `tokenizer_sha256`. None before the file is loaded.
    """

    kind: ClassVar[ModelKind]
    engine: Literal["auto", "reference"] = "auto"
    proofs: Path | None = None
    vocab_size: int
    """Highest id plus one, special tokens included. Some ids below it may have no piece."""
    _loaded: ClassVar[Collection[str]] = ()  # attributes that are loaded from the file, so they are not pickled

    def __init__(self, model_path: str | Path, *, special_tokens: Mapping[str, str]) -> None:
        self.model_path = str(model_path)
        self.special_tokens = dict(special_tokens)
        self.model_sha256: str | None = None
        self._special_ids: dict[str, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in self._loaded}

    @abstractmethod
    def encode_unchecked(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, without a check for special ids.

        Args:
            texts: Texts to encode.

        Returns:
            One 1-D integer array per text. If a text yields special ids, they are included, and the caller must check for them.
        """

    @abstractmethod
    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of some ids.

        Args:
            ids: Ids to decode, (n,).

        Returns:
            The text. A special id becomes its string, and bytes that are not UTF-8 become U+FFFD.

        Raises:
            NielsCacheError: If an id is not in the vocabulary.
        """

    @abstractmethod
    def piece_bytes(self) -> list[bytes]:
        """Return the text of each id as UTF-8 bytes, which may be part of a character; an id without a piece has no bytes."""

    @abstractmethod
    def token_id(self, token: str) -> int | None:
        """Return the id of a special token or a piece, given its string, or None."""

    @abstractmethod
    def special_names(self) -> list[str]:
        """Return the strings of tokens that may be special: those that the file marks as special, then other added tokens."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the files that a cache keeps of this tokenizer into a folder.

        These files decode every id without the configuration.
        """

    @property
    def prepends_bos(self) -> bool:
        """Whether each document of a pretrain cache begins with the model's BOS, which is so only if the special tokens name it."""
        return BOS in self.special_tokens

    def special_token_ids(self) -> dict[str, int]:
        """Return the id of each special token by role, such as {"eot": 50256}."""
        return dict(self._special_ids)

    def reserved_ids(self) -> list[int]:
        """Return the ids that no text may yield: those of `special_token_ids`, and those of tokens that the file marks as special."""
        return sorted(set(self._special_ids.values()))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without any special token.

        Args:
            text: The text to encode.

        Returns:
            The ids.

        Raises:
            NielsCacheError: If the text itself would yield a special id, or if the library cannot encode it.
        """
        return self.encode_batch([text], threads=1)[0].tolist()

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[np.ndarray]:
        """Return the ids of each text, in the order of the texts.

        Args:
            texts: Texts to encode.
            threads: Number of threads; by default 1.

        Returns:
            One 1-D array per text: uint16 for a vocabulary of at most 65,536 ids, otherwise uint32.

        Raises:
            NielsCacheError: If a text would yield a special id, or if the library cannot encode it.
        """
        arrays = self._encode_on_threads(texts, threads)
        special, dtype = np.array(self.reserved_ids(), dtype=np.int64), TOKEN_DTYPES[token_dtype_name(self.vocab_size)]
        for text, ids in zip(texts, arrays, strict=True):
            if np.isin(ids, special).any():
                found = next((token for token in self.special_tokens.values() if token in text), text[:_EXCERPT])
                raise NielsCacheError(f"the text contains a special token: {found!r}; remove it")
        return [ids.astype(dtype) for ids in arrays]

    @abstractmethod
    def encode_rendered(self, texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the ids of rendered texts, and the spans of ids that belong to spans of characters.

        In these texts, the string of a special token yields that token.

        Args:
            texts: Texts to encode.
            spans: For each text, pairs of the index of a first character and the index after the last character.

        Returns:
            For each text its ids, (n,), and its spans of ids, (m, 2) int64. A token that is partly in a span belongs to it. A span without
            a token is empty.
        """

    def yields_special(self, texts: Sequence[str]) -> list[bool]:
        """Return for each text whether `encode_rendered` gives it a special id."""
        special = np.array(self.reserved_ids(), dtype=np.int64)
        return [bool(np.isin(ids, special).any()) for ids, _ in self.encode_rendered(texts, [()] * len(texts))]

    def count_tokens(self, texts: Sequence[str], threads: int = 1) -> int:
        """Return the number of ids of all texts, special ids included.

        Args:
            texts: Texts to count.
            threads: Number of threads; by default 1.
        """
        return sum(map(len, self._encode_on_threads(texts, threads)))

    def _encode_on_threads(self, texts: Sequence[str], threads: int) -> list[np.ndarray]:
        tasks = [texts[start : start + TEXTS_PER_TASK] for start in range(0, len(texts), TEXTS_PER_TASK)]
        if threads > 1 and len(tasks) > 1:
            with ThreadPoolExecutor(threads) as executor:
                return [ids for task in executor.map(self.encode_unchecked, tasks) for ids in task]
        return [ids for task in tasks for ids in self.encode_unchecked(task)]

    def encode_flat(self, texts: Sequence[str]) -> FlatIds:
        """Return the ids of all texts back to back, and the number of ids of each text, int64.

        Like `encode_unchecked`, this does not check for special ids.
        """
        return concatenate_ids(self.encode_unchecked(texts))

    def encode_torch(self, text: str) -> torch.Tensor:
        """Return the ids of a text as a 1-D int64 tensor on the CPU.

        Raises:
            NielsCacheError: As `encode` does.
        """
        import torch

        return torch.from_numpy(self.encode_batch([text])[0].astype(np.int64))

    def decode_continued(self, ids: Sequence[int]) -> str:
        """Return the text of ids that follow other ids: a blank at their start is part of the text."""
        return self.decode(ids)

    def _unencodable(self, text: str, error: Exception) -> NielsCacheError:
        """Return the error for a text that the library of this kind cannot encode."""
        excerpt = f"{text[:_EXCERPT]!r} ({len(text):,} characters)"
        return NielsCacheError(f"{self.model_path}: its library cannot encode a text: {first_line(error):.200}; drop or cut it: {excerpt}")

    def _require_known(self, ids: Sequence[int] | np.ndarray) -> list[int]:
        known = [int(token) for token in ids]
        if known and not 0 <= min(known) <= max(known) < self.vocab_size:
            raise NielsCacheError(f"an id to decode is not in 0 ... {self.vocab_size - 1}; is it of another tokenizer?")
        return known

    def _require_same(self, sha256: str) -> None:
        """Record the sha256 of the loaded model.

        Raises:
            NielsCacheError: If this object was pickled with another model.
        """
        if self.model_sha256 not in (None, sha256):
            raise NielsCacheError(f"{self.model_path}: the tokenizer has changed since this object was pickled; create it again")
        self.model_sha256 = sha256


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the name of its class if the message is empty."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def concatenate_ids(encoded: Iterable[Any]) -> FlatIds:
    """Return the ids of all texts back to back, and the number of ids of each text, int64.

    Args:
        encoded: An array or a list of ids for each text.
    """
    arrays = [ids if isinstance(ids, np.ndarray) else np.array(ids, dtype=np.int64) for ids in encoded]
    lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
    return np.concatenate(arrays) if arrays else np.empty(0, np.int32), lengths


def token_spans(begins: np.ndarray, ends: np.ndarray, spans: Sequence[Span]) -> np.ndarray:
    """Return the range of tokens that overlap each span of characters.

    Args:
        begins: Where each token begins, (n,), which never decreases.
        ends: Where each token ends, (n,), which never decreases.
        spans: Spans of characters.

    Returns:
        The first token of each span and the one after its last, (m, 2) int64.
    """
    bounds = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return np.stack([np.searchsorted(ends, bounds[:, 0], side="right"), np.searchsorted(begins, bounds[:, 1], side="left")], axis=1)


def find_special_ids(
    special_tokens: Mapping[str, str], id_of: Callable[[str], int | None], candidates: Callable[[], Collection[str]], where: str
) -> dict[str, int]:
    """Return the id of each special token, by role.

    Args:
        special_tokens: String of each special token, by role.
        id_of: Returns the id of a string, or None.
        candidates: Returns the special tokens of the model, of which messages name the nearest.
        where: What messages begin with.

    Raises:
        NielsCacheError: If the model lacks a token, or if two roles have the same id.
    """
    ids: dict[str, int] = {}
    for role in ROLE_ORDER:
        if role not in special_tokens:
            continue
        found = id_of(special_tokens[role])
        if found is None and dict(special_tokens) == SPECIAL_TOKENS:
            raise missing_eot_error(candidates(), where)
        if found is None:
            raise missing_token_error(role, special_tokens[role], candidates(), where)
        ids[role] = found
    if len(set(ids.values())) != len(ids):
        raise NielsCacheError(f"{where}: special tokens share an id: {ids}; each needs its own")
    return ids


def guess_eot(candidates: Collection[str]) -> str | None:
    """Return the token that probably ends a document, judged by its name, or None."""
    return next((token for token in _EOT_NAMES if token in candidates), None)


def missing_token_error(role: str, token: str, candidates: Collection[str], where: str) -> NielsCacheError:
    """Return the error for a special token that a model does not have, which names the nearest candidate."""
    hint = did_you_mean(token, candidates, f"its special tokens: {_named(candidates)}")
    return NielsCacheError(f"{where}: has no token {token!r}, which [tokenizer] special_tokens names as {role}; {hint}")


def missing_eot_error(candidates: Collection[str], where: str) -> NielsCacheError:
    """Return the error for special tokens without an eot, with the token of the model that is probably one."""
    likely = guess_eot(candidates) or next(iter(candidates), "<|endoftext|>")
    add = f"add special_tokens = {{ eot = {as_toml(likely)} }} to [tokenizer]"
    return NielsCacheError(f"{where}: no eot is named, the token after each document; {add} (its special tokens: {_named(candidates)})")


def _named(candidates: Collection[str]) -> str:
    first = [*sorted(candidates, key=lambda token: token not in _EOT_NAMES)][:_MAX_NAMED]
    return ", ".join(first) + (", ..." if len(candidates) > len(first) else "") if first else "none"
