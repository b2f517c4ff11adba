"""The speed of push and pull, compared with a plain loop of obstore and sha256: in one run, in turns, with the same number of streams.

    python benchmarks/remote.py [--mib 512] [--shards 8] [--rounds 5]
    python benchmarks/remote.py --memory 100 400      peak memory of processes that push and pull caches of so many MiB
    python benchmarks/remote.py --train --shards 32   training from the bucket through a local copy

The store is a file server with the part of the S3 API that push and pull use, in a process of its own on 127.0.0.1. The plain loop to send
hashes each file and puts it; the plain loop to fetch streams each object, hashes it and writes it to a file. Both have no record, no
conditions, no listing and no recovery. A time is the median of the rounds. Ratios also compare the processor time of this process, which
other work on the machine disturbs less. Needs three times the cache's size on disk.

Memory is the peak of a new process, with its imports and the shards that it has mapped. "own" is the highest sample of the part that no
file backs, which the system cannot drop. Shards have the same size in all caches, as in builds.

--train has three parts, with blocks of 4 shards and batches of 16 x 2048:
    cold start  a new copy: requests, bytes and seconds until the first batch
    streaming   epochs with room for three blocks, from the first batch on, in turns with the plain loop to fetch, which removes its oldest
                file when it has as many; also with the plain loop while a loader delivers as many batches from a folder, until both end.
                Each of the three comes first in a third of the rounds
    local       batches with all shards in the copy, in turns with batches from a folder; also with all shards in one block, because a
                block of this small cache ends after a few hundred batches
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import mmap
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from niels_cache_assets.publish.transfer import THREADS
from verify import write_cache

WANTED = 0.8
BUCKET = "bench"
BLOCK_SHARDS, EPOCHS, STREAMS = 4, 4, 4  # with --train
TURNS, BATCHES = 16, 32  # so many turns in a round, with so many batches each
SETTINGS: dict[str, Any] = {"T": 2048, "B": 16, "seed": 0}
_BLOCK = 1 << 20


class _Handler(BaseHTTPRequestHandler):
    """Objects are files in `folder`; their metadata are in memory."""

    folder: Path
    metadata: dict[str, dict[str, str]]
    lock: threading.Lock
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None: ...

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").lstrip("/")

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        key, left = self._key(), int(self.headers["Content-Length"])
        place = self.folder / key.replace("/", "%")
        temporary = place.with_name(f"{place.name}.{threading.get_ident()}")
        with open(temporary, "wb") as file:
            while left:
                left -= file.write(self.rfile.read(min(left, _BLOCK)))
        with self.lock:
            found = self.metadata.get(key)
            if ("If-None-Match" in self.headers and found) or (
                "If-Match" in self.headers and (found or {}).get("ETag") != self.headers["If-Match"]
            ):
                return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            os.replace(temporary, place)
            kept = {name: value for name, value in self.headers.items() if name.lower().startswith("x-amz-meta-")}
            self.metadata[key] = {"ETag": f'"{time.monotonic_ns()}"', "Last-Modified": formatdate(usegmt=True), **kept}
        return self._answer(200, b"", {"ETag": self.metadata[key]["ETag"]})

    def do_GET(self) -> None:
        key = self._key()
        if not key:
            return self._list()
        if key not in self.metadata:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        place = self.folder / key.replace("/", "%")
        size = place.stat().st_size
        if "If-Match" in self.headers and self.headers["If-Match"] != self.metadata[key]["ETag"]:
            return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        start, end = 0, size  # of the bytes to send
        if asked and asked[1]:
            start, end = int(asked[1]), min(size, int(asked[2] or size) + 1)
        elif asked:
            start = size - int(asked[2])
        headers = {**self.metadata[key], "Accept-Ranges": "bytes", "Content-Length": str(end - start)}
        if asked:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self._answer(206 if asked else 200, b"", headers)
        if self.command != "HEAD":
            with open(place, "rb") as file:
                self.connection.sendfile(file, start, end - start)
        return None

    do_HEAD = do_GET

    def _list(self) -> None:
        prefix = parse_qs(urlsplit(self.path).query).get("prefix", [""])[0]
        rows = [
            f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{found['ETag']}</ETag>"
            f"<Size>{(self.folder / key.replace('/', '%')).stat().st_size}</Size></Contents>"
            for key, found in sorted(self.metadata.items())
            if key.startswith(prefix)
        ]
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(rows)}</ListBucketResult>"
        self._answer(200, body.encode(), {"Content-Type": "application/xml"})


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about a client that ends in mid-download: a copy without a reader drops its downloads."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def serve(folder: Path) -> None:
    """Serve until standard input ends. The first line of standard output is the port."""
    handler = type("Handler", (_Handler,), {"folder": folder, "metadata": {}, "lock": threading.Lock()})
    server = _Server(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


def plain_push(cache: Path, prefix: str, threads: int) -> None:
    """Hash each file and put it."""
    import obstore
    from obstore.store import from_url

    store = from_url(f"s3://{BUCKET}/{prefix}")

    def send(path: Path) -> None:
        with open(path, "rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            sha256 = hashlib.sha256(content).hexdigest()
            obstore.put(store, path.relative_to(cache).as_posix(), content, attributes={"sha256": sha256}, use_multipart=False)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(send, sorted(path for path in cache.rglob("*") if path.is_file())))


def plain_pull(prefix: str, out: Path, threads: int, *, most: int | None = None) -> None:
    """Stream each object, hash it and write it. most: remove the oldest file when there are more than so many."""
    import obstore
    from obstore.store import from_url

    store = from_url(f"s3://{BUCKET}/{prefix}")
    keys = [each["path"] for chunk in obstore.list(store) for each in chunk]
    done: deque[Path] = deque()

    def fetch(key: str) -> None:
        (out / key).parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with open(out / key, "wb") as file:
            for piece in obstore.get(store, key).stream(min_chunk_size=1 << 20):
                digest.update(piece)
                file.write(piece)
        done.append(out / key)
        if most is not None and len(done) > most:
            done.popleft().unlink()

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fetch, keys))


@contextmanager
def object_server(folder: Path) -> Iterator[None]:
    """Serve the bucket BUCKET from an empty folder. The environment has its endpoint, for obstore and for boto3."""
    command = [sys.executable, __file__, "--serve", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        os.environ |= {"AWS_ENDPOINT": url, "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
        try:
            yield
        finally:
            server.stdin.close()


def timed(way: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds and the processor seconds of a call."""
    began, cpu = time.perf_counter(), time.process_time()
    way()
    return time.perf_counter() - began, time.process_time() - cpu


