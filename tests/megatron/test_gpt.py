"""The GPT indices and samples: equal to megatron-core's own, array by array and tensor by tensor."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.megatron import IndexCache, IndexedDataset, MegatronGPTDataset, gpt_indices, split_ranges
from niels_cache_runtime.megatron.gpt_indices import build_gpt_indices, build_sample_index, plan_epochs
from tests.helpers import megatron_core, programs

ARRAYS = ("document_index", "sample_index", "shuffle_index")


def core_dataset(prefix: Path, folder: Path, documents: Any, num_samples: int | None, *, part: str = "train", **config: Any) -> Any:
    core = megatron_core.load()
    low = core.indexed.IndexedDataset(str(prefix))
    return core.gpt.GPTDataset(
        low,
        str(prefix),
        np.asarray(documents, dtype=np.int32),
        num_samples,
        core.Split[part],
        megatron_core.config(folder, blend=([str(prefix)], None), **config),
    )


def assert_same_indices(ours: Any, theirs: Any) -> None:
    for name in ARRAYS:
        mine, its = getattr(ours, name), getattr(theirs, name)
        assert mine.dtype == its.dtype, name
        assert np.array_equal(mine, its), name


def assert_same_samples(ours: MegatronGPTDataset, theirs: Any) -> None:
    # Else the padding of the first sample that it reads stays out of the loss in all that follow: it masks the mask that it keeps.
    theirs.masks_and_position_ids_are_cacheable = False
    assert len(ours) == len(theirs)
    assert len(ours)
    for index, sample in enumerate(ours[index] for index in range(len(ours))):
        expected = theirs[index]
        assert list(sample) == list(expected)
        for name, tensor in expected.items():
            assert sample[name].dtype == tensor.dtype
            assert torch.equal(sample[name], tensor), (index, name)


GRID = [
    (documents, mean, empty, num_samples, sequence_length)
    for documents, mean, empty in ((1, 40.0, 0.0), (2, 300.0, 0.0), (60, 9.0, 0.0), (60, 9.0, 0.4), (40, 1.0, 0.0), (200, 50.0, 0.1))
    for num_samples in (None, 0, 1, 37, 400)
    for sequence_length in (1, 7, 64)
]


@pytest.mark.parametrize("add_extra_token", [True, False], ids=["extra", "no extra"])
def test_indices_are_megatron_cores_over_a_grid(tmp_path: Path, add_extra_token: bool) -> None:
    """One document and many, empty ones, samples over many documents, one epoch and many, the last one apart and not, both parts."""
    compared, apart = 0, set()
    for number, (documents, mean, empty, num_samples, sequence_length) in enumerate(GRID):
        prefix = tmp_path / f"{documents}_{mean:.0f}_{empty > 0}"
        if not prefix.with_suffix(".idx").exists():
            megatron_core.write_documents(prefix, megatron_core.random_lengths(documents, seed=documents, mean=mean, empty=empty))
        indexed = IndexedDataset(prefix)
        seed, part = number % 5, ("train", "valid")[number % 2]
        if int(indexed.sequence_lengths.sum()) <= sequence_length:
            continue
        common = {"sequence_length": sequence_length, "add_extra_token": add_extra_token}
        ours = MegatronGPTDataset(indexed, num_samples=num_samples, seed=seed, **common)
        theirs = core_dataset(
            prefix,
            tmp_path / "indices",
            range(len(indexed)),
            num_samples,
            part=part,
            random_seed=seed,
            sequence_length=sequence_length,
            add_extra_token_to_sequence=add_extra_token,
        )
        assert_same_indices(ours, theirs)
        compared += 1
        tokens = int(indexed.sequence_lengths.sum())
        plan = plan_epochs(tokens, num_samples=num_samples, **common)
        apart.add((plan.epochs > 1, plan.shuffled_apart is not None))
    assert compared > 50
    assert apart == {(False, False), (True, False), (True, True)}


def core_sample_index(
    lengths: np.ndarray, documents: np.ndarray, *, sequence_length: int, epochs: int, extra: bool, drop: bool
) -> np.ndarray:
    tokens = int(lengths[documents].sum()) // epochs
    return megatron_core.load().helpers.build_sample_idx_int32(lengths, documents, sequence_length, epochs, tokens, drop, int(extra))


@given(
    lengths=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=40),
    sequence_length=st.integers(1, 50),
    epochs=st.integers(1, 3),
    extra=st.booleans(),
    drop=st.booleans(),
    sizes=st.sampled_from([(1 << 16, 1 << 20), (1, 1), (3, 4), (5, 1)]),
)
def test_the_sample_index_is_the_helpers_for_any_lengths_and_blocks(
    lengths: list[int], sequence_length: int, epochs: int, extra: bool, drop: bool, sizes: tuple[int, int]
) -> None:
    array = np.array(lengths, dtype=np.int32)
    documents = np.tile(np.arange(len(lengths), dtype=np.int32), epochs)
    tokens = sum(lengths)
    if tokens < 1:
        return
    plan = plan_epochs(tokens, num_samples=None, sequence_length=sequence_length, add_extra_token=extra, drop_last=drop)
    samples = (epochs * tokens - extra) // sequence_length if drop else -(-(epochs * tokens - extra) // sequence_length)
    assert epochs > 1 or plan.samples == samples
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpt_indices, "_DOCUMENTS_PER_BLOCK", sizes[0])
        patch.setattr(gpt_indices, "_SAMPLES_PER_BLOCK", sizes[1])
        ours = build_sample_index(array, documents, samples=samples, sequence_length=sequence_length, add_extra_token=extra)
    theirs = core_sample_index(array, documents, sequence_length=sequence_length, epochs=epochs, extra=extra, drop=drop)
    assert ours.dtype == theirs.dtype
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("extra", [True, False])
def test_documents_of_two_billion_tokens_are_counted_in_64_bits(extra: bool) -> None:
    lengths = np.array([2**31 - 1, 5, 0, 2**31 - 1, 2**30], dtype=np.int32)
    documents = np.array([3, 1, 0, 2, 4, 0, 1], dtype=np.int32)
    samples = (int(lengths[documents].sum(dtype=np.int64)) - extra) // 2_000_000
    ours = build_sample_index(lengths, documents, samples=samples, sequence_length=2_000_000, add_extra_token=extra)
    tokens = int(lengths[documents].sum(dtype=np.int64))
    theirs = megatron_core.load().helpers.build_sample_idx_int32(lengths, documents, 2_000_000, 1, tokens, True, int(extra))
    assert len(ours) > 3000
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("part", ["train", "valid", "test"])
@pytest.mark.parametrize("split", ["99,1,0", "1", "0.5, 0.3, 0.2", "1/1/1", "0,1,0"])
def test_split_strings_give_megatrons_ranges(tmp_path: Path, split: str, part: str) -> None:
    matrix = megatron_core.config(tmp_path, split=split).split_matrix
    place = ("train", "valid", "test").index(part)
    compared = 0
    for sequences in (1, 10, 99, 1000, 12_345, 2**31 - 1):
        ours = split_ranges(split, sequences)[place]
        if matrix[place] is None:
            assert not len(ours)
        else:
            begin, end = (round(bound * float(sequences)) for bound in matrix[place])
            assert (ours.start, ours.stop) == (begin, end)
        compared += 1
    assert compared == 6


@pytest.mark.parametrize("split", ["", "a", "0,0,0", "1,2,3,4", "1.2.3", "1e-3,1", "-1,2"])
def test_a_split_string_that_says_nothing_is_refused(split: str) -> None:
    with pytest.raises(NielsCacheError, match=r"such as \"99,1,0\""):
        split_ranges(split, 10)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("megatron")
    megatron_core.write_documents(folder / "data", megatron_core.random_lengths(120, seed=5, mean=11, empty=0.1), vocab_size=12)
    return folder / "data"


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_a_part_of_the_sequences_gives_megatron_cores_samples(prefix: Path, tmp_path: Path, part: str) -> None:
    indexed = IndexedDataset(prefix)
    sequences = split_ranges("60,30,10", len(indexed))[("train", "valid", "test").index(part)]
    ours = MegatronGPTDataset(indexed, sequences, num_samples=70, sequence_length=16, seed=3)
    theirs = core_dataset(prefix, tmp_path, sequences, 70, part=part, random_seed=3)
    assert_same_indices(ours, theirs)
    assert_same_samples(ours, theirs)


@pytest.mark.parametrize(
    ("mine", "its"),
    [
        ({"add_extra_token": False}, {"add_extra_token_to_sequence": False}),
        ({"eod_mask_loss": True, "eod_token": 0}, {"eod_mask_loss": True}),
        ({"reset_position_ids": True, "eod_token": 0}, {"reset_position_ids": True}),
        ({"pad_token": 7}, {"tokenizer": {"eod": 0, "pad": 7}}),
        ({"drop_last": False}, {"drop_last_partial_validation_sequence": False}),
        (
            {"drop_last": False, "pad_token": 11, "eod_mask_loss": True, "reset_position_ids": True, "eod_token": 0},
            {
                "drop_last_partial_validation_sequence": False,
                "tokenizer": {"eod": 0, "pad": 11},
                "eod_mask_loss": True,
                "reset_position_ids": True,
            },
        ),
        (
            {"drop_last": False, "add_extra_token": False},
            {"drop_last_partial_validation_sequence": False, "add_extra_token_to_sequence": False},
        ),
    ],
    ids=lambda settings: "+".join(settings),
)
def test_every_setting_gives_megatron_cores_samples(prefix: Path, tmp_path: Path, mine: dict[str, Any], its: dict[str, Any]) -> None:
    if "tokenizer" in its:
        its = {**its, "tokenizer": megatron_core.Tokenizer(**its["tokenizer"])}
    for num_samples in (None, 150):
        ours = MegatronGPTDataset(IndexedDataset(prefix), num_samples=num_samples, sequence_length=16, seed=4, **mine)
        theirs = core_dataset(prefix, tmp_path / str(num_samples), range(120), num_samples, part="valid", random_seed=4, **its)
        assert_same_indices(ours, theirs)
        assert_same_samples(ours, theirs)


def test_an_empty_document_at_the_very_end_of_the_order_takes_nothing_from_the_last_partial_sample(tmp_path: Path) -> None:
    """The helper's row says offset -1 there, and megatron-core's Python refuses it; read as it is, the sample is whole."""
    [document, *_] = megatron_core.write_documents(tmp_path / "data", [21, 0])
    orders = [
        MegatronGPTDataset(IndexedDataset(tmp_path / "data"), num_samples=None, sequence_length=16, seed=seed, drop_last=False)
        for seed in range(20)
    ]
    dataset = next(dataset for dataset in orders if dataset.document_index.tolist() == [0, 1])
    assert dataset.sample_index.tolist() == [[0, 0], [0, 16], [1, -1]]
    last = dataset[int(np.flatnonzero(dataset.shuffle_index == 1)[0])]
    assert last["labels"].tolist() == [*document[17:].tolist(), *[0] * 12]
    assert last["loss_mask"].tolist() == [1.0] * 4 + [0.0] * 12


def test_no_samples_asked_for_is_one_epoch_as_in_megatron_core(prefix: Path, tmp_path: Path) -> None:
    """Megatron-LM requests this with --eval-iters 0. The index is the same as for None."""
    indexed, cache = IndexedDataset(prefix), IndexCache(tmp_path / "index")
    for sequence_length, some in ((16, True), (10_000, False)):
        theirs = core_dataset(prefix, tmp_path / "core", range(120), 0, sequence_length=sequence_length)
        directories = set()
        for num_samples in (0, np.int64(0), None):
            ours = MegatronGPTDataset(indexed, num_samples=num_samples, sequence_length=sequence_length, seed=1, index_cache=cache)
            assert_same_indices(ours, theirs)
            assert (len(ours) > 0) is some
            directories.add(ours.index_directory)
            if some:
                assert_same_samples(ours, theirs)
            for dataset in (ours, pickle.loads(pickle.dumps(ours))):
                with pytest.raises(IndexError, match=f"there are {len(theirs)}"):
                    dataset[len(theirs)]
        with pytest.raises(IndexError):
            theirs[len(theirs)]
        assert len(directories) == 1


def test_batches_are_the_samples_in_this_and_in_other_processes(prefix: Path, tmp_path: Path) -> None:
    cached = MegatronGPTDataset(
        IndexedDataset(prefix), num_samples=80, sequence_length=16, seed=2, eod_token=0, index_cache=IndexCache(tmp_path / "index")
    )
    plain = MegatronGPTDataset(IndexedDataset(prefix), num_samples=80, sequence_length=16, seed=2)
    assert len(pickle.dumps(cached)) < 4000  # maps are opened again
    singles = [plain[index] for index in range(80)]
    for dataset in (plain, cached, pickle.loads(pickle.dumps(cached)), pickle.loads(pickle.dumps(plain))):
        batch = dataset.read(range(80))
        for name, rows in batch.items():
            assert torch.equal(rows, torch.stack([sample[name] for sample in singles]))
    loader = DataLoader(cached, batch_size=20, sampler=range(80), num_workers=1, multiprocessing_context="fork")
    batches = list(loader)
    assert len(batches) == 4
    tokens = torch.stack([sample["tokens"] for sample in singles])
    assert torch.equal(torch.cat([batch["tokens"] for batch in batches]), tokens)
    (tmp_path / "cached").write_bytes(pickle.dumps(cached))
    read = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).read(range(80))['tokens'].tolist())"
    assert programs.run("-c", read, tmp_path / "cached", cwd=Path(__file__).parents[2], check=True).stdout == f"{tokens.tolist()}\n"


def test_samples_that_are_not_there_and_bad_settings_are_refused(prefix: Path) -> None:
    indexed = IndexedDataset(prefix)
    dataset = MegatronGPTDataset(indexed, num_samples=None, sequence_length=16, seed=1)
    for index in (-1, len(dataset)):
        with pytest.raises(IndexError):
            dataset[index]
    with pytest.raises(TypeError):
        dataset[1.5]  # type: ignore[index]
    settings: list[tuple[dict[str, Any], str]] = [
        ({"sequence_length": 0}, "sequence_length=0"),
        ({"num_samples": -1}, "num_samples=-1: "),
        ({"seed": -1}, "seed=-1"),
        ({"indices": range(0)}, "0 tokens in all"),
        ({"indices": range(100, 121)}, "there are 120 sequences"),
        ({"indices": range(0, 100, 2)}, "must have step 1"),
        ({"eod_mask_loss": True}, "need eod_token"),
    ]
    for changed, match in settings:
        with pytest.raises(NielsCacheError, match=match):
            MegatronGPTDataset(indexed, **{"num_samples": None, "sequence_length": 16, "seed": 1, **changed})


def test_progress_is_told_up_to_the_end() -> None:
    told: list[tuple[str, int, int]] = []
    lengths = np.full(1000, 30, dtype=np.int32)
    indices = build_gpt_indices(
        lengths, range(1000), num_samples=None, sequence_length=8, seed=0, progress=lambda *state: told.append(state)
    )
    finished = {name: (done, total) for name, done, total in told}
    rows = len(indices["sample_index"])
    assert finished == {"document_index": (1000, 1000), "sample_index": (rows, rows), "shuffle_index": (rows - 1, rows - 1)}


def test_lengths_beyond_an_int32_and_documents_that_are_no_array_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    megatron_core.write_documents(tmp_path / "data", [20] * 30)
    indexed, cache = IndexedDataset(tmp_path / "data"), IndexCache(tmp_path / "index")
    for length in (50_000_000_000, 2**31 - 1):
        with pytest.raises(NielsCacheError, match=f"sequence_length={length}: .* 2147483646"):
            MegatronGPTDataset(indexed, num_samples=5, sequence_length=length, seed=1, index_cache=cache)
    wrong: list[Any] = [[0, 1, 2], np.array([0.0, 1.0]), np.array([[0, 1]]), np.array([True] * 30), 5]
    for indices in wrong:
        with pytest.raises(NielsCacheError, match=r"indices=.*a range, or"):
            MegatronGPTDataset(indexed, indices, num_samples=5, sequence_length=16, seed=1, index_cache=cache)
    assert not (tmp_path / "index").exists()
