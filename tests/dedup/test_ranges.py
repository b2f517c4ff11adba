"""Duplicates found range by range. The dropped documents are those of one range, whatever the ranges, the windows and the interruptions."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from niels_cache_assets.dedup import greedy, ranges
from niels_cache_assets.dedup.greedy import MEMBERS_COMPARED, DropDecisions, SimilarityCondition
from niels_cache_assets.dedup.ranges import MAX_DOCUMENTS_OF_ONE_RANGE, RANGES_IF_MANY_DOCUMENTS, fitting_ranges
from niels_cache_assets.dedup.signatures import Signatures, Signer
from tests.dedup.test_greedy import clustered_texts, in_blocks, made_up, triples
from tests.helpers.depth import sized
from tests.helpers.duplicates import keep_first

COUNTS = (2, 4, 16)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "MIN_WINDOW", 23)


def values(dropped: DropDecisions) -> list[Any]:
    """All values; NaN is None, so that two lists can be equal."""
    return [dropped.documents, triples(dropped), [None if np.isnan(each) else each for each in dropped.similarity.tolist()]]


def alike(_: Any) -> Callable[[int, int], float]:
    """A similarity that is below 0.5 for some pairs, and depends on their order."""
    return lambda earlier, later: (earlier * 7 + later * 3) % 10 / 10


VERIFY = SimilarityCondition(similarity=alike, threshold=0.5)
WAYS = pytest.mark.parametrize("verify", [None, VERIFY], ids=["bands", "verified"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=sized(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 2), min_size=4, max_size=4)), 40),
    count=st.sampled_from(COUNTS),
    block=st.integers(1, 40),
)
def test_any_documents_give_what_one_range_gives(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, list[int]]], count: int, block: int
) -> None:
    signatures = made_up([(digest, dict(rows)[digest]) for digest, _ in rows])

    def found(number: int, verify: SimilarityCondition | None) -> list[Any]:
        folder = tmp_path_factory.mktemp("scratch")
        return values(keep_first(in_blocks(signatures, block), bands=2, rows=2, ranges=number, scratch=folder, verify=verify))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "_AT_ONCE", 5)
        for verify in (None, VERIFY):
            assert found(1, verify) == found(count, verify)


@WAYS
@pytest.mark.parametrize("count", COUNTS)
def test_clusters_over_many_windows(tmp_path: Path, verify: SimilarityCondition | None, count: int) -> None:
    texts = [*clustered_texts(500, bases=50, edits=5), *["..."] * 3, *["the same"] * 100]
    signatures = Signer().sign(texts)
    found = []
    for each in (1, count):
        folder = tmp_path / str(each)
        folder.mkdir()
        found.append(keep_first(in_blocks(signatures, 170), bands=8, rows=16, ranges=each, scratch=folder, verify=verify))
    assert len(found[0]) > 120
    assert values(found[0]) == values(found[1])


@pytest.mark.parametrize("count", [1, 4])
def test_a_bucket_is_compared_with_its_first_members_only(tmp_path: Path, count: int) -> None:
    """In many windows."""
    members = MEMBERS_COMPARED + 40
    signatures = made_up([(0, [5, 5, index, index]) for index in range(members)])
    signatures.digests[:, :4] = np.arange(members, dtype=np.uint32)[:, None].view(np.uint8)
    compared: list[tuple[int, int]] = []

    def similarity(earlier: int, later: int) -> float:
        compared.append((earlier, later))
        return 0.0

    verify = SimilarityCondition(similarity=lambda _: similarity, threshold=0.5)
    assert len(keep_first([signatures], bands=2, rows=2, ranges=count, scratch=tmp_path, verify=verify)) == 0
    assert len(compared) == sum(min(later, MEMBERS_COMPARED) for later in range(members))
    assert max(earlier for earlier, _ in compared) == MEMBERS_COMPARED - 1


@WAYS
def test_numbers_of_documents_may_need_64_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: SimilarityCondition | None) -> None:
    signatures = Signer().sign(clustered_texts(200, bases=20, edits=3))
    (tmp_path / "32").mkdir()
    (tmp_path / "64").mkdir()
    expected = keep_first([signatures], bands=8, rows=16, ranges=4, scratch=tmp_path / "32", verify=verify)
    monkeypatch.setattr(greedy, "_MAX_DOCUMENTS_OF_32_BITS", 100)
    wide = keep_first([signatures], bands=8, rows=16, ranges=4, scratch=tmp_path / "64", verify=verify)
    assert (expected.ordinals.dtype, wide.ordinals.dtype, wide.kept_copies.dtype) == (np.uint32, np.uint64, np.uint64)
    assert values(wide) == values(expected)
    assert len(wide) > 50


@pytest.mark.parametrize("blocks", [[], [Signer().sign([])], [Signer().sign(["one text"])]], ids=["nothing", "no document", "one document"])
def test_few_documents_in_many_ranges(tmp_path: Path, blocks: list[Signatures]) -> None:
    dropped = keep_first(blocks, bands=8, rows=16, ranges=16, scratch=tmp_path)
    assert (dropped.documents, len(dropped)) == (sum(map(len, blocks)), 0)


def test_more_documents_than_one_range_should_hold_get_more_ranges() -> None:
    assert fitting_ranges(MAX_DOCUMENTS_OF_ONE_RANGE, 1) == 1
    assert fitting_ranges(MAX_DOCUMENTS_OF_ONE_RANGE + 1, 1) == RANGES_IF_MANY_DOCUMENTS
    assert fitting_ranges(MAX_DOCUMENTS_OF_ONE_RANGE + 1, 64) == 64


def test_a_job_takes_the_memory_of_its_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random hashes, and hashes that are all shared, which take most."""
    monkeypatch.setattr(ranges, "MIN_WINDOW", 1 << 17)
    documents, generator = 400_000, np.random.default_rng(0)
    hashes = generator.integers(1, 2**64, documents, dtype=np.uint64)
    for name, of_documents in (("random", hashes), ("shared", np.repeat(hashes[: documents // 2], 2))):
        folder = tmp_path / name
        folder.mkdir()
        pairs = np.stack([np.arange(documents, dtype=np.uint64), of_documents], axis=1)
        (folder / "hashes_1_0").write_bytes(pairs.tobytes())
        tracemalloc.start()
        ranges.link_range(folder, folder, 1, 0, documents=documents)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert 10 * documents < peak < 60 * documents
