"""Token budgets of a pretrain cache, and the sentence about one whose source ended before they were met.

meta.json records the budgets of a build in `split_rule` alone, those of one run included, so older caches have the sentence too. No file is
read. A budget that was met is held exactly (streaming/splits.py).
"""

from __future__ import annotations

import re

from niels_cache_assets.show.contents import counts_of
from niels_cache_assets.show.wording import share_of
from niels_cache_assets.streaming.splits import UNLIMITED
from niels_cache_runtime.format.layout import SPLITS, Split
from niels_cache_runtime.format.meta import Meta

_RULE = re.compile(r"val until (\d+) tokens, then train until (?:(\d+)(?: tokens)?|the source ends)")  # the builders leave out "tokens"
_MOST = 0.999  # what is short of a budget is never shown as all of it


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
