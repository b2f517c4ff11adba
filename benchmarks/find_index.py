"""Build the index of a made-up cache, and search in it with a warm and with a cold page cache.

    python benchmarks/find_index.py --tokens 200 --folder build/index     # 200 M tokens of 16 bits, like text
    python benchmarks/find_index.py --tokens 200 --wide --folder ...      # 32 bits, a vocabulary of 128,000
    python benchmarks/find_index.py --tokens 128 --text repeated ...      # one passage over and over
    python benchmarks/find_index.py --tokens 128 --text constant ...      # one token over and over

Tokens like text follow Zipf's law, and a tenth of them are copies of passages of 50 to 350 tokens. A cold search reads the files from the
disk: before each, the index is closed, and the pages of all files are dropped (posix_fadvise). The folder must not be in memory.
"""

import argparse
import gc
import math
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

import repository_path  # noqa: F401
from niels_cache_assets.disk.writers import Files, ShardWriter
from niels_cache_inspection.find.index import TokenIndex, open_index, write_index
from niels_cache_runtime.format.meta import content_sha256, write_meta

_BLOCK = 1 << 22
_LENGTHS = (1, 2, 4, 8, 16, 50)
_PASSAGE = 1000  # tokens of the repeated passage


def zipf(count: int, vocab_size: int, dtype: np.dtype) -> np.ndarray:
    """Return tokens like text."""
    generator = torch.Generator().manual_seed(0)
    tokens = np.empty(count, dtype)
    for first in range(0, count, _BLOCK):
        draws = torch.rand(min(_BLOCK, count - first), generator=generator, dtype=torch.float64).numpy()
        ranks = np.exp(draws * math.log(vocab_size)).astype(np.int64) - 1
        tokens[first : first + len(draws)] = ranks * 40_503 % vocab_size  # so that frequent tokens are all over the vocabulary
    copies = count // 2000
    places = torch.randint(0, max(1, count - 350), (copies, 2), generator=generator).tolist()
    lengths = torch.randint(50, 350, (copies,), generator=generator).tolist()
    for (start, target), length in zip(places, lengths, strict=True):
        tokens[target : target + length] = tokens[start : start + length].copy()
    return tokens


def make_tokens(text: str, count: int, vocab_size: int, dtype: np.dtype) -> np.ndarray:
    if text == "zipf":
        return zipf(count, vocab_size, dtype)
    return np.resize(zipf(_PASSAGE if text == "repeated" else 1, vocab_size, dtype), count)


def write_cache(folder: Path, tokens: np.ndarray) -> str:
    """Write a cache without documents. Return its content_sha256."""
    files: Files = {}
    folder.mkdir(parents=True)
    name = "uint16-le" if tokens.dtype.itemsize == 2 else "uint32-le"
    for split, part in (("train", tokens), ("val", tokens[:0])):
        writer = ShardWriter(folder, split, dtype=tokens.dtype, shard_bytes=1 << 27, files=files)
        for first in range(0, len(part), _BLOCK):
            writer.write(part[first : first + _BLOCK])
        writer.seal()
    meta = {"kind": "pretrain", "built": True, "token_dtype": name, "files": files, "content_sha256": content_sha256(files)}
    write_meta(folder / "meta.json", meta)
    return str(meta["content_sha256"])


def build(root: Path, cache: Path, content: str, *, tokens: int, range_tokens: int, threads: int) -> Path:
    files: Files = {}
    folder = root / "suffixes" / cache.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, cpu = time.monotonic(), time.process_time()
    counts = write_index(
        folder,
        cache=cache,
        content_sha256=content,
        range_tokens=range_tokens,
        threads=threads,
        files=files,
        report=lambda done, total: print(f"  {done:,} of {total:,} tokens, {time.monotonic() - started:.0f} s", flush=True),
    )
    wall, cpu = time.monotonic() - started, time.process_time() - cpu
    size = sum(int(entry["bytes"]) for entry in files.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"build: {wall:.1f} s, {cpu:.1f} CPU s, {tokens / cpu / 1e6:.2f} M tokens/s a core, {size / tokens:.3f} bytes a token")
    print(f"memory: {peak / 1e6:.2f} GB with mapped pages, {before / 1e6:.2f} GB before")
    inputs = {f"pretrain/{cache.name}": content}
    write_meta(folder / "meta.json", {"kind": "suffixes", "inputs": inputs, "range_tokens": range_tokens, "files": files, **counts})
    return folder