def compare_speed(root: Path, objects: Path, settings: argparse.Namespace) -> None:
    """Print the speeds of push, pull and the plain loops."""
    from niels_cache_assets.publish.pull import pull
    from niels_cache_assets.publish.push import open_local_build, push

    cache = root / "caches/pretrain/random"
    write_cache(cache, mib=settings.mib, shards=settings.shards)
    size = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    build = open_local_build(cache)
    times: dict[str, list[tuple[float, float]]] = {"push": [], "plain push": [], "pull": [], "plain pull": []}
    for turn in range(settings.rounds + 1):
        ours, plain = f"ours/{turn}", f"plain/{turn}"
        found = {
            "push": timed(lambda ours=ours: push(build, f"s3://{BUCKET}/{ours}")),
            "plain push": timed(lambda plain=plain: plain_push(cache, plain, THREADS)),
            "pull": timed(lambda ours=ours: pull(f"s3://{BUCKET}/{ours}", root / ours)),
            "plain pull": timed(lambda plain=plain: plain_pull(plain, root / plain, THREADS)),
        }
        for folder in (root / "ours", root / "plain"):
            shutil.rmtree(folder)
        for path in objects.iterdir():
            path.write_bytes(b"")  # its metadata stay; the next round has other keys
        if turn:  # the first round warms up
            for name, taken in found.items():
                times[name].append(taken)
    print(f"{size / 1e6:,.0f} MB, {THREADS} streams; median of {settings.rounds} rounds")
    medians = {name: [statistics.median(column) for column in zip(*taken, strict=True)] for name, taken in times.items()}
    for name, (seconds, cpu) in medians.items():
        print(f"  {name:12} {size / seconds / 1e6:8,.0f} MB/s   {cpu / size * 1e9:6.2f} processor seconds a GB")
    for name in ("push", "pull"):
        (seconds, cpu), (plain_seconds, plain_cpu) = medians[name], medians[f"plain {name}"]
        print(
            f"  {name} is at {plain_seconds / seconds:.2f} of the plain loop, by processor time at {plain_cpu / cpu:.2f} (wanted: {WANTED})"
        )


