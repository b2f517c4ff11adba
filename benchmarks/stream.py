"""Reading from a bucket through a bounded local copy: ours and other projects', from one server on 127.0.0.1, with one limit of bytes.

    python benchmarks/stream.py [--mib 1024] [--limit-mib 256] [--seconds 10] [--rounds 3] [--files-mib 16 64]

The tokens are random. Each reader is a new process with an empty local copy, yields shuffled batches of x and y, and is measured for the
seconds after its first batch. By then it has read the bucket more than once, or as far as it gets. Each peer is first tried with files of
16 and 64 MiB, with 1 and 2 workers, and with tokens widened to int64 in the workers or in the main process. Its fastest setting then takes
turns with ours. "plain loop" fetches, hashes and writes every object with as many streams, and makes no batch.

"Most on disk" is the largest sum of the files in the local copy, looked at every 50 ms. Processor seconds are those of a reader and its
workers, without the server. They do not include the process that downloads for ours, so they show no ratio to ours.
peers/compare.py says how the peers are installed. Needs six times the cache's size on disk.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from peers.compare import LOADERS, SETTINGS, PeersMissing, command_of
from peers.serve import endless, stream
from remote import BUCKET, object_server, plain_pull, plain_push, timed
from verify import write_cache

B, T = 64, 2048
SHARD_MIB = 16
BLOCK_SHARDS = 4
STREAMS = 4
MOST_SECONDS = 300  # for one run, with its start


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a reader.

    first: seconds to the first batch. tokens: of the batches after it. seconds, processor_seconds: after the first batch. most_bytes: on
    disk.
    """

    first: float
    tokens: int
    seconds: float
    processor_seconds: float
    most_bytes: int

    @property
    def speed(self) -> float:
        """M tokens/s."""
        return self.tokens / self.seconds / 1e6

    @property
    def by_processor(self) -> float:
        """M tokens for each second of a processor."""
        return self.tokens / self.processor_seconds / 1e6


def read_ours(address: str, local: str, limit: int, seconds: float) -> None:
    """Read batches in this process, and print the result of `stream`."""
    import torch

    from niels_cache_runtime import TokenLoader

    torch.set_num_threads(1)
    began = time.perf_counter()
    loader = TokenLoader(
        f"{address}/train", T=T, B=B, seed=0, order="blocks", block_shards=BLOCK_SHARDS, local_dir=local, limit_bytes=limit
    )
    stream(endless(((batch.x, batch.y) for batch in loader), (B, T)), began=began, seconds=seconds)


@contextmanager
def watched(folder: Path) -> Iterator[list[int]]:
    """Yield a list of the bytes that the files of a folder take, looked at every 50 ms."""
    found, done = [0], threading.Event()

    def size_of(path: Path) -> int:
        try:
            return path.stat().st_blocks * 512
        except FileNotFoundError:  # deleted meanwhile
            return 0

    def watch() -> None:
        while not done.wait(0.05):
            found.append(sum(size_of(path) for path in list(folder.rglob("*"))))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield found
    finally:
        done.set()
        watching.join()


def measure(command: list[str], local: Path) -> Run:
    """Run a reader, whose local copy is in an empty folder. Raises PeersMissing with its last line if it fails."""
    shutil.rmtree(local, ignore_errors=True)
    local.mkdir()
    with watched(local) as sizes:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise PeersMissing(f"no result after {MOST_SECONDS} seconds: {' '.join(command[1:])}") from error
    shutil.rmtree(local)
    results = [line.removeprefix("result ") for line in done.stdout.splitlines() if line.startswith("result ")]
    if done.returncode or not results:
        raise PeersMissing((done.stderr or done.stdout or "no message").strip().splitlines()[-1])
    found: dict[str, Any] = json.loads(results[-1])
    return Run(tokens=found.pop("batches") * B * T, most_bytes=max(sizes), **found)


def measure_plain(prefix: str, out: Path, tokens: int) -> Run:
    """Fetch a whole cache once with the plain loop."""
    seconds, cpu = timed(lambda: plain_pull(prefix, out, STREAMS))
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    shutil.rmtree(out)
    return Run(first=0, tokens=tokens, seconds=seconds, processor_seconds=cpu, most_bytes=size)


def publish_for_peers(cache: Path, files: Sequence[int], work: Path) -> None:
    """Write the tokens in each peer's format and with each size of files, and put them into the bucket."""
    for name in LOADERS:
        for mib in files:
            folder = work / "formats" / name
            written = subprocess.run(
                [*command_of(name), "write", str(cache / "train"), str(folder), str(T), "--mib", str(mib)], capture_output=True, text=True
            )
            if written.returncode:
                raise PeersMissing(f"{name}: {(written.stderr or written.stdout).strip().splitlines()[-1]}")
            plain_push(folder, f"{name}/{mib}", STREAMS)
            shutil.rmtree(folder)


