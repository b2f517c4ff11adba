"""The loader of a saved state, which computes what training has read and reads next."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from niels_cache_assets.base.choices import raise_unknown_choice
from niels_cache_inspection.loader_states import batches_of_workers
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Split, tokens_name
from niels_cache_runtime.loader import phases
from niels_cache_runtime.loader.loader import TokenLoader
from niels_cache_runtime.loader.phases import Phase, PhasedLoader
from niels_cache_runtime.loader.state import arguments_of_state
from niels_cache_runtime.remote.split_location import Copy
from niels_cache_runtime.remote.store import is_address


def steps_taken(state: Mapping[str, Any], loader: TokenLoader | PhasedLoader) -> int:
    """Return the number of steps of the run at a state, from `read_loader_state`, given its loader, from `open_loader`."""
    return loader.step + batches_of_workers(state)


def first_phase(path: str | Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of the first phase, or the state itself if it has no phases, with the names and folders of all sources.

    Args:
        path: The file of the state, for messages.
        state: The state, from `read_loader_state`.

    Raises:
        NielsCacheError: If it has none.
    """
    with _checked(path):
        begun: dict[str, Any] = state["phases"][0] if state["format"] == phases.FORMAT else {**state}
        if missing := [name for name in begun["names"] if not isinstance(begun["sources"][name]["folder"], str)]:
            raise TypeError(f"no folder of {missing[0]}")
        return begun


@contextmanager
def _checked(path: str | Path) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, AttributeError) as error:
        raise NielsCacheError(
            f"{path}: the loader state in it is invalid ({error!r}): it is incomplete or was edited; give an unchanged one"
        ) from error


def open_loader(path: str | Path, state: dict[str, Any], moved: Mapping[str, str], *, copy: str, grown: bool = False) -> Any:
    """Return the loader of a state: a TokenLoader, or a PhasedLoader with the phases that have begun.

    Args:
        path: The file of the state, for messages.
        state: The state.
        moved: The folders of splits that are not where the state says, by the name of the source.
        copy: The folder of the local copy if the state names an address.
        grown: Whether caches may have grown since then.

    Raises:
        NielsCacheError: If a cache is missing or has changed, or if the state is invalid.
    """
    with _checked(path):
        begun = state["phases"] if state["format"] == phases.FORMAT else [state]
        folders = {name: str(source["folder"]) for name, source in begun[0]["sources"].items()}
        for name in moved:
            if name not in folders:
                raise_unknown_choice("--source", "no data set", name, folders)
        named = {**folders, **moved}
        for name, folder in named.items():
            if not is_address(folder) and not _is_split(Path(folder)):
                seen_from = "" if Path(folder).is_absolute() else f" (seen from {Path.cwd()})"
                raise NielsCacheError(f"{name}: {folder} does not exist{seen_from}; if you moved it, add --source {name}=FOLDER")
        if begun[0] is not state:
            return _open_phases(state, moved)
        changes: dict[str, Any] = {"remote": Copy(dir=copy, limit=sys.maxsize)} if any(map(is_address, named.values())) else {}
        # The state of a DataLoader worker has its own position; steps are counted over all workers.
        state = {key: value for key, value in state.items() if key != "worker"}
        return TokenLoader.from_state(state, moved, grown=grown, **changes)


def _open_phases(state: dict[str, Any], moved: Mapping[str, str]) -> PhasedLoader:
    found: list[Phase] = []
    for each in state["phases"]:
        own, of_lots = dict(each["settings"]), ("lot_tokens", "phase")
        lot_tokens, phase = (own.pop(name) for name in of_lots)
        folders, settings = arguments_of_state(each | {"settings": own}, moved, {})
        of_phase = {"weights": phase["weights"], "tokens": phase["tokens"], "packing": settings.get("packing")}
        found.append(Phase(T=settings["T"], B=settings["B"], **of_phase))
        common = {name: value for name, value in settings.items() if name not in phases.REFUSED}
        common |= {"lot_tokens": lot_tokens, "lanes": settings["order"].lanes}
    loader = PhasedLoader(folders, phases=found, **common)
    loader.load_state_dict(state)
    return loader


def _is_split(folder: Path) -> bool:
    return folder.is_dir() or (folder.parent / tokens_name(cast(Split, folder.name))).exists()
