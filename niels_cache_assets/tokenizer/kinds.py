"""The kinds of tokenizers, the functions that open them, and the view of any tokenizer that is passed to a builder.

Text never yields a special id: `encode` of each kind raises an error for text that would yield one, and the builders count and drop such a
document. Training is in training.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from niels_cache_assets.base.defaults import BOS, ROLE_KEYS, SPECIAL_TOKENS, ModelKind
from niels_cache_assets.base.strings import Strings
from niels_cache_assets.sources.reading.digests import content_digest
from niels_cache_assets.tokenizer.base import FlatIds, TextTokenizer, concatenate_ids, guess_eot
from niels_cache_assets.tokenizer.hub import fetch_model
from niels_cache_assets.tokenizer.sentencepiece_model import SentencePieceTokenizer
from niels_cache_assets.tokenizer.settings import TokenizerSettings, infer_model_kind
from niels_cache_assets.tokenizer.tiktoken_ranks import TiktokenTokenizer, known_token_id
from niels_cache_assets.tokenizer.tokenizer_json import HuggingFaceTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import (
    FIM_KEYS,
    FIM_NAMES,
    MAX_VOCAB_SIZE,
    META_NAME,
    TOKENIZER_MODEL_NAME,
    TOKENIZER_MODEL_NAMES,
    tokenizer_dir,
    tokenizer_model_name,
)
from niels_cache_runtime.format.meta import Meta, read_meta, sha256_file

PROOFS_NAME = ".tokenizer.engines.json"  # beside the folder of the tokenizer in a cache root

LIBRARIES: dict[ModelKind, str] = {"sentencepiece": "sentencepiece", "tokenizer.json": "tokenizers", "tiktoken": "tiktoken"}
"""The library that defines the ids of each kind."""

EncodeFlat = Callable[[Sequence[str]], FlatIds]
"""Texts to (ids of all texts back to back, number of ids of each text), two 1-D int arrays."""

EncodeNumbered = Callable[[Sequence[str] | Strings, int | None], FlatIds]
"""Texts and the number of their batch, to the same two arrays."""


def open_model(
    path: str | Path,
    *,
    kind: ModelKind | None = None,
    special_tokens: Mapping[str, str] = SPECIAL_TOKENS,
    encoding: str | None = None,
    pattern: str | None = None,
    normalize: Literal["nfc"] | None = None,
) -> TextTokenizer:
    """Open a tokenizer of any kind.

    Args:
        path: A SentencePiece model, a tokenizer.json or a folder that contains one, or a tiktoken rank file.
        kind: Kind of the model; by default judged by the file name.
        special_tokens: String of each special token, by role; empty to open a model without special tokens.
        encoding: For a rank file: the name of its encoding (see TiktokenTokenizer).
        pattern: For a rank file: the regular expression that splits text into words (see TiktokenTokenizer).
        normalize: For a rank file: the normalization of texts before they are encoded (see TiktokenTokenizer); by default none.

    Returns:
        The tokenizer.

    Raises:
        NielsCacheError: If the file is not of this kind, or if it lacks a special token.
    """
    kind = kind or infer_model_kind(path)
    if kind == "tokenizer.json":
        return HuggingFaceTokenizer(path, special_tokens=special_tokens)
    if kind == "tiktoken":
        return TiktokenTokenizer(path, special_tokens=special_tokens, encoding=encoding, pattern=pattern, normalize=normalize)
    return SentencePieceTokenizer(str(path), special_tokens=special_tokens)


def eot_of(path: str, kind: ModelKind | None = None) -> str | None:
    """Return the token of another project's model that probably ends a document. None if it has ours, or if its tokens do not show it."""
    tokenizer = open_model(path, kind=kind, special_tokens={})
    return guess_eot(tokenizer.special_names()) if tokenizer.token_id(SPECIAL_TOKENS["eot"]) is None else None


def local_settings(settings: TokenizerSettings, path: Path | None = None) -> TokenizerSettings:
    """Return the settings with the path of the model on this machine.

    Args:
        settings: Settings in [tokenizer].
        path: The file of a model of the hub; by default its files are fetched if necessary.

    Raises:
        NielsCacheError: As `fetch_model` does.
    """
    if settings.hub_name is None:
        return settings
    path = path or fetch_model(settings.hub_name, settings.revision)
    is_json = path.name == TOKENIZER_MODEL_NAMES["tokenizer.json"]
    found: dict[str, Any] = {"model": str(path.parent if is_json else path)}  # a folder has further files
    if "special_tokens" not in settings.model_fields_set and (eot := eot_of(found["model"], settings.kind)):
        found["special_tokens"] = {"eot": eot}
    return settings.model_copy(update=found)


def special_tokens_of(settings: TokenizerSettings) -> dict[str, str]:
    """Return the special tokens. Those of a model of the hub are guessed if the settings do not name them."""
    return settings.special_tokens if "special_tokens" in settings.model_fields_set else local_settings(settings).special_tokens


