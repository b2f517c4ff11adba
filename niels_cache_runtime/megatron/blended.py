"""Megatron-LM's BlendedDataset: samples of several data sets in the proportions of their weights, in Megatron's order.

`[i]` is sample `dataset_sample_index[i]` of data set `dataset_index[i]`, together with the number of that data set. `blend_indices`
describes the two arrays and their cost. `open_blend` builds the same as Megatron's BlendedMegatronDatasetBuilder, for one part of a split
of a list of prefixes: first the data sets, each with the samples that its weight needs and a surplus, then the blend.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from niels_cache_runtime.cache.checks import MAX_COUNT, check_index, check_whole
from niels_cache_runtime.cache.index_cache import Allocate, IndexCache
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Array, Ints
from niels_cache_runtime.megatron.blend_indices import build_blending_indices, build_exhaustive_blending_indices, normalize_weights
from niels_cache_runtime.megatron.cache_split import open_indexed
from niels_cache_runtime.megatron.gpt_dataset import IndexedSamples, MegatronGPTDataset
from niels_cache_runtime.megatron.gpt_indices import OnArrayProgress, split_ranges, tokens_of
from niels_cache_runtime.remote.split_location import Copy

SURPLUS = 0.005  # Megatron's mid_level_dataset_surplus
SPLITS = ("train", "valid", "test")


class MapStyle(Protocol):
    """A member of a blend: numbered samples, where each sample is a dict."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]: ...


