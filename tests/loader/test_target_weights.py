"""Weights and masks of targets: goldfish, repetitive rows, weights of sources, and how they multiply."""

import json
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_runtime import SFT, Batch, BestFit, Blocks, NielsCacheError, TokenLoader
from niels_cache_runtime.loader.source import SampleRows
from niels_cache_runtime.loader.target_weights import Goldfish, repetitive_rows
from tests.helpers.hand_made import ASST, EOT, USR, rewrite_meta, write_meta_of, write_pair, write_stream

K, H = 3, 5
LENGTHS = [3, 40, 1, 7, 200, 6, 90, 11, 333, 2, 55]


@pytest.fixture(scope="module")
def stream() -> np.ndarray:
    """Documents of many lengths, in which tokens repeat, each with EOT."""
    ids = torch.randint(5, 12, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1)).numpy()
    ids[np.cumsum(LENGTHS) - 1] = EOT
    return ids


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory, stream: np.ndarray) -> str:
    folder = tmp_path_factory.mktemp("cache") / "pretrain" / "notes"
    split = write_stream(folder, stream, shard_tokens=64, doc_ends=np.cumsum(LENGTHS).tolist())
    rewrite_meta(folder, special_token_ids={"sys": None, "usr": None, "asst": None, "eot": EOT, "bos": 60})
    return split


def naive_hash(tokens: list[int]) -> int:
    """The hash of the module's docstring with Python's integers."""
    value = sum((token + 1) * pow(0xD1342543DE82EF95, place, 2**64) for place, token in enumerate(tokens)) % 2**64
    for shift, factor in ((32, 0x9E3779B97F4A7C15), (29, 0xBF58476D1CE4E5B9)):
        value = ((value ^ value >> shift) * factor) % 2**64
    return value


def left_out_of(documents: list[list[int]], *, k: int = K, h: int = H, exempt: tuple[int, ...] = (EOT,)) -> list[bool]:
    """Whether each token of these documents is left out, one document at a time."""
    return [
        place >= h and naive_hash(document[place - h : place]) < 2**64 // k and document[place] not in exempt
        for document in documents
        for place in range(len(document))
    ]


def masks_by_place(loader: TokenLoader, size: int, *, plain: TokenLoader) -> tuple[list[bool | None], int]:
    """Whether each token of the stream is masked as a target, None if it never was one, and how many targets there were.

    `plain` is the same loader without goldfish. What it masks is no target.
    """
    found: list[bool | None] = [None] * size
    count = 0
    for batch, other in zip(loader, plain, strict=True):
        step, y_masked = loader.step - 1, batch.y_masked
        assert y_masked is not None
        origins = loader.trace(step)
        starts = np.cumsum([0, *(len(np.fromfile(path, "<u2")) for path in loader._sources[loader.names[0]].files)])
        places = starts[np.maximum(origins.files, 0)] + origins.offsets  # type: ignore[union-attr]
        is_target = np.ones(y_masked.shape, dtype=np.bool_) if other.y_masked is None else (other.y_masked != -100).numpy()
        for place, is_masked in zip(places[:, 1:][is_target].tolist(), (y_masked == -100).numpy()[is_target].tolist(), strict=True):
            assert found[place] in (None, is_masked)
            found[place] = is_masked
            count += 1
    assert count
    return found, count


@pytest.mark.parametrize(
    "settings",
    [
        {"T": 2, "B": 7},
        {"T": 16, "B": 4, "seed": 3},
        {"T": 16, "B": 3, "world_size": 3, "rank": 1, "stride": 5},
        {"T": 100, "B": 2, "stride": 1},
        {"T": 33, "B": 5, "order": Blocks(shards=2)},
        {"T": 747, "B": 1},
        {"T": 2, "B": 7, "packing": "best_fit"},
        {"T": 16, "B": 4, "packing": "best_fit", "seed": 3},
        {"T": 100, "B": 2, "packing": "best_fit", "shuffle": False},
        {"T": 33, "B": 5, "packing": "best_fit", "order": Blocks(shards=2)},
        {"T": 16, "B": 4, "packing": BestFit(bos_on_pieces=True, pad_documents_to=4), "max_documents": 3},
        {"T": 9, "B": 3, "packing": BestFit(bos_on_pieces=True), "order": Blocks(shards=2)},
    ],
)
def test_the_same_token_after_the_same_tokens_is_always_left_out(notes: str, stream: np.ndarray, settings: dict[str, Any]) -> None:
    ends = np.cumsum(LENGTHS)
    expected = left_out_of([stream[end - length : end].tolist() for end, length in zip(ends, LENGTHS, strict=True)])
    assert 0.2 < np.mean(expected) < 0.4
    settings = {"seed": 0, "epochs": 1, **settings}
    loader = TokenLoader(notes, **settings, goldfish=(K, H))
    found, count = masks_by_place(loader, len(stream), plain=TokenLoader(notes, **settings))
    assert all(masked in (None, out) for masked, out in zip(found, expected, strict=True))
    if "packing" in settings:  # all tokens are targets, but the first of each document
        assert [place for place, masked in enumerate(found) if masked is None] == [0, *ends[:-1].tolist()]
    elif "rank" not in settings and "stride" not in settings:
        assert sum(masked is None for masked in found) <= loader.T
    (source,) = loader.report(1).sources
    assert source.masked is not None
    assert source.masked.targets == count


