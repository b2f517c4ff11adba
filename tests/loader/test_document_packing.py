"""Documents packed whole. Every transition inside a document is a target once per epoch, and every epoch pairs the documents anew."""

import hashlib
import json
import pickle
from collections import Counter
from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from niels_cache_runtime import BestFit, Blocks, NielsCacheError, TokenLoader
from niels_cache_runtime.cache.index_cache import IndexCache, new_array
from niels_cache_runtime.errors import NotWrittenError
from niels_cache_runtime.format.layout import Array
from niels_cache_runtime.loader.packing import document_plan, documents
from niels_cache_runtime.loader.packing.document_plan import (
    DOCUMENT_PLAN_VERSION,
    DocumentPlan,
    EpochKeys,
    Pieces,
    PieceSettings,
    build_document_plan,
)
from niels_cache_runtime.loader.packing.documents import PackedDocuments
from niels_cache_runtime.verify import verify_dataset
from tests.helpers.hand_made import EOT, write_pretrain, write_sft, write_stream

SETTINGS: dict[str, Any] = {"T": 16, "B": 3, "seed": 5, "packing": "best_fit"}


def drawn(n: int, low: int, high: int, *, seed: int = 0) -> list[int]:
    return torch.randint(low, high + 1, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def log_normal(n: int, median: float, *, seed: int = 0) -> list[int]:
    normal = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy()
    return np.maximum(2, np.exp(normal) * median).astype(np.int64).tolist()


def arrays_of(ends: np.ndarray, settings: PieceSettings, every: Sequence[int], unit_documents: int = 1 << 26) -> dict[str, Array]:
    arrays: dict[str, Array] = {}

    def allocate(name: str, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        return arrays.setdefault(name, new_array(name, shape, dtype))

    build_document_plan(allocate, ends, settings, edges=np.array(every), unit_documents=unit_documents)
    return arrays


def plan_of(
    lengths: Sequence[int], T: int, *, edges: Sequence[int] = (), unit_documents: int = 1 << 26, **changes: Any
) -> tuple[DocumentPlan, list[int]]:
    ends = np.cumsum(lengths).astype(np.uint64)
    every = sorted({0, *edges, int(ends[-1])})
    settings = PieceSettings(T, **changes)
    return DocumentPlan(arrays_of(ends, settings, every, unit_documents), ends, settings), every


def by_row(pieces: Pieces, rows: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for row, start, length in zip(*(array.tolist() for array in pieces[:3]), strict=True):
        found.setdefault(rows[row], []).append((start, length))
    return found


changes = st.builds(
    lambda bos, pad_to, most: {"bos": bos, "pad_to": pad_to, "most": most},
    st.booleans(),
    st.sampled_from([1, 1, 2, 3, 8]),
    st.none() | st.integers(1, 4),
)
cases = st.tuples(st.integers(1, 40), st.just({}) | changes).flatmap(
    lambda case: st.tuples(
        st.just(max(case[0] // case[1].get("pad_to", 1), 1 + (case[1].get("pad_to") == 1)) * case[1].get("pad_to", 1)),
        st.just(case[1]),
        st.lists(st.integers(1, 3 * case[0] + 5), min_size=1, max_size=150),
        st.lists(st.integers(1, 200), max_size=4),
        st.integers(1, 60),
    )
)


@given(cases, st.none() | st.integers(0, 5))
def test_every_transition_is_a_target_once_and_pieces_are_in_the_block_of_their_first_token(
    case: tuple[int, dict[str, Any], list[int], list[int], int], epoch: int | None
) -> None:
    T, changes, lengths, cuts, unit_documents = case
    total = sum(lengths)
    plan, edges = plan_of(lengths, T, edges=[cut % total for cut in cuts], unit_documents=unit_documents, **changes)
    keys = None if epoch is None else EpochKeys(3, epoch)
    rows = list(range(plan.totals.rows))
    taken = plan.pieces(np.array(rows, dtype=np.int64), keys)
    found = by_row(taken, rows)
    pieces = [piece for row in rows for piece in found[row]]
    document_starts = np.cumsum([0, *lengths[:-1]]).tolist()
    inside = Counter(start + place for start, length in zip(document_starts, lengths, strict=True) for place in range(length - 1))
    assert Counter(place for start, length in pieces for place in range(start, start + length - 1)) == inside
    whole = [(start, length) for start, length in zip(document_starts, lengths, strict=True) if 2 <= length <= T + 1]
    assert set(whole) <= set(pieces)
    has_bos = ~np.isin(taken.starts, document_starts) & bool(changes.get("bos"))
    assert has_bos.any() == (taken.bos is not None and taken.bos.any())
    assert taken.bos is None or np.array_equal(taken.bos, has_bos)
    tokens, pad_to = taken.lengths + has_bos, changes.get("pad_to", 1)
    widths = tokens if taken.widths is None else taken.widths
    assert np.array_equal(widths, np.where(tokens > T, tokens, -(-tokens // pad_to) * pad_to))
    fills = np.bincount(taken.rows, weights=widths).astype(int).tolist()
    assert all(2 <= fill <= T + 1 for fill in fills)
    if pad_to > 1:
        assert not any(fill > T and len(found[row]) > 1 for row, fill in enumerate(fills))
    assert all(len(row) <= (changes.get("most") or T) for row in found.values())
    totals = plan.totals
    inputs = int(tokens.sum()) - sum(fill > T for fill in fills)
    assert (totals.tokens, totals.inputs, totals.pieces) == (int(tokens.sum()), inputs, len(pieces))
    assert max(-(-sum(fills) // (T + 1)), -(-len(pieces) // (changes.get("most") or T))) <= totals.least_rows <= len(rows)
    assert (totals.cut, totals.left_out) == (sum(length > T + 1 for length in lengths), lengths.count(1))
    before = plan.rows_before(np.array(edges)).tolist()
    assert before[-1] == len(rows)
    for block, (first, last) in enumerate(pairwise(before)):
        assert all(edges[block] <= start < edges[block + 1] for row in range(first, last) for start, _ in found[row])
    of_documents = []
    for document, (start, length) in enumerate(zip(document_starts, lengths, strict=True)):
        own = [row for row in rows for first, _ in found[row] if start <= first < start + length - 1]
        assert sorted(plan.rows_of(np.array([document]), keys).tolist()) == own
        of_documents += own
    assert sorted(plan.rows_of(np.arange(len(lengths)), keys).tolist()) == sorted(of_documents)
    some = rows[::-3]
    assert by_row(plan.pieces(np.array(some, dtype=np.int64), keys), some) == {row: found[row] for row in some}


def test_every_epoch_has_the_same_lengths_in_each_row_and_other_documents() -> None:
    plan, _ = plan_of(drawn(1500, 20, 700, seed=1), 1024)
    rows = list(range(plan.totals.rows))
    epochs = [by_row(plan.pieces(np.array(rows), EpochKeys(1, epoch)), rows) for epoch in range(3)]
    lengths = [[sorted(length for _, length in epoch[row]) for row in rows] for epoch in epochs]
    assert lengths[0] == lengths[1] == lengths[2]
    shared = [row for row in rows if len(epochs[0][row]) > 2]
    assert len(shared) > 50
    same = [sum(sorted(one[row]) == sorted(other[row]) for row in shared) for one, other in pairwise(epochs)]
    assert max(same) < len(shared) / 4
    by_length = [[length for _, length in epochs[0][row]] for row in shared]
    places = [row.index(max(row)) for row in by_length if row.count(max(row)) == 1]
    assert len(places) > 40
    assert places.count(0) < len(places) / 2  # the longest does not always come first
    assert len({*places}) > 2


def test_each_document_of_a_length_is_in_each_place_equally_often() -> None:
    plan, _ = plan_of([5, 5, 5, 9, 9], 13)
    places: Counter[tuple[int, int]] = Counter()
    for epoch in range(800):
        pieces = plan.pieces(np.arange(plan.totals.rows), EpochKeys(7, epoch))
        places.update(zip(pieces.rows.tolist(), pieces.starts.tolist(), strict=True))
    counts = {5: 3, 9: 2}
    of_row = [Counter(length for _, length in row) for row in by_row(pieces, range(9)).values()]
    assert len(places) > 6
    for (row, start), count in places.items():
        length = 5 if start < 15 else 9
        assert abs(count - 800 * of_row[row][length] / counts[length]) < 5 * 800**0.5 / counts[length]


def test_each_pair_of_a_class_is_in_each_pair_of_places_equally_often() -> None:
    n, count = 5, 500
    classes = np.stack([np.full(count, n), np.arange(2, 2 + count), np.zeros(count, dtype=np.int64)])
    places, times = np.tile(np.arange(n), count), np.full(count, n)
    found = np.concatenate([EpochKeys(5, epoch).place(places, classes, times).reshape(count, n) for epoch in range(40)])
    one, other = np.triu_indices(n, 1)
    pairs = [np.bincount(found[:, i] * n + found[:, j], minlength=n * n) for i, j in zip(one.tolist(), other.tolist(), strict=True)]
    counts = np.delete(np.array(pairs), np.arange(n) * (n + 1), axis=1)
    expected = len(found) / (n * (n - 1))
    assert ((counts - expected) ** 2 / expected).mean() < 2.5


def test_padding_is_at_most_three_per_thousand() -> None:
    for T, median in ((1024, 200), (2048, 500)):
        plan, _ = plan_of(log_normal(600 * T // median, median), T)
        totals = plan.totals
        assert totals.rows >= 500
        assert 1 - totals.inputs / (totals.rows * T) <= 0.003


def test_a_unit_stays_as_it_is_when_documents_are_added() -> None:
    lengths = drawn(100, 1, 40)
    plans = [plan_of(lengths[:count], 16, unit_documents=30)[0] for count in (95, 100)]
    rows = np.arange(int(plans[0].rows_before(np.array([sum(lengths[:90])]))[0]))
    assert len(rows) > 50
    for one, other in zip(*(plan.pieces(rows, EpochKeys(0, 1))[:3] for plan in plans), strict=True):
        assert np.array_equal(one, other)


def test_rows_are_pinned_for_this_version() -> None:
    """The rows are part of the format: a change of this test is a change of DOCUMENT_PLAN_VERSION."""
    assert DOCUMENT_PLAN_VERSION == 1
    plan, _ = plan_of([6, 4, 4, 1, 13, 3, 2, 2], 5)
    rows = list(range(plan.totals.rows))
    assert by_row(plan.pieces(np.array(rows), EpochKeys(0, 0)), rows) == {
        0: [(0, 6)],
        1: [(15, 6)],
        2: [(20, 6)],
        3: [(28, 3), (25, 3)],
        4: [(10, 4), (31, 2)],
        5: [(6, 4), (33, 2)],
    }
    plan, _ = plan_of(drawn(10_000, 1, 2000), 1024, edges=[1_000_000, 5_000_000])
    pieces = plan.pieces(np.arange(plan.totals.rows), EpochKeys(42, 3))
    assert hashlib.sha256(b"".join(array.astype("<i8").tobytes() for array in pieces[:3])).hexdigest()[:16] == "a4ec80b320167124"
    plan, _ = plan_of(drawn(10_000, 1, 2000), 1024, edges=[1_000_000, 5_000_000], bos=True, pad_to=8, most=3)
    pieces = plan.pieces(np.arange(plan.totals.rows), EpochKeys(42, 3))
    assert hashlib.sha256(b"".join(array.astype("<i8").tobytes() for array in pieces[:5])).hexdigest()[:16] == "2859936d872b4749"


def write_documents(folder: Path, lengths: Sequence[int], *, shard_tokens: int = 50) -> tuple[str, np.ndarray]:
    """Write documents that end with EOT, of tokens that tell their place in the stream. Return the split's folder, and the stream."""
    stream = 100 + np.arange(sum(lengths))
    ends = np.cumsum(lengths)
    stream[ends - 1] = EOT
    return write_stream(folder, stream, shard_tokens=shard_tokens, doc_ends=ends.tolist()), stream


@pytest.fixture
def split(tmp_path: Path) -> tuple[str, np.ndarray]:
    return write_documents(tmp_path / "pretrain" / "notes", drawn(200, 1, 50))


def test_a_batch_has_whole_documents_their_fields_and_masked_targets(split: tuple[str, np.ndarray]) -> None:
    folder, stream = split
    loader = TokenLoader(folder, **SETTINGS, epochs=1)
    learned: Counter[tuple[int, int]] = Counter()
    for step, batch in enumerate(loader):
        assert batch.y_masked is not None
        assert batch.document_ids is not None
        assert batch.position_ids is not None
        is_target = batch.y_masked != -100
        assert torch.equal(batch.y_masked[is_target], batch.y[is_target])
        same = batch.document_ids[:, :-1] == batch.document_ids[:, 1:]
        trace = loader.trace(step)
        assert np.array_equal(trace.tokens[:, :-1], batch.x.numpy())
        is_padding = torch.from_numpy(trace.documents < 0)
        assert torch.equal(is_target[:, :-1], same & ~is_padding[:, 1:-1])
        assert batch.x[is_padding[:, :-1]].eq(EOT).all()
        assert torch.equal(batch.position_ids == 0, torch.nn.functional.pad(~same, (1, 0), value=True))
        assert np.array_equal(trace.tokens[trace.files >= 0], stream[(trace.files * 50 + trace.offsets)[trace.files >= 0]])
        learned.update(zip(batch.x[is_target].tolist(), batch.y[is_target].tolist(), strict=True))
    ends = stream == EOT
    assert learned == Counter(zip(stream[:-1][~ends[:-1]].tolist(), stream[1:][~ends[:-1]].tolist(), strict=True))
    assert loader.report(1).sources[0].tokens == 3 * loader._sources["notes"].tokens // len(loader) // 3


def test_a_blend_mixes_packed_documents_with_conversations(split: tuple[str, np.ndarray], tmp_path: Path) -> None:
    sources = {"notes": split[0], "chats": str(write_sft(tmp_path / "sft" / "chats") / "train")}
    loader = TokenLoader(sources, **SETTINGS | {"B": 8}, weights={"notes": 3, "chats": 1}, fields=["dataset_ids"])
    source, seen = loader._sources["notes"], 0
    for step, batch in enumerate(islice(loader, 5)):
        trace: Any = loader.trace(step)
        for row in np.flatnonzero(trace.dataset_ids == 0).tolist():
            alone = source.read(trace.numbers[row : row + 1], epoch=int(trace.epochs[row]), boundaries=True)
            expected = alone.tokens[0, 1:].astype(np.int64)
            assert alone.ignored is not None
            expected[alone.ignored] = -100
            assert batch.y_masked is not None
            assert batch.y_masked[row].tolist() == expected.tolist()
            seen += 1
    assert seen > 20
    report = loader.report(10).sources
    assert "padding" in str(report[0].details)
    assert len(loader.find(0, source="chats")) == 1


@pytest.mark.parametrize("order", ["split", Blocks(shards=4, lanes=2)])
def test_ranks_share_an_epoch_and_a_run_resumes_exactly_on_other_ranks(split: tuple[str, np.ndarray], order: Any) -> None:
    whole = [batch.x for batch in islice(TokenLoader(split[0], **SETTINGS | {"B": 6}, order=order), 40)]
    ranks = [TokenLoader(split[0], **SETTINGS, order=order, rank=rank, world_size=2) for rank in (0, 1)]
    first = [torch.cat(batches) for batches in zip(*(map(lambda batch: batch.x, islice(rank, 7)) for rank in ranks), strict=True)]
    state = json.loads(json.dumps(ranks[0].state_dict()))
    rest = [batch.x for batch in islice(TokenLoader.from_state(state, B=6, rank=0, world_size=1), 33)]
    assert [rows.sort(dim=0).values.tolist() for rows in (*first, *rest)] == [rows.sort(dim=0).values.tolist() for rows in whole]
    assert len({tuple(row.tolist()) for rows in whole for row in rows}) > 200


@pytest.mark.parametrize("settings", [{}, {"shuffle": False}, {"order": Blocks(shards=4, lanes=3)}])
def test_find_is_trace_backwards(split: tuple[str, np.ndarray], settings: dict[str, Any]) -> None:
    loader = TokenLoader({"a": split[0], "b": split[0]}, **SETTINGS | {"B": 240}, weights={"a": 2, "b": 1}, **settings)
    wanted: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    samples = 5 * 240
    assert samples > 2 * loader.samples_per_epoch["a"]
    for step in range(5):
        trace: Any = loader.trace(step)
        begins = (np.diff(trace.documents, prepend=-2) != 0) & (trace.documents >= 0)
        for row, column in np.argwhere(begins).tolist():
            key = loader.names[int(trace.dataset_ids[row])], int(trace.epochs[row]), int(trace.documents[row, column])
            wanted.setdefault(key, []).append((step * 240 + row, column))
    assert np.array_equal(loader.as_dataset(samples)[samples - 1]["y"].numpy(), trace.tokens[-1, 1:])
    checked = [key for key in wanted if key[2] % 39 == 0]
    assert len({key[:2] for key in checked}) > 2
    for name, epoch, document in checked:
        found = [(sample, column) for sample, column in loader.find(document, source=name, epoch=epoch) if sample < samples]
        assert sorted(found) == wanted[name, epoch, document]
    ones = [document for document in range(200) if ("a", 0, document) not in wanted]
    assert ones
    assert loader.find(ones[0], source="a") == []
    for wrong in ({"document": 200, "source": "a"}, {"document": 0}, {"document": 0, "source": "c"}):
        with pytest.raises(NielsCacheError, match=r"document=200|source="):
            loader.find(**wrong)


def test_a_copy_in_a_worker_and_a_loader_that_opens_later_map_the_same_plan(
    split: tuple[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = TokenLoader(split[0], **SETTINGS)
    index = Path(split[0]).parents[2] / "index"
    assert [path.name for path in index.iterdir() if path.is_dir()] != []
    monkeypatch.setattr("niels_cache_runtime.loader.packing.documents.build_document_plan", None)
    for other in (pickle.loads(pickle.dumps(loader)), TokenLoader(split[0], **SETTINGS)):
        assert torch.equal(next(iter(other)).x, next(iter(TokenLoader(split[0], **SETTINGS))).x)
    with pytest.raises(TypeError):
        TokenLoader(split[0], **SETTINGS | {"T": 17})


@pytest.mark.parametrize("name", ["ordinals", "full_counts"])
def test_a_damaged_plan_is_noticed_where_it_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits of some items are flipped, one at a time. What is read is right, or another document of the same length, or an error."""
    lengths, T = drawn(160, 2, 5000, seed=4), 1000
    ends = np.cumsum(lengths).astype(np.uint64)
    monkeypatch.setattr(document_plan, "HASHED_BYTES", 0)
    arrays = arrays_of(ends, PieceSettings(T), [0, 150_000, int(ends[-1])])
    pieces = {
        (int(end) - length + part * T, min(T + 1, length - part * T))
        for end, length in zip(ends, lengths, strict=True)
        for part in range(6)
    }
    plan = DocumentPlan(arrays, ends, PieceSettings(T))
    rows, keys = np.arange(plan.totals.rows), EpochKeys(0, 0)
    noticed = count = 0
    for item in range(0, arrays[name].size - (name == "ordinals"), 9):
        for bit in range(8 * arrays[name].itemsize):
            flipped = arrays[name].copy()
            flipped.view(np.uint8)[item * flipped.itemsize + bit // 8] ^= 1 << bit % 8
            damaged = DocumentPlan({**arrays, name: flipped}, ends, PieceSettings(T), folder=Path("plans/0"))
            count += 1
            try:
                found = damaged.pieces(rows, keys)
            except NielsCacheError as error:
                noticed += f"0/{name}.npy" in str(error) and "delete plans/0" in str(error)
                continue
            assert {*zip(found.starts.tolist(), found.lengths.tolist(), strict=True)} <= pieces
    assert count > 100
    assert noticed > 0.99 * count


def test_a_plan_with_flipped_bytes_is_made_again_when_it_is_opened(split: tuple[str, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = next(iter(TokenLoader(split[0], **SETTINGS))).x
    [folder] = [path for path in (Path(split[0]).parents[2] / "index").iterdir() if path.is_dir()]
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(before) == 9
    for name, content in before.items():
        (folder / name).write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        assert torch.equal(next(iter(TokenLoader(split[0], **SETTINGS))).x, expected)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    for module in (document_plan, documents):  # as for files that are too large
        monkeypatch.setattr(module, "HASHED_BYTES", 0)
    for name in ("ordinals.npy", "full_counts.npy"):
        content = before[name]
        (folder / name).write_bytes(content[:128] + bytes(byte ^ 255 for byte in content[128:]))
        loader = TokenLoader(split[0], **SETTINGS, epochs=1)
        with pytest.raises(NielsCacheError, match=name):
            list(loader)
        with pytest.raises(NielsCacheError, match=name):
            [loader.find(document) for document in range(200)]
        (folder / name).write_bytes(content)


def test_the_plan_of_a_data_set_outside_a_cache_is_beside_it(tmp_path: Path) -> None:
    folder = write_pretrain(tmp_path / "alone")
    TokenLoader(str(folder), **SETTINGS | {"T": 8})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "index"]
    assert verify_dataset(folder, quick=True) == []  # it has no files that meta.json does not list


def test_a_plan_that_cannot_be_written_stays_in_memory_if_it_is_small(
    split: tuple[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = TokenLoader(split[0], **SETTINGS | {"packing": BestFit(plans=str(tmp_path / "plans"))})
    assert (tmp_path / "plans").is_dir()

    def refuse(*arguments: object) -> None:
        raise NotWrittenError("read-only")

    monkeypatch.setattr(IndexCache, "open", refuse)
    assert torch.equal(next(iter(TokenLoader(split[0], **SETTINGS))).y, next(iter(written)).y)
    monkeypatch.setattr("niels_cache_runtime.loader.packing.documents._MAX_DOCUMENTS_IN_MEMORY", 10)
    with pytest.raises(NielsCacheError, match=r"plans="):
        TokenLoader(split[0], **SETTINGS)


def test_settings_that_do_not_go_together_are_refused(split: tuple[str, np.ndarray], tmp_path: Path) -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"packing": "bestfit"}, "did you mean 'best_fit'"),
        ({"stride": 8}, "stride=8"),
        ({"packing": True}, "packing=True"),
        ({"T": 1 << 21, "B": 1}, "T=2097152"),
    ]
    for change, named in changes:
        with pytest.raises(NielsCacheError, match=named):
            TokenLoader(split[0], **SETTINGS | change)
    state = TokenLoader(split[0], **SETTINGS).state_dict()
    assert (state["settings"]["document_packing"], state["document_plan_version"]) == ("best_fit", 1)
    assert state["sources"]["notes"]["documents"] == [200]
    with pytest.raises(NielsCacheError, match="packing=None"):
        TokenLoader(split[0], **SETTINGS | {"packing": None}).load_state_dict(state)
    with pytest.raises(NielsCacheError, match="version 0"):
        TokenLoader.from_state(state | {"document_plan_version": 0})
    with pytest.raises(NielsCacheError, match="pretrain"):
        TokenLoader(str(write_sft(tmp_path / "sft" / "chats") / "train"), **SETTINGS)
    ones, _ = write_documents(tmp_path / "ones", [1] * 30)
    with pytest.raises(NielsCacheError, match="30 documents"):
        TokenLoader(ones, **SETTINGS)


def test_rows_come_in_the_order_of_their_numbers_without_shuffle(split: tuple[str, np.ndarray]) -> None:
    read = [batch.x for batch in TokenLoader(split[0], **SETTINGS, shuffle=False, epochs=2)]
    source = TokenLoader(split[0], **SETTINGS, shuffle=False)._sources["notes"]
    assert isinstance(source, PackedDocuments)
    rows = torch.from_numpy(source.read(np.arange(source.samples), epoch=0).tokens.astype(np.int64))[:, :-1]
    assert len(rows) > 50
    assert torch.equal(torch.cat(read), torch.cat([rows, rows]))
