"""Speed and memory of the search for repeated lines, on about a gigabyte of text made from real documents.

The real documents are repeated with their letters rotated by 1 to 25 places, so that lines differ between the copies and are repeated
inside a copy as often as in the original. Three lines of boilerplate are planted in every tenth document, at its beginning and its end, in
five data sets. Memory is the peak of this process above that before the search.

    python benchmarks/lines.py --data ../shared/data/bulk/debian_docs_dev.jsonl.gz --gigabytes 1 --ranges 1 4
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import resource
import shutil
import string
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.project.registry import load_registry

PLANTED = (
    "This site uses cookies to improve your experience; by using it you agree to our policy.",
    "Share this article with all of your friends today",
    "Subscribe to our newsletter and never miss another story",
)
SETS = 5


def rotated(text: str, places: int) -> str:
    """Return the text with each ASCII letter moved in the alphabet."""
    letters = string.ascii_lowercase
    turned = letters[places:] + letters[:places]
    return text.translate(str.maketrans(letters + letters.upper(), turned + turned.upper()))


def documents(path: Path, most_bytes: float) -> Iterator[str]:
    """Yield documents until they have `most_bytes` bytes in all."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    written = number = 0
    for places in range(26):
        for text in texts:
            if written >= most_bytes:
                return
            text = rotated(text, places)
            if number % 10 == 0:
                text = f"{PLANTED[0]}\n\n{text.strip()}\n\n{PLANTED[1]}\n\n{PLANTED[2]}\n"
            yield text
            written += len(text.encode())
            number += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="gzip-compressed JSON Lines with a field `text`")
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--ranges", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--folder", type=Path, help="folder for all files (default: a temporary one)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        size = 0
        with ExitStack() as opened:
            files = [opened.enter_context(open(folder / f"set{number}.jsonl", "w", encoding="utf-8")) for number in range(SETS)]
            for number, text in enumerate(documents(arguments.data, arguments.gigabytes * 1e9)):
                files[number % SETS].write(json.dumps({"text": text}) + "\n")
                size += len(text.encode())
        tables = [
            f'[pretrain.set{number}]\nsource = "jsonl"\nfiles = ["set{number}.jsonl"]\nprepare = ["lines"]\nval_frac = 0.01'
            for number in range(SETS)
        ]
        for ranges in arguments.ranges:
            (folder / "niels_cache.toml").write_text("\n".join([f"[lines]\nranges = {ranges}", *tables]), encoding="utf-8")
            registry = load_registry(profile="quickstart", config=str(folder / "niels_cache.toml"))
            artifacts = graph(registry, folder / "cache")
            for each in registry.prepared("lines"):
                materialize(artifacts[f"corpus/{each}"], notify=False)
            for number in range(SETS):
                (folder / f"set{number}.jsonl").touch()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            usage, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
            largest = 0

            def watch(_: object) -> None:
                nonlocal largest
                scratch = folder / "cache" / "repeats" / ".lines.partial" / "scratch"
                largest = max(largest, sum(path.stat().st_size for path in scratch.glob("*"))) if scratch.exists() else largest

            outcome = materialize(graph(registry, folder / "cache")["repeats/lines"], force=True, on_progress=watch, notify=False)
            seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
            cpu = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
            cuts = {kind: sum(found["cuts"][kind] for found in outcome.meta["datasets"].values()) for kind in ("line", "paragraph")}
            planted = sum(found["cuts"]["line"] for found in outcome.meta["datasets"].values())
            digest = hashlib.sha256(outcome.meta["content_sha256"].encode()).hexdigest()[:12]
            print(
                f"ranges {ranges}: {size / 1e6:,.0f} MB in {seconds:.1f} s "
                f"({size / 1e6 / seconds:.0f} MB/s; {size / 1e6 / cpu:.0f} MB/s a core), "
                f"memory {before / 1e3:.0f} -> {after.ru_maxrss / 1e3:.0f} MB, scratch {largest / 1e6:,.0f} MB, {cuts}, {planted:,} lines, "
                f"content {digest}",
                flush=True,
            )
        shutil.rmtree(folder / "cache")


if __name__ == "__main__":
    main()
