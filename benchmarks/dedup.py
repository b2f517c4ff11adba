"""Deduplication compared with datasketch, in one run: signatures, texts to kept documents, memory of the index, and quality.

    python benchmarks/dedup.py [--quick] [--only signatures whole corpus memory quality]

Texts are 2,400 characters long: those of the bulk sample if NIELS_CACHE_REAL_DATA is set, else made-up words (`torch.Generator`).
Compared code takes turns in short rounds, so a busy machine slows all of it; a ratio is the median of the rounds' ratios. A memory
figure is the peak of resident memory (VmHWM) of a separate process, minus that before it began; datasketch's is measured for a tenth of
the documents and multiplied. rensa signs other data with other guarantees (32-bit hashes, no golden values): its row is for orientation.

Signatures start from lists of canonical words, or from texts, on both sides. datasketch gets the shingles as bytes, which it needs, by the
fastest way in plain Python, and copies of one MinHash, so that it does not draw its permutations again. The way from texts to
kept documents is in memory on both sides, with all cores for us and one for datasketch's loop of query and insert: it is the speed
of the parts, not of a run over corpora. That is `find_duplicates`, which reads prepared signatures from disk, val first. Its cost without
val, with val, and with verify = "jaccard" are separate rows without a peer. Four in ten of the documents are near others. The last row
says what `verify` adds to the whole: preparing the corpus, finding duplicates, and encoding, without training a tokenizer. To compare two
versions of this project, run this file with each of them in PYTHONPATH, in turns, `--only signatures corpus`.
"""

import argparse
import json
import os
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datasketch
import numpy as np
import rensa
import torch

import repository_path  # noqa: F401
from dedup_pairs import (
    book_windows,
    bulk_texts,
    datasketch_slots,
    edited_pairs,
    exact_similarities,
    fineweb_rows,
    pairs_in_a_band,
    qualities,
    quality,
)
from niels_cache_assets.dedup.bands import bands_for_recall
from niels_cache_assets.dedup.signatures import Signatures, Signer, jaccard
from niels_cache_assets.project.registry import load_registry
from tests.helpers.builds import build_dataset, build_tokenizer, find_duplicates, prepare_corpus
from tests.helpers.duplicates import keep_first
from tests.helpers.plain_signatures import canonical_text, sign_canonical

NGRAM, NUM_PERM, BANDS, ROWS, THRESHOLD = 5, 128, 8, 16, 0.85
CHARACTERS = 2400
ROUND = 100  # documents
PUNCTUATION = str.maketrans("", "", string.punctuation)
FIRST = datasketch.MinHash(num_perm=NUM_PERM)


def real_data() -> Path | None:
    folder = os.environ.get("NIELS_CACHE_REAL_DATA")
    return Path(folder) if folder else None


