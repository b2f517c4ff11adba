"""Settings of packed documents: BOS before pieces, padding of each document, context parallelism, a limit of documents per row."""

from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_runtime import Batch, BestFit, Blocks, NielsCacheError, TokenLoader
from niels_cache_runtime.loader.packing.plan import group_rows, group_rows_of_few
from tests.helpers.hand_made import EOT, rewrite_meta, write_sft, write_stream

BOS = 60
T = 24
SETTINGS: dict[str, Any] = {"T": T, "B": 3, "seed": 5}
ALL = {"packing": BestFit(bos_on_pieces=True, pad_documents_to=4), "max_documents": 3}
CP = {"packing": BestFit(pad_documents_to=12)}
OF_INPUTS = ("x", "y", "y_masked", "document_ids", "position_ids", "weights")


@pytest.fixture
def split(tmp_path: Path) -> tuple[str, np.ndarray]:
    """120 documents of tokens that tell their place in the stream, each of which ends with EOT, in a cache with BOS."""
    lengths = torch.randint(1, 80, (120,), generator=torch.Generator().manual_seed(0)).numpy()
    stream, ends = 100 + np.arange(lengths.sum()), np.cumsum(lengths)
    stream[ends - 1] = EOT
    folder = write_stream(tmp_path / "pretrain" / "notes", stream, shard_tokens=50, doc_ends=ends.tolist())
    rewrite_meta(Path(folder).parent, special_token_ids={"sys": None, "usr": None, "asst": None, "eot": EOT, "bos": BOS})
    return folder, stream


@pytest.mark.parametrize(
    "settings",
    [
        {"packing": BestFit(bos_on_pieces=True)},
        {"packing": BestFit(pad_documents_to=8)},
        {"packing": "best_fit", "max_documents": 2},
        {"packing": BestFit(bos_on_pieces=True), "max_documents": 1},
        ALL,
        {**ALL, "order": Blocks(shards=4, lanes=2)},
    ],
)
def test_every_transition_is_a_target_once_and_added_tokens_have_none(split: tuple[str, np.ndarray], settings: dict[str, Any]) -> None:
    folder, stream = split
    loader = TokenLoader(folder, **SETTINGS, **settings, epochs=1)
    packing: Any = settings["packing"]
    has_bos, pad_to = packing != "best_fit" and packing.bos_on_pieces, 1 if packing == "best_fit" else packing.pad_documents_to or 1
    learned: Counter[tuple[int, int]] = Counter()
    begun: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    bos_count = inputs = 0
    for step, batch in enumerate(loader):
        trace = loader.trace(step)
        assert np.array_equal(trace.tokens[:, :-1], batch.x.numpy())
        is_target = (batch.y_masked != -100).numpy()
        known = trace.documents >= 0
        is_bos = trace.tokens == BOS
        within = known[:, :-1] & known[:, 1:] & (np.diff(trace.documents) == 0) & (np.diff(trace.document_offsets) == 1)
        assert np.array_equal(is_target, within)
        assert np.array_equal(trace.tokens[known], stream[(trace.files * 50 + trace.offsets)[known]])
        assert (trace.tokens[~known & ~is_bos] == EOT).all()
        assert not (is_bos & known).any()
        before = np.pad(is_bos[:, :-1], ((0, 0), (1, 0)))  # after BOS comes a token inside a document, without BOS the first one
        begins = known & (np.diff(np.where(known, trace.documents, -1), prepend=-1, axis=1) != 0)
        if has_bos:
            assert np.array_equal(begins & (trace.document_offsets > 0), before)
        starts = np.where(is_bos, True, begins & ~before)[:, :-1]
        assert (np.argwhere(starts)[:, 1] % pad_to == 0).all()
        position_ids, document_ids = (getattr(batch, name).numpy() for name in ("position_ids", "document_ids"))
        assert (position_ids[starts] == 0).all()
        assert (document_ids[:, 1:] - document_ids[:, :-1])[starts[:, 1:]].all()
        assert starts.sum(axis=1).max() <= settings.get("max_documents", T)
        learned.update(zip(trace.tokens[:, :-1][is_target].tolist(), trace.tokens[:, 1:][is_target].tolist(), strict=True))
        for row, column in np.argwhere(begins).tolist():
            begun[int(trace.documents[row, column])].append((step * 3 + row, column))
        bos_count += int(is_bos.sum())
        inputs += int((known | is_bos)[:, :-1].sum())
    ends = stream == EOT
    assert learned == Counter(zip(stream[:-1][~ends[:-1]].tolist(), stream[1:][~ends[:-1]].tolist(), strict=True))
    report: Any = loader.report(1).sources[0].details
    assert (inputs, bos_count) == (report.inputs, report.pieces - report.documents if has_bos else 0)
    assert loader.samples == report.rows >= report.least_rows
    for document in (0, 11, 50):
        assert sorted(loader.find(document)) == begun[document]


def parts_of(folder: str, size: int, **settings: Any) -> list[list[Batch]]:
    return [list(islice(TokenLoader(folder, **SETTINGS, **settings, cp_rank=rank, cp_size=size), 12)) for rank in range(size)]


