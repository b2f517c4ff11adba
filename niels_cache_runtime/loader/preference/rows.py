"""Rows of preference pairs: the chosen sides of some pairs in one row, and their rejected sides in another row.

    pairs       1: chosen A A A, rejected a a      2: chosen B B, rejected b b b b
    chosen      | A A A | B B | EOT EOT EOT |
    rejected    | a a | b b b b | EOT EOT EOT |    the same pairs, in the same order
    documents     0     1         2                 document k of both rows is the same pair

A pair takes as much room as its longer side, so the row of each side has room for it. `packing` has the method. One plan serves both sides.
`batch` makes tensors of both rows.
"""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SIDES, Ints, Side
from niels_cache_runtime.loader.packing.rows import KeptExamples, PackedExamples
from niels_cache_runtime.loader.source import SampleSource


class PackedPairs(PackedExamples):
    """A `source.SampleSource` of rows of T+1 tokens of preference pairs.

    Its own rows hold the chosen sides, and those of `rejected` the others.

    The arguments have the same meaning as for PackedExamples, for each side of a pair. A pair stays whole: if one of its sides is left out,
    the other one is too. `examples` and documents count pairs. `tokens` counts the tokens of both sides.

    Raises:
        NielsCacheError: For the reasons that PackedExamples lists, and for a data set without pairs.
    """

    sides = len(SIDES)
    rejected: PackedExamples

    def __init__(self, folder: str, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self.rejected = _RejectedSides(self)
        self.tokens += self.rejected.tokens

    def _with_settings(self, content: str) -> str:
        return hashlib.sha256(f"{super()._with_settings(content)} pairs {self._pack}".encode()).hexdigest()

    def _keep_sides(self, starts: Ints) -> list[KeptExamples]:
        """Return the chosen and the rejected sides of those pairs of which both sides are kept."""
        (sides,) = super()._keep_sides(starts)
        pairs = len(starts) // len(SIDES)
        is_whole = np.bincount(sides.ordinals // len(SIDES), minlength=pairs) == len(SIDES)
        lengths = np.diff(starts, append=len(self._tokens))
        is_long = (lengths > self.T + 1).reshape(-1, len(SIDES))
        too_long = int(is_long.any(axis=1).sum()) if self.overflow == "drop" else 0
        counts = {"too_long": too_long, "without_target": pairs - int(is_whole.sum()) - too_long}
        whole = np.flatnonzero(is_whole[sides.ordinals // len(SIDES)])
        cut = lengths[sides.ordinals[whole]] - sides.lengths[whole]
        counted: dict[str, Any] = {
            "truncated": int(np.count_nonzero(cut)),
            "truncated_tokens": int(cut.sum()),
            "dropped": {reason: count for reason, count in counts.items() if count},
        }
        arrays: dict[str, Any] = {name: value[whole] for name, value in vars(sides).items() if isinstance(value, np.ndarray)}
        by_side = ({name: value[side :: len(SIDES)] for name, value in arrays.items()} for side in range(len(SIDES)))
        return [replace(sides, **own, **counted) for own in by_side]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.rejected = _RejectedSides(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "rejected"}


class _RejectedSides(PackedExamples):
    """The rejected sides of pairs. It reads the files that the chosen sides have open, by the same plan."""

    sides = len(SIDES)

    def __init__(self, chosen: PackedPairs) -> None:
        self.__dict__.update(chosen.__dict__)
        self._chosen, self._kept = chosen, chosen._kept_sides[1]
        self.tokens = self._inputs()

    def _plan(self, epoch: int) -> Ints:
        return self._chosen._plan(epoch)


def side_of(source: SampleSource, side: Side | None) -> SampleSource:
    """Return the source whose rows are one side of the pairs of `source`. Without pairs, return `source`.

    Args:
        source: A source, with or without pairs.
        side: "chosen" or "rejected"; None means the chosen side. It must be None without pairs.

    Raises:
        NielsCacheError: For a side that does not exist.
    """
    if not isinstance(source, PackedPairs):
        if side is not None:
            raise NielsCacheError(f"side={side!r}: {source.folder} holds no preference pairs; leave side out")
        return source
    if side not in (None, *SIDES):
        raise NielsCacheError(f"side={side!r}: must be {' or '.join(map(repr, SIDES))}")
    return source.rejected if side == SIDES[1] else source
