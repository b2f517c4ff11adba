"""`huggingface`: any text data set of the Hugging Face hub."""

from __future__ import annotations

from typing import Literal

from niels_cache_assets.sources.hub.text import HubText


class Huggingface(HubText):
    """Any hub data set of text."""

    source: Literal["huggingface"] = "huggingface"
