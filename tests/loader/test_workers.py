"""The loader under torch's DataLoader, torchdata's StatefulDataLoader, and as a map-style Dataset."""

import pickle
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from niels_cache_runtime import Batch, NielsCacheError, TokenLoader
from tests.helpers.hand_made import write_stream

T = 10
WINDOWS = [first * T for first in range(100)]
FIELDS = ("document_ids", "position_ids", "cu_seqlens", "dataset_ids")


@pytest.fixture
def notes(tmp_path: Path) -> str:
    return write_stream(tmp_path / "pretrain" / "notes", np.arange(1001), shard_tokens=130, doc_ends=[3, 100, 500, 1001])


def loader(notes: str, **changes: Any) -> TokenLoader:
    return TokenLoader(notes, **{"T": T, "B": 8, "seed": 3, "epochs": 1, "fields": FIELDS, **changes})


def workers(loader: TokenLoader, count: int, **settings: Any) -> DataLoader:
    return DataLoader(loader, batch_size=None, num_workers=count, **settings)


def rows(batches: Iterable[Batch]) -> list[list[int]]:
    return [batch.x[:, 0].tolist() for batch in batches]


@contextmanager
def refused(match: str) -> Iterator[None]:
    """Refused while workers run. The error keeps nothing of the loader, or they, caught in a cycle, take five seconds each to end."""
    with pytest.raises(NielsCacheError, match=match) as caught:
        yield
    traceback.clear_frames(caught.tb)


@pytest.mark.parametrize(("count", "context"), [(3, "fork"), (1, "spawn")])
def test_workers_give_the_same_batches_in_the_same_order(notes: str, count: int, context: str) -> None:
    expected = list(loader(notes, prefetch=1))
    found = list(workers(loader(notes, prefetch=1), count, multiprocessing_context=context))
    assert len(found) == len(expected) == 13
    for one, other in zip(expected, found, strict=True):
        assert one.max_seqlen == other.max_seqlen
        assert all(torch.equal(*tensors) for tensors in zip(one.tensors(), other.tensors(), strict=True))


def test_ranks_and_workers_together_take_every_window_once(notes: str) -> None:
    found = [
        first
        for rank in range(2)
        for batch in rows(workers(loader(notes, rank=rank, world_size=2, B=7), 2, multiprocessing_context="fork"))
        for first in batch
    ]
    assert sorted(found) == WINDOWS


def test_persistent_workers_go_on_with_the_next_epoch(notes: str) -> None:
    straight = [first for batch in rows(loader(notes, epochs=3)) for first in batch]
    batches = workers(loader(notes), 2, persistent_workers=True, multiprocessing_context="fork")
    passes = [first for _ in range(3) for batch in rows(batches) for first in batch]
    assert passes == straight


def test_a_run_in_workers_resumes_from_the_batches_it_took(notes: str) -> None:
    expected = rows(loader(notes))
    first = loader(notes)
    taken = rows(batch for batch in islice(workers(first, 2, multiprocessing_context="fork"), 5))
    second = TokenLoader.from_state(first.state_dict(steps=5))
    assert taken + rows(workers(second, 3, multiprocessing_context="fork")) == expected


@pytest.mark.parametrize("count", [0, 2])
def test_a_stateful_data_loader_resumes_exactly(notes: str, count: int) -> None:
    def batches() -> StatefulDataLoader:
        return StatefulDataLoader(loader(notes), batch_size=None, num_workers=count)

    expected = rows(batches())
    assert expected == rows(loader(notes))
    found: list[list[int]] = []
    state = None
    for steps in (5, 4, 100):
        one = batches()
        if state is not None:
            one.load_state_dict(state)
        for batch in islice(one, steps):
            found.append(batch.x[:, 0].tolist())
            state = one.state_dict()
    assert found == expected


