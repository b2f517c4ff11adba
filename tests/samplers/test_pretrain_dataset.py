"""PretrainTokenStreamDataset: which windows it draws, how often, and what it refuses."""

import gc
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from niels_cache_runtime import NielsCacheError, PretrainTokenStreamDataset
from niels_cache_runtime.cache import mmap, opening
from niels_cache_runtime.cache.mmap import MappedTokens
from niels_cache_runtime.format.layout import TOKEN_DTYPE
from tests.helpers.hand_made import exchange_before, rewrite_meta, write_cache, write_meta_of, write_pretrain, write_shards

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


def test_a_pickled_copy_maps_the_files_again_and_gives_the_same_batches(tmp_path: Path) -> None:
    folder = write_pretrain(tmp_path / "notes")
    dataset = PretrainTokenStreamDataset(str(folder / "train"), T=3, device="cpu")
    stored = pickle.dumps(dataset)
    assert len(stored) < 5_000
    copy = pickle.loads(stored)
    assert torch.equal(copy.get_batch(B=9, generator=generator())[0], dataset.get_batch(B=9, generator=generator())[0])
    rewrite_meta(folder, seed=43)
    with pytest.raises(NielsCacheError, match="rebuilt since"):
        pickle.loads(stored)


def test_rebuilds_without_end_are_an_error_and_a_broken_build_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = tmp_path / "notes", tmp_path / ".notes.partial"
    for path, token in ((folder, 11), (other, 22)):
        write_shards(path / "train", [[token] * 8] * 2)
        write_meta_of(path, kind="pretrain", token=token)
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


@pytest.mark.parametrize("device", ["cuda", "cuda:99", "nonsense"])
def test_a_device_that_is_not_here_is_refused(tmp_path: Path, device: str) -> None:
    if device == "cuda" and torch.cuda.is_available():
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
