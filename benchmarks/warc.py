"""From raw web pages to main text on both cores: the source `warc` beside datatrove's WarcReader and Trafilatura.

    python benchmarks/warc.py FOLDER ... [--megabytes 100] [--processes 2] [--rounds 1] [--only resiliparse]

The pages are those of web_pages.py, in as many files as processes. Ours reads the records in one process and extracts the text in the
others, as a corpus does; datatrove gives each of its tasks a file. Nobody writes a file. Seconds count from before the first record to the
end of the last process, in a new process for each, in turn; megabytes are those of the pages. `source` is the reading alone: records,
filters, decoding.

datatrove needs trafilatura, warcio, faust-cchardet and python-magic (with libmagic); without them it is left out.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

from web_pages import write_crawl

PEER = "datatrove"
WAYS = ("source", "resiliparse", "trafilatura", PEER)


def run_ours(files: list[str], way: str, processes: int) -> dict[str, Any]:
    from niels_cache_assets.base.parallel import map_in_processes
    from niels_cache_assets.corpus.chunks import ChunkWork, CorpusCounts, new_report, source_chunks
    from niels_cache_assets.sources import PRETRAIN_SOURCES
    from niels_cache_assets.sources.types import StreamContext
    from niels_cache_assets.streaming.types import BuildPosition

    source: Any = PRETRAIN_SOURCES["warc"].model_validate(
        {"source": "warc", "files": files, "extractor": "trafilatura" if way == "trafilatura" else "resiliparse"}
    )
    context = StreamContext(seed=1)
    began = time.perf_counter()
    if way == "source":
        read = sum(len(document.text) for batch in source.unconverted(context) for document in batch)
        return {"seconds": time.perf_counter() - began, "pages": read and None, "characters": read}
    from collections import deque

    counts = CorpusCounts(report=new_report(1, cleaning=None))
    work = ChunkWork(source=source, seed=1, cleaning=None, signer=None)
    chunks = source_chunks(source.unconverted, context, BuildPosition(), deque())
    for chunk in map_in_processes(work, chunks, processes=processes, doing="extracting", size_of=attrgetter("characters")):
        counts.add(chunk.counts)
    return {"seconds": time.perf_counter() - began, "pages": counts.after.documents, "characters": counts.after.characters}


def run_datatrove(files: list[str], processes: int) -> dict[str, Any]:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.extractors import Trafilatura
    from datatrove.pipeline.readers import WarcReader

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        executor = LocalPipelineExecutor(
            pipeline=[WarcReader(str(Path(files[0]).parent), glob_pattern="*.warc.gz"), Trafilatura(favour_precision=True)],
            tasks=len(files),
            workers=processes,
            logging_dir=folder,
        )
        executor.run()
        seconds = time.perf_counter() - began
        stats = json.loads(Path(folder, "stats.json").read_text())
    totals: Counter[str] = Counter()
    for each in stats[1]["stats"].items():
        totals[each[0]] = each[1]["total"] if isinstance(each[1], dict) else each[1]
    return {"seconds": seconds, "pages": totals["forwarded"], "characters": None, "timeouts": totals["timeout"], "read": totals["total"]}


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        _, _, way, processes, *files = sys.argv
        print(json.dumps(run_datatrove(files, int(processes)) if way == PEER else run_ours(files, way, int(processes))))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="folders of HTML files")
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=WAYS, default=WAYS)
    arguments = parser.parse_args()
    needed = {"trafilatura": ("trafilatura",), PEER: ("datatrove", "trafilatura", "warcio", "cchardet", "magic")}
    ways = [way for way in arguments.only if all(find_spec(name) for name in needed.get(way, ()))]
    with tempfile.TemporaryDirectory() as folder:
        names, pages, size = write_crawl(
            arguments.folders, Path(folder, "crawl"), megabytes=arguments.megabytes, files=arguments.processes, seed=1
        )
        print(f"{pages:,} pages, {size / 1e6:,.1f} MB, in {len(names)} files\n")
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for _ in range(arguments.rounds):
            for way in ways:
                command = [sys.executable, "-W", "ignore", __file__, "--run", way, str(arguments.processes), *map(str, names)]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    sys.exit(f"{way}: {done.stderr.splitlines()[-1:]}")
                found[way].append(json.loads(done.stdout.splitlines()[-1]))
    seconds = {way: statistics.median(each["seconds"] for each in results) for way, results in found.items()}
    print("| way | seconds | MB of pages per second | of datatrove | pages with text |\n|---|---|---|---|---|")
    for way in ways:
        ratio = f"{seconds[PEER] / seconds[way]:.2f}×" if PEER in seconds else ""
        kept = found[way][0]["pages"]
        print(f"| {way} | {seconds[way]:.1f} | {size / 1e6 / seconds[way]:.2f} | {ratio} | {'' if kept is None else f'{kept:,}'} |")
    if found.get(PEER):
        print(f"\ndatatrove: {found[PEER][0]}")


if __name__ == "__main__":
    main()
