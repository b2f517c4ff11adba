"""Blends: the helper's two arrays for any weights and sizes, megatron-core's samples, and data sets beyond what an int16 counts."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.megatron import (
    IndexCache,
    IndexedDataset,
    MegatronBlendedDataset,
    MegatronGPTDataset,
    blend_indices,
    open_blend,
    prebuild_blend,
)
from niels_cache_runtime.megatron.blend_indices import build_blending_indices, build_exhaustive_blending_indices, normalize_weights
from tests.helpers import megatron_core


def helper_blend(weights: list[float], size: int) -> tuple[np.ndarray, np.ndarray]:
    datasets, samples = np.zeros(size, dtype=np.int16), np.zeros(size, dtype=np.int64)
    megatron_core.load().helpers.build_blending_indices(datasets, samples, weights, len(weights), size, False)
    return datasets, samples


def helper_exhaustive(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    datasets, samples = np.zeros(sum(counts), dtype=np.int16), np.zeros(sum(counts), dtype=np.int64)
    megatron_core.load().helpers.build_exhaustive_blending_indices(datasets, samples, counts, len(counts))
    return datasets, samples


def assert_same(ours: tuple[np.ndarray, np.ndarray], theirs: tuple[np.ndarray, np.ndarray], what: Any) -> None:
    for mine, its in zip(ours, theirs, strict=True):
        assert mine.dtype == its.dtype
        assert np.array_equal(mine, its), what


@pytest.fixture(params=["numpy", "compiled"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Build blends of any size by numpy, or by the compiled loop."""
    compiled = request.param == "compiled"
    if compiled and blend_indices.compiled_blend() is None:
        pytest.skip("numba is not installed")
    monkeypatch.setattr(blend_indices, "_MANY", 0 if compiled else 1 << 60)
    return request.param


def test_random_blends_are_the_helpers(by: str) -> None:
    """Weights of many kinds: uniform, a few large ones, equal ones, round numbers that tie at every turn."""
    generator = torch.Generator().manual_seed(0)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    compared = 0
    blends = 100 if by == "numpy" else 400
    for number in range(blends):
        count, size = draw(1, 9 if number % 10 else 40), draw(1, 500)
        given = torch.rand(count, generator=generator, dtype=torch.float64)
        kinds = [given, given**6 + 1e-6, torch.ones(count), torch.randint(1, 10, (count,), generator=generator)]
        weights = normalize_weights(kinds[number % len(kinds)].tolist())
        assert_same(build_blending_indices(weights, size), helper_blend(weights, size), (weights, size))
        compared += 1
    assert compared == blends


def test_random_counts_are_the_helpers(by: str) -> None:
    generator = torch.Generator().manual_seed(1)
    for number in range(150):
        datasets, most = int(torch.randint(1, 12, (1,), generator=generator)), (3, 60, 150)[number % 3]
        counts = torch.randint(1, most, (datasets,), generator=generator).tolist()
        assert_same(build_exhaustive_blending_indices(counts), helper_exhaustive(counts), counts)


@pytest.mark.parametrize(
    "weights", [[0.3, 0.7], [1, 1, 1], [5, 3, 2], [0.9, 0.09, 0.009, 0.001], list(range(1, 60)), list(range(1, 101))], ids=len
)
def test_long_blends_in_several_blocks_are_the_helpers(weights: list[float], by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blend_indices, "_BLOCK", 9_999)
    shares, size = normalize_weights(weights), 300_000 if by == "compiled" else 50_000
    assert_same(build_blending_indices(shares, size), helper_blend(shares, size), weights)


