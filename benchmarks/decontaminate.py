"""The cost of removing val's documents from train in a build, and of searching for them in a finished cache.

One run measures everything on the same documents, in rounds that take turns, and prints ratios of the rounds' medians:

* the build with decontaminate = "exact" and "near" (at 0.8) against "off": seconds on the clock and of the processor;
* the comparison of train with val of the finished cache against `verify` of it, and against the build;
* the size of the index of val's documents, in memory and on disk.

Documents: pieces of 1-4 KB, as web pages are, from the wikipedia, speeches and gutenberg samples below NIELS_CACHE_REAL_DATA, if that is
set; else from the standard library's sources. These are too few, so each is repeated with its words in another order, which
costs a tokenizer the same and is not a copy. One document of train in a hundred is copied from val, and one more nearly copied.

    python benchmarks/decontaminate.py [--megabytes 60] [--val-tokens 500000] [--rounds 3]
"""

import argparse
import json
import os
import statistics
import sysconfig
import tempfile
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import repository_path  # noqa: F401
from niels_cache_assets.build_cache import build_pretrain_cache
from niels_cache_assets.dedup.text_set import TextSet
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.format.reading import available_threads
from niels_cache_runtime.verify import verify_dataset
from tests.helpers.builds import build_tokenizer
from tests.helpers.overlaps import overlap_of

MODES = ("off", "exact", "near")


def long_texts() -> list[str]:
    real = os.environ.get("NIELS_CACHE_REAL_DATA")
    if not real:
        library = Path(sysconfig.get_path("stdlib"))
        return [path.read_text(encoding="utf-8", errors="replace") for path in sorted(library.glob("[a-z]*/*.py"))]
    with open(Path(real) / "wikipedia" / "enwiki_extracted_dev.jsonl", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    with zipfile.ZipFile(Path(real) / "speeches_nltk" / "state_union.zip") as speeches:
        texts += [speeches.read(name).decode("utf-8", "replace") for name in sorted(speeches.namelist()) if name.endswith(".txt")]
    return texts + [path.read_text(encoding="utf-8-sig") for path in sorted((Path(real) / "gutenberg").glob("*.txt"))]


def pieces(texts: list[str], generator: torch.Generator) -> Iterator[str]:
    """Yield consecutive pieces of 1 to 4 KB."""
    for text in texts:
        start = 0
        while start < len(text):
            size = int(torch.randint(1_000, 4_001, (), generator=generator))
            yield text[start : start + size]
            start += size


def enough(base: list[str], megabytes: int, generator: torch.Generator) -> list[str]:
    made: list[str] = []
    size = 0
    while True:
        for text in base:
            if size >= megabytes * 1_000_000:
                return made
            if len(made) >= len(base):
                words = text.split(" ")
                text = " ".join(words[position] for position in torch.randperm(len(words), generator=generator).tolist())
            made.append(text)
            size += len(text.encode())


def with_copies(texts: list[str], val: int) -> list[str]:
    """Return the texts; after the first `val`, every fiftieth is followed by a copy of one of those, every second copy slightly changed."""
    made = texts[:val]
    for position, text in enumerate(texts[val:]):
        made.append(text)
        if position % 50 == 0:
            copy = texts[position // 50 % val]
            made.append(copy.lower() if position % 100 else f"{copy} Share this page with your friends.")
    return made


def timed(job: Callable[[], object]) -> tuple[float, float]:
    """Return seconds on the clock, and of the processor on all threads."""
    clock, processor = time.perf_counter(), time.process_time()
    job()
    return time.perf_counter() - clock, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=60)
    parser.add_argument("--val-tokens", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    generator = torch.Generator().manual_seed(42)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        base = list(pieces(long_texts(), generator))
        order = torch.randperm(len(base), generator=generator).tolist()
        texts = enough([base[position] for position in order], arguments.megabytes, generator)
        (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[: len(base)]), encoding="utf-8")
        inputs = {"pretrain": {"texts": {"source": "jsonl", "files": [str(folder / "texts.jsonl")]}}}
        registry = load_registry(profile="default", overrides={"tokenizer": {"train_on": ["texts"], "sample_bytes": 5_000_000}, **inputs})
        tokenizer = SentencePieceTokenizer(str(build_tokenizer(registry, root=folder).model))

        val = tokens = 0
        while tokens < arguments.val_tokens:
            tokens += len(tokenizer.encode(texts[val])) + 1
            val += 1
        texts = with_copies(texts, val)

        def build(mode: str) -> None:
            build_pretrain_cache(
                texts,
                str(folder / mode),
                tokenizer=tokenizer,
                max_train_tokens=2**62,
                max_val_tokens=arguments.val_tokens,
                shard_bytes=2**27,
                seed=42,
                shuffle_buffer=None,
                decontaminate=mode,  # type: ignore[arg-type]
            )

        print(f"{len(texts):,} documents, {val:,} of them val, {arguments.megabytes} MB of text, {available_threads()} cores")
        jobs: dict[str, Callable[[], object]] = {mode: lambda mode=mode: build(mode) for mode in MODES}  # type: ignore[misc]
        jobs["overlap"] = lambda: overlap_of(folder / "off", tokenizer)
        jobs["verify"] = lambda: verify_dataset(folder / "off")
        build("near")  # the first run compiles
        rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
        for _ in range(arguments.rounds):
            for name, job in jobs.items():
                rounds[name].append(timed(job))
        medians = {name: tuple(statistics.median(column) for column in zip(*times, strict=True)) for name, times in rounds.items()}
        off = medians["off"]
        print(f"{'':18} {'clock s':>8} {'x off':>6} {'cpu s':>8} {'x off':>6}")
        for name, (clock, processor) in medians.items():
            print(f"{name:18} {clock:8.2f} {clock / off[0]:6.2f} {processor:8.2f} {processor / off[1]:6.2f}")
        print(f"the comparison is {medians['overlap'][0] / medians['verify'][0]:.0f} x verify")
        for mode in MODES:
            meta = read_meta(str(folder / mode / "meta.json"))
            found = overlap_of(folder / mode, tokenizer)
            print(f"{mode:6} dropped {meta['dropped']}, left in train: {found.record['exact']} equal, {found.record['near']} near")
        tracemalloc.start()
        with TextSet(near=0.8, folder=folder) as index:
            for start in range(0, val, 256):
                index.add(texts[start : min(start + 256, val)])
            index.seal()
            held, peak = tracemalloc.get_traced_memory()
        words = sum(len(text.split()) for text in texts[:val])
        print(f"index of val: {held / words:.1f} bytes a word in memory, {peak / words:.1f} at its peak while it is made")


if __name__ == "__main__":
    main()