def drop_pages(folders: list[Path]) -> None:
    for path in [each for folder in folders for each in folder.rglob("*.bin")]:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def bytes_read() -> int:
    with open("/proc/self/io", encoding="ascii") as file:
        return int(dict(line.split(": ") for line in file)["read_bytes"])


def phrases(tokens: np.ndarray, length: int, count: int) -> Iterator[list[int]]:
    """Yield phrases of the text, and after each one a phrase of tokens of the text that mostly is not in it."""
    generator = torch.Generator().manual_seed(length)
    for start in torch.randint(0, len(tokens) - length, (count // 2,), generator=generator).tolist():
        yield tokens[start : start + length].tolist()
        yield tokens[torch.randint(0, len(tokens), (length,), generator=generator).numpy()].tolist()


def reopen(cache: Path) -> TokenIndex:
    index = open_index(cache)
    assert index is not None
    index.count("train", [0])  # reads the keys
    return index


def search(tokens: np.ndarray, *, rounds: int, make_index: Callable[[], TokenIndex], is_cold: bool) -> None:
    for length in _LENGTHS:
        seconds, places, read = [], [], []
        for ids in phrases(tokens, length, rounds):
            index = make_index()
            before, started = bytes_read(), time.perf_counter()
            places.append(index.count("train", ids))
            seconds.append(time.perf_counter() - started)
            read.append(bytes_read() - before)
            del index
        p50, p99 = np.quantile(seconds, [0.5, 0.99]) * 1e3
        pages = f", {np.mean(read) / 4096:.0f} pages read" if is_cold else ""
        print(
            f"| {'cold' if is_cold else 'warm'} | {length} | {p50:.2f} ms | {p99:.2f} ms | {int(np.median(places[::2]))}{pages} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=float, default=200, help="in millions")
    parser.add_argument("--text", choices=("zipf", "repeated", "constant"), default="zipf")
    parser.add_argument("--wide", action="store_true", help="uint32 and a vocabulary of 128,000")
    parser.add_argument("--range-tokens", type=int, default=1 << 27)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=1000, help="warm searches of each length; a tenth of them cold")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    given = parser.parse_args()
    count, dtype = int(given.tokens * 1e6), np.dtype("<u4" if given.wide else "<u2")
    tokens = make_tokens(given.text, count, 128_000 if given.wide else 50_000, dtype)
    cache = given.folder / "pretrain" / "made"
    shutil.rmtree(given.folder, ignore_errors=True)
    try:
        content = write_cache(cache, tokens)
        print(f"{count:,} tokens, {given.text}, {dtype.name}", flush=True)
        folder = build(given.folder, cache, content, tokens=count, range_tokens=given.range_tokens, threads=given.threads)
        os.sync()

        def reopen_cold() -> TokenIndex:
            gc.collect()
            drop_pages([cache, folder])
            return reopen(cache)

        print("| pages | tokens of the phrase | p50 | p99 | places of those in the text (median) |\n| --- | --- | --- | --- | --- |")
        opened = [reopen(cache)]
        search(tokens, rounds=given.rounds, make_index=lambda: opened[0], is_cold=False)
        opened.clear()
        search(tokens, rounds=max(2, given.rounds // 10), make_index=reopen_cold, is_cold=True)
    finally:
        if not given.keep:
            shutil.rmtree(given.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
