"""PretrainTokenStreamDataset: which windows it draws, how often, and what it refuses."""

import gc
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from niels_cache_runtime import NielsCacheError, PretrainTokenStreamDataset
from niels_cache_runtime.cache import gather as batches
from niels_cache_runtime.cache import mmap, opening
from niels_cache_runtime.cache.mmap import MappedTokens
from niels_cache_runtime.format.layout import TOKEN_DTYPE
from tests.hand_made import exchange_before, rewrite_meta, write_cache, write_meta_of, write_pretrain, write_shards

PAGE_TOKENS = mmap.mmap.PAGESIZE // 2
# A page and a bit, exactly two pages (so that the next lies back to back), too short for any window, one window, empty, high ids.
LENGTHS = [PAGE_TOKENS + 3, 2 * PAGE_TOKENS, 7, 9, 0, 40]
T = 8


def numbered_shards(folder: Path, lengths: list[int]) -> list[np.ndarray]:
    """Tokens count up through all shards, so that each window is known by its first token; the last shard ends at 65,535."""
    numbers = np.arange(65_536 - sum(lengths), 65_536)
    shards = np.split(numbers, np.cumsum(lengths)[:-1])
    write_shards(folder, shards)
    return shards


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_every_window_number_is_a_different_window_inside_one_shard(tmp_path: Path) -> None:
    shards = numbered_shards(tmp_path, LENGTHS)
    dataset = PretrainTokenStreamDataset(str(tmp_path), T=T, device="cpu")
    expected = [tokens[i : i + T + 1] for tokens in shards for i in range(len(tokens) - T)]
    assert dataset.total_windows == len(expected) > 3 * PAGE_TOKENS - 20
    rows = dataset._reader.read(dataset._positions(np.arange(dataset.total_windows)))
    assert np.array_equal(rows, np.stack(expected))


def test_a_batch_is_the_windows_of_one_draw_from_the_generator(tmp_path: Path) -> None:
    shards = numbered_shards(tmp_path, LENGTHS)
    dataset = PretrainTokenStreamDataset(str(tmp_path), T=T, device="cpu")
    windows = np.stack([tokens[i : i + T + 1] for tokens in shards for i in range(len(tokens) - T)])
    ours, plain = generator(3), generator(3)
    for _ in range(4):
        x, y = dataset.get_batch(B=5, generator=ours)
        drawn = windows[torch.randint(len(windows), (5,), generator=plain)]
        assert np.array_equal(x.numpy(), drawn[:, :-1])
        assert np.array_equal(y.numpy(), drawn[:, 1:])
    assert torch.equal(ours.get_state(), plain.get_state())


def test_batches_are_int64_contiguous_shifted_by_one_with_ids_in_range(tmp_path: Path) -> None:
    shards = numbered_shards(tmp_path, LENGTHS)
    dataset = PretrainTokenStreamDataset(str(tmp_path), T=T, device="cpu")
    x, y = dataset.get_batch(B=200, generator=generator())
    for batch in (x, y):
        assert batch.dtype == torch.int64
        assert batch.shape == (200, T)
        assert batch.is_contiguous()
        assert batch.device.type == "cpu"
        assert int(shards[0][0]) <= int(batch.min()) <= int(batch.max()) <= 65_535
    assert torch.equal(y[:, :-1], x[:, 1:])
    assert torch.equal(y, x + 1)  # no window runs over the end of a shard into a skipped one


def test_all_windows_come_up_when_few_are_drawn_often(tmp_path: Path) -> None:
    write_shards(tmp_path, [range(10, 14), range(20, 23)])
    dataset = PretrainTokenStreamDataset(str(tmp_path), T=2, device="cpu")
    x, _ = dataset.get_batch(B=600, generator=generator())
    counts = Counter(map(tuple, x.tolist()))
    assert set(counts) == {(10, 11), (11, 12), (20, 21)}
    assert min(counts.values()) > 150


def test_the_same_generator_state_gives_the_same_batch_and_the_next_another(tmp_path: Path) -> None:
    numbered_shards(tmp_path, LENGTHS)
    dataset = PretrainTokenStreamDataset(str(tmp_path), T=T, device="cpu")
    shared = generator(1)
    first, second = dataset.get_batch(B=16, generator=shared)[0], dataset.get_batch(B=16, generator=shared)[0]
    assert torch.equal(first, dataset.get_batch(B=16, generator=generator(1))[0])
    assert not torch.equal(first, second)


def test_a_batch_that_is_kept_is_never_written_again(tmp_path: Path) -> None:
    numbered_shards(tmp_path, LENGTHS)
    dataset = PretrainTokenStreamDataset(str(tmp_path), T=T, device="cpu")
    shared, views = generator(), []
    for index in range(12):
        x, y = dataset.get_batch(B=4 + index % 3, generator=shared)
        row = (x, y)[index % 2][1]
        views.append((row, row.clone()) if index % 4 else (torch.from_numpy(row.numpy()), row.clone()))
    del x, y, row
    gc.collect()
    assert len(views) == 12
    for row, copy in views:
        assert torch.equal(row, copy)


