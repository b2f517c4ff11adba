"""Encoded preference pairs: which tokens of both sides are targets, and which pairs cannot be used.

chosen     prompt with its spans | answer with its spans
rejected   prompt with its spans | other answer with its spans        only the spans after the prompt are targets
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from niels_cache_assets.build_cache.conversations import example_name
from niels_cache_assets.chats.encoding import NO_TARGET, EncodedChat
from niels_cache_assets.documents import Conversation
from niels_cache_assets.sources.conversations import example_problem
from niels_cache_assets.sources.pairs import EQUAL_SIDES, PROMPTS_DIFFER, TOO_LONG
from niels_cache_runtime.errors import NielsCacheError


def problem_of_pair(pair: Conversation, roles: Collection[str]) -> str | None:
    """Return why the messages are no pair, or None. roles: those that messages may have.

    Raises NielsCacheError for a pair with a split of its own.
    """
    if pair.split is not None:
        raise NielsCacheError(
            f"{example_name(pair, pair.row)}: has the split {pair.split!r}, but pairs are split by their prompts; leave it None"
        )
    return PROMPTS_DIFFER if pair.rejected is None else example_problem(pair, roles)


def paired(chosen: EncodedChat, rejected: EncodedChat, *, most: int | None) -> tuple[EncodedChat, EncodedChat] | str:
    """Return both sides without the targets of the prompt, or the reason why the pair cannot be used.

    A target is of the prompt if both sides have it at the same place, and all tokens up to its end are equal.
    most: the most tokens that a side may have; None for any number.
    """
    if most is not None and max(len(chosen.ids), len(rejected.ids)) > most:
        return TOO_LONG
    if np.array_equal(chosen.ids, rejected.ids):
        return EQUAL_SIDES
    shorter = min(len(chosen.ids), len(rejected.ids))
    unequal = np.flatnonzero(chosen.ids[:shorter] != rejected.ids[:shorter])
    same_tokens = int(unequal[0]) if len(unequal) else shorter
    spans = min(len(chosen.spans), len(rejected.spans))
    is_common = (chosen.spans[:spans] == rejected.spans[:spans]).all(axis=1) & (chosen.spans[:spans, 1] <= same_tokens)
    common = spans if is_common.all() else int(np.argmin(is_common))
    if common in (len(chosen.spans), len(rejected.spans)):
        return NO_TARGET
    return chosen._replace(spans=chosen.spans[common:]), rejected._replace(spans=rejected.spans[common:])
