"""The steps of training runs that had read documents before they were erased, from the saved states of their loaders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from niels_cache_assets.base.beside import load_beside
from niels_cache_inspection.erasure.scanning import FoundDocument
from niels_cache_inspection.erasure.targets import Key
from niels_cache_inspection.erasure.texts import meta_of
from niels_cache_runtime.format.layout import Family, Split, dataset_dir, has_pairs
from niels_cache_runtime.loader.order import MAX_SAMPLES


class _WholeDocument(NamedTuple):
    """A document as a place (see `find/steps.py`)."""

    directory: Path
    split: Split
    document: int
    side: Literal["chosen"] | None
    start: int = 0
    end: int = MAX_SAMPLES


def steps_that_read(states: Sequence[str], found: Iterable[tuple[FoundDocument, Key]], keys: Sequence[Key], root: Path) -> dict[str, Any]:
    """Return the steps that had read documents, for the receipt.

    Args:
        states: The files of the states.
        found: Where documents are, each with the key of what it is a place of.
        keys: The keys of the documents, in the order of the receipt.
        root: The cache root.

    Raises:
        NielsCacheError: If a state or a cache of its run cannot be read.
    """
    numbers, places = [], []
    for each, key in found:
        if each.split is not None and each.number is not None:
            family: Family = "sft" if each.family == "sft" else "pretrain"
            directory = dataset_dir(root, family, each.name)
            places.append(_WholeDocument(directory, each.split, each.number, "chosen" if has_pairs(meta_of(directory)) else None))
            numbers.append(keys.index(key))
    steps = load_beside("inspection", "find.steps").steps_of_documents([Path(each) for each in states], places)
    read = [row for row in steps.rows if not row.is_next]
    return {
        "states": [{"file": str(each.path), "run": each.run, "steps": each.steps} for each in steps.states],
        "reads": [
            {
                "document": numbers[row.place],
                **{name: getattr(row, name) for name in ("run", "source", "epoch", "step", "rank", "row")},
                "checkpoints": [str(steps.states[state].path) for state in row.states],
            }
            for row in read
        ],
        "documents_not_read": len(keys) - len({numbers[row.place] for row in read}),
        "limit": steps.limit,
    }
