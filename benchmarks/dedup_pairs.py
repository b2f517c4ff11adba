"""Real text with near duplicates, and the quality of finding them: for benchmarks/dedup.py.

Exact similarity is counted by brute force over sets of word 5-grams, in plain Python, without the code under test.
"""

import gzip
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import datasketch
import numpy as np
import torch
from numpy.typing import NDArray

import repository_path  # noqa: F401
from tests.helpers.plain_signatures import canonical_text

NGRAM = 5
Pair = tuple[int, int]
BOOKS = ("shakespeare/tinyshakespeare_input.txt", *(f"gutenberg/{name}" for name in ("2701-0.txt", "98-0.txt", "pg1342.txt", "pg84.txt")))


def bulk_texts(data: Path) -> list[str]:
    """Return the documents of the bulk sample."""
    with gzip.open(data / "bulk" / "debian_docs_dev.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def edited_pairs(data: Path, pairs: int, *, seed: int = 1) -> list[str]:
    """Return 2 x pairs texts of 120 to 300 words: each even one real, the next one with words changed, similarity 0.5 to 1.0."""
    words = [word for text in bulk_texts(data)[:1500] for word in text.split()][:400_000]
    generator = torch.Generator().manual_seed(seed)

    def below(bound: int) -> int:
        return int(torch.randint(bound, (), generator=generator))

    texts = []
    for _ in range(pairs):
        start, length = below(len(words) - 300), 120 + below(181)
        similarity = 0.5 + 0.5 * float(torch.rand((), generator=generator))
        original = words[start : start + length]
        edited = list(original)
        # A changed word removes up to five shingles, and adds as many.
        changes = round(length * (1 - similarity) / (1 + similarity) / NGRAM)
        for place in torch.randperm(length, generator=generator)[:changes].tolist():
            edited[place] = words[below(len(words))]
        texts += [" ".join(original), " ".join(edited)]
    return texts


def book_windows(data: Path, words: int = 30_000, *, seed: int = 0) -> list[str]:
    """Return windows of 300 words of Shakespeare and novels that begin 5 to 204 words apart, so that neighbours overlap."""
    generator = torch.Generator().manual_seed(seed)
    texts = []
    for book in BOOKS:
        text = (data / book).read_text(encoding="utf-8", errors="replace").split()[:words]
        start = 0
        while start + 300 < len(text):
            texts.append(" ".join(text[start : start + 300]))
            start += 5 + int(torch.randint(200, (), generator=generator))
    return texts


def fineweb_rows(data: Path) -> list[str]:
    """Return fifteen web pages, five of them twice."""
    with open(data / "web_fineweb" / "fineweb_rows.jsonl", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def shingle_strings(text: str) -> list[str]:
    """Return the word 5-grams of a text, canonical, with repetitions."""
    words = canonical_text(text).split(" ")
    return [" ".join(words[start : start + NGRAM]) for start in range(max(1, len(words) - NGRAM + 1))]


def exact_similarities(texts: list[str]) -> dict[Pair, float]:
    """Return the Jaccard similarity of every pair of texts with a common shingle."""
    sets = [set(shingle_strings(text)) for text in texts]
    holders: dict[str, list[int]] = defaultdict(list)
    for index, shingles in enumerate(sets):
        for shingle in sorted(shingles):
            holders[shingle].append(index)
    shared = Counter(pair for indices in holders.values() for pair in combinations(indices, 2))
    return {(one, other): count / (len(sets[one]) + len(sets[other]) - count) for (one, other), count in shared.items()}


def pairs_in_a_band(slots: NDArray[np.uint32], bands: int, rows: int) -> set[Pair]:
    """Return pairs with equal slots in at least one band, looked up in plain dictionaries."""
    pairs: set[Pair] = set()
    for band in range(bands):
        buckets: dict[bytes, list[int]] = defaultdict(list)
        for index, row in enumerate(slots[:, band * rows : (band + 1) * rows]):
            buckets[row.tobytes()].append(index)
        pairs.update(pair for bucket in buckets.values() for pair in combinations(bucket, 2))
    return pairs


def datasketch_slots(texts: list[str], num_perm: int) -> NDArray[np.uint32]:
    """Return (n, num_perm): datasketch's own signatures."""
    first = datasketch.MinHash(num_perm=num_perm)
    slots = np.empty((len(texts), num_perm), dtype=np.uint32)
    for row, text in zip(slots, texts, strict=True):
        minhash = first.copy()
        minhash.update_batch([shingle.encode() for shingle in shingle_strings(text)])
        row[:] = minhash.hashvalues
    return slots


@dataclass(frozen=True, kw_only=True)
class Quality:
    """The comparison of found pairs with existing ones: three shares."""

    precision: float
    recall: float
    f1: float


def quality(found: set[Pair], similarities: dict[Pair, float], threshold: float) -> Quality:
    """Return the quality of the found pairs, against all pairs whose exact similarity reaches the threshold."""
    there = {pair for pair, similarity in similarities.items() if similarity >= threshold}
    right = len(found & there)
    return Quality(precision=right / max(1, len(found)), recall=right / len(there), f1=2 * right / (len(there) + len(found)))


def qualities(slots: NDArray[np.uint32], similarities: dict[Pair, float], *, bands: int, rows: int, threshold: float) -> list[Quality]:
    """Return one quality for each bands x rows slots of (n, draws x bands x rows): independent draws of hash functions, the present one
    first.
    """
    width = bands * rows
    draws = [slots[:, start : start + width] for start in range(0, slots.shape[1], width)]
    return [quality(pairs_in_a_band(draw, bands, rows), similarities, threshold) for draw in draws]
