"""Bands and the greedy pass. The dropped documents are those of an index that is searched and filled document by document."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from niels_cache_assets.dedup import ranges
from niels_cache_assets.dedup.bands import NO_BUCKET, band_hashes, choose_bands
from niels_cache_assets.dedup.greedy import MEMBERS_COMPARED, DropDecisions, SimilarityCondition
from niels_cache_assets.dedup.hashing import NO_SHINGLE
from niels_cache_assets.dedup.signatures import Signatures, Signer
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.depth import sized
from tests.helpers.duplicates import keep_first

Triple = tuple[int, int, bool]


def clustered_texts(count: int, *, bases: int, edits: int, seed: int = 0) -> list[str]:
    """`count` texts of 60 words, each one of `bases` with fewer than `edits` words changed."""
    generator = torch.Generator().manual_seed(seed)

    def draw(below: int) -> int:
        return int(torch.randint(below, (), generator=generator))

    originals = [[f"w{draw(200)}" for _ in range(60)] for _ in range(bases)]
    texts = []
    for _ in range(count):
        words = list(originals[draw(bases)])
        for _ in range(draw(edits)):
            words[draw(60)] = f"z{draw(50)}"
        texts.append(" ".join(words))
    return texts


def in_blocks(signatures: Signatures, size: int) -> Iterator[Signatures]:
    for start in range(0, len(signatures), size):
        yield Signatures(digests=signatures.digests[start : start + size], slots=signatures.slots[start : start + size])


def triples(dropped: DropDecisions) -> list[Triple]:
    return list(zip(dropped.ordinals.tolist(), dropped.kept_copies.tolist(), dropped.exact.tolist(), strict=True))


def insert_one_by_one(
    signatures: Signatures, bands: int, rows: int, similarity: Callable[[int, int], float] | None = None, threshold: float = 0
) -> list[Triple]:
    """Apply the rule plainly, with dictionaries of buckets, in order."""
    digests: dict[bytes, int] = {}
    buckets: dict[tuple[int, bytes], list[int]] = {}
    gone = []
    for ordinal, (digest, slots) in enumerate(zip(signatures.digests, signatures.slots, strict=True)):
        keys = [(band, slots[band * rows : (band + 1) * rows].tobytes()) for band in range(bands) if slots[0] != NO_SHINGLE]
        shared = sorted({earlier for key in keys for earlier in buckets.get(key, [])[:MEMBERS_COMPARED]})
        if similarity is not None:
            shared = [earlier for earlier in shared if similarity(earlier, ordinal) >= threshold]
        if digest.tobytes() in digests:
            gone.append((ordinal, digests[digest.tobytes()], True))
        elif shared:
            gone.append((ordinal, shared[0], False))
        else:
            digests[digest.tobytes()] = ordinal
            for key in keys:
                buckets.setdefault(key, []).append(ordinal)
    return gone


def made_up(rows: list[tuple[int, list[int]]]) -> Signatures:
    """Signatures of given digests and slots."""
    digests = np.zeros((len(rows), 20), dtype=np.uint8)
    for digest, (number, _) in zip(digests, rows, strict=True):
        digest[0], digest[7] = number, number * 25 % 256  # byte 7 decides the range
    return Signatures(digests=digests, slots=np.array([slots for _, slots in rows], dtype=np.uint32).reshape(len(rows), -1 if rows else 4))


@pytest.mark.parametrize(("bands", "rows"), [(8, 16), (25, 5)])
def test_what_is_kept_is_what_datasketch_keeps(tmp_path: Path, bands: int, rows: int) -> None:
    datasketch = pytest.importorskip("datasketch")
    signatures = Signer().sign(clustered_texts(600, bases=60, edits=6))
    index = datasketch.MinHashLSH(params=(bands, rows), num_perm=128)
    gone = {}
    for ordinal, slots in enumerate(signatures.slots):
        minhash = datasketch.MinHash(num_perm=128, hashvalues=slots, scheme="affine32")
        found = index.query(minhash)
        if found:
            gone[ordinal] = min(found)
        else:
            index.insert(ordinal, minhash)
    dropped = keep_first(in_blocks(signatures, 170), bands=bands, rows=rows, scratch=tmp_path)
    assert 40 < len(gone) < 560
    assert dict(zip(dropped.ordinals.tolist(), dropped.kept_copies.tolist(), strict=True)) == gone


@given(sized(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 2), min_size=4, max_size=4)), 30), st.integers(1, 30))
def test_the_pass_over_sorted_bands_is_insertion_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, list[int]]], block: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "_AT_ONCE", 7)
        _compare_with_insertion(tmp_path_factory, rows, block)


def _compare_with_insertion(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, list[int]]], block: int) -> None:
    signatures = made_up([(digest, dict(rows)[digest]) for digest, _ in rows])  # one text has one signature
    dropped = keep_first(in_blocks(signatures, block), bands=2, rows=2, scratch=tmp_path_factory.mktemp("scratch"))
    assert triples(dropped) == insert_one_by_one(signatures, 2, 2)
    assert dropped.documents == len(rows)
    assert np.array_equal(dropped.similarity == 1, dropped.exact)

    compared: list[int] = []

    def similarity(earlier: int, later: int) -> float:
        one, other = (int(signatures.digests[ordinal, 0]) for ordinal in (earlier, later))
        return (one * 7 + other * 3) % 10 / 10

    def remembered(ordinals: np.ndarray) -> Callable[[int, int], float]:
        compared.extend(ordinals.tolist())

        def of_those(earlier: int, later: int) -> float:
            assert {earlier, later} <= set(compared)
            return similarity(earlier, later)

        return of_those

    expected = insert_one_by_one(signatures, 2, 2, similarity, 0.5)
    verify = SimilarityCondition(similarity=remembered, threshold=0.5)
    verified = keep_first(in_blocks(signatures, block), bands=2, rows=2, scratch=tmp_path_factory.mktemp("scratch"), verify=verify)
    assert compared == sorted(set(compared))
    assert len({bytes(signatures.digests[ordinal]) for ordinal in compared}) == len(compared)
    assert triples(verified) == expected
    for ordinal, because, exact, measured in zip(*columns(verified), strict=True):
        assert measured == (1 if exact else np.float32(similarity(int(because), int(ordinal))))


def columns(dropped: DropDecisions) -> list[list[float]]:
    return [column.tolist() for column in (dropped.ordinals, dropped.kept_copies, dropped.exact, dropped.similarity)]


def test_documents_with_the_same_shingles_are_near_and_not_exact(tmp_path: Path) -> None:
    signatures = made_up([(0, [1, 1, 2, 2]), (1, [1, 1, 2, 2]), (0, [1, 1, 2, 2])])
    verify = SimilarityCondition(similarity=lambda _: lambda earlier, later: 1.0, threshold=0.5)
    dropped = keep_first([signatures], bands=2, rows=2, scratch=tmp_path, verify=verify)
    assert triples(dropped) == [(1, 0, False), (2, 0, True)]
    assert dropped.similarity.tolist() == [1, 1]


def test_what_is_dropped_draws_nobody_after_it(tmp_path: Path) -> None:
    """Document 1 is like 0, and 2 is like 1 alone. Document 2 stays, because 1 is not kept."""
    signatures = made_up([(0, [1, 1, 2, 2]), (1, [1, 1, 3, 3]), (2, [4, 4, 3, 3])])
    assert triples(keep_first([signatures], bands=2, rows=2, scratch=tmp_path)) == [(1, 0, False)]


def test_documents_without_words_are_only_exact_duplicates(tmp_path: Path) -> None:
    signatures = Signer().sign(["''", "one word", "''", "''", "One word!"])
    assert (band_hashes(signatures.slots, 8, 16)[[0, 2, 3]] == NO_BUCKET).all()
    dropped = keep_first([signatures], bands=8, rows=16, scratch=tmp_path)
    assert triples(dropped) == [(2, 0, True), (3, 0, True), (4, 1, True)]
    other_digests = Signatures(digests=made_up([(n, [n]) for n in range(5)]).digests, slots=signatures.slots)
    assert triples(keep_first([other_digests], bands=8, rows=16, scratch=tmp_path)) == [(4, 1, False)]


def test_digests_that_only_begin_alike_are_no_duplicates(tmp_path: Path) -> None:
    digests = np.zeros((3, 20), dtype=np.uint8)
    digests[1:, 19] = 1
    slots = np.arange(12, dtype=np.uint32).reshape(3, 4)
    slots[2] = slots[1]
    dropped = keep_first([Signatures(digests=digests, slots=slots)], bands=2, rows=2, scratch=tmp_path)
    assert triples(dropped) == [(2, 1, False)]  # no longer the first of its eight bytes: found as a near one


def test_the_same_document_over_and_over_takes_one_step_each(tmp_path: Path) -> None:
    """A quadratic step would not end here."""
    one = Signer().sign(["the same words in every one of these documents"])
    count = 200_000
    block = Signatures(digests=np.repeat(one.digests, 10_000, axis=0), slots=np.repeat(one.slots, 10_000, axis=0))
    dropped = keep_first((block for _ in range(count // 10_000)), bands=8, rows=16, scratch=tmp_path)
    assert dropped.ordinals.tolist() == list(range(1, count))
    assert not dropped.kept_copies.any()
    assert dropped.exact.all()


def test_no_documents(tmp_path: Path) -> None:
    for blocks in ([], [Signer().sign([])]):
        dropped = keep_first(blocks, bands=8, rows=16, scratch=tmp_path)
        assert (dropped.documents, len(dropped)) == (0, 0)


def test_bands_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NielsCacheError, match=r"9 bands of 16 rows .* 128 slots"):
        keep_first([Signer().sign(["a"])], bands=9, rows=16, scratch=tmp_path)
    with pytest.raises(NielsCacheError, match="between 0 and 1"):
        choose_bands(1.0, 128)


def test_bands_chosen_are_those_that_datasketch_chooses() -> None:
    assert choose_bands(0.85, 128) == (8, 16)
    lsh = pytest.importorskip("datasketch.lsh")
    for threshold, num_perm in ((0.5, 64), (0.8, 64), (0.9, 32), (0.7, 16)):
        assert choose_bands(threshold, num_perm) == lsh._optimal_param(threshold, num_perm, 0.5, 0.5)
