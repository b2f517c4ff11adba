"""The costs of large data sets: what was measured here, and what 1.3 T and 15 T tokens would cost by formulas.

    python benchmarks/scale.py [--quick] [--only table ranges parts opening sealing reading] [--documents 10000000] [--ranges 16]

* `table`: the costs of 1.3 T and 15 T tokens. It measures nothing: `Costs` has a formula for each cell, from the figures in `Measured`.
* `ranges`: the search for duplicates in ranges of hashes, on synthetic signatures, a tenth of them copies. Each step is a process of its
  own. The memory is the peak of that process (VmHWM), with the program itself.
* `parts`: 1, 4 and 16 parts of 10 and 40 M tokens, each part in a process of its own with one encoding thread. The rate is that of the
  second half of each part, and everything else is the fixed part: imports, the engine, the first and the last files. A line is fitted to
  the processor time of all runs but the largest, and predicts the largest. `--engine reference` leaves out the loading of the fast engine.
* `opening`, `sealing`: sparse shards of 128 MiB (see parts.py): 30,000 shards, and 1,000 parts.
* `reading`: a meta.json of 60,000 shards, and a plan of 48,000 files in 1,000 parts.

Costs are in processor time, because a busy machine makes the clock meaningless.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet

import repository_path  # noqa: F401
from build import base_texts, documents
from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.dedup import ranges as in_ranges
from niels_cache_assets.dedup.greedy import drop_later
from niels_cache_assets.dedup.signatures import Signatures
from niels_cache_assets.parts.layout import part_name
from niels_cache_assets.parts.plan import MAX_SHARDS
from niels_cache_assets.parts.seal import seal
from niels_cache_assets.project.registry import load_registry
from niels_cache_runtime.format.layout import META_NAME, shard_name
from niels_cache_runtime.format.meta import MAX_META_BYTES, read_meta, write_meta
from tests.helpers.builds import build_tokenizer

BANDS, ROWS, NUM_PERM = 8, 16, 128
_BLOCK = 16_384
_LARGE = 2_500_000  # tokens of a part whose second half can be measured


class Row(NamedTuple):
    what: str
    measured: str
    wanted: str


def used() -> tuple[float, float]:
    """Return the processor seconds and the peak of resident memory, in MB, of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return time.process_time(), int(line.split()[1]) * 1024 / 1e6


