"""The kind of tokenizer that a rank file of tiktoken describes. The library `tiktoken` is the reference for its ids.

A tekken.json of Mistral has ranks, a pattern and special tokens. Any other rank file has only the pieces. The pattern that splits text into
words, and the special tokens, then come from a known encoding or from the configuration. A cache keeps the ranks as they are, with a small
JSON file that has the pattern and the ids of the special tokens. The sha256 of this JSON file identifies the tokenizer, because it covers
the ranks too.

`encode_ordinary` of tiktoken never yields a special id. It releases the GIL, so more threads encode faster.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from importlib.util import find_spec, module_from_spec
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, NonNegativeInt, ValidationError

from niels_cache_assets.base.defaults import ENCODINGS, SPECIAL_TOKENS
from niels_cache_assets.base.first_bytes import describe_content
from niels_cache_assets.tokenizer.base import (
    ROLE_ORDER,
    Span,
    TextTokenizer,
    find_special_ids,
    missing_eot_error,
    missing_token_error,
    token_spans,
)
from niels_cache_assets.tokenizer.limits import remember_last
from niels_cache_assets.tokenizer.normalizing import nfc, nfc_with_spans
from niels_cache_assets.tokenizer.settings import is_tekken
from niels_cache_runtime.errors import NielsCacheError, PanicError, did_you_mean, panics_as_errors
from niels_cache_runtime.format.layout import MAX_VOCAB_SIZE, TIKTOKEN_RANKS_NAME, TOKENIZER_MODEL_NAMES
from niels_cache_runtime.format.meta import canonical_json

if TYPE_CHECKING:
    import tiktoken

_NAME = TOKENIZER_MODEL_NAMES["tiktoken"]
_NEAR = 0.9  # a name this similar to a known special token is a typing error, not a new token
_EMPTY = b"="  # base64 of nothing, as padding alone
_MAX_NAMED = 3  # maximum number of ranks that a message about missing bytes names

_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # one digit at a time
)
_LLAMA3_WORDS = _QWEN_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_AFTER_RANKS = {  # special tokens of encodings that tiktoken does not have, and their ids, counted from the number of ranks
    "qwen": {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, **{f"<|extra_{number}|>": 3 + number for number in range(205)}},
    "llama3": {"<|begin_of_text|>": 0, "<|end_of_text|>": 1, "<|start_header_id|>": 6, "<|end_header_id|>": 7, "<|eot_id|>": 9},
}
_WORD_PATTERNS = {"qwen": _QWEN_WORDS, "llama3": _LLAMA3_WORDS}

_TEKKEN_SPECIALS = (  # of files that do not list theirs, in the order of their ids
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> "
    "[IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
)


class Encoding(NamedTuple):
    """The pattern of an encoding, and the ids of its special tokens by their strings."""

    pattern: str
    special_tokens: dict[str, int]


def known_encoding(name: str, ranks: Mapping[bytes, int], where: str) -> Encoding:
    """Return a known encoding, without a download, because the ranks come from a file.

    Raises:
        NielsCacheError: If the installed tiktoken does not have this encoding, or if the ranks are not of this encoding.
    """
    if len(ranks) != ENCODINGS[name]:
        problem = f"{name} has {ENCODINGS[name]:,} ranks, and the file {len(ranks):,}"
        raise NielsCacheError(f"{where}: {problem}; give the encoding of this file or its pattern, or copy the file again")
    if name in _WORD_PATTERNS:
        return Encoding(_WORD_PATTERNS[name], {token: len(ranks) + offset for token, offset in _AFTER_RANKS[name].items()})
    spec = find_spec("tiktoken_ext.openai_public")
    if spec is None or spec.loader is None:
        raise NielsCacheError(f"{where}: needs the package tiktoken, which cannot be imported; pip install tiktoken")
    encodings: Any = module_from_spec(spec)  # a copy of the module, whose two functions that download are replaced
    spec.loader.exec_module(encodings)
    encodings.load_tiktoken_bpe = encodings.data_gym_to_mergeable_bpe_ranks = lambda *_, **__: dict(ranks)
    constructor = getattr(encodings, "ENCODING_CONSTRUCTORS", {}).get(name)
    if constructor is None:
        raise NielsCacheError(f"{where}: the installed tiktoken has no encoding {name!r}; update tiktoken, or give pattern")
    arguments = constructor()
    return Encoding(arguments["pat_str"], arguments["special_tokens"])


class _TekkenConfig(BaseModel):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: NonNegativeInt


class _TekkenPiece(BaseModel):
    rank: NonNegativeInt
    token_bytes: str


class _TekkenSpecial(BaseModel):
    rank: NonNegativeInt
    token_str: str


class _Tekken(BaseModel):
    """The keys of a tekken.json that decide ids."""

    config: _TekkenConfig
    vocab: list[_TekkenPiece]
    special_tokens: list[_TekkenSpecial] | None = None


class RankFile(NamedTuple):
    """A loaded rank file, or a tekken.json.

    Attributes:
        ranks: The rank of each piece.
        content: The bytes of the rank file; for a tekken.json, of a rank file with the same ids.
        sha256: The sha256 of `content`.
        encoding: The encoding in a tekken.json, or None.
    """

    ranks: dict[bytes, int]
    content: bytes
    sha256: str
    encoding: Encoding | None


def _convert_tekken(content: bytes, path: str) -> tuple[bytes, Encoding]:
    """Return the ranks of a tekken.json as a rank file, and its encoding.

    The special tokens have the lowest ids, so each rank is raised by their number.

    Raises:
        NielsCacheError: If the file has another form.
    """
    try:
        file = _Tekken.model_validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise NielsCacheError(f"{path}: not a tekken.json of Mistral: {where}: {first['msg']}; copy the file again") from error
    size, specials = file.config.default_vocab_size, file.config.default_num_special_tokens
    known = dict(zip(_TEKKEN_SPECIALS.split(), range(specials), strict=False))
    if file.special_tokens is not None:
        known = {each.token_str: each.rank for each in file.special_tokens}
    if wrong := [token for token, rank in known.items() if rank >= min(specials, size)]:
        raise NielsCacheError(
            f"{path}: a damaged tekken.json of Mistral: the rank of {wrong[0]!r} is beyond its {specials:,} special tokens, or beyond its "
            f"{size:,} tokens in all; copy the file again"
        )
    ranks = "".join(f"{each.token_bytes} {each.rank + specials}\n" for each in file.vocab[: max(0, size - specials)])
    return ranks.encode(), Encoding(file.config.pattern, known)


@remember_last
def read_ranks(content: bytes, path: str) -> RankFile:
    """Return a loaded rank file.

    Each line of the file has a piece in base64, a blank and its rank. A piece may be empty, written as `=`: the last line of Whisper's
    multilingual file is `= 50256`, and Python's base64 decodes that to nothing. Such a piece takes an id that no text yields.

    Raises:
        NielsCacheError: If the file cannot be read, is not a rank file, or is damaged, so that a rank occurs twice or a byte has no rank.
    """
    encoding = None
    if is_tekken(path):
        content, encoding = _convert_tekken(content, path)
    ranks: dict[bytes, int] = {}
    pieces = 0
    for number, line in enumerate(content.splitlines(), start=1):
        if not line:
            continue
        try:
            piece, rank = line.split()
            ranks[b"" if piece == _EMPTY else base64.b64decode(piece, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            what = "a damaged rank file" if ranks else "not a rank file of tiktoken"
            kind = "" if ranks else describe_content(content, "JSON")
            raise NielsCacheError(f"{path}: {what}: line {number:,} is not base64 and a rank; copy the file again{kind}") from error
        pieces += 1
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        named = ", ".join(f"0x{byte:02x}" for byte in missing[:_MAX_NAMED])
        raise NielsCacheError(f"{path}: a damaged rank file: {len(missing)} bytes have no rank ({named}); copy the file again")
    if len(set(ranks.values())) < pieces:
        raise NielsCacheError(f"{path}: a damaged rank file: a piece or a rank occurs twice; copy the file again")
    if min(ranks.values()) < 0 or max(ranks.values()) >= min(MAX_VOCAB_SIZE, 2 * len(ranks)):
        raise NielsCacheError(f"{path}: a damaged rank file: a rank is far beyond its {len(ranks):,} pieces; copy the file again")
    return RankFile(ranks, content, hashlib.sha256(content).hexdigest(), encoding)


class TiktokenTokenizer(TextTokenizer):
    """A tiktoken rank file with special tokens.

    Only the named special tokens get ids. With a known encoding, a special token has the id that the encoding gives it. Any other special
    token gets the next free id, in the order eot, sys, usr, asst, bos. Pickling stores the path, not the content.

    Args:
        model_path: Path of a rank file, of a tekken.json, or of the JSON file beside the ranks in a cache, for which the arguments after
            `special_tokens` are ignored.
        special_tokens: String of each special token by role: eot and, where they are needed, sys, usr, asst and bos. By default the strings
            of this project.
        encoding: Name of the encoding of a rank file; by default the name of the file, if it is that of a known encoding.
        pattern: Regular expression that splits text into words, for a rank file of no known encoding.
        normalize: "nfc" normalizes each text to Unicode NFC before it is encoded; by default texts are encoded as they are.

    Raises:
        NielsCacheError: If the file cannot be read or is damaged, if its pattern is not known, or if the encoding does not have the eot.
    """

    kind = "tiktoken"
    _loaded = ("library_encoding",)

    def __init__(
        self,
        model_path: str | Path,
        *,
        special_tokens: Mapping[str, str] = SPECIAL_TOKENS,
        encoding: str | None = None,
        pattern: str | None = None,
        normalize: Literal["nfc"] | None = None,
    ) -> None:
        super().__init__(model_path, special_tokens=special_tokens)
        path = Path(model_path)
        described: dict[str, Any]
        if path.suffix == ".json" and not is_tekken(path):
            described, known = _read_description(path), {}
            self.ranks_path = str(path.with_name(TIKTOKEN_RANKS_NAME))
            file = read_ranks(self.ranks_path)
        else:
            self.ranks_path, file = self.model_path, read_ranks(path)
            if file.encoding is not None and (encoding or pattern):
                raise NielsCacheError(f"{path}: a tekken.json has its own pattern; remove encoding and pattern from [tokenizer]")
            found = file.encoding or (Encoding(pattern, {}) if pattern else known_encoding(_name_of(path, encoding), file.ranks, str(path)))
            known = found.special_tokens
            ids = _new_ids(self.special_tokens, known, file.ranks, self.model_path)
            described = {
                "kind": self.kind,
                "pattern": found.pattern,
                "ranks_sha256": file.sha256,
                "special_tokens": ids,
                **({"normalize": normalize} if normalize else {}),
            }
        self.pattern: str = described["pattern"]
        self.normalize: str | None = described.get("normalize")
        self._known, self._ids_by_string = list(known), described["special_tokens"]
        self._special_ids = find_special_ids(self.special_tokens, self.token_id, self.special_names, self.model_path)
        self.vocab_size = max(max(file.ranks.values()), *self._ids_by_string.values(), 0) + 1
        self.description = canonical_json(described)
        self.model_sha256 = hashlib.sha256(self.description.encode()).hexdigest()
        assert self.library_encoding  # a wrong pattern fails early

    @cached_property
    def library_encoding(self) -> tiktoken.Encoding:
        """Encoding object of the library `tiktoken`."""
        return _open(self.description, self.ranks_path)

    def encode_unchecked(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text as 1-D uint32 arrays. No text yields a special id."""
        return [np.array(self._encode(text), dtype=np.uint32) for text in self.normalized(texts)]

    def normalized(self, texts: Iterable[str]) -> list[str]:
        """Return the texts as they are encoded."""
        return [*map(nfc, texts)] if self.normalize else [*texts]

    def encode_rendered(self, texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the ids of rendered texts and the spans of ids (see TextTokenizer).

        Only the named special tokens are recognized in a text.
        """
        found = []
        for given, own_of_given in zip(texts, spans, strict=True):
            text, own = nfc_with_spans(given, own_of_given) if self.normalize else (given, own_of_given)
            ids = self._encode(text, with_special=True)
            ends = np.cumsum([len(piece) for piece in self.library_encoding.decode_tokens_bytes(ids)], dtype=np.int64)
            found.append((np.array(ids, dtype=np.uint32), token_spans(np.append(0, ends[:-1]), ends, _byte_spans(text, own))))
        return found

    def _encode(self, text: str, *, with_special: bool = False) -> list[int]:
        if not text.isascii():
            try:
                text.encode()  # tiktoken would replace a lone surrogate
            except UnicodeEncodeError as error:
                raise NielsCacheError("the text has a lone surrogate, which UTF-8 cannot encode; replace or drop it") from error
        try:
            with panics_as_errors():
                return (
                    self.library_encoding.encode(text, allowed_special="all")
                    if with_special
                    else self.library_encoding.encode_ordinary(text)
                )
        except PanicError as error:
            raise self._unencodable(text, error) from error

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        known = self._require_known(ids)
        try:
            with panics_as_errors():
                return self.library_encoding.decode(known)
        except KeyError as error:
            raise NielsCacheError(f"{self.model_path}: the id {error} has no piece; is it of another tokenizer?") from error

    def piece_bytes(self) -> list[bytes]:
        """Return the text of each id as UTF-8 bytes, which may be part of a character; an id without a piece has no bytes.

        Joining these bytes gives the text of the ids.
        """
        pieces = [b""] * self.vocab_size
        for piece, rank in read_ranks(self.ranks_path).ranks.items():
            pieces[rank] = piece
        for token, number in self._ids_by_string.items():
            pieces[number] = token.encode()
        return pieces

    def token_id(self, token: str) -> int | None:
        """Return the id of a named special token, or None."""
        return self._ids_by_string.get(token)

    def special_names(self) -> list[str]:
        """Return the special tokens of the known encoding, and the named ones."""
        return list(dict.fromkeys([*self._known, *self._ids_by_string]))

    def save(self, folder: Path) -> None:
        (folder / TIKTOKEN_RANKS_NAME).write_bytes(read_ranks(self.ranks_path).content)
        (folder / _NAME).write_text(self.description, encoding="utf-8", newline="\n")


def known_token_id(tokenizer: TiktokenTokenizer, token: str) -> int | None:
    """Return the id of a token in the first known encoding with the ranks and the pattern of a tokenizer, or None.

    The id may be beyond `vocab_size`.
    """
    path = tokenizer.ranks_path
    ranks = read_ranks(path).ranks
    every = (known_encoding(name, ranks, path) for name, size in ENCODINGS.items() if size == len(ranks))
    with suppress(NielsCacheError):  # the installed tiktoken may lack one
        return next((found.special_tokens.get(token) for found in every if found.pattern == tokenizer.pattern), None)
    return None


def _byte_spans(text: str, spans: Sequence[Span]) -> Sequence[Span]:
    """Return spans of characters as spans of bytes of the text in UTF-8."""
    if text.isascii():
        return spans
    positions = sorted({position for span in spans for position in span})
    lengths = (len(text[start:end].encode()) for start, end in pairwise([0, *positions]))
    before = dict(zip(positions, accumulate(lengths), strict=True))
    return [(before[start], before[end]) for start, end in spans]


def _name_of(path: Path, encoding: str | None) -> str:
    """Return the name of the encoding: the given one, or the file's name without its suffix if such an encoding is known."""
    name = path.stem if encoding is None else encoding
    if name in ENCODINGS:
        return name
    hint = "" if encoding is None else did_you_mean(name, ENCODINGS)
    problem = "a rank file does not say how text is cut into words" if encoding is None else f"no encoding {encoding!r}"
    add = f"add encoding (one of {', '.join(ENCODINGS)}) or pattern, the regular expression of the model, to [tokenizer]"
    raise NielsCacheError(f"{path}: {problem}; {hint or add}")


def _new_ids(special_tokens: Mapping[str, str], known: Mapping[str, int], ranks: Mapping[bytes, int], where: str) -> dict[str, int]:
    """Return the ids of special tokens. A token that the encoding does not know gets the next free id."""
    if dict(special_tokens) == SPECIAL_TOKENS:  # nothing is configured
        raise missing_eot_error(known, where)
    ids: dict[str, int] = {}
    free = max(max(ranks.values()), *known.values(), 0) + 1
    for role in ROLE_ORDER:
        token = special_tokens.get(role)
        if token is None:
            continue
        if token in known:
            ids[token] = known[token]
            continue
        if known and (role == "eot" or difflib.get_close_matches(token, known, n=1, cutoff=_NEAR)):
            raise missing_token_error(role, token, known, where)
        ids[token], free = free, free + 1
    return ids


@lru_cache(maxsize=1)
def _open(description: str, ranks_path: str) -> tiktoken.Encoding:
    """Return the library's object, which a process loads once."""
    described, file = json.loads(description), read_ranks(ranks_path)
    if file.sha256 != described["ranks_sha256"]:
        raise NielsCacheError(f"{ranks_path}: not the ranks that the tokenizer was made of; build the tokenizer again, or open it again")
    try:
        import tiktoken
    except ImportError as error:
        raise NielsCacheError(f"{ranks_path}: needs the package tiktoken, which cannot be imported; pip install tiktoken") from error
    try:
        with panics_as_errors():
            return tiktoken.Encoding(
                Path(ranks_path).stem,
                pat_str=described["pattern"],
                mergeable_ranks=file.ranks,
                special_tokens=described["special_tokens"],
            )
    except (ValueError, PanicError) as error:
        raise NielsCacheError(f"{ranks_path}: tiktoken cannot use the pattern: {error}; correct [tokenizer] pattern") from error


def _read_description(path: Path) -> dict[str, Any]:
    try:
        described = json.loads(path.read_bytes())
        assert described["kind"] == "tiktoken"
        assert described.get("normalize") in (None, "nfc")
        assert all(isinstance(token, int) for token in described["special_tokens"].values())
        _ = described["pattern"], described["ranks_sha256"]
    except FileNotFoundError as error:
        raise NielsCacheError(f"{path}: no such tokenizer model; materialize the tokenizer first or correct the path") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, AssertionError, RecursionError) as error:
        raise NielsCacheError(f"{path}: not the description of tiktoken ranks; build the tokenizer again") from error
    return described
