"""Near duplicates of real text, found against what exact similarity says, next to datasketch with the same slots, bands and rows.

Both draw their hash functions, so that either may be ahead by chance: precision, recall and F1, each the mean of four draws, are asked to
be at least datasketch's but for two standard errors of the difference. benchmarks/dedup.py prints the figures.
"""

import importlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from niels_cache_assets.dedup.signatures import Signer, estimated_jaccard, jaccard

DATA = Path(os.environ.get("NIELS_CACHE_REAL_DATA", "/nonexistent"))
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif("NIELS_CACHE_REAL_DATA" not in os.environ, reason="NIELS_CACHE_REAL_DATA does not name the folder of real samples"),
]


@pytest.mark.parametrize(
    ("texts", "pairs"),
    [
        pytest.param(lambda pairs: pairs.edited_pairs(DATA, 400), 100, id="edited pairs"),
        pytest.param(lambda pairs: pairs.edited_pairs(DATA, 800), 200, id="more edited pairs", marks=pytest.mark.torture),
        pytest.param(lambda pairs: pairs.book_windows(DATA), 150, id="Shakespeare and Gutenberg", marks=pytest.mark.torture),
        pytest.param(lambda pairs: pairs.fineweb_rows(DATA), 5, id="repeated rows"),
    ],
)
def test_pairs_are_found_as_well_as_datasketch_finds_them(
    monkeypatch: pytest.MonkeyPatch, texts: Callable[..., list[str]], pairs: int
) -> None:
    pytest.importorskip("datasketch")
    monkeypatch.syspath_prepend(BENCHMARKS)
    dedup_pairs = importlib.import_module("dedup_pairs")
    documents = texts(dedup_pairs)
    similarities = dedup_pairs.exact_similarities(documents)
    assert sum(similarity >= 0.85 for similarity in similarities.values()) >= pairs
    slots = {"ours": Signer(num_perm=512).sign(documents).slots, "datasketch": dedup_pairs.datasketch_slots(documents, 512)}
    draws = {
        name: np.array(
            [(draw.precision, draw.recall, draw.f1) for draw in dedup_pairs.qualities(own, similarities, bands=8, rows=16, threshold=0.85)]
        )
        for name, own in slots.items()
    }
    assert draws["ours"].shape == (4, 3)
    means = {name: own.mean(axis=0) for name, own in draws.items()}
    standard_error = np.sqrt(sum(own.var(axis=0, ddof=1) / len(own) for own in draws.values()))
    assert (means["ours"] >= means["datasketch"] - 2 * standard_error).all(), means

    hashes = Signer().shingle(documents)
    sets = [hashes.of(index) for index in range(len(documents))]
    assert all(jaccard(sets[one], sets[other]) == similarity for (one, other), similarity in similarities.items())


def test_similarity_of_real_pairs_is_estimated_without_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over 2,000 pairs: |mean signed error| < 0.003, RMSE at most 1.05 x sqrt(J(1-J)/128)."""
    pytest.importorskip("datasketch")
    monkeypatch.syspath_prepend(BENCHMARKS)
    documents = importlib.import_module("dedup_pairs").edited_pairs(DATA, 2000, seed=2)
    shingles, slots = Signer().shingle(documents), Signer().sign(documents).slots
    similarity = np.array([jaccard(shingles.of(index), shingles.of(index + 1)) for index in range(0, len(documents), 2)])
    assert len(similarity) == 2000
    assert similarity.min() < 0.6
    error = estimated_jaccard(slots[::2], slots[1::2]) - similarity
    assert abs(error.mean()) < 0.003
    assert np.sqrt((error**2).mean()) <= 1.05 * np.sqrt((similarity * (1 - similarity) / 128).mean())
