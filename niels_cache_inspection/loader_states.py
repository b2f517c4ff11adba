"""The state of a loader, read from a JSON file or torch checkpoint of a training run, in which it may be nested at any level.

A checkpoint is not trusted. So torch reads the checkpoint with `weights_only`, and runs no code from the file. Tensors are mapped, but not
read. `read_loader_state` looks only at the `format` of a state. The loader, which `open_loader` makes, interprets the rest of the state.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from niels_cache_assets.base.choices import raise_unknown_choice
from niels_cache_assets.base.wording import format_list
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Split, tokens_name
from niels_cache_runtime.loader import phases
from niels_cache_runtime.loader.loader import TokenLoader
from niels_cache_runtime.loader.phases import Phase, PhasedLoader
from niels_cache_runtime.loader.state import FORMAT, arguments_of_state
from niels_cache_runtime.remote.split_location import Copy
from niels_cache_runtime.remote.store import is_address

_ADVICE = "save one in training: json.dump(loader.state_dict(), file)"
_POSITION = frozenset({"samples", "step", "pass_start", "worker"})  # keys that differ between the workers of one loader


def read_loader_state(path: str | Path) -> dict[str, Any]:
    """Return the loader state in a file, or the furthest one if the file has the states of several DataLoader workers of one loader.

    Raises:
        NielsCacheError: If the file is missing, has an unknown format, has no state, or has states of different loaders.
    """
    content = _read(Path(path))
    states = dict(_find_states(content))
    if not states:
        keys = f" with {format_list([str(key)[:40] for key in content])}" if isinstance(content, Mapping) and content else ""
        raise NielsCacheError(f"{path}: contains a {type(content).__name__}{keys}, but no state of a TokenLoader; {_ADVICE}")
    loaders = [{key: value for key, value in state.items() if key not in _POSITION} for state in states.values()]
    if any(loader != loaders[0] for loader in loaders):
        raise NielsCacheError(
            f"{path}: contains the states of different loaders ({format_list([*states])}); save the one to trace in a separate file"
        )
    return max(states.values(), key=lambda state: (state["samples"] if isinstance(state.get("samples"), int) else -1, _batches(state)))


def _batches(state: Mapping[str, Any]) -> int:
    """Return how many batches all workers have made since the step of the state of a DataLoader worker, in turn. Otherwise, return 0."""
    worker = state.get("worker")
    if not isinstance(worker, Sequence) or [*map(type, worker)] != [int] * 3 or not worker[2]:
        return 0
    return int(worker[0] + (worker[2] - 1) * worker[1] + 1)


def steps_taken(state: Mapping[str, Any], loader: TokenLoader | PhasedLoader) -> int:
    """Return the number of steps of the run at a state, from `read_loader_state`, given its loader, from `open_loader`."""
    return loader.step + _batches(state)


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
    try:
        begun = state["phases"] if state["format"] == phases.FORMAT else [state]
        folders = {name: str(source["folder"]) for name, source in begun[0]["sources"].items()}
        for name in moved:
            if name not in folders:
                raise_unknown_choice("command line: --source", "no data set", name, folders)
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
    except (LookupError, TypeError, AttributeError) as error:
        raise NielsCacheError(
            f"{path}: the loader state in it is invalid ({error!r}): it is incomplete or was edited; give an unchanged one"
        ) from error


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


def _read(path: Path) -> Any:
    try:
        with open(path, "rb") as file:
            start = file.read(64)
    except OSError as error:
        advice = "--state must name the file with loader.state_dict()"
        wrong_name = isinstance(error, FileNotFoundError | IsADirectoryError)
        raise NielsCacheError(f"{path}: cannot be read: {error.strerror}{f'; {advice}' if wrong_name else ''}") from error
    if start.startswith(b"PK"):
        return _read_checkpoint(path)
    if start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        try:
            return json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise NielsCacheError(f"{path}: not valid JSON (cut short?): {error}") from error
    raise NielsCacheError(f"{path}: {'neither JSON nor a torch checkpoint' if start else 'an empty file'}; {_ADVICE}")


def _read_checkpoint(path: Path) -> Any:
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged file may raise anything
        foreign_class = re.search(r"GLOBAL (\w+(?:\.\w+)+)", str(error))
        if foreign_class:
            reason = f"contains objects ({foreign_class[1]}) that cannot be read without running code of the file"
        else:
            reason = "not a readable torch checkpoint (cut short?)"
        raise NielsCacheError(f"{path}: {reason}; {_ADVICE}") from error


def _find_states(content: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where each state is in the file, such as `trainer.loader`, and the state.

    An object that contains itself is visited once.
    """
    waiting: list[tuple[str, Any]] = [("", content)]
    seen: set[int] = set()
    while waiting:
        where, value = waiting.pop()
        if not isinstance(value, (Mapping, list, tuple)) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict) and value.get("format") in (FORMAT, phases.FORMAT):
            yield where or "the file itself", value
            continue
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        waiting += [(f"{where}.{key}" if where else str(key), item) for key, item in items]
