"""What the builders of both families say about a build: while it runs (Progress), and in meta.json (Provenance and the common keys)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from niels_cache_assets.build_cache.resuming import Counts
from niels_cache_assets.config.fingerprint import fingerprint_of
from niels_cache_assets.sources.reading.encodings import nothing_is_text
from niels_cache_assets.tokenizer.kinds import BuildTokenizer
from niels_cache_runtime.format.layout import TOKEN_DTYPE_NAME
from niels_cache_runtime.format.meta import Meta

CODE_VERSIONS = {"pretrain": "2", "sft": "2"}  # bumped by hand when the bytes change for the same input


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What meta.json says about where a cache came from, key by key (docs/meta.md).

    `dataset_name` None: the cache has no name, and may lie in any folder. `fingerprint` None: it is taken over the builder's own settings.
    """

    dataset_name: str | None = None
    dataset_config: str | None = None
    dataset_revision: str | None = None
    source: dict[str, Any] = field(default_factory=lambda: {"kind": "iterable", "streaming": True})
    split_rule: str | None = None
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a build is: documents (or conversations) and tokens so far.

    `share` (0 to 1) is of the token budgets, or of the documents where their number is known; else None.
    """

    documents: int  # or conversations
    tokens: int
    share: float | None

    @property
    def counts(self) -> dict[str, int]:
        """All but the share."""
        return {"documents": self.documents, "tokens": self.tokens}


OnProgress = Callable[[Progress], None]


def common_meta(family: str, tokenizer: BuildTokenizer, provenance: Provenance, seed: int, settings: dict[str, Any]) -> Meta:
    identity = {"settings": settings, "tokenizer_sha256": tokenizer.model_sha256, "code_version": CODE_VERSIONS[family]}
    return {
        "kind": family,
        "built": True,
        "dataset_name": provenance.dataset_name,
        "dataset_config": provenance.dataset_config,
        "dataset_revision": provenance.dataset_revision,
        "source": provenance.source,
        "seed": seed,
        "token_dtype": TOKEN_DTYPE_NAME,
        "tokenizer_sha256": tokenizer.model_sha256,
        "vocab_size": tokenizer.vocab_size,
        "special_token_ids": tokenizer.special_ids,
        "fingerprint": provenance.fingerprint or fingerprint_of(identity),
    }


def dropped_note(counts: Counts, hints: Sequence[str] = ()) -> str:
    """What to say of a source of which nothing is left: reasons, the files that are no text, and the `hints` of the source."""
    dropped = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.dropped.items()))
    return "".join([f" (dropped: {dropped})" if dropped else "", nothing_is_text(counts.facts), *(f"; {hint}" for hint in hints)])
