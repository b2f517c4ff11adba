"""The search for duplicates in one call, for documents in memory."""

from collections.abc import Iterable
from pathlib import Path

from niels_cache_assets.dedup.greedy import DropDecisions, SimilarityCondition, drop_later
from niels_cache_assets.dedup.ranges import Buckets, link_range, write_hashes
from niels_cache_assets.dedup.signatures import Signatures


def link_signatures(blocks: Iterable[Signatures], *, bands: int, rows: int, scratch: Path, ranges: int = 1) -> Buckets:
    """Write the hashes and all ranges to the folder `scratch`."""
    documents = write_hashes(blocks, bands=bands, rows=rows, ranges=ranges, folder=scratch)
    for each in range(ranges):
        for band in range(bands + 1):
            link_range(scratch, scratch, band, each, documents=documents)
    return Buckets(scratch=scratch, hashes=scratch, links=[scratch] * ranges, documents=documents, bands=bands)


def keep_first(
    blocks: Iterable[Signatures], *, bands: int, rows: int, scratch: Path, ranges: int = 1, verify: SimilarityCondition | None = None
) -> DropDecisions:
    """Return the documents to drop. The order of the signatures determines which copy is kept."""
    return drop_later(link_signatures(blocks, bands=bands, rows=rows, scratch=scratch, ranges=ranges), verify=verify)
