"""TokenLoader(order=Blocks()): each window once per epoch on any machines, an exact resume, and only the blocks of a machine's lanes."""

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from niels_cache_runtime import Blocks, NielsCacheError, TokenLoader
from niels_cache_runtime.loader import blend
from niels_cache_runtime.loader.run_order import plan_batches
from tests.helpers.grouped import grouped
from tests.helpers.hand_made import write_meta_of, write_pair, write_shards, write_stream

T = 4


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(scope="module")
def notes(root: Path) -> str:
    """100 windows in 31 shards of 13 tokens."""
    return write_stream(root / "notes", np.arange(100 * T + 1), shard_tokens=13, doc_ends=[3, 100, 100 * T + 1])


@pytest.fixture(scope="module")
def sources(root: Path, notes: str) -> dict[str, str]:
    chats = root / "sft" / "chats"
    write_pair(chats, "train", [[2, 10, 4, 3, *range(2000 + 9 * i, 2009 + 9 * i - i % 7), 4] for i in range(30)])
    write_pair(chats, "val", [])
    write_meta_of(chats, kind="sft")
    web = write_stream(root / "web", np.arange(1000, 1000 + 37 * T + 1), shard_tokens=29, doc_ends=[37 * T + 1])
    return {"notes": notes, "web": web, "chats": str(chats / "train")}


