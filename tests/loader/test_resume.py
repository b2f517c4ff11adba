"""Resuming is exact. The batches are those of a run without an interruption, for any world size."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from niels_cache_runtime import NielsCacheError, TokenLoader
from niels_cache_runtime.loader import blend
from tests.helpers.hand_made import rewrite_meta, write_meta_of, write_pair, write_stream

T = 10
WEIGHTS = {"notes": 3, "web": 1, "chats": 2}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("cache")
    chats = root / "sft" / "chats"
    write_pair(chats, "train", [[2, 10, 4, 3, *range(100 * i, 100 * i + 1 + i % 7), 4] for i in range(50)])
    write_pair(chats, "val", [])
    write_meta_of(chats, kind="sft")
    return {
        "notes": write_stream(root / "pretrain" / "notes", np.arange(10_000, 11_001), shard_tokens=130, doc_ends=[3, 100, 500, 1001]),
        "web": write_stream(root / "pretrain" / "web", np.arange(20_000, 20_701), doc_ends=[350, 701]),
        "chats": str(chats / "train"),
    }


@pytest.fixture(autouse=True, scope="module")
def blends_made_once() -> Iterator[None]:
    """The order of a period, which depends on nothing but the weights, takes most of the time that a loader takes to open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blend, "_interleave", cache(blend._interleave))
        yield


def loader(sources: Mapping[str, str], **changes: Any) -> TokenLoader:
    return TokenLoader(sources, **{"T": T, "B": 24, "seed": 7, "weights": WEIGHTS, **changes})


def take(loader: TokenLoader, batches: int) -> list[list[int]]:
    """Every row of that many batches, tokens and targets."""
    iterator = iter(loader)
    rows = []
    for _ in range(batches):
        batch = next(iterator)
        rows += torch.cat([batch.x, batch.y, batch.y_masked, batch.document_ids, batch.position_ids], dim=1).tolist()
    return rows


def saved(loader: TokenLoader) -> dict[str, Any]:
    """The state as it comes back from a file."""
    return json.loads(json.dumps(loader.state_dict()))


@pytest.fixture(scope="module")
def uninterrupted(sources: dict[str, str]) -> list[list[int]]:
    return take(loader(sources), 100)


def test_a_state_is_small_and_json(sources: dict[str, str]) -> None:
    one = loader(sources)
    take(one, 3)
    assert len(json.dumps(one.state_dict())) < 3000
    assert saved(one) == one.state_dict()


def test_a_resumed_run_goes_on_as_if_it_had_never_stopped(sources: dict[str, str], uninterrupted: list[list[int]]) -> None:
    first = loader(sources)
    rows = take(first, 7)
    second = loader(sources)
    second.load_state_dict(saved(first))
    rows += take(second, 9)
    third = TokenLoader.from_state(saved(second))
    rows += take(third, 24)
    assert rows == uninterrupted[: 40 * 24]
    assert third.step == 40


Leg = tuple[int, int, int]


@given(legs=st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.integers(1, 13), st.integers(1, 4)), min_size=2, max_size=5))
def test_resuming_over_and_over_with_other_world_sizes_and_batch_sizes_changes_nothing(
    sources: dict[str, str], uninterrupted: list[list[int]], legs: list[Leg]
) -> None:
    state: dict[str, Any] | None = None
    rows: list[list[int]] = []
    for world_size, B, steps in legs:
        ranks = [loader(sources, B=B, rank=rank, world_size=world_size) for rank in range(world_size)]
        if state is not None:
            for one in ranks:
                one.load_state_dict(state)
        taken = [take(one, steps) for one in ranks]
        rows += [row for step in range(steps) for rank in taken for row in rank[step * B : (step + 1) * B]]
        states = [saved(one) for one in ranks]
        assert all(other == states[0] for other in states)
        state = states[0]
    expected = uninterrupted if len(rows) <= len(uninterrupted) else take(loader(sources, B=len(rows)), 1)
    assert rows == expected[: len(rows)]


def test_resuming_at_a_distant_step_is_the_run_from_there(sources: dict[str, str]) -> None:
    one = loader(sources)
    state = one.state_dict(steps=10_000_000)
    assert (state["step"], state["samples"]) == (10_000_000, 240_000_000)
    one.load_state_dict(state)
    before = loader(sources)
    before.load_state_dict(before.state_dict(steps=9_999_999))
    assert take(before, 3)[24:] == take(one, 2)


def test_a_run_resumed_at_its_end_has_ended_and_then_goes_on(sources: dict[str, str]) -> None:
    settings = {"weights": None, "epochs": 1}
    notes = {"notes": sources["notes"]}

    def rows(one: TokenLoader) -> list[int]:
        return [first for batch in one for first in batch.x[:, 0].tolist()]

    one = loader(notes, **settings)
    iterator = iter(one)
    for _ in range(len(one)):
        next(iterator)
    state = saved(one)
    resumed = TokenLoader.from_state(state)
    assert rows(resumed) == []
    second = rows(resumed)
    straight = rows(loader(notes, weights=None, epochs=2))
    assert len(second) == 100
    assert second == straight[100:]


