"""The part of each SFT example that fits into a row of T+1 tokens, and the targets in that part.

    usr .. EOT asst A EOT usr .. EOT asst B C EOT        an example of 14 tokens
    `------- T+1 = 10 -------'                           truncate_right: its first tokens
                 `------- T+1 = 10 -------'              truncate_left: its last tokens; assistant spans are found before the cut

No token is read. The result takes 32 bytes per example. `plan` puts the examples into rows, and `rows` reads their tokens.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from niels_cache_runtime.cache.targets import TargetSpans
from niels_cache_runtime.format.layout import Ints

LossOn = Literal["assistant", "last_assistant", "all"]
Overflow = Literal["truncate_right", "truncate_left", "drop"]


@dataclass(frozen=True, kw_only=True)
class KeptExamples:
    """The examples that are kept.

    Attributes:
        ordinals: (n,) int64, the number of each example in the split.
        example_starts: (n,) int64, where the whole example begins, in tokens of the split.
        starts: (n,) int64, where the kept part of the example begins, in tokens of the split.
        lengths: (n,) int64, how many tokens the kept part has.
        truncated: How many of the kept examples were cut.
        truncated_tokens: How many tokens were cut off in total.
        dropped: How many examples are not kept, for each reason.
    """

    ordinals: Ints
    example_starts: Ints
    starts: Ints
    lengths: Ints
    truncated: int
    truncated_tokens: int
    dropped: dict[str, int]


def keep_examples(starts: Ints, *, token_count: int, T: int, overflow: Overflow, targets: TargetSpans | None) -> KeptExamples:
    """Cut examples of more than T+1 tokens, and leave out those without a target in the kept part.

    Args:
        starts: (examples,) int64, where each example begins.
        token_count: The number of tokens of the split.
        T: Tokens per row.
        overflow: The treatment of longer examples; see SFT.
        targets: The targets of the split. None means every token.
    """
    ends = np.append(starts[1:], token_count)
    whole = ends - starts
    cut, lengths = whole > T + 1, np.minimum(whole, T + 1)
    kept_starts = ends - lengths if overflow == "truncate_left" else starts
    has_target = lengths > 1 if targets is None else targets.have_targets(kept_starts, lengths)
    too_long = cut if overflow == "drop" else np.zeros_like(cut)
    kept = np.flatnonzero(has_target & ~too_long)
    counts = {"too_long": np.count_nonzero(too_long), "without_target": np.count_nonzero(~has_target & ~too_long)}
    return KeptExamples(
        ordinals=kept,
        example_starts=starts[kept],
        starts=kept_starts[kept],
        lengths=lengths[kept],
        truncated=int(np.count_nonzero(cut[kept])),
        truncated_tokens=int((whole - lengths)[kept].sum()),
        dropped={reason: int(count) for reason, count in counts.items() if count},
    )
