"""The SFT cache of a data set. A build tokenizes the conversations, and divides them into train and val."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from niels_cache_assets.artifacts.dataset import Dataset
from niels_cache_assets.build_cache import CODE_VERSIONS, OnProgress, Provenance
from niels_cache_assets.build_cache.sft import SftBuild
from niels_cache_assets.chats.templates import Template, find_template
from niels_cache_assets.disk.space import Need, sft_need
from niels_cache_assets.sources.config_path import SENTINELS
from niels_cache_assets.sources.types import SftSource, StreamContext
from niels_cache_assets.streaming.feed import Feed
from niels_cache_runtime.errors import NielsCacheError


@dataclass(frozen=True, kw_only=True)
class Sft(Dataset):
    """The cache of an SFT data set."""

    source: SftSource

    version = CODE_VERSIONS["sft"]

    def unavailable(self) -> str | None:
        problem = self.registry.tokenizer.roles_problem if self.source.template == SENTINELS else None
        if problem is not None and self.source.enabled:
            raise NielsCacheError(f"{self.registry.origin}: [{self.key.replace('/', '.')}] cannot be built: {problem}")
        return super().unavailable()

    @cached_property
    def template(self) -> Template | None:
        """The chat template, or None for `sentinels`. Raises NielsCacheError if it is missing."""
        return find_template(self.source.template, self.registry.tokenizer)

    def identity_with(self, tokenizer_sha256: str | None, vocab_size: int | None, revision: str | None) -> dict[str, Any]:
        made_of = super().identity_with(tokenizer_sha256, vocab_size, revision)
        return made_of if self.template is None else {**made_of, "template": self.template.identity}

    def need(self) -> Need | None:
        return sft_need(self.text_bytes, token_bytes=self.token_bytes)

    def split_rule(self) -> str:
        unit = "conversation" if self.source.turns == "each" and self.source.split_unit == "example" else self.source.split_unit
        return f"seeded {self.source.val_frac:g} of {unit}s to val, seed {self.build.seed}"

    def builder(self, context: StreamContext, provenance: Provenance, progress: OnProgress | None) -> SftBuild:
        return SftBuild(
            items=Feed(self.source.conversations, context),
            out_dir=str(self.directory),
            tokenizer=self.tokenizer,
            val_frac=self.source.val_frac,
            seed=self.build.seed,
            split_by="example" if self.source.split_unit == "prompt" else self.source.split_unit,
            preference=self.source.is_preference,
            max_tokens=getattr(self.source, "max_tokens", None),
            turns=self.source.turns,
            on_invalid="drop",
            threads=self.build.threads,
            token_dtype=self.build.token_dtype,
            template=self.template,
            provenance=provenance,
            progress=progress,
        )
