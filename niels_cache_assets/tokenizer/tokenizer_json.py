"""The kind of tokenizer that a tokenizer.json of Hugging Face describes. The library `tokenizers` is the reference for its ids.

While text is encoded, special tokens are switched off, so their strings are ordinary text. Added tokens that are not special are matched in
text in any case: this is how the library works, and models were trained so. Truncation, padding and dropout in the file are switched off,
because they would lose, add or change tokens. `tokenizers` releases the GIL. It encodes a batch on all cores, unless the setting `threads`
limits a build.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from niels_cache_assets.base.defaults import SPECIAL_TOKENS
from niels_cache_assets.base.first_bytes import describe_content
from niels_cache_assets.tokenizer.base import Span, TextTokenizer, find_special_ids, first_line
from niels_cache_assets.tokenizer.byte_level import byte_characters
from niels_cache_assets.tokenizer.limits import remember_last, require_bounded
from niels_cache_assets.tokenizer.settings import is_tekken
from niels_cache_runtime.errors import NielsCacheError, panics_as_errors
from niels_cache_runtime.format.layout import MAX_VOCAB_SIZE, TIKTOKEN_RANKS_NAME, TOKENIZER_MODEL_NAMES, TOKENIZER_SIDE_NAMES

if TYPE_CHECKING:
    import tokenizers

_NAME = TOKENIZER_MODEL_NAMES["tokenizer.json"]
_SIDE_NAMES = tuple(name for name in TOKENIZER_SIDE_NAMES if name != TIKTOKEN_RANKS_NAME)
_MAX_HOLES = 1_000_000  # ids without a token; more of them would only cost memory
_BLANK = "\u2581"
_REMEMBERED_WORDS = 1 << 16  # in about 10 MB; the library has room for 10,000
_THREADS_VARIABLE = "TOKENIZERS_PARALLELISM"
_MAX_NAMED = 3  # maximum number of bytes that a message about missing bytes names


def json_file(path: str | Path) -> Path:
    """Return the path of a tokenizer.json, given the file itself or the folder that contains it.

    Raises:
        NielsCacheError: If the folder does not contain one.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    if not (path / _NAME).is_file():
        others = sorted(each.name for each in path.iterdir() if each.suffix in (".model", ".tiktoken") or is_tekken(each))
        hint = f"; name its file: model = {json.dumps(str(path / others[0]))}" if others else "; give the folder or file that has it"
        raise NielsCacheError(f"{path}: this folder has no {_NAME}{hint}")
    return path / _NAME


@contextmanager
def tokenizers_limited_to(threads: int | None) -> Iterator[None]:
    """Make `tokenizers` encode in the threads that call it, of which there are at most `threads`. Do nothing if `threads` is None.

    Otherwise, each call uses all cores. The library reads TOKENIZERS_PARALLELISM at each call. If this variable is already set, its value
    is kept.
    """
    if threads is None or _THREADS_VARIABLE in os.environ:
        yield
        return
    os.environ[_THREADS_VARIABLE] = "false"
    try:
        yield
    finally:
        os.environ.pop(_THREADS_VARIABLE, None)


