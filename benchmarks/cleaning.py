"""The speed of cleaning documents: the chain on every core against a plain one that ends in langdetect, and two processes against one.

One run measures everything on the same documents, in rounds that take turns, and prints ratios of the rounds' medians:

* the plain chain is benchmarks/plain_cleaning.py, one process, with `langdetect` as its last step: the same rules in the simplest code. Its
  normalizers repeat until nothing changes, which is slow. So it is measured a second time on text from our normalizers, which compares
  only the filters and the language. It gets every N-th document (all would take minutes), and ours gets these repeated to the same
  number of documents;
* our chain gets documents in chunks of 256, and returns the kept ones, as the corpus stage does; worker processes start before the clock.

Documents: bulk/debian_docs_dev.jsonl.gz and wikipedia/enwiki_extracted_dev.jsonl below NIELS_CACHE_REAL_DATA; else the standard library's.

    python benchmarks/cleaning.py [--every 16] [--repeat 4] [--rounds 3] [--processes 2]
"""

import argparse
import gzip
import json
import multiprocessing
import os
import statistics
import sysconfig
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import plain_cleaning
from niels_cache_assets.base.documents import Document
from niels_cache_assets.cleaning.report import CleaningReport
from niels_cache_assets.cleaning.settings import CleaningSettings
from niels_cache_cleaning.chain import Cleaner
from niels_cache_cleaning.normalizers import normalize

CHUNK = 256
Chunk = tuple[int, list[Document]]


def all_documents() -> list[Document]:
    real = os.environ.get("NIELS_CACHE_REAL_DATA")
    if not real:
        library = Path(sysconfig.get_path("stdlib"))
        return [Document(path.read_text(encoding="utf-8", errors="replace")) for path in sorted(library.glob("[a-z]*/*.py"))]
    with gzip.open(Path(real) / "bulk" / "debian_docs_dev.jsonl.gz", "rt", encoding="utf-8") as bulk:
        documents = [Document(json.loads(line)["text"]) for line in bulk]
    with open(Path(real) / "wikipedia" / "enwiki_extracted_dev.jsonl", encoding="utf-8") as wikipedia:
        rows = [json.loads(line) for line in wikipedia]
    return documents + [Document(row["text"], title=row["title"]) for row in rows]


def in_chunks(documents: list[Document]) -> list[Chunk]:
    return [(start, documents[start : start + CHUNK]) for start in range(0, len(documents), CHUNK)]


def clean_chunk(chunk: Chunk) -> tuple[CleaningReport, list[Document]]:
    """Clean a chunk in a worker, and return what a worker sends back."""
    cleaner, report = Cleaner(CleaningSettings()), CleaningReport(42, chunk[0])
    results = [cleaner.clean(document, report) for document in chunk[1]]
    return report, [result for result in results if isinstance(result, Document)]


def our_counts(results: list[tuple[CleaningReport, list[Document]]]) -> CleaningReport:
    whole = CleaningReport(42)
    for report, _ in results:
        whole.merge(report)
    return whole


def clean_in_this_process(chunks: list[Chunk]) -> CleaningReport:
    return our_counts([clean_chunk(chunk) for chunk in chunks])


def clean_in_pool(pool: ProcessPoolExecutor, chunks: list[Chunk]) -> CleaningReport:
    return our_counts(list(pool.map(clean_chunk, chunks)))


def langdetect_code(text: str) -> str | None:
    import langdetect

    try:
        return langdetect.detect(text)
    except langdetect.LangDetectException:
        return None


def plain_chain(documents: list[Document], *, normalized: bool) -> int:
    """Return how many documents are kept."""
    rules = plain_cleaning.rules(langdetect_code)
    stay = 0
    for document in documents:
        text = document.text if normalized else plain_cleaning.normalize(document.text)
        stay += not any(holds(text, document.title or "") for holds in rules.values())
    return stay


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def wait_a_moment(number: int) -> int:
    time.sleep(0.3)  # so that every worker gets one, and imports everything
    return len(clean_chunk((0, [Document("a warm-up " * 60)]))[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--every", type=int, default=16, help="every N-th document goes to the plain chain (default 16)")
    parser.add_argument(
        "--repeat", type=int, default=4, help="our own one-against-two comparison cleans all documents so often (default 4)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    import langdetect

    langdetect.DetectorFactory.seed = 0
    documents = all_documents()
    sample = documents[:: arguments.every]
    megabytes = sum(len(document.text.encode()) for document in documents) / 1e6
    print(f"{len(documents):,} documents, {megabytes:.0f} MB; {len(sample):,} of them for the plain chain; {os.cpu_count()} cores")
    sample_normalized = [document._replace(text=normalize(document.text)) for document in sample]
    ours = in_chunks(sample * arguments.every)
    ours_repeated = in_chunks(documents * arguments.repeat)
    langdetect_code("langdetect reads its profiles when it is first asked")
    times: dict[str, list[float]] = {name: [] for name in ("plain", "plain_normalized", "pool_sample", "one", "pool")}
    with ProcessPoolExecutor(arguments.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(wait_a_moment, range(2 * arguments.processes)))
        for _ in range(arguments.rounds):
            times["plain"].append(seconds(lambda: plain_chain(sample, normalized=False)) / len(sample))
            times["pool_sample"].append(seconds(lambda: clean_in_pool(pool, ours)) / (len(sample) * arguments.every))
            times["plain_normalized"].append(seconds(lambda: plain_chain(sample_normalized, normalized=True)) / len(sample))
            times["one"].append(seconds(lambda: clean_in_this_process(ours_repeated)) / (len(documents) * arguments.repeat))
            times["pool"].append(seconds(lambda: clean_in_pool(pool, ours_repeated)) / (len(documents) * arguments.repeat))
        report = clean_in_pool(pool, in_chunks(documents))
    a_second = {name: 1 / statistics.median(values) for name, values in times.items()}
    print(f"{report.kept:,} stay; {', '.join(f'{reason} {number:,}' for reason, number in report.dropped.most_common())}")
    print("\n| what | measured | wanted | ratio |\n|---|---|---|---|")
    many = f"{arguments.processes} processes"
    print_row(f"chain, {many}, against a plain chain that ends in langdetect", a_second, "pool_sample", "plain", "15x")
    print_row("the same, the plain one given normalized text", a_second, "pool_sample", "plain_normalized", "-")
    print_row(f"chain, {many}, against one", a_second, "pool", "one", "1.7x")


def print_row(what: str, a_second: dict[str, float], ours: str, theirs: str, wanted: str) -> None:
    measured = f"{a_second[ours]:,.0f} against {a_second[theirs]:,.0f} documents/s"
    print(f"| {what} | {measured} | {wanted} | {a_second[ours] / a_second[theirs]:.2f}x |")


if __name__ == "__main__":
    main()