def take(batches: Iterable[Any], count: int) -> None:
    for _ in islice(batches, count):
        pass


def compare_training(root: Path, settings: argparse.Namespace) -> None:
    """Print the cost of training from the bucket."""
    from niels_cache_assets.publish.push import open_local_build, push

    folder, address = root / "caches/pretrain/random", f"s3://{BUCKET}/train/random"
    write_cache(folder, mib=settings.mib, shards=settings.shards)
    build = open_local_build(folder)
    push(build, address)
    size = sum(path.stat().st_size for path in (folder / "train").iterdir())
    few = 3 * BLOCK_SHARDS * size // settings.shards + size // 10 + (2 << 20)
    if few >= size:
        sys.exit(
            f"remote.py: three blocks of {BLOCK_SHARDS} shards hold all {settings.shards}; streaming needs more, for example --shards 32"
        )
    print(f"{size / 1e6:,.0f} MB in {settings.shards} shards, blocks of {BLOCK_SHARDS}; median of {settings.rounds} rounds")
    places = [root / f"copy{turn}" for turn in range(2 * settings.rounds)]
    print(f"  cold start: {_median(_start(address, place, few) for place in places[::2])}")
    prefix = f"train/random/{build.record.content_sha256}/train"
    streamed = (_stream(address, place, few, prefix, folder / "train", turn=turn) for turn, place in enumerate(places[1::2]))
    print(f"  streaming: {_median(streamed)}")
    for block_shards in (BLOCK_SHARDS, settings.shards):
        found = _local(str(folder / "train"), address, root / "local", 4 * size, 4 * settings.rounds, block_shards)
        print(f"  local, blocks of {block_shards}: {_median(found)}")


def _median(found: Iterable[dict[str, float]]) -> str:
    rounds = list(found)
    return ", ".join(f"{statistics.median(each[name] for each in rounds):,.3g} {name}" for name in rounds[0])


def _start(address: str, copy: Path, limit: int) -> dict[str, float]:
    from niels_cache_runtime import Blocks, Copy, TokenLoader
    from niels_cache_runtime.remote.local_copy import LocalCopy

    settings = {**SETTINGS, "order": Blocks(shards=BLOCK_SHARDS), "remote": Copy(dir=copy, limit=limit)}
    seconds, _ = timed(lambda: take(TokenLoader(address, **settings), 1))
    counts = LocalCopy(copy).counts()
    requests = 2 + counts["files"] + counts["tails"]  # with the record and meta.json
    shutil.rmtree(copy, ignore_errors=True)  # the process that downloads ends a second later
    return {"s": seconds, "requests": requests, "MB": (counts["bytes"] + counts["tail_bytes"]) / 1e6}


def _stream(address: str, copy: Path, limit: int, prefix: str, folder: Path, *, turn: int) -> dict[str, float]:
    from niels_cache_runtime import Blocks, Copy, TokenLoader
    from niels_cache_runtime.remote.local_copy import LocalCopy

    size = sum(path.stat().st_size for path in folder.iterdir())

    def plain() -> None:
        plain_pull(prefix, copy / "plain", STREAMS, most=3 * BLOCK_SHARDS)

    def plain_with_batches() -> None:
        epoch = iter(TokenLoader(str(folder), **SETTINGS, epochs=1))
        with ThreadPoolExecutor(1) as pool:
            loop = pool.submit(plain)
            take(epoch, sys.maxsize)
            loop.result()

    def ours() -> float:
        order, remote = Blocks(shards=BLOCK_SHARDS), Copy(dir=copy, limit=limit)
        batches = iter(TokenLoader(address, **SETTINGS, order=order, epochs=EPOCHS, remote=remote))
        take(batches, 1)
        before = LocalCopy(copy).counts()["bytes"]
        seconds, _ = timed(lambda: take(batches, sys.maxsize))
        return (LocalCopy(copy).counts()["bytes"] - before) / seconds

    jobs = [
        ("MB/s", ours),
        ("MB/s of the plain loop", lambda: size / timed(plain)[0]),
        ("MB/s of the plain loop with batches", lambda: size / timed(plain_with_batches)[0]),
    ]
    first, speeds = turn % len(jobs), {}
    for name, job in jobs[first:] + jobs[:first]:
        speeds[name] = job()
        gc.collect()  # the loader gives its files back
        shutil.rmtree(copy, ignore_errors=True)
    of_ours, of_plain, of_both = (speeds[name] for name, _ in jobs)
    return {
        **{name: speeds[name] / 1e6 for name, _ in jobs},
        f"of the plain loop (wanted: {WANTED})": of_ours / of_plain,
        "of the plain loop with batches": of_ours / of_both,
    }