def texts_of(count: int) -> list[str]:
    """Return different texts of CHARACTERS characters."""
    data = real_data()
    if data is None:
        generator = torch.Generator().manual_seed(0)
        draws = torch.randint(5000, (count, CHARACTERS // 6), generator=generator).tolist()
        return [" ".join(f"{number * 7919:05d}"[:5] for number in row) for row in draws]
    cut = [text[start : start + CHARACTERS] for text in bulk_texts(data) for start in range(0, len(text) - CHARACTERS, CHARACTERS)]
    return cut[:: max(1, len(cut) // count)][:count]


def with_near_duplicates(texts: list[str]) -> list[str]:
    """Return as many texts: the first six tenths, and some of them again with up to 12 words changed, in mixed order."""
    generator = torch.Generator().manual_seed(1)
    originals = texts[: len(texts) * 6 // 10]
    changed = []
    for _ in range(len(texts) - len(originals)):
        words = originals[int(torch.randint(len(originals), (), generator=generator))].split(" ")
        for place in torch.randint(len(words), (int(torch.randint(13, (), generator=generator)),), generator=generator).tolist():
            words[place] = "changed"
        changed.append(" ".join(words))
    together = originals + changed
    return [together[index] for index in torch.randperm(len(together), generator=generator).tolist()]


def rounds(ways: dict[str, Callable[[int], object]], count: int) -> dict[str, list[float]]:
    """Return the seconds of each way in each round, taking turns; the first round of each is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-1, count):
        for name, way in ways.items():
            started = time.perf_counter()
            way(max(turn, 0))
            if turn >= 0:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def ratio(slower: list[float], faster: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(slower, faster, strict=True))


def row(what: str, measured: str, wanted: str) -> None:
    print(f"| {what} | {measured} | {wanted} |", flush=True)


def shingle_bytes(words: list[str]) -> list[bytes]:
    return [" ".join(words[start : start + NGRAM]).encode() for start in range(len(words) - NGRAM + 1)]


def minhash_of(words: list[str]) -> datasketch.MinHash:
    minhash = FIRST.copy()
    minhash.update_batch(shingle_bytes(words))
    return minhash


def plain_words(text: str) -> list[str]:
    """Return the canonical words by the fastest plain Python: ASCII punctuation alone."""
    return text.lower().translate(PUNCTUATION).split()


def compare_signatures(count: int) -> None:
    """Print rows 1 and 2: one process, one thread."""
    texts = texts_of(count * ROUND)
    words = [canonical_text(text).split(" ") for text in texts]
    signer = Signer(num_perm=NUM_PERM, ngram=NGRAM)

    def rensa_slots(words: list[str]) -> list[int]:
        minhash = rensa.RMinHash(num_perm=NUM_PERM, seed=42)
        minhash.update([" ".join(words[start : start + NGRAM]) for start in range(len(words) - NGRAM + 1)])
        return minhash.digest()  # type: ignore[no-any-return]

    def part(turn: int) -> slice:
        return slice(turn * ROUND, (turn + 1) * ROUND)

    seconds = rounds(
        {
            "datasketch, words": lambda turn: [minhash_of(own) for own in words[part(turn)]],
            "ours, words": lambda turn: sign_canonical(signer, [" ".join(own) for own in words[part(turn)]]),
            "rensa, words": lambda turn: [rensa_slots(own) for own in words[part(turn)]],
            "datasketch, texts": lambda turn: [minhash_of(plain_words(text)) for text in texts[part(turn)]],
            "ours, texts": lambda turn: signer.sign(texts[part(turn)]),
        },
        count,
    )
    microseconds = {name: statistics.median(own) / ROUND * 1e6 for name, own in seconds.items()}

    def figures(one: str, other: str) -> str:
        return f"{ratio(seconds[one], seconds[other]):.1f}x ({microseconds[one]:.0f} / {microseconds[other]:.1f} us a document)"

    row("signatures from canonical words, datasketch / ours", figures("datasketch, words", "ours, words"), "20x")
    row("signatures from canonical words, rensa / ours", figures("rensa, words", "ours, words"), "-")
    row("with making the canonical text, datasketch / ours", figures("datasketch, texts", "ours, texts"), "6x")


def dedup_ours(texts: list[str]) -> list[int]:
    """Return the kept documents, with threads signing on all cores."""
    signer = Signer(num_perm=NUM_PERM, ngram=NGRAM)
    parts = [texts[start : start + 256] for start in range(0, len(texts), 256)]
    with ThreadPoolExecutor(os.cpu_count()) as threads, tempfile.TemporaryDirectory() as scratch:
        dropped = keep_first(threads.map(signer.sign, parts), bands=BANDS, rows=ROWS, scratch=Path(scratch))
    gone = set(dropped.ordinals.tolist())
    return [ordinal for ordinal in range(len(texts)) if ordinal not in gone]


def dedup_datasketch(texts: list[str]) -> list[int]:
    """Return the kept documents, by the loop of its documentation."""
    index = datasketch.MinHashLSH(params=(BANDS, ROWS), num_perm=NUM_PERM)
    stay = []
    for ordinal, text in enumerate(texts):
        minhash = minhash_of(plain_words(text))
        if not index.query(minhash):
            index.insert(ordinal, minhash)
            stay.append(ordinal)
    return stay


def compare_whole(count: int, documents: int) -> None:
    """Print row 3: signing and the greedy pass, without any corpus."""
    texts = with_near_duplicates(texts_of(documents))
    stay = {"ours": 0, "datasketch": 0}

    def ours(turn: int) -> None:
        stay["ours"] = len(dedup_ours(texts))

    def peer(turn: int) -> None:
        stay["datasketch"] = len(dedup_datasketch(texts))

    seconds = rounds({"datasketch": peer, "ours": ours}, count)
    rates = {name: len(texts) / statistics.median(own) for name, own in seconds.items()}
    row(
        f"{len(texts):,} texts in memory to those that stay: ours on {os.cpu_count()} cores / datasketch's loop on one",
        f"{ratio(seconds['datasketch'], seconds['ours']):.1f}x ({rates['ours']:,.0f} / {rates['datasketch']:,.0f} documents/s; "
        f"{stay['ours']:,} / {stay['datasketch']:,} stay)",
        "12x",
    )


WITH_VAL, VERIFIED = "with val", 'with val, verify = "jaccard"'
SEARCHES = {"without val": ("none", 0.0), WITH_VAL: ("none", 0.05), VERIFIED: ("jaccard", 0.05)}  # (verify, val_frac)
TOKENIZER = "[tokenizer]\nvocab_size = 4000\nsample_bytes = 2_000_000\n"


def find_in_a_corpus(documents: int, count: int) -> dict[str, Any]:
    """Return the number of documents, and for each of SEARCHES the (seconds, processor seconds) of `find_duplicates` in each round, and MB
    at its peak. "rest" has the seconds of preparing the corpus and of encoding it. The first round is not counted. Runs in a separate
    process.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        texts = with_near_duplicates(texts_of(documents))
        (root / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        registries = {}
        for name, (verify, val_frac) in SEARCHES.items():
            table = f'[pretrain.texts]\nsource = "jsonl"\nfiles = ["texts.jsonl"]\nprepare = ["dedup"]\nval_frac = {val_frac}\n'
            (root / "config.toml").write_text(f'[dedup]\nverify = "{verify}"\n{TOKENIZER}{table}')
            registries[name] = load_registry(profile="quickstart", config=str(root / "config.toml"))
        registry = registries[WITH_VAL]
        build_tokenizer(registry, root=root)
        rest = []
        for _ in range(count + 1):
            started = time.perf_counter()
            prepare_corpus(registry, "texts", root=root, processes=1, force=True)
            prepared = time.perf_counter() - started
            find_duplicates(registry, root=root)
            started = time.perf_counter()
            build_dataset(registry, "texts", root=root, force=True)
            rest.append((prepared, time.perf_counter() - started))
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in SEARCHES}
        for _ in range(count + 1):
            for name, registry in registries.items():
                Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew (proc(5))
                before, started, used = resident("VmRSS"), time.perf_counter(), time.process_time()
                find_duplicates(registry, root=root, force=True)
                found[name].append((time.perf_counter() - started, time.process_time() - used, resident("VmHWM") - before))
    return {"documents": len(texts), "rest": rest[1:], **{name: own[1:] for name, own in found.items()}}


def measure_corpus(count: int, documents: int) -> None:
    """Measure `find_duplicates` alone. Code without a comparison of train with val needs the same time for both splits."""
    command = [sys.executable, __file__, "--find-duplicates", str(documents), str(count)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for name in SEARCHES:
        seconds, used, peaks = zip(*found[name], strict=True)
        measured = f"{statistics.median(seconds):.3f} s, of processors {min(used):.3f} s, {max(peaks):.0f} MB"
        row(f"find_duplicates in a corpus of {found['documents']:,} documents, {name}", measured, "-")
    prepared, encoded = (statistics.median(seconds) for seconds in zip(*found["rest"], strict=True))
    without, verified = (statistics.median(seconds for seconds, _, _ in found[name]) for name in (WITH_VAL, VERIFIED))
    parts = f"{prepared:.2f} + {without:.2f} + {encoded:.2f} s"
    row(
        "what verify adds to preparing, finding and encoding",
        f"{(verified - without) / (prepared + without + encoded):.1%} of {parts}",
        "15%",
    )


def random_signatures(documents: int) -> Iterator[Signatures]:
    """Return signatures as they are read from a corpus, a tenth of them of earlier documents."""
    generator = torch.Generator().manual_seed(2)
    block = 8192
    for start in range(0, documents, block):
        size = min(block, documents - start)
        slots = torch.randint(-(1 << 31), 1 << 31, (size, NUM_PERM), generator=generator, dtype=torch.int32).numpy().view(np.uint32)
        digests = torch.randint(256, (size, 20), generator=generator, dtype=torch.uint8).numpy()
        slots[: size // 10], digests[: size // 20] = slots[-(size // 10) :], digests[-(size // 20) :]
        yield Signatures(digests=digests, slots=slots)


def resident(name: str) -> float:
    """Return VmRSS or VmHWM of this process in MB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024 / 1e6


def index_memory(peer: bool, documents: int) -> float:
    """Return the MB of the index at its peak. Runs in a separate process."""
    with tempfile.TemporaryDirectory() as scratch:
        keep_first(random_signatures(20_000), bands=BANDS, rows=ROWS, scratch=Path(scratch))  # loads and compiles once
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew (proc(5))
    before = resident("VmRSS")
    if peer:
        index = datasketch.MinHashLSH(params=(BANDS, ROWS), num_perm=NUM_PERM)
        for start, block in enumerate(random_signatures(documents)):
            for place, slots in enumerate(block.slots):
                minhash = datasketch.MinHash(num_perm=NUM_PERM, hashvalues=slots, permutations=FIRST.permutations, scheme=FIRST.scheme)
                if not index.query(minhash):
                    index.insert(start * 8192 + place, minhash)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            keep_first(random_signatures(documents), bands=BANDS, rows=ROWS, scratch=Path(scratch))
    return resident("VmHWM") - before


def compare_memory(documents: int) -> None:
    """Print row 4, each side in a separate process."""

    def measure(peer: bool, count: int) -> float:
        command = [sys.executable, __file__, "--index-memory", "datasketch" if peer else "ours", str(count)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    ours, peer = measure(False, documents), measure(True, documents // 10) * 10
    scale = 1e6 / documents
    row(f"index memory a million documents, measured with {documents:,}", f"{ours * scale:.0f} MB", "150 MB")
    row(f"the same, datasketch, measured with {documents // 10:,}", f"{peer * scale:,.0f} MB, {peer / ours:.0f}x", "-")


def compare_quality(pairs: int) -> None:
    """Print precision, recall and F1 at THRESHOLD, of the present draw and as the mean of four."""
    data = real_data()
    if data is None:
        return
    for what, texts in (
        (f"{pairs:,} edited pairs", edited_pairs(data, pairs)),
        ("windows of Shakespeare and Gutenberg", book_windows(data)),
        ("repeated rows of web_fineweb", fineweb_rows(data)),
    ):
        similarities = exact_similarities(texts)
        for name, slots in (
            ("ours", Signer(num_perm=4 * NUM_PERM).sign(texts).slots),
            ("datasketch", datasketch_slots(texts, 4 * NUM_PERM)),
        ):
            draws = qualities(slots, similarities, bands=BANDS, rows=ROWS, threshold=THRESHOLD)
            used = draws[0]
            mean = np.mean([(draw.precision, draw.recall, draw.f1) for draw in draws], axis=0)
            row(
                f"{what}: {name}, precision, recall, F1 at {THRESHOLD}",
                f"{used.precision:.3f}, {used.recall:.3f}, {used.f1:.3f}; mean of 4 draws {mean[0]:.3f}, {mean[1]:.3f}, {mean[2]:.3f}",
                "-",
            )
        hashes, ends = Signer().shingle_sets(texts)
        sets = np.split(hashes, ends[:-1])
        found = pairs_in_a_band(Signer().sign(texts).slots, *bands_for_recall(THRESHOLD, NUM_PERM))
        verified = {(one, other) for one, other in found if jaccard(sets[one], sets[other]) >= THRESHOLD}
        checked = quality(verified, similarities, THRESHOLD)
        row(f'{what}: ours, verify = "jaccard"', f"{checked.precision:.3f}, {checked.recall:.3f}, {checked.f1:.3f}", "-")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it runs, not what it shows")
    parser.add_argument("--only", nargs="+", choices=("signatures", "whole", "corpus", "memory", "quality"))
    parser.add_argument("--index-memory", nargs=2, metavar=("SIDE", "DOCUMENTS"), help=argparse.SUPPRESS)
    parser.add_argument("--find-duplicates", nargs=2, type=int, metavar=("DOCUMENTS", "ROUNDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.find_duplicates:
        print(json.dumps(find_in_a_corpus(*arguments.find_duplicates)))
        return
    if arguments.index_memory:
        side, documents = arguments.index_memory
        print(index_memory(side == "datasketch", int(documents)))
        return
    wanted = arguments.only or ("signatures", "whole", "corpus", "memory", "quality")
    print("| what | measured | wanted |\n| --- | --- | --- |")
    if "signatures" in wanted:
        compare_signatures(2 if arguments.quick else 20)
    if "whole" in wanted:
        compare_whole(*((1, 500) if arguments.quick else (3, 6000)))
    if "corpus" in wanted:
        measure_corpus(*((1, 500) if arguments.quick else (5, 20_000)))
    if "memory" in wanted:
        compare_memory(50_000 if arguments.quick else 1_000_000)
    if "quality" in wanted:
        compare_quality(100 if arguments.quick else 2000)


if __name__ == "__main__":
    main()
