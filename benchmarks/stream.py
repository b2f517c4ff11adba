"""Reading from a bucket through a bounded local copy: ours and other projects', from one server on 127.0.0.1, with one limit of bytes.

    python benchmarks/stream.py [--mib 256] [--shard-mib 8] [--limit-mib 128] [--seconds 6] [--rounds 3] [--minutes 5]
    python benchmarks/stream.py --search [--files-mib 8 16 32] --minutes 60     with all settings of the peers

The tokens are random. Each reader is a new process with an empty local copy. It yields shuffled batches of x and y, and is measured for the
seconds after its first batch, with the starts of epochs. By then it has read the bucket more than once, or as far as it gets. The order of
ours is shuffled in blocks of four shards. mosaicml-streaming shuffles as many samples at a time, and litdata a file.

Each peer is tried with the settings that were its fastest in earlier runs, and with their neighbours (`KNOWN`). With --search it is tried
with files of several sizes, with 1 and 2 workers, and with tokens widened to int64 in the workers or in the process that trains, and the
fastest of these settings with other options of the peer. A setting does not count if it fails, or if its files take more than the limit.
The fastest setting that is left takes turns with ours. "plain loop" fetches, hashes and writes every object with as many streams as ours,
and makes no batch. After --minutes, no other setting and no other round begins. Each reader has one round in any case.

"On disk" is the largest sum of the files in the local copy, looked at every 50 ms. Processor seconds are those of a reader, of its workers
and of the process that downloads for ours, without the server. Other work on the machine disturbs them less than the time.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

from peers.compare import LOADERS, PeersMissing, command_of
from peers.serve import endless, stream
from remote import BUCKET, object_server, plain_pull, plain_push, timed
from verify import write_cache

B, T = 64, 2048
BLOCK_SHARDS = 4
STREAMS = 4
MOST_SECONDS = 90  # for one run, with its start
WANTED = 3.0
ALLOWED = 1.02  # of the limit: the sizes on disk are multiples of 4 KiB


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
        return self.tokens / max(self.processor_seconds, 0.01) / 1e6


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a peer reads. mib: of a file. mode: the process that widens, `main` or `worker`. options: arguments of the peer."""

    mib: int
    workers: int
    mode: str
    options: dict[str, Any]

    def __str__(self) -> str:
        words = f"{self.mib} MiB a file, {self.workers} worker{'s' * (self.workers != 1)}, widened in the {self.mode} process"
        return ", ".join([words, *(f"{name}={value}" for name, value in self.options.items())])


# The fastest setting of earlier runs, and its neighbours: MiB of a file, workers, the process that widens.
KNOWN = {
    "litdata": [(8, 1, "main"), (16, 1, "main"), (8, 2, "main")],
    "mosaicml-streaming": [(8, 2, "main"), (8, 2, "worker"), (8, 1, "main")],
}


def block_samples(shard_mib: int) -> int:
    """Return the windows in a block of ours."""
    return BLOCK_SHARDS * (shard_mib << 20) // (2 * (T + 1))


