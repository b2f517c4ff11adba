"""`trace`: which data sets, documents and texts a batch of a training run came from.

The loader is built again from its saved state and computes the batch that training saw. Where its tokens came from is the runtime's to
say; reading states is in loader_states.py, printing in origins.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from niels_cache_assets.cli.console import output, print_json
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.cli.loader_states import read_loader_state
from niels_cache_assets.cli.origins import Cache, print_row, print_token, row_json, row_of
from niels_cache_assets.cli.overrides import WHERE
from niels_cache_assets.registry import refuse_choice
from niels_cache_assets.wording import counted
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Split, tokens_name
from niels_cache_runtime.loader.loader import TokenLoader
from niels_cache_runtime.loader.trace import BatchTrace


def run(arguments: argparse.Namespace) -> int:
    if arguments.step < 0:
        raise NielsCacheError(f"{WHERE}: --step {arguments.step}: steps are counted from 0")
    if arguments.column is not None and arguments.row is None:
        raise NielsCacheError(f"{WHERE}: --column {arguments.column}: of which row? give --row too")
    state = read_loader_state(arguments.state)
    loader = _open_loader(arguments.state, state, dict(arguments.sources))
    trace = loader.trace(arguments.step, rank=arguments.rank)
    assert isinstance(trace, BatchTrace)  # no row was asked for
    if arguments.row is not None:
        trace.token(arguments.row, arguments.column or 0)  # refuses a row or column that is not there
    numbers = range(len(trace.tokens)) if arguments.row is None else [arguments.row]
    if arguments.json:
        _print_json(trace, numbers, arguments)
        return DONE
    _print(trace, numbers, arguments, taken=None if "worker" in state else loader.step)
    return DONE


def _open_loader(path: str, state: dict[str, Any], moved: Mapping[str, str]) -> TokenLoader:
    """Raises NielsCacheError for a cache that is not there any more or has changed, and for a state that no loader can take."""
    try:
        folders = {name: str(source["folder"]) for name, source in state["sources"].items()}
        for name in moved:
            if name not in folders:
                refuse_choice(f"{WHERE}: --source", "no data set", name, folders)
        for name, folder in {**folders, **moved}.items():
            if not _is_split(Path(folder)):
                seen_from = "" if Path(folder).is_absolute() else f" (seen from {Path.cwd()})"
                raise NielsCacheError(f"{name}: {folder} is not there{seen_from}; if it was moved: --source {name}=FOLDER")
        # A DataLoader's worker knows its own place in the run; steps are counted over all of them.
        return TokenLoader.from_state({key: value for key, value in state.items() if key != "worker"}, moved)
    except (KeyError, TypeError, AttributeError) as error:
        raise NielsCacheError(f"{path}: holds a loader's state that cannot be read ({error!r}); it is cut or was edited") from error


def _is_split(folder: Path) -> bool:
    return folder.is_dir() or (folder.parent / tokens_name(cast(Split, folder.name))).exists()


def _caches(trace: BatchTrace, numbers: Sequence[int]) -> dict[int, Cache]:
    """Of the data sets that these rows came from."""
    shown = trace.dataset_ids[list(numbers)]
    return {
        source: Cache(trace.names[source], trace.folders[source], trace.file_names[source], trace.documents[list(numbers)][shown == source])
        for source in np.unique(shown).tolist()
    }


def _print_json(trace: BatchTrace, numbers: Sequence[int], arguments: argparse.Namespace) -> None:
    caches = _caches(trace, numbers)
    rows = [row_json(row_of(trace, number), caches[int(trace.dataset_ids[number])], column=arguments.column) for number in numbers]
    notes = [note for cache in caches.values() for note in cache.notes]
    print_json({"step": trace.step, "rank": arguments.rank, "rows": rows, "notes": notes})


def _print(trace: BatchTrace, numbers: Sequence[int], arguments: argparse.Namespace, *, taken: int | None) -> None:
    rows, columns = trace.tokens.shape
    console = output()
    ahead = ""
    if taken is not None and trace.step >= taken:
        ahead = f"; not taken yet when this state was saved, after {counted(taken, 'step')}"
    console.print(
        f"step {trace.step:,}, rank {arguments.rank}: {counted(rows, 'row')}, columns 0 to {columns - 1:,}{ahead}",
        style="bold",
        soft_wrap=True,
    )
    caches = _caches(trace, numbers)
    for number in numbers:
        row, cache = row_of(trace, number), caches[int(trace.dataset_ids[number])]
        console.print()
        if arguments.column is None:
            print_row(console, row, cache, whole=arguments.row is not None)
        else:
            print_token(console, row, arguments.column, cache)
    notes = [note for cache in caches.values() for note in cache.notes]
    if notes:
        console.print()
    for note in notes:
        console.print(f"({note})", style="dim", soft_wrap=True)