def test_memory_of_dropped_batches_is_used_again(tmp_path: Path) -> None:
    numbered_shards(tmp_path, LENGTHS)
    dataset = PretrainTokenStreamDataset(str(tmp_path), T=T, device="cpu")
    addresses = set()
    for _ in range(10):
        x, _ = dataset.get_batch(B=batches._RecycledMemory._FROM_BYTES // (8 * T), generator=generator())
        addresses.add(x.data_ptr())
    assert len(addresses) <= batches._RecycledMemory._KEPT


def test_a_pickled_copy_maps_the_files_again_and_gives_the_same_batches(tmp_path: Path) -> None:
    folder = write_pretrain(tmp_path / "notes")
    dataset = PretrainTokenStreamDataset(str(folder / "train"), T=3, device="cpu")
    stored = pickle.dumps(dataset)
    assert len(stored) < 5_000
    copy = pickle.loads(stored)
    assert torch.equal(copy.get_batch(B=9, generator=generator())[0], dataset.get_batch(B=9, generator=generator())[0])


def test_a_pickled_copy_refuses_another_build(tmp_path: Path) -> None:
    folder = write_pretrain(tmp_path / "notes")
    stored = pickle.dumps(PretrainTokenStreamDataset(str(folder / "train"), T=3, device="cpu"))
    rewrite_meta(folder, seed=43)
    with pytest.raises(NielsCacheError, match="rebuilt since"):
        pickle.loads(stored)


def test_an_open_data_set_keeps_reading_the_build_it_opened(tmp_path: Path) -> None:
    write_shards(tmp_path / "old", [[1] * 9])
    write_shards(tmp_path / "new", [[2] * 9])
    dataset = PretrainTokenStreamDataset(str(tmp_path / "old"), T=3, device="cpu")
    (tmp_path / "new" / "shard_00000.bin").replace(tmp_path / "old" / "shard_00000.bin")
    assert dataset.get_batch(B=2, generator=generator())[0].unique().tolist() == [1]


def two_builds(tmp_path: Path, *, same_sizes: bool) -> tuple[Path, Path]:
    """Data sets whose train tokens are all 11 and all 22, in as many shards or not."""
    folders = tmp_path / "notes", tmp_path / ".notes.partial"
    for folder, token in zip(folders, (11, 22), strict=True):
        write_shards(folder / "train", [[token] * 8] * (2 if same_sizes or token == 11 else 3))
        write_meta_of(folder, kind="pretrain", token=token)
    return folders


@pytest.mark.parametrize("same_sizes", [True, False])
@pytest.mark.parametrize("step", ["open_meta", "list_shards", "listed_files", "check_sizes", "MappedTokens"])
def test_a_rebuild_while_opening_leaves_one_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, same_sizes: bool) -> None:
    folder, other = two_builds(tmp_path, same_sizes=same_sizes)
    exchange_before(opening, step, folder, other, monkeypatch)
    dataset = PretrainTokenStreamDataset(str(folder / "train"), T=3, device="cpu")
    assert dataset.meta is not None
    assert dataset.meta["token"] == 22
    assert dataset.get_batch(B=40, generator=generator())[0].unique().tolist() == [22]
    assert dataset.total_windows == 5 * (2 if same_sizes else 3)


def test_rebuilds_without_end_are_an_error_and_a_broken_build_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = two_builds(tmp_path, same_sizes=True)
    with monkeypatch.context() as patch:
        exchange_before(opening, "MappedTokens", folder, other, patch, times=99)
        with pytest.raises(NielsCacheError, match="rebuilt 5 times"):
            PretrainTokenStreamDataset(str(folder / "train"), T=3, device="cpu")
    for path in (folder, other):
        (path / "train" / "shard_00001.bin").unlink()
    exchange_before(opening, "MappedTokens", folder, other, monkeypatch)
    with pytest.raises(NielsCacheError, match=r"shard_00001\.bin: missing"):
        PretrainTokenStreamDataset(str(folder / "train"), T=3, device="cpu")


def test_files_stay_mapped_exactly_as_long_as_something_refers_to_them(tmp_path: Path) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("the system does not list its maps")
    write_shards(tmp_path, [range(5), range(5, 9)])
    mapped = MappedTokens([tmp_path / "shard_00000.bin", tmp_path / "shard_00001.bin"], dtype=TOKEN_DTYPE)
    last = mapped.shards[1][2:]
    assert str(tmp_path) in maps.read_text()
    del mapped
    gc.collect()
    assert last.tolist() == [7, 8]
    assert not last.flags.writeable
    del last
    gc.collect()
    assert str(tmp_path) not in maps.read_text()


def test_a_system_that_refuses_the_range_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "_libc_mmap", lambda: (lambda *_: mmap._MAP_FAILED, lambda *_: 0))
    numbered_shards(tmp_path, LENGTHS)
    with pytest.raises(NielsCacheError, match=r"reserve .* bytes of addresses"):
        PretrainTokenStreamDataset(str(tmp_path), T=T, device="cpu")


