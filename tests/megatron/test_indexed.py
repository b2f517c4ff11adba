"""IndexedDataset read and written: the same bytes as megatron-core, and every field that is wrong is named."""

import os
import pickle
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, doc_ends_name
from niels_cache_runtime.megatron import IndexedDataset, IndexedWriter, indexed, indexed_writer, plan_indexed, write_indexed
from niels_cache_runtime.megatron.indexed import DTYPES, HEADER
from tests.helpers import megatron_core
from tests.helpers.hand_made import write_shards

DOCUMENTS = [[5, 6, 7, 2], [8, 2], [9, 10, 11, 12, 13, 2], [2]]


def write_with_core(prefix: Path, documents: list[Any], *, dtype: Any = np.uint16) -> Path:
    builder = megatron_core.load().indexed.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for document in documents:
        builder.add_document(torch.tensor(np.asarray(document).astype(np.int64)), [len(document)])
    builder.finalize(f"{prefix}.idx")
    return prefix


def write_ours(prefix: Path, documents: list[Any], *, dtype: Any = np.uint16) -> Path:
    with IndexedWriter(prefix, dtype=dtype) as writer:
        for document in documents:
            writer.add_document(np.asarray(document, dtype=dtype))
    return prefix


def both(prefix: Path) -> tuple[bytes, bytes]:
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


def write_split(folder: Path, documents: list[list[int]], *, shard_tokens: int) -> Path:
    """A bare split in shards of that length, with its doc_ends."""
    tokens = np.concatenate([np.asarray(document) for document in documents])
    split = write_shards(folder / "train", [tokens[start : start + shard_tokens] for start in range(0, len(tokens), shard_tokens)])
    np.save(folder / doc_ends_name("train"), np.cumsum([len(document) for document in documents]).astype(DOC_ENDS_DTYPE))
    return split


@pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=str)
def test_the_writers_bytes_are_those_of_megatron_core_in_every_dtype(tmp_path: Path, dtype: np.dtype) -> None:
    ours, theirs = write_ours(tmp_path / "ours", DOCUMENTS, dtype=dtype), write_with_core(tmp_path / "core", DOCUMENTS, dtype=dtype.type)
    assert both(ours) == both(theirs)


def test_documents_of_several_sequences_and_none_are_written_as_megatron_core_writes_them(tmp_path: Path) -> None:
    core = megatron_core.load().indexed
    builder = core.IndexedDatasetBuilder(str(tmp_path / "core.bin"), dtype=np.int32)
    with IndexedWriter(tmp_path / "ours", dtype=np.int32) as writer:
        for target in (builder, writer):
            add = target.add_item if target is builder else target.add_sequence
            add(torch.tensor([1, 2, 3]))
            add(torch.tensor([4]))
            target.end_document()
            target.end_document()
            target.add_document(torch.tensor([5, 6, 7]), lengths=[2, 1])
    builder.finalize(str(tmp_path / "core.idx"))
    assert both(tmp_path / "ours") == both(tmp_path / "core")


def test_the_modes_of_a_multimodal_data_set_are_read(tmp_path: Path) -> None:
    core = megatron_core.load().indexed
    builder = core.IndexedDatasetBuilder(str(tmp_path / "core.bin"), dtype=np.int32, multimodal=True)
    builder.add_item(torch.tensor([1, 2, 3]), mode=1)
    builder.add_item(torch.tensor([4]), mode=0)
    builder.end_document()
    builder.end_document()
    builder.add_document(torch.tensor([5, 6, 7]), lengths=[2, 1], modes=[0, 1])
    builder.finalize(str(tmp_path / "core.idx"))
    dataset, theirs = IndexedDataset(tmp_path / "core"), core.IndexedDataset(str(tmp_path / "core"), multimodal=True)
    assert dataset.sequence_modes is not None
    assert dataset.sequence_modes.tolist() == [1, 0, 0, 1]
    assert dataset.document_indices.tolist() == [0, 2, 2, 4]
    assert [(ours.tolist(), int(mode)) for ours, mode in zip(dataset, dataset.sequence_modes, strict=True)] == [
        (tokens.tolist(), int(mode)) for tokens, mode in (theirs[sequence] for sequence in range(len(theirs)))
    ]


def test_a_split_is_exported_with_the_bytes_of_megatron_core(tmp_path: Path) -> None:
    lengths = megatron_core.random_lengths(300, seed=3, mean=20)
    generator = torch.Generator().manual_seed(1)
    documents = [torch.randint(60_000, (length,), generator=generator).tolist() for length in lengths]
    split = write_split(tmp_path / "cache", documents, shard_tokens=1024)
    [part] = write_indexed(tmp_path / "out" / "ours", split, key="text")
    assert part.prefix == str(tmp_path / "out" / "ours_text_document")
    theirs = write_with_core(tmp_path / "core", documents)
    assert both(Path(part.prefix)) == both(theirs)
    assert (part.bin_bytes, part.idx_bytes) == tuple(len(content) for content in both(theirs))
    read = megatron_core.load().indexed.IndexedDataset(part.prefix)
    assert [read[sequence].tolist() for sequence in range(len(read))] == documents