class HuggingFaceTokenizer(TextTokenizer):
    """A tokenizer.json with special tokens.

    Pickling stores the path, not the content.

    Args:
        model_path: Path of the file, or of a folder that contains it.
        special_tokens: String of each special token by role: eot and, where they are needed, sys, usr, asst and bos. By default the strings
            of this project.

    Raises:
        NielsCacheError: If the file cannot be read, is not a tokenizer.json, has a component that `tokenizers` does not know, has ids
            beyond its vocabulary, or lacks a special token.
    """

    kind = "tokenizer.json"
    _loaded = ("library_tokenizer", "_pieces", "_is_byte_level", "_rendered_tokenizer", "_specials_pattern")

    def __init__(self, model_path: str | Path, *, special_tokens: Mapping[str, str] = SPECIAL_TOKENS) -> None:
        self._given = str(model_path)
        super().__init__(json_file(model_path), special_tokens=special_tokens)
        tokenizer = self.library_tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._reserved = sorted(token for token, each in added.items() if each.special and each.content != self._unknown)
        special = [added[token].content for token in self._reserved]
        self._names = [*special, *(each.content for each in added.values() if not each.special)]
        self._special_ids = find_special_ids(self.special_tokens, self.token_id, self.special_names, self.model_path)

    @cached_property
    def library_tokenizer(self) -> tokenizers.Tokenizer:
        """Tokenizer object of the library `tokenizers`, with special tokens switched off."""
        loaded = load_tokenizer_json(self.model_path)
        self._require_same(loaded.sha256)
        self._unknown, self.vocab_size = loaded.unknown, loaded.vocab_size
        return loaded.tokenizer

    def reserved_ids(self) -> list[int]:
        """Return the ids of the named special tokens and of all added tokens that the file marks as special.

        The token for unknown characters is not one of them, because text does yield it.
        """
        return sorted({*super().reserved_ids(), *self._reserved})

    def encode_unchecked(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text as 1-D uint32 arrays, special ids included."""
        encoded = self._encoded(self.library_tokenizer.encode_batch_fast, texts)
        return [np.array(each.ids, dtype=np.uint32) for each in encoded]

    def _encoded(self, encode_batch: Callable[..., list[tokenizers.Encoding]], texts: Sequence[str]) -> list[tokenizers.Encoding]:
        """Call a method of the library.

        Raises:
            NielsCacheError: If the library cannot encode a text, which the message shows.
        """
        try:
            with panics_as_errors():
                return encode_batch(list(texts), add_special_tokens=False)
        except TypeError as error:
            raise NielsCacheError("the text has a lone surrogate, which UTF-8 cannot encode; replace or drop it") from error
        except Exception as error:  # `tokenizers` raises bare exceptions, for example for a character without a token
            for text in texts if len(texts) > 1 else ():
                self._encoded(encode_batch, [text])
            raise self._unencodable(texts[0], error) from error

    def renew_remembered_words(self) -> None:
        """Make the library forget the words that it remembers, and give it room for more of them. This changes no ids.

        The library remembers the ids of the first words that it encodes. Without this, these would be the words of the proof.
        """
        with suppress(AttributeError, TypeError):  # private methods, which not every model and version has; encoding is slower then
            self.library_tokenizer.model._clear_cache()
            self.library_tokenizer.model._resize_cache(_REMEMBERED_WORDS)

    def encode_rendered(self, texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the ids of rendered texts and the spans of ids (see TextTokenizer), which are those of `transformers`.

        A span begins with the first token of its first character, and ends with the first token of its last character.
        """
        encoded = self._encoded(self._rendered_tokenizer.encode_batch, texts)
        return [
            (np.array(each.ids, dtype=np.uint32), _tokens_of_spans(each, own) if len(own) else np.empty((0, 2), dtype=np.int64))
            for each, own in zip(encoded, spans, strict=True)
        ]

    @cached_property
    def _rendered_tokenizer(self) -> tokenizers.Tokenizer:
        """Copy of the tokenizer that recognizes the special tokens in a text."""
        import tokenizers

        return tokenizers.Tokenizer.from_str(self.library_tokenizer.to_str())

    def yields_special(self, texts: Sequence[str]) -> list[bool]:
        """Return for each text whether `encode_rendered` gives it a special id. Only texts that may do so are encoded."""
        if self._specials_pattern is None:
            return super().yields_special(texts)
        result = [self._specials_pattern.search(text) is not None for text in texts]
        likely = [number for number, found in enumerate(result) if found]
        for number, is_special in zip(likely, super().yields_special([texts[number] for number in likely]), strict=True):
            result[number] = is_special
        return result

    @cached_property
    def _specials_pattern(self) -> re.Pattern[str] | None:
        """Pattern of the strings of special tokens, or None if a normalizer may also make them of other text."""
        added = self.library_tokenizer.get_added_tokens_decoder()
        reserved = [added[token] for token in self.reserved_ids() if token in added]
        if len(reserved) < len(self.reserved_ids()) or (
            self.library_tokenizer.normalizer is not None and any(each.normalized for each in reserved)
        ):
            return None
        return re.compile("|".join(re.escape(each.content) for each in reserved))

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        known = self._require_known(ids)
        if self._is_byte_level:
            return b"".join(self._pieces[token] for token in known).decode(errors="replace")
        with panics_as_errors():
            return str(self.library_tokenizer.decode(known, skip_special_tokens=False))

    def decode_continued(self, ids: Sequence[int]) -> str:
        """Return the text of ids that follow other ids, with the blank at their start, which some decoders drop."""
        if self._is_byte_level or "eot" not in self._special_ids:
            return self.decode(ids)
        eot = self._special_ids["eot"]
        return self.decode([eot, *ids]).removeprefix(self.decode([eot]))

    def piece_bytes(self) -> list[bytes]:
        """Return the text of each id as UTF-8 bytes, which may be part of a character; an id without a token has no bytes.

        For a byte-level BPE, joining these bytes gives the text of the ids. For other models, decoders may change blanks at the start.
        """
        return list(self._pieces)

    @cached_property
    def _is_byte_level(self) -> bool:
        return type(self.library_tokenizer.decoder).__name__ == "ByteLevel"

    @cached_property
    def _pieces(self) -> list[bytes]:
        return _pieces_of(self.library_tokenizer, self.vocab_size, _byte_level_piece if self._is_byte_level else _other_piece)

    def token_id(self, token: str) -> int | None:
        """Return the id of an added token or a piece, or None."""
        return self.library_tokenizer.token_to_id(token)

    def special_names(self) -> list[str]:
        """Return the added tokens: first those that the file marks as special, then the others."""
        return list(self._names)

    def save(self, folder: Path) -> None:
        """Copy the file into a folder, and the settings of special tokens too if the model was given as a folder."""
        copyfile(self.model_path, folder / _NAME)
        for path in side_files(self._given):
            copyfile(path, folder / path.name)


def _tokens_of_spans(encoded: tokenizers.Encoding, spans: Sequence[Span]) -> np.ndarray:
    """Return the span of tokens for each span of characters, (m, 2) int64, ignoring characters at its ends that have no token."""
    offsets = np.fromiter(chain.from_iterable(encoded.offsets), np.int64, 2 * len(encoded)).reshape(-1, 2)
    tokens = np.flatnonzero(offsets[:, 0] < offsets[:, 1])
    begins, ends = offsets[tokens].T
    bounds = np.array(spans, dtype=np.int64)
    first = np.searchsorted(ends, bounds[:, 0], side="right")
    last = np.searchsorted(begins, bounds[:, 1], side="left") - 1  # the last token of the last character
    found = (first <= last) & (bounds[:, 0] < bounds[:, 1])
    first, last = first[found], last[found]
    last = np.searchsorted(ends, np.minimum(ends[last], bounds[found, 1]) - 1, side="right")  # the first one of this character
    result = np.zeros_like(bounds)
    result[found] = np.stack([tokens[first], tokens[last] + 1], axis=1)
    return result


def side_files(model: str | Path) -> list[Path]:
    """Return the files that `save` copies in addition to the tokenizer.json, if `model` is a folder."""
    return [Path(model) / name for name in _SIDE_NAMES if Path(model).is_dir() and (Path(model) / name).is_file()]


class LoadedTokenizerJson(NamedTuple):
    """A loaded tokenizer.json.

    Attributes:
        tokenizer: Tokenizer object of the library.
        sha256: The sha256 of the file's bytes.
        unknown: Token for characters without a token, or None.
        vocab_size: Highest id plus one.
    """

    tokenizer: tokenizers.Tokenizer
    sha256: str
    unknown: str | None
    vocab_size: int


@remember_last
def load_tokenizer_json(content: bytes, path: str) -> LoadedTokenizerJson:
    """Load a tokenizer.json for encoding plain text, with special tokens, truncation, padding and dropout switched off.

    Raises:
        NielsCacheError: If the file cannot be read, is not a tokenizer.json, or needs a component that the installed version of
            `tokenizers` does not know.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise NielsCacheError(f"{path}: needs the package tokenizers, which cannot be imported; pip install tokenizers") from error
    described = _parsed(content, path)
    require_bounded(described, path)
    try:
        with panics_as_errors():
            tokenizer = tokenizers.Tokenizer.from_str(content.decode())
    except Exception as error:  # `tokenizers` raises bare exceptions
        raise NielsCacheError(f"{path}: {_load_problem(error)}") from error
    for each in described.get("added_tokens") or ():  # the library moves an id that would leave a hole after the vocabulary
        content_of_token, expected = each["content"], each["id"]
        found = tokenizer.token_to_id(content_of_token)
        if found != expected:
            raise NielsCacheError(
                f"{path}: the added token {content_of_token!r} has id {expected}, beyond the vocabulary, and `tokenizers` would make it "
                f"{found}; correct added_tokens, or copy the file again"
            )
    _require_bytes(described, path)
    tokenizer.encode_special_tokens = True  # the strings of special tokens are encoded as text
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    model = described["model"]
    unknown = model.get("unk_token")
    if model.get("unk_id") is not None:  # a unigram model has an id
        unknown = tokenizer.id_to_token(model["unk_id"])
    return LoadedTokenizerJson(tokenizer, hashlib.sha256(content).hexdigest(), unknown, _vocab_size(tokenizer, path))


def _parsed(content: bytes, path: str | Path) -> dict[str, Any]:
    problem = f"{path}: not a tokenizer.json; give the file that `tokenizers` or transformers saved"
    try:
        described = json.loads(content)
    except (ValueError, RecursionError) as error:
        kind = describe_content(content, "JSON")
        raise NielsCacheError(f"{problem} (it is not JSON{kind})") from error
    if not isinstance(described, dict) or not isinstance(described.get("model"), dict):
        raise NielsCacheError(f"{problem} (it has no model)")
    return described


def _load_problem(error: Exception) -> str:
    """Return a clause about an error of `tokenizers`, which names the part of the file only by the names of its Rust types."""
    message = first_line(error)
    for part in ("Model", "PreTokenizer", "Normalizer", "PostProcessor", "Decoder"):
        if f"{part}Untagged" in message or f"{part}Wrapper" in message:
            named = re.sub(r"\B(?=[A-Z])", "_", part).lower()
            return f"its {named} has an unknown component or a damaged setting; update tokenizers, or copy the file again ({message})"
    return f"a damaged tokenizer.json: {message}; copy the file again"


def _require_bytes(described: dict[str, Any], path: str | Path) -> None:
    """Check that a byte-level BPE loses no bytes of text.

    The library would drop them without an error and without a token for unknown characters.

    Raises:
        NielsCacheError: If a byte has no token.
    """
    model = described["model"]
    if "merges" not in model or model.get("unk_token") is not None or not _has_byte_level(described.get("pre_tokenizer")):
        return
    missing = [byte for character, byte in _BYTES.items() if character not in model["vocab"] and byte in _BYTES_OF_TEXT]
    if missing:
        named = ", ".join(f"0x{byte:02x}" for byte in sorted(missing)[:_MAX_NAMED])
        lost = f"{len(missing)} bytes have no token ({named}), so text would be lost"
        raise NielsCacheError(f"{path}: {lost}; add them to its vocabulary, or copy the file again")


def _has_byte_level(component: Any) -> bool:
    """Return whether a pre_tokenizer, which may be a sequence of others, spells text as characters for bytes."""
    if not isinstance(component, dict):
        return False
    return component.get("type") == "ByteLevel" or any(map(_has_byte_level, component.get("pretokenizers") or ()))


def _vocab_size(tokenizer: tokenizers.Tokenizer, path: str) -> int:
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if not vocabulary:
        raise NielsCacheError(f"{path}: its vocabulary is empty; copy the file again")
    piece, highest = max(vocabulary.items(), key=lambda item: item[1])
    if len(set(vocabulary.values())) < len(vocabulary):
        raise NielsCacheError(f"{path}: two tokens of its vocabulary share an id; copy the file again")
    if highest >= min(MAX_VOCAB_SIZE, len(vocabulary) + _MAX_HOLES):
        raise NielsCacheError(f"{path}: the id {highest:,} of {piece!r} is far beyond its {len(vocabulary):,} tokens; copy the file again")
    return highest + 1


_BYTES = byte_characters()
_BYTES_OF_TEXT = frozenset({*range(0xC0), *range(0xC2, 0xF5)})  # the other bytes are never in UTF-8


@lru_cache(maxsize=1)  # it takes 0.3 s, and each build has a TextTokenizer of its own
def _pieces_of(tokenizer: tokenizers.Tokenizer, size: int, to_bytes: Callable[[str], bytes]) -> list[bytes]:
    added, pieces = tokenizer.get_added_tokens_decoder(), [b""] * size
    for piece, token in tokenizer.get_vocab(with_added_tokens=True).items():
        pieces[token] = piece.encode() if token in added else to_bytes(piece)
    return pieces


def _byte_level_piece(piece: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in piece)
    except KeyError:  # not a piece of bytes
        return piece.encode()


def _other_piece(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes.fromhex(piece[3:5])
    return piece.replace(_BLANK, " ").encode()