def fastest_settings(name: str, files: Sequence[int], local: Path, limit: int, seconds: float) -> tuple[str, list[str]]:
    """Try a peer's settings. Return the words for the best one, and its command without the seconds."""
    tried: dict[str, tuple[float, list[str]]] = {}
    for mib in files:
        for workers, mode in SETTINGS:
            if workers == "0":
                continue  # a worker fetches beside the training
            words = f"{mib} MiB a file, {workers} worker{'s' * (workers != '1')}, widened in the {mode}{' process' * (mode == 'main')}"
            address = f"s3://{BUCKET}/{name}/{mib}"
            command = [*command_of(name), "stream", str(local), str(T), str(B), workers, mode, address, str(limit)]
            try:
                run = measure([*command, str(seconds)], local)
            except PeersMissing as error:
                print(f"  {name}, {words}: failed: {error}", flush=True)
                continue
            tried[words] = run.speed, command
            print(f"  {name}, {words}: {run.speed:.1f} M tokens/s", flush=True)
    if not tried:
        raise PeersMissing(f"{name}: no setting gave a batch")
    best = max(tried, key=lambda words: tried[words][0])
    return best, tried[best][1]


def shown(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=1024, help="tokens in the bucket (default: 1024)")
    parser.add_argument("--limit-mib", type=int, default=256, help="of the local copy (default: 256)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of reading in each round (default: 10)")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--files-mib", type=int, nargs="+", default=[16, 64], help="sizes of the peers' files (default: 16 64)")
    parser.add_argument("--no-peers", action="store_true", help="measure only ours and the plain loop")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.child:
        address, folder, limit, seconds = settings.child
        return read_ours(address, folder, int(limit), float(seconds))
    from niels_cache_assets.publish.push import local_build, push

    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        cache, objects, local = work / "caches/pretrain/random", work / "objects", work / "local"
        objects.mkdir()
        write_cache(cache, mib=settings.mib, shards=max(1, settings.mib // SHARD_MIB))
        address, limit, tokens = f"s3://{BUCKET}/ours", settings.limit_mib << 20, settings.mib << 19
        with object_server(objects):
            push(local_build(cache), address)
            ours = [sys.executable, __file__, "--child", address, str(local), str(limit)]
            readers: dict[str, Callable[[], Run]] = {
                "niels-cache": lambda: measure([*ours, str(settings.seconds)], local),
                "plain loop": lambda: measure_plain("ours", work / "plain", tokens),
            }
            told = {"niels-cache": f"{SHARD_MIB} MiB a shard, {BLOCK_SHARDS} shards a block, no worker", "plain loop": f"{STREAMS} streams"}
            if not settings.no_peers:
                publish_for_peers(cache, settings.files_mib, work)
                for name in LOADERS:
                    try:
                        told[name], command = fastest_settings(name, settings.files_mib, local, limit, settings.seconds / 2)
                    except PeersMissing as error:
                        print(error, flush=True)
                        continue
                    readers[name] = partial(measure, [*command, str(settings.seconds)], local)
            runs: dict[str, list[Run]] = {name: [] for name in readers}
            for _ in range(settings.rounds):
                for name, read in readers.items():
                    runs[name].append(read())
    print(f"{settings.mib} MiB of tokens, a local copy of at most {settings.limit_mib} MiB, batches of ({B}, {T})")
    print("| reader | M tokens/s | ours / it | M tokens a processor second | ours / it | s to first batch | most MiB on disk | settings |")
    print("|---|---|---|---|---|---|---|---|")
    middle = {name: statistics.median(run.speed for run in found) for name, found in runs.items()}
    cores = {name: statistics.median(run.by_processor for run in found) for name, found in runs.items()}
    for name, found in runs.items():
        speeds, by_processor = shown([run.speed for run in found]), shown([run.by_processor for run in found])
        first, most = statistics.median(run.first for run in found), max(run.most_bytes for run in found) / 2**20
        ratios = [f"{figures['niels-cache'] / figures[name]:.1f}x" for figures in (middle, cores)]
        print(f"| {name} | {speeds} | {ratios[0]} | {by_processor} | {ratios[1]} | {first:.2f} | {most:.0f} | {told[name]} |")
    return None


if __name__ == "__main__":
    try:
        main()
    except PeersMissing as error:
        raise SystemExit(f"a peer is missing or failed: {error}") from error
