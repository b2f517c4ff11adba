"""A run in phases: no document is read twice before its source is exhausted, and a resumed run goes on exactly."""

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from niels_cache_runtime import Batch, BestFit, NielsCacheError, Phase, PhasedLoader, TokenLoader
from niels_cache_runtime.loader.blend import Blend, schedule_of_counts
from niels_cache_runtime.loader.windows import PretrainWindows
from tests.helpers.hand_made import write_sft, write_stream

FIRST = 10  # token k of a stream is k + FIRST, so a batch says where it comes from
SIZES = {"a": 4000, "b": 1500}
SETTINGS: dict[str, Any] = {"seed": 3, "lot_tokens": 200, "lanes": 3}
BLEND = [
    Phase(tokens=1200, T=16, B=3, weights={"a": 2, "b": 1}),
    Phase(tokens=800, T=40, B=2, weights={"a": 1, "b": 0}, packing="best_fit"),
    Phase(tokens=1500, T=24, B=4, weights={"a": 1, "b": 1}),
]


def doc_ends(tokens: int) -> list[int]:
    """Return the ends of documents of 2 to 60 tokens."""
    ends = torch.randint(2, 61, (tokens,), generator=torch.Generator().manual_seed(tokens)).cumsum(0)
    return [*ends[ends < tokens - 1].tolist(), tokens]


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("phases") / "pretrain"
    return {
        name: write_stream(folder / name, np.arange(size) + FIRST, shard_tokens=700, doc_ends=doc_ends(size))
        for name, size in SIZES.items()
    }


def same(one: Iterable[Batch], other: Iterable[Batch]) -> int:
    """Compare batches, and return how many there are."""
    ours, theirs = list(one), list(other)
    assert len(ours) == len(theirs)
    for first, second in zip(ours, theirs, strict=True):
        assert all(torch.equal(*tensors) for tensors in zip(first.tensors(), second.tensors(), strict=True))
    return len(ours)


def saved(loader: PhasedLoader, **settings: Any) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict(**settings), sort_keys=True))
    return state


def resumed(state: dict[str, Any], caches: Any, phases: list[Phase] = BLEND, **settings: Any) -> PhasedLoader:
    loader = PhasedLoader(caches, phases=phases, **{**SETTINGS, **settings})
    loader.load_state_dict(state)
    return loader


def rows(batches: Iterable[Batch]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(row.tolist()) for batch in batches for row in batch.x)


