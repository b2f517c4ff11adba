"""Documents packed whole beside windows of the stream, beside TRL and OLMo-core, and the planning of their rows.

    python benchmarks/packed_documents.py [--quick] [--only windows plan peers] [--documents 100_000_000]

* windows: random tokens (`torch.Generator`), log-normal lengths, warm in the page cache. All loaders give document_ids, position_ids and
  cu_seqlens, and take turns in short rounds, so a busy machine slows all; a time is the median of the rounds. The third one fills in the
  middle of half of the documents.
* plan needs no tokens: it packs as many documents as --documents says, in a process of its own. Private memory is what the process has more
  at any time than before.
* peers: real lengths of documentation and books (with NIELS_CACHE_REAL_DATA) and of code (this Python's .py files), by a byte-level BPE of
  16,000 tokens that is trained on them, and log-normal lengths as of web pages. All read batches of B random rows of T inputs; our rows
  have one token more, because OLMo-core takes powers of two only. TRL packs by `pack_dataset(strategy="bfd_split")` as SFTTrainer calls
  it, and reads with its collator without padding; OLMo-core, in a process of its own with `.olmo-env` (make olmo), by
  `NumpyPackedFSLDataset` with `LongDocStrategy.fragment`. A project that is not installed is left out. A lost target is a token whose
  predecessor is in another row, because pieces do not overlap.
"""

import argparse
import gzip
import importlib.util
import itertools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import torch
from tokenizers import Tokenizer

from niels_cache_runtime import FIM, TokenLoader
from niels_cache_runtime.cache.index_cache import Allocate, IndexCache
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, TOKEN_DTYPE, doc_ends_name, shard_name
from niels_cache_runtime.format.npy_files import create_npy, map_npy
from niels_cache_runtime.loader.packing.document_plan import DocumentPlan, EpochKeys, PieceSettings, build_document_plan
from trained import EOT, train_tokenizer

