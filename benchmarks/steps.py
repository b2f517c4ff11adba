"""The cost of a user's step for a document of 2 kB: of the call in a worker, and in all, with the way to a worker and back.

* The call: the work of a worker (`ChunkWork`) with a step, less the same without steps, both in this process, in turns; the lowest of many.
* In all: processor time of this process and of two workers for each document, from the document in memory here to the row to write, without
  the first quarter, in which the workers start.
* Both cores: processor time of all processes over wall time, with a step that takes about 100 microseconds. Linux only.

Documents: bulk/debian_docs_dev.jsonl.gz below NIELS_CACHE_REAL_DATA, else the standard library's, in pieces of 2,000 characters. In
"other" texts, one character is not ASCII, so Python encodes and decodes them more slowly.

    python benchmarks/steps.py [--documents 40000] [--rounds 3] [--processes 2]
"""

import argparse
import gzip
import json
import multiprocessing
import os
import sys
import sysconfig
import tempfile
import textwrap
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from niels_cache_assets.base.documents import Document, DocumentBatch
from niels_cache_assets.base.parallel import map_in_processes
from niels_cache_assets.corpus.chunks import ChunkWork, CorpusChunk, source_chunks
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.types import StreamContext
from niels_cache_assets.streaming.types import BuildPosition

CHARACTERS, CHUNK = 2000, 256
MODULE = "steps_of_the_benchmark"
CODE = """
    import re
    import pyarrow.compute as pc
    from niels_cache_assets import step

    def unchanged(document):
        return document

    def changed(document):
        return document._replace(text=document.text[:-1])

    @step(batch=True)
    def batch(batch):
        return {"drop": pc.if_else(pc.greater(pc.utf8_length(batch["text"]), 10), None, "short")}

    @step(batch=True)
    def batch_changed(batch):
        return {"text": pc.utf8_slice_codeunits(batch["text"], 0, 1999)}

    WORD = re.compile(r"\\\\w+")

    def work(document):
        return None if len(set(WORD.findall(document.text))) < 3 else document
"""
STEPS = ("unchanged", "changed", "batch", "batch_changed")


def texts(number: int, *, is_ascii: bool) -> list[str]:
    """Return texts of 2,000 characters."""
    real = os.environ.get("NIELS_CACHE_REAL_DATA")
    if real:
        with gzip.open(Path(real) / "bulk" / "debian_docs_dev.jsonl.gz", "rt", encoding="utf-8") as lines:
            everything = "\n".join(json.loads(line)["text"] for line in lines)
    else:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*/*.py"))
        everything = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)
    everything, end = everything.encode("ascii", "replace").decode(), "." if is_ascii else "\u2019"
    size, last = CHARACTERS - 1, len(everything) - CHARACTERS
    return [everything[start : start + size] + end for start in (number * size % last for number in range(number))]


def documents(count: int, *, is_ascii: bool) -> list[Document]:
    found = enumerate(texts(count, is_ascii=is_ascii))
    return [Document(text, f"web/{row // 1000:05d}.jsonl#{row}", "web/00000.jsonl", row) for row, text in found]


def work_of(folder: Path, *steps: str) -> ChunkWork:
    table = {"files": ["*.jsonl"], "steps": [f"{MODULE}:{step}" for step in steps]}
    return ChunkWork(source=Jsonl.model_validate(table, context={"base_dir": str(folder)}), seed=1, cleaning=None, signer=None)


def call_seconds(folder: Path, given: list[Document], rounds: int) -> dict[str, float]:
    """Return the seconds for a document, of the work without steps and with each."""
    works = {name: work_of(folder, *(() if name == "none" else (name,))) for name in ("none", *STEPS)}
    found = dict.fromkeys(works, 1.0)
    chunk = CorpusChunk(0, DocumentBatch.of(given[:CHUNK]))
    for _ in range(50 * rounds):
        for name, work in works.items():
            began = time.process_time()
            work(chunk)
            found[name] = min(found[name], (time.process_time() - began) / CHUNK)
    return found


def run(work: ChunkWork, given: list[Document], processes: int) -> tuple[float, float]:
    """Return the processor seconds of all processes for a document, and the cores that were busy."""
    ends = deque[tuple[BuildPosition, CorpusChunk]]()
    rows, warm, before, began = 0, len(given) // 4, 0.0, 0.0

    def stream(_: StreamContext) -> Iterator[list[Document]]:
        for start in range(0, len(given), CHUNK):
            yield given[start : start + CHUNK]

    chunks = source_chunks(stream, StreamContext(seed=1), BuildPosition(), ends)
    for chunk in map_in_processes(work, chunks, processes=processes, doing="measuring", is_watched=True):
        rows += len(chunk.rows(ends.popleft()[1]))
        if rows >= warm and not began:
            warm, before, began = rows, cpu_seconds(), time.perf_counter()
        if rows == len(given):
            used, seconds = cpu_seconds() - before, time.perf_counter() - began
    return used / (rows - warm), used / seconds


def cpu_seconds() -> float:
    """Return the processor seconds of this process and of its workers, which still run."""
    workers = [Path(f"/proc/{each.pid}/task") for each in multiprocessing.active_children()]
    return time.process_time() + sum(int(path.read_text().split()[0]) for tasks in workers for path in tasks.glob("*/schedstat")) / 1e9


def cost(work: ChunkWork, given: list[Document], processes: int, rounds: int) -> tuple[float, float]:
    """Return the lowest cost and the most busy cores of several runs."""
    runs = [run(work, given, processes) for _ in range(rounds)]
    return min(used for used, _ in runs), max(cores for _, cores in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / f"{MODULE}.py").write_text(textwrap.dedent(CODE).replace("\\\\w", "\\w"))
        sys.path.append(name)
        print("| step | texts | call in the worker, us | in all, us |\n|---|---|---|---|")
        for is_ascii in (True, False):
            given = documents(arguments.documents, is_ascii=is_ascii)
            kind, calls = "ASCII" if is_ascii else "other", call_seconds(folder, given, arguments.rounds)
            for step in ("none", *STEPS):
                in_all, _ = cost(work_of(folder, *(() if step == "none" else (step,))), given, arguments.processes, arguments.rounds)
                call = f"{1e6 * (calls[step] - calls['none']):.1f}" if step != "none" else f"(all else {1e6 * calls[step]:.1f})"
                print(f"| {step} | {kind} | {call} | {1e6 * in_all:.1f} |", flush=True)
        in_all, cores = cost(work_of(folder, "work"), given[: arguments.documents // 2], arguments.processes, arguments.rounds)
        print(f"a step of {1e6 * in_all:.0f} us a document keeps {cores:.2f} cores busy, with {arguments.processes} workers")


if __name__ == "__main__":
    main()
