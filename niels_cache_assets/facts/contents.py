"""The content of a finished folder according to its meta.json: counts, bytes, the content hash, and missed token budgets.

This module also makes the table cells that show this content. It reads no file. meta.json records the token budgets of a build only in
`split_rule`, including budgets that were set for one run. A build that reaches a token budget has exactly that many tokens
(streaming/splits.py).
"""

import re
from collections.abc import Mapping
from typing import Any

from niels_cache_assets.base.wording import UNKNOWN, format_count, format_share
from niels_cache_assets.streaming.splits import UNLIMITED
from niels_cache_runtime.format.layout import SPLITS, Split
from niels_cache_runtime.format.meta import Meta, content_sha256

_COUNTS = ("train_tokens", "val_tokens", "train_examples", "val_examples", "vocab_size")
_RULE = re.compile(r"val until (\d+) tokens, then train until (?:(\d+)(?: tokens)?|the source ends)")  # the public builders omit "tokens"
_MOST = 0.999  # so that a missed budget is never shown as 100%


def counts_of(meta: Meta) -> dict[str, int]:
    """Return the counts in a meta.json, none for a data set that is switched off."""
    if not meta.get("built", True):
        return {}
    return {key: int(meta[key]) for key in _COUNTS if meta.get(key) is not None}  # imported tokens may have no known vocabulary


def all_counts(meta: Meta) -> dict[str, int]:
    """Return `counts_of`, plus `documents`, `duplicates` or `cuts` if meta.json has them.

    `documents` is the number of kept documents of a data set, corpus or corpus report, and `duplicates` the number of documents that drop
    lists name as duplicates. `cuts` is the number of places of repeated text.
    """
    counts = counts_of(meta)
    documents = meta.get("documents", {}) if meta.get("built", True) else {}
    if documents:
        counts["documents"] = documents["kept"] if "kept" in documents else sum(documents.values())
    if meta.get("kind") == "repeats":
        counts["cuts"] = sum(sum(found["cuts"].values()) for found in meta["datasets"].values())
    if meta.get("kind") == "duplicates":
        counts["duplicates"] = sum(found["exact"] + found["near"] for found in meta.get("datasets", {}).values())
    return counts


def counts_per_split(meta: Meta) -> dict[str, dict[Split, int]]:
    """Return counts by unit and split.

    meta.json has them as pairs such as `train_tokens` and `val_tokens`, or as a table such as `documents` = {train, val}.
    """
    counts: dict[str, dict[Split, int]] = {}
    for key, value in meta.items():
        unit = key.removeprefix("train_")
        if unit != key and isinstance(value, int) and f"val_{unit}" in meta:
            counts[unit] = {split: meta[f"{split}_{unit}"] for split in SPLITS}
        elif isinstance(value, dict) and set(value) == set(SPLITS) and all(isinstance(count, int) for count in value.values()):
            counts[key] = value
    return counts


def content_cells(counts: Mapping[str, int], shares: Mapping[Split, str] | None = None) -> tuple[str, str]:
    """Return the table cells for train and val. A count without splits is in the first cell.

    Args:
        counts: Counts in a meta.json.
        shares: For each split that missed its token budget, the share that was reached, which the cell shows after the count; by default
            none.
    """
    noted = {split: f" ({share})" for split, share in (shares or {}).items()}
    for unit in ("example", "token"):
        if f"train_{unit}s" in counts:
            val = counts.get(f"val_{unit}s")
            train = format_count(counts[f"train_{unit}s"], unit) + noted.get("train", "")
            return train, UNKNOWN if val is None else f"{val:,}{noted.get('val', '')}"
    for key, unit in (("vocab_size", "piece"), ("documents", "document"), ("duplicates", "duplicate"), ("cuts", "cut")):
        if key in counts:
            return format_count(counts[key], unit), UNKNOWN
    return UNKNOWN, UNKNOWN


def total_bytes(files: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the size of all files in a `files` table of a meta.json."""
    return sum(entry["bytes"] for entry in files.values())


def content_hash(meta: Meta) -> str | None:
    """Return the sha256 of the content, or None if meta.json has none.

    For a tokenizer, this is the hash of the model, otherwise `content_sha256`, which covers tokens and offsets, documents, drop lists or
    arrays. It is not the hash of a single file.
    """
    found = meta.get("sha256", meta.get("content_sha256"))
    if str(meta.get("kind")).startswith("index/"):  # the meta.json of an index lists only files
        found = content_sha256(meta["files"])
    return str(found) if found and meta.get("built", True) else None


def budget_rule(*, train_tokens: int | None, val_tokens: int) -> str:
    """Return the `split_rule` for token budgets. Without `train_tokens`, train gets everything after val."""
    train = "the source ends" if train_tokens is None else f"{train_tokens} tokens"
    return f"val until {val_tokens} tokens, then train until {train}"


def budget_shares(meta: Meta) -> dict[Split, str]:
    """Return the reached share of each split that missed its token budget, such as `{"train": "0.5%"}`."""
    rule = _RULE.fullmatch(str(meta.get("split_rule") or ""))
    if rule is None or meta.get("kind") != "pretrain" or not meta.get("built"):
        return {}
    budgets: dict[Split, int] = {"val": int(rule[1]), "train": int(rule[2] or 0)}
    counts = counts_of(meta)
    shares = {split: counts.get(f"{split}_tokens", 0) / budgets[split] for split in SPLITS if 0 < budgets[split] < UNLIMITED}
    return {split: format_share(min(share, _MOST)) for split, share in shares.items() if share < 1}


def budget_shortfall(meta: Meta) -> str | None:
    """Return `0.5% of train_tokens: the source ended`, or None if no budget was set or missed."""
    shares = budget_shares(meta)
    return f"{', '.join(f'{share} of {split}_tokens' for split, share in shares.items())}: the source ended" if shares else None