@pytest.mark.parametrize("taken", [0, 10])
def test_a_state_after_a_pass_with_too_few_samples_for_a_batch_is_read_again(sources: dict[str, str], taken: int) -> None:
    settings = {"weights": None, "epochs": 1, "drop_last": True}
    notes = {"notes": sources["notes"]}
    one = loader(notes, **settings, B=4)
    first = [batch.x.tolist() for batch in islice(one, taken)]
    large = loader(notes, **settings, B=128 if taken == 0 else 64)
    large.load_state_dict(saved(one))
    assert list(large) == []
    for B in (64, 8):
        resumed = loader(notes, **settings, B=B)
        resumed.load_state_dict(saved(large))
        x = next(iter(resumed)).x.numpy()
        assert resumed.samples == 100 + B
        again = loader(notes, **settings, B=B)
        again.load_state_dict(saved(resumed))
        assert again.state_dict() == resumed.state_dict()
        assert np.array_equal(again.trace(taken).tokens[:, :-1], x)
        assert [again.trace(step).tokens[:, :-1].tolist() for step in range(taken)] == first


def test_state_after_steps_is_the_state_that_these_steps_lead_to(sources: dict[str, str]) -> None:
    notes = {"notes": sources["notes"]}
    for changes in ({}, {"epochs": 1}, {"epochs": 1, "drop_last": True}, {"epochs": 2, "world_size": 3, "rank": 1, "B": 7}):
        ahead, walked = (loader(notes, **{"weights": None, **changes}) for _ in range(2))
        start = ahead.state_dict()

        def batches(one: TokenLoader) -> Iterator[None]:
            while True:
                for _ in one:
                    yield

        walk = batches(walked)
        for steps in range(1, 15):
            next(walk)
            assert ahead.state_dict(steps=steps) == walked.state_dict()
        assert ahead.state_dict() == start


def test_new_weights_hold_from_the_saved_position_on(sources: dict[str, str]) -> None:
    one = loader(sources)
    before = take(one, 5)
    state = saved(one)
    schedule = [*state["weights"], (state["samples"], {"notes": 1, "web": 1, "chats": 0})]
    other = loader(sources, weights=schedule)
    other.load_state_dict(state)
    after = take(other, 5)
    assert sum(row[0] >= 20_000 for row in after) == 60
    assert take(loader(sources, weights=schedule), 10) == before + after


def test_weights_that_would_rewrite_the_past_are_refused(sources: dict[str, str]) -> None:
    one = loader(sources)
    take(one, 5)
    with pytest.raises(NielsCacheError, match=r"saved at sample 120 .*give weights=\[\*state"):
        loader(sources, weights={"notes": 1, "web": 1, "chats": 1}).load_state_dict(saved(one))
    loader(sources, weights={"notes": 0.3, "web": 0.1, "chats": 0.2}).load_state_dict(saved(one))


def test_a_new_source_may_join_with_weight_zero_before(sources: dict[str, str]) -> None:
    two = {name: sources[name] for name in ("notes", "web")}
    one = loader(two, weights={"notes": 1, "web": 1})
    take_rows = [batch.x.tolist() for batch in islice(one, 4)]
    state = saved(one)
    schedule = [(0, {"notes": 1, "web": 1, "chats": 0}), (state["samples"], WEIGHTS)]
    other = loader(sources, weights=schedule)
    other.load_state_dict(state)
    assert other.samples == 96
    assert len(take_rows) == 4
    with pytest.raises(NielsCacheError, match="chats: "):
        loader(two, weights={"notes": 1, "web": 1}).load_state_dict(saved(loader(sources)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"T": 9}, r"T=9: .* T=10"),
        ({"seed": 8}, "seed=8"),
        ({"stride": 5}, "stride=5"),
        ({"shuffle": False}, "shuffle=False"),
    ],
)
def test_other_samples_are_refused(sources: dict[str, str], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(NielsCacheError, match=message):
        loader(sources, **changes).load_state_dict(saved(loader(sources)))


def test_a_changed_cache_is_refused_by_name_unless_that_is_accepted(tmp_path: Path) -> None:
    folder = tmp_path / "pretrain" / "notes"
    split = write_stream(folder, np.arange(1001))
    one = TokenLoader(split, T=T, B=10, seed=0)
    take_two = [batch.x.tolist() for batch in islice(one, 2)]
    state = saved(one)
    rewrite_meta(folder, note="rebuilt from the same text")  # the tokens are the same: no reason to refuse
    TokenLoader(split, T=T, B=10, seed=0).load_state_dict(state)
    write_stream(folder, np.arange(1, 1002))
    other = TokenLoader(split, T=T, B=10, seed=0)
    with pytest.raises(NielsCacheError, match=r"notes: .*notes/train .*allow_changed=\('notes',\)"):
        other.load_state_dict(state)
    other.load_state_dict(state, allow_changed=("notes",))
    assert other.samples == 20
    assert len(take_two) == 2


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "of a TokenLoader"),
        ([1], "found list"),
        ({"model": 1}, "dict with model"),
        ({"format": "niels_cache_runtime.TokenLoader", "version": 99}, "version 99"),
        ({"format": "niels_cache_runtime.TokenLoader", "version": 1, "order_version": 1}, "cannot be read"),
    ],
)
def test_what_is_no_state_is_one_clear_line(sources: dict[str, str], state: Any, message: str) -> None:
    with pytest.raises(NielsCacheError, match=message):
        loader(sources).load_state_dict(state)
    with pytest.raises(NielsCacheError, match=message):
        TokenLoader.from_state(state)


