"""Division of files and of token budgets among parts. All functions are exact: they use integers only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


def contiguous_runs(sizes: Sequence[int], parts: int) -> list[range]:
    """Return for each part a range of files, balanced by size. The ranges follow each other and cover all files.

    sizes: the size of each file. Every range has at least one file, if there are as many files as parts. Each cut is at the start of the
    file that is nearest to the ideal cut. If all sizes are 0 (unknown), files count as equal.
    """
    weights = list(sizes) if any(sizes) else [1] * len(sizes)
    before = [0, *accumulate(weights)]
    total, count = before[-1], len(weights)
    cuts = [0]
    for number in range(1, parts):
        ideal = total * number  # in units of 1/parts, like before[...] * parts
        cut = bisect_left(before, ideal, key=lambda size: size * parts)
        if cut > 0 and ideal - before[cut - 1] * parts <= before[min(cut, count)] * parts - ideal:
            cut -= 1
        spare = count >= parts
        least, most = (cuts[-1] + 1, count - (parts - number)) if spare else (cuts[-1], count)
        cuts.append(min(max(cut, least), most))
    return [range(first, stop) for first, stop in zip(cuts, [*cuts[1:], count], strict=True)]


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """Return `total` divided in proportion to the weights, by the method of the largest remainder. The shares sum to `total` exactly.

    Of equal remainders, the first counts as larger. If all weights are 0, they count as equal.
    """
    weights = list(weights) if any(weights) else [1] * len(weights)
    whole = sum(weights)
    found = [total * weight // whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda index: -(total * weights[index] % whole))
    for index in order[: total - sum(found)]:
        found[index] += 1
    return found
