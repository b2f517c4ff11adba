"""Training from a bucket, compared with a folder and with a plain loop of obstore, sha256 and write.

    python benchmarks/bucket.py [--mib 512] [--shards 32] [--block-shards 4] [--rounds 5]

    local       batches with all shards in the local copy, beside batches from a folder: in turns, in one process
    streaming   one epoch with room for three blocks while batches are taken, beside the plain loop over the same shards
    cold start  a new copy: requests, bytes and seconds until the first batch

The store is the file server of `remote.py`, in a process of its own on 127.0.0.1. Times are medians of the rounds.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from niels_cache_assets.publish.push import local_build, push
from niels_cache_runtime import TokenLoader
from niels_cache_runtime.loader.batch import Batch
from niels_cache_runtime.remote.local_copy import LocalCopy
from remote import BUCKET, object_server, plain_pull, timed
from verify import write_cache

STREAMS = 4
ADDRESS = f"s3://{BUCKET}/pretrain/random"
BATCHES = 400


def take(batches: Iterator[Batch], count: int) -> None:
    for _ in islice(batches, count):
        pass


def compare_local(folder: Path, copy: Path, settings: dict, *, limit: int, rounds: int) -> None:
    """Print the time of batches through the copy, divided by that of a folder."""
    plain, ours = TokenLoader(str(folder / "train"), **settings), TokenLoader(ADDRESS, **settings, local_dir=copy, limit_bytes=limit)
    LocalCopy(copy, limit_bytes=limit).fetch_split(f"{ADDRESS}/train")
    iterators = [iter(plain), iter(ours)]
    ratios: list[tuple[float, float]] = []
    for turn in range(rounds + 1):
        pairs = [timed(lambda each=each: take(each, BATCHES)) for each in iterators]
        if turn:
            ratios.append((pairs[1][0] / pairs[0][0], pairs[1][1] / pairs[0][1]))
    wall, cpu = (statistics.median(column) for column in zip(*ratios, strict=True))
    print(f"  local: {wall:.3f} of the time of a folder, {cpu:.3f} of its processor time (wanted: at most 1.05)")


def compare_streaming(root: Path, prefix: str, settings: dict, *, size: int, limit: int, rounds: int) -> None:
    """Print the bytes a second of an epoch through a small copy, divided by those of the plain loop."""
    speeds: list[tuple[float, float]] = []
    for turn in range(rounds):
        copy = root / f"streaming{turn}"
        loader = TokenLoader(ADDRESS, **settings, epochs=1, local_dir=copy, limit_bytes=limit)
        (seconds, _), began = timed(lambda loader=loader: take(iter(loader), 1 << 60)), loader._sources[0].copy.counts()["bytes"]
        plain, _ = timed(lambda turn=turn: plain_pull(prefix, root / f"plain{turn}", STREAMS))
        speeds.append((began / seconds, size / plain))
        loader._sources[0].copy.close()
        for folder in (copy, root / f"plain{turn}"):
            shutil.rmtree(folder, ignore_errors=True)  # the process that downloads ends a second later
    ours, plain_speed = (statistics.median(column) for column in zip(*speeds, strict=True))
    ratio = statistics.median(ours / plain for ours, plain in speeds)
    print(f"  streaming: {ours / 1e6:,.0f} MB/s, {ratio:.2f} of the plain loop with {plain_speed / 1e6:,.0f} MB/s (wanted: at least 0.8)")


def measure_start(root: Path, settings: dict, *, limit: int, rounds: int) -> None:
    """Print the cost of the first batch."""
    found = []
    for turn in range(rounds):
        copy, began = root / f"cold{turn}", time.perf_counter()
        loader = TokenLoader(ADDRESS, **settings, local_dir=copy, limit_bytes=limit)
        take(iter(loader), 1)
        seconds, counts = time.perf_counter() - began, loader._sources[0].copy.counts()
        found.append((seconds, 2 + counts["files"] + counts["tails"], counts["bytes"] + counts["tail_bytes"]))
    seconds, requests, size = (statistics.median(column) for column in zip(*found, strict=True))
    print(f"  cold start: {seconds:.2f} s, {requests:.0f} requests, {size / 1e6:,.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--shards", type=int, default=32)
    parser.add_argument("--block-shards", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    settings = {"T": 2048, "B": 16, "seed": 0, "order": "blocks", "block_shards": given.block_shards}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        folder, objects = root / "caches/pretrain/random", root / "objects"
        objects.mkdir()
        write_cache(folder, mib=given.mib, shards=given.shards)
        size = sum(path.stat().st_size for path in (folder / "train").iterdir())
        block = given.block_shards * size // given.shards
        with object_server(objects):
            build = local_build(folder)
            push(build, ADDRESS)
            print(f"{size / 1e6:,.0f} MB in {given.shards} shards, blocks of {given.block_shards}; median of {given.rounds} rounds")
            prefix = f"pretrain/random/{build.record.content_sha256}/train"
            room = 3 * block + size // 10 + (2 << 20)
            measure_start(root, settings, limit=room, rounds=given.rounds)
            compare_streaming(root, prefix, settings, size=size, limit=room, rounds=given.rounds)
            compare_local(folder, root / "local", settings, limit=4 * size, rounds=given.rounds)


if __name__ == "__main__":
    main()
