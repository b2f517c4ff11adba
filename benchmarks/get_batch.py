"""`get_batch` against the usual per-row way, in one run, over the same tokens cut into 1, 4 and 12 shards.

    python benchmarks/get_batch.py [--tokens 100000000] [--device cpu]

The usual way maps each shard with numpy and, for each row, slices, widens to int64 and wraps, then stacks the rows. Both draw
windows at random, and both run warm: in the page cache, and after as many calls as it takes to touch most pages once. Rounds of
the two alternate, so that a busy machine slows both; the table shows the median of all calls in microseconds, and their ratio.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from niels_cache_runtime.formats import TOKEN_DTYPE, list_shards, shard_name
from niels_cache_runtime.pretrain_dataset import PretrainTokenStreamDataset

WARM_UP_CALLS = 500
Batch = tuple[torch.Tensor, torch.Tensor]


def write_shards(folder: Path, *, tokens: int, shards: int) -> None:
    generator = torch.Generator().manual_seed(0)
    folder.mkdir(parents=True)
    for index in range(shards):
        drawn = torch.randint(50_000, (tokens // shards,), generator=generator, dtype=torch.int32)
        drawn.numpy().astype(TOKEN_DTYPE).tofile(folder / shard_name(index))


def usual_way(folder: Path, *, B: int, T: int, device: str) -> Callable[[], Batch]:
    maps = [np.memmap(path, dtype=TOKEN_DTYPE, mode="r") for path in list_shards(folder)]
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
    generator = torch.Generator().manual_seed(0)
    return lambda: dataset.get_batch(B=B, generator=generator)


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
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--device", default="cpu")
    settings = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {settings.tokens:,} tokens, {settings.device}")
    print(f"{'shards':>6} {'B':>4} {'T':>5} {'usual us':>9} {'ours us':>8} {'ratio':>6}")
    for shards in (1, 4, 12):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "train"
            write_shards(folder, tokens=settings.tokens, shards=shards)
            for B, T in ((64, 1024), (64, 2048)):
                usual, ours = median_microseconds(
                    [way(folder, B=B, T=T, device=settings.device) for way in (usual_way, our_way)], device=settings.device
                )
                print(f"{shards:>6} {B:>4} {T:>5} {usual:>9.0f} {ours:>8.0f} {usual / ours:>6.1f}")


if __name__ == "__main__":
    main()
