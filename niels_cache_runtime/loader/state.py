"""The state of a loader in a checkpoint: a position, the settings it depends on, fingerprints of the caches.

A state is small and JSON-able. If a check fails, the error names the difference between the state and the loader. `batch` makes the
batches.
"""

import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from niels_cache_runtime.cache.checks import as_int
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, earlier_metas
from niels_cache_runtime.loader.blocks import BLOCK_ORDER_VERSION
from niels_cache_runtime.loader.growth import Epochs
from niels_cache_runtime.loader.order import ORDER_VERSION
from niels_cache_runtime.loader.packing.document_plan import DOCUMENT_PLAN_VERSION
from niels_cache_runtime.loader.run_order import RunOrder
from niels_cache_runtime.loader.settings import Averages, LoaderSettings, check_shares, name_sources, row_weights, saved_arguments
from niels_cache_runtime.loader.source import NamedSources
from niels_cache_runtime.loader.steps import BatchSizes, Position, position_from_state, position_to_state

FORMAT = "niels_cache_runtime.TokenLoader"
VERSION = 1
State = dict[str, Any]
Weights = list[tuple[int, dict[str, float]]]


_FORMS: dict[str, Any] = {"settings": {str: object}, "weights": [(int, {str: float})], "sources": {str: Mapping}, "names": [str]}


def _has_form(value: Any, form: Any) -> bool:
    """Return whether a value that `check_values` accepted has a form: a type, {str: form}, [form] or (form, form)."""
    if isinstance(form, dict):
        return isinstance(value, Mapping) and all(isinstance(name, str) and _has_form(item, form[str]) for name, item in value.items())
    if isinstance(form, list | tuple):
        if not isinstance(value, list | tuple):
            return False
        forms = form * len(value) if isinstance(form, list) else form
        return len(value) == len(forms) and all(map(_has_form, value, forms))
    if form is int:
        return as_int(value) is not None
    return type(value) in (int, float) if form is float else isinstance(value, form)


def _is_source(source: Mapping[str, Any]) -> bool:
    recorded = (source.get("folder"), source.get("fingerprint"), source.get("samples"))
    phases = source.get("phases", [(0, 1)])
    documents = source.get("documents", [1] * len(phases))
    average = source.get("average", (1, 1))
    is_valid = _has_form(recorded, (str, str, int)) and _has_form([phases, [average]], [[(int, int)]]) and Epochs.is_valid(phases)
    return is_valid and _has_form(documents, [int]) and len(documents) == len(phases) and min(*average, *documents) > 0


def make_state(position: Position, *, settings: State, weights: Weights, sources: Mapping[str, State]) -> State:
    """Return a state.

    A state with order="blocks" also has the version of that order, and one with packed documents that of their plan. The key `names` of the
    state keeps the order of the sources, because JSON may be saved with sorted keys. The order matters: if several sources are equally due,
    a blend takes the first of them.

    Args:
        position: The position of the run.
        settings: The settings that decide the samples, by name.
        weights: The schedule of weights as the user gave it.
        sources: Name -> {folder, fingerprint, samples}, in the loader's order. A source that has grown also has `phases` (see Epochs).
            One of packed documents has the number of `documents` in each phase, and the (tokens, rows) that its weight is converted with,
            which are those of the split when the run began: with others, the past of a blend would change when a cache grows.
    """
    in_blocks, packs = settings.get("order") == "blocks", "document_packing" in settings
    return {
        "format": FORMAT,
        "version": VERSION,
        "order_version": ORDER_VERSION,
        **({"block_order_version": BLOCK_ORDER_VERSION} if in_blocks else {}),
        **({"document_plan_version": DOCUMENT_PLAN_VERSION} if packs else {}),
        **position_to_state(position),
        "settings": settings,
        "weights": [[first, dict(shares)] for first, shares in weights],
        "sources": dict(sources),
        "names": list(sources),
    }


