"""DatasetLoader: which chunks each rank reads in which order, how it resumes, and what it takes for a token file."""

import json
import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.samplers.sequential import DatasetLoader
from tests.helpers.hand_made import (
    rewrite_meta,
    write_cache,
    write_meta_of,
    write_pretrain,
    write_sft,
    write_shards,
    write_stream,
)

Batch = tuple[list[list[int]], list[list[int]]]
DTYPES = ["shards", "<u2", "uint8", "int16", ">u2", "<i4", ">i8", "uint32", "uint64"]


def write_files(folder: Path, lengths: Sequence[int], dtype: str) -> list[list[int]]:
    """Write shards, or `.npy` files of a dtype. Return each file's tokens, all different if they fit."""
    folder.mkdir(parents=True, exist_ok=True)
    ends = np.cumsum(lengths).tolist()
    files = [
        [token % 127 if "8" in dtype else token for token in range(end - length, end)] for end, length in zip(ends, lengths, strict=True)
    ]
    for index, tokens in enumerate(files):
        if dtype == "shards":
            np.array(tokens, dtype="<u2").tofile(folder / f"shard_{index:05d}.bin")
        else:
            np.save(folder / f"{index:05d}.npy", np.array(tokens, dtype=dtype))
    return files


def all_chunks(files: list[list[int]], batch: int, seq_len: int) -> list[Batch]:
    """The definition, by hand: cut each file into chunks as long as a chunk and one more token are there."""
    chunks = []
    for tokens in files:
        while len(tokens) > batch * seq_len:
            size = batch * seq_len
            rows = [(tokens[i : i + seq_len], tokens[i + 1 : i + 1 + seq_len]) for i in range(0, size, seq_len)]
            chunks.append(([x for x, _ in rows], [y for _, y in rows]))
            tokens = tokens[size:]
    return chunks


def take(loader: DatasetLoader, count: int) -> list[Batch]:
    return [(x.tolist(), y.tolist()) for x, y in (loader.get_batch() for _ in range(count))]


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    batch=st.integers(1, 3),
    seq_len=st.integers(1, 4),
    num_processes=st.integers(1, 4),
    dtype=st.sampled_from(DTYPES),
)
def test_ranks_together_read_the_chunks_of_every_epoch_in_order(
    lengths: list[int], batch: int, seq_len: int, num_processes: int, dtype: str
) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        chunks = all_chunks(write_files(Path(temporary), lengths, dtype), batch, seq_len)
        if len(chunks) < num_processes:
            with pytest.raises(NielsCacheError, match="num_processes"):
                DatasetLoader(batch, seq_len, 0, num_processes, temporary, "cpu")
            return
        steps = len(chunks) // num_processes
        ranks = [DatasetLoader(batch, seq_len, rank, num_processes, temporary, "cpu") for rank in range(num_processes)]
        assert {(loader.chunks, loader.steps_per_epoch) for loader in ranks} == {(len(chunks), steps)}
        for epoch in range(3):
            assert {loader.epoch for loader in ranks} == {epoch}
            read = [take(loader, steps) for loader in ranks]
            in_turns = [batches[step] for step in range(steps) for batches in read]
            assert in_turns == chunks[: steps * num_processes]


