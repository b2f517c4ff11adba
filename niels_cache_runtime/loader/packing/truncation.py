"""The part of each SFT example that fits into a row of T+1 tokens, and the targets in that part.

    usr .. EOT asst A EOT usr .. EOT asst B C EOT        an example of 14 tokens
    `------- T+1 = 10 -------'                           truncate_right: its first tokens
                 `------- T+1 = 10 -------'              truncate_left: its last tokens; assistant spans are found before the cut

The split's tokens are read once, in blocks of whole examples. Afterwards the result takes about 40 bytes per example. `plan` puts the
examples into rows, and `rows` reads their tokens.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from niels_cache_runtime.cache.sft import example_target_mask
from niels_cache_runtime.cache.targets import TargetSpans
from niels_cache_runtime.format.layout import Bools, Ints, Tokens

LossOn = Literal["assistant", "last_assistant", "all"]
Overflow = Literal["truncate_right", "truncate_left", "drop"]

_SCAN_TOKENS = 1 << 22


@dataclass(frozen=True, kw_only=True)
class KeptExamples:
    """The examples that are kept.

    Attributes:
        ordinals: (n,) int64, the number of each example in the split.
        example_starts: (n,) int64, where the whole example begins, in tokens of the split.
        starts: (n,) int64, where the kept part of the example begins, in tokens of the split.
        lengths: (n,) int64, how many tokens the kept part has.
        resumed: (n,) bool, whether the kept part begins inside an assistant span. For targets by sentinels only.
        skipped: (n,) int64, the tokens of the kept part before the first possible target. For targets by sentinels only.
        truncated: How many of the kept examples were cut.
        truncated_tokens: How many tokens were cut off in total.
        dropped: How many examples are not kept, for each reason.
    """

    ordinals: Ints
    example_starts: Ints
    starts: Ints
    lengths: Ints
    resumed: Bools
    skipped: Ints
    truncated: int
    truncated_tokens: int
    dropped: dict[str, int]


def keep_examples(
    tokens: Tokens,
    starts: Ints,
    *,
    T: int,
    loss_on: LossOn,
    overflow: Overflow,
    eot_id: int,
    asst_id: int | None,
    spans: TargetSpans | None = None,
) -> KeptExamples:
    """Cut examples of more than T+1 tokens, and leave out those without a target in the kept part.

    Args:
        tokens: All tokens of the split, example after example.
        starts: (examples,) int64, where each example begins.
        T: Tokens per row.
        loss_on: The tokens to learn; see SFT.
        overflow: The treatment of longer examples; see SFT.
        eot_id: The id of EOT, the end-of-text token.
        asst_id: The id of the assistant sentinel. It may be None only if `loss_on` is "all", or with `spans`.
        spans: The targets of a split that was built with a chat template.
    """
    ends = np.append(starts[1:], len(tokens))
    whole = ends - starts
    cut = whole > T + 1
    kept_starts, kept_ends = starts, np.minimum(ends, starts + T + 1)
    if overflow == "truncate_left":
        kept_starts, kept_ends = np.maximum(starts, ends - (T + 1)), ends
    if spans is not None and loss_on != "all":
        has_target = spans.have_targets(kept_starts, kept_ends - kept_starts)
        resumed, last_spans = np.zeros(len(starts), dtype=np.bool_), kept_starts
    elif loss_on == "all" or asst_id is None:
        has_target, resumed, last_spans = kept_ends - kept_starts > 1, np.zeros(len(starts), dtype=np.bool_), kept_starts
    else:
        has_target, resumed, last_spans = _find_targets(tokens, starts, ends, kept_starts, kept_ends, eot_id=eot_id, asst_id=asst_id)
    too_long = cut if overflow == "drop" else np.zeros_like(cut)
    kept = np.flatnonzero(has_target & ~too_long)
    counts = {"too_long": np.count_nonzero(too_long), "without_target": np.count_nonzero(~has_target & ~too_long)}
    lengths = (kept_ends - kept_starts)[kept]
    learn_from = last_spans if loss_on == "last_assistant" else kept_starts
    return KeptExamples(
        ordinals=kept,
        example_starts=starts[kept],
        starts=kept_starts[kept],
        lengths=lengths,
        resumed=resumed[kept],
        skipped=np.maximum(learn_from - kept_starts, 0)[kept],
        truncated=int(np.count_nonzero(cut[kept])),
        truncated_tokens=int((whole[kept] - lengths).sum()),
        dropped={reason: int(count) for reason, count in counts.items() if count},
    )


def _find_targets(
    tokens: Tokens, starts: Ints, ends: Ints, kept_starts: Ints, kept_ends: Ints, *, eot_id: int, asst_id: int
) -> tuple[Bools, Bools, Ints]:
    """Find the targets in the kept part of each example.

    Returns:
        Three arrays (K,), one value for each example. The first says whether the kept part has a target, the second whether the kept part
        begins inside an assistant span. The third is for the last span that has a target in the kept part: it gives the place of the
        `asst_id` token that opens this span, in tokens of the split.
    """
    has_target, resumed = np.zeros(len(starts), dtype=np.bool_), np.zeros(len(starts), dtype=np.bool_)
    last_spans = kept_starts.copy()
    first = 0
    while first < len(starts):
        begin = int(starts[first])
        last = max(first + 1, int(ends.searchsorted(begin + _SCAN_TOKENS, side="right")))  # a block holds whole examples, at least one
        chosen = slice(first, last)
        block = tokens[begin : ends[last - 1]]
        mask = example_target_mask(block, starts[chosen] - begin, asst_id, eot_id)
        resumed[chosen] = mask[kept_starts[chosen] - begin]
        targets = begin + np.flatnonzero(mask)
        last_targets = np.append(targets, -1)[targets.searchsorted(kept_ends[chosen]) - 1]
        has_target[chosen] = last_targets > kept_starts[chosen]  # the first token of the kept part is only an input
        sentinels = begin + np.flatnonzero(block == asst_id)
        last_spans[chosen] = np.append(sentinels, -1)[sentinels.searchsorted(last_targets) - 1]
        first = last
    return has_target, resumed, last_spans
