"""The lines that open a cache for training, to be copied: printed by build-all, shown on an asset in the UI."""

from __future__ import annotations

import json
from pathlib import Path

from niels_cache_runtime.formats import Family, idx_name, tokens_name
from niels_cache_runtime.meta import Meta

_WINDOW = 256  # T of the example, or less where a split has less


def training_code(directory: Path, family: Family, meta: Meta) -> str:
    """Python that draws one batch of this cache's train split; it runs as it stands, where there is one to draw."""
    draw = "generator=torch.Generator().manual_seed(0))"
    if family == "pretrain":
        window = max(1, min(_WINDOW, meta["train_tokens"] - 1, meta["shard_bytes"] // 2 - 1))
        return f"""\
import torch
from niels_cache_runtime import PretrainTokenStreamDataset

data = PretrainTokenStreamDataset({_quoted(directory / "train")}, T={window}, device="cpu")
x, y = data.get_batch(B=4, {draw}"""
    return f"""\
import torch
from niels_cache_runtime import SFTExampleDataset

folder = {_quoted(directory)}
tokens, idx = f"{{folder}}/{tokens_name("train")}", f"{{folder}}/{idx_name("train")}"
data = SFTExampleDataset(tokens, idx, T={_WINDOW}, device="cpu", eot_id={meta["special_token_ids"]["eot"]})
x, y, y_masked = data.get_batch(B=4, {draw}"""


def _quoted(path: Path) -> str:
    """A Python string in double quotes, like the rest."""
    return json.dumps(str(path), ensure_ascii=False)