def test_meta_beside_the_split_is_read_and_agrees(tmp_path: Path) -> None:
    root = write_cache(tmp_path / "cache")
    dataset = PretrainTokenStreamDataset(str(root / "pretrain" / "notes" / "train"), T=3, device="cpu")
    assert dataset.meta is not None
    assert dataset.meta["train_tokens"] == 20
    assert dataset.total_windows == 5 + 5 + 1


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "train" / "shard_00002.bin").unlink(), "shard_00002.bin: missing"),
        (lambda folder: write_shards(folder / "train", [[1] * 8, [2] * 8, [3] * 8]), r"shard_00002\.bin: .*16 bytes, .* 8"),
        (lambda folder: write_shards(folder / "train", [[1]] * 4), "shard_00003.bin: not listed"),
        (lambda folder: (folder / "meta.json").write_text((folder / "meta.json").read_text()[:100]), "cut short"),
        (lambda folder: rewrite_meta(folder, schema_version=99), "schema_version is 99"),
        (lambda folder: rewrite_meta(folder, built=False), "never built"),
        (lambda folder: rewrite_meta(folder, files=[1]), "files is .1., "),
        (lambda folder: rewrite_meta(folder, tokenizer_sha256="0" * 64), "built with tokenizer 000000000000"),
        (lambda folder: (folder / "train" / "shard_00001.bin").unlink(), "shard_00001.bin is missing"),
    ],
)
def test_a_cache_that_is_not_what_meta_says_is_refused(tmp_path: Path, spoil: object, message: str) -> None:
    folder = write_cache(tmp_path / "cache") / "pretrain" / "notes"
    spoil(folder)  # type: ignore[operator]
    with pytest.raises(NielsCacheError, match=message):
        PretrainTokenStreamDataset(str(folder / "train"), T=3, device="cpu")


def test_bad_folders_are_refused_with_what_to_do(tmp_path: Path) -> None:
    def opened(folder: Path, T: int = 3, device: str = "cpu") -> None:
        PretrainTokenStreamDataset(str(folder), T=T, device=device)

    with pytest.raises(NielsCacheError, match="no such folder"):
        opened(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    with pytest.raises(NielsCacheError, match="no shards here"):
        opened(tmp_path / "bare")
    with pytest.raises(NielsCacheError, match="of a split"):
        opened(write_pretrain(tmp_path / "notes"))
    write_shards(tmp_path / "odd", [[1] * 9])
    (tmp_path / "odd" / "shard_00000.bin").write_bytes(b"123")
    with pytest.raises(NielsCacheError, match="3 bytes"):
        opened(tmp_path / "odd")
    with pytest.raises(NielsCacheError, match="empty"):
        opened(write_shards(tmp_path / "empty", [[]]))
    (tmp_path / "none" / "val").mkdir(parents=True)
    write_meta_of(tmp_path / "none", kind="pretrain")
    with pytest.raises(NielsCacheError, match="empty"):
        opened(tmp_path / "none" / "val")


def test_bad_settings_are_refused_with_the_nearest_valid_choice(tmp_path: Path) -> None:
    folder = str(write_shards(tmp_path, [range(9), range(5)]))
    with pytest.raises(NielsCacheError, match=r"T=9 .*10 tokens, .* 9; use T <= 8"):
        PretrainTokenStreamDataset(folder, T=9, device="cpu")
    assert PretrainTokenStreamDataset(folder, T=8, device="cpu").total_windows == 1
    for T in (0, -1, True, 2.5):
        with pytest.raises(NielsCacheError, match="at least 1"):
            PretrainTokenStreamDataset(folder, T=T, device="cpu")  # type: ignore[arg-type]
    with pytest.raises(NielsCacheError, match="B=0"):
        PretrainTokenStreamDataset(folder, T=2, device="cpu").get_batch(B=0, generator=generator())
    with pytest.raises(NielsCacheError, match="no such device"):
        PretrainTokenStreamDataset(folder, T=2, device="toaster")
    assert PretrainTokenStreamDataset(folder, T=np.int64(8), device="cpu").total_windows == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["cuda", "cuda:99", "mps", "xpu", "hpu", "nonsense"])
def test_a_device_that_is_not_here_is_refused(tmp_path: Path, device: str) -> None:
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "xpu": torch.xpu.is_available()}
    if here.get(device):
        pytest.skip("this machine has it")
    folder = str(write_shards(tmp_path, [range(9)]))
    with pytest.raises(NielsCacheError, match=f"device='{device}': "):
        PretrainTokenStreamDataset(folder, T=2, device=device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_gets_the_same_batch_as_the_cpu(tmp_path: Path) -> None:
    numbered_shards(tmp_path, LENGTHS)
    there = PretrainTokenStreamDataset(str(tmp_path), T=T, device="cuda").get_batch(B=16, generator=generator())
    here = PretrainTokenStreamDataset(str(tmp_path), T=T, device="cpu").get_batch(B=16, generator=generator())
    for ours, expected in zip(there, here, strict=True):
        assert ours.is_contiguous()
        assert torch.equal(ours.cpu(), expected)
