"""Training under Accelerate. `prepare` takes a TokenLoader unchanged. A DataLoader of a TokenLoader, which would divide the batches again,
is refused.
"""

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from niels_cache_runtime import Batch, NielsCacheError, TokenLoader
from tests.helpers.hand_made import write_stream

accelerate = pytest.importorskip("accelerate", reason="the extra trainer is not installed")

pytestmark = pytest.mark.filterwarnings("ignore:.*weights_only=False")
STEPS, STOP, ACCUMULATED = 20, 8, 4  # of the whole run, where it is stopped, and how many batches one step of the optimizer takes


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return write_stream(tmp_path / "notes", np.arange(341))  # 42 windows of T=8 and their next token


@pytest.fixture(autouse=True)
def _own_state() -> Iterator[None]:
    """Accelerate keeps its state in the process and in its environment."""
    before = dict(os.environ)
    yield
    forget_accelerator()
    os.environ.clear()
    os.environ.update(before)


def forget_accelerator() -> None:
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def loader_of(folder: str, **settings: Any) -> TokenLoader:
    return TokenLoader(folder, **{"T": 8, "B": 4, "seed": 3, **settings})


def rows(batches: Iterable[Batch]) -> list[list[int]]:
    return [batch.x[:, 0].tolist() for batch in batches]


def run(folder: str, root: Path, *, steps: int = STEPS, stop_at: int | None = None, resume: bool = False, workers: int = 0,
        **settings: Any) -> tuple[list[list[int]], float]:  # fmt: skip
    """Train, and save after `stop_at` batches, or continue from there. Return the first tokens of the rows of each batch, and the last
    weight.
    """
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
    loader: Any = loader_of(folder, rank=accelerator.process_index, world_size=accelerator.num_processes,
                            device=accelerator.device, **settings)  # fmt: skip
    if workers:
        loader = StatefulDataLoader(loader, batch_size=None, num_workers=workers)
    accelerator.register_for_checkpointing(loader)
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4))
    if resume:
        accelerator.load_state(str(root / "stopped"))
    seen = []
    for batch in islice(loader, (stop_at or steps) - (STOP if resume else 0)):
        with accelerator.accumulate(model):
            seen.append(batch.x[:, 0].tolist())
            accelerator.backward(model(batch.x[:, :1].float()).mean())
            optimizer.step()
            optimizer.zero_grad()
    if stop_at is not None:
        accelerator.save_state(str(root / "stopped"))
        accelerator.wait_for_everyone()
    weight = accelerator.unwrap_model(model).weight.item()
    forget_accelerator()
    return seen, weight


@pytest.mark.parametrize(("settings", "workers"), [({}, 0), ({"epochs": 3}, 0), ({"prefetch": 2}, 0), ({}, 2)])
def test_a_stopped_run_goes_on_with_the_next_batch(folder: str, tmp_path: Path, settings: dict[str, Any], workers: int) -> None:
    whole, weight = run(folder, tmp_path, workers=workers, **settings)
    assert whole == rows(islice(loader_of(folder, **settings), STEPS))
    assert len(whole) == STEPS
    before, weight_then = run(folder, tmp_path, workers=workers, stop_at=STOP, **settings)
    after, weight_resumed = run(folder, tmp_path, workers=workers, resume=True, **settings)
    assert before + after == whole
    assert weight_resumed == weight != weight_then != 1.0


def test_prepare_hands_a_loader_back_as_it_is(folder: str) -> None:
    loader = loader_of(folder)
    assert accelerate.Accelerator(cpu=True).prepare(loader) is loader


@pytest.mark.parametrize("taken", [0, 2])
def test_skipped_batches_are_those_that_a_plain_loader_leaves_behind(folder: str, taken: int) -> None:
    """This holds from any position, which moves with the skipped batches."""
    plain, loader, at_once = loader_of(folder), loader_of(folder), loader_of(folder)
    for one in (plain, loader, at_once):
        assert len(rows(islice(one, taken))) == taken
    expected = rows(islice(plain, 5 + 6))[5:]
    assert rows(islice(accelerate.skip_first_batches(DataLoader(loader, batch_size=None), 5), 6)) == expected
    assert loader.state_dict() == plain.state_dict()
    at_once.load_state_dict(at_once.state_dict(steps=5))
    assert rows(islice(at_once, 6)) == expected


def test_a_loader_itself_is_refused_by_name_where_a_data_loader_is_wanted(folder: str) -> None:
    loader = loader_of(folder)
    for call in (lambda: accelerate.skip_first_batches(loader, 2), lambda: accelerate.Accelerator(cpu=True).prepare_data_loader(loader)):
        with pytest.raises(NielsCacheError, match=r"skip_first_batches takes DataLoader\(loader, batch_size=None\)"):
            call()
    assert not hasattr(loader, "dataset"), "other frameworks ask so whether it is a DataLoader"


def as_dict(batch: Batch) -> dict[str, torch.Tensor]:
    """Return a batch in the form that Accelerate can concatenate, slice and divide."""
    return {"x": batch.x, "y": batch.y}


SHARED_AGAIN = "rank=accelerator.process_index, world_size=accelerator.num_processes, device=accelerator.device"


@pytest.mark.parametrize(("dispatch", "stateful", "collate"), [(None, False, None), (True, False, as_dict), (False, True, as_dict)])
def test_a_prepared_data_loader_is_refused(folder: str, dispatch: bool | None, stateful: bool, collate: Any) -> None:
    config = accelerate.utils.DataLoaderConfiguration(dispatch_batches=dispatch, use_stateful_dataloader=stateful)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)
    with pytest.raises(NielsCacheError, match=SHARED_AGAIN):
        next(iter(accelerator.prepare(DataLoader(loader_of(folder), batch_size=None, collate_fn=collate))))