def test_more_data_sets_than_an_int16_counts() -> None:
    weights = normalize_weights([1.0 + index % 7 for index in range(40_000)])
    datasets, samples = build_blending_indices(weights, 300)
    assert datasets.dtype == np.int32
    counts, known = np.zeros(len(weights)), np.array(weights)
    for index in range(300):  # the rule, plainly
        chosen = int(np.argmax(known * max(float(index), 1.0) - counts))
        assert (datasets[index], samples[index]) == (chosen, counts[chosen])
        counts[chosen] += 1
    assert build_blending_indices(normalize_weights([1.0] * 32_766), 1)[0].dtype == np.int16
    assert build_blending_indices(normalize_weights([1.0] * 32_767), 1)[0].dtype == np.int32


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("blend")
    names = []
    for number, (documents, mean) in enumerate(((80, 15.0), (30, 40.0), (120, 5.0))):
        names.append(folder / f"data{number}")
        megatron_core.write_documents(names[-1], megatron_core.random_lengths(documents, seed=number, mean=mean), seed=number)
    return names


@pytest.mark.parametrize("num_samples", [300, 7, 0, None])
@pytest.mark.parametrize("weights", [[0.5, 0.3, 0.2], [3.0, 1.0, 9.0], None], ids=str)
def test_a_blend_of_a_split_is_what_megatrons_builder_builds(
    prefixes: list[Path], tmp_path: Path, weights: list[float] | None, num_samples: int | None
) -> None:
    if weights is not None and num_samples is None:
        with pytest.raises(NielsCacheError, match="and num_samples"):
            open_blend(prefixes, weights, num_samples=None, sequence_length=16, seed=1)
        return
    core = megatron_core.load()
    config = megatron_core.config(tmp_path / "indices", blend=([str(prefix) for prefix in prefixes], weights), split="80,15,5")
    sizes = [num_samples] * 3
    built = core.builder.BlendedMegatronDatasetBuilder(core.gpt.GPTDataset, sizes, lambda: True, without_cache(config)).build()
    for part, theirs in zip(("train", "valid", "test"), built, strict=True):
        ours = open_blend(prefixes, weights, num_samples=num_samples, sequence_length=16, seed=1, split="80,15,5", part=part)
        assert len(ours) == len(theirs)
        assert (len(ours) > 0) is (num_samples != 0)
        for index, sample in enumerate(ours[index] for index in range(len(ours))):
            expected = theirs[index]
            assert list(sample) == list(expected)
            assert sample["dataset_id"] == expected["dataset_id"]
            assert torch.equal(sample["tokens"], expected["tokens"])
            assert torch.equal(sample["labels"], expected["labels"])


def without_cache(config: Any) -> Any:
    config.path_to_cache = None  # else its BlendedDataset asks torch.distributed for a rank
    return config


def test_one_prefix_without_weights_is_no_blend(prefixes: list[Path]) -> None:
    alone = open_blend(prefixes[:1], num_samples=20, sequence_length=16, seed=1)
    assert isinstance(alone, MegatronGPTDataset)
    assert isinstance(open_blend(prefixes[:1], [1.0], num_samples=20, sequence_length=16, seed=1), MegatronBlendedDataset)


def test_batches_come_in_order_and_copies_open_the_index_again(prefixes: list[Path], tmp_path: Path) -> None:
    cache = IndexCache(tmp_path / "index")
    told: list[tuple[str, int, int]] = []
    settings: dict[str, Any] = {"num_samples": 200, "sequence_length": 16, "seed": 1}
    blend = open_blend(prefixes, [0.6, 0.3, 0.1], index_cache=cache, progress=lambda *state: told.append(state), **settings)
    assert {name for name, _, _ in told} == {"document_index", "sample_index", "shuffle_index", "dataset_index"}
    told.clear()
    directories = prebuild_blend(prefixes, [0.6, 0.3, 0.1], index_cache=cache, **settings)
    assert len(set(directories)) == 4
    assert sorted(directories) == sorted(path for path in (tmp_path / "index").iterdir() if path.is_dir())
    again = open_blend(prefixes, [0.6, 0.3, 0.1], index_cache=cache, progress=lambda *state: told.append(state), **settings)
    plain = open_blend(prefixes, [0.6, 0.3, 0.1], **settings)
    assert told == []
    order = torch.randperm(len(blend), generator=torch.Generator().manual_seed(0)).tolist()
    for dataset in (blend, again, pickle.loads(pickle.dumps(blend)), pickle.loads(pickle.dumps(plain))):
        batch = dataset.__getitems__(order)
        assert [int(sample["dataset_id"]) for sample in batch] == plain.dataset_index[order].tolist()
        assert all(torch.equal(sample["tokens"], plain[index]["tokens"]) for sample, index in zip(batch, order, strict=True))