def lots_of(folder: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges of the lots, and the lot of every token."""
    edges = PretrainWindows(folder, T=16, lot_tokens=SETTINGS["lot_tokens"])._block_edges(1)[1]
    return edges, edges.searchsorted(np.arange(edges[-1]), side="right") - 1


@pytest.mark.parametrize("packings", [(None, None, None), (None, "best_fit", None)])
@pytest.mark.parametrize(("lanes", "shuffle"), [(1, True), (4, True), (1, False)])
def test_no_document_is_read_twice_before_its_source_is_exhausted(
    caches: dict[str, str], packings: tuple[Any, ...], lanes: int, shuffle: bool
) -> None:
    phases = [Phase(tokens=1000, T=T, B=2, packing=packing) for T, packing in zip((16, 40, 24), packings, strict=True)]
    loader = PhasedLoader(caches["a"], phases=[*phases, Phase(T=16, B=2)], **{**SETTINGS, "lanes": lanes}, shuffle=shuffle)
    edges, lot_of = lots_of(caches["a"])
    ends = np.array(doc_ends(SIZES["a"]))
    assert set(edges[1:]) <= set(ends)
    batches = iter(loader)
    taken: Counter[int] = Counter()
    for own, phase in zip(loader._loaders, phases, strict=False):
        pairs = [tuple(batch) for batch in islice(batches, own.left)]
        found = Counter(place for x, y in pairs for place in (x[y == x + 1] - FIRST).tolist())  # inputs whose target follows in the stream
        assert set(found.values()) == {1}
        lots = set(lot_of[list(found)].tolist())
        missing = np.setdiff1d(np.flatnonzero(np.isin(lot_of, list(lots))), list(found))
        if phase.packing:  # but for the last token of each document, which predicts nothing
            assert missing.tolist() == (ends[np.isin(lot_of[ends - 1], list(lots))] - 1).tolist()
        else:  # but for what is after the last window of each lot
            assert (edges[lot_of[missing] + 1] - missing).max() <= phase.T
        taken.update(lots)
    assert set(taken.values()) == {1}
    last = loader._loaders[-1]
    assert 0 < len(taken) < len(edges) - 1
    rest = last._run_order.locate(np.arange(last._run_order._epochs[0].phases[0][1]))
    assert set(rest.epochs.tolist()) == {0}
    left = set((last._sources["a"].blocks(1).samples.searchsorted(rest.numbers, side="right") - 1).tolist())
    assert sorted([*left, *taken]) == list(range(len(edges) - 1))  # the phase without end begins with the rest of the epoch


def test_every_epoch_reads_every_document_once_in_one_phase(caches: dict[str, str]) -> None:
    sizes = ((1000, 16), (2500, 24), (9000, 16), (400, 40), (3000, 8))
    phases = [Phase(tokens=tokens, T=T, B=1, packing="best_fit") for tokens, T in sizes]
    loader = PhasedLoader(caches["b"], phases=phases, **SETTINGS)
    found: dict[int, Counter[int]] = {}
    for own in loader._loaders:
        located = own._run_order.locate(np.arange(own._run_order.end or 0))
        assert (np.diff(located.epochs) >= 0).all()  # an epoch ends before the next begins
        for epoch in np.unique(located.epochs).tolist():
            documents = own._sources["b"].origins(located.numbers[located.epochs == epoch], epoch=epoch).documents
            found.setdefault(epoch, Counter()).update(set(documents[documents >= 0].tolist()))
    assert len(found) > 6
    for epoch in range(len(found) - 1):
        assert found[epoch] == Counter(range(len(doc_ends(SIZES["b"]))))


def test_a_run_resumes_exactly_at_every_step(caches: dict[str, str]) -> None:
    loader = PhasedLoader(caches, phases=BLEND, **SETTINGS)
    states, batches = [saved(loader)], []
    assert len(loader) > 30
    for batch in loader:
        batches.append(batch)
        states.append(saved(loader))
    assert list(loader) == []
    fresh = PhasedLoader(caches, phases=BLEND, **SETTINGS)
    assert len(batches) == len(fresh)
    for step in range(0, len(states), 5):
        assert saved(fresh, steps=step) == states[step]
    for step in (0, 1, 17, 25, 26, 27, 40, len(batches)):
        fresh.load_state_dict(states[step])
        assert (fresh.step, saved(fresh)) == (step, states[step])
        assert same(fresh, batches[step:]) == len(batches) - step
    with pytest.raises(NielsCacheError, match="steps="):
        PhasedLoader(caches, phases=BLEND, **SETTINGS).state_dict(steps=len(batches) + 1)


def test_ranks_share_every_phase_and_may_change(caches: dict[str, str]) -> None:
    batches = list(PhasedLoader(caches, phases=BLEND, **SETTINGS))
    ranks = [PhasedLoader(caches, phases=BLEND, rank=rank, world_size=2, **SETTINGS) for rank in range(2)]
    first = [list(islice(loader, 14)) for loader in ranks]
    state = saved(ranks[0])
    assert state == saved(ranks[1])
    assert ranks[0].phase == 1
    other = [Phase(**{**vars(phase), "B": 1}) for phase in BLEND]
    rest = [list(resumed(state, caches, other, rank=rank, world_size=3)) for rank in range(3)]
    assert rows(batch for own in (*first, *rest) for batch in own) == rows(batches)
    assert sum(len(own) for own in rest) > 30


def test_workers_make_the_same_batches(caches: dict[str, str]) -> None:
    loader = PhasedLoader(caches, phases=BLEND, **SETTINGS)
    expected = list(PhasedLoader(caches, phases=BLEND, **SETTINGS))
    found = list(DataLoader(loader, batch_size=None, num_workers=2, multiprocessing_context="fork"))
    assert same(expected, found) == len(loader)
    assert same(resumed(saved(loader, steps=25), caches), expected[25:]) > 5
    assert same(pickle.loads(pickle.dumps(loader)), expected) > 5


def test_a_persistent_worker_has_no_second_pass(caches: dict[str, str]) -> None:
    loader = PhasedLoader(caches, phases=BLEND, **SETTINGS)
    batches = DataLoader(loader, batch_size=None, num_workers=1, multiprocessing_context="fork", persistent_workers=True)
    assert len(list(batches)) == len(loader)
    with pytest.raises(NielsCacheError, match="persistent workers"):
        list(batches)


def test_a_worker_has_no_state(caches: dict[str, str]) -> None:
    batches = StatefulDataLoader(
        PhasedLoader(caches, phases=BLEND, **SETTINGS), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    with pytest.raises(NielsCacheError, match="steps="):
        list(batches)


def test_other_settings_apply_to_all_phases(caches: dict[str, str]) -> None:
    packing = BestFit(pad_documents_to=4)
    phases = [Phase(tokens=500, T=T, B=2, weights={"a": 1, "b": 1}, packing=packing) for T in (16, 32)]
    settings: dict[str, Any] = {**SETTINGS, "phases": phases, "max_documents": 5, "loss_weights": {"b": 0.5}, "fields": ["weights"]}
    whole = list(PhasedLoader(caches, **settings))
    halves = [list(PhasedLoader(caches, cp_rank=rank, cp_size=2, **settings)) for rank in range(2)]
    assert len(whole) > 20
    for batch, *parts in zip(whole, *halves, strict=True):
        for name in ("x", "y", "weights"):
            assert torch.equal(batch[name].sort().values, torch.cat([part[name] for part in parts], dim=1).sort().values)
        assert set(batch.weights.unique().tolist()) <= {0.0, 0.5, 1.0}
    assert {batch.x.shape for batch in whole} >= {(2, 16), (2, 32)}


def test_phases_that_have_not_begun_may_change(caches: dict[str, str]) -> None:
    loader = PhasedLoader(caches, phases=BLEND, **SETTINGS)
    before = list(islice(loader, loader._loaders[0].left))
    state = saved(loader)
    other = [BLEND[0], Phase(tokens=3000, T=8, B=5, weights={"a": 1, "b": 3})]
    changed = resumed(state, caches, other)
    assert same(islice(PhasedLoader(caches, phases=other, **SETTINGS), len(before)), before) == len(before)
    assert {batch.x.shape[1] for batch in changed} == {8}
    for change in ({"tokens": 1600}, {"T": 24}, {"packing": "best_fit"}, {"weights": {"a": 2, "b": 2}}):
        with pytest.raises(NielsCacheError, match=rf"phases\[0\]: {next(iter(change))}=.{{,30}}: the state was saved with"):
            resumed(state, caches, [Phase(**{**vars(BLEND[0]), **change}), *BLEND[1:]])
    list(islice(loader, 1))
    changed.load_state_dict(state)
    expected = list(islice(batches := iter(changed), 3))
    changed.load_state_dict(state)
    with pytest.raises(NielsCacheError, match="stale"):
        next(batches)
    with pytest.raises(NielsCacheError, match=r"phases\[1\]: "):
        changed.load_state_dict(saved(loader))
    assert same(islice(changed, 3), expected) == 3  # a refused state changes nothing
    with pytest.raises(NielsCacheError, match=r"phases\[1\]; give all"):
        resumed(saved(loader), caches, BLEND[:1])


@pytest.mark.parametrize(("setting", "value"), [("seed", 4), ("lot_tokens", 201), ("lanes", 2), ("shuffle", False)])
def test_settings_that_decide_the_lots_stay(caches: dict[str, str], setting: str, value: Any) -> None:
    with pytest.raises(NielsCacheError, match=f"{setting}="):
        resumed(saved(PhasedLoader(caches, phases=BLEND, **SETTINGS)), caches, **{setting: value})


def test_reports_and_traces_count_over_all_phases(caches: dict[str, str]) -> None:
    loader = PhasedLoader(caches, phases=BLEND, fields=["dataset_ids"], **SETTINGS)
    reports = loader.report()
    edges = [(report.first, report.last) for report in reports]
    assert [first for first, _ in edges] == [0, *(last for _, last in edges[:-1])]
    tokens = [(last - first) * phase.T for (first, last), phase in zip(edges, BLEND, strict=True)]
    for found, phase in zip(tokens, BLEND, strict=True):
        assert phase.tokens is not None
        assert abs(found - phase.tokens) <= 2 * 130
    assert abs(sum(tokens) - 3500) <= 2 * 130  # what a phase has too much, the next ones have not
    assert [source.samples for source in reports[1].sources][1] == 0
    assert all(early.epochs < late.epochs < 2 for early, late in zip(reports[0].sources, reports[2].sources, strict=True))
    assert "samples 0 to" in str(reports[0])
    seen, done, numbers = 0, 0, []
    for step, batch in enumerate(loader):
        assert loader.step == step + 1
        done += batch.x.numel()
        assert loader.tokens == done
        if step % 4 == 0:
            trace = PhasedLoader(caches, phases=BLEND, **SETTINGS).trace(step) if step % 8 else loader.trace(step)
            assert trace.step == step
            assert torch.equal(torch.from_numpy(trace.tokens[:, :-1].astype(np.int64)), batch.x)
            assert trace.samples.tolist() == list(range(seen, seen + len(batch.x)))
            assert batch.dataset_ids is not None
            assert trace.dataset_ids.tolist() == batch.dataset_ids.tolist()
            numbers.append(step)
        seen += len(batch.x)
    assert seen == edges[-1][1]
    assert numbers[-1] > 20
    with pytest.raises(NielsCacheError, match="step="):
        loader.trace(loader.step)


def test_a_last_phase_without_tokens_has_no_end(caches: dict[str, str]) -> None:
    loader = PhasedLoader(caches, phases=[BLEND[0], Phase(T=24, B=4, weights={"a": 3, "b": 1}, packing="best_fit")], **SETTINGS)
    assert len(loader.report()) == 1
    with pytest.raises(TypeError, match="tokens"):
        len(loader)
    state = saved(loader, steps=150)
    located = loader._loaders[1]._run_order.locate(np.arange(1400))
    assert located.epochs[-1] > 3
    assert np.bincount(located.sources).tolist() == pytest.approx([1050, 350], abs=30)
    again = resumed(state, caches, [*loader.phases])
    list(islice(loader, 150))
    assert same(islice(again, 9), islice(loader, 9)) == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"phases": []}, "phases="),
        ({"phases": [{"T": 16}]}, "phases="),
        ({"phases": Phase(T=16, B=1)}, "phases="),
        ({"phases": [Phase(T=16, B=1), Phase(T=16, B=1)]}, r"phases\[0\]: tokens=None"),
        ({"phases": [Phase(tokens=1000, T=200, B=1)]}, r"phases\[0\]: T=200.*lot_tokens"),
        ({"phases": [Phase(tokens=1000, T=0, B=1)]}, r"phases\[0\]: T=0"),
        ({"phases": [Phase(tokens=1000, T=16, B=1), Phase(tokens=40, T=16, B=1)]}, r"phases\[1\]: a: has \d+ .* lot_tokens"),
        ({"phases": [Phase(tokens=200, T=16, B=1), Phase(tokens=2, T=16, B=1)], "lot_tokens": 300}, r"phases\[1\]: a: has 0 inputs"),
        ({"phases": [Phase(tokens=1000, T=16, B=1, packing="worst_fit")]}, r"phases\[0\]: packing"),
        ({"T": 16}, "T: .*Phase"),
        ({"epochs": 1}, "epochs: "),
        ({"stride": 8}, "stride: "),
        ({"lot_tokens": 0}, "lot_tokens=0"),
        ({"lanes": 0}, "lanes=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_invalid_settings_are_refused(caches: dict[str, str], changes: dict[str, Any], message: str) -> None:
    given = {"phases": [Phase(tokens=1000, T=16, B=1)], **SETTINGS, **changes}
    with pytest.raises(NielsCacheError, match=message):
        PhasedLoader(caches["a"], **given)


@pytest.mark.parametrize("values", [{"tokens": 0}, {"tokens": 1.5}, {"weights": [(0, {"a": 1})]}, {"weights": {"a": "much"}}])
def test_invalid_phases_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(NielsCacheError, match=f"{next(iter(values))}"):
        Phase(T=16, B=1, **values)


@pytest.mark.parametrize("weights", [None, {"a": 1}, {"a": 1, "b": 1, "c": 1}, {"a": 1, "b": -1}, {"a": 0, "b": 0}])
@pytest.mark.parametrize("tokens", [1000, None])
def test_invalid_weights_of_a_phase_are_refused(caches: dict[str, str], weights: Any, tokens: int | None) -> None:
    with pytest.raises(NielsCacheError, match="weights"):
        PhasedLoader(caches, phases=[Phase(tokens=tokens, T=16, B=1, weights=weights)], **SETTINGS)


def test_conversations_and_other_states_are_refused(caches: dict[str, str], tmp_path: Path) -> None:
    sft = str(write_sft(tmp_path / "sft" / "chats"))
    phases = [Phase(tokens=1000, T=16, B=1)]
    with pytest.raises(NielsCacheError, match="SFT"):
        PhasedLoader(sft, phases=phases, **SETTINGS)
    loader = PhasedLoader(caches["a"], phases=phases, **SETTINGS)
    plain = TokenLoader(caches["a"], T=16, B=1, seed=3)
    state = saved(loader)
    for other in (plain.state_dict(), {}, None, {**state, "version": 2}, {**state, "phases": []}, {**state, "phases": 3}):
        with pytest.raises(NielsCacheError, match="PhasedLoader"):
            loader.load_state_dict(other)  # type: ignore[arg-type]
    with pytest.raises(NielsCacheError, match="TokenLoader"):
        plain.load_state_dict(state)
    with pytest.raises(NielsCacheError, match="lot_tokens"):
        TokenLoader.from_state(state["phases"][0])
    with pytest.raises(NielsCacheError, match="lot_tokens"):
        plain.load_state_dict(state["phases"][0])
    grown = write_stream(tmp_path / "pretrain" / "a", np.arange(5000) + FIRST, doc_ends=[*doc_ends(4000), 5000])
    with pytest.raises(NielsCacheError, match=r"restore it$"):
        PhasedLoader({"a": grown}, phases=phases, **SETTINGS).load_state_dict(state)


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a begun phase that is none": lambda state: state["phases"].append(None),
    "a phase that has not ended": lambda state: state["phases"][0].update(samples=3, step=1, pass_start=0, batches=[[0, 0, 3, 1]]),
    "a phase with other lots": lambda state: state["phases"][0]["settings"]["phase"]["sources"].update(a=[1, 0]),
    "lots that are none": lambda state: state["phases"][0]["settings"].update(phase=None),
    "a phase without its lots": lambda state: state["phases"][0]["settings"].pop("phase"),
    "a source that has grown": lambda state: state["phases"][0]["sources"]["b"].update(
        phases=[[0, 9], [9, state["phases"][0]["sources"]["b"]["samples"]]]
    ),
    "another average": lambda state: state["phases"][1]["sources"]["a"].update(average=[5, 1]),
    "a position without samples": lambda state: state["phases"][1].pop("samples"),
    "an array": lambda state: state.update(array=torch.ones(3)),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_an_edited_state_is_refused(caches: dict[str, str], edit: Callable[[dict[str, Any]], Any]) -> None:
    loader = PhasedLoader(caches, phases=BLEND, **SETTINGS)
    list(islice(loader, (loader._loaders[0].left or 0) + 2))
    state = saved(loader)
    assert len(state["phases"]) == 2
    edit(state)
    with pytest.raises(NielsCacheError) as caught:
        resumed(state, caches)
    assert len(str(caught.value).splitlines()) == 1


def test_the_order_of_a_run_in_phases_is_pinned(caches: dict[str, str]) -> None:
    found = [batch.x[0, 0].item() for batch in PhasedLoader(caches, phases=BLEND, **SETTINGS)]
    assert found[:8] == [3353, 2320, 2400, 276, 1455, 1263, 2256, 2416]
    assert found[-8:] == [640, 106, 519, 3509, 2779, 447, 591, 3437]


def test_a_phase_of_many_epochs_opens_at_once_and_reads_each_once(caches: dict[str, str]) -> None:
    loader = PhasedLoader(caches["b"], phases=[Phase(tokens=700, T=16, B=1), Phase(tokens=10**12, T=16, B=1)], **SETTINGS)
    order = loader._loaders[1]._run_order
    rows = loader._loaders[1].samples_per_epoch["b"]
    assert order.end == pytest.approx(10**12 // 16, abs=rows)
    first = order._epochs[0].phases[1][0] + 12345 * rows
    located = order.locate(np.arange(first, first + rows))
    assert set(located.epochs.tolist()) == {12346}
    assert sorted(located.numbers.tolist()) == list(range(rows))
    assert loader.report()[1].sources[0].epochs == pytest.approx(10**12 / 16 / rows, rel=1e-6)
    tail = order.locate(np.arange(order.end - 2 * rows, order.end))
    assert len({*zip(tail.epochs.tolist(), tail.numbers.tolist(), strict=True)}) == 2 * rows


def test_counts_become_a_schedule_of_exactly_these_counts() -> None:
    generator = torch.Generator().manual_seed(0)
    for case in range(20):
        counts = torch.randint(0, 10 ** (1 + case % 6), (5,), generator=generator).tolist()
        names = [str(number) for number in range(5)]
        blend = Blend(names, schedule_of_counts(names, counts))
        total = sum(counts)
        assert blend.counts(total).tolist() == counts
        half = blend.counts(total // 2)
        assert np.abs(half - np.array(counts) / 2).max() < 2 + total / 10000
