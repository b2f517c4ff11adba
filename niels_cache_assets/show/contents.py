"""What a finished folder holds, told from its meta.json: counts, bytes, hash, what is short of a token budget; and the cells that tables
have of it.

meta.json records the budgets of a build in `split_rule` alone, those of one run included, so older caches have the sentence too. No file is
read. A budget that was met is held exactly (streaming/splits.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from niels_cache_assets.show.wording import UNKNOWN, counted, share_of
from niels_cache_assets.streaming.splits import UNLIMITED
from niels_cache_runtime.format.layout import SPLITS, Split
from niels_cache_runtime.format.meta import Meta, content_sha256

_COUNTS = ("train_tokens", "val_tokens", "train_examples", "val_examples", "vocab_size")
_RULE = re.compile(r"val until (\d+) tokens, then train until (?:(\d+)(?: tokens)?|the source ends)")  # the builders leave out "tokens"
_MOST = 0.999  # what is short of a budget is never shown as all of it


def counts_of(meta: Meta) -> dict[str, int]:
    """Those that it has; none of a data set that is switched off."""
    if not meta.get("built", True):
        return {}
    return {key: int(meta[key]) for key in _COUNTS if meta.get(key) is not None}  # imported tokens may be of no known vocabulary


def all_counts(meta: Meta) -> dict[str, int]:
    """`counts_of`, and of a data set, a corpus or a corpus's report how many documents it keeps, of drop lists how many duplicates."""
    counts = counts_of(meta)
    documents = meta.get("documents", {}) if meta.get("built", True) else {}
    if documents:
        counts["documents"] = documents["kept"] if "kept" in documents else sum(documents.values())
    if meta.get("kind") == "duplicates":
        counts["duplicates"] = sum(found["exact"] + found["near"] for found in meta.get("datasets", {}).values())
    return counts


def contents(counts: Mapping[str, int], shares: Mapping[Split, str] | None = None) -> tuple[str, str]:
    """Cells for train and val, from all that is counted of a folder; what has no splits stands in the first.

    `shares`: of a split that is short of its budget, how much of it is there; it stands behind the number.
    """
    noted = {split: f" ({share})" for split, share in (shares or {}).items()}
    for unit in ("example", "token"):
        if f"train_{unit}s" in counts:
            val = counts.get(f"val_{unit}s")
            train = counted(counts[f"train_{unit}s"], unit) + noted.get("train", "")
            return train, UNKNOWN if val is None else f"{val:,}{noted.get('val', '')}"
    for key, unit in (("vocab_size", "piece"), ("documents", "document"), ("duplicates", "duplicate")):
        if key in counts:
            return counted(counts[key], unit), UNKNOWN
    return UNKNOWN, UNKNOWN


def total_bytes(files: Mapping[str, Mapping[str, Any]]) -> int:
    """Size of all files of a table of them, as a meta.json has it."""
    return sum(entry["bytes"] for entry in files.values())


def content_hash(meta: Meta) -> str | None:
    """sha256 of what it holds: of the model for a tokenizer, else its `content_sha256`: of tokens and offsets, documents, drop lists or
    arrays, which is the hash of no single file."""
    found = meta.get("sha256", meta.get("content_sha256"))
    if str(meta.get("kind")).startswith("index/"):  # its meta.json lists its files alone
        found = content_sha256(meta["files"])
    return str(found) if found and meta.get("built", True) else None


def budget_rule(*, train_tokens: int | None, val_tokens: int) -> str:
    """`split_rule` of a data set that budgets divide; without `train_tokens`, train takes all that val leaves."""
    train = "the source ends" if train_tokens is None else f"{train_tokens} tokens"
    return f"val until {val_tokens} tokens, then train until {train}"


def shares_met(meta: Meta) -> dict[Split, str]:
    """`{"train": "0.5%"}`: of each split that is short of its budget, how much of it is there. Empty where no budget was missed."""
    rule = _RULE.fullmatch(str(meta.get("split_rule") or ""))
    if rule is None or meta.get("kind") != "pretrain" or not meta.get("built"):
        return {}
    budgets: dict[Split, int] = {"val": int(rule[1]), "train": int(rule[2] or 0)}
    counts = counts_of(meta)
    shares = {split: counts.get(f"{split}_tokens", 0) / budgets[split] for split in SPLITS if 0 < budgets[split] < UNLIMITED}
    return {split: share_of(min(share, _MOST)) for split, share in shares.items() if share < 1}


def shortfall(meta: Meta) -> str | None:
    """`0.5% of train_tokens: the source ended`; None if no budget was missed, or none was set."""
    shares = shares_met(meta)
    return f"{', '.join(f'{share} of {split}_tokens' for split, share in shares.items())}: the source ended" if shares else None
