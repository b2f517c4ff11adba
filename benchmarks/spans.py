"""Repeated spans: speed, memory and disk of the search, the same for texts that repeat themselves, and the sorting of a suffix array.

    python benchmarks/spans.py [--megabytes 100 300 1000] [--only sizes traps suffixes units example] [--folder FOLDER]

* `sizes`: texts like those of the bulk sample, whose words are in another order in each copy of the sample. Into one document in four, a
  piece of an earlier one is planted, 500 to 3,000 bytes of whole lines. The planted bytes that are struck are counted.
* `traps`: a million copies of a line in as many documents, and in one; one document of 100 MB; one with 100 MB of the same byte.
* `suffixes`: what libdivsufsort (pydivsufsort, if it is installed) needs to sort the suffixes of such a text: the first step of a search
  with suffix arrays.
* `units`: the bytes of 50 tokens, for the tokenizers of the real data.
* `example`: what is struck in two documents, here and by google-research/deduplicate-text-datasets.

A search runs in a process of its own, on all cores. Memory is PSS, sampled (process_tree.py). Disk is what the files in the scratch folder
take, at the end of each step. The folder must not be in memory.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
import torch

import repository_path  # noqa: F401
from build import base_texts
from niels_cache_repeats.spans import Texts, find_spans
from process_tree import run

WIDTH = 200
PLANTED_SHARE = 0.25
_PIECES = re.compile(rb"[^\s]+[ \t]*|\s+")
_BLOCK = 64  # words that change places with each other


def write_texts(path: Path, megabytes: int) -> int:
    """Write documents and their lengths, and return the number of planted bytes."""
    generator = torch.Generator().manual_seed(62)
    originals = [text.encode() for text in base_texts()]
    split = [_PIECES.findall(text) for text in originals]
    lengths, planted, written, turn = [], 0, 0, 0
    with open(path, "wb") as file:
        while written < megabytes * 1_000_000:
            for original, pieces in zip(originals, split, strict=True):
                data = original if turn == 0 else b"".join(shuffled(pieces, generator))
                if torch.rand((), generator=generator) < PLANTED_SHARE and turn:
                    piece = piece_of(originals, generator)
                    data = data + b"\n" + piece
                    planted += len(piece)
                file.write(data)
                lengths.append(len(data))
                written += len(data)
                if written >= megabytes * 1_000_000:
                    break
            turn += 1
    np.save(path.with_suffix(".npy"), np.array(lengths))
    return planted


def shuffled(pieces: list[bytes], generator: torch.Generator) -> Iterator[bytes]:
    """Yield the pieces of a text in another order; none moves far, so lines keep about their lengths."""
    for start in range(0, len(pieces), _BLOCK):
        block = pieces[start : start + _BLOCK]
        yield from (block[index] for index in torch.randperm(len(block), generator=generator).tolist())


def piece_of(texts: list[bytes], generator: torch.Generator) -> bytes:
    """Return whole lines of a text, 500 to 3,000 bytes if it has so many."""
    text = texts[int(torch.randint(len(texts), (), generator=generator))]
    start = text.find(b"\n", int(torch.randint(len(text), (), generator=generator))) + 1
    end = text.rfind(b"\n", start, start + int(torch.randint(500, 3000, (), generator=generator))) + 1
    return text[start:end]


def read_texts(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Yield the documents, every twentieth of val."""
    with open(path, "rb") as file:
        for number, length in enumerate(np.load(path.with_suffix(".npy")).tolist()):
            yield file.read(length), number % 20 == 19


def in_batches(texts: Iterator[tuple[bytes, bool]]) -> Iterator[Texts]:
    """Yield texts as a corpus yields them, 1,000 at a time."""
    while batch := list(islice(texts, 1000)):
        data = np.frombuffer(b"".join(text for text, _ in batch), np.uint8)
        yield data, np.cumsum([0, *(len(text) for text, _ in batch)]), np.array([in_val for _, in_val in batch])


def write_traps(folder: Path) -> dict[str, str]:
    """Write texts that repeat themselves, and return their files by their names."""
    line = b"A line of the kind that a template writes at the end of each of its pages, all rights reserved.\n"
    generator = torch.Generator().manual_seed(1)
    words = [piece for text in base_texts()[:2000] for piece in _PIECES.findall(text.encode())]
    book = b"".join(words[index] for index in torch.randint(len(words), (25_000_000,), generator=generator).tolist())[:100_000_000]
    files = {}
    for name, text, copies in (
        ("10^6 copies of three lines, a document each", 3 * line, 1_000_000),
        ("10^6 copies of a line in a document", 1_000_000 * line, 1),
        ("a document of 100 MB", book, 1),
        ("a document of 100 MB of one byte", 100_000_000 * b"a", 1),
    ):
        path = folder / f"trap_{len(files)}"
        path.write_bytes(copies * text)
        np.save(path.with_suffix(".npy"), np.full(copies, len(text)))
        files[name] = str(path)
    return files


def search(name: str, folder: Path) -> None:
    """Search in a file of texts, and print what was found. Runs in a process of its own."""
    texts = read_texts(Path(name))
    size = disk = 0

    def counted() -> Iterator[tuple[bytes, bool]]:
        nonlocal size
        for text, in_val in texts:
            size += len(text)
            yield text, in_val

    def report(share: float) -> None:
        nonlocal disk
        sizes = 0
        for path in scratch.iterdir():
            with suppress(FileNotFoundError):  # a thread has removed it
                sizes += path.stat().st_size
        disk = max(disk, sizes)

    with tempfile.TemporaryDirectory(dir=folder) as scratch_name:
        scratch = Path(scratch_name)
        found = find_spans(in_batches(counted()), width=WIDTH, scratch=scratch, report=report)
    struck = int((found.ends - found.starts).sum())
    print(json.dumps({"bytes": size, "disk": disk, "spans": len(found.starts), "struck": struck}))


