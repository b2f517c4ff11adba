"""The runtime's figures in one run: batches, the order in blocks, other projects' loaders, document fields, opening, resuming, packing.

    python benchmarks/loader.py [--quick] [--no-peers] [--freed-mib 30]
        [--only four wide batches blocks fields peers opening resuming packing]

Random tokens (`torch.Generator`), the same in a cache of 12 shards and in one of a single shard; `four`: a quarter of them in 4 shards.
`wide`: the same quarter as uint16 and as uint32, with ids that need it.
Warm in the page cache; documents of 600 tokens on average. Compared code takes turns in short rounds, so a busy machine slows
all of it; a time is the median of the rounds' means. The usual way is to slice and widen each row and to stack the rows, for x and for y,
at random places; it and `fill_` count with torch's threads or with one, whichever is faster. "one copy" widens as many tokens, in one
piece, into existing tensors. Lengths of examples are those of dolly in a cache built here if NIELS_CACHE_REAL_DATA is set, else
log-normal.

Once a process has freed a large block, glibc no longer maps blocks up to that size anew (mallopt(3), M_MMAP_THRESHOLD). Then the
usual way's tensors cost no page faults, as in much of training: the strict comparison. `--freed-mib 0` shows a process without that.
Needs 2 GB of disk and page cache, with peers 4 GB (peers/compare.py describes how they run).
"""

import argparse
import json
import mmap
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from niels_cache_runtime import Blocks, PretrainTokenStreamDataset
from niels_cache_runtime.cache.mmap import map_example_starts
from niels_cache_runtime.format.layout import (
    DOC_ENDS_DTYPE,
    META_NAME,
    TOKEN_DTYPE,
    TOKEN_DTYPES,
    dataset_dir,
    doc_ends_name,
    idx_name,
    list_shards,
    shard_name,
)
from niels_cache_runtime.format.meta import write_meta
from niels_cache_runtime.loader.loader import TokenLoader
from niels_cache_runtime.loader.packing.plan import place_examples, shape_rows
from peers.compare import PeersMissing, compare

Pair = tuple[torch.Tensor, torch.Tensor]
Way = Callable[[], object]
PAGE_TOKENS = mmap.PAGESIZE // TOKEN_DTYPE.itemsize
DOCUMENT_TOKENS = 600
PACKED_T = 1024
WANTED = {(8, 512): (6, 5), (32, 1024): (10, 8), (64, 2048): (12, 10)}  # (B, T): get_batch and loader against the usual way
WANTED_OF_FOUR = {(64, 1024): (8, 0)}


@dataclass(frozen=True, kw_only=True)
class Scale:
    tokens: int
    rounds: int
    calls: int
    warm_seconds: float
    peer_rounds: int
    peer_seconds: float
    shards: int
    shard_bytes: int
    openings: int
    step: int
    examples: int


FULL = Scale(
    tokens=400_000_000,
    rounds=30,
    calls=40,
    warm_seconds=2.0,
    peer_rounds=7,
    peer_seconds=2.0,
    shards=10_000,
    shard_bytes=2**27,
    openings=5,
    step=10_000_000,
    examples=1_000_000,
)
QUICK = Scale(
    tokens=2_000_000,
    rounds=3,
    calls=3,
    warm_seconds=0.02,
    peer_rounds=2,
    peer_seconds=0.2,
    shards=100,
    shard_bytes=2**22,
    openings=1,
    step=10_000_000,
    examples=10_000,
)


@dataclass(frozen=True, kw_only=True)
class Row:
    what: str
    measured: str
    wanted: str
    ratio: str


def times(value: float) -> str:
    return f"{value:.2f}x" if value < 2 else f"{value:.1f}x"


# The caches


