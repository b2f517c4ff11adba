"""The source `fineweb_edu`, for FineWeb-Edu: web pages of educational value."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from niels_cache_assets.base import defaults
from niels_cache_assets.sources.huggingface import HubText


class FinewebEdu(HubText):
    """FineWeb-Edu with token budgets, by default from a single crawl."""

    source: Literal["fineweb_edu"] = "fineweb_edu"
    dataset: str = "HuggingFaceFW/fineweb-edu"
    config: str | None = "CC-MAIN-2024-10"
    train_tokens: PositiveInt | None = defaults.FINEWEB_TRAIN_TOKENS
    val_tokens: NonNegativeInt | None = defaults.FINEWEB_VAL_TOKENS
