"""The time of a batch on a CUDA device, and of a training step with each way to get a batch, in one run.

    python benchmarks/gpu.py [--quick] [--device cuda] [--tokens 400000000]

Random tokens in a bare cache of 12 shards, in the page cache. Compared code takes turns in rounds of 40 batches or 20 steps, each of which
ends when the device is done; a time is the median of the rounds. A thread that prepares batches has up to three ready when a round begins.

    batches   "least" copies B x (T+1) tokens of two bytes from pinned memory that is already filled, and widens them twice on the device.
              "usual" slices and widens each row on the CPU, stacks the rows, and copies x and y from pinned memory without waiting.
    training  a step of a GPT under bfloat16 autocast with AdamW, from a batch that stays on the device ("fixed"), and from each way. A loop
              that waits reads the loss of each step. A step of the small model is as long as the launch of its kernels, so all work on
              the CPU disturbs it.

Without a GPU, `--device cpu --quick` shows that it runs.
"""

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from loader import Pair, get_batch_way, usual_way, write_cache
from niels_cache_runtime.loader.loader import TokenLoader

VOCABULARY = 50_304  # of the model; tokens of `write_cache` are below 50,000
SHAPES = ((8, 512), (32, 1024), (64, 2048))  # (B, T)


@dataclass(frozen=True, kw_only=True)
class Gpt:
    layers: int
    width: int
    B: int
    T: int


GPTS = {
    "163M parameters": Gpt(layers=12, width=768, B=16, T=1024),
    "small": Gpt(layers=4, width=256, B=8, T=512),
}
QUICK_GPTS = {"tiny": Gpt(layers=1, width=16, B=1, T=16)}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, dim=-1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Model(nn.Module):
    def __init__(self, size: Gpt) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, size.width), nn.Embedding(size.T, size.width)
        self.blocks = nn.ModuleList(Block(size.width) for _ in range(size.layers))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.tokens(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            found = block(found)
        return self.head(self.norm(found))


def sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_seconds(ways: Mapping[str, Callable[[], object]], device: torch.device, *, rounds: int, calls: int) -> dict[str, float]:
    """Return the median over rounds of the mean time of a call. One more round of each warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            sync(device)
            time.sleep(0.05)  # the thread of the way before fills its queue, which must not slow this way
            begin = time.perf_counter()
            for _ in range(calls):
                way()
            sync(device)
            if turn:
                seconds[name].append((time.perf_counter() - begin) / calls)
    return {name: statistics.median(found) for name, found in seconds.items()}


def least_way(device: torch.device, *, B: int, T: int) -> Callable[[], Pair]:
    filled = torch.randint(30_000, (B, T + 1), dtype=torch.int16)
    pinned = filled.pin_memory() if device.type == "cuda" else filled

    def copy() -> Pair:
        tokens = pinned.to(device, non_blocking=True)
        return tokens[:, :-1].to(torch.int64), tokens[:, 1:].to(torch.int64)

    return copy


def usual_way_to(device: torch.device, split: Path, *, B: int, T: int) -> Callable[[], Pair]:
    get_batch = usual_way(split, B=B, T=T)
    if device.type != "cuda":
        return get_batch

    def send() -> Pair:
        x, y = get_batch()
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)

    return send


def loader_way(device: torch.device, split: Path, *, B: int, T: int, prefetch: int, fields: tuple[str, ...] = ()) -> Callable[[], Pair]:
    batches = iter(TokenLoader(str(split), T=T, B=B, seed=0, device=device, prefetch=prefetch, fields=fields))

    def take() -> Pair:
        batch = next(batches)
        return batch.x, batch.y

    return take


def ways_of(device: torch.device, split: Path, *, B: int, T: int) -> dict[str, Callable[[], Pair]]:
    return {
        "usual": usual_way_to(device, split, B=B, T=T),
        "get_batch": get_batch_way(split, B=B, T=T, device=device),
        "loader, prefetch=0": loader_way(device, split, B=B, T=T, prefetch=0),
        "loader, prefetch=1": loader_way(device, split, B=B, T=T, prefetch=1),
        "loader, prefetch=2": loader_way(device, split, B=B, T=T, prefetch=2),
        "loader, document fields, prefetch=1": loader_way(
            device, split, B=B, T=T, prefetch=1, fields=("document_ids", "position_ids", "cu_seqlens")
        ),
    }


def measure_batches(device: torch.device, split: Path, *, rounds: int, calls: int) -> Iterator[str]:
    for B, T in SHAPES:
        ways = {"least": least_way(device, B=B, T=T), **ways_of(device, split, B=B, T=T)}
        found = median_seconds(ways, device, rounds=rounds, calls=calls)
        for name, seconds in found.items():
            yield (
                f"| ({B}, {T}) | {name} | {seconds * 1e6:,.0f} | {B * T / seconds / 1e6:,.0f} | {found['usual'] / seconds:.1f}x "
                f"| {found['least'] / seconds:.2f} |"
            )


def step_way(model: Model, device: torch.device, get_batch: Callable[[], Pair], *, waits: bool) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device.type == "cuda")

    def step() -> None:
        x, y = get_batch()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if waits:
            loss.item()

    return step


def measure_training(device: torch.device, split: Path, gpts: Mapping[str, Gpt], *, rounds: int, calls: int) -> Iterator[str]:
    for title, size in gpts.items():
        torch.manual_seed(0)
        model = Model(size).to(device)
        fixed = loader_way(device, split, B=size.B, T=size.T, prefetch=0)()
        ways: dict[str, Callable[[], Pair]] = {"fixed": lambda fixed=fixed: fixed, **ways_of(device, split, B=size.B, T=size.T)}
        found = [
            median_seconds(
                {name: step_way(model, device, way, waits=waits) for name, way in ways.items()}, device, rounds=rounds, calls=calls
            )
            for waits in (False, True)
        ]
        for name in ways:
            cells = " | ".join(f"{seconds[name] * 1e3:.2f} | {seconds['fixed'] / seconds[name]:.3f}" for seconds in found)
            yield f"| {title}, ({size.B}, {size.T}) | {name} | {cells} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"), help="device of the batches (default: cuda)")
    parser.add_argument("--tokens", type=int, default=400_000_000, help="tokens of the cache (default: 400,000,000)")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, not how fast")
    settings = parser.parse_args()
    device, tokens = settings.device, 2_000_000 if settings.quick else settings.tokens
    if device.type == "cuda" and not torch.cuda.is_available():
        return print("left out: torch finds no CUDA device here; --device cpu --quick shows that the benchmark runs")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    print(f"{name}, torch {torch.__version__}, numpy {np.__version__}, {tokens:,} tokens", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        split = write_cache(Path(temporary) / "cache", tokens=tokens, shard_tokens=-(-tokens // 12))
        print("| (B, T) | batches | us | M tokens/s | against usual | of the least |\n|---|---|---|---|---|---|")
        for row in measure_batches(device, split, rounds=1 if settings.quick else 15, calls=2 if settings.quick else 40):
            print(row, flush=True)
        print("| model, (B, T) | batches | ms a step | of fixed | ms, waits | of fixed |\n|---|---|---|---|---|---|")
        gpts = QUICK_GPTS if settings.quick else GPTS
        for row in measure_training(device, split, gpts, rounds=1 if settings.quick else 10, calls=1 if settings.quick else 20):
            print(row, flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
