"""A loader goes on over a cache that has grown: the begun epoch ends with the old windows, and the next one has all of them."""

import copy
import json
import pickle
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_runtime import BestFit, Blocks, TokenLoader
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.loader.growth import Epochs
from tests.helpers.parts_project import NAME, PartsProject, build

SETTINGS: dict[str, Any] = {"T": 16, "B": 3, "seed": 5}


class Grown:
    """One data set as it was at three times: `old`, `new` and `newest`. Its first files were also built by one process: `one`."""

    def __init__(self, folder: Path, model: Path) -> None:
        project = PartsProject(folder, model)
        project.write([9, 2, 30, 14])
        project.write([12, 8], first=8, folder="more")
        project.write([25], first=20, folder="again")
        added = [f'[[pretrain.{NAME}.added]]\nfiles = ["{name}/*"]\nparts = {parts}\n' for name, parts in (("more", 2), ("again", 1))]
        for root, parts, tables in (("old", 2, 0), ("new", 2, 1), ("newest", 2, 2), ("one", 1, 0), ("one grown", 1, 1)):
            build(project.graph(parts, "val_frac = 0.0\n" + "".join(added[:tables]), root=root))
        self._project = project

    def __getitem__(self, root: str) -> str:
        return str(self._project.cache(root) / "train")


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Grown:
    return Grown(tmp_path_factory.mktemp("grown"), tiny_model)


def taken(loader: TokenLoader, count: int) -> list[torch.Tensor]:
    return [batch.x for batch in islice(iter(loader), count)]


def saved(loader: TokenLoader) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