def options_of(name: str, shard_mib: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the arguments that a peer is first tried with, and those that its fastest setting is then tried with."""
    if name == "litdata":
        return {}, [{"max_pre_download": 4}, {"prefetch_factor": 8}, {"is_locked": False}]
    # Its default shuffles 262,144 or more samples at a time, so that it needs all shards at once.
    shuffled = block_samples(shard_mib)
    more = [{"shuffle_algo": "py1br"}, {"predownload": 2 * shuffled}, {"predownload": 8 * B}, {"prefetch_factor": 8}]
    return {"shuffle_algo": "py1e", "shuffle_block_size": shuffled, "predownload": shuffled}, more


def read_ours(address: str, local: str, limit: int, seconds: float) -> None:
    """Read batches in this process, and print the result of `stream`."""
    import torch

    from niels_cache_runtime import Blocks, Copy, TokenLoader

    torch.set_num_threads(1)
    began = perf_counter()
    loader = TokenLoader(f"{address}/train", T=T, B=B, seed=0, order=Blocks(shards=BLOCK_SHARDS), remote=Copy(dir=local, limit=limit))
    stream(endless(((batch.x, batch.y) for batch in loader), (B, T)), began=began, seconds=seconds, beside=local)


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
            raise PeersMissing(f"no result after {MOST_SECONDS} seconds") from error
    shutil.rmtree(local, ignore_errors=True)  # the process that downloads for ours ends a second later
    results = [line.removeprefix("result ") for line in done.stdout.splitlines() if line.startswith("result ")]
    if not results:
        raise PeersMissing((done.stderr or done.stdout or f"exit status {done.returncode}").strip().splitlines()[-1])
    found: dict[str, Any] = json.loads(results[-1])
    return Run(tokens=found.pop("batches") * B * T, most_bytes=max(sizes), **found)


def measure_plain(prefix: str, out: Path, tokens: int) -> Run:
    """Fetch a whole cache once with the plain loop."""
    seconds, cpu = timed(lambda: plain_pull(prefix, out, STREAMS))
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    shutil.rmtree(out)
    return Run(first=0, tokens=tokens, seconds=seconds, processor_seconds=cpu, most_bytes=size)


def publish_for_peer(name: str, cache: Path, files: Sequence[int], work: Path) -> None:
    """Write the tokens in a peer's format with each size of files, and put them into the bucket."""
    for mib in files:
        folder = work / "formats" / name
        command = [*command_of(name), "write", str(cache / "train"), str(folder), str(T), "--mib", str(mib)]
        written = subprocess.run(command, capture_output=True, text=True)
        if written.returncode:
            raise PeersMissing(f"{name}: {(written.stderr or written.stdout).strip().splitlines()[-1]}")
        plain_push(folder, f"{name}/{mib}", STREAMS)
        shutil.rmtree(folder)


def peer_command(name: str, setting: Setting, local: Path, limit: int, seconds: float) -> list[str]:
    given = [local, T, B, setting.workers, setting.mode, f"s3://{BUCKET}/{name}/{setting.mib}", limit, seconds]
    return [*command_of(name), "stream", *map(str, given), "--options", json.dumps(setting.options)]


def fastest_setting(
    name: str, files: Sequence[int], local: Path, limit: int, seconds: float, shard_mib: int, *, is_search: bool, until: float
) -> Setting:
    """Try a peer's settings, and return the best one. Raises PeersMissing if none gives a batch below the limit.

    is_search: whether to try all settings. until: the perf_counter after which no other setting is tried, except the first one.
    """
    tried: list[tuple[float, Setting]] = []
    begun: list[Setting] = []

    def attempt(setting: Setting) -> None:
        if begun and perf_counter() > until:
            return print(f"  {name}, {setting}: not tried: --minutes have passed", flush=True)
        begun.append(setting)
        try:
            run = measure(peer_command(name, setting, local, limit, seconds), local)
        except PeersMissing as error:
            return print(f"  {name}, {setting}: failed: {error}", flush=True)
        told = f"{run.speed:.1f} M tokens/s, {run.by_processor:.1f} M a processor second, {run.most_bytes >> 20} MiB on disk"
        is_below = run.most_bytes <= ALLOWED * limit
        print(f"  {name}, {setting}: {told}{'' if is_below else ', above the limit'}", flush=True)
        if is_below:
            tried.append((run.speed, setting))
        return None

    first, more = options_of(name, shard_mib)
    for mib, workers, mode in product(files, (1, 2), ("worker", "main")) if is_search else KNOWN[name]:
        attempt(Setting(mib=mib, workers=workers, mode=mode, options=first))
    if not tried:
        raise PeersMissing(f"{name}: no setting gave a batch below the limit")
    _, best = max(tried, key=lambda each: each[0])
    for options in more if is_search else ():
        attempt(Setting(mib=best.mib, workers=best.workers, mode=best.mode, options={**best.options, **options}))
    return max(tried, key=lambda each: each[0])[1]


def rounds_until(end: float, most: int) -> Iterator[int]:
    """Yield the numbers of at most `most` rounds, and no other round if it would probably end after the perf_counter `end`."""
    began = perf_counter()
    for number in range(1, most + 1):
        now = perf_counter()
        if number > 1 and 2 * now - began > end:
            return print(f"only {number - 1} of {most} rounds: --minutes have passed", flush=True)
        began = now
        yield number
    return None


def shown(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def print_table(runs: dict[str, list[Run]], told: dict[str, str]) -> None:
    print("| reader | M tokens/s | ours / it | M tokens a processor second | ours / it | s to first batch | MiB on disk | settings |")
    print("|---|---|---|---|---|---|---|---|")
    middle = {name: statistics.median(run.speed for run in found) for name, found in runs.items()}
    cores = {name: statistics.median(run.by_processor for run in found) for name, found in runs.items()}
    for name, found in runs.items():
        speeds, by_processor = shown([run.speed for run in found]), shown([run.by_processor for run in found])
        first, most = statistics.median(run.first for run in found), max(run.most_bytes for run in found) >> 20
        ratios = [f"{figures['niels-cache'] / figures[name]:.2g}x" for figures in (middle, cores)]
        print(f"| {name} | {speeds} | {ratios[0]} | {by_processor} | {ratios[1]} | {first:.2f} | {most} | {told[name]} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=256, help="tokens in the bucket (default: 256)")
    parser.add_argument("--shard-mib", type=int, default=8, help="our shards (default: 8)")
    parser.add_argument("--limit-mib", type=int, default=128, help="of the local copy (default: 128)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of reading in each round (default: 6)")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--minutes", type=float, default=5.0, help="then nothing more begins (default: 5)")
    parser.add_argument("--search", action="store_true", help="try all settings of the peers")
    parser.add_argument("--files-mib", type=int, nargs="+", default=[8, 16, 32], help="sizes with --search (default: 8 16 32)")
    parser.add_argument("--peers", nargs="*", choices=LOADERS, default=list(LOADERS), help="default: all; none measures only ours")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    settings = parser.parse_args()
    began = perf_counter()
    if settings.child:
        address, folder, limit, seconds = settings.child
        return read_ours(address, folder, int(limit), float(seconds))
    from niels_cache_assets.publish.push import open_local_build, push

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        work = Path(temporary)
        cache, objects, local = work / "caches/pretrain/random", work / "objects", work / "local"
        objects.mkdir()
        write_cache(cache, mib=settings.mib, shards=max(1, settings.mib // settings.shard_mib))
        address, limit, tokens = f"s3://{BUCKET}/ours", settings.limit_mib << 20, settings.mib << 19
        with object_server(objects):
            push(open_local_build(cache), address)
            ours = [sys.executable, __file__, "--child", address, str(local), str(limit), str(settings.seconds)]
            readers: dict[str, Callable[[], Run]] = {
                "niels-cache": partial(measure, ours, local),
                "plain loop": partial(measure_plain, "ours", work / "plain", tokens),
            }
            told = {
                "niels-cache": f"{settings.shard_mib} MiB a shard, {BLOCK_SHARDS} shards a block, no worker",
                "plain loop": f"{STREAMS} streams",
            }
            for place, name in enumerate(settings.peers, start=1):
                files = settings.files_mib if settings.search else sorted({mib for mib, *_ in KNOWN[name]})
                until = began + 60 * settings.minutes * place / (len(settings.peers) + 1)  # the rest is for the rounds
                try:
                    publish_for_peer(name, cache, files, work)
                    best = fastest_setting(
                        name, files, local, limit, settings.seconds / 2, settings.shard_mib, is_search=settings.search, until=until
                    )
                except PeersMissing as error:
                    print(f"{name} is missing or failed: {error}", flush=True)
                    continue
                told[name] = str(best)
                readers[name] = partial(measure, peer_command(name, best, local, limit, settings.seconds), local)
            runs: dict[str, list[Run]] = {name: [] for name in readers}
            for number in rounds_until(began + 60 * settings.minutes, settings.rounds):
                for name, read in readers.items():
                    try:
                        runs[name].append(read())
                    except PeersMissing as error:
                        if name not in LOADERS:
                            raise
                        print(f"{name} failed in round {number}: {error}", flush=True)
    print(f"{settings.mib} MiB of tokens, a local copy of at most {settings.limit_mib} MiB, batches of ({B}, {T}); wanted: {WANTED}x")
    return print_table({name: found for name, found in runs.items() if found}, told)


if __name__ == "__main__":
    try:
        main()
    except PeersMissing as error:
        raise SystemExit(f"ours failed: {error}") from error
