"""Documents packed whole beside windows of the stream, and the planning of their rows, in one run.

    python benchmarks/packed_documents.py [--quick] [--documents 100_000_000]

Random tokens (`torch.Generator`), log-normal lengths, warm in the page cache. Both loaders give document_ids, position_ids and cu_seqlens,
and take turns in short rounds, so a busy machine slows both; a time is the median of the rounds. `plan` needs no tokens: it packs as many
documents as --documents says, in a process of its own. Private memory is what the process has more at any time than before.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import torch

from niels_cache_runtime import TokenLoader
from niels_cache_runtime.cache.index_cache import Allocate, IndexCache
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, TOKEN_DTYPE, doc_ends_name, shard_name
from niels_cache_runtime.format.npy_files import create_npy, map_npy
from niels_cache_runtime.loader.packing.document_plan import DocumentPlan, EpochKeys, PieceSettings, build_document_plan

T, B = 2048, 64
FIELDS = ("document_ids", "position_ids", "cu_seqlens")
CHUNK = 1 << 22


def write_ends(path: Path, documents: int, mean: int) -> int:
    """Write the ends of documents of log-normal lengths with this mean. Return the number of tokens."""
    ends, total = create_npy(path, DOC_ENDS_DTYPE, (documents,)), 0
    for first in range(0, documents, CHUNK):
        normal = torch.randn(min(CHUNK, documents - first), generator=torch.Generator().manual_seed(first)).numpy()
        lengths = np.maximum(2, np.exp(normal - 0.5) * mean).astype(np.int64)
        ends[first : first + len(lengths)] = total + lengths.cumsum()
        total += int(lengths.sum())
    return total


def write_split(folder: Path, tokens: int, mean: int) -> str:
    (folder / "train").mkdir(parents=True)
    total = write_ends(folder / doc_ends_name("train"), tokens // mean, mean)
    drawn = torch.randint(60_000, (total,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    drawn.numpy().astype(TOKEN_DTYPE).tofile(folder / "train" / shard_name(0))
    return str(folder / "train")


def compare(folder: Path, tokens: int, mean: int, rounds: int) -> None:
    split = write_split(folder / str(mean), tokens, mean)
    packed = TokenLoader(split, T=T, B=B, seed=0, packing="best_fit")
    iterators = [iter(TokenLoader(split, T=T, B=B, seed=0, fields=FIELDS)), iter(packed)]
    times: list[list[float]] = [[], []]
    for number in range(rounds + 2):
        for own, batches in zip(times, iterators, strict=True):
            start = time.perf_counter()
            for _ in range(20):
                next(batches)
            if number > 1:
                own.append((time.perf_counter() - start) / 20)
    windows, documents = (statistics.median(own) for own in times)
    best = min(times[0]) / min(times[1])
    print(f"{mean:,} tokens a document: windows {windows * 1e6:,.0f} us, packed {documents * 1e6:,.0f} us a batch of {B} x {T}: ", end="")
    print(f"{windows / documents:.2f}x as many batches a second ({best:.2f}x in the best rounds)")
    print(f"    {packed.report(1).sources[0].details}")


def private_bytes() -> int:
    """Return the memory of this process without the pages of files, which the system can drop."""
    memory = psutil.Process().memory_info()
    return int(memory.rss - memory.shared)


class Watch:
    """The most private memory of this process while it is entered."""

    def __enter__(self) -> "Watch":
        self.before, self._stop = private_bytes(), threading.Event()
        self.most, self._thread = self.before, threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            self.most = max(self.most, private_bytes())

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def __str__(self) -> str:
        return f"{(self.most - self.before) / 1e6:,.0f} MB of private memory"


def plan(folder: Path, documents: int, mean: int) -> None:
    """Plan, and open the plan and find rows in it, each in a process of its own."""
    ends_path = folder / "ends.npy"
    total = write_ends(ends_path, documents, mean)
    context = multiprocessing.get_context("spawn")
    for step in (make_plan, open_plan):
        process = context.Process(target=step, args=(folder, ends_path, total))
        process.start()
        process.join()


def make_plan(folder: Path, ends_path: Path, total: int) -> None:
    ends = map_npy(ends_path)
    np.asarray(ends).sum()  # read from the disk
    seconds = []

    def build(allocate: Allocate) -> None:
        start = time.perf_counter()
        build_document_plan(allocate, ends, PieceSettings(T), edges=np.array([0, total]))
        seconds.append(time.perf_counter() - start)

    with Watch() as watch:
        IndexCache(folder / "index").open("documents", {}, build)
    directory = IndexCache(folder / "index").directory("documents", {})
    size = sum(path.stat().st_size for path in directory.iterdir())
    speed = f"{len(ends) / seconds[0] / 1e6:.1f} M documents/s"
    print(f"plan of {len(ends):,} documents: {speed}, {size / len(ends):.2f} bytes a document, {watch}", flush=True)


def open_plan(folder: Path, ends_path: Path, total: int) -> None:
    with Watch() as watch:
        start = time.perf_counter()
        opened = DocumentPlan(IndexCache(folder / "index").open("documents", {}, print), map_npy(ends_path), PieceSettings(T))
        seconds = time.perf_counter() - start
        for first in range(0, 100_000, 1000):
            opened.pieces(np.arange(first, first + 1000) % opened.totals.rows, EpochKeys(0, 0))
    print(f"opened in {seconds * 1e3:.0f} ms, {watch} after 100 reads; {opened.totals}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer tokens, documents and rounds")
    parser.add_argument("--documents", type=int, default=100_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for mean in (600, 80):
            compare(Path(name), 4_000_000 if arguments.quick else 200_000_000, mean, 5 if arguments.quick else 40)
        plan(Path(name), 100_000 if arguments.quick else arguments.documents, 600)


if __name__ == "__main__":
    main()