class MegatronBlendedDataset(IndexedSamples):
    """A blend of data sets in the proportions of their weights, in the order of Megatron-LM's BlendedDataset.

    `[i]` is a dict: `dataset_id`, a numpy integer, and the keys of the data set's sample.

    Args:
        datasets: The map-style data sets, whose samples are dicts.
        weights: A number above 0 for each data set.
        size: The number of samples. With None, the weights are counts, and each data set gives exactly its count of samples.
        index_cache: Where the two index arrays are stored. With None, the default, they are built in memory and pickled together with the
            data set.
        progress: Called with (name of the array, done, total) while the arrays are built.

    Attributes:
        datasets: The data sets, as a list.
        dataset_index: The number of the data set of each sample, (len(self),) int16, or int32 for 32,767 data sets or more.
        dataset_sample_index: The number of each sample in its data set, (len(self),) int64.

    Raises:
        NielsCacheError: If a weight or count is not above 0, or if a data set has fewer samples than the blend takes from it.
    """

    index_names = ("dataset_index", "dataset_sample_index")
    dataset_index: Array
    dataset_sample_index: Ints

    def __init__(
        self,
        datasets: Sequence[MapStyle],
        weights: Sequence[float],
        size: int | None,
        *,
        index_cache: IndexCache | None = None,
        progress: OnArrayProgress | None = None,
    ) -> None:
        if not datasets or len(datasets) != len(weights):
            raise NielsCacheError(f"{len(datasets)} data sets and {len(weights)} weights: give one weight for each")
        self.datasets = list(datasets)
        if size is None:
            if any(not math.isfinite(weight) or weight != int(weight) for weight in weights):
                raise NielsCacheError(f"weights {list(weights)[:5]}: without a size they are counts, and must be whole numbers")
            counts = [int(weight) for weight in weights]
            parameters: dict[str, Any] = {"counts": counts, "size": None}
            build_indices = partial(build_exhaustive_blending_indices, counts)
        else:
            shares = normalize_weights(weights)
            size = check_whole("size", size, most=MAX_COUNT)  # a Python int: numpy's integers are not JSON-able
            parameters = {"weights": shares, "size": size}
            build_indices = partial(build_blending_indices, shares, size)

        def build(allocate: Allocate) -> object:
            built = build_indices(allocate=allocate, progress=progress)
            self._check_sizes(*built)  # checked before the cache keeps the arrays
            return built

        self._open_index("blend", parameters, build, index_cache)
        self._check_sizes(self.dataset_index, self.dataset_sample_index)

    def _check_sizes(self, dataset_index: Array, dataset_sample_index: Ints) -> None:
        """Check that each data set has the samples that the blend takes.

        Because sample numbers only increase, it is enough to check the last sample of each data set. The search begins at the end of the
        blend, so it usually stops soon.
        """
        block, unseen = 1 << 16, set(range(len(self.datasets)))
        for stop in range(len(dataset_index), 0, -block):
            start = max(stop - block, 0)
            numbers, places = np.unique(dataset_index[start:stop][::-1], return_index=True)
            for number, place in zip(numbers.tolist(), places.tolist(), strict=True):
                if number in unseen:
                    unseen.remove(number)
                    has, taken = len(self.datasets[number]), dataset_sample_index.item(stop - 1 - place) + 1
                    if has < taken:
                        raise NielsCacheError(
                            f"the blend takes {taken} samples of data set {number}, but it has {has}; give it more (a larger surplus)"
                        )
            if not unseen:
                return

    def __len__(self) -> int:
        return len(self.dataset_index)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the samples at `indices`, in the order of `indices`.

        If a data set has `__getitems__`, all its samples are read with one call.

        Args:
            indices: Integers from 0 to len(self) - 1.

        Raises:
            IndexError: If an index is out of range.
        """
        places: dict[int, list[int]] = {}
        for place, index in enumerate(indices):
            number = check_index(index, len(self), what="sample")
            places.setdefault(self.dataset_index.item(number), []).append(place)
        samples: list[dict[str, Any]] = [{}] * len(indices)
        for dataset_id, chosen in places.items():
            dataset = self.datasets[dataset_id]
            numbers = [self.dataset_sample_index.item(indices[place]) for place in chosen]
            batched = getattr(dataset, "__getitems__", None)
            found = batched(numbers) if batched is not None else [dataset[number] for number in numbers]
            for place, sample in zip(chosen, found, strict=True):
                samples[place] = {"dataset_id": self.dataset_index[indices[place]], **sample}
        return samples


def open_blend(
    prefixes: Sequence[str | Path],
    weights: Sequence[float] | None = None,
    *,
    num_samples: int | None,
    sequence_length: int,
    seed: int,
    split: str = "1",
    part: str = "train",
    surplus: float = SURPLUS,
    index_cache: IndexCache | None = None,
    progress: OnArrayProgress | None = None,
    remote: Copy | None = None,
    **settings: Any,
) -> MegatronGPTDataset | MegatronBlendedDataset:
    """Return one part of the split of these data sets, as Megatron's BlendedMegatronDatasetBuilder builds it.

    Args:
        prefixes: For each data set, the prefix of its .bin and .idx files, or the folder of a split of a cache, or the address of a split.
        weights: The proportions in which `num_samples` is divided among the data sets. Each share is rounded up, so the blend takes a few
            samples more. With None, each data set is read once, and the blend follows their numbers of samples, with at most `num_samples`
            samples. One prefix without weights is not a blend.
        num_samples: The number of samples. With 0 (Megatron-LM's --eval-iters 0), a blend is empty. For one prefix without weights, 0 and
            None both mean one epoch.
        sequence_length: The number of tokens in a sample.
        seed: The same as Megatron's `random_seed`.
        split: Megatron's split string, such as "99,1,0" (see `split_ranges`). By default, all sequences are in train.
        part: "train", "valid" or "test".
        surplus: The fraction of additional samples that each data set of a weighted blend has, the same as Megatron's
            `mid_level_dataset_surplus`.
        index_cache: Where indices are stored. By default they are built in memory.
        progress: Called with (name of the array, done, total) while indices are built.
        remote: The local copy, for addresses (see `MegatronCacheSplit`). All splits share it, so all of them must fit.
        **settings: More keyword arguments for every `MegatronGPTDataset`.

    Returns:
        A MegatronGPTDataset for one prefix without weights, otherwise a MegatronBlendedDataset.

    Raises:
        NielsCacheError: If MegatronGPTDataset or MegatronBlendedDataset raises it, if a part has no sequences, if a data set has no sample
            to blend, or if weights are given without num_samples.
    """
    if part not in SPLITS:
        raise NielsCacheError(f"part={part!r}: choose one of {', '.join(SPLITS)}")
    if weights is not None and (num_samples is None or len(weights) != len(prefixes)):
        raise NielsCacheError(f"{len(prefixes)} data sets with weights: give one weight for each, and num_samples")
    shares = None if weights is None else normalize_weights(weights)

    def dataset(prefix: str | Path, samples: int | None) -> MegatronGPTDataset:
        indexed = open_indexed(prefix, remote=remote)
        sequences = split_ranges(split, len(indexed))[SPLITS.index(part)]
        if not len(sequences):
            raise NielsCacheError(f"{prefix}: split={split!r} leaves no sequence of {len(indexed)} to {part}")
        found = MegatronGPTDataset(
            indexed,
            sequences,
            num_samples=samples,
            sequence_length=sequence_length,
            seed=seed,
            index_cache=index_cache,
            progress=progress,
            **settings,
        )
        if not len(found) and shares is None and len(prefixes) > 1:  # with weights, only an empty blend takes no samples
            tokens = tokens_of(indexed.sequence_lengths, sequences)
            raise NielsCacheError(
                f"{prefix}: {tokens} tokens in {part}, no whole sample of sequence_length={sequence_length}; leave it out, or use fewer"
            )
        return found

    if num_samples is not None:
        num_samples = check_whole("num_samples", num_samples, most=MAX_COUNT)
    if len(prefixes) == 1 and shares is None:
        return dataset(prefixes[0], num_samples)
    counts: list[int | None] = [None] * len(prefixes)
    taken: list[int] = []
    if shares is not None and num_samples is not None:
        taken = [math.ceil(num_samples * share) for share in shares]
        counts = [math.ceil(count * (1 + surplus)) for count in taken]
    datasets = [dataset(prefix, samples) for prefix, samples in zip(prefixes, counts, strict=True)]
    size: int | None = sum(taken)
    if shares is None:
        taken = [len(found) for found in datasets]
        size = None if num_samples is None else min(num_samples, sum(taken))
    return MegatronBlendedDataset(datasets, shares or taken, size, index_cache=index_cache, progress=progress)


def prebuild_blend(
    prefixes: Sequence[str | Path], weights: Sequence[float] | None = None, *, index_cache: IndexCache, **settings: Any
) -> list[Path]:
    """Build the indices that `open_blend` needs for these arguments. With the same `index_cache`, `open_blend` then only maps them.

    Args:
        prefixes: As for `open_blend`.
        weights: As for `open_blend`.
        index_cache: Where the indices are stored.
        **settings: The other arguments of `open_blend`.

    Returns:
        The folders of the indices, with the folder of the blend last. The name of a folder is the hash of its index.

    Raises:
        NielsCacheError: If `open_blend` raises it.
        NotWrittenError: If the folder of `index_cache` cannot be written.
    """
    opened = open_blend(prefixes, weights, index_cache=index_cache, **settings)
    parts = [*opened.datasets, opened] if isinstance(opened, MegatronBlendedDataset) else [opened]
    return [Path(directory) for part in parts if (directory := getattr(part, "index_directory", None)) is not None]