def write_cache(folder: Path, *, tokens: int, shard_tokens: int) -> Path:
    """Write a bare split of random tokens and documents; both depend on `tokens` alone. Return its folder."""
    split = folder / "train"
    split.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    piece = 1 << 24
    stream = np.concatenate(
        [
            torch.randint(50_000, (min(piece, tokens - start),), generator=generator, dtype=torch.int32).numpy().astype(TOKEN_DTYPE)
            for start in range(0, tokens, piece)
        ]
    )
    for index, start in enumerate(range(0, tokens, shard_tokens)):
        stream[start : start + shard_tokens].tofile(split / shard_name(index))
    lengths = torch.empty(2 * tokens // DOCUMENT_TOKENS).exponential_(1 / DOCUMENT_TOKENS, generator=generator).long() + 1
    ends = lengths.cumsum(0).numpy()
    np.save(folder / doc_ends_name("train"), np.append(ends[ends < tokens], tokens).astype(DOC_ENDS_DTYPE))
    return split


def write_wide_cache(folder: Path, narrow: Path) -> Path:
    """Write the split `narrow` with uint32 tokens, and with a meta.json that says so (except the hashes). Return the split's folder."""
    split = folder / "train"
    split.mkdir(parents=True)
    shutil.copy(narrow.parent / doc_ends_name("train"), folder)
    for path in list_shards(narrow):
        (np.fromfile(path, dtype=TOKEN_DTYPE).astype(TOKEN_DTYPES["uint32-le"]) + 100_000).tofile(split / path.name)
    paths = [folder / doc_ends_name("train"), *list_shards(split)]
    files = {path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": "0" * 64} for path in paths}
    write_meta(str(folder / META_NAME), {"kind": "pretrain", "built": True, "token_dtype": "uint32-le", "files": files})
    return split


def write_sparse_cache(folder: Path, *, shards: int, shard_bytes: int) -> Path:
    """Write a split of sparse files, as one document, with a meta.json as a build writes it (except the hashes)."""
    split = folder / "train"
    split.mkdir(parents=True)
    files = {}
    for index in range(shards):
        path = split / shard_name(index)
        path.touch()
        os.truncate(path, shard_bytes)
        files[f"train/{path.name}"] = {"bytes": shard_bytes, "sha256": f"{index:064x}"}
    ends = folder / doc_ends_name("train")
    np.save(ends, np.array([shards * shard_bytes // TOKEN_DTYPE.itemsize], dtype=DOC_ENDS_DTYPE))
    files[ends.name] = {"bytes": ends.stat().st_size, "sha256": "0" * 64}
    write_meta(str(folder / META_NAME), {"kind": "pretrain", "built": True, "files": files})
    return split


# Batches


def mean_seconds(ways: Mapping[str, Way], scale: Scale, *, any_threads: Collection[str] = ()) -> dict[str, float]:
    """Return the median over rounds of the mean time of a call. any_threads: try these with one torch thread too; the better counts."""
    threads = torch.get_num_threads()
    runs = [(name, threads) for name in ways] + [(name, 1) for name in any_threads]
    for way in ways.values():
        end = time.perf_counter() + scale.warm_seconds
        while time.perf_counter() < end:
            way()
    seconds: dict[tuple[str, int], list[float]] = {run: [] for run in runs}
    for _ in range(scale.rounds):
        for name, used in runs:
            torch.set_num_threads(used)
            way = ways[name]
            begin = time.perf_counter()
            for _ in range(scale.calls):
                way()
            seconds[name, used].append((time.perf_counter() - begin) / scale.calls)
    torch.set_num_threads(threads)
    return {name: min(statistics.median(seconds[run]) for run in runs if run[0] == name) for name in ways}


def usual_way(split: Path, *, B: int, T: int) -> Callable[[], Pair]:
    maps = [np.memmap(path, dtype=TOKEN_DTYPE, mode="r") for path in list_shards(split)]
    places = torch.tensor([len(tokens) - T for tokens in maps])
    generator = torch.Generator().manual_seed(0)

    def get_batch() -> Pair:
        shards = torch.randint(len(maps), (B,), generator=generator)
        starts = (torch.rand(B, generator=generator, dtype=torch.float64) * places[shards]).long()
        windows = [(maps[shard], start) for shard, start in zip(shards.tolist(), starts.tolist(), strict=True)]
        x = torch.stack([torch.from_numpy(tokens[i : i + T].astype(np.int64)) for tokens, i in windows])
        y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + T].astype(np.int64)) for tokens, i in windows])
        return x, y

    return get_batch


def get_batch_way(split: Path, *, B: int, T: int, device: str | torch.device = "cpu") -> Callable[[], Pair]:
    dataset = PretrainTokenStreamDataset(str(split), T=T, device=device)
    generator = torch.Generator().manual_seed(0)
    return lambda: dataset.get_batch(B=B, generator=generator)


def loader_way(split: Path, *, B: int, T: int, prefetch: int = 0, fields: tuple[str, ...] = (), **settings: Any) -> Way:
    return iter(TokenLoader(str(split), T=T, B=B, seed=0, prefetch=prefetch, fields=fields, **settings)).__next__


def fill_way(*, B: int, T: int) -> Way:
    x, y = torch.empty((B, T), dtype=torch.int64), torch.empty((B, T), dtype=torch.int64)
    return lambda: (x.fill_(1), y.fill_(2))


def copy_way(split: Path, *, B: int, T: int) -> Way:
    tokens = np.memmap(list_shards(split)[0], dtype=TOKEN_DTYPE, mode="r")
    x, y = np.empty((B, T), dtype=np.int64), np.empty((B, T), dtype=np.int64)
    first, second = tokens[: B * T].reshape(B, T), tokens[1 : 1 + B * T].reshape(B, T)
    return lambda: (np.copyto(x, first), np.copyto(y, second))


def batches(caches: Mapping[str, Path], scale: Scale, wanted_of: Mapping[tuple[int, int], tuple[int, int]]) -> Iterator[Row]:
    for cache, split in caches.items():
        for (B, T), (wanted, wanted_of_loader) in wanted_of.items():
            found = mean_seconds(
                {
                    "usual": usual_way(split, B=B, T=T),
                    "get_batch": get_batch_way(split, B=B, T=T),
                    "loader": loader_way(split, B=B, T=T),
                    "loader, prefetch=1": loader_way(split, B=B, T=T, prefetch=1),
                    "fill_": fill_way(B=B, T=T),
                    "one copy": copy_way(split, B=B, T=T),
                },
                scale,
                any_threads=("usual", "fill_"),
            )
            micros = {name: f"{seconds * 1e6:.0f} us" for name, seconds in found.items()}
            wanted_of_each = (("get_batch", wanted), ("loader", wanted_of_loader), ("loader, prefetch=1", 0))
            for name, least in ((name, f"{ratio}x" if ratio else "") for name, ratio in wanted_of_each):
                yield Row(
                    what=f"{name} ({B}, {T}), {cache}, against the usual way",
                    measured=f"{micros[name]}, {micros['usual']}",
                    wanted=least,
                    ratio=times(found["usual"] / found[name]),
                )
                if B == 64:
                    yield Row(
                        what=f"{name} ({B}, {T}), {cache}, against fill_ of x and y",
                        measured=f"{micros[name]}, {micros['fill_']}",
                        wanted="0.25x" if least else "",
                        ratio=times(found["fill_"] / found[name]),
                    )
                    yield Row(
                        what=f"{name} ({B}, {T}), {cache}, against one copy into x and y",
                        measured=f"{micros[name]}, {micros['one copy']}",
                        wanted="",
                        ratio=times(found["one copy"] / found[name]),
                    )


def wide(narrow: Path, split: Path, scale: Scale) -> Iterator[Row]:
    # Both sides take nearly the same time. In rounds shorter than a time slice of the system, a busy machine disturbs few of them.
    scale = replace(scale, rounds=10 * scale.rounds, calls=max(1, scale.calls // 10))
    for B, T in WANTED:
        ways: dict[str, Way] = {}
        for dtype, folder in (("uint16", narrow), ("uint32", split)):
            ways[f"get_batch {dtype}"] = get_batch_way(folder, B=B, T=T)
            ways[f"loader {dtype}"] = loader_way(folder, B=B, T=T)
        found = mean_seconds(ways, scale)
        for name in ("get_batch", "loader"):
            of_wide, of_narrow = found[f"{name} uint32"], found[f"{name} uint16"]
            yield Row(
                what=f"{name} ({B}, {T}), 4 shards, uint32 against uint16",
                measured=f"{of_wide * 1e6:.0f} us, {of_narrow * 1e6:.0f} us",
                wanted="within 1.5x",
                ratio=times(of_wide / of_narrow),
            )


def blocks(split: Path, scale: Scale) -> Iterator[Row]:
    # The order of 4096 samples is computed at once, for all their batches. A round has 16 times as many, so it also enters a block or two.
    orders: dict[str, dict[str, Any]] = {
        "order='split'": {},
        "blocks of 1 shard": {"order": Blocks(shards=1)},
        "blocks of 1 shard, 8 lanes": {"order": Blocks(shards=1, lanes=8)},
    }
    for B, T in WANTED:
        of_many = replace(scale, calls=(16 if scale is FULL else 1) * 4096 // B)
        found = mean_seconds({name: loader_way(split, B=B, T=T, **settings) for name, settings in orders.items()}, of_many)
        of_split = found.pop("order='split'")
        for name, seconds in found.items():
            yield Row(
                what=f"loader ({B}, {T}), 12 shards, {name}, against order='split'",
                measured=f"{seconds * 1e6:.0f} us, {of_split * 1e6:.0f} us",
                wanted="within 1.1x",
                ratio=times(seconds / of_split),
            )


def fields(caches: Mapping[str, Path], scale: Scale) -> Iterator[Row]:
    B, T = max(WANTED)
    for cache, split in caches.items():
        plain, both = mean_seconds(
            {
                "plain": loader_way(split, B=B, T=T),
                "both": loader_way(split, B=B, T=T, fields=("document_ids", "position_ids")),
            },
            scale,
        ).values()
        yield Row(
            what=f"document_ids and position_ids ({B}, {T}), {cache}, against the plain batch",
            measured=f"{both * 1e6:.0f} us, {plain * 1e6:.0f} us",
            wanted="under 2x",
            ratio=times(both / plain),
        )


def peers(split: Path, work: Path, scale: Scale) -> Iterator[Row]:
    B, T = max(WANTED)
    candidates = {prefetch: loader_way(split, B=B, T=T, prefetch=prefetch) for prefetch in (0, 1)}
    found = mean_seconds({str(prefetch): way for prefetch, way in candidates.items()}, scale)
    prefetch = min(candidates, key=lambda prefetch: found[str(prefetch)])
    speeds = compare(candidates[prefetch], source=split, work=work, T=T, B=B, rounds=scale.peer_rounds, seconds=scale.peer_seconds)
    for name, speed in speeds.items():
        if name != "ours":
            yield Row(
                what=f"loader ({B}, {T}), prefetch={prefetch}, against {name} ({speed.settings})",
                measured=f"{speeds['ours']}, {speed}",
                wanted="5x",
                ratio=times(speeds["ours"].median / speed.median),
            )


# Opening, in a new process each time


def open_one_by_one(split: Path) -> object:
    """Open shards in the usual way, the baseline of opening. Python keeps a descriptor for each of its maps."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    maps = []
    for path in sorted(split.glob("*.bin")):
        os.stat(path)
        with open(path, "rb") as file:
            maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return maps


OPENERS: dict[str, Callable[[Path], object]] = {
    "stat and mmap one by one": open_one_by_one,
    "TokenLoader": lambda split: TokenLoader(str(split), T=2048, B=64, seed=0),
    "PretrainTokenStreamDataset": lambda split: PretrainTokenStreamDataset(str(split), T=2048, device="cpu"),
}


def open_here(opener: str, split: Path) -> None:
    """Print seconds and gained bytes of resident memory, in the child. It has only as many descriptors as shells give by default."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    process = psutil.Process()
    before, begin = process.memory_info().rss, time.perf_counter()
    opened = OPENERS[opener](split)
    seconds = time.perf_counter() - begin
    print(json.dumps([seconds, process.memory_info().rss - before]))
    del opened


def opening(work: Path, scale: Scale) -> Iterator[Row]:
    split = write_sparse_cache(work / "sparse", shards=scale.shards, shard_bytes=scale.shard_bytes)
    found: dict[str, list[tuple[float, int]]] = {opener: [] for opener in OPENERS}
    for _ in range(scale.openings):
        for opener, results in found.items():
            child = subprocess.run([sys.executable, __file__, "--open", opener, str(split)], capture_output=True, text=True, check=True)
            results.append(tuple(json.loads(child.stdout)))
    seconds = {opener: statistics.median(second for second, _ in results) for opener, results in found.items()}
    bare = seconds["stat and mmap one by one"]
    for opener, results in found.items():
        megabytes = statistics.median(memory for _, memory in results) / 1e6
        ours = seconds[opener] is not bare
        yield Row(
            what=f"open {scale.shards:,} shards: {opener}" + (", against one by one" if ours else ""),
            measured=f"{seconds[opener]:.3f} s, {megabytes:.0f} MB",
            wanted="under 0.5 s, 100 MB" if ours else "",
            ratio=times(seconds[opener] / bare),
        )
    shutil.rmtree(split.parent)


# Resuming


def resuming(caches: Mapping[str, Path], scale: Scale) -> Iterator[Row]:
    B, T = max(WANTED)
    twelve, one = map(str, caches.values())
    loaders = {
        "one source": TokenLoader(twelve, T=T, B=B, seed=0),
        "two sources, 0.7 and 0.3": TokenLoader({"a": twelve, "b": one}, weights={"a": 0.7, "b": 0.3}, T=T, B=B, seed=0),
    }
    for name, loader in loaders.items():
        states = {step: loader.state_dict(steps=step) for step in (0, scale.step)}

        def first_batch(state: dict[str, object], loader: TokenLoader = loader) -> None:
            loader.load_state_dict(state)
            next(iter(loader))

        start, late = mean_seconds({str(step): lambda state=state: first_batch(state) for step, state in states.items()}, scale).values()
        yield Row(
            what=f"load_state_dict and first batch at step {scale.step:,} against step 0, {name}",
            measured=f"{late * 1e3:.2f} ms, {start * 1e3:.2f} ms",
            wanted="within 2x",
            ratio=times(late / start),
        )


# Packing


def example_lengths(count: int, work: Path) -> tuple[NDArray[np.int64], str]:
    """Return lengths (count,) in tokens, and their origin."""
    generator = torch.Generator().manual_seed(0)
    real = os.environ.get("NIELS_CACHE_REAL_DATA")
    if not real:
        drawn = torch.empty(count, dtype=torch.float64).log_normal_(4.6, 1.0, generator=generator).round().clamp(8, 8192)
        return drawn.long().numpy(), "log-normal(4.6, 1.0)"
    import repository_path  # noqa: F401
    from niels_cache_assets.project.registry import load_registry
    from tests.helpers.builds import build_dataset, build_tokenizer

    registry = load_registry(
        profile="default",
        overrides={
            "pretrain": {"texts": {"source": "jsonl", "files": [f"{real}/bulk/debian_docs_dev.jsonl.gz"]}},
            "tokenizer": {"train_on": ["texts"], "vocab_size": 8000, "sample_bytes": 2_000_000},
            "sft": {"dolly15k": {"files": [f"{real}/dolly/*.jsonl"]}},
        },
    )
    build_tokenizer(registry, root=work)
    meta = build_dataset(registry, "dolly15k", root=work).meta
    folder = dataset_dir(work, "sft", "dolly15k")
    starts = map_example_starts(folder / idx_name("train"), token_count=meta["train_tokens"])
    lengths = np.diff(starts, append=meta["train_tokens"])
    chosen = torch.randint(len(lengths), (count,), generator=generator).numpy()
    return lengths[chosen], f"drawn from dolly's {len(lengths):,}"


def packing(work: Path, scale: Scale) -> Iterator[Row]:
    drawn, origin = example_lengths(scale.examples, work / "dolly")
    lengths = np.minimum(drawn, PACKED_T + 1)
    seconds = []
    for epoch in range(3):
        begin = time.perf_counter()
        shapes = shape_rows(lengths, capacity=PACKED_T + 1)
        place_examples(shapes, lengths, seed=0, epoch=epoch)
        seconds.append(time.perf_counter() - begin)
    rows = len(shapes.row_starts) - 1
    yield Row(
        what=f"packing {scale.examples:,} examples into rows of {PACKED_T + 1}, lengths {origin}",
        measured=f"{statistics.median(seconds):.2f} s, {rows:,} rows, {1 - lengths.sum() / (rows * (PACKED_T + 1)):.2%} padding",
        wanted="under 5 s",
        ratio="",
    )


# The run

PARTS = ("four", "wide", "batches", "blocks", "fields", "peers", "opening", "resuming", "packing")


def measure(parts: list[str], scale: Scale, work: Path) -> Iterator[Row]:
    need = scale.tokens * TOKEN_DTYPE.itemsize * (4 if "peers" in parts else 2)
    for what, free in (
        ("disk below " + tempfile.gettempdir(), shutil.disk_usage(work).free),
        ("memory", psutil.virtual_memory().available),
    ):
        if free < 1.2 * need:
            raise SystemExit(
                f"{need / 1e9:.1f} GB of {what} are needed, {free / 1e9:.1f} GB are free; use --quick, or leave parts out with --only"
            )
    if {"batches", "blocks", "fields", "peers", "resuming"} & set(parts):
        twelfth = -(-scale.tokens // 12 // PAGE_TOKENS) * PAGE_TOKENS  # whole pages, as a build writes full shards
        sizes = {"12 shards": twelfth, "1 shard": scale.tokens}
        caches = {name: write_cache(work / name[:2].strip(), tokens=scale.tokens, shard_tokens=size) for name, size in sizes.items()}
    if {"four", "wide"} & set(parts):
        quarter = scale.tokens // 4 // PAGE_TOKENS * PAGE_TOKENS
        split = write_cache(work / "four", tokens=quarter, shard_tokens=-(-quarter // 4 // PAGE_TOKENS) * PAGE_TOKENS)
        assert len(list_shards(split)) == 4
        if "four" in parts:
            yield from batches({"4 shards": split}, scale, WANTED_OF_FOUR)
        if "wide" in parts:
            of_uint32 = write_wide_cache(work / "wide", split)
            yield from wide(split, of_uint32, scale)
            shutil.rmtree(of_uint32.parent)
        shutil.rmtree(split.parent)
    if "batches" in parts:
        yield from batches(caches, scale, WANTED)
    if "blocks" in parts:
        yield from blocks(caches["12 shards"], scale)
    if "fields" in parts:
        yield from fields(caches, scale)
    if "peers" in parts:
        try:
            yield from peers(caches["12 shards"], work / "peers", scale)
        except PeersMissing as error:
            print(f"without litdata and mosaicml-streaming: {error}")
    if "opening" in parts:
        yield from opening(work, scale)
    if "resuming" in parts:
        yield from resuming(caches, scale)
    if "packing" in parts:
        yield from packing(work, scale)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, not how fast")
    parser.add_argument("--no-peers", action="store_true", help="without the other projects' loaders")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run")
    parser.add_argument("--freed-mib", type=int, default=30, help="free a block of this size first: see the module (default: 30)")
    parser.add_argument("--open", nargs=2, help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.open:
        return open_here(settings.open[0], Path(settings.open[1]))
    scale = QUICK if settings.quick else FULL
    parts = [part for part in settings.only if not (part == "peers" and settings.no_peers)]
    print(f"torch {torch.__version__}, numpy {np.__version__}, {os.cpu_count()} cores, {scale.tokens:,} tokens", flush=True)
    torch.empty(settings.freed_mib << 20, dtype=torch.uint8)  # freed at once
    with tempfile.TemporaryDirectory() as temporary:
        rows = list(measure(parts, scale, Path(temporary)))
    print("| what | measured | wanted | ratio |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row.what} | {row.measured} | {row.wanted} | {row.ratio} |")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
