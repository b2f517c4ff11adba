"""The index of a cache: it finds what a search through all tokens finds, and belongs to one build of the cache."""

import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.project.registry import Registry
from niels_cache_inspection.find.caches import SearchableCache
from niels_cache_inspection.find.index import CODE_VERSION, TokenIndex, candidates, open_index, write_index
from niels_cache_inspection.find.places import Search, caches_of, find_text, find_tokens
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS
from niels_cache_runtime.format.meta import read_meta, write_meta
from niels_cache_runtime.verify import verify_cache
from tests.helpers.builds import build_dataset, build_tokenizer
from tests.helpers.corpora import corpus_registry
from tests.helpers.exports import WIDE, write_documents_cache
from tests.helpers.failing_disk import Disk, killed_at
from tests.helpers.tiny import sentences

pytestmark = pytest.mark.skipif(find_spec("pydivsufsort") is None, reason="pydivsufsort is not installed (the extra find)")


def indexed(
    root: Path, splits: dict[str, list[int]], *, range_tokens: int, shard_tokens: int = 1000, threads: int = 1, **fields: Any
) -> TokenIndex:
    """Return the index of a cache with these tokens, one document for each split."""
    cache = write_documents_cache(
        root / "pretrain" / "notes", {split: [ids] for split, ids in splits.items()}, shard_tokens=shard_tokens, **fields
    )
    content, files, folder = read_meta(cache / "meta.json")["content_sha256"], {}, root / "suffixes" / "notes"
    folder.mkdir(parents=True)
    reports = list[tuple[int, int]]()
    how = {"range_tokens": range_tokens, "threads": threads, "report": lambda *counts: reports.append(counts)}
    tokens = write_index(folder, cache=cache, content_sha256=content, files=files, **how)
    total = sum(map(len, splits.values()))
    assert sum(tokens.values()) == total
    assert reports[-1] == (total, total)
    inputs = {"pretrain/notes": content}
    about = {"kind": "suffixes", "inputs": inputs, "range_tokens": range_tokens, "files": files, **tokens}
    write_meta(folder / "meta.json", {**about, "index_version": int(CODE_VERSION) + 1})
    assert open_index(cache) is None
    write_meta(folder / "meta.json", {**about, "index_version": int(CODE_VERSION)})
    index = open_index(cache)
    assert index is not None
    return index