@pytest.mark.parametrize(("count", "taken"), [(1, 1), (2, 0), (2, 1)])
def test_a_state_of_the_first_batches_of_a_later_pass_resumes_exactly(notes: str, count: int, taken: int) -> None:
    """torchdata asks each worker for its state before the first batch of a pass, too."""

    def batches() -> StatefulDataLoader:
        persistent = {"persistent_workers": True, "multiprocessing_context": "fork"}
        return StatefulDataLoader(loader(notes), batch_size=None, num_workers=count, **persistent)

    straight = batches()
    expected = [rows(straight) for _ in range(3)]
    one = batches()
    assert rows(one) == expected[0]
    begun = rows(islice(iter(one), taken))
    other = batches()
    other.load_state_dict(one.state_dict())
    assert begun + rows(other) == expected[1]
    assert rows(other) == expected[2]


def test_a_workers_state_is_refused_elsewhere(notes: str) -> None:
    one = StatefulDataLoader(loader(notes), batch_size=None, num_workers=1)
    next(iter(one))
    state = _find_state(one.state_dict())
    assert state["worker"] == [0, 1, 1]
    with pytest.raises(NielsCacheError, match="saved in worker 0 of 1"):
        loader(notes).load_state_dict(state)


@pytest.mark.parametrize(
    ("count", "changes", "wanted"),
    [
        (1, {}, "saved with num_workers=2, but loaded with num_workers=1; resume with num_workers=2"),
        (3, {"epochs": None}, "saved with num_workers=2, but loaded with num_workers=3; resume with num_workers=2"),
        (2, {"B": 4}, "own B=8"),
    ],
)
def test_a_state_of_other_workers_or_batches_is_refused_with_both_numbers(
    notes: str, count: int, changes: dict[str, Any], wanted: str
) -> None:
    one = StatefulDataLoader(loader(notes, **{**changes, "B": 8}), batch_size=None, num_workers=2)
    next(iter(one))
    other = StatefulDataLoader(loader(notes, **changes), batch_size=None, num_workers=count)
    other.load_state_dict(one.state_dict())
    with refused(wanted):
        list(islice(other, 3))


def _find_state(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("format"):
            return value
        found = [_find_state(item) for item in value.values()]
        return next((item for item in found if item is not None), None)
    return None


def test_a_copy_opens_the_files_again_and_goes_on_at_the_position(notes: str) -> None:
    one = loader(notes)
    next(iter(one))
    copied = pickle.dumps(one)
    assert len(copied) < 20_000  # no tokens travel
    copy = pickle.loads(copied)
    assert rows(copy) == rows(one)


def test_a_worker_refuses_a_cache_that_was_rebuilt_meanwhile(notes: str) -> None:
    copied = pickle.dumps(loader(notes))
    write_stream(Path(notes).parent, np.arange(1, 1002), shard_tokens=130)
    with pytest.raises(NielsCacheError, match="rebuilt since"):
        pickle.loads(copied)


def test_as_a_map_style_dataset_it_has_the_same_order(notes: str) -> None:
    dataset = loader(notes).as_dataset()
    expected = [first for batch in rows(loader(notes)) for first in batch]
    assert len(dataset) == 100
    assert [int(dataset[k]["x"][0]) for k in range(100)] == expected
    assert int(dataset[-1]["x"][0]) == expected[-1]
    with pytest.raises(IndexError, match="100 samples"):
        dataset[100]
    batched = [
        int(first)
        for batch in DataLoader(dataset, batch_size=7, num_workers=2, multiprocessing_context="fork")
        for first in batch["x"][:, 0]
    ]
    assert batched == expected
    ranks = [
        int(first)
        for rank in range(2)
        for batch in DataLoader(dataset, batch_size=5, sampler=DistributedSampler(dataset, 2, rank, shuffle=False))
        for first in batch["x"][:, 0]
    ]
    assert sorted(ranks) == WINDOWS
    assert dataset[3].keys() == {"x", "y", "document_ids", "position_ids", "dataset_ids"}


def test_an_endless_loader_is_not_read_twice_by_persistent_workers(notes: str) -> None:
    batches = workers(loader(notes, epochs=None), 1, persistent_workers=True, multiprocessing_context="fork")
    assert len(list(islice(batches, 3))) == 3
    with refused("keep one iterator"):
        list(islice(batches, 3))
