"""Settings of the tokenizer: table [tokenizer]."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from niels_cache_assets.config import defaults
from niels_cache_assets.sources.types import ConfigPath


class TokenizerSettings(BaseModel):
    """[tokenizer]: import `model`, or train one."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())
    model: ConfigPath | None = Field(None, description="A SentencePiece .model file to import; None trains one")
    vocab_size: int = Field(defaults.VOCAB_SIZE, ge=1, le=65_536, description="Pieces in all, special tokens included")
    model_type: str = Field("unigram", pattern="^(unigram|bpe)$", description="SentencePiece model type")
    character_coverage: float = Field(1.0, gt=0, le=1, description="Share of characters that get a piece; the rest falls back to bytes")
    train_on: tuple[str, ...] | None = Field(None, strict=False, description="Data sets to sample; None: every configured one")
    sample_bytes: int = Field(defaults.TOKENIZER_SAMPLE_BYTES, ge=1, description="Text taken from the start of each, in bytes")
    special_tokens: dict[str, str] = Field(defaults.SPECIAL_TOKENS, description="sys, usr, asst and eot: their strings")

    @field_validator("special_tokens")
    @classmethod
    def _four_different_strings(cls, value: dict[str, str]) -> dict[str, str]:
        if set(value) != set(defaults.ROLE_KEYS) or len(set(value.values())) != len(value) or not all(value.values()):
            raise ValueError(f"give {', '.join(defaults.ROLE_KEYS)}, each a string of its own")
        return {key: value[key] for key in defaults.ROLE_KEYS}