def test_a_member_without_a_whole_sample_is_named(prefixes: list[Path], tmp_path: Path) -> None:
    megatron_core.write_documents(tmp_path / "short", [3, 4])
    for num_samples in (None, 10):
        with pytest.raises(NielsCacheError, match=r"short: 7 tokens .*sequence_length=16"):
            open_blend([prefixes[0], tmp_path / "short"], num_samples=num_samples, sequence_length=16, seed=1)


def test_bad_weights_and_blends_that_take_too_much_are_refused(prefixes: list[Path]) -> None:
    dataset = MegatronGPTDataset(IndexedDataset(prefixes[0]), num_samples=10, sequence_length=16, seed=1)
    cases: list[tuple[list[Any], list[float], int | None, str]] = [
        ([dataset], [1.0, 2.0], 5, "give one weight for each"),
        ([], [], 5, "give one weight for each"),
        ([dataset, dataset], [1.0, 0.0], 5, "above 0"),
        ([dataset, dataset], [1.0, float("nan")], 5, "above 0"),
        ([dataset, dataset], [1.5, 2.0], None, "whole numbers"),
        ([dataset, dataset], [0, 2], None, "whole number of at least 1"),
        ([dataset], [1.0], -1, "size=-1: "),
        ([dataset], [1.0], 5000, "5000 samples of data set 0, "),
    ]
    for datasets, weights, size, match in cases:
        with pytest.raises(NielsCacheError, match=match):
            MegatronBlendedDataset(datasets, weights, size)
    for wrong, match in (
        ([1e308, 1e308], "add up to more than a 64-bit float"),
        ([1e-300, 1e300], "weight 0 is 1e-300: too small"),
        ([1.0, 0], "weight 1 is 0: each must be a number above 0"),
        ([1.0, float("nan")], "weight 1 is nan"),
        ([float("inf"), 1.0], "weight 0 is inf"),
    ):
        with pytest.raises(NielsCacheError, match=match):
            open_blend(prefixes[:2], wrong, num_samples=5, sequence_length=16, seed=1)
        with pytest.raises(NielsCacheError, match=match):
            MegatronBlendedDataset([dataset, dataset], wrong, 5)
    for count in (float("nan"), float("inf")):
        with pytest.raises(NielsCacheError, match="whole numbers"):
            MegatronBlendedDataset([dataset, dataset], [1, count], None)
    blend = MegatronBlendedDataset([dataset], [1.0], 5)
    with pytest.raises(IndexError):
        blend[5]
    with pytest.raises(NielsCacheError, match="one of train"):
        open_blend(prefixes, num_samples=None, sequence_length=16, seed=1, part="val")
    with pytest.raises(NielsCacheError, match="leaves no sequence"):
        open_blend(prefixes, num_samples=None, sequence_length=16, seed=1, split="1", part="test")


def test_a_blend_that_takes_more_than_there_is_is_not_kept(tmp_path: Path) -> None:
    """A reader that only maps the blend, such as megatron-core, would not count again."""
    cache = IndexCache(tmp_path / "index")
    for weights, size in (([0.5, 0.5], 8), ([3, 4], None)):
        with pytest.raises(NielsCacheError, match=r"4 samples .* 1, .* 3"):
            MegatronBlendedDataset([[{}] * 4, [{}] * 3], weights, size, index_cache=cache)
    assert [path for path in (tmp_path / "index").iterdir() if path.is_dir()] == []
