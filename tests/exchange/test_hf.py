"""The `datasets` view of a cache: its rows are the documents, windows and examples, and lie on the mapped files."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset

from niels_cache_assets import to_hf_dataset
from niels_cache_assets.exchange import hf
from niels_cache_runtime import NielsCacheError, SFTExampleDataset, open_cache
from tests.helpers.hand_made import ASST, EOT, SYS, USR, write_cache, write_pretrain, write_sft, write_stream

STREAM = [10, 11, 12, 13, EOT, 14, EOT, *[20] * 8, EOT, 30, 31, 32, EOT]
DOCUMENTS = [[10, 11, 12, 13, EOT], [14, EOT], [*[20] * 8, EOT], [30, 31, 32, EOT]]
IGNORED = -100


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_cache(tmp_path / "cache")


def addresses(dataset: Dataset) -> list[int]:
    """Where the tokens of every chunk begin in memory."""
    chunks = dataset.data.table.column("input_ids").chunks
    return [chunk.values.buffers()[1].address for chunk in chunks]


@pytest.mark.parametrize("shard_tokens", [1, 7, 4096], ids=lambda size: f"shards of {size}")
def test_rows_are_the_documents_or_the_windows_whatever_the_shards(root: Path, shard_tokens: int) -> None:
    write_pretrain(root / "pretrain" / "cut", shard_tokens=shard_tokens)
    documents = to_hf_dataset("cut", cache_dir=root)
    assert documents.column_names == ["input_ids"]
    assert [row["input_ids"] for row in documents] == DOCUMENTS
    for T in (1, 3, 6, 20):
        windows = to_hf_dataset("cut", T=T, cache_dir=root)
        assert len(windows) == 20 // T
        assert [row["input_ids"] for row in windows] == [STREAM[start : start + T] for start in range(0, 20 - T + 1, T)]
        assert windows["labels"][:] == windows["input_ids"][:]


def test_tokens_are_not_copied(tmp_path: Path) -> None:
    tokens = np.arange(1, 10_001, dtype=np.uint16)
    write_stream(tmp_path / "pretrain" / "long", tokens, shard_tokens=2048, doc_ends=[3_000, 10_000])
    mapped = open_cache(tmp_path).pretrain["long"].train.stream.pieces
    for T in (None, 100):
        dataset = to_hf_dataset("long", T=T, cache_dir=tmp_path)
        assert len(addresses(dataset)) == len(mapped) == 1
        assert np.array_equal(np.concatenate([dataset[i]["input_ids"] for i in range(len(dataset))]), tokens)


def test_labels_of_examples_are_the_targets_of_the_runtime(root: Path) -> None:
    dataset = to_hf_dataset("chats", cache_dir=root)
    assert [row["input_ids"] for row in dataset] == [[USR, 10, 11, EOT, ASST, 12, EOT], [SYS, 20, EOT, USR, 21, EOT, ASST, 22, 23, EOT]]
    assert [row["labels"] for row in dataset] == [[IGNORED] * 5 + [12, EOT], [IGNORED] * 7 + [22, 23, EOT]]
    assert to_hf_dataset("chats", T=8, cache_dir=root)[1] == {
        "input_ids": [SYS, 20, EOT, USR, 21, EOT, ASST, 22],
        "labels": [IGNORED] * 7 + [22],
    }
    folder = root / "sft" / "chats"
    runtime = SFTExampleDataset(str(folder / "train_tokens.bin"), str(folder / "train_idx.npy"), T=16, device="cpu", eot_id=EOT)
    _, _, y_masked = runtime.get_batch(B=8, generator=torch.Generator().manual_seed(0))
    expected = {tuple(row["labels"][1:]) for row in dataset}
    found = {tuple(row[: len(row) - padding].tolist()) for row in y_masked for padding in (16 - 6, 16 - 9)} & expected
    assert found == expected


def test_a_pickle_holds_no_tokens_and_refuses_another_build(tmp_path: Path) -> None:
    stream = np.arange(50_000, dtype=np.uint16) % 50
    write_stream(tmp_path / "pretrain" / "long", stream, doc_ends=[25_000, 50_000])
    dataset = to_hf_dataset("long", cache_dir=tmp_path)
    pickled = pickle.dumps(dataset)
    assert len(pickled) < stream.nbytes // 4
    again = pickle.loads(pickled)
    assert again[1] == dataset[1]
    assert again._fingerprint == dataset._fingerprint
    write_stream(tmp_path / "pretrain" / "long", stream[::-1].copy())
    with pytest.raises(NielsCacheError, match="rebuilt since"):
        pickle.loads(pickled)


def test_the_fingerprint_is_that_of_the_content(root: Path, tmp_path: Path) -> None:
    copy = write_pretrain(tmp_path / "other" / "pretrain" / "notes")
    first, second = to_hf_dataset("notes", cache_dir=root), to_hf_dataset("notes", cache_dir=copy.parent.parent)
    assert first._fingerprint == second._fingerprint
    others = [to_hf_dataset("notes", split="val", cache_dir=root), to_hf_dataset("notes", T=2, cache_dir=root)]
    assert len({first._fingerprint, *(other._fingerprint for other in others)}) == 3


def test_labels_survive_what_datasets_makes_of_rows(root: Path) -> None:
    mapped = to_hf_dataset("chats", cache_dir=root).map(lambda row: {"targets": sum(label != IGNORED for label in row["labels"])})
    assert [row["targets"] for row in mapped] == [2, 3]
    picked = pickle.loads(pickle.dumps(to_hf_dataset("chats", cache_dir=root))).select([1])
    assert picked[0]["labels"][-3:] == [22, 23, EOT]


def test_hashes_of_datasets_and_pickles_name_everything_as_1_0_0_did(root: Path) -> None:
    dataset = to_hf_dataset("chats", cache_dir=root)
    transform = type(dataset.format["format_kwargs"]["transform"])
    assert {each.__module__ for each in (transform, hf._WithLabels, hf._WithSpans, hf._WithPairs)} == {hf.__name__}
    assert transform is hf._WithLabels
    reopened, _ = dataset.data.__reduce__()
    assert hf._open_table is reopened
    assert pickle.loads(pickle.dumps(dataset))[0] == dataset[0]


def test_empty_splits_have_no_rows(root: Path) -> None:
    assert len(to_hf_dataset("chats", split="val", cache_dir=root)) == 0


def test_mistakes_are_one_line_with_what_was_meant(root: Path) -> None:
    with pytest.raises(NielsCacheError, match="did you mean 'notes'"):
        to_hf_dataset("note", cache_dir=root)
    with pytest.raises(NielsCacheError, match="did you mean 'chats'"):
        to_hf_dataset("sft/chat", cache_dir=root)
    with pytest.raises(NielsCacheError, match="no split 'trian'"):
        to_hf_dataset("notes", split="trian", cache_dir=root)
    with pytest.raises(NielsCacheError, match="T=21 needs 21 tokens"):
        to_hf_dataset("notes", T=21, cache_dir=root)
    with pytest.raises(NielsCacheError, match="T"):
        to_hf_dataset("notes", T=0, cache_dir=root)
    write_sft(root / "sft" / "notes")
    with pytest.raises(NielsCacheError, match="write pretrain/notes or sft/notes"):
        to_hf_dataset("notes", cache_dir=root)
    assert len(to_hf_dataset("sft/notes", cache_dir=root)) == 2


def test_without_a_folder_it_is_the_configured_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIELS_CACHE_ROOT", str(root))
    assert len(to_hf_dataset("notes")) == 4