def test_a_run_beyond_one_pass_goes_on_when_it_is_given_epochs(sources: dict[str, str]) -> None:
    notes = {"notes": sources["notes"]}
    one = loader(notes, weights=None, B=10)
    for _ in islice(one, 25):
        pass
    resumed = TokenLoader.from_state(saved(one), epochs=1)
    assert (resumed.samples, len(resumed)) == (250, 5)
    rows = [first for batch in resumed for first in batch.x[:, 0].tolist()]
    assert rows == [first for batch in islice(loader(notes, weights=None, B=50), 6) for first in batch.x[:, 0].tolist()][250:]
    assert resumed.samples == 300
    with pytest.raises(TypeError, match="endless"):
        len(TokenLoader.from_state(saved(resumed), epochs=None))


def test_changed_sources_are_accepted_by_name_only(sources: dict[str, str]) -> None:
    one = loader(sources)
    take(one, 2)
    with pytest.raises(NielsCacheError, match="did you mean 'notes'"):
        loader(sources).load_state_dict(saved(one), allow_changed=("note",))
    with pytest.raises(NielsCacheError, match="up to sample 48"):
        loader(sources, weights={"notes": 9, "web": 1, "chats": 2}).load_state_dict(saved(one), allow_changed="notes")
    loader(sources).load_state_dict(saved(one), allow_changed="notes")


def test_rank_0_saves_the_end_of_a_pass_even_where_few_rows_are_left(sources: dict[str, str]) -> None:
    ranks = [loader({"notes": sources["notes"]}, weights=None, B=33, rank=rank, world_size=3, epochs=1) for rank in range(3)]
    rows = [sum(len(batch.x) for batch in one) for one in ranks]
    assert rows == [34, 33, 33]
    states = [saved(one) for one in ranks]
    assert states[0]["samples"] == 100
    assert states[0] == states[1] == states[2]


@pytest.mark.parametrize("key", ["weights", "sources", "settings", "batches", "names"])
def test_a_cut_state_is_refused(sources: dict[str, str], key: str) -> None:
    state = saved(loader(sources))
    del state[key]
    for load in (loader(sources).load_state_dict, TokenLoader.from_state):
        with pytest.raises(NielsCacheError, match=f"has no {key}"):
            load(state)


def test_the_state_of_numpy_settings_is_json_too(sources: dict[str, str]) -> None:
    one = loader(sources, weights={"notes": np.float32(3), "web": np.int64(1), "chats": 2}, shuffle=np.bool_(True), seed=np.int64(7))
    assert saved(one) == one.state_dict()


def test_a_state_saved_with_sorted_keys_goes_on_with_the_same_samples(sources: dict[str, str]) -> None:
    """Samples of equal rank go to the first source, so that the order of the sources is part of what was saved."""
    weights = {"notes": 1, "web": 2, "chats": 1}
    whole = take(loader(sources, weights=weights, B=5), 12)
    assert whole != take(loader(dict(sorted(sources.items())), weights=weights, B=5), 12), "the order matters here"
    stopped = loader(sources, weights=weights, B=5)
    before = take(stopped, 5)
    state = json.loads(json.dumps(stopped.state_dict(), sort_keys=True))
    assert list(state["sources"]) == sorted(sources)
    assert before + take(TokenLoader.from_state(state), 7) == whole
    assert before + take(TokenLoader.from_state(state, dict(sorted(sources.items()))), 7) == whole


def test_sources_in_another_order_are_refused(sources: dict[str, str]) -> None:
    weights = {"notes": 1, "web": 2, "chats": 1}
    state = saved(loader(sources, weights=weights))
    other = loader(dict(sorted(sources.items())), weights=weights)
    with pytest.raises(NielsCacheError, match=r" chats, notes, web, .* notes, web, chats; "):
        other.load_state_dict(state)
    for wrong in (["notes", "web"], "notes", [1, 2, 3], ["notes", "web", "chats", "chats"]):
        with pytest.raises(NielsCacheError, match="names are "):
            other.load_state_dict({**state, "names": wrong})