def check_values(state: Any) -> None:
    """Raise NielsCacheError for a value that JSON does not have, such as an array, because such a value could not be compared.

    The message names the key. A value that acts as one whole number of 64 bits, such as a tensor of one element, is accepted.
    """
    pending: list[tuple[str, Any]] = [("state", state)]
    while pending:
        key, value = pending.pop()
        if isinstance(value, Mapping):
            pending += [(f"{key}[{name!r:.40}]", inner) for name, inner in value.items()]
        elif isinstance(value, list | tuple):
            pending += [(f"{key}[{number}]", inner) for number, inner in enumerate(value)]
        elif not (value is None or isinstance(value, str | bool | float)):
            number = as_int(value)
            if number is None or number.bit_length() > 64:
                what = "a whole number of more than 64 bits" if number is not None else f"a {type(value).__name__}"
                raise NielsCacheError(f"{key}: is {what}, which no saved state holds; it was cut or edited")


def check_form(state: Any) -> None:
    """Raise NielsCacheError unless `state` is a loader's state of this version."""
    check_values(state)
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        found = f"a dict with {', '.join(map(str, sorted(state, key=str)))[:80]}" if isinstance(state, Mapping) else type(state).__name__
        raise NielsCacheError(f"state: not the state of a TokenLoader (found {found}); give the result of loader.state_dict()")
    is_known = state.get("version") == VERSION
    if is_known:
        missing = [key for key in (*_FORMS, "batches") if not state.get(key)]
        if missing:
            raise NielsCacheError(f"state: cannot be read, it has no {', '.join(missing)}; it was cut or edited")
        wrong = [key for key, form in _FORMS.items() if not _has_form(state[key], form)]
        if not wrong and not all(map(_is_source, state["sources"].values())):
            wrong = ["sources"]
        if not wrong and sorted(state["names"]) != sorted(state["sources"]):
            wrong = ["names"]
        worker = state.get("worker", (0, 1, 0))
        if not wrong and not (_has_form(worker, (int, int, int)) and 0 <= worker[0] < worker[1] and worker[2] >= 0):
            wrong = ["worker"]
        if wrong:
            raise NielsCacheError(f"state: cannot be read, its {wrong[0]} are {state[wrong[0]]!r:.80}; it was edited")
        in_blocks = state["settings"].get("order", "split") == "blocks"
        is_known = not in_blocks or state.get("block_order_version") == BLOCK_ORDER_VERSION
        if "document_packing" in state["settings"] and state.get("document_plan_version") != DOCUMENT_PLAN_VERSION:
            raise NielsCacheError(
                f"state: its documents were packed by version {state.get('document_plan_version')}, and this niels_cache_runtime packs by "
                f"version {DOCUMENT_PLAN_VERSION}: resume with the release that saved it"
            )
    if not is_known or state.get("order_version") != ORDER_VERSION:
        of_blocks = f", block order {state['block_order_version']}" if "block_order_version" in state else ""
        raise NielsCacheError(
            f"state: version {state.get('version')}, order {state.get('order_version')}{of_blocks}; this niels_cache_runtime reads version "
            f"{VERSION}, order {ORDER_VERSION}, block order {BLOCK_ORDER_VERSION}: "
            f"resume with the release that saved it"
        )