def _local(folder: str, address: str, copy: Path, limit: int, rounds: int, block_shards: int) -> Iterator[dict[str, float]]:
    from niels_cache_runtime import Blocks, Copy, TokenLoader

    settings = SETTINGS | {"order": Blocks(shards=block_shards)}
    loaders = [TokenLoader(folder, **settings), TokenLoader(address, **settings, remote=Copy(dir=copy, limit=limit))]
    (epoch,) = loaders[0].samples_per_epoch.values()
    batches = [iter(loader) for loader in loaders]
    for each in batches:
        take(each, epoch // SETTINGS["B"] + 1)
    for _ in range(rounds):
        turns = [[timed(lambda each=each: take(each, BATCHES)) for each in batches] for _ in range(TURNS)]
        (plain, plain_cpu), (ours, cpu) = [[sum(column) for column in zip(*taken, strict=True)] for taken in zip(*turns, strict=True)]
        yield {
            "of the time of a folder": ours / plain,
            "of its processor time (wanted: 1.05)": cpu / plain_cpu,
            "us": cpu / TURNS / BATCHES * 1e6,
            "us of a folder": plain_cpu / TURNS / BATCHES * 1e6,
        }


def compare_memory(root: Path, settings: argparse.Namespace) -> None:
    """Print the peak memory of processes that push and pull caches of several sizes, and of one that only imports."""

    def peaks(*arguments: object) -> str:
        command = [sys.executable, __file__, "--child", *map(str, arguments)]
        peak, own = map(int, subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split())
        return f"{peak / 1e6:6,.0f} MB, own {own / 1e6:4,.0f} MB"

    print(f"shards of {settings.shard_mib} MiB, {THREADS} streams")
    print(f"  imports        {peaks('import')}")
    for mib in settings.memory:
        cache, address = root / f"caches/pretrain/random{mib}", f"s3://{BUCKET}/memory/{mib}"
        write_cache(cache, mib=mib, shards=mib // settings.shard_mib)
        print(f"  push {mib:5} MiB {peaks('push', cache, address)}")
        print(f"  pull {mib:5} MiB {peaks('pull', root / f'out{mib}', address)}", flush=True)


def child(doing: str, *places: str) -> None:
    """Push or pull, and print the peak memory of this process in bytes."""
    from niels_cache_assets.publish.pull import pull
    from niels_cache_assets.publish.push import open_local_build, push

    own, done = [memory("RssAnon")], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            own.append(memory("RssAnon"))

    watching = threading.Thread(target=watch, daemon=True)  # an error ends the process
    watching.start()
    if doing == "push":
        push(open_local_build(Path(places[0])), places[1])
    elif doing == "pull":
        pull(places[1], Path(places[0]))
    done.set()
    watching.join()
    print(memory("VmHWM"), max(own))


def memory(key: str) -> int:
    """Return a value of Linux about the memory of this process, in bytes. ru_maxrss would include the process that started this one."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{key}:")]
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=int, nargs="+", metavar="MIB", help="measure memory instead of speed")
    parser.add_argument("--train", action="store_true", help="measure training instead of speed")
    parser.add_argument("--shard-mib", type=int, default=10, help="with --memory (default: 10)")
    parser.add_argument("--serve", metavar="FOLDER", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.serve is not None:
        return serve(settings.serve)
    if settings.child is not None:
        return child(*settings.child)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:  # with --train, a process that downloads may end later
        root = Path(temporary)
        objects = root / "objects"
        objects.mkdir()
        with object_server(objects):
            if settings.memory:
                compare_memory(root, settings)
            elif settings.train:
                compare_training(root, settings)
            else:
                compare_speed(root, objects, settings)
    return None


if __name__ == "__main__":
    main()