def test_a_head_of_one_token_or_of_more_tokens_than_a_row_is_read_as_well(notes: str, stream: np.ndarray) -> None:
    ends = np.cumsum(LENGTHS)
    documents = [stream[end - length : end].tolist() for end, length in zip(ends, LENGTHS, strict=True)]
    for h, packing in product((1, 2, 70), (None, "best_fit", BestFit(bos_on_pieces=True))):
        expected = left_out_of(documents, k=2, h=h)
        settings: dict[str, Any] = {"T": 9, "B": 8, "seed": 0, "epochs": 1, "packing": packing}
        found, _ = masks_by_place(TokenLoader(notes, **settings, goldfish=(2, h)), len(stream), plain=TokenLoader(notes, **settings))
        assert any(expected)
        assert all(masked in (None, out) for masked, out in zip(found, expected, strict=True))


@pytest.mark.parametrize("k", [2, 4, 50])
def test_about_one_target_in_k_is_left_out_for_ordered_and_random_tokens(k: int) -> None:
    tokens = np.stack([np.arange(40_000) % 60_000, np.arange(40_000)[::-1] // 3, torch.randint(4, 30_000, (40_000,)).numpy()])
    boundaries = _no_boundaries(len(tokens))
    for dtype in (np.uint16, np.uint32):
        out = Goldfish(k, 13).left_out(SampleRows(tokens=tokens.astype(dtype), boundaries=boundaries))
        assert np.allclose(out[0::2, 13:].mean(axis=1), 1 / k, rtol=0.1)


def test_the_order_of_the_tokens_decides(stream: np.ndarray) -> None:
    rows = np.array([[5, 6, 7, 8, 9], [6, 5, 7, 8, 9], [5, 6, 8, 7, 9], [8, 7, 6, 5, 9]] * 64, dtype=np.uint16)
    rows[:, :4] += np.repeat(np.arange(64), 4)[:, None].astype(np.uint16)
    out = Goldfish(2, 4).left_out(SampleRows(tokens=rows, boundaries=_no_boundaries(len(rows))))[:, -1].reshape(64, 4)
    assert 40 < (out != out[:, :1]).any(axis=1).sum() < 64  # 56 of 64 are expected, 0 if the order did not count


def test_goldfish_stays_inside_an_example_of_conversations(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(4)
    answers = [torch.randint(10, 14, (30 + 5 * number,), generator=draw).tolist() for number in range(12)]
    examples = [[USR, 20, EOT, ASST, *answer, EOT] for answer in answers]
    folder = chats(tmp_path, examples)
    expected = left_out_of(examples, exempt=(USR, EOT, ASST))
    for sft in (SFT(), SFT(overflow="truncate_left")):
        loader = TokenLoader(folder, T=40, B=4, seed=0, epochs=1, goldfish=(K, H), sft=sft)
        plain = TokenLoader(folder, T=40, B=4, seed=0, epochs=1, sft=sft)
        tokens = flat = 0
        for batch, other in zip(loader, plain, strict=True):
            assert batch.y_masked is not None
            assert other.y_masked is not None
            origins = loader.trace(loader.step - 1)
            starts = np.cumsum([0, *map(len, examples)])
            places = starts[origins.documents] + origins.document_offsets  # type: ignore[union-attr]
            out = torch.from_numpy(np.array([*expected, False])[places[:, 1:]]) & (other.y_masked != -100)
            assert torch.equal(batch.y_masked, torch.where(out, -100, other.y_masked))
            tokens, flat = tokens + int(out.sum()), flat + 1
        assert tokens > 50


def test_weights_multiply_and_are_zero_exactly_where_targets_are_masked(tmp_path: Path, notes: str) -> None:
    folder = chats(tmp_path, [[USR, 20, EOT, ASST, *([10, 11] * 4), 12 + number, EOT] for number in range(20)])
    sources: Any = {"notes": notes, "chats": folder}
    settings: dict[str, Any] = {"T": 24, "B": 6, "seed": 0, "weights": {"notes": 1, "chats": 1}, "fields": ("weights", "dataset_ids")}
    loader = TokenLoader(
        sources, **settings, loss_weights={"chats": 0.25}, goldfish=(4, 3), mask_repetitive=(2, 4), mask_cross_document_targets=True
    )
    plain = TokenLoader(sources, **settings, mask_cross_document_targets=True)
    seen = set()
    for batch, other in islice(zip(loader, plain, strict=True), 12):
        for each in (batch, other):
            assert each.weights is not None
            assert each.weights.dtype == torch.float32
            assert torch.equal(each.weights == 0, each.y_masked == -100)
        assert batch.weights is not None
        assert batch.dataset_ids is not None
        assert torch.equal(batch.x, other.x)
        for row, dataset in enumerate(batch.dataset_ids.tolist()):
            seen |= {(dataset, weight) for weight in batch.weights[row].unique().tolist()}
    assert seen == {(0, 0.0), (0, 1.0), (1, 0.0)}  # all rows of chats are repetitive
    lighter = TokenLoader(sources, **settings, loss_weights={"chats": 0.25})
    batch = next(iter(lighter))
    assert batch.weights is not None
    assert {*batch.weights.unique().tolist()} == {0.0, 0.25, 1.0}
    item = lighter.as_dataset()[0]
    assert torch.equal(item["weights"], batch.weights[0])


def test_a_loss_with_weights_of_one_is_the_loss_without(notes: str) -> None:
    settings: dict[str, Any] = {"T": 20, "B": 8, "seed": 1, "mask_cross_document_targets": True}
    batch = next(iter(TokenLoader(notes, **settings, fields="weights")))
    plain = next(iter(TokenLoader(notes, **settings)))
    assert batch.weights is not None
    assert plain.y_masked is not None
    logits = torch.randn(8, 20, 50, generator=torch.Generator().manual_seed(0))
    each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.y.flatten(), reduction="none")
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), plain.y_masked.flatten())
    assert torch.allclose((each * batch.weights.flatten()).sum() / batch.weights.sum(), expected)
    of_ranks = [next(iter(TokenLoader(notes, **settings | {"B": 4}, fields="weights", world_size=2, rank=rank))) for rank in (0, 1)]
    sums = [(each.view(8, 20)[4 * rank : 4 * rank + 4] * own.weights).sum() for rank, own in enumerate(of_ranks) if own.weights is not None]
    assert torch.equal(torch.cat([own.x for own in of_ranks]), batch.x)
    assert torch.allclose(torch.stack(sums).sum() / sum(own.weights.sum() for own in of_ranks if own.weights is not None), expected)


