"""The state of a loader, read from a JSON file or torch checkpoint of a training run, in which it may be nested at any level.

A checkpoint is not trusted. So torch reads the checkpoint with `weights_only`, and runs no code from the file. Tensors are mapped, but not
read. This module looks only at the `format` of a state. loaders.py makes the loader, which interprets the rest of the state.
"""

import errno
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from niels_cache_assets.base.wording import format_list
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.loader.phases import FORMAT as OF_PHASES
from niels_cache_runtime.loader.state import FORMAT

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
    return max(
        states.values(), key=lambda state: (state["samples"] if isinstance(state.get("samples"), int) else -1, batches_of_workers(state))
    )


def batches_of_workers(state: Mapping[str, Any]) -> int:
    """Return how many batches all workers have made, in turn, since the step of a DataLoader worker's state. Otherwise, return 0."""
    worker = state.get("worker")
    if not isinstance(worker, Sequence) or [*map(type, worker)] != [int] * 3 or not worker[2]:
        return 0
    return int(worker[0] + (worker[2] - 1) * worker[1] + 1)


def _read(path: Path) -> Any:
    try:
        if "\0" in str(path) or (path.exists() and not path.is_file() and not path.is_dir()):
            raise FileNotFoundError(errno.ENOENT, "not a regular file")  # reading a pipe or a terminal may never end
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
        if isinstance(value, dict) and value.get("format") in (FORMAT, OF_PHASES):
            yield where or "the file itself", value
            continue
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        waiting += [(f"{where}.{key}" if where else str(key), item) for key, item in items]
