"""The tokenizer of a project in parts, under a lease. It is not in leased.py, because a tokenizer may read corpora, which use leases."""

from __future__ import annotations

from dataclasses import dataclass

from niels_cache_assets.artifacts.parts.leased import AfreshUnderLease
from niels_cache_assets.artifacts.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class SharedTokenizer(AfreshUnderLease, Tokenizer):
    """The tokenizer of a project in parts. Any machine that builds a part may be the first, and then makes the tokenizer."""