def numbers(loader: TokenLoader, first: int, last: int) -> list[tuple[int, int]]:
    """The epoch and the window of each of these samples of the run."""
    located = loader._run_order.locate(np.arange(first, last))
    return [*zip(located.epochs.tolist(), located.numbers.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("then", "now", "shuffle", "steps"), [("old", "new", True, 1), ("one", "one grown", True, 40), ("old", "new", False, 7)]
)
def test_the_begun_epoch_ends_with_the_old_windows_and_the_next_has_all(
    caches: Grown, then: str, now: str, shuffle: bool, steps: int
) -> None:
    old = TokenLoader({NAME: caches[then]}, **SETTINGS, shuffle=shuffle)
    before = old.samples_per_epoch[NAME]
    taken(old, steps)
    state = saved(old)
    new = TokenLoader({NAME: caches[now]}, **SETTINGS, shuffle=shuffle)
    with pytest.raises(NielsCacheError, match="grown=True"):
        new.load_state_dict(state)
    new.load_state_dict(state, grown=True)
    every = new.samples_per_epoch[NAME]
    assert every > before
    end = -(-old.samples // before) * before
    full = (end - old.samples) // 3
    assert full > 5
    for ours, theirs in zip(taken(new, full), taken(old, full), strict=True):
        assert torch.equal(ours, theirs)
    epoch = end // before
    for number in (epoch, epoch + 1):
        found = numbers(new, end + (number - epoch) * every, end + (number - epoch + 1) * every)
        assert {each for each, _ in found} == {number}
        assert sorted(window for _, window in found) == list(range(every))
    assert numbers(new, 0, old.samples) == numbers(old, 0, old.samples)


@pytest.mark.parametrize("steps", [1, 40])
def test_blocks_go_on_over_a_grown_cache(caches: Grown, steps: int) -> None:
    blocks = {"order": Blocks(shards=2, lanes=3)}
    old = TokenLoader({NAME: caches["old"]}, **SETTINGS, **blocks)
    before = old.samples_per_epoch[NAME]
    taken(old, steps)
    new = TokenLoader.from_state(saved(old), {NAME: caches["new"]}, grown=True)
    every = new.samples_per_epoch[NAME]
    end = -(-old.samples // before) * before
    assert numbers(new, 0, end) == numbers(old, 0, end)
    for number in range(2):
        found = numbers(new, end + number * every, end + (number + 1) * every)
        assert sorted(window for _, window in found) == list(range(every))
    starts = new._sources[NAME].blocks(2).samples
    needed = {}
    for sample, (epoch, window) in enumerate(numbers(new, 0, end + every)):
        needed.setdefault((epoch, int(starts.searchsorted(window, side="right")) - 1), []).append(sample)
    visits = [visit for visit in islice(new.block_visits(), len(needed)) if visit.end <= end + every]
    assert visits
    assert [(visit.first, visit.end) for visit in visits] == sorted(
        (own[0], own[-1] + 1) for own in needed.values() if own[-1] >= old.samples
    )
    state = saved(new)
    assert (state["version"], state["block_order_version"]) == (1, 1)
    assert all(torch.equal(*pair) for pair in zip(taken(TokenLoader.from_state(state), 9), taken(new, 9), strict=True))


@pytest.mark.parametrize(
    "settings",
    [
        {"packing": "best_fit", "order": "split"},
        {"packing": "best_fit", "order": Blocks(shards=2, lanes=3)},
        {"packing": BestFit(pad_documents_to=4), "max_documents": 2},
    ],
)
def test_packed_documents_go_on_over_a_cache_that_has_grown_twice(caches: Grown, settings: dict[str, Any]) -> None:
    packed: dict[str, Any] = SETTINGS | settings
    old = TokenLoader({NAME: caches["old"]}, **packed)
    before = old.samples_per_epoch[NAME]
    taken(old, 7)
    new = TokenLoader.from_state(saved(old), {NAME: caches["new"]}, grown=True)
    full = (before - old.samples) // 3
    assert full > 5
    new_state = saved(new)
    assert all(torch.equal(*pair) for pair in zip(taken(new, full), taken(old, full), strict=True))
    every = new.samples_per_epoch[NAME]
    assert every > before
    for number in (1, 2):
        found = numbers(new, before + (number - 1) * every, before + number * every)
        assert {epoch for epoch, _ in found} == {number}
        assert sorted(row for _, row in found) == list(range(every))
    assert new.find(3) == TokenLoader({NAME: caches["old"]}, **packed).find(3)
    taken(new, every // 3)  # into the second epoch, so that three epochs differ
    for state in (new_state, saved(new)):
        newest = TokenLoader.from_state(state, {NAME: caches["newest"]}, grown=True)
        again, copied = TokenLoader.from_state(saved(newest)), pickle.loads(pickle.dumps(newest))
        batches = taken(newest, 40)
        assert all(torch.equal(*pair) for other in (again, copied) for pair in zip(taken(other, 40), batches, strict=True))
    assert np.array_equal(newest.trace(2).tokens[:, :-1], taken(TokenLoader({NAME: caches["old"]}, **packed), 3)[2].numpy())  # type: ignore[union-attr]
    fresh = saved(TokenLoader({NAME: caches["newest"]}, **packed))
    newest.load_state_dict(fresh)
    assert all(torch.equal(*pair) for pair in zip(taken(newest, 9), taken(TokenLoader.from_state(fresh), 9), strict=True))
    newest.load_state_dict(saved(again))
    with pytest.raises(NielsCacheError, match="edited"):
        TokenLoader.from_state(
            {**saved(newest), "sources": changed(saved(newest), documents=[1] * len(saved(newest)["sources"][NAME]["documents"]))}
        )


def test_a_blend_of_packed_documents_keeps_its_past_when_a_source_grows(caches: Grown) -> None:
    """Rows of the grown cache have another average of tokens, and other shares of rows would give the past other samples."""
    sources = {NAME: caches["old"], "more": caches["one"]}
    packed: dict[str, Any] = SETTINGS | {"packing": "best_fit", "weights": {NAME: 2, "more": 1}}
    old = TokenLoader(sources, **packed)
    taken(old, 9)
    grown = sources | {NAME: caches["newest"]}
    assert TokenLoader(grown, **packed)._run_order.blend.weights != old._run_order.blend.weights
    new = TokenLoader.from_state(saved(old), grown, grown=True)
    for loader in (new, TokenLoader.from_state(saved(new)), pickle.loads(pickle.dumps(new))):
        assert loader._run_order.blend.weights == old._run_order.blend.weights
        assert saved(loader)["sources"][NAME]["average"] == saved(old)["sources"][NAME]["average"]
    with pytest.raises(NielsCacheError, match="edited"):
        TokenLoader.from_state({**saved(new), "sources": changed(saved(new), average=[0, 5])})


def test_a_state_that_cannot_be_loaded_changes_no_source(caches: Grown) -> None:
    packed: dict[str, Any] = SETTINGS | {"packing": "best_fit", "weights": {NAME: 1, "more": 1}}
    old = TokenLoader({NAME: caches["old"], "more": caches["old"]}, **packed)
    taken(old, 7)
    loader = TokenLoader.from_state(saved(old), {NAME: caches["new"], "more": caches["new"]}, grown=True)
    state = saved(loader)
    fresh = TokenLoader({NAME: caches["new"], "more": caches["new"]}, **packed)
    expected = taken(fresh, 9)
    for documents in ([1, 10], [0, 10], [-1, 10]):
        edited = copy.deepcopy(state)
        edited["sources"]["more"]["documents"] = documents
        unchanged = TokenLoader({NAME: caches["new"], "more": caches["new"]}, **packed)
        with pytest.raises(NielsCacheError, match="edited"):
            unchanged.load_state_dict(edited)
        assert saved(unchanged)["sources"] == saved(fresh)["sources"]
        assert all(torch.equal(*pair) for pair in zip(taken(unchanged, 9), expected, strict=True))


def test_a_pass_ends_with_the_old_epoch(caches: Grown) -> None:
    old = TokenLoader(caches["old"], **SETTINGS, epochs=1)
    taken(old, 4)
    left = len(old)
    new = TokenLoader.from_state(saved(old), caches["new"], grown=True)
    assert len(new) == left
    for ours, theirs in zip(new, old, strict=True):
        assert torch.equal(ours.x, theirs.x)
    assert len(new) == -(-new.samples_per_epoch[NAME] // 3)


def test_a_state_over_a_grown_cache_goes_on_without_a_request(caches: Grown) -> None:
    old = TokenLoader(caches["old"], **SETTINGS)
    taken(old, 3)
    new = TokenLoader.from_state(saved(old), caches["new"], grown=True)
    every = taken(new, 80)
    assert new.step == 83
    for steps in (1, 40, 79):
        new = TokenLoader.from_state(saved(old), caches["new"], grown=True)
        taken(new, steps)
        state = saved(new)
        assert state["version"] == 1
        again = TokenLoader.from_state(state)
        assert all(torch.equal(*pair) for pair in zip(taken(again, 80 - steps), every[steps:], strict=True))
        trace = again.trace(0)
        assert np.array_equal(trace.tokens[:, :-1], taken(TokenLoader(caches["old"], **SETTINGS), 1)[0].numpy())  # type: ignore[union-attr]


def test_a_cache_that_grows_twice_in_one_epoch(caches: Grown) -> None:
    old = TokenLoader(caches["old"], **SETTINGS)
    taken(old, 3)
    new = TokenLoader.from_state(saved(old), caches["new"], grown=True)
    taken(new, 2)
    newest = TokenLoader.from_state(saved(new), caches["newest"], grown=True)
    direct = TokenLoader.from_state(saved(old), caches["newest"], grown=True)
    taken(direct, 2)
    assert saved(newest)["sources"] == saved(direct)["sources"]
    assert all(torch.equal(*pair) for pair in zip(taken(newest, 90), taken(direct, 90), strict=True))


def test_a_report_counts_each_epoch_with_the_samples_that_it_had(caches: Grown) -> None:
    old = TokenLoader(caches["old"], **SETTINGS | {"B": 1})
    before = old.samples_per_epoch[NAME]
    taken(old, 4)
    new = TokenLoader.from_state(saved(old), caches["new"], grown=True)
    every = new.samples_per_epoch[NAME]
    for steps, epochs, repetitions in ((before - 4, 1, 0), (before - 4 + every, 2, 1), (before - 4 + 3 * every, 4, 3)):
        (share,) = new.report(steps).sources
        assert (share.epochs, share.repetitions) == (epochs, repetitions)
        times = Counter(window for _, window in numbers(new, 0, steps + 4))
        assert max(times.values()) == repetitions + 1
        (share,) = new.report(steps + every).sources
        assert share.repetitions == repetitions + 1
    assert new.report(1).sources[0].epochs == 5 / before


def test_a_blend_grows_source_by_source(caches: Grown) -> None:
    blend = {"a": 2.0, "b": 1.0}
    old = TokenLoader({"a": caches["old"], "b": caches["one"]}, **SETTINGS, weights=blend)
    taken(old, 6)
    new = TokenLoader({"a": caches["newest"], "b": caches["one"]}, **SETTINGS, weights=blend)
    new.load_state_dict(saved(old), grown=True)
    left = old.samples_per_epoch["a"] - int(old._run_order.blend.counts(old.samples)[0])
    for ours, theirs in zip(taken(new, left // 3), taken(old, left // 3), strict=True):
        assert torch.equal(ours, theirs)
    state = saved(new)
    assert "phases" in state["sources"]["a"]
    assert "phases" not in state["sources"]["b"]


def test_a_state_of_a_worker_does_not_go_on_over_a_grown_cache(caches: Grown) -> None:
    old = TokenLoader(caches["old"], **SETTINGS)
    taken(old, 3)
    state = {**saved(old), "worker": [0, 1, 3]}
    new = TokenLoader(caches["new"], **SETTINGS)
    with pytest.raises(NielsCacheError, match="steps="):
        new.load_state_dict(state, grown=True)
    with pytest.raises(NielsCacheError) as caught:
        new.load_state_dict(state)
    assert "grown=True" not in str(caught.value)


def test_other_caches_are_refused_although_growth_is_allowed(caches: Grown, tmp_path: Path) -> None:
    new = TokenLoader(caches["new"], **SETTINGS)
    taken(new, 2)
    state = saved(new)
    with pytest.raises(NielsCacheError, match=NAME):
        TokenLoader.from_state(state, caches["old"], grown=True)  # it became shorter
    with pytest.raises(NielsCacheError, match="allow_changed"):
        TokenLoader.from_state({**state, "sources": changed(state, fingerprint="0" * 64)}, caches["newest"], grown=True)
    grown = saved(TokenLoader.from_state(state, caches["newest"], grown=True))
    for phases in ([[0, 5]], [[1, 5], [6, 3]], [[0, 4], [5, 9]], [[0, 0]], "12", [[0, 1, 2]], [[0, "x"]]):
        with pytest.raises(NielsCacheError, match="state"):
            TokenLoader.from_state({**grown, "sources": changed(grown, phases=phases)})


def changed(state: dict[str, Any], **values: Any) -> dict[str, Any]:
    sources = copy.deepcopy(state["sources"])
    sources[NAME] |= values
    return sources


@pytest.mark.parametrize("seed", range(30))
def test_epochs_cover_all_samples_whatever_grows_when(seed: int) -> None:
    random = np.random.default_rng(seed)
    epochs, count = Epochs([(0, int(random.integers(1, 9)))]), 0
    for _ in range(int(random.integers(1, 5))):
        count += int(random.integers(0, 20))
        known = epochs.at(np.arange(count + 1))
        epochs = epochs.grown(count, epochs.phases[-1][1] + int(random.integers(1, 9)))
        begun = known[1][-1] != 0
        upto = count + 1 if begun else count
        assert all(np.array_equal(now[:upto], then[:upto]) for now, then in zip(epochs.at(np.arange(count + 1)), known, strict=True))
    assert Epochs.is_valid(epochs.phases)
    numbers, places = epochs.at(np.arange(300))
    for epoch in range(int(numbers[-1])):
        inside = places[numbers == epoch]
        assert inside.tolist() == list(range(epochs.phases[epochs.phase(epoch)][1]))
        assert epochs.start(epoch) == int(np.flatnonzero(numbers == epoch)[0])
    assert (np.diff(numbers) >= 0).all()
