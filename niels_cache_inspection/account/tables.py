"""The columns of the account, and tables of them by value."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from niels_cache_runtime.format.layout import Ints

# Each token belongs to one of POSITIONS, and each is a target or is masked. So the sums of both groups are equal.
POSITIONS = ("unique", "repeats", "special", "fim", "bos", "padding")
COLUMNS = ("documents", *POSITIONS, "targets", "masked")
MEANINGS = {
    "documents": "documents or examples; as read: those of which at least one token was read",
    "unique": "tokens of text, each counted once",
    "repeats": "tokens of text again: as planned, of documents whose text occurred before in the split; as read, in another pass over them",
    "special": "tokens that the cache adds to documents: EOT, a BOS of every document, and the sentinels of roles in conversations",
    "fim": "tokens that the loader adds to fill in the middle",
    "bos": "BOS that the loader adds to pieces of documents",
    "padding": "padding of rows",
    "targets": "tokens that count in the loss; as planned: all tokens of pretrain, and the targets of conversations",
    "masked": "tokens that do not count in the loss, such as padding and the context in conversations",
}
NO_DOCUMENT = "(no document)"  # of padding, and of BOS that the loader adds
INDEX = {name: number for number, name in enumerate(COLUMNS)}
_POSITIONS = slice(INDEX[POSITIONS[0]], INDEX[POSITIONS[-1]] + 1)
_TARGETS = slice(INDEX["targets"], INDEX["masked"] + 1)


def no_figures(rows: int = 1) -> Ints:
    """Return zeros, (rows, columns)."""
    return np.zeros((rows, len(COLUMNS)), dtype=np.int64)


def positions_of(figures: Ints) -> Any:
    """Return the tokens of figures (..., columns) by their kind, in total."""
    return figures[..., _POSITIONS].sum(axis=-1)


def targets_of(figures: Ints) -> Any:
    """Return the tokens of figures (..., columns) that are targets or masked, in total."""
    return figures[..., _TARGETS].sum(axis=-1)


class Table:
    """Figures by value. It takes about 200 bytes for each value."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._figures = no_figures(64)

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, values: Sequence[str], figures: Ints) -> None:
        """Add figures (n, columns) to those of n values."""
        known = self._numbers
        for value in {*values} - known.keys():
            known[value] = len(known)
        numbers = np.fromiter(map(known.__getitem__, values), dtype=np.int64, count=len(values))
        while len(known) > len(self._figures):
            self._figures = np.concatenate([self._figures, np.zeros_like(self._figures)])
        for column in range(figures.shape[1]):
            np.add.at(self._figures[:, column], numbers, figures[:, column])

    def add_all(self, value: str, figures: Ints) -> None:
        """Add figures (columns,) to those of one value, unless they are 0."""
        if figures.any():
            self.add([value], figures[None])

    @property
    def total(self) -> Ints:
        """The sum of all figures, (columns,)."""
        return self._figures.sum(axis=0)

    def rows(self) -> Iterable[tuple[str, dict[str, int]]]:
        """Return values with their figures, the largest first."""
        sizes = positions_of(self._figures)
        ordered = sorted(self._numbers.items(), key=lambda item: (-int(sizes[item[1]]), item[0]))
        return ((value, as_dict(self._figures[number])) for value, number in ordered)


def as_dict(figures: Ints) -> dict[str, int]:
    """Return figures (columns,) by column, with `tokens`, the sum of all kinds."""
    found = dict(zip(COLUMNS, figures.tolist(), strict=True))
    return {"documents": found.pop("documents"), "tokens": int(positions_of(figures)), **found}
