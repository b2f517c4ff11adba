"""Python code that opens a cache for training, which `build-all` prints and an asset shows in the UI."""

import json
from pathlib import Path

from niels_cache_runtime.format.layout import Family, has_pairs
from niels_cache_runtime.format.meta import Meta

_WINDOW = 256  # T of the example, or less if a split has fewer tokens
_ROWS = 4
_COLUMNS = 72  # the UI cuts longer lines beside a name


def training_code(directory: Path, family: Family, meta: Meta) -> str:
    """Return Python that reads one batch of this cache's train split. The code runs unchanged unless the split is empty."""
    window = max(1, min(_WINDOW, meta["train_tokens"] - 1)) if family == "pretrain" else _WINDOW
    return loader_code(json.dumps(str(directory / "train"), ensure_ascii=False), family, T=window, B=_ROWS, pairs=has_pairs(meta))


def loader_code(quoted_split: str, family: Family, *, T: int, B: int, pairs: bool = False) -> str:
    """Return Python that reads one batch of a split.

    Args:
        quoted_split: Path of the split in quotes, as in Python code.
        family: Family of the data set.
        T: Number of tokens per row.
        B: Number of rows.
        pairs: Whether the split has preference pairs; by default no.
    """
    targets = "batch.y" if family == "pretrain" else "batch.y_masked"
    read = f"batch.x, {targets}"
    if pairs:
        read = "chosen, rejected = batch.chosen, batch.rejected\nchosen.x, chosen.y_masked, rejected.x, rejected.y_masked"
    masked = "" if family == "pretrain" else "\n# targets are -100 except in the assistant's answers"
    settings = f"T={T}, B={B}, seed=0"
    one_line = f"loader = TokenLoader({quoted_split}, {settings})"
    several_lines = f"loader = TokenLoader(\n    {quoted_split},\n    {settings},\n)"
    return f"""\
from niels_cache_runtime import TokenLoader

{one_line if len(one_line) <= _COLUMNS else several_lines}
batch = next(iter(loader))
{read}  # ({B}, {T}) int64 each{masked}"""