def test_resuming_keeps_the_settings_and_may_change_them(notes: str) -> None:
    loader = TokenLoader(notes, T=16, B=4, seed=0, goldfish=(K, H), loss_weights={"notes": 2}, mask_repetitive=(13, 32), fields="weights")
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["settings"]["goldfish"] == [K, H]
    again = TokenLoader.from_state(state)
    expected = next(iter(loader))
    assert _equal(next(iter(again)), expected)
    changed = TokenLoader.from_state(state, goldfish=None, loss_weights=None)
    batch = next(iter(changed))
    assert torch.equal(batch.x, expected.x)
    assert batch.y_masked is not None
    assert (batch.y_masked != -100).all()
    assert not {"goldfish", "loss_weights", "mask_repetitive"} & TokenLoader(notes, T=16, B=4, seed=0).state_dict()["settings"].keys()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss_weights": {"notes": -1}}, "loss_weights: notes=-1"),
        ({"loss_weights": {"notes": float("nan")}}, "notes=nan"),
        ({"loss_weights": {"notes": float("inf")}}, "notes=inf"),
        ({"loss_weights": {"notes": 1e-9}}, "notes=1e-09"),
        ({"loss_weights": {"notes": "1"}}, "notes='1'"),
        ({"loss_weights": {"note": 1}}, "did you mean 'notes'"),
        ({"loss_weights": 0.5}, "loss_weights=0.5"),
        ({"goldfish": 4}, "goldfish=4: must be two"),
        ({"goldfish": (1, 13)}, "goldfish=1.*from 2"),
        ({"goldfish": (4, 0)}, "goldfish=0.*from 1"),
        ({"goldfish": (4.0, 3)}, "goldfish=4.0"),
        ({"mask_repetitive": (13,)}, r"mask_repetitive=\(13,\)"),
        ({"mask_repetitive": (13, 1)}, "mask_repetitive=1.*from 2"),
        ({"fields": ["weight"]}, "did you mean 'weights'"),
    ],
)
def test_other_values_are_refused(notes: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(NielsCacheError, match=message):
        TokenLoader(notes, T=8, B=1, seed=0, **settings)


def test_goldfish_needs_the_ends_of_documents(tmp_path: Path, stream: np.ndarray) -> None:
    folder = write_stream(tmp_path / "pretrain" / "notes", stream)
    (Path(folder).parent / "train_doc_ends.npy").unlink()
    with pytest.raises(NielsCacheError, match=r"train_doc_ends\.npy"):
        TokenLoader(folder, T=8, B=1, seed=0, goldfish=(K, H))


def naive_repetition(row: list[int], period: int, count: int) -> bool:
    return any(
        row[first : first + size] * count == row[first : first + size * count]
        for size in range(1, period + 1)
        for first in range(len(row) - size * count + 1)
    )


@pytest.mark.parametrize(("period", "count"), [(1, 2), (3, 4), (13, 8), (13, 32), (9, 3)])
def test_rows_that_repeat_tokens_are_found(period: int, count: int) -> None:
    draw = torch.Generator().manual_seed(period * count)
    rows = torch.randint(0, 60_000, (60, 450), generator=draw).numpy().astype(np.uint16)
    for number, row in enumerate(rows[:50]):
        size = 1 + number % (period + 2)  # the last two periods are too long
        times = count - number % 2  # every other row repeats once too little
        first = int(torch.randint(0, max(1, 450 - size * times), (1,), generator=draw))
        row[first : first + size * times] = np.tile(row[first : first + size], times)[: 450 - first]
    expected = [naive_repetition(row.tolist(), period, count) for row in rows]
    assert 5 <= sum(expected) <= 45
    assert repetitive_rows(SampleRows(tokens=rows), period, count).tolist() == expected


def test_padding_does_not_repeat() -> None:
    row = np.array([[*range(10), *([EOT] * 40)], [*range(10), *([7] * 40)]], dtype=np.uint16)
    found = repetitive_rows(SampleRows(tokens=row, filled=np.array([10, 50])), 13, 32)
    assert found.tolist() == [False, True]
    inner = np.arange(9, 40)  # padding of a piece, and then the next one
    assert repetitive_rows(SampleRows(tokens=row[:, :45], padding=inner), 13, 31).tolist() == [False, True]


def test_padding_of_packed_documents_does_not_repeat(notes: str) -> None:
    loader = TokenLoader(notes, T=100, B=99, seed=0, epochs=1, packing="best_fit", mask_repetitive=(1, 9))
    (batch,) = loader
    rows = batch.x.numpy()
    padded = [row for row in rows if (row[-9:] == EOT).all()]
    assert padded
    assert batch.y_masked is not None
    assert (batch.y_masked != -100).any(dim=1).all()


def chats(root: Path, examples: list[list[int]]) -> str:
    folder = root / "sft" / "chats"
    write_pair(folder, "train", examples)
    write_pair(folder, "val", [])
    write_meta_of(folder, kind="sft")
    return str(folder / "train")


def _no_boundaries(rows: int) -> Any:
    from niels_cache_runtime.loader.source import DocumentStarts

    nothing = np.empty(0, dtype=np.int64)
    return DocumentStarts(rows=nothing, columns=nothing, continues=np.ones(rows, dtype=np.bool_))


def _equal(first: Batch, second: Batch) -> bool:
    names = ("x", "y", "y_masked", "weights")
    return all(torch.equal(first[name], second[name]) for name in names)
