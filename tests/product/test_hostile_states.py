"""States of loaders that were edited or cut, most of them found by fuzzing. They are refused before a file is read, and never crash."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_runtime import DatasetLoader, NielsCacheError, TokenLoader
from tests.helpers.hand_made import write_stream

State = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return write_stream(tmp_path / "notes", np.arange(500))


def state_of(folder: str, *, steps: int = 5) -> State:
    loader = TokenLoader(folder, T=8, B=2, seed=7)
    for _ in zip(range(steps), loader, strict=False):
        pass
    state: State = json.loads(json.dumps(loader.state_dict()))
    assert (state["samples"], state["batches"]) == (2 * state["step"], [[0, 0, 2, 1]])
    return state


EDITS: dict[str, Callable[[State], Any]] = {
    "samples as text": lambda state: state.update(samples="10"),
    "samples with a fraction": lambda state: state.update(samples=state["samples"] + 0.5),
    "samples true": lambda state: state.update(samples=True),
    "samples below 0": lambda state: state.update(samples=-2),
    "more samples than any run takes": lambda state: state.update(samples=2**63, step=2**62),
    "samples that are not those of the steps": lambda state: state.update(samples=state["samples"] + 2),
    "a step that is not that of the samples": lambda state: state.update(step=state["step"] + 1),
    "a pass that begins later": lambda state: state.update(pass_start=state["samples"] + 1),
    "no batches": lambda state: state.update(batches=[]),
    "batches that begin later": lambda state: state.update(batches=[[1, 2, 2, 1]]),
    "batches of 0 rows": lambda state: state.update(batches=[[0, 0, 0, 1]]),
    "batches that go back": lambda state: state.update(batches=[[0, 0, 2, 1], [4, 8, 2, 1], [2, 4, 2, 1]]),
    "batches of three numbers": lambda state: state.update(batches=[[0, 0, 2]]),
    "settings as a list": lambda state: state.update(settings=["T", 8]),
    "a setting that there is not": lambda state: state["settings"].update(trust_remote_code=True),
    "a setting that is missing": lambda state: state["settings"].pop("drop_last"),
    "fields that are none": lambda state: state["settings"].update(fields=None),
    "a source that is none": lambda state: state["sources"].update(notes=None),
    "a source without a folder": lambda state: state["sources"]["notes"].pop("folder"),
    "a folder that is no text": lambda state: state["sources"]["notes"].update(folder=7),
    "a folder that no file system has": lambda state: state["sources"]["notes"].update(folder="." * 5000),
    "a folder with a NUL": lambda state: state["sources"]["notes"].update(folder="a\0b/train"),
    "weights that are none": lambda state: state.update(weights=[None]),
    "weights that are lists": lambda state: state.update(weights=[[0, {"notes": [[]]}]]),
    "weights from a sample that is text": lambda state: state.update(weights=[["0", {"notes": 1}]]),
    "weights from beyond any run": lambda state: state.update(weights=[[0, {"notes": 1}], [10**30, {"notes": 2}]]),
    "a worker that is none": lambda state: state.update(worker=5),
    "a worker beyond their number": lambda state: state.update(worker=[3, 2, 0]),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_an_edited_state_is_refused(folder: str, edit: Callable[[State], Any]) -> None:
    state = state_of(folder)
    edit(state)
    with pytest.raises(NielsCacheError) as caught:
        TokenLoader.from_state(state)
    assert len(str(caught.value).splitlines()) == 1


def test_a_state_is_refused_whole(folder: str) -> None:
    """A refused state changes nothing. The loader continues at its position."""
    loader = TokenLoader(folder, T=8, B=2, seed=7)
    before = loader.state_dict()
    refused = 0
    for edit in EDITS.values():
        state = state_of(folder)
        edit(state)
        try:
            loader.load_state_dict(state)
        except NielsCacheError:
            refused += 1
            assert loader.state_dict() == before
        else:
            loader.load_state_dict(before)
    assert refused >= 20  # only the constructor gets the other settings


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths_of(inner, (*path, key))


@pytest.mark.parametrize("value", [np.arange(3), torch.arange(3), b"x", {1}, 10**5_000], ids=["array", "tensor", "bytes", "set", "endless"])
def test_a_value_that_no_json_holds_is_refused_by_its_key_wherever_it_stands(folder: str, value: Any) -> None:
    for loader in (TokenLoader(folder, T=8, B=2, seed=7), DatasetLoader(2, 8, 0, 1, folder, "cpu")):
        whole = json.loads(json.dumps(loader.state_dict()))
        paths = list(paths_of(whole))
        assert len(paths) > 5
        for path in paths:
            state: Any = copy.deepcopy(whole) if path else value
            inner = state
            for key in path[:-1]:
                inner = inner[key]
            if path:
                inner[path[-1]] = value
            with pytest.raises(NielsCacheError, match=rf"^state{''.join(rf'.{key!r}.' for key in path)}: is an? ") as caught:
                loader.load_state_dict(state)
            assert len(str(caught.value).splitlines()) == 1


def test_one_number_in_a_tensor_is_that_number(folder: str) -> None:
    """As some checkpoints bring it back."""
    state = state_of(folder)
    batches = next(iter(TokenLoader.from_state(state)))
    assert torch.equal(next(iter(TokenLoader.from_state({**state, "step": torch.tensor(state["step"])}))).x, batches.x)