def test_the_index_is_the_same_whatever_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [[1] * (1 + index % 7) for index in range(100)]
    split = write_split(tmp_path / "cache", documents, shard_tokens=50)
    write_indexed(tmp_path / "whole", split)
    monkeypatch.setattr(indexed, "BLOCK", 7)
    monkeypatch.setattr(indexed_writer, "BLOCK", 7)
    monkeypatch.setattr(indexed_writer, "_COPY_TOKENS", 5)
    write_indexed(tmp_path / "blocks", split)
    write_ours(tmp_path / "streamed", documents)
    assert both(tmp_path / "whole") == both(tmp_path / "blocks") == both(tmp_path / "streamed")


def test_max_bytes_splits_between_documents_and_nothing_is_lost(tmp_path: Path) -> None:
    documents = [[index + 1] * (1 + index % 5) for index in range(40)]
    split = write_split(tmp_path / "cache", documents, shard_tokens=16)
    told: list[tuple[int, int]] = []
    parts = write_indexed(tmp_path / "out", split, max_bytes=2 * 23, progress=lambda done, total: told.append((done, total)))
    assert len(parts) > 3
    assert [part.prefix for part in parts] == [str(tmp_path / f"out_{number:05d}") for number in range(len(parts))]
    assert parts == plan_indexed(tmp_path / "out", split, max_bytes=2 * 23)
    datasets = [IndexedDataset(part.prefix) for part in parts]
    assert all(dataset.tokens.nbytes <= 2 * 23 for dataset in datasets)
    assert [sequence.tolist() for dataset in datasets for sequence in dataset] == documents
    assert told[-1] == (2 * sum(map(len, documents)),) * 2
    assert told == sorted(told)
    with pytest.raises(NielsCacheError, match="document 4 has 5 tokens, 10 bytes: raise max_bytes"):
        plan_indexed(tmp_path / "out", split, max_bytes=8)


def test_nothing_is_replaced_without_force_and_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    split = write_split(tmp_path / "cache", DOCUMENTS, shard_tokens=4)
    write_indexed(tmp_path / "out", split)
    before = both(tmp_path / "out")
    with pytest.raises(NielsCacheError, match=r"out\.bin: already exists"):
        write_indexed(tmp_path / "out", split)
    with suppress(RuntimeError), IndexedWriter(tmp_path / "out", force=True) as writer:
        writer.add_document([1, 2])
        raise RuntimeError
    assert both(tmp_path / "out") == before
    with pytest.raises(NielsCacheError, match="fit into uint16"), IndexedWriter(tmp_path / "other") as writer:
        writer.add_document([70_000])
    with pytest.raises(NielsCacheError, match=r"dtype=uint64: .*uint16"):
        IndexedWriter(tmp_path / "other", dtype=np.uint64)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "out.bin", "out.idx"]


def test_reading_gives_what_was_written_and_what_megatron_core_reads(tmp_path: Path) -> None:
    documents = megatron_core.write_documents(tmp_path / "data", megatron_core.random_lengths(50, seed=1, mean=9, empty=0.2))
    ours, theirs = IndexedDataset(tmp_path / "data"), megatron_core.load().indexed.IndexedDataset(str(tmp_path / "data"))
    assert len(ours) == len(theirs) == 50
    for sequence, document in enumerate(documents):
        assert np.array_equal(ours[sequence], document)
        assert np.array_equal(ours[sequence], theirs[sequence])
    assert np.array_equal(ours[-1], documents[-1])
    assert [part.tolist() for part in ours[3:9]] == [part.tolist() for part in theirs[3:9]]
    assert [part.tolist() for part in ours[::-7]] == [part.tolist() for part in documents[::-7]]
    longest = int(np.argmax(ours.sequence_lengths))
    assert np.array_equal(ours.get(longest, 1, 2), theirs.get(longest, 1, 2))
    assert np.array_equal(ours.get(longest, offset=1), theirs.get(longest, offset=1))
    assert np.array_equal(ours.sequence_lengths, theirs.sequence_lengths)
    assert np.array_equal(ours.document_indices, theirs.document_indices)
    assert not ours[longest].flags.writeable
    with pytest.raises(IndexError):
        ours[50]
    with pytest.raises(NielsCacheError, match="asked for"):
        ours.get(longest, 0, 10_000)
    with pytest.raises(TypeError):
        ours["1"]  # type: ignore[index]


def test_the_index_may_lie_elsewhere_and_a_copy_in_another_process_checks_the_files(tmp_path: Path) -> None:
    write_ours(tmp_path / "data", DOCUMENTS)
    (tmp_path / "local").mkdir()
    os.rename(tmp_path / "data.idx", tmp_path / "local" / "data.idx")
    dataset = IndexedDataset(tmp_path / "data", idx_path=tmp_path / "local" / "data.idx")
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 1000
    copy = pickle.loads(pickled)
    assert [sequence.tolist() for sequence in copy] == DOCUMENTS
    assert copy.fingerprint == dataset.fingerprint
    write_ours(tmp_path / "other", [[1, 6, 7, 2], *DOCUMENTS[1:]])
    os.replace(tmp_path / "other.bin", tmp_path / "data.bin")
    with pytest.raises(NielsCacheError, match="changed since"):
        pickle.loads(pickled)