@given(
    lengths=st.lists(st.integers(10, 40), min_size=1, max_size=4),
    num_processes=st.integers(1, 3),
    first=st.integers(0, 25),
    second=st.integers(0, 25),
)
def test_a_run_resumed_twice_reads_what_an_uninterrupted_one_reads(lengths: list[int], num_processes: int, first: int, second: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        write_files(Path(temporary), lengths, "<i4")

        def opened() -> DatasetLoader:
            return DatasetLoader(1, 3, num_processes - 1, num_processes, temporary, "cpu")

        whole = take(opened(), first + second + 20)
        loader, read = opened(), []
        for count in (first, second):
            read += take(loader, count)
            stored = json.dumps(loader.state_dict())
            loader = opened()
            loader.load_state_dict(json.loads(stored))
            assert loader.state_dict() == json.loads(stored)
        assert read + take(loader, 20) == whole


@pytest.mark.parametrize(("before", "after", "steps"), [(4, 1, 5), (3, 2, 2), (4, 8, 2)])
def test_another_number_of_ranks_goes_on_in_the_same_list_of_chunks(tmp_path: Path, before: int, after: int, steps: int) -> None:
    chunks = all_chunks(write_files(tmp_path, [40, 33, 61], "<u2"), 2, 2)
    assert len(chunks) == 32
    old = DatasetLoader(2, 2, before - 1, before, str(tmp_path), "cpu")
    take(old, steps)
    ranks = [DatasetLoader(2, 2, rank, after, str(tmp_path), "cpu") for rank in range(after)]
    for loader in ranks:
        loader.load_state_dict(old.state_dict())
    left = chunks[before * steps :]
    read = [take(loader, len(left) // after) for loader in ranks]
    assert [batch for step in zip(*read, strict=True) for batch in step] == left[: len(left) // after * after]
    assert {loader.epoch for loader in ranks} == {1}


def test_a_position_inside_a_group_of_the_new_ranks_is_refused_and_an_epochs_end_is_not(tmp_path: Path) -> None:
    write_files(tmp_path, [29], "<u2")
    three = DatasetLoader(1, 4, 0, 3, str(tmp_path), "cpu")
    two = DatasetLoader(1, 4, 0, 2, str(tmp_path), "cpu")
    assert three.chunks == 7
    take(three, 1)
    before = two.state_dict()
    with pytest.raises(NielsCacheError, match=r"chunk 3, .*num_processes=2"):
        two.load_state_dict(three.state_dict())
    assert two.state_dict() == before
    take(three, 1)  # chunk 6 is left over
    two.load_state_dict(three.state_dict())
    assert (two.epoch, two.state_dict()["next_chunk"]) == (1, 0)
    five = DatasetLoader(1, 4, 0, 5, str(tmp_path), "cpu")
    one = DatasetLoader(1, 4, 0, 1, str(tmp_path), "cpu")
    take(one, 5)
    five.load_state_dict(one.state_dict())  # two chunks are left, no group of five
    assert (five.epoch, five.state_dict()["next_chunk"]) == (1, 0)


def test_shards_are_read_by_number_and_npy_files_by_name(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", [[1, 1], [2, 2]])
    (tmp_path / "arrays").mkdir()
    for name, token in (("z", 13), ("a", 12)):
        np.save(tmp_path / "arrays" / f"{name}.npy", np.array([token, token]))
    for folder, tokens, names in (
        ("shards", [1, 2, 1], ["shard_00000.bin", "shard_00001.bin"]),
        ("arrays", [12, 13, 12], ["a.npy", "z.npy"]),
    ):
        loader = DatasetLoader(1, 1, 0, 1, str(tmp_path / folder), "cpu")
        assert [x[0][0] for x, _ in take(loader, 3)] == tokens
        assert list(loader.files) == names
    np.save(tmp_path / "shards" / "b.npy", np.array([1, 1]))
    with pytest.raises(NielsCacheError, match=r"b\.npy beside shards"):
        DatasetLoader(1, 1, 0, 1, str(tmp_path / "shards"), "cpu")
    with pytest.raises(NielsCacheError, match="verify='sha256'"):
        DatasetLoader(1, 1, 0, 1, str(tmp_path / "arrays"), "cpu", verify="sha256")


def test_what_is_no_token_file_is_ignored(tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.arange(9))
    for name, array in {
        "scores": np.ones(9),
        "pairs": np.ones((3, 3), dtype=np.int64),
        "one": np.array(1),
        "flags": np.ones(9, dtype=bool),
        "objects": np.array([{}], dtype=object),
        "fields": np.zeros(3, dtype=[("a", "<i4"), ("é", "<i4")]),
        "train_doc_ends": np.arange(9),
        "val_idx": np.arange(9),
    }.items():
        np.save(tmp_path / f"{name}.npy", array, allow_pickle=True)
    for name in ("README.md", "._tokens.npy", "tokens.npy.tmp", "shard_7.bin", "meta.json"):
        (tmp_path / name).write_text("nothing to read")
    (tmp_path / "folder.npy").mkdir()
    assert DatasetLoader(1, 2, 0, 1, str(tmp_path), "cpu").files == {"tokens.npy": 9}


def test_a_meta_json_beside_other_projects_files_is_theirs(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    np.save(tmp_path / "tokens" / "a.npy", np.arange(9))
    (tmp_path / "meta.json").write_text('{"theirs": true}')
    assert DatasetLoader(1, 2, 0, 1, str(tmp_path / "tokens"), "cpu").meta is None


def test_negative_ids_stay_as_they_are_and_ids_beyond_int64_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([-100, 5, 6], dtype=np.int16))
    assert take(DatasetLoader(1, 2, 0, 1, str(tmp_path), "cpu"), 1) == [([[-100, 5]], [[5, 6]])]
    np.save(tmp_path / "a.npy", np.array([1, 2**64 - 1, 6], dtype=np.uint64))
    with pytest.raises(NielsCacheError, match=r"a.npy: holds 18446744073709551615 after token 0"):
        DatasetLoader(1, 2, 0, 1, str(tmp_path), "cpu").get_batch()


def test_a_folder_without_tokens_is_refused_with_what_is_there(tmp_path: Path) -> None:
    def opened(folder: Path) -> DatasetLoader:
        return DatasetLoader(1, 2, 0, 1, str(folder), "cpu")

    with pytest.raises(NielsCacheError, match="no such folder"):
        opened(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    with pytest.raises(NielsCacheError, match="no shards here"):
        opened(tmp_path / "bare")
    write_stream(tmp_path / "cache" / "train", [1, 2, 3])
    (tmp_path / "cache" / "val").mkdir()
    write_meta_of(tmp_path / "cache")
    with pytest.raises(NielsCacheError, match=r"val: .*empty \(0 tokens\)"):
        opened(tmp_path / "cache" / "val")
    np.save(tmp_path / "bare" / "scores.npy", np.ones((2, 3), dtype=np.float32))
    (tmp_path / "bare" / "README.md").write_text("")
    with pytest.raises(NielsCacheError, match=r"no token files.*scores.npy \(float32 of shape \(2, 3\)\)$"):
        opened(tmp_path / "bare")
    with pytest.raises(NielsCacheError, match=r"a split: .*train"):
        opened(write_pretrain(tmp_path / "notes"))
    with pytest.raises(NielsCacheError, match="no shards here"):
        opened(write_sft(tmp_path / "chats"))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(100))
    whole = (tmp_path / "a.npy").read_bytes()
    for content in (whole[:-1], whole[:50], b"", b"text"):
        (tmp_path / "a.npy").write_bytes(content)
        with pytest.raises(NielsCacheError, match=r"a\.npy: .*readable"):
            DatasetLoader(1, 2, 0, 1, str(tmp_path), "cpu")
    (tmp_path / "a.npy").unlink()
    (tmp_path / "shard_00000.bin").write_bytes(b"123")
    with pytest.raises(NielsCacheError, match="3 bytes"):
        DatasetLoader(1, 2, 0, 1, str(tmp_path), "cpu")
    (tmp_path / "shard_00000.bin").rename(tmp_path / "shard_00001.bin")
    with pytest.raises(NielsCacheError, match=r"shard_00000.bin is missing"):
        DatasetLoader(1, 2, 0, 1, str(tmp_path), "cpu")


def test_an_npy_file_that_changes_before_it_is_reached_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(9))
    loader = DatasetLoader(1, 2, 0, 1, str(tmp_path), "cpu")
    np.save(tmp_path / "b.npy", np.arange(20))
    (tmp_path / "b.npy").replace(tmp_path / "a.npy")
    with pytest.raises(NielsCacheError, match=r"a.npy: changed since"):
        loader.get_batch()


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(9))
    good = {"batch": 1, "seq_len": 2, "process_rank": 0, "num_processes": 2, "dataset_dir": str(tmp_path), "device": "cpu"}
    assert DatasetLoader(**good).steps_per_epoch == 2  # type: ignore[arg-type]
    for name, values in {
        "batch": [0, -1, True, 1.5, "1"],
        "seq_len": [0, None],
        "num_processes": [0],
        "process_rank": [-1, 2, True, None],
        "device": ["toaster"],
    }.items():
        for value in values:
            with pytest.raises(NielsCacheError, match=f"{name}="):
                DatasetLoader(**{**good, name: value})  # type: ignore[arg-type]
    with pytest.raises(NielsCacheError, match=r"at most 9 tokens .* 0 chunks .* = 9"):
        DatasetLoader(1, 9, 0, 1, str(tmp_path), "cpu")
    np.save(tmp_path / "a.npy", np.arange(0))
    with pytest.raises(NielsCacheError, match="at most 0 tokens hold 0 chunks"):
        DatasetLoader(1, 1, 0, 1, str(tmp_path), "cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "DatasetLoader, version 1"),
        ({"batch": 2}, r"saved with batch=2, .* batch=1"),
        ({"seq_len": None}, "saved with seq_len=None"),
        ({"files": {"a.npy": 9, "b.npy": 9}}, r"b\.npy: .*no tokens, .* 9 \(1 files"),
        ({"files": {"a.npy": 8}}, r"a\.npy: has 9 tokens, .* 8"),
        ({"files": None}, r"a\.npy: has 9 tokens, .* none"),
        ({"content_sha256": "0" * 64}, "other tokens"),
        ({"epoch": -1}, "epoch=-1"),
        ({"epoch": 1.0}, "epoch=1.0"),
        ({"next_chunk": 5}, "next_chunk=5"),
        ({"next_chunk": "0"}, "next_chunk='0'"),
    ],
)
def test_a_state_of_something_else_is_refused_and_changes_nothing(tmp_path: Path, change: dict[str, object], message: str) -> None:
    np.save(tmp_path / "a.npy", np.arange(9))
    loader = DatasetLoader(1, 2, 0, 1, str(tmp_path), "cpu")
    take(loader, 6)
    state = loader.state_dict()
    assert (state["epoch"], state["next_chunk"]) == (1, 2)
    with pytest.raises(NielsCacheError, match=message):
        loader.load_state_dict({**state, **change})
    assert loader.state_dict() == state
    with pytest.raises(NielsCacheError, match="one of DatasetLoader"):
        loader.load_state_dict(3)  # type: ignore[arg-type]


def test_a_pickled_copy_goes_on_where_the_first_is_and_refuses_other_files(tmp_path: Path) -> None:
    write_files(tmp_path, [30, 30, 30], "<u2")
    loader = DatasetLoader(1, 4, 1, 2, str(tmp_path), "cpu")
    take(loader, 2)
    stored = pickle.dumps(loader)
    assert len(stored) < 5_000
    copy = pickle.loads(stored)
    assert take(copy, 20) == take(loader, 20)
    np.save(tmp_path / "00000.npy", np.arange(31))
    with pytest.raises(NielsCacheError, match=r"31 tokens, .* 30"):
        pickle.loads(stored)


def test_a_split_of_ours_is_checked_against_its_meta_json(tmp_path: Path) -> None:
    folder = write_cache(tmp_path / "cache") / "pretrain" / "notes"
    loader = DatasetLoader(1, 3, 0, 1, str(folder / "train"), "cpu")
    assert loader.meta is not None
    assert loader.files == {"shard_00000.bin": 8, "shard_00001.bin": 8, "shard_00002.bin": 4}
    stored, state = pickle.dumps(loader), loader.state_dict()
    rewrite_meta(folder, seed=43)
    with pytest.raises(NielsCacheError, match="rebuilt since"):
        pickle.loads(stored)
    DatasetLoader(1, 3, 0, 1, str(folder / "train"), "cpu").load_state_dict(state)  # the tokens are the same
    files = {**loader.meta["files"], "train/shard_00000.bin": {"bytes": 16, "sha256": "0" * 64}}
    rewrite_meta(folder, files=files)
    with pytest.raises(NielsCacheError, match="other tokens"):
        DatasetLoader(1, 3, 0, 1, str(folder / "train"), "cpu").load_state_dict(state)
    np.save(folder / "train" / "stray.npy", np.arange(9))
    with pytest.raises(NielsCacheError, match=r"stray\.npy beside shards"):
        DatasetLoader(1, 3, 0, 1, str(folder / "train"), "cpu")
    with pytest.raises(NielsCacheError, match="never built"):
        DatasetLoader(1, 3, 0, 1, str(folder.parent / "off" / "train"), "cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", DTYPES)
def test_cuda_gets_the_same_batches_as_the_cpu(tmp_path: Path, dtype: str) -> None:
    write_files(tmp_path, [30, 30], dtype)
    here, there = (DatasetLoader(2, 3, 0, 1, str(tmp_path), device) for device in ("cpu", "cuda"))
    for _ in range(10):
        for ours, expected in zip(there.get_batch(), here.get_batch(), strict=True):
            assert ours.is_contiguous()
            assert torch.equal(ours.cpu(), expected)