def open_configured_model(settings: TokenizerSettings, path: str | Path | None = None) -> TextTokenizer:
    """Open the model that [tokenizer] names, or the model at `path` with the same settings."""
    settings = local_settings(settings)
    return open_model(
        path or str(settings.model), **settings.model_dump(include={"kind", "special_tokens", "encoding", "pattern", "normalize"})
    )


def is_configured_model(settings: TokenizerSettings, path: str | Path) -> bool:
    """Return whether a path is the model that [tokenizer] names; if that is a folder, its tokenizer.json is meant too."""
    if settings.model is None:
        return False
    named = Path(settings.model)
    return Path(path).resolve() in (named.resolve(), (named / TOKENIZER_MODEL_NAMES["tokenizer.json"]).resolve())


def open_model_at(settings: TokenizerSettings, path: str | Path, *, with_special_tokens: bool = False) -> TextTokenizer:
    """Open a model by its path. The settings in [tokenizer] apply only to the model that it names.

    Args:
        settings: Settings in [tokenizer].
        path: Path of the model.
        with_special_tokens: Whether to open the model that [tokenizer] names with its special tokens; by default no. Any other model is
            opened without.

    Raises:
        NielsCacheError: As `open_model` does.
    """
    if not is_configured_model(settings, path):
        return open_model(path, special_tokens={})
    return open_configured_model(settings if with_special_tokens else settings.model_copy(update={"special_tokens": {}}), path)


def built_model(folder: str | Path) -> Path:
    """Return the path of the model in the tokenizer folder of a cache: without a meta.json, that of SentencePiece."""
    meta = Path(folder) / META_NAME
    return Path(folder) / tokenizer_model_name(read_meta(meta) if meta.exists() else {})


def open_built_model(folder: str | Path, meta: Meta | None = None) -> TextTokenizer:
    """Open the tokenizer in the tokenizer folder of a cache, with the special tokens that were recorded when it was built.

    Args:
        folder: The folder.
        meta: The meta.json of the folder; by default it is read.

    Returns:
        The tokenizer.

    Raises:
        NielsCacheError: If meta.json or the model cannot be read, or is damaged.
    """
    meta = read_meta(Path(folder) / META_NAME) if meta is None else meta
    path = Path(folder) / tokenizer_model_name(meta)
    return open_model(path, kind=meta.get("model_kind", "sentencepiece"), special_tokens=meta["special_tokens"])


def load_tokenizer(settings: TokenizerSettings, root: Path) -> TextTokenizer:
    """Return the tokenizer in the cache root for builds, with the special tokens of the configuration.

    Raises:
        NielsCacheError: If it is not built yet, or if it is not a SentencePiece model and was built with other special tokens. The message
            says what to do.
    """
    folder, special_tokens = tokenizer_dir(root), special_tokens_of(settings)
    model = built_model(folder)
    if not model.exists():
        raise NielsCacheError(f"{model}: no tokenizer yet; materialize the asset 'tokenizer' first (niels-cache build-all does)")
    if model.name != TOKENIZER_MODEL_NAME:
        tokenizer = open_built_model(folder)
        if tokenizer.special_tokens != special_tokens:  # fingerprints of caches cover those of the configuration
            raise NielsCacheError(f"{model}: the tokenizer was built with other special tokens; materialize the tokenizer first")
    else:
        tokenizer = SentencePieceTokenizer(str(model), special_tokens=special_tokens)
    tokenizer.engine, tokenizer.proofs = settings.engine, root / PROOFS_NAME
    return tokenizer


def recorded_tokenizer(settings: TokenizerSettings, root: Path) -> tuple[str | None, int]:
    """Return the sha256 and the vocabulary size of the tokenizer in the cache root, as its meta.json says.

    A model is loaded only if it is not the one that meta.json describes, because somebody has replaced it.

    Raises:
        NielsCacheError: If it is not built yet.
    """
    folder = tokenizer_dir(root)
    meta = read_meta(folder / META_NAME) if (folder / META_NAME).exists() else {}
    model = folder / tokenizer_model_name(meta)
    if not model.exists() or content_digest(str(model)) != meta.get("files", {}).get(model.name, {}).get("sha256"):
        tokenizer = load_tokenizer(settings, root)  # also if there is no tokenizer, for the error
        return tokenizer.model_sha256, tokenizer.vocab_size
    return meta["sha256"], meta["vocab_size"]


