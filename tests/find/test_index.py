"""The index of a cache: it finds what a search through all tokens finds, and belongs to one build of the cache."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.project.registry import Registry
from niels_cache_inspection.find.index import TokenIndex, candidates, open_index, write_index
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, Split
from niels_cache_runtime.format.meta import read_meta, write_meta
from niels_cache_runtime.verify import verify_cache
from tests.helpers.builds import build_dataset, build_tokenizer
from tests.helpers.corpora import corpus_registry
from tests.helpers.exports import WIDE, write_documents_cache
from tests.helpers.failing_disk import Disk, killed_at
from tests.helpers.tiny import sentences


def indexed(root: Path, splits: dict[str, list[int]], *, range_tokens: int, shard_tokens: int = 1000, threads: int = 1, **fields: Any) -> TokenIndex:
    """Return the index of a cache with these tokens, one document for each split."""
    cache = write_documents_cache(root / "pretrain" / "notes", {split: [ids] for split, ids in splits.items()}, shard_tokens=shard_tokens, **fields)
    content, files, folder = read_meta(cache / "meta.json")["content_sha256"], {}, root / "suffixes" / "notes"
    folder.mkdir(parents=True)
    reports = list[tuple[int, int]]()
    how = {"range_tokens": range_tokens, "threads": threads, "report": lambda *counts: reports.append(counts)}
    tokens = write_index(folder, cache=cache, content_sha256=content, files=files, **how)
    total = sum(map(len, splits.values()))
    assert sum(tokens.values()) == total
    assert reports[-1] == (total, total)
    inputs = {"pretrain/notes": content}
    write_meta(folder / "meta.json", {"kind": "suffixes", "inputs": inputs, "range_tokens": range_tokens, "files": files, **tokens})
    index = open_index(cache)
    assert index is not None
    return index


def naive(stream: Sequence[int], ids: Sequence[int]) -> list[int]:
    return [start for start in range(len(stream) - len(ids) + 1) if stream[start : start + len(ids)] == [*ids]]


@pytest.mark.parametrize("seed", range(200))
def test_an_index_finds_what_a_search_through_all_tokens_finds(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    monkeypatch.setattr("niels_cache_inspection.find.index._STRIDE", draw(1, 9))
    monkeypatch.setattr("niels_cache_inspection.find.index._BLOCK", draw(1, 40))
    is_wide, kinds = seed % 2 == 1, draw(1, 6)
    ids = [0, 1, 255, 256, 65_535, 7, 90_000, 2**31 - 1, 2**24, 65_536][: 10 if is_wide else 6]
    alphabet = [ids[draw(0, len(ids))] for _ in range(kinds)]
    splits = {split: [alphabet[draw(0, kinds)] for _ in range(draw(1, 80))] for split in SPLITS}
    fields = {**WIDE, "vocab_size": 2**31} if is_wide else {}
    index = indexed(tmp_path, splits, range_tokens=draw(1, 50), shard_tokens=draw(1, 30), threads=draw(1, 3), **fields)
    for split, stream in splits.items():
        at = [(start := draw(0, len(stream)), draw(start, len(stream)) + 1) for _ in range(6)]
        drawn = [[alphabet[draw(0, kinds)] for _ in range(draw(1, 12))] for _ in range(6)]
        for phrase in [*(stream[start:stop] for start, stop in at), *drawn, [0], [2**16 - 1], [alphabet[0], 0, 0]]:
            expected = naive(stream, phrase)
            assert index.positions(split, phrase).tolist() == expected, (stream, phrase)  # type: ignore[arg-type]
            assert index.count(split, phrase) == len(expected)  # type: ignore[arg-type]