@pytest.mark.parametrize("size", [2, 3, 6])
@pytest.mark.parametrize("others", [{}, {"max_documents": 2, "fields": ["weights"], "loss_weights": {"notes": 0.5}}])
def test_the_ranks_of_context_parallelism_have_the_whole_batch(split: tuple[str, np.ndarray], size: int, others: dict[str, Any]) -> None:
    folder, _ = split
    for whole, parts in zip(parts_of(folder, 1, **CP, **others)[0], zip(*parts_of(folder, size, **CP, **others), strict=True), strict=True):
        assert whole.cu_seqlens_padded is not None
        cu = whole.cu_seqlens_padded.long().unique()
        assert (cu.diff() % (2 * size) == 0).all()
        pieces = [list(range(*pair)) for pair in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)]
        places = [
            [place for piece in pieces for part in (rank, 2 * size - 1 - rank) for place in np.array_split(piece, 2 * size)[part].tolist()]
            for rank in range(size)
        ]
        assert sorted(place for own in places for place in own) == list(range(whole.x.numel()))
        names = [name for name in OF_INPUTS if name in whole]
        assert len(names) == (6 if others else 5)
        for name in names:
            for own, part in zip(places, parts, strict=True):
                assert part[name].shape == (3, T // size)
                assert torch.equal(part[name].flatten(), whole[name].flatten()[own])
        for part in parts:
            assert part.cu_seqlens is not None
            assert part.cu_seqlens_padded is not None
            assert torch.equal(part.cu_seqlens, whole["cu_seqlens"])
            assert torch.equal(part.cu_seqlens_padded, whole.cu_seqlens_padded)
            assert part.max_seqlen == whole.max_seqlen
            with pytest.raises(NielsCacheError, match="shift_labels"):
                _ = part.labels
        assert whole.labels.shape == (3, T)


def test_cumulative_lengths_without_padding_count_the_tokens(split: tuple[str, np.ndarray]) -> None:
    loader = TokenLoader({"a": split[0], "b": split[0]}, **SETTINGS, **ALL, weights={"a": 1, "b": 1})
    padded = 0
    for step, batch in enumerate(islice(loader, 40)):
        trace: Any = loader.trace(step)
        is_token = ((trace.documents >= 0) | (trace.tokens == BOS))[:, :-1].ravel()
        assert batch.cu_seqlens is not None
        assert batch.cu_seqlens_padded is not None
        assert batch.cu_seqlens.dtype == batch.cu_seqlens_padded.dtype == torch.int32
        assert batch.cu_seqlens.tolist() == [int(is_token[:end].sum()) for end in batch.cu_seqlens_padded.tolist()]
        padded += int(batch.cu_seqlens[-1]) < batch.cu_seqlens_padded[-1] == 3 * T
        assert len(batch.cu_seqlens) == len(batch.cu_seqlens_padded) == 3 * 3 + 1
        assert batch.max_seqlen == T
    assert padded > 20


@pytest.mark.parametrize(("B", "limit"), [(3, 8), (5, 12)])
def test_windows_and_packed_rows_have_cumulative_lengths_of_one_shape(split: tuple[str, np.ndarray], B: int, limit: int) -> None:
    for packing in (None, "best_fit"):
        settings: Any = {**SETTINGS, "B": B, "packing": packing, "fields": ["cu_seqlens", "document_ids"], "epochs": 1, "drop_last": True}
        limited = TokenLoader(split[0], **settings, max_documents=limit)
        for one, other in zip(limited, TokenLoader(split[0], **settings), strict=True):
            assert torch.equal(one.x, other.x)  # the limit is not reached
            assert torch.equal(one["document_ids"], other["document_ids"])
            assert one["cu_seqlens"].shape == (B * limit + 1,)
            assert one["cu_seqlens"].tolist() == other["cu_seqlens"].tolist() + [B * T] * (B * limit + 1 - len(other["cu_seqlens"]))
            assert one.max_seqlen == T


def test_windows_of_more_documents_than_the_limit_are_an_error_that_names_it(split: tuple[str, np.ndarray]) -> None:
    loader = TokenLoader(split[0], **SETTINGS, max_documents=2)
    with pytest.raises(NielsCacheError, match=r"max_documents=2: row \d of the batch has \d documents"):
        list(islice(loader, 100))


def test_rows_with_as_many_documents_as_the_limit_have_no_document_of_padding(tmp_path: Path) -> None:
    folder = write_stream(tmp_path / "notes", [7, 8, EOT] * 4, doc_ends=[3, 6, 9, 12])
    batch = next(iter(TokenLoader(folder, T=8, B=2, seed=0, packing="best_fit", max_documents=2)))
    assert batch["cu_seqlens"].tolist() == [0, 3, 8, 11, 16]
    assert batch["document_ids"].tolist() == [[0] * 3 + [1] * 5] * 2
    assert batch["y_masked"].tolist() == [[8, EOT, -100, 8, EOT, -100, -100, -100]] * 2
    report: Any = TokenLoader(folder, T=8, B=2, seed=0, packing="best_fit", max_documents=2).report(1).sources[0].details
    assert (report.rows, report.least_rows) == (2, 2)
    assert report.padding == 4 / 16


def test_a_limit_of_examples_holds_in_every_row_and_costs_few_rows() -> None:
    lengths = torch.randn(5000, generator=torch.Generator().manual_seed(0)).exp().mul(12).long().remainder(63).add(2).numpy()
    histogram = np.bincount(lengths, minlength=65)
    for most in (1, 2, 3, 4, 6, 9, 64):
        groups = group_rows_of_few(histogram, capacity=64, most=most)
        found = np.zeros_like(histogram)
        for rows, content in groups:
            assert sum(times for _, times in content) <= most
            assert sum(length * times for length, times in content) <= 64
            for length, times in content:
                found[length] += rows * times
        assert np.array_equal(found, histogram)
        least = max(-(-len(lengths) // most), -(-int(lengths.sum()) // 64))
        assert sum(rows for rows, _ in groups) <= 1.02 * least
    assert groups == group_rows(histogram, capacity=64)


@pytest.mark.parametrize("settings", [ALL, CP, {"max_documents": 20}])
def test_a_state_has_the_settings_and_continues_on_another_context_parallelism(
    split: tuple[str, np.ndarray], settings: dict[str, Any]
) -> None:
    folder, _ = split
    size = 2 if settings is not ALL and "packing" in settings else 1
    loader = TokenLoader(folder, **SETTINGS, **settings, cp_rank=size - 1, cp_size=size)
    list(islice(loader, 3))
    state = loader.state_dict()
    assert "cp_size" not in str(state)
    expected = list(islice(TokenLoader(folder, **SETTINGS, **settings), 6))[3:]
    resumed = TokenLoader.from_state(state)
    assert resumed._settings.plan_settings() == loader._settings.plan_settings()
    for one, other in zip(islice(resumed, 3), expected, strict=True):
        assert torch.equal(one.x, other.x)
    changed = {"packing": "best_fit"} if "packing" in settings else {"max_documents": 21}
    other = TokenLoader(folder, **SETTINGS, **changed)
    if "packing" not in settings:  # decides no sample
        other.load_state_dict(state)
    else:
        with pytest.raises(NielsCacheError, match=r"bos_on_pieces=None|pad_documents_to=None"):
            other.load_state_dict(state)
        with pytest.raises(NielsCacheError, match="max_documents=5"):
            TokenLoader.from_state(state, max_documents=5)


def test_a_state_without_the_settings_is_as_before_and_is_not_continued_with_them(split: tuple[str, np.ndarray]) -> None:
    state = TokenLoader(split[0], **SETTINGS, packing="best_fit").state_dict()
    assert not {"bos_on_pieces", "pad_documents_to", "max_documents"} & state["settings"].keys()
    assert TokenLoader(split[0], **SETTINGS, packing=BestFit()).state_dict() == state
    for change in (ALL, CP, {"packing": "best_fit", "max_documents": 9}):
        with pytest.raises(NielsCacheError, match=r"(bos_on_pieces|pad_documents_to|max_documents)=None"):
            TokenLoader(split[0], **SETTINGS, **change).load_state_dict(state)


def test_settings_that_do_not_go_together_are_refused(split: tuple[str, np.ndarray], tmp_path: Path) -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"cp_size": 2}, r"pad_documents_to=None; use packing=BestFit\(pad_documents_to=4\)"),
        ({"cp_size": 2, "packing": "best_fit"}, "multiple of 4"),
        ({"cp_size": 3, "packing": BestFit(pad_documents_to=4)}, "multiple of 6"),
        ({"cp_rank": 1}, "cp_rank=1"),
        ({"cp_size": 0}, "cp_size=0"),
        ({"packing": BestFit(pad_documents_to=5)}, "T=24 is no multiple of it; use T=20"),
        ({"packing": BestFit(bos_on_pieces=True), "T": 1}, "T=1"),
        ({"max_documents": 0}, "max_documents=0"),
    ]
    for change, named in changes:
        with pytest.raises(NielsCacheError, match=named):
            TokenLoader(split[0], **SETTINGS | change)
    for values, named in (({"pad_documents_to": 1}, "at least 2"), ({"bos_on_pieces": 2}, "True or False")):
        with pytest.raises(NielsCacheError, match=named):
            BestFit(**values)
    sources = {"notes": split[0], "chats": str(write_sft(tmp_path / "sft" / "chats") / "train")}
    for change in (CP, {"max_documents": 4}):
        with pytest.raises(NielsCacheError, match="chats is SFT"):
            TokenLoader(sources, **SETTINGS, **change, weights={"notes": 1, "chats": 1})
    rewrite_meta(Path(split[0]).parent, special_token_ids={"sys": None, "usr": None, "asst": None, "eot": EOT})
    with pytest.raises(NielsCacheError, match="bos_on_pieces"):
        TokenLoader(split[0], **SETTINGS, packing=BestFit(bos_on_pieces=True))