def arguments_of_state(
    state: State, sources: str | Mapping[str, str] | None, changes: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the folders and the keyword arguments of a loader with the settings of a state; see `TokenLoader.from_state`."""
    check_form(state)
    sizes = read_position(state).sizes
    folders: dict[str, str] = {name: state["sources"][name]["folder"] for name in state["names"]}
    if isinstance(sources, str | os.PathLike):
        folders |= {
            name: str(sources) for name in (folders if len(folders) == 1 else name_sources(sources, changes.get("split", SPLITS[0])))
        }
    elif sources:
        folders |= sources
    settings = {"B": sizes.B, "world_size": sizes.world_size, "weights": state["weights"]}
    settings |= saved_arguments(state["settings"], machines=None if "world_size" in changes else sizes.machines)
    if changes.get("epochs", 1) is None:
        settings.pop("on_exhausted", None)
    return folders, {**settings, **changes}


def check_in_worker(device: torch.device, *, is_again: bool) -> None:
    """Raise NielsCacheError if a worker of a DataLoader cannot make batches.

    Args:
        device: The device of batches.
        is_again: Whether a loader that has no next pass is iterated for the second time in the same worker.
    """
    if device.type != "cpu":
        raise NielsCacheError(f"device='{device}': workers of a DataLoader make batches on the CPU; use device='cpu' with workers")
    if is_again:
        raise NielsCacheError(
            "a loader without a next pass was iterated again under persistent workers, so they would read the same batches again; "
            "keep one iterator of the DataLoader, or give an endless TokenLoader epochs=n"
        )


def read_position(state: State) -> Position:
    """Return the position of a state that `check_form` accepted.

    Raises:
        NielsCacheError: If a number is missing or invalid.
    """
    try:
        return position_from_state(state)
    except (KeyError, TypeError, ValueError) as error:
        raise NielsCacheError(f"state: its position cannot be read ({error!r}); it was cut or edited") from error


def check_settings(state: State, settings: State) -> None:
    """Raise NielsCacheError for the first setting in `settings` whose value in the state is different. The message names the setting."""
    of_plan = (
        "document_packing",
        "fim",
        "bos_on_pieces",
        "pad_documents_to",
        *(["max_documents"] if "document_packing" in settings else []),
    )
    defaults = {"kind": "tokens", "lot_tokens": None, **dict.fromkeys(of_plan)}
    saved = {"order": "split", **defaults, **state["settings"]}
    for name, value in {**defaults, **settings}.items():
        of_state = saved.get(name)
        if of_state != value:
            if name in ("fim", "phase") and value and isinstance(of_state, Mapping):
                check_settings({"settings": of_state}, value)  # names the difference inside
            name = name.removeprefix("block_").removeprefix("document_")  # as the arguments are called
            raise NielsCacheError(f"{name}={value!r}: the state was saved with {name}={of_state!r}; resuming needs the same")


def check_sources(state: State, sources: Mapping[str, State], *, allow_changed: Collection[str]) -> None:
    """Raise NielsCacheError for the first source that is missing or changed. The message names the source.

    Args:
        state: The saved state.
        sources: The states of the loader's sources, by name.
        allow_changed: The names of sources that may have changed.
    """
    for name, saved in state["sources"].items():
        if name not in sources:
            raise NielsCacheError(
                f"{name}: the state has read {saved['folder']} under this name, but this loader has {', '.join(sources)}; "
                f"give it too (with weight 0 from sample {state['samples']} on, to stop reading it)"
            )
        if name in allow_changed:
            continue
        now = sources[name]
        if saved["fingerprint"] != now["fingerprint"]:
            longer = "give grown=True if files were added to it, "
            is_longer = "worker" not in state and now["samples"] > saved["samples"] > 0
            otherwise = f", {longer if is_longer else ''}or accept other samples from here on with allow_changed=({name!r},)"
            raise NielsCacheError(
                f"{name}: {now['folder']} is not the cache that this state was saved with "
                f"(fingerprint {saved['fingerprint'][:12]}, now {now['fingerprint'][:12]}); "
                f"restore it{'' if 'phase' in state['settings'] else otherwise}"
            )


def before_tombstones(state: State, sources: NamedSources) -> State:
    """Return a state with the present fingerprints of sources in which documents were struck after it was saved. A warning names them.

    Every token of such a source has its place, so the run continues; the struck tokens are no targets.
    """
    struck = {
        name: {**saved, "fingerprint": sources[name].fingerprint}
        for name, saved in state["sources"].items()
        if name in sources and saved["fingerprint"] in map(sources[name].fingerprint_of, earlier_metas(sources[name].meta))
    }
    if struck:
        warnings.warn(f"{', '.join(struck)}: documents were struck since the state was saved; the run continues without them", stacklevel=3)
    return {**state, "sources": {**state["sources"], **struck}}


def check_order(state: State, names: Sequence[str]) -> None:
    """Raise NielsCacheError if the state and the loader list their common sources in different orders.

    The samples of a blend depend on the order of the sources.
    """
    saved = [name for name in state["names"] if name in names]
    if saved != [name for name in names if name in saved]:
        raise NielsCacheError(
            f"sources: come in the order {', '.join(names)}, the state was saved with {', '.join(state['names'])}; "
            f"other samples would follow; give them in that order"
        )


def check_weights(
    state: State, sources: NamedSources, run_order: RunOrder, settings: LoaderSettings, averages: Averages, *, allow_changed: bool
) -> None:
    """Raise NielsCacheError unless the loader takes the same samples as the state, up to the state's position.

    Args:
        state: The saved state.
        sources: The open sources.
        run_order: The order of the loader's run.
        settings: The loader's settings.
        averages: As in `row_weights`.
        allow_changed: Whether a source may have changed. The shares of an old cache cannot be computed any more, so the weights must then
            be the same numbers.
    """
    saved = [(int(first), check_shares(shares)) for first, shares in state["weights"]]
    samples = int(state["samples"])
    if allow_changed:
        past = [[segment for segment in weights if segment[0] < max(samples, 1)] for weights in (saved, settings.weights)]
        if past[0] != past[1]:
            raise NielsCacheError(
                f"weights: with allow_changed they must be those of the state up to sample {max(samples, 1)}: "
                'give weights=[*state["weights"], ...]'
            )
    elif saved != settings.weights and len(sources) > 1:
        known = {name: source for name, source in sources.items() if name in state["sources"]}
        weights = row_weights(known, replace(settings, weights=saved), averages)
        saved_order = RunOrder({name: source.samples for name, source in known.items()}, schedule=weights, seed=0, shuffle=False)
        if _past_weights(run_order, samples) != _past_weights(saved_order, samples):
            raise NielsCacheError(
                f"weights: the state was saved at sample {samples} under {[*map(tuple, state['weights'])]}, and other weights would change "
                f'the past; to change the weights from here on, give weights=[*state["weights"], ({samples}, {{...}})]'
            )


def _past_weights(run_order: RunOrder, samples: int) -> list[tuple[int, dict[str, int]]]:
    """Return the whole weights above 0 of the first `samples` samples."""
    segments = [(first, shares) for first, shares in run_order.blend.weights if first < max(samples, 1)]
    return [(first, {name: share for name, share in zip(run_order.names, shares, strict=True) if share}) for first, shares in segments]


def check_worker(state: State, position: Position, *, here: tuple[int, int] | None, sizes: BatchSizes) -> None:
    """Raise NielsCacheError if a state from a DataLoader worker is loaded by a different worker, or for batches of a different size.

    Args:
        state: The saved state.
        position: Its position.
        here: The number of the worker that loads the state and the number of workers, or None in the main process.
        sizes: The loader's batch size.
    """
    worker = state.get("worker")
    if worker is None:
        return
    if here is not None and (worker[0], worker[1]) != here:
        raise NielsCacheError(
            f"state: saved with num_workers={worker[1]}, but loaded with num_workers={here[1]}; resume with "
            f"num_workers={worker[1]}, or save loader.state_dict(steps=batches taken) in the main process, for any number of workers"
        )
    if here is None:
        raise NielsCacheError(
            f"state: saved in worker {worker[0]} of {worker[1]} of a DataLoader; load it through StatefulDataLoader, or save "
            f"loader.state_dict(steps=batches taken) in the main process"
        )
    if position.sizes[2:] != sizes[2:]:
        raise NielsCacheError(
            f"{_format_sizes(sizes)}: a state from workers of a DataLoader resumes only with its own "
            f"{_format_sizes(position.sizes)}; for others, save loader.state_dict(steps=batches taken) in the main process"
        )


def _format_sizes(sizes: BatchSizes) -> str:
    return f"B={sizes.B}, world_size={sizes.world_size}" + (f", machines={sizes.machines}" if sizes.machines > 1 else "")