T, B = 2048, 64
BATCHES = 80  # in a round, so that each of them has to find rows ahead
FIELDS = ("document_ids", "position_ids", "cu_seqlens")
CHUNK = 1 << 22
PARTS = ("windows", "plan", "peers")
OLMO = Path(__file__).parents[1] / ".olmo-env"


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
    """Write documents of random tokens from 1 on, which end with 0."""
    (folder / "train").mkdir(parents=True)
    total = write_ends(folder / doc_ends_name("train"), tokens // mean, mean)
    drawn = torch.randint(1, 60_000, (total,), generator=torch.Generator().manual_seed(0), dtype=torch.int32).numpy()
    drawn[map_npy(folder / doc_ends_name("train")).astype(np.int64) - 1] = 0
    drawn.astype(TOKEN_DTYPE).tofile(folder / "train" / shard_name(0))
    return str(folder / "train")


def compare(folder: Path, tokens: int, mean: int, rounds: int) -> None:
    split = write_split(folder / str(mean), tokens, mean)
    packed = TokenLoader(split, T=T, B=B, seed=0, packing="best_fit")
    fim = TokenLoader(split, T=T, B=B, seed=0, packing="best_fit", fim=FIM(pre=60_001, suf=60_002, mid=60_003))
    iterators = [iter(TokenLoader(split, T=T, B=B, seed=0, fields=FIELDS)), iter(packed), iter(fim)]
    times: list[list[float]] = [[], [], []]
    for number in range(rounds + 2):
        for own, batches in zip(times, iterators, strict=True):
            start = time.perf_counter()
            for _ in range(BATCHES):
                next(batches)
            if number > 1:
                own.append((time.perf_counter() - start) / BATCHES)
    windows, documents, filled = (statistics.median(own) for own in times)
    best = min(times[0]) / min(times[1])
    print(f"{mean:,} tokens a document: windows {windows * 1e6:,.0f} us, packed {documents * 1e6:,.0f} us a batch of {B} x {T}: ", end="")
    print(f"{windows / documents:.2f}x as many batches a second ({best:.2f}x in the best rounds)")
    print(f"    {packed.report(1).sources[0].details}")
    print(
        f"    with FIM {filled * 1e6:,.0f} us: {documents / filled:.2f}x as many as without ({min(times[1]) / min(times[2]):.2f}x at best)"
    )
    print(f"    {fim.report(1).sources[0].details}")


def texts_of_corpora(size: int) -> Iterator[tuple[str, list[str]]]:
    """Yield names of corpora and their documents, of at most `size` characters in all."""

    def first(texts: Iterator[str]) -> list[str]:
        sums = itertools.accumulate(map(len, found := list(itertools.islice(texts, size // 100))))
        return [text for text, total in zip(found, sums, strict=True) if total <= size]

    real = Path(os.environ.get("NIELS_CACHE_REAL_DATA", "missing"))
    if (documents := real / "bulk" / "debian_docs_dev.jsonl.gz").exists():
        with gzip.open(documents, "rt", encoding="utf-8") as file:
            yield "documentation", first(json.loads(line)["text"] for line in file)
    library = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    yield "code", first(path.read_text(encoding="utf-8", errors="replace") for path in library)
    if (books := real / "gutenberg").exists():
        yield "books", first(path.read_text(encoding="utf-8", errors="replace") for path in sorted(books.glob("*.txt")))


def write_corpora(folder: Path, size: int) -> Iterator[tuple[str, str]]:
    """Write splits whose documents end with token 0. Yield their names and folders."""
    corpora = {name: texts for name, texts in texts_of_corpora(size) if texts}
    train_tokenizer([text for texts in corpora.values() for text in texts[: len(texts) // 2]], folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.token_to_id(EOT) == 0
    for name, texts in corpora.items():
        (folder / name / "train").mkdir(parents=True)
        with open(folder / name / "train" / shard_name(0), "wb") as file:
            lengths = []
            for first in range(0, len(texts), 1000):
                for encoded in tokenizer.encode_batch_fast(texts[first : first + 1000], add_special_tokens=False):
                    lengths.append(len(encoded.ids) + 1)
                    file.write(np.array([*encoded.ids, 0], dtype=TOKEN_DTYPE).tobytes())
        np.save(folder / name / doc_ends_name("train"), np.cumsum(lengths).astype(DOC_ENDS_DTYPE))
        yield name, str(folder / name / "train")
    yield "web (log-normal)", write_split(folder / "web", 10 * size // 8, 800)


def tokens_per_second(batches: Iterator[object], seconds: float) -> float:
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        next(batches)
        times.append(time.perf_counter() - start)
    return B * T / statistics.median(times)


def pack_with_trl(tokens: np.ndarray, ends: np.ndarray, seconds: float) -> dict[str, float]:
    import pyarrow as pa
    from datasets import Dataset, disable_progress_bars
    from datasets.table import InMemoryTable
    from trl import pack_dataset
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    disable_progress_bars()
    offsets = np.concatenate([[0], ends]).astype(np.int64)
    documents = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens.astype(np.int32)))
    dataset = Dataset(InMemoryTable(pa.table({"input_ids": documents})))
    start = time.perf_counter()
    packed = pack_dataset(dataset, T, "bfd_split")
    taken, rows = time.perf_counter() - start, len(packed)
    collate = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).tolist()
    chosen = zip(*[itertools.cycle(order)] * B, strict=True)  # B rows at a time
    batches = (collate([packed[row] for row in numbers]) for numbers in chosen)
    return {"rows": rows, "seconds": taken, "speed": tokens_per_second(batches, seconds)}


def pack_with_olmo(shard: Path, seconds: float) -> dict[str, float]:
    script = Path(__file__).parent / "peers" / "olmo_packing.py"
    command = [sys.executable, "-P", str(script), str(shard), str(T), "0", str(B), str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(OLMO), "HOME": str(shard.parent)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def peers(folder: Path, size: int, seconds: float) -> None:
    """Print a table for each corpus: how full the rows are, what is cut, and how fast rows are packed and read."""
    for name, split in write_corpora(folder, size):
        shard, ends = Path(split) / shard_name(0), np.load(Path(split).parent / doc_ends_name("train")).astype(np.int64)
        tokens = np.fromfile(shard, dtype=TOKEN_DTYPE)
        start = time.perf_counter()
        loader = TokenLoader(split, T=T, B=B, seed=0, packing="best_fit")
        taken, [source] = time.perf_counter() - start, loader._packed.values()
        plan, speed = source.report(), tokens_per_second(iter(loader), seconds)
        found: dict[str, dict[str, float]] = {"niels-cache": {"rows": plan.rows, "seconds": taken, "speed": speed}}
        if importlib.util.find_spec("trl"):
            found["TRL"] = pack_with_trl(tokens, ends, seconds)
        if (OLMO / ".installed").exists():
            found["OLMo-core"] = pack_with_olmo(shard, seconds)
        lengths = np.diff(ends, prepend=0)
        starts, lasts = ends - lengths, ends - 1
        by_windows = (lengths <= T + 1) & (-(-(starts + 1) // T) * T < lasts)
        fits, cut, pieces = int((lengths <= T + 1).sum()), int((lengths > T + 1).sum()), int((-(-lengths // T)).sum())
        print(f"\n{name}: {len(ends):,} documents of {int(np.median(lengths)):,} tokens (median), {len(tokens):,} in all")
        print(f"windows cut {by_windows.sum() / max(1, fits):.1%} of the {fits:,} documents that fit; packing cuts the {cut:,} others\n")
        print("| | rows | padding | lost targets | packing | batches |\n|---|---|---|---|---|---|")
        for project, own in found.items():
            is_ours, rows = project == "niels-cache", int(own["rows"])
            padding = plan.padding if is_ours else 1 - len(tokens) / (rows * T)
            speeds = f"{len(ends) / own['seconds'] / 1e3:,.0f} k documents/s | {own['speed'] / 1e6:,.1f} M tokens/s"
            print(f"| {project} | {rows:,} | {padding:.2%} | {0 if is_ours else pieces - len(ends):,} | {speeds} |", flush=True)


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
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--documents", type=int, default=100_000_000)
    arguments = parser.parse_args()
    is_quick = arguments.quick
    for part in arguments.only:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if part == "windows":
                for mean in (600, 80):
                    compare(folder, 4_000_000 if is_quick else 200_000_000, mean, 2 if is_quick else 20)
            elif part == "plan":
                plan(folder, 100_000 if is_quick else arguments.documents, 600)
            else:
                peers(folder, 300_000 if is_quick else 32_000_000, 0.1 if is_quick else 3)


if __name__ == "__main__":
    main()