def test_the_fingerprint_follows_content_not_place(tmp_path: Path) -> None:
    first = IndexedDataset(write_ours(tmp_path / "a", DOCUMENTS)).fingerprint
    assert IndexedDataset(write_ours(tmp_path / "b", DOCUMENTS)).fingerprint == first
    others = [DOCUMENTS[:-1], [*DOCUMENTS[:-1], [3]], [DOCUMENTS[0] + DOCUMENTS[1], *DOCUMENTS[2:]]]
    found = {IndexedDataset(write_ours(tmp_path / f"c{number}", other)).fingerprint for number, other in enumerate(others)}
    assert len(found | {first}) == 4


def broken(index: bytearray, at: int, form: str, value: int) -> bytes:
    struct.pack_into(form, index, at, value)
    return bytes(index)


@pytest.mark.parametrize(
    ("breaks", "match"),
    [
        (lambda index: b"TNTIDX\x00\x00\x00" + index[9:], "magic is"),
        (lambda index: broken(index, 9, "<Q", 2), "version is 2"),
        (lambda index: broken(index, 17, "<B", 9), "dtype code is 9"),
        (lambda index: broken(index, 17, "<B", 7), r"dtype code is 7 \(float32\)"),
        (lambda index: broken(index, 17, "<B", 4), "last pointer"),
        (lambda index: broken(index, 18, "<Q", 5), "sequence count 5"),
        (lambda index: broken(index, 26, "<Q", 2), "document count 2"),
        (lambda index: bytes(index[:-1]), "cut short"),
        (lambda index: bytes(index[:20]), "its header alone"),
        (lambda index: b"", "its header alone"),
        (lambda index: broken(index, HEADER.size, "<i", -4), "sequence length 0 is -4"),
        (lambda index: broken(index, HEADER.size + 4, "<i", 3), "sequence pointer 2 is 12"),
        (lambda index: broken(index, HEADER.size + 4 * 4 + 8, "<q", 6), "sequence pointer 1 is 6"),
        (lambda index: broken(index, HEADER.size + 12 * 4, "<q", 1), "document indices .* 1 to 4"),
        (lambda index: broken(index, HEADER.size + 12 * 4 + 8, "<q", 3), "document index 2 is 2 after 3; write or copy"),
    ],
)
def test_every_field_that_is_wrong_is_named(tmp_path: Path, breaks: Any, match: str) -> None:
    write_ours(tmp_path / "data", DOCUMENTS)
    path = tmp_path / "data.idx"
    path.write_bytes(breaks(bytearray(path.read_bytes())))
    with pytest.raises(NielsCacheError, match=match):
        IndexedDataset(tmp_path / "data")


def test_a_bin_of_another_length_and_missing_files_are_named(tmp_path: Path) -> None:
    write_ours(tmp_path / "data", DOCUMENTS)
    content = (tmp_path / "data.bin").read_bytes()
    for other in (content[:-2], content + b"\0\0", b""):
        (tmp_path / "data.bin").write_bytes(other)
        with pytest.raises(NielsCacheError, match=r"data\.bin: has \d+ bytes"):
            IndexedDataset(tmp_path / "data")
    index = (tmp_path / "data.idx").read_bytes()
    (tmp_path / "data.idx").write_bytes(broken(bytearray(index), HEADER.size + 4 * 4 + 3 * 8, "<q", 25))
    (tmp_path / "data.bin").write_bytes(content + b"\0")
    with pytest.raises(NielsCacheError, match=r"data\.bin: has 27 bytes, .*uint16"):
        IndexedDataset(tmp_path / "data")
    os.unlink(tmp_path / "data.bin")
    with pytest.raises(NielsCacheError, match=r"data\.bin: no such"):
        IndexedDataset(tmp_path / "data")
    with pytest.raises(NielsCacheError, match=r"data\.idx\.idx: .*prefix"):
        IndexedDataset(tmp_path / "data.idx")


def test_an_empty_or_unmarked_split_is_refused(tmp_path: Path) -> None:
    split = write_split(tmp_path / "cache", DOCUMENTS, shard_tokens=100)
    os.unlink(tmp_path / "cache" / doc_ends_name("train"))
    with pytest.raises(NielsCacheError, match=r"train_doc_ends\.npy"):
        write_indexed(tmp_path / "out", split)
    (split / "shard_00000.bin").write_bytes(b"")
    np.save(tmp_path / "cache" / doc_ends_name("train"), np.empty(0, dtype=DOC_ENDS_DTYPE))
    with pytest.raises(NielsCacheError, match="empty"):
        write_indexed(tmp_path / "out", split)
