"""Batches of the loader: what they hold, in which order, on which rank."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from niels_cache_runtime import Copy, NielsCacheError, TokenLoader
from niels_cache_runtime.cache import gather
from tests.helpers.grouped import grouped
from tests.helpers.hand_made import write_meta_of, write_pair, write_shards, write_stream

N, T = 1001, 10  # 100 windows
WINDOWS = [first * T for first in range(100)]


@pytest.fixture
def notes(tmp_path: Path) -> str:
    return write_stream(tmp_path / "pretrain" / "notes", np.arange(N), shard_tokens=130, doc_ends=[3, 100, 101, 500, N])


@pytest.fixture
def web(tmp_path: Path) -> str:
    return write_stream(tmp_path / "pretrain" / "web", np.arange(2000, 2701), shard_tokens=64, doc_ends=[350, 701])


def first_tokens(loader: TokenLoader, batches: int | None = None) -> list[list[int]]:
    """The first token of every row, batch by batch: with tokens 0, 1, 2, ... it names the window."""
    iterator = iter(loader)
    found = [batch.x[:, 0].tolist() for batch in (iterator if batches is None else (next(iterator) for _ in range(batches)))]
    assert found
    return found


def flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


def test_rows_are_windows_of_the_stream_and_targets_are_one_ahead(notes: str) -> None:
    batches = list(TokenLoader(notes, T=T, B=8, seed=0, epochs=1))
    assert len(batches) == 13
    for batch in batches:
        assert batch.x.dtype == batch.y.dtype == torch.int64
        assert batch.x.is_contiguous()
        assert batch.y.is_contiguous()
        expected = batch.x[:, :1] + torch.arange(T + 1)
        assert torch.equal(batch.x, expected[:, :-1])
        assert torch.equal(batch.y, expected[:, 1:])
        assert batch.y_masked is batch.document_ids is batch.cu_seqlens is batch.dataset_ids is None


@pytest.mark.parametrize(("world_size", "B"), [(1, 1), (1, 7), (2, 8), (3, 5), (4, 25), (8, 3)])
def test_ranks_together_take_every_window_once_per_epoch(notes: str, world_size: int, B: int) -> None:
    ranks = [
        flat(first_tokens(TokenLoader(notes, T=T, B=B, seed=3, epochs=2, rank=rank, world_size=world_size))) for rank in range(world_size)
    ]
    taken = sorted(row for rank in ranks for row in rank)
    assert taken == sorted(WINDOWS * 2)
    assert max(map(len, ranks)) - min(map(len, ranks)) <= max(1, B)


def test_a_step_takes_the_same_global_set_for_every_world_size(notes: str) -> None:
    def steps(world_size: int) -> list[list[int]]:
        ranks = [
            first_tokens(TokenLoader(notes, T=T, B=24 // world_size, seed=3, rank=rank, world_size=world_size), 20)
            for rank in range(world_size)
        ]
        return [flat([rank[step] for rank in ranks]) for step in range(20)]

    alone = steps(1)
    assert len({tuple(step) for step in alone}) == 20
    for world_size in (2, 3, 4, 8):
        assert steps(world_size) == alone


def test_the_order_does_not_depend_on_the_size_of_shards(tmp_path: Path) -> None:
    orders = []
    for shard_tokens in (N, 2048, 130, 7):
        folder = write_stream(tmp_path / str(shard_tokens) / "notes", np.arange(N), shard_tokens=shard_tokens)
        orders.append(first_tokens(TokenLoader(folder, T=T, B=9, seed=5), 30))
    assert orders.count(orders[0]) == 4


def test_stride_sets_the_distance_of_windows(notes: str) -> None:
    rows = flat(first_tokens(TokenLoader(notes, T=T, B=10, seed=1, stride=3, shuffle=False, epochs=1)))
    assert rows == list(range(0, N - T, 3))


def test_the_golden_order_of_a_blend(notes: str, web: str) -> None:
    loader = TokenLoader({"notes": notes, "web": web}, T=T, B=8, seed=42, weights={"notes": 3, "web": 1})
    assert first_tokens(loader, 2) == [[270, 750, 540, 2370, 20, 300, 950, 2290], [850, 470, 440, 2240, 560, 90, 50, 2610]]


def test_a_blend_keeps_every_source_within_one_sample_of_its_share(notes: str, web: str) -> None:
    loader = TokenLoader({"notes": notes, "web": web}, T=T, B=1, seed=0, weights={"notes": 0.7, "web": 0.3}, fields=("dataset_ids",))
    iterator = iter(loader)
    web_rows = 0
    for taken in range(1, 501):
        batch = next(iterator)
        assert batch.dataset_ids is not None
        assert (batch.x[0, 0] >= 2000) == (batch.dataset_ids[0] == 1)
        web_rows += int(batch.dataset_ids[0])
        assert abs(web_rows - 0.3 * taken) < 1
    assert web_rows == 150


@pytest.mark.parametrize("epochs", [10**18, 2**64 // 100 + 1, 10**30])
def test_epochs_that_nobody_can_count_are_refused(notes: str, epochs: int) -> None:
    with pytest.raises(NielsCacheError, match="epochs="):
        next(iter(TokenLoader(notes, T=T, B=10, seed=0, epochs=epochs)))


def test_on_exhausted_stops_or_raises_where_a_source_ends(notes: str, web: str) -> None:
    sources, weights = {"notes": notes, "web": web}, {"notes": 1, "web": 1}
    stopped = flat(first_tokens(TokenLoader(sources, T=T, B=10, seed=0, weights=weights, epochs=1)))
    assert sum(row >= 2000 for row in stopped) == 70
    assert 139 <= len(stopped) <= 141
    iterator = iter(TokenLoader(sources, T=T, B=10, seed=0, weights=weights, epochs=1, on_exhausted="raise"))
    with pytest.raises(NielsCacheError, match=r"web: .*exhausted at sample"):
        list(iterator)


def test_a_schedule_changes_the_mix_without_loss_or_repetition(notes: str, web: str) -> None:
    schedule = [(0, {"notes": 1, "web": 0}), (40, {"notes": 1, "web": 3}), (80, {"notes": 1, "web": 1})]
    rows = flat(first_tokens(TokenLoader({"notes": notes, "web": web}, T=T, B=10, seed=0, weights=schedule), 12))
    counts = [sum(row >= 2000 for row in rows[first : first + 40]) for first in (0, 40, 80)]
    assert counts == [0, 30, 20]
    alone = {
        name: flat(first_tokens(TokenLoader({name: folder}, T=T, B=1, seed=0), 70)) for name, folder in (("notes", notes), ("web", web))
    }
    assert [row for row in rows if row < 2000] == alone["notes"][:70]
    assert [row for row in rows if row >= 2000] == alone["web"][:50]


def test_passes_follow_each_other_as_epochs_do(notes: str) -> None:
    loader = TokenLoader(notes, T=T, B=30, seed=1, epochs=1)
    assert len(loader) == 4
    with pytest.raises(TypeError, match="endless"):
        len(TokenLoader(notes, T=T, B=4, seed=0))
    passes = [flat(first_tokens(loader)) for _ in range(3)]
    assert all(sorted(rows) == WINDOWS for rows in passes)
    assert passes[0] + passes[1] + passes[2] == flat(first_tokens(TokenLoader(notes, T=T, B=30, seed=1, epochs=3)))


def test_drop_last_leaves_the_smaller_batch_out_on_every_rank(notes: str) -> None:
    lengths = [
        [len(batch) for batch in first_tokens(TokenLoader(notes, T=T, B=15, seed=1, epochs=1, drop_last=True, rank=rank, world_size=2))]
        for rank in (0, 1)
    ]
    assert lengths == [[15] * 3, [15] * 3]


def test_document_fields_follow_doc_ends(notes: str) -> None:
    ends = np.array([3, 100, 101, 500, N])
    loader = TokenLoader(notes, T=T, B=10, seed=4, epochs=1, fields=("document_ids", "position_ids", "cu_seqlens"))
    seams = 0
    for batch in loader:
        assert batch.document_ids is not None
        assert batch.position_ids is not None
        assert batch.cu_seqlens is not None
        documents = torch.from_numpy(np.searchsorted(ends, batch.x.numpy(), side="right"))  # a token's value is its place in the stream
        assert torch.equal(batch.document_ids, (documents - documents[:, :1]).to(torch.int32))
        starts = torch.from_numpy(np.concatenate([[0], ends]))[documents].maximum(batch.x[:, :1])
        assert torch.equal(batch.position_ids, (batch.x - starts).to(torch.int32))
        assert batch.cu_seqlens.tolist() == [*np.flatnonzero(batch.position_ids.numpy().ravel() == 0), batch.x.numel()]
        assert batch.max_seqlen == max(np.diff(batch.cu_seqlens.numpy()))
        seams += int((documents[:, :1] != documents[:, -1:]).sum())
    assert seams >= 2


def test_targets_across_documents_can_be_masked(notes: str) -> None:
    ends = {3, 100, 101, 500}
    masked = 0
    for batch in TokenLoader(notes, T=T, B=10, seed=4, epochs=1, mask_cross_document_targets=True):
        assert batch.y_masked is not None
        crosses = torch.tensor([[token in ends for token in row] for row in batch.y.tolist()])
        assert torch.equal(batch.y_masked, torch.where(crosses, -100, batch.y))
        masked += int(crosses.sum())
    assert masked == len(ends)


def test_packed_examples_and_documents_share_a_loader(tmp_path: Path, notes: str) -> None:
    examples = [[2, 3000 + i, 4, 3, *range(4000 + 10 * i, 4000 + 10 * i + 1 + i % 5), 4] for i in range(40)]
    chats = tmp_path / "sft" / "chats"
    write_pair(chats, "train", examples)
    write_pair(chats, "val", [])
    write_meta_of(chats, kind="sft")
    loader = TokenLoader(
        {"notes": notes, "chats": str(chats / "train")}, T=20, B=4, seed=0, weights={"notes": 1, "chats": 1}, fields=("dataset_ids",)
    )
    seen = 0
    for batch in islice(loader, 30):
        assert batch.y_masked is not None
        assert batch.dataset_ids is not None
        assert batch.document_ids is not None
        assert batch.cu_seqlens is not None
        of_notes = batch.dataset_ids == 0
        assert torch.equal(batch.y_masked[of_notes], batch.y[of_notes])
        learned = batch.y_masked[~of_notes]
        assert ((learned == -100) | (learned == batch.y[~of_notes])).all()
        targets = learned[learned != -100]
        assert ((targets >= 4000) | (targets == 4)).all()
        seen += len(targets)
    assert seen > 100
    assert "examples in" in str(loader.report(100))


def test_caches_of_different_tokenizers_are_not_blended(tmp_path: Path, notes: str, web: str) -> None:
    weights = {"notes": 1.0, "web": 1.0}
    write_meta_of(Path(notes).parent, tokenizer_sha256="a" * 64)
    write_meta_of(Path(web).parent, tokenizer_sha256=None)  # does not say
    TokenLoader({"notes": notes, "web": web}, T=T, B=4, seed=0, weights=weights)
    write_meta_of(Path(web).parent, tokenizer_sha256="a" * 64)
    TokenLoader({"notes": notes, "web": web}, T=T, B=4, seed=0, weights=weights)
    write_meta_of(Path(web).parent, tokenizer_sha256="b" * 64)
    with pytest.raises(NielsCacheError, match=r"tokenizers.*: notes .*a{12} .*b{12}"):
        TokenLoader({"notes": notes, "web": web}, T=T, B=4, seed=0, weights=weights)


def test_the_report_says_what_a_plan_will_read(notes: str, web: str) -> None:
    loader = TokenLoader({"notes": notes, "web": web}, T=T, B=10, seed=0, weights={"notes": 1, "web": 3})
    report = loader.report(28)
    assert [source.samples for source in report.sources] == [70, 210]
    assert [source.tokens for source in report.sources] == [700, 2100]
    assert [source.configured for source in report.sources] == [source.actual for source in report.sources] == [0.25, 0.75]
    assert [source.epochs for source in report.sources] == [0.7, 3.0]
    assert [source.repetitions for source in report.sources] == [0, 2]
    assert "web" in str(report)
    assert "75.0000%" in str(report)


def test_a_thread_prepares_the_same_batches_and_the_position_counts_those_handed_out(notes: str) -> None:
    expected = first_tokens(TokenLoader(notes, T=T, B=16, seed=0, epochs=3))
    assert first_tokens(TokenLoader(notes, T=T, B=16, seed=0, epochs=3, prefetch=2)) == expected
    loader = TokenLoader(notes, T=T, B=16, seed=0, prefetch=2)
    iterator = iter(loader)
    for taken in range(1, 5):
        next(iterator)
        assert (loader.step, loader.samples) == (taken, 16 * taken)


def test_an_older_iterator_says_that_it_is_stale(notes: str) -> None:
    loader = TokenLoader(notes, T=T, B=16, seed=0)
    older = iter(loader)
    next(older)
    next(iter(loader))
    with pytest.raises(NielsCacheError, match="stale"):
        next(older)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("is_late", ["step", "copy"])
def test_a_step_on_cuda_reads_its_own_batch(monkeypatch: pytest.MonkeyPatch, notes: str, web: str, is_late: str, prefetch: int) -> None:
    """A late step must not find the memory of its batch in use again, and must wait for a late copy."""
    settings = {"T": T, "B": 16, "seed": 0, "weights": {"notes": 1, "web": 2}, "epochs": 2, "fields": ("position_ids",)}
    weights, send = torch.arange(1, 16 * T + 1), gather.to_device

    def send_late(array: np.ndarray, device: torch.device) -> torch.Tensor:
        torch.cuda._sleep(20_000_000)  # about 10 ms, on the stream that copies
        return send(array, device)

    def sums(device: str, **more: int) -> torch.Tensor:
        of_device, found = weights.to(device), []
        for batch in TokenLoader({"notes": notes, "web": web}, device=device, **settings, **more):
            if device == "cuda" and is_late == "step":
                torch.cuda._sleep(20_000_000)
            found += [(tensor.flatten() * of_device[: tensor.numel()]).sum() for tensor in batch.tensors()]
        return torch.stack(found).cpu()

    if is_late == "copy":
        monkeypatch.setattr(gather, "to_device", send_late)
    assert torch.equal(sums("cpu"), sums("cuda", prefetch=prefetch))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_of_workers_reach_cuda_through_pinned_memory(notes: str) -> None:
    settings = {"T": T, "B": 16, "seed": 0, "epochs": 1, "fields": ("document_ids", "cu_seqlens")}
    pinned = DataLoader(TokenLoader(notes, **settings), batch_size=None, num_workers=2, pin_memory=True)
    pairs = list(zip(TokenLoader(notes, **settings), pinned, strict=True))
    assert len(pairs) == 7
    for expected, batch in pairs:
        assert all(tensor.is_pinned() for tensor in batch.tensors())
        for here, there in zip(expected.tensors(), batch.to("cuda", non_blocking=True).tensors(), strict=True):
            assert torch.equal(here, there.cpu())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"T": 0}, "T=0"),
        ({"T": 5000}, "notes"),
        ({"B": 0}, "B=0"),
        ({"B": 1 << 30}, "smaller B"),
        ({"seed": -1}, "seed=-1"),
        ({"rank": 2, "world_size": 2}, "rank=2: .* 0 to 1"),
        ({"stride": 0}, "stride=0"),
        ({"epochs": 0}, "epochs=0"),
        ({"on_exhausted": "raise"}, "give epochs"),
        ({"on_exhausted": "stopp"}, "did you mean 'stop'"),
        ({"on_exhausted": "restart", "epochs": 2}, "on_exhausted='restart'"),
        ({"fields": ("document_id",)}, "did you mean 'document_ids'"),
        ({"loss_on": "user"}, "loss_on='user'"),
        ({"overflow": "truncate"}, "overflow='truncate'"),
        ({"weigh_by": "examples"}, "notes has documents"),
        ({"device": "cpuu"}, "device='cpuu'"),
        ({"prefetch": -1}, "prefetch=-1"),
        ({"weights": {"note": 1}}, "note"),
        ({"weights": {"notes": -1}}, "notes"),
        ({"weights": 3}, "weights=3"),
        ({"weights": {"notes": "3"}}, "notes has '3'"),
        ({"weights": {"notes": float("inf")}}, "notes has inf"),
        ({"shuffle": "no"}, "shuffle='no'"),
        ({"packing": "no"}, "packing='no'"),
        ({"packing": False}, "packing=False"),
        ({"sft": "all"}, "sft='all'"),
        ({"split": "test"}, "split='test'"),
        ({"split": "val"}, "is the split 'train'"),
        ({"remote": "copy"}, "remote='copy'"),
        ({"remote": Copy(dir="copy", limit=1)}, "is a path"),
    ],
)
def test_wrong_settings_are_one_clear_line(notes: str, settings: dict, message: str) -> None:
    with pytest.raises(NielsCacheError, match=message) as raised:
        TokenLoader(notes, **grouped({"T": T, "B": 4, "seed": 0, **settings}))
    assert "\n" not in str(raised.value)


def test_a_missing_cache_is_an_error_never_a_smaller_mix(tmp_path: Path, notes: str) -> None:
    with pytest.raises(NielsCacheError, match=r"web/train.*no such folder"):
        TokenLoader({"notes": notes, "web": str(tmp_path / "web" / "train")}, T=T, B=4, seed=0, weights={"notes": 1, "web": 1})
    with pytest.raises(NielsCacheError, match="web"):
        TokenLoader({"notes": notes}, T=T, B=4, seed=0, weights={"notes": 1, "web": 1})
    with pytest.raises(NielsCacheError, match="2 sources need weights"):
        TokenLoader({"notes": notes, "web": notes}, T=T, B=4, seed=0)
    with pytest.raises(NielsCacheError, match="no cache"):
        TokenLoader({}, T=T, B=4, seed=0)
    with pytest.raises(NielsCacheError, match="names to folders"):
        TokenLoader([notes], T=T, B=4, seed=0)  # type: ignore[arg-type]


def test_a_cache_without_document_ends_says_so_before_training_starts(notes: str) -> None:
    bare = Path(notes).parent.parent / "bare" / "train"
    bare.mkdir(parents=True)
    np.arange(500, dtype=np.uint16).tofile(bare / "shard_00000.bin")
    assert len(next(iter(TokenLoader(str(bare), T=T, B=4, seed=0))).x) == 4
    with pytest.raises(NielsCacheError, match="doc_ends"):
        TokenLoader(str(bare), T=T, B=4, seed=0, fields=("position_ids",))


def test_a_data_set_s_folder_and_a_split_s_folder_name_the_same_source(tmp_path: Path) -> None:
    folder = tmp_path / "train"  # a data set may have this name, too
    val = str(folder / "val")
    write_shards(Path(val), [np.arange(2000, 2000 + 40 * T + 1, dtype=np.uint16)])
    train = write_stream(folder, np.arange(70 * T + 1))
    for split, path in (("train", train), ("val", val)):
        loader, other = (TokenLoader(given, T=T, B=10, seed=0, split=split) for given in (str(folder), path))  # type: ignore[arg-type]
        assert loader.names == other.names == ("train",)
        assert loader.state_dict() == other.state_dict()
        assert first_tokens(loader, 3) == first_tokens(other, 3)
    assert TokenLoader(val, T=T, B=10, seed=0).samples_per_epoch == {"train": 40}
    state = TokenLoader({"a": str(folder)}, T=T, B=10, seed=0, split="val").state_dict(steps=2)
    assert TokenLoader.from_state(state).state_dict() == state
    assert TokenLoader.from_state(state, str(folder), split="val").state_dict() == state
    with pytest.raises(NielsCacheError, match="is the split 'train', but split='val'"):
        TokenLoader(train, T=T, B=10, seed=0, split="val")
    write_pair(tmp_path / "chats", "train", [[2, 10, 4, 3, 11, 4]])
    write_meta_of(tmp_path / "chats", kind="sft")
    assert TokenLoader(str(tmp_path / "chats"), T=8, B=1, seed=0).names == ("chats",)
    with pytest.raises(NielsCacheError, match="chats: this data set has no val split; choose from train"):
        TokenLoader(str(tmp_path / "chats"), T=8, B=1, seed=0, split="val")
