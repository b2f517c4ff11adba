"""The indices of a training run of Megatron-LM with megatron-core 0.16.1, for train, valid and test.

    target_sizes         number of samples of each part, counted in the same way as Megatron-LM's `get_train_valid_test_num_samples`
    CoreRun, plans_of    the datasets of `BlendedMegatronDatasetBuilder`: one plan for each top-level data set or blend

`check_data` opens every data set once, and so reads each .idx file once. `prebuild` builds the arrays, and `megatron_core_cache` names
them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.config.tables import MEGATRON_SURPLUS
from niels_cache_assets.indices.megatron_core_cache import CoreNames, split_matrix
from niels_cache_assets.indices.prebuild import BlendPlan, Part
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.megatron import CacheSplit, open_indexed, split_ranges
from niels_cache_runtime.megatron.blend_indices import MANY_DATASETS
from niels_cache_runtime.megatron.gpt_indices import tokens_of

Blend = tuple[Sequence[str], Sequence[float] | None]  # prefixes and weights
Sizes = tuple[int | None, int | None, int | None]  # number of samples of train, valid and test; None means every sample once

_ALL_OF = {"train": "1", "valid": "0,1", "test": "0,0,1"}  # for each part, the value of --split that assigns everything to this part


@dataclass(frozen=True, kw_only=True)
class CoreRun:
    """The part of a run's GPTDatasetConfig that decides the indices of the run, and the sizes for the builder.

    blend: the blend of all parts, divided by `split`. If it is None, `blend_per_split` has a blend, or None, for each part.
    surplus: the value of --mid-level-dataset-surplus.
    each_validation_set: the value of --multiple-validation-sets.
    """

    blend: Blend | None = None
    blend_per_split: tuple[Blend | None, Blend | None, Blend | None] = (None, None, None)
    split: str | None = None
    sizes: Sizes
    sequence_length: int
    seed: int
    surplus: float = MEGATRON_SURPLUS
    tokenizer: Mapping[str, Any]
    folder: str
    each_validation_set: bool = False


def target_sizes(
    *,
    train_iters: int | None,
    train_samples: int | None,
    eval_iters: int,
    eval_interval: int,
    global_batch_size: int,
    full_validation: bool,
) -> Sizes:
    """Return the numbers of samples of train, valid and test.

    If train_iters is None, it is computed from train_samples; a batch size ramp-up is not taken into account.
    """
    if train_iters is None:
        train_iters = (train_samples or 0) // global_batch_size
    train = train_samples or train_iters * global_batch_size
    valid = (train_iters // eval_interval + 1) * eval_iters * global_batch_size
    return train, None if full_validation else valid, eval_iters * global_batch_size


def plans_of(run: CoreRun) -> list[BlendPlan]:
    """Return one plan for each data set or blend of the run's parts. Reads no file.

    Raises NielsCacheError for an invalid split. Also raises it for input that megatron-core rejects, such as weights without a number of
    samples, or too many data sets.
    """
    if not (math.isfinite(run.surplus) and run.surplus >= 0):
        raise NielsCacheError(f"mid_level_dataset_surplus={run.surplus}: must be a share of at least 0, such as 0.005")
    matrix = split_matrix(run.split)
    names = CoreNames(folder=run.folder, split=run.split, tokenizer=run.tokenizer)
    plans = []
    for number, (part, size) in enumerate(zip(get_args(Part), run.sizes, strict=True)):
        if matrix is not None and matrix[number] is None:
            continue
        for prefixes, weights in _blends_of(run, number):
            if weights is not None and size is None:
                raise NielsCacheError(f"{part} has weights but no number of samples, which megatron-core rejects; remove the weights")
            if len(prefixes) >= MANY_DATASETS:
                raise NielsCacheError(f"{part} has {len(prefixes)} data sets; megatron-core accepts at most {MANY_DATASETS - 1}")
            plans.append(
                BlendPlan(
                    labels=tuple(prefixes),
                    paths=tuple(prefixes),
                    weights=None if weights is None else tuple(weights),
                    num_samples=size,
                    sequence_length=run.sequence_length,
                    seed=run.seed,
                    split=_ALL_OF[part] if run.split is None else run.split,
                    part=part,
                    surplus=run.surplus,
                    core=names,
                )
            )
    return plans


def _blends_of(run: CoreRun, part: int) -> list[Blend]:
    """Return the top-level blends of a part. Usually there is one."""
    if run.blend is not None:
        return [run.blend]
    blend = run.blend_per_split[part]
    if blend is None:
        return []
    prefixes, weights = blend
    if len(prefixes) == 1 or (run.each_validation_set and get_args(Part)[part] == "valid"):
        return [([prefix], None) for prefix in prefixes]
    return [(prefixes, weights)]


def check_data(plans: Sequence[BlendPlan]) -> None:
    """Raise NielsCacheError, before anything is built, if a data set cannot be opened or has no token for its part.

    If a part is empty, megatron-core 0.16.1 counts epochs in an endless loop.
    """
    lengths: dict[str | Path, NDArray[np.int32]] = {}
    for plan in plans:
        for path in plan.paths:
            if path not in lengths:
                indexed = open_indexed(path)
                if isinstance(indexed, CacheSplit):
                    raise NielsCacheError(
                        f"{path}: is a cache; megatron-core reads .bin and .idx: write them by `niels-cache export megatron`"
                    )
                lengths[path] = indexed.sequence_lengths
            ranges = dict(zip(get_args(Part), split_ranges(plan.split, len(lengths[path])), strict=True))
            if not tokens_of(lengths[path], ranges[plan.part]):
                if plan.core is None or plan.core.split is None:  # the data sets are not divided into parts
                    raise NielsCacheError(f"{path}: has no tokens, so megatron-core would hang; remove it from {plan.part}")
                raise NielsCacheError(
                    f"{path}: split={plan.split!r} leaves {plan.part} no tokens of {len(lengths[path])} sequences, "
                    f"so megatron-core would hang; give {plan.part} a larger share, or 0"
                )
