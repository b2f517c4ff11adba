"""The schema of [tokenizer]. This module opens no file; it only asks whether a model is a folder."""

import os
import re
from typing import Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from niels_cache_assets.base import defaults
from niels_cache_assets.base.config_path import HUB, ModelPath
from niels_cache_assets.base.schema import Table, Words
from niels_cache_runtime.format.layout import MAX_VOCAB_SIZE, TOKENIZER_MODEL_NAMES


class TokenizerSettings(Table):
    """[tokenizer]: a model to import, or the settings for training one."""

    model_config = ConfigDict(protected_namespaces=())
    model: ModelPath | None = None
    """A model to import, so none is trained: .model, tokenizer.json, tekken.json or rank file, its folder, or OWNER/NAME of the hub"""
    revision: str | None = Field(None, min_length=1)
    """For a model of the hub: its commit, tag or branch; by default main as it was when its files were first fetched"""
    kind: defaults.ModelKind | None = None
    """Model kind, if the file name does not show it; files other than .json and .tiktoken are assumed to be SentencePiece"""
    encoding: Literal[*defaults.ENCODINGS] | None = None  # type: ignore[valid-type]
    """For a tiktoken rank file: the name of its encoding, if tiktoken defines it"""
    pattern: str | None = Field(None, min_length=1)
    """For any other tiktoken rank file: the regular expression that splits text into words"""
    normalize: Literal["nfc"] | None = None
    """For a tiktoken rank file whose model normalizes text to Unicode NFC before encoding, such as Qwen's"""
    engine: Literal["auto", "reference"] = "auto"
    """The encoder: 'auto' uses a fast engine if its ids equal those of 'reference', the library that defines them"""
    vocab_size: int = Field(defaults.VOCAB_SIZE, ge=1, le=MAX_VOCAB_SIZE)
    """Vocabulary size, including special tokens"""
    model_type: Literal["unigram", "bpe", "bytelevel_bpe"] = "unigram"
    """Type of model to train: 'unigram' and 'bpe' produce a SentencePiece model, 'bytelevel_bpe' a tokenizer.json"""
    character_coverage: float = Field(1.0, gt=0, le=1)
    """For SentencePiece: share of characters that get their own piece; all others are encoded as bytes"""
    train_on: Words | None = None
    """Data sets to train on; by default all"""
    sample_bytes: int = Field(defaults.TOKENIZER_SAMPLE_BYTES, ge=1)
    """Bytes of text to take from the start of each data set"""
    special_tokens: dict[str, str] = defaults.SPECIAL_TOKENS
    """Strings for eot and, for SFT data, for sys, usr and asst; if bos is set, every pretraining document begins with it"""

    @field_validator("special_tokens")
    @classmethod
    def _different_strings(cls, value: dict[str, str]) -> dict[str, str]:
        roles = (*defaults.ROLE_KEYS, defaults.BOS)
        unknown = [role for role in value if role not in roles]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not a role; name eot, and where they are needed sys, usr, asst, bos")
        if "eot" not in value or len(set(value.values())) != len(value) or not all(value.values()):
            raise ValueError("name at least eot; each role needs a different string")
        return {key: value[key] for key in roles if key in value}

    @model_validator(mode="after")
    def _check_model_keys(self) -> Self:
        of_model = [key for key in ("revision", "kind", "encoding", "pattern", "normalize") if getattr(self, key) is not None]
        if of_model and self.model is None:
            raise ValueError(f"{of_model[0]} describes an imported model, and no model is named; add model, or remove {of_model[0]}")
        of_ranks = [key for key in ("encoding", "pattern") if getattr(self, key) is not None]
        if len(of_ranks) > 1:
            raise ValueError("encoding and pattern exclude each other; give the encoding if it is known")
        of_ranks += ["normalize"] if self.normalize is not None else []
        if of_ranks and self.model_kind != "tiktoken":
            raise ValueError(f'{of_ranks[0]} is for rank files of tiktoken only; remove it, or add kind = "tiktoken"')
        return self

    @property
    def roles_problem(self) -> str | None:
        """Why no SFT data set can be built with these special tokens, or None."""
        missing = [role for role in defaults.ROLE_KEYS if role not in self.special_tokens]
        if not missing:
            return None
        example = ", ".join(f'{role} = "..."' for role in missing)
        return f"[tokenizer] special_tokens names no {', '.join(missing)}, which SFT data needs; add {example}, the tokens of the model"

    @property
    def hub_name(self) -> str | None:
        """The name of a model on the hub, or None."""
        return self.model.removeprefix(HUB) if self.model is not None and self.model.startswith(HUB) else None

    @property
    def model_kind(self) -> defaults.ModelKind:
        """The kind of the model that is imported or trained."""
        if self.model is None:
            return "tokenizer.json" if self.model_type == "bytelevel_bpe" else "sentencepiece"
        return self.kind or infer_model_kind(self.model)


def infer_model_kind(path: str | os.PathLike[str]) -> defaults.ModelKind:
    """Return the kind of a model, judged by its file name.

    A folder or a .json file is a tokenizer.json, and a .tiktoken file is a rank file. So are Mistral's tekken.json, and the file
    `tiktoken.json` of a cache, which describes ranks. Any other file is assumed to be a SentencePiece model.
    """
    name = os.fspath(path)
    if name.endswith(".tiktoken") or os.path.basename(name) == TOKENIZER_MODEL_NAMES["tiktoken"] or is_tekken(name):
        return "tiktoken"
    return "tokenizer.json" if name.endswith(".json") or os.path.isdir(name) else "sentencepiece"


def is_tekken(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a tekken.json of Mistral, judged by its name: tekken.json, or with a date, such as tekken_240911.json."""
    return re.fullmatch(r"tekken(_.*)?\.json", os.path.basename(path)) is not None