def child(*arguments: object) -> dict[str, Any]:
    """Run this file with arguments, and return the JSON that it prints."""
    done = subprocess.run([sys.executable, __file__, *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# Duplicates in ranges


def synthetic_signatures(documents: int) -> Iterator[Signatures]:
    """Yield signatures in blocks. A tenth of each block is near to documents of an earlier block, half of them equal to these."""
    generator = np.random.default_rng(0)
    earlier: Signatures | None = None
    for start in range(0, documents, _BLOCK):
        size = min(_BLOCK, documents - start)
        slots = generator.integers(0, 1 << 32, (size, NUM_PERM), dtype=np.uint32)
        digests = np.frombuffer(generator.bytes(size * 20), dtype=np.uint8).reshape(size, 20).copy()
        if earlier is not None:
            near, exact = size // 10, size // 20
            slots[:near, : NUM_PERM // 2], digests[:exact] = earlier.slots[:near, : NUM_PERM // 2], earlier.digests[:exact]
            slots[:exact] = earlier.slots[:exact]
        block = Signatures(digests=digests, slots=slots)
        if earlier is None or start // _BLOCK % 7 == 0:
            earlier = block
        yield block


def step_of_ranges(step: str, folder: Path, documents: int, ranges: int, number: int) -> dict[str, Any]:
    """Run one step in this process, and return what it used."""
    found: dict[str, Any] = {}
    if step == "hashes":
        blocks = synthetic_signatures(documents)
        in_ranges.write_hashes(blocks, bands=BANDS, rows=ROWS, ranges=ranges, folder=folder)
    elif step == "range":
        for band in range(BANDS + 1):
            in_ranges.link_range(folder, folder, band, number, documents=documents)
    else:
        buckets = in_ranges.Buckets(scratch=folder, hashes=folder, links=[folder] * ranges, documents=documents, bands=BANDS)
        found["dropped"] = len(drop_later(buckets, verify=None))
    seconds, peak = used()
    return {**found, "seconds": seconds, "peak": peak}


def duplicates_in_ranges(work: Path, *, documents: int, ranges: int) -> Iterator[Row]:
    def run(step: str, number: int = 0) -> dict[str, Any]:
        return child("--step", step, work, documents, ranges, number)

    idle = child("--step", "pass", work, 0, ranges, 0)["peak"]
    hashes = run("hashes")
    size = sum(path.stat().st_size for path in work.iterdir())
    yield Row(
        f"hashes of {documents:,} synthetic signatures, {BANDS} bands",
        f"{hashes['seconds']:.0f} s with making the signatures, {hashes['peak']:.0f} MB, {size / documents:.0f} bytes a document on disk",
        "",
    )
    jobs = [run("range", number) for number in range(ranges)]
    most, limit = max(job["peak"] for job in jobs), 60 * documents / ranges / 1e6 + 300
    yield Row(
        f"a job for one of {ranges} ranges, all bands",
        f"{sum(job['seconds'] for job in jobs) / ranges:.1f} s, at most **{most:.0f} MB** ({idle:.0f} MB of them for the program)",
        f"below {limit:.0f} MB",
    )
    greedy = run("pass")
    yield Row(
        "the pass that chooses",
        f"{greedy['seconds']:.0f} s, **{greedy['peak']:.0f} MB**, {greedy['dropped']:,} dropped",
        "",
    )


# Parts


class Point(NamedTuple):
    """One run: its processor seconds in all, the peak of memory of a worker, in MB, and the seconds for a million tokens in the second half
    of its parts.
    """

    parts: int
    tokens: int
    seconds: float
    peak: float
    rate: float

    @property
    def fixed(self) -> float:
        """Processor seconds of a part that do not grow with its tokens."""
        return (self.seconds - self.rate * self.tokens / 1e6) / self.parts


def project(folder: Path, parts: int, engine: str) -> Graph:
    """Return the graph of a data set of 16 files."""
    tables = {
        "pretrain": {"texts": {"source": "parquet", "files": [str(folder / "texts" / "*.parquet")], "parts": parts, "val_frac": 0.0}},
        "tokenizer": {"train_on": ["texts"], "vocab_size": 8000, "sample_bytes": 5_000_000, "engine": engine},
        "build": {"threads": 1},
    }
    return graph(load_registry(profile="default", overrides=tables), folder / "cache")


def build_one(folder: Path, parts: int, number: int, engine: str) -> dict[str, Any]:
    """Build one part, or the whole data set if it has one part, in this process. Return what the process used, with its imports."""
    found, marks = project(folder, parts, engine), list[tuple[float, int]]()

    def progressed(progress: Any) -> None:
        marks.append((time.process_time(), progress.counts["tokens"]))

    artifact = found[f"part/texts/{part_name(number)}"] if parts > 1 else found["pretrain/texts"]
    meta = materialize(artifact, force=True, on_progress=progressed).meta
    seconds, peak = used()
    last, tokens = marks[-1]
    middle, before = next(mark for mark in marks if mark[1] >= tokens / 2)
    rate = (last - middle) / (tokens - before) * 1e6 if tokens > before else 0.0
    return {"seconds": seconds, "peak": peak, "tokens": meta["train_tokens"], "rate": rate}


def run_of_parts(folder: Path, parts: int, engine: str) -> Point:
    if parts > 1:
        materialize(project(folder, parts, engine)["plan/texts"])
    told = [child("--part", folder, parts, number, engine) for number in range(parts)]
    tokens, seconds = (sum(part[key] for part in told) for key in ("tokens", "seconds"))
    rate = sum(part["rate"] * part["tokens"] for part in told) / tokens
    return Point(parts, tokens, seconds, max(part["peak"] for part in told), rate)


def many_parts(work: Path, *, megabytes: tuple[int, ...], parts: tuple[int, ...], engine: str) -> Iterator[Row]:
    points = []
    for size in megabytes:
        folder = work / str(size)
        (folder / "texts").mkdir(parents=True)
        texts = documents(base_texts(), size=2000, megabytes=size)
        for number in range(16):
            share = texts[len(texts) * number // 16 : len(texts) * (number + 1) // 16]
            pyarrow.parquet.write_table(pyarrow.table({"text": share}), folder / "texts" / f"{number:02d}.parquet", row_group_size=1000)
        del texts
        found = project(folder, 1, engine)
        build_tokenizer(found.registry, root=found.root)
        for count in parts:
            point = run_of_parts(folder, count, engine)
            points.append(point)
            yield Row(
                f"{count} parts of {point.tokens / 1e6:.1f} M tokens",
                f"{point.seconds:.1f} s: {point.fixed:.1f} s a part, and {point.rate:.3f} s a million tokens; "
                f"at most {point.peak:.0f} MB a worker",
                "at most 6 s a part" if count == max(parts) and size == max(megabytes) else "",
            )
    large = [point for point in points if point.tokens / point.parts >= _LARGE] or points
    rates = [point.rate for point in large]
    yield Row(
        f"a million tokens in the {len(large)} runs whose parts have at least {_LARGE / 1e6:.1f} M tokens",
        f"{min(rates):.3f} to {max(rates):.3f} s: **{max(rates) / max(min(rates), 1e-9):.2f}x**",
        "within 1.1x",
    )
    *known, last = points
    columns = np.array([[point.parts, point.tokens / 1e6] for point in known])
    start, million = np.linalg.lstsq(columns, np.array([point.seconds for point in known]), rcond=None)[0].tolist()
    predicted = start * last.parts + million * last.tokens / 1e6
    yield Row("a line through the runs above but the last", f"{start:.2f} s a part, and {million:.3f} s a million tokens", "")
    yield Row(
        f"its prediction for {last.parts} parts of {last.tokens / 1e6:.1f} M tokens",
        f"{predicted:.1f} s, measured {last.seconds:.1f} s: **{predicted / last.seconds - 1:+.0%}**",
        "within 20%",
    )


# Opening and sealing


def sealing_parts(work: Path, *, parts: int, shards: int) -> Iterator[Row]:
    from parts import sparse_part

    members = [sparse_part(work / "members" / part_name(number), shards, 1 << 27) for number in range(parts)]
    out = work / "sealed"
    out.mkdir()
    begin = time.process_time()
    write_meta(str(out / META_NAME), {"kind": "pretrain", **seal(members, out, target=out, log=print)})
    seconds, size = time.process_time() - begin, (out / META_NAME).stat().st_size
    yield Row(
        f"seal {parts:,} parts with {parts * shards:,} shards",
        f"{seconds:.1f} s of processor time; meta.json has {size / (parts * shards):.0f} bytes a shard",
        "",
    )


def reading_lists(work: Path, *, shards: int, files: int, parts: int) -> Iterator[Row]:
    """Read a meta.json that lists many shards, as every reader of a cache does, and a plan of many files, as every part does."""
    from niels_cache_assets.parts.plan import Plan, plan_parts
    from niels_cache_assets.sources.types import ListedFile

    work.mkdir()
    entries = {f"train/{shard_name(number)}": {"bytes": 1 << 27, "sha256": f"{number:064x}"} for number in range(shards)}
    write_meta(str(work / META_NAME), {"kind": "pretrain", "files": entries})
    listed = [ListedFile(f"data/CC-MAIN-2026-05/{number:06d}.parquet", 5 * 10**8, f"{number:064x}", None) for number in range(files)]
    planned = plan_parts(listed, parts, train_tokens=None, val_tokens=None)
    groups = [planned.entry]
    meta = {"kind": "plan", "dataset_name": "web", "dataset_revision": "0" * 40, "fingerprint": "0" * 64, "groups": groups}
    write_meta(str(work / "plan.json"), meta)
    rows = ((f"read a meta.json of {shards:,} shards", META_NAME), (f"read a plan of {files:,} files in {parts:,} parts", "plan.json"))
    for what, name in rows:
        begin = time.process_time()
        found = read_meta(str(work / name))
        if name != META_NAME:
            assert len(Plan.of(found).parts) == parts
        seconds, size = time.process_time() - begin, (work / name).stat().st_size
        yield Row(what, f"{seconds:.2f} s of processor time, {size / 1e6:.1f} MB", "")


# The table


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The figures that the formulas use. Seconds are processor seconds on the machine of docs/benchmarks.md.

    The sources are docs/scaling.md (parts, duplicates), and docs/benchmarks.md (cleaning, engines).
    """

    part_seconds: float = 1.31  # start and end of a part: imports, plan, meta.json
    sentencepiece: float = 0.147  # seconds to build a million tokens with SentencePiece
    fast_bpe: float = 0.12  # the same with a tokenizer.json and fastokens: 4 MB of text at 30.7 to 37.8 MB a core-second
    clean_megabytes: float = 4.7  # of text that a core cleans in a second
    sign_microseconds: float = 14.5  # a document
    hash_microseconds: float = 1.3  # a document: its hashes, in one process
    range_microseconds: float = 1.4  # a document: the jobs for all ranges
    choose_microseconds: float = 0.3  # a document: the pass that chooses, in one process
    meta_bytes: float = 169  # of meta.json for a shard, in a cache of parts
    worker_megabytes: float = 209  # memory of a process that builds a part with one thread


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """The assumptions of the table. Change them to fit your data and your prices."""

    bytes_of_text: float = 4.0  # for each token
    bytes_of_document: float = 3_000
    packed: float = 0.4  # size of compressed Parquet as a share of its text
    near: float = 0.1  # share of documents that share a hash with another one
    cores: int = 1_024
    used: float = 0.8  # share of the cores that work
    dollars_of_core_hour: float = 0.04
    dollars_of_terabyte_month: float = 80.0
    memory_of_a_range: float = 32e9  # bytes that a job may take
    text_of_a_part: float = 60e9  # bytes: a process with 8 cores needs 10 to 20 minutes


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The costs of one data set. Each property is one cell of the table."""

    tokens: float
    engine: str
    prepare: bool
    measured: Measured = Measured()
    assumed: Assumed = Assumed()

    @property
    def text(self) -> float:
        """Bytes of text that become tokens. With `prepare`, cleaning has dropped the rest before."""
        return self.tokens * self.assumed.bytes_of_text

    @property
    def documents(self) -> float:
        return self.text / self.assumed.bytes_of_document

    @property
    def parts(self) -> int:
        return -int(-self.text // self.assumed.text_of_a_part)

    @property
    def seconds(self) -> float:
        """Processor seconds."""
        measured = self.measured
        encoding = self.tokens / 1e6 * (measured.sentencepiece if self.engine == "SentencePiece" else measured.fast_bpe)
        if not self.prepare:
            return self.parts * measured.part_seconds + encoding
        cleaning = self.parts * measured.part_seconds + self.text / 1e6 / measured.clean_megabytes
        search = measured.hash_microseconds + measured.range_microseconds + measured.choose_microseconds
        duplicates = self.documents * (measured.sign_microseconds + search) / 1e6
        return cleaning + duplicates + encoding

    @property
    def core_hours(self) -> float:
        return self.seconds / 3600

    @property
    def hours(self) -> float:
        """Hours on the clock, if all cores share the work.

        With `prepare`, two steps of the search for duplicates are one process each: their hours are added. The cache is built with
        `tokens_in_parts`.
        """
        parallel = self.seconds
        if self.prepare:
            parallel -= self.alone * 3600
        return parallel / (self.assumed.cores * self.assumed.used) / 3600 + (self.alone if self.prepare else 0)

    @property
    def alone(self) -> float:
        """Hours of the processes that do not share their work: the hashes, and the pass that chooses, each on one core."""
        return self.documents * (self.measured.hash_microseconds + self.measured.choose_microseconds) / 1e6 / 3600

    @property
    def token_bytes(self) -> int:
        return 2 if self.engine == "SentencePiece" else 4  # a vocabulary above 65,536 ids needs 4 bytes

    @property
    def cache_bytes(self) -> float:
        """Shards, document ends, and about 40 bytes of lineage a document."""
        return self.tokens * self.token_bytes + self.documents * (8 + 40)

    @property
    def corpus_bytes(self) -> float:
        """Documents, and signatures in the parts and again in the joined corpus."""
        return (self.text * self.assumed.packed + self.documents * (2 * (20 + 4 * NUM_PERM) + 32)) if self.prepare else 0

    @property
    def scratch_bytes(self) -> float:
        """Files of the search for duplicates, which are removed at its end."""
        rows = self.assumed.near * (BANDS + 1) * 24
        return self.documents * (20 + 16 * (BANDS + 1) + rows) if self.prepare else 0

    @property
    def disk_bytes(self) -> float:
        return self.cache_bytes + self.corpus_bytes + self.scratch_bytes

    @property
    def network_bytes(self) -> float:
        """The compressed files, once."""
        return self.text * self.assumed.packed

    @property
    def ranges(self) -> int:
        """Ranges, so that a job takes at most `memory_of_a_range`."""
        return max(1, -int(-60 * self.documents // self.assumed.memory_of_a_range)) if self.prepare else 0

    @property
    def memory_bytes(self) -> float:
        """The process that takes most: a worker with eight threads, or the drop lists (`search_bytes`).

        A worker with eight threads takes at most eight times the memory of one with one thread. With `prepare`, it also takes 10 bytes for
        each document of the corpus, while it divides them into train and val.
        """
        worker = 8 * self.measured.worker_megabytes * 1e6
        return max(worker + 10 * self.documents, self.search_bytes) if self.prepare else worker

    @property
    def search_bytes(self) -> float:
        """Memory of the process that writes the drop lists: 5 bytes a document, and 100 a dropped document."""
        return self.documents * 5 + self.assumed.near * self.documents * 100

    @property
    def dollars(self) -> float:
        """Cores, and the disk for a month."""
        return self.core_hours * self.assumed.dollars_of_core_hour + self.disk_bytes / 1e12 * self.assumed.dollars_of_terabyte_month

    @property
    def shards(self) -> float:
        """Shards of 128 MiB."""
        return self.tokens * self.token_bytes / 2**27

    @property
    def breaks_first(self) -> str:
        """The reasons why this size does not work without a change."""
        found = []
        if self.shards > MAX_SHARDS:
            found.append(f"too many shards of 128 MiB ({self.shards:,.0f}): set the shard_bytes that the plan proposes")
        if min(self.shards, MAX_SHARDS) * self.measured.meta_bytes > MAX_META_BYTES:
            found.append("meta.json would be above its limit")
        if self.prepare and self.search_bytes > 256e9:
            found.append("one process needs more than 256 GB of memory for the drop lists")
        if self.prepare and self.alone > 48:
            found.append(f"one process works for {self.alone:,.0f} hours")
        return "; ".join(found) or "nothing"


def amount(value: float) -> str:
    unit, size = next((pair for pair in (("GB", 1e9), ("TB", 1e12)) if value < 1000 * pair[1]), ("PB", 1e15))
    return f"{value / size:,.1f} {unit}" if value < 10 * size else f"{value / size:,.0f} {unit}"


def table() -> Iterator[str]:
    yield "| data set | parts | core-hours | hours on 1,024 cores | cache | disk | network | ranges | memory | price | what breaks first |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for tokens, name in ((1.3e12, "1.3 T"), (15e12, "15 T")):
        for prepare in (False, True):
            for engine in ("SentencePiece", "fast BPE"):
                costs = Costs(tokens=tokens, engine=engine, prepare=prepare)
                cells = [
                    f"{name}, {engine}{', `prepare`' if prepare else ''}",
                    f"{costs.parts:,}",
                    f"{costs.core_hours:,.0f}",
                    f"{costs.hours:,.1f}",
                    *map(amount, (costs.cache_bytes, costs.disk_bytes, costs.network_bytes)),
                    str(costs.ranges or ""),
                    amount(costs.memory_bytes),
                    f"${costs.dollars:,.0f}",
                    costs.breaks_first,
                ]
                yield f"| {' | '.join(cells)} |"


CHOICES = ("table", "ranges", "parts", "opening", "sealing", "reading")


def measure(
    chosen: list[str], *, quick: bool, documents: int, ranges: int, megabytes: tuple[int, ...], engine: str, work: Path
) -> Iterator[Row]:
    if "ranges" in chosen:
        folder = work / "ranges"
        folder.mkdir()
        yield from duplicates_in_ranges(folder, documents=50_000 if quick else documents, ranges=ranges)
    if "parts" in chosen:
        sizes = (2, 4) if quick else megabytes
        yield from many_parts(work / "parts", megabytes=sizes, parts=(1, 2) if quick else (1, 4, 16), engine=engine)
    if "opening" in chosen:
        from parts import opening

        shards = 640 if quick else 30_000
        for row in opening(work, shards=shards, shard_bytes=1 << 27, rounds=1 if quick else 3):
            yield Row(row.what, row.measured, row.wanted)
    if "sealing" in chosen:
        yield from sealing_parts(work / "sealing", parts=20 if quick else 1_000, shards=20)
    if "reading" in chosen:
        yield from reading_lists(
            work / "reading", shards=640 if quick else 60_000, files=480 if quick else 48_000, parts=10 if quick else 1_000
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, not what it costs")
    parser.add_argument("--only", nargs="+", choices=CHOICES, default=CHOICES, help="what to measure")
    parser.add_argument("--documents", type=int, default=10_000_000, help="synthetic signatures (default: 10,000,000)")
    parser.add_argument("--ranges", type=int, default=16, help="ranges of hashes (default: 16)")
    parser.add_argument("--megabytes", type=int, nargs="+", default=(40, 160), help="text of a data set in parts (default: 40 160)")
    parser.add_argument("--engine", choices=("auto", "reference"), default="auto", help="engine of the parts (default: auto)")
    parser.add_argument("--step", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--part", nargs=4, help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.part:
        folder, parts, number, engine = settings.part
        print(json.dumps(build_one(Path(folder), int(parts), int(number), engine)))
        return
    if settings.step:
        step, folder, documents, ranges, number = settings.step
        print(json.dumps(step_of_ranges(step, Path(folder), int(documents), int(ranges), int(number))))
        return
    if "table" in settings.only:
        print(*table(), sep="\n", flush=True)
    if settings.only == ["table"]:
        return
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    print("| what | measured | wanted |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        sizes = {"documents": settings.documents, "ranges": settings.ranges, "megabytes": tuple(settings.megabytes)}
        for row in measure(settings.only, quick=settings.quick, work=Path(temporary), engine=settings.engine, **sizes):
            print(f"| {row.what} | {row.measured} | {row.wanted} |", flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
