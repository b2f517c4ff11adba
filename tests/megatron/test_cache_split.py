"""A cache's split in place of its export: the same fingerprint, the same indices, the same samples."""

import mmap
import os
import pickle
import shutil
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_DTYPE
from niels_cache_runtime.format.meta import read_meta, sha256_file, write_meta
from niels_cache_runtime.megatron import (
    IndexCache,
    IndexedDataset,
    MegatronCacheSplit,
    MegatronGPTDataset,
    open_indexed,
    write_indexed,
)
from niels_cache_runtime.megatron.indexed import PROBE_BYTES
from tests.helpers.exports import random_documents, write_documents_cache

PAGE = mmap.PAGESIZE // TOKEN_DTYPE.itemsize
SETTINGS: dict[str, Any] = {"num_samples": 40, "sequence_length": 16, "seed": 1}


def write_split(folder: Path, documents: int = 400, *, seed: int = 1, shard_tokens: int = PAGE) -> Path:
    return write_documents_cache(folder, {"train": random_documents(documents, seed=seed)}, shard_tokens=shard_tokens) / "train"


@pytest.mark.parametrize(("documents", "shard_tokens"), [(1, PAGE), (400, 1000), (3000, 7 * PAGE)])
def test_lengths_pointers_and_fingerprint_are_those_of_the_export(tmp_path: Path, documents: int, shard_tokens: int) -> None:
    folder = write_split(tmp_path / "notes", documents, shard_tokens=shard_tokens)
    split = MegatronCacheSplit(folder)
    write_indexed(tmp_path / "notes_train", folder)
    exported = IndexedDataset(tmp_path / "notes_train")
    assert len(split) == len(exported) == documents
    assert split.sequence_lengths.tolist() == exported.sequence_lengths.tolist()
    assert split.sequence_pointers.tolist() == exported.sequence_pointers.tolist()
    assert split.fingerprint == exported.fingerprint


def test_samples_are_those_of_the_export_and_its_index_serves_both(tmp_path: Path) -> None:
    folder, cache = write_split(tmp_path / "notes"), IndexCache(tmp_path / "index")
    write_indexed(tmp_path / "notes_train", folder)
    of_cache = MegatronGPTDataset(MegatronCacheSplit(folder), index_cache=cache, **SETTINGS)
    of_export = MegatronGPTDataset(IndexedDataset(tmp_path / "notes_train"), index_cache=cache, **SETTINGS)
    assert of_cache.index_directory == of_export.index_directory
    assert len(of_cache) == len(of_export) >= 40
    copy = pickle.loads(pickle.dumps(of_cache))
    for index in range(len(of_cache)):
        for sample in (of_cache[index], copy[index]):
            assert torch.equal(sample["tokens"], of_export[index]["tokens"])
            assert torch.equal(sample["labels"], of_export[index]["labels"])


def test_shards_that_cannot_be_one_map_have_an_index_but_no_samples(tmp_path: Path) -> None:
    dataset = MegatronGPTDataset(MegatronCacheSplit(write_split(tmp_path / "notes", shard_tokens=1000)), **SETTINGS)
    assert len(dataset) >= 40
    with pytest.raises(NielsCacheError, match=r"mapped as one; .*shard_bytes"):
        dataset[0]


def test_a_copy_refuses_another_build(tmp_path: Path) -> None:
    pickled = pickle.dumps(MegatronCacheSplit(write_split(tmp_path / "notes")))
    write_split(tmp_path / "notes", seed=2)
    with pytest.raises(NielsCacheError, match="rebuilt since"):
        pickle.loads(pickled)


def change_between_probes(path: Path) -> None:
    """Another byte where no block is looked at, by another file of the same size."""
    content = bytearray(path.read_bytes())
    places = [(len(content) - PROBE_BYTES) * number // 63 for number in range(64)]
    gap = next(place + PROBE_BYTES for place, after in pairwise(places) if after - place > PROBE_BYTES + 2)
    content[gap] ^= 1
    other = path.with_name("other")
    other.write_bytes(content)
    os.replace(other, path)


def test_a_copy_refuses_tokens_that_differ_where_no_block_is_looked_at(tmp_path: Path) -> None:
    """A cache that was rebuilt, told by meta.json; a bare folder, an export: by their files."""
    write_split(tmp_path / "notes", 12_000, shard_tokens=1 << 22)
    bare = tmp_path / "bare"
    shutil.copytree(tmp_path / "notes", bare)
    (bare / "meta.json").unlink()
    write_indexed(tmp_path / "export", tmp_path / "notes" / "train")
    opened = [MegatronCacheSplit(tmp_path / "notes" / "train"), MegatronCacheSplit(bare / "train"), IndexedDataset(tmp_path / "export")]
    pickled = [pickle.dumps(indexed) for indexed in opened]
    assert [len(pickle.loads(copy)) for copy in pickled] == [12_000] * 3
    [shard], [bare_shard] = (list((folder / "train").glob("*.bin")) for folder in (tmp_path / "notes", bare))
    for path in (shard, bare_shard, tmp_path / "export.bin"):
        change_between_probes(path)
    meta = read_meta(str(tmp_path / "notes" / "meta.json"))
    meta["files"][f"train/{shard.name}"]["sha256"] = sha256_file(str(shard))
    write_meta(str(tmp_path / "notes" / "meta.json"), meta)
    assert MegatronCacheSplit(tmp_path / "notes" / "train").fingerprint == opened[0].fingerprint
    for copy in pickled:
        with pytest.raises(NielsCacheError, match="open it again"):
            pickle.loads(copy)


def test_on_another_host_a_copy_of_the_same_content_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_indexed(tmp_path / "export", write_split(tmp_path / "notes"))
    pickled = pickle.dumps(IndexedDataset(tmp_path / "export"))
    os.utime(tmp_path / "export.bin", ns=(1, 1))
    with pytest.raises(NielsCacheError, match="changed since"):
        pickle.loads(pickled)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="another"))
    assert len(pickle.loads(pickled)) == 400


def test_a_prefix_with_the_ending_of_a_file_says_so(tmp_path: Path) -> None:
    write_indexed(tmp_path / "export", write_split(tmp_path / "notes"))
    for ending in (".bin", ".idx"):
        with pytest.raises(NielsCacheError, match=rf"export{ending}: leave out {ending}"):
            open_indexed(tmp_path / f"export{ending}")


def test_what_is_no_split_with_documents_is_refused(tmp_path: Path) -> None:
    folder = write_split(tmp_path / "notes")
    with pytest.raises(NielsCacheError, match="empty"):
        MegatronCacheSplit(folder.parent / "val")
    (folder.parent / "train_doc_ends.npy").unlink()
    with pytest.raises(NielsCacheError, match="train_doc_ends"):
        MegatronCacheSplit(folder)