def measured(command: list[str], folder: Path) -> tuple[dict, float, float, float, float]:
    """Return what a process printed, its seconds, processor seconds, and its highest memory without and with pages of files in MB."""
    found = run([sys.executable, __file__, *command], folder=folder, environment={}, is_sampled=True)
    return json.loads(found.output.splitlines()[-1]), found.seconds, found.cpu, found.peak_without_files, found.peak


def row(*cells: object) -> None:
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def measure(names: dict[str, str], folder: Path) -> None:
    """Print a row for each text."""
    row("text", "MB", "seconds", "processor seconds", "MB/s a core", "memory", "with pages of files", "disk", "spans", "struck MB")
    row(*["---"] * 10)
    for name, argument in names.items():
        found, seconds, cpu, memory, with_files = measured(["--search", argument, str(folder)], folder)
        size = found["bytes"] / 1e6
        sizes = (f"{memory:,.0f} MB", f"{with_files:,.0f} MB", f"{found['disk'] / 1e6:,.0f} MB")
        row(
            name,
            f"{size:,.0f}",
            f"{seconds:.1f}",
            f"{cpu:.1f}",
            f"{size / cpu:.1f}",
            *sizes,
            f"{found['spans']:,}",
            f"{found['struck'] / 1e6:,.2f}",
        )


def suffixes(path: Path) -> None:
    """Sort the suffixes of a file. Runs in a process of its own."""
    import pydivsufsort

    text = np.fromfile(path, np.uint8)
    used = time.process_time()
    array = pydivsufsort.divsufsort(text)
    print(json.dumps({"bytes": len(text), "cpu": time.process_time() - used, "array": array.nbytes}))


def units() -> None:
    """Print the bytes of 50 tokens."""
    from tokenizers import Tokenizer

    texts = base_texts()[::50]
    size = sum(len(text.encode()) for text in texts)
    for path in sorted((Path(os.environ["NIELS_CACHE_REAL_DATA"]) / "tokenizers").glob("*.json")):
        tokens = sum(len(each.ids) for each in Tokenizer.from_file(str(path)).encode_batch_fast(texts, add_special_tokens=False))
        row(path.stem, f"{50 * size / tokens:.0f} bytes")


def example() -> None:
    """Print two documents with a piece in common, without what each program strikes."""
    terms = (
        "You may copy this page, change it, and pass it on to others, as long as you keep this notice and say what you changed.\n"
        "There is no warranty of any kind: if something in it is wrong, or does harm to anything that is yours, nobody pays for it.\n"
    )
    texts = [f"About the river\nThe river rises in the hills. {terms}It is long.\n", f"About the lake\nIts water is cold. {terms}{terms}"]
    with tempfile.TemporaryDirectory() as folder:
        found = find_spans(in_batches((text.encode(), False) for text in texts), width=WIDTH, scratch=Path(folder))
    ours = list(texts)
    for number, start, end in reversed(list(zip(found.documents, found.starts, found.ends, strict=True))):
        ours[number] = ours[number][:start] + ours[number][end:]
    where: dict[str, int] = {}
    windows = [text[place : place + WIDTH] for text in texts for place in range(len(text) - WIDTH + 1)]
    for window in windows:
        where[window] = where.get(window, 0) + 1
    for text, left in zip(texts, ours, strict=True):
        covered = {
            place + more for place in range(len(text) - WIDTH + 1) if where[text[place : place + WIDTH]] > 1 for more in range(WIDTH)
        }
        every_copy = "".join(letter for place, letter in enumerate(text) if place not in covered)
        print(f"--- text\n{text}--- here\n{left}--- every copy of every window\n{every_copy}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    choices = ("sizes", "traps", "suffixes", "units", "example")
    parser.add_argument("--only", nargs="+", choices=choices, default=choices)
    parser.add_argument("--megabytes", nargs="+", type=int, default=[100, 300, 1000])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--search", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--suffixes", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.search:
        return search(arguments.search[0], Path(arguments.search[1]))
    if arguments.suffixes:
        return suffixes(arguments.suffixes)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        if "sizes" in arguments.only:
            files = {}
            for megabytes in arguments.megabytes:
                planted = write_texts(folder / f"{megabytes}", megabytes)
                files[f"{megabytes} MB, of them {planted / 1e6:.1f} planted"] = str(folder / f"{megabytes}")
            measure(files, folder)
        if "traps" in arguments.only:
            measure(write_traps(folder), folder)
        if "suffixes" in arguments.only:
            write_texts(folder / "suffixes", 100)
            found, _, _, memory, _ = measured(["--suffixes", str(folder / "suffixes")], folder)
            row(
                "libdivsufsort",
                f"{found['bytes'] / 1e6 / found['cpu']:.1f} MB/s a core",
                f"{memory:,.0f} MB",
                f"{found['array'] / 1e6:,.0f} MB",
            )
        if "units" in arguments.only:
            units()
        if "example" in arguments.only:
            example()
    return None


if __name__ == "__main__":
    main()
