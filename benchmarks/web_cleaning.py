"""The speed of cleaning English web text: megabytes of text per core-second, of the whole work on a chunk and of each step.

    python benchmarks/web_cleaning.py [--documents 9000] [--rounds 3] [--against REVISION]

The work on a chunk is what `prepare = ["clean"]` does between a source and the files of a corpus: convert, normalize, filter, measure, hash
and count. It runs with the defaults of [cleaning] in one thread, and every round in a new process. `start` is a process's first megabytes,
with the loading of the language identifier; the 2,000 first documents are measured in full for the report. `then` is the rest.

Documents: the web pages of web_c4 and web_fineweb below NIELS_CACHE_REAL_DATA, each with a paragraph of another one, else generated text.
"""

import argparse
import gzip
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHUNK = 256
FIRST = 1_024


def pages() -> list[str]:
    """Return web pages."""
    real = os.environ.get("NIELS_CACHE_REAL_DATA")
    if not real:
        words, drawn = "the of and to in that with for a page reader writes about people, places. time work years".split(), random.Random(1)  # noqa: SIM905
        paragraphs = [[" ".join([*drawn.choices(words, k=60), str(drawn.random())]) for _ in range(8)] for _ in range(60)]
        return ["\n".join(page) for page in paragraphs]
    web = Path(real)
    lines = []
    for path in (*sorted((web / "web_c4").iterdir()), web / "web_fineweb" / "fineweb_rows.jsonl"):
        content = path.read_bytes()
        lines += (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines()
    return [json.loads(line)["text"] for line in lines]


def mixed_pages(number: int) -> list[str]:
    """Return pages, in each of which one paragraph is that of another page."""
    drawn, paragraphs = random.Random(1), [[line for line in page.split("\n") if line] for page in pages()]
    mixed = []
    for _ in range(number):
        page = list(drawn.choice(paragraphs))
        page[drawn.randrange(len(page))] = drawn.choice(drawn.choice(paragraphs))
        mixed.append("\n".join(page))
    return mixed


def per_second(work: Callable[[Any], object], given: list[Any], megabytes: float) -> float:
    """Return megabytes per core-second."""
    began = time.process_time()
    for each in given:
        work(each)
    return megabytes / (time.process_time() - began)


def measure(number: int) -> dict[str, float]:
    """Return the megabytes per core-second of each step, and the number of kept documents."""
    from niels_cache_assets.base.documents import Document, DocumentBatch
    from niels_cache_assets.cleaning.settings import CleaningSettings
    from niels_cache_assets.corpus.chunks import ChunkWork, CorpusChunk
    from niels_cache_assets.sources.jsonl import Jsonl
    from niels_cache_cleaning import filters, normalizers, quick_checks
    from niels_cache_cleaning.chain import Cleaner

    settings = CleaningSettings()
    documents = [Document(page, file="web.jsonl", row=row, source_id=str(row)) for row, page in enumerate(mixed_pages(number))]
    work = ChunkWork(source=Jsonl(files=["web.jsonl"]), seed=1, cleaning=settings, signer=None)

    def clean(start: int) -> int:
        return work(CorpusChunk(start, DocumentBatch.of(documents[start : start + CHUNK]))).counts.report.kept

    def size(given: list[Document]) -> float:
        return sum(len(document.text.encode()) for document in given) / 1e6

    starts = range(0, number, CHUNK)
    found = {"start": per_second(clean, list(starts[: FIRST // CHUNK]), size(documents[:FIRST]))}
    for start in starts[FIRST // CHUNK : 2 * FIRST // CHUNK]:
        clean(start)
    found["then"] = per_second(clean, list(starts[2 * FIRST // CHUNK :]), size(documents[2 * FIRST :]))
    long = [document for document in documents[:2000] if len(document.text) >= settings.min_characters]
    texts, megabytes = [document.text for document in long], size(long)
    for name, compiled in (("chain", True), ("chain, before the compiled loops", False)):
        found[name] = per_second(Cleaner(settings, compiled=compiled).clean, long, megabytes)
    found["normalize"] = per_second(lambda text: normalizers.normalize(text, compiled=True), texts, megabytes)
    found["quick checks"] = per_second(lambda text: quick_checks.passing_filters(text, settings), texts, megabytes)
    for reason, judge in filters.FILTERS:
        found[reason] = per_second(lambda document, judge=judge: judge(filters.DocumentFacts(document, settings)), long, megabytes)  # type: ignore[misc]
    return {**found, "kept": sum(map(clean, starts))}


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(int(sys.argv[2]))))
        return
    from earlier import packages_of, result, start

    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--documents", type=int, default=9_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", metavar="REVISION", help="a git revision to measure in turn with this working tree")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        revisions = [arguments.against, None] if arguments.against else [None]
        packages = [packages_of(revision, Path(temporary)) for revision in revisions]
        rounds = [
            [result(start(where, Path(__file__), "--measure", str(arguments.documents))) for where in packages]
            for _ in range(arguments.rounds)
        ]
    best = [{name: max(each[number][name] for each in rounds) for name in rounds[0][0]} for number in range(len(packages))]
    print(f"{arguments.documents:,} documents; kept: {', '.join(str(each['kept']) for each in best)}")
    print(f"\n| MB per core-second, best of {arguments.rounds} | {' | '.join(revision or 'measured' for revision in revisions)} | ratio |")
    print("|---" * (len(packages) + 2) + "|")
    for name in best[0]:
        if name != "kept":
            print(f"| {name} | {' | '.join(f'{each[name]:.1f}' for each in best)} | {best[-1][name] / best[0][name]:.2f}x |")


if __name__ == "__main__":
    main()