@pytest.fixture(autouse=True, scope="module")
def blends_made_once() -> Iterator[None]:
    """The order of a period, which depends on nothing but the weights, takes most of the time that a loader takes to open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blend, "_interleave", cache(blend._interleave))
        yield


def opened(folder: str | dict[str, str], **settings: Any) -> TokenLoader:
    return TokenLoader(folder, **grouped({"T": T, "B": 3, "seed": 5, "order": Blocks(shards=4), **settings}))


def ranks_of(folder: str | dict[str, str], *, world_size: int, **settings: Any) -> list[TokenLoader]:
    return [opened(folder, world_size=world_size, rank=rank, **settings) for rank in range(world_size)]


def rows(loader: TokenLoader, batches: int | None = None) -> list[int]:
    """The first token of every row, which names the window."""
    iterator = iter(loader)
    return [first for batch in islice(iterator, batches) for first in batch.x[:, 0].tolist()]


@given(
    shards=st.lists(st.integers(1, 23), min_size=1, max_size=12).filter(lambda shards: sum(shards) > T),
    block_shards=st.integers(1, 5),
    machines=st.integers(1, 3),
    lanes_of_each=st.integers(1, 3),
    ranks=st.integers(1, 3),
    B=st.integers(1, 4),
    stride=st.integers(1, 7),
)
def test_machines_and_ranks_together_read_each_window_once_per_epoch(
    tmp_path_factory: pytest.TempPathFactory,
    shards: list[int],
    block_shards: int,
    machines: int,
    lanes_of_each: int,
    ranks: int,
    B: int,
    stride: int,
) -> None:
    ends = np.cumsum([0, *shards])
    folder = tmp_path_factory.mktemp("notes") / "train"
    write_shards(folder, [np.arange(first, last) for first, last in pairwise(ends)])
    settings = {"shards": block_shards, "machines": machines, "lanes": machines * lanes_of_each, "B": B, "stride": stride}
    loaders = ranks_of(str(folder), world_size=machines * ranks, epochs=2, **settings)
    taken = [rows(loader) for loader in loaders]
    windows = range(0, sum(shards) - T, stride)
    assert Counter(row for rank in taken for row in rank) == {window: 2 for window in windows}
    for rank, own in enumerate(taken):
        assert abs(len(own) - 2 * len(windows) / len(taken)) <= B + 1
        loader = opened_again(loaders[rank])
        shards_of_machine = set()
        for visit in loader.block_visits():
            if visit.first >= 2 * len(windows):
                break
            shards_of_machine |= set(visit.files)
        assert set((np.searchsorted(ends, own, side="right") - 1).tolist()) <= shards_of_machine


def opened_again(loader: TokenLoader) -> TokenLoader:
    """A copy at the start of the run."""
    again = pickle.loads(pickle.dumps(loader))
    again._start, again._taken = replace(again._start, samples=0, step=0, pass_start=0, batches=(again._sizes,)), 0
    return again


@pytest.mark.parametrize(("lanes", "machines", "ranks", "B"), [(1, 1, 4, 6), (4, 4, 1, 6), (12, 4, 3, 2)])
def test_a_step_has_the_same_windows_for_any_machines(notes: str, lanes: int, machines: int, ranks: int, B: int) -> None:
    alone = opened(notes, lanes=lanes, B=24)
    together = ranks_of(notes, lanes=lanes, machines=machines, world_size=machines * ranks, B=B)
    iterators = [iter(loader) for loader in together]
    for batch in islice(alone, 12):
        step = [first for iterator in iterators for first in next(iterator).x[:, 0].tolist()]
        assert len(set(step)) > 1
        assert sorted(step) == sorted(batch.x[:, 0].tolist())


Leg = tuple[int, int, int, int]
LEGS = st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 2), st.integers(1, 7), st.integers(1, 3)), min_size=2, max_size=3)


@given(legs=LEGS)
def test_resuming_with_other_machines_ranks_and_batch_sizes_reads_each_window_once(sources: dict[str, str], legs: list[Leg]) -> None:
    weights = {"notes": 3, "web": 1, "chats": 2}
    state: dict[str, Any] | None = None
    taken: list[tuple[int, int, int]] = []
    for machines, ranks, B, steps in legs:
        loaders = ranks_of(sources, weights=weights, lanes=4, machines=machines, world_size=machines * ranks, B=B)
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            first = loader.step
            deque = list(islice(iter(loader), steps))
            for step, batch in enumerate(deque, start=first):
                trace = loader.trace(step)
                assert trace.tokens[:, :-1].tolist() == batch.x.tolist()
                taken += zip(trace.samples.tolist(), trace.dataset_ids.tolist(), trace.numbers.tolist(), strict=True)
        states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
        assert all(other == states[0] for other in states)
        state = states[0]
    assert state is not None
    expected = opened(sources, weights=weights, lanes=4, B=state["samples"]).trace(0)
    assert sorted(taken) == list(zip(expected.samples.tolist(), expected.dataset_ids.tolist(), expected.numbers.tolist(), strict=True))


def test_resuming_at_any_step_goes_on_as_if_never_stopped(notes: str) -> None:
    settings = {"lanes": 4, "machines": 2, "world_size": 2, "rank": 1, "epochs": 2}
    straight = rows(opened(notes, **settings))
    steps = len(opened(notes, **settings))
    assert steps == 34
    for step in range(steps + 1):
        resumed = TokenLoader.from_state(json.loads(json.dumps(opened(notes, **settings).state_dict(steps=step))), rank=1)
        assert resumed.step == step
        assert rows(resumed) == straight[3 * step :]


def test_drop_last_leaves_out_the_same_step_on_every_machine(notes: str) -> None:
    loaders = ranks_of(notes, lanes=6, machines=3, world_size=6, epochs=1, drop_last=True, B=4)
    taken = [rows(loader) for loader in loaders]
    assert [len(own) for own in taken] == [16] * 6
    assert max(Counter(chain(*taken)).values()) == 1
    passes = [rows(loader) for loader in loaders]
    assert [len(own) for own in passes] == [16] * 6


def test_a_pass_that_ends_within_a_step_or_a_round_is_followed_by_the_rest(notes: str) -> None:
    loaders = ranks_of(notes, lanes=8, machines=2, world_size=2, epochs=1, B=7)
    for _ in range(5):
        taken = [rows(loader) for loader in loaders]
        assert sorted(chain(*taken)) == [T * window for window in range(100)]
        assert abs(len(taken[0]) - len(taken[1])) <= 1


def test_a_blend_ends_a_pass_where_its_first_source_ends(sources: dict[str, str]) -> None:
    weights = {"notes": 3, "web": 2, "chats": 1}
    loaders = ranks_of(sources, lanes=4, machines=2, world_size=4, weights=weights, epochs=1, fields=("dataset_ids",))
    read: Counter[tuple[int, int]] = Counter()
    for loader in loaders:
        for step in range(len(loader)):
            trace = loader.trace(step)
            read.update(zip(trace.dataset_ids.tolist(), trace.numbers.tolist(), strict=True))
    assert max(read.values()) == 1
    of_sources = Counter(source for source, _ in read)
    assert any(of_sources[number] == count for number, count in enumerate(loaders[0].samples_per_epoch.values()))


def test_windows_that_cross_into_the_next_block_belong_to_the_earlier_one(notes: str) -> None:
    visits = {visit.block: visit for visit in islice(opened(notes).block_visits(), 8)}
    assert visits.keys() == set(range(8))
    for block, visit in visits.items():
        end = min(52 * (block + 1), 401)
        assert visit.files == range(4 * block, min(4 * block + 4, 31))
        last_window = (end - 1) // T * T if block < 7 else 99 * T
        assert visit.tail_tokens == max(0, last_window + T + 1 - end)


def test_a_state_names_its_order_and_its_machines(notes: str) -> None:
    state = opened(notes, lanes=4, machines=2, world_size=4).state_dict(steps=2)
    assert (state["version"], state["block_order_version"]) == (1, 1)
    assert (state["settings"]["order"], state["settings"]["block_shards"], state["settings"]["lanes"]) == ("blocks", 4, 4)
    assert state["batches"] == [[0, 0, 3, 4, 2]]
    assert len(json.dumps(state)) < 1500
    assert TokenLoader.from_state(state).state_dict() == state
    other = TokenLoader.from_state(state, order=Blocks(shards=4, lanes=4, machines=4)).state_dict()
    assert other["batches"] == [[0, 0, 3, 4, 2], [2, 24, 3, 4, 4]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lanes": 4}, "lanes=4: .*lanes=2"),
        ({"shards": 5}, "shards=5: .*shards=4"),
        ({"order": "split"}, "order='split': .*order='blocks'"),
        ({"machines": 3, "world_size": 3}, "allowed are 1$|allowed are 1;"),
    ],
)
def test_another_order_is_refused(notes: str, changes: dict[str, Any], message: str) -> None:
    state = opened(notes, lanes=2).state_dict(steps=3)
    with pytest.raises(NielsCacheError, match=message):
        TokenLoader.from_state(state, **grouped({"order": Blocks(shards=4, lanes=2), **changes}))


@pytest.mark.parametrize(
    "edit",
    [
        {"version": 2},
        {"block_order_version": 2},
        {"block_order_version": None},
        {"batches": [[0, 0, 3, 4, 3]]},
        {"batches": [[0, 0, 3, 4, 0]]},
        {"batches": [[0, 0, 3, 4, 1, 1]]},
    ],
)
def test_an_edited_state_is_refused(notes: str, edit: dict[str, Any]) -> None:
    state = opened(notes, lanes=4, machines=2, world_size=4).state_dict(steps=2)
    with pytest.raises(NielsCacheError) as caught:
        TokenLoader.from_state({**state, **edit})
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "blocks"}, "Blocks(shards=64, lanes=1)"),
        ({"order": Blocks}, "Blocks(shards=64, lanes=1)"),
        ({"shards": 0}, "shards=0"),
        ({"lanes": 0}, "lanes=0"),
        ({"lanes": 1.5}, "lanes=1.5"),
        ({"lanes": 4, "machines": 2, "world_size": 3}, "allowed are 1;"),
        ({"machines": 0}, "machines=0"),
    ],
)
def test_wrong_settings_are_one_clear_line(notes: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(NielsCacheError) as caught:
        opened(notes, **settings)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_visits_need_the_order_in_blocks(notes: str) -> None:
    with pytest.raises(NielsCacheError, match="Blocks"):
        TokenLoader(notes, T=T, B=3, seed=5).block_visits()


def test_torchrun_gives_the_machines(notes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert opened(notes, lanes=2, world_size=4).state_dict()["batches"] == [[0, 0, 3, 4, 2]]
    assert TokenLoader(notes, T=T, B=3, seed=5, world_size=4).state_dict()["batches"] == [[0, 0, 3, 4]]


def test_workers_divide_the_batches_of_a_rank(notes: str) -> None:
    loader = opened(notes, lanes=4, machines=2, world_size=4, rank=3, epochs=1)
    alone = rows(opened_again(loader))
    plans = [iter(plan_batches(loader._run_order, loader._steps, loader.position, worker=worker, workers=3, done=0)) for worker in range(3)]
    together = [number for step in range(len(loader)) for number in next(plans[step % 3]).numbers.tolist()]
    assert [number * T for number in together] == alone
    assert len(alone) == 25


def test_a_map_style_dataset_has_the_same_order(notes: str) -> None:
    dataset = opened(notes, lanes=3).as_dataset()
    assert [int(dataset[index]["x"][0]) for index in range(100)] == rows(opened(notes, lanes=3, epochs=1))


def test_an_older_step_is_traced_on_the_machines_of_then(notes: str) -> None:
    first = opened(notes, lanes=4, machines=4, world_size=4, rank=2)
    before = rows(first, 3)
    second = TokenLoader.from_state(first.state_dict(), order=Blocks(shards=4, lanes=4, machines=2), rank=1)
    found = [number for step in range(3) for number in second.trace(step, rank=2).numbers.tolist()]
    assert [number * T for number in found] == before
