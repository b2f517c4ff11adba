"""`get_batch` against the usual per-row way, in one run, over the same tokens in 12 shards and in one.

    python benchmarks/get_batch.py [--tokens 400000000] [--device cpu] [--runs 1] [--freed-mib 30]

The usual way maps each shard with numpy and, for each row, slices, widens to int64 and wraps, then stacks the rows. Both draw
windows at random, and both run warm: in the page cache, and after each has touched every page of its maps once. `fill` is what
storing costs: two int64 tensors of that size, filled with a number. Rounds of the three alternate, so that a busy machine slows
all; the table shows the median of all calls in microseconds and their ratios.

Once a process has freed a large block, glibc no longer maps blocks up to that size anew (mallopt(3), M_MMAP_THRESHOLD), so that
the usual way's tensors cost no page faults, as in most training. `--freed-mib 0` shows a process that has not: there they may.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from niels_cache_runtime.formats import TOKEN_DTYPE, list_shards, shard_name
from niels_cache_runtime.pretrain_dataset import PretrainTokenStreamDataset

WARM_UP_CALLS = 50
PAGE_TOKENS = 2048
SIZES = ((8, 512), (32, 1024), (64, 2048))
Batch = tuple[torch.Tensor, torch.Tensor]


def write_shards(folder: Path, *, tokens: int, shards: int) -> None:
    generator = torch.Generator().manual_seed(0)
    folder.mkdir(parents=True)
    for index in range(shards):
        drawn = torch.randint(50_000, (tokens // shards,), generator=generator, dtype=torch.int32)
        drawn.numpy().astype(TOKEN_DTYPE).tofile(folder / shard_name(index))


def touch(tokens: NDArray[np.uint16]) -> None:
    tokens[::PAGE_TOKENS].max(initial=0)


def usual_way(folder: Path, *, B: int, T: int, device: str) -> Callable[[], Batch]:
    maps = [np.memmap(path, dtype=TOKEN_DTYPE, mode="r") for path in list_shards(folder)]
    for tokens in maps:
        touch(tokens)
    generator = torch.Generator().manual_seed(0)

    def get_batch() -> Batch:
        chosen = [maps[shard] for shard in torch.randint(len(maps), (B,), generator=generator).tolist()]
        starts = torch.randint(len(maps[0]) - T, (B,), generator=generator).tolist()
        x = torch.stack([torch.from_numpy(tokens[i : i + T].astype(np.int64)) for tokens, i in zip(chosen, starts, strict=True)])
        y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + T].astype(np.int64)) for tokens, i in zip(chosen, starts, strict=True)])
        return x.to(device), y.to(device)

    return get_batch


def our_way(folder: Path, *, B: int, T: int, device: str) -> Callable[[], Batch]:
    dataset = PretrainTokenStreamDataset(str(folder), T=T, device=device)
    if dataset._reader._tokens is not None:
        touch(dataset._reader._tokens)
    generator = torch.Generator().manual_seed(0)
    return lambda: dataset.get_batch(B=B, generator=generator)


def fill(*, B: int, T: int, device: str) -> Callable[[], Batch]:
    x, y = (torch.empty((B, T), dtype=torch.int64, device=device) for _ in range(2))
    return lambda: (x.fill_(1), y.fill_(2))


def median_microseconds(ways: list[Callable[[], Batch]], *, device: str, rounds: int = 20, calls: int = 20) -> list[float]:
    synchronize = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    for way in ways:
        for _ in range(WARM_UP_CALLS):
            way()
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for way, times in zip(ways, seconds, strict=True):
            for _ in range(calls):
                begin = time.perf_counter()
                way()
                synchronize()
                times.append(time.perf_counter() - begin)
    return [statistics.median(times) * 1e6 for times in seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=400_000_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--freed-mib", type=int, default=30)
    settings = parser.parse_args()
    torch.empty(settings.freed_mib << 20, dtype=torch.uint8)  # freed at once
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {settings.tokens:,} tokens, {settings.device}")
    print(f"{'shards':>6} {'B':>4} {'T':>5} {'usual us':>9} {'ours us':>8} {'fill us':>8} {'usual/ours':>11} {'fill/ours':>10}")
    for shards in (12, 1):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "train"
            write_shards(folder, tokens=settings.tokens, shards=shards)
            for _ in range(settings.runs):
                for B, T in SIZES:
                    size = {"B": B, "T": T, "device": settings.device}
                    ways = [usual_way(folder, **size), our_way(folder, **size), fill(**size)]
                    usual, ours, filled = median_microseconds(ways, device=settings.device)
                    print(
                        f"{shards:>6} {B:>4} {T:>5} {usual:>9.0f} {ours:>8.1f} {filled:>8.1f} {usual / ours:>11.1f} {filled / ours:>10.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