@dataclass(frozen=True, kw_only=True)
class BuildTokenizer:
    """A view of any tokenizer: the methods and values that the builders use.

    Attributes:
        encode_batch: Encodes texts (see EncodeFlat), and may give special ids. It gets the number of the batch, or None (see encoder.py).
        vocab_size: Highest id plus one.
        special_ids: Id of each special token, by role; None for a missing token. BOS is among them only if it begins each document.
        reserved_ids: Ids that no text may yield, in increasing order.
        model_sha256: The sha256 that identifies the tokenizer, or None.
    """

    encode_batch: EncodeNumbered
    vocab_size: int
    special_ids: dict[str, int | None]
    reserved_ids: tuple[int, ...]
    model_sha256: str | None

    @property
    def eot(self) -> int:
        """The id that ends each document."""
        eot = self.special_ids["eot"]
        assert eot is not None  # view_tokenizer rejects a tokenizer without eot
        return eot

    @property
    def bos(self) -> int | None:
        """The id that begins each document of a pretrain cache, or None."""
        return self.special_ids.get(BOS)

    @cached_property
    def is_special(self) -> np.ndarray:
        """Whether no text may yield an id, for each id: (vocab_size,) bool."""
        special = np.zeros(self.vocab_size, dtype=bool)
        special[list(self.reserved_ids)] = True
        return special

    def require(self, keys: Sequence[str]) -> None:
        """Require an id for each of these roles, all of them different.

        Raises:
            NielsCacheError: If a role has no id, or if two ids are equal.
        """
        missing = [key for key in keys if self.special_ids[key] is None]
        if missing:
            raise NielsCacheError(f"the tokenizer has no special token for {', '.join(missing)}; add them (special_token_ids)")
        if len({self.special_ids[key] for key in keys}) != len(keys):
            raise NielsCacheError(f"the tokenizer's special tokens share an id: {self.special_ids}; each needs its own")


def find_fim_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the ids of the tokens for fill-in-the-middle, by `pre`, `suf` and `mid`. It is empty if a tokenizer has none that are known.

    Args:
        tokenizer: Any object. If it is no TextTokenizer, its tokens are not known.
    """
    if not isinstance(tokenizer, TextTokenizer):
        return {}
    find = partial(known_token_id, tokenizer) if isinstance(tokenizer, TiktokenTokenizer) else tokenizer.token_id
    every = ([token for name in names.split() if (token := find(name)) is not None] for names in FIM_NAMES)
    return next((dict(zip(FIM_KEYS, ids, strict=True)) for ids in every if len(ids) == len(FIM_KEYS)), {})


def view_tokenizer(tokenizer: Any) -> BuildTokenizer:
    """Return the view of a tokenizer that the builders use.

    Args:
        tokenizer: Any object with `encode`, `vocab_size` (attribute or method) and `special_token_ids()`, which returns ids by role or by
            the four strings. If it has `encode_flat(texts)` (see EncodeFlat) or `encode_batch(texts, threads)`, they are used instead of
            `encode`. It may also have `reserved_ids()`, `prepends_bos`, `model_path` and `model_sha256`.

    Returns:
        The view.

    Raises:
        NielsCacheError: If a required attribute is missing, if there is no eot, or if an id is not below `vocab_size`.
    """
    size = getattr(tokenizer, "vocab_size", None)
    size = size() if callable(size) else size
    if not isinstance(size, int) or size < 1:
        raise NielsCacheError(f"the tokenizer's vocab_size is {size!r}; it must be a positive int (attribute or method)")
    if size > MAX_VOCAB_SIZE:
        raise NielsCacheError(f"the tokenizer: {size:,} ids are too many for a cache; use a vocabulary of at most {MAX_VOCAB_SIZE:,}")
    if not callable(getattr(tokenizer, "special_token_ids", None)):
        raise NielsCacheError("the tokenizer has no special_token_ids(); it must return at least the id of eot")
    given: Mapping[str, int | None] = tokenizer.special_token_ids()
    special_ids = {key: given.get(key, given.get(SPECIAL_TOKENS[key])) for key in ROLE_KEYS}
    if getattr(tokenizer, "prepends_bos", False):
        special_ids[BOS] = given[BOS]
    for key, token in special_ids.items():
        if token is not None and not 0 <= token < size:
            raise NielsCacheError(f"the tokenizer's {key} id {token} is not below its vocab_size {size}")
    reserved = {int(token) for token in getattr(tokenizer, "reserved_ids", list)()}
    reserved |= {token for token in special_ids.values() if token is not None}
    if reserved and not 0 <= min(reserved) <= max(reserved) < size:
        raise NielsCacheError(f"the tokenizer's reserved_ids are not below its vocab_size {size}")
    model_path, loaded_sha256 = getattr(tokenizer, "model_path", None), getattr(tokenizer, "model_sha256", None)
    encode = _encode_flat_of(tokenizer)
    view = BuildTokenizer(
        encode_batch=lambda texts, batch: encode(texts.tolist() if isinstance(texts, Strings) else texts),
        vocab_size=size,
        special_ids=special_ids,
        reserved_ids=tuple(sorted(reserved)),
        model_sha256=loaded_sha256 or (sha256_file(model_path) if model_path else None),
    )
    view.require(["eot"])
    return view


def _encode_flat_of(tokenizer: Any) -> EncodeFlat:
    if hasattr(tokenizer, "encode_flat"):
        return tokenizer.encode_flat
    if hasattr(tokenizer, "encode_batch"):
        return lambda texts: concatenate_ids(tokenizer.encode_batch(texts, 1))
    return lambda texts: concatenate_ids(map(tokenizer.encode, texts))