def naive(stream: Sequence[int], ids: Sequence[int]) -> list[int]:
    return [start for start in range(len(stream) - len(ids) + 1) if stream[start : start + len(ids)] == [*ids]]


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 4000), marks=pytest.mark.torture)], ids=["40", "4000"])
def test_an_index_finds_what_a_search_through_all_tokens_finds(tmp_path: Path, seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each seed makes a cache with two splits, of uint16 or uint32, in shards and ranges of odd sizes."""
    found = 0
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)

        def draw(low: int, high: int, generator: torch.Generator = generator) -> int:
            return int(torch.randint(low, high, (), generator=generator))

        monkeypatch.setattr("niels_cache_inspection.find.index._STRIDE", draw(1, 9))
        monkeypatch.setattr("niels_cache_inspection.find.index._BLOCK", draw(1, 40))
        ids = [0, 1, 255, 256, 65_535, 7, 90_000, 2**31 - 1, 2**24, 65_536][: 10 if seed % 2 else 6]
        alphabet = [ids[draw(0, len(ids))] for _ in range(draw(1, 6))]
        splits = {split: [alphabet[draw(0, len(alphabet))] for _ in range(draw(1, 80))] for split in SPLITS}
        fields = {**WIDE, "vocab_size": 2**31} if seed % 2 else {}
        index = indexed(
            tmp_path / str(seed), splits, range_tokens=draw(3, 50), shard_tokens=draw(1, 30), threads=1 + (seed % 8 == 0), **fields
        )
        for split in SPLITS:
            stream = splits[split]
            starts = [draw(0, len(stream)) for _ in range(3)]
            phrases = [stream[start : draw(start, len(stream)) + 1] for start in starts]
            phrases += [[alphabet[draw(0, len(alphabet))] for _ in range(draw(1, 12))] for _ in range(2)]
            for phrase in [*phrases, [0], [alphabet[0], 0, 0]]:
                expected = naive(stream, phrase)
                assert index.positions(split, phrase).tolist() == expected, (seed, stream, phrase)
            assert index.count(split, phrases[0]) == len(naive(stream, phrases[0])) > 0
            found += len(expected)
    assert found > len(seeds)


def test_ids_that_no_token_has_are_not_found(tmp_path: Path) -> None:
    index = indexed(tmp_path, {"train": [5, 6, 5], "val": []}, range_tokens=2)
    assert index.positions("train", [5]).tolist() == [0, 2]
    assert [index.count("train", [id]) for id in (-1, 65_536, 2**40)] == [0, 0, 0]
    assert index.positions("val", [5]).tolist() == []
    with pytest.raises(NielsCacheError, match="one token"):
        index.count("train", [])


def project(folder: Path, model: Path, *, seed: int = 0, find: str = 'index = ["notes"]\nrange_tokens = 500') -> Registry:
    return corpus_registry(
        folder, {"notes": sentences(60, seed=seed)}, settings=f'[tokenizer]\nmodel = "{model}"\n[find]\n{find}', table="val_frac = 0.2\n"
    )


def build(registry: Registry, root: Path, **how: Any) -> str:
    return materialize(graph(registry, root)["suffixes/notes"], notify=False, **how).state


def ways_of(search: Search) -> set[str]:
    return {each.way for each in search.searched}


def files_of(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / "suffixes" / "notes").iterdir())}


def test_an_index_belongs_to_one_build_of_its_cache_and_a_killed_build_leaves_the_last_one(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, registry = tmp_path / "cache", project(tmp_path, tiny_model)
    cache = root / "pretrain" / "notes"
    build_tokenizer(registry, root=root)
    build_dataset(registry, "notes", root=root)
    assert graph(registry, root).order()[-1] == "suffixes/notes"
    assert candidates(cache, "train", [5]) is None
    states = [build(registry, root), build(registry, root)]
    assert (states, graph(registry, root).state("suffixes/notes").state) == (["built", "cache_hit"], "in sync")
    first, stream = files_of(root), np.fromfile(cache / "train" / "shard_00000.bin", dtype="<u2").tolist()
    assert len(first) > 5
    found = candidates(cache, "train", stream[498:503])  # across the border of two ranges
    assert found is not None
    assert 498 in found
    assert not verify_cache(root)
    searches = [partial(find_text, text=sentences(60)[7][4:].encode()), partial(find_tokens, ids=stream[498:503])]
    with_index = [(list(search := start(caches_of(root))), ways_of(search)) for start in searches]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SearchableCache, "index", None)
        without = [(list(search := start(caches_of(root))), ways_of(search)) for start in searches]
    assert [places for places, _ in with_index] == [places for places, _ in without]
    assert all(places for places, _ in without)
    assert ([ways for _, ways in with_index], [ways for _, ways in without]) == ([{"index"}] * 2, [{"candidates"}, {"scan"}])

    (root / "suffixes" / "notes" / "train_00000.bin").write_bytes(first["train_00000.bin"][::-1])
    assert [finding.path for finding in verify_cache(root)] == ["train_00000.bin"]
    (root / "suffixes" / "notes" / "train_00000.bin").unlink()
    with pytest.raises(NielsCacheError, match=r"train_00000.bin.* remove the damaged index"):
        candidates(cache, "train", [5])
    assert build(registry, root, force=True) == "built"
    assert files_of(root) == first

    other = project(tmp_path, tiny_model, find='index = ["notes"]\nrange_tokens = 300')
    with Disk(root).installed() as disk:
        build(other, root)
    after = files_of(root)
    for at in (0, len(disk.calls) // 2, len(disk.calls) - 1):
        build(registry, root)
        assert files_of(root) == first
        assert killed_at(root, at, lambda: build(other, root)), disk.calls[at]
        assert files_of(root) == (after if at == len(disk.calls) - 1 else first), disk.calls[at]
        build(other, root)
        assert files_of(root) == after, disk.calls[at]

    later = project(tmp_path, tiny_model, seed=1)
    build_dataset(later, "notes", root=root)
    state = graph(later, root).state("suffixes/notes")
    assert (state.state, "its cache" in state.advice) == ("other settings", True)
    assert open_index(cache) is None
    monkeypatch.setitem(sys.modules, "pydivsufsort", None)
    with pytest.raises(NielsCacheError, match=r"niels-cache\[find\]"):
        build(later, root, force=True)
    with pytest.raises(NielsCacheError, match=r"\[find\] index .*'nots'"):
        project(tmp_path, tiny_model, find='index = ["nots"]')
