"""The flags of `prebuild-index --for megatron-core`. They describe a training run, and become a `CoreRun` of niels_cache_assets.indices."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, cast, get_args

from niels_cache_assets.cli.command import WHERE
from niels_cache_assets.config.tables import MEGATRON_SEED, MEGATRON_SURPLUS
from niels_cache_assets.indices.megatron_core_run import Blend, CoreRun, Sizes, target_sizes
from niels_cache_assets.indices.megatron_core_tokenizer import tokenizer_of_flags, tokenizer_of_text
from niels_cache_assets.indices.prebuild import Part, parse_blend, parse_json, read_blend_file, read_text
from niels_cache_runtime.errors import NielsCacheError

# Defaults of Megatron-LM.
_SPLIT = "969, 30, 1"  # for --data-path only
_EVAL_INTERVAL = 1000
_EVAL_ITERS = 100
_TIKTOKEN_SPECIAL_TOKENS = 1000

_OF_STEPS = ("train_iters", "train_samples", "global_batch_size", "eval_interval", "eval_iters")
_PER_SPLIT = ("train_data_path", "valid_data_path", "test_data_path")


def run_of(arguments: argparse.Namespace) -> CoreRun:
    """Return the run that the flags describe. Raise NielsCacheError for a missing flag, or flags that contradict each other."""
    for name in ("data_cache_path", "sequence_length"):
        if getattr(arguments, name) is None:
            raise NielsCacheError(f"{WHERE}: --for megatron-core needs {'--seq-length' if name == 'sequence_length' else option_of(name)}")
    blend, blend_per_split = _blends(arguments)
    split = arguments.split
    if blend is None and split is not None:
        raise NielsCacheError(
            f"{WHERE}: --split: divides --data-path only; leave it out, because data sets of train, valid and test are used whole"
        )
    if blend is not None and split is None:
        if arguments.data_path is None:
            raise NielsCacheError(f"{WHERE}: --data-args-path needs --split; copy it from the training run")
        split = _SPLIT
    surplus = arguments.mid_level_dataset_surplus
    return CoreRun(
        blend=blend,
        blend_per_split=blend_per_split,
        split=split,
        sizes=_sizes(arguments),
        sequence_length=arguments.sequence_length,
        seed=MEGATRON_SEED if arguments.seed is None else arguments.seed,
        surplus=MEGATRON_SURPLUS if surplus is None else surplus,
        tokenizer=_tokenizer(arguments),
        folder=arguments.data_cache_path,
        each_validation_set=arguments.multiple_validation_sets,
    )


def _blends(arguments: argparse.Namespace) -> tuple[Blend | None, tuple[Blend | None, Blend | None, Blend | None]]:
    """Return (the blend of all parts, (the blends of train, valid and test)). A missing blend is None."""
    given = [name for name in ("data_path", "blend", "per_split_data_args_path") if getattr(arguments, name) is not None]
    if any(getattr(arguments, name) is not None for name in _PER_SPLIT):
        given.append(next(name for name in _PER_SPLIT if getattr(arguments, name) is not None))
    if len(given) != 1:
        shown = " and ".join(option_of(name) for name in given)
        raise NielsCacheError(
            f"{WHERE}: {f'{shown} both list data sets; give only one' if given else 'no data is named; give --data-path PREFIX'}, "
            "or --train-data-path, --valid-data-path and --test-data-path"
        )
    if given == ["data_path"]:
        return parse_blend(arguments.data_path, where=f"{WHERE}: --data-path"), (None, None, None)
    if given == ["blend"]:
        return read_blend_file(arguments.blend), (None, None, None)
    if given == ["per_split_data_args_path"]:
        return None, _read_per_split(arguments.per_split_data_args_path)
    train, valid, test = (_parse(getattr(arguments, name), f"{WHERE}: {option_of(name)}") for name in _PER_SPLIT)
    return None, (train, valid, test)


def _parse(words: Sequence[str] | None, where: str) -> Blend | None:
    return None if words is None else parse_blend(words, where=where)


def _read_per_split(path: str) -> tuple[Blend | None, Blend | None, Blend | None]:
    """Read JSON with the keys train, valid and test. Each value is a list of words, one string of words, or null."""
    content = parse_json(read_text(path, "give a JSON file with train, valid and test"), path)
    blends: list[Blend | None] = []
    for part in get_args(Part):
        words = content.get(part, 0) if isinstance(content, dict) else 0
        words = words.split() if isinstance(words, str) else words
        if words is not None and not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise NielsCacheError(f"{path}: {part} must be a list of strings (weights too), one string, or null")
        blends.append(_parse(words, f"{path}: {part}"))
    train, valid, test = blends
    return train, valid, test


def _sizes(arguments: argparse.Namespace) -> Sizes:
    steps = [name for name in _OF_STEPS if getattr(arguments, name) is not None]
    if arguments.target_sizes is not None:
        if steps or arguments.full_validation:
            raise NielsCacheError(
                f"{WHERE}: --target-sizes and {option_of([*steps, 'full_validation'][0])} exclude each other; give one of them"
            )
        return _parse_sizes(arguments.target_sizes)
    if (arguments.train_iters is None) == (arguments.train_samples is None) or arguments.global_batch_size is None:
        raise NielsCacheError(
            f"{WHERE}: the number of samples is missing; give --global-batch-size with either --train-iters or --train-samples, "
            "or --target-sizes A,B,C"
        )
    for name in _OF_STEPS:
        value = getattr(arguments, name)
        least = 1 if name in ("global_batch_size", "eval_interval") else 0
        if value is not None and value < least:
            raise NielsCacheError(f"{WHERE}: {option_of(name)} {value}: must be at least {least}")
    return target_sizes(
        train_iters=arguments.train_iters,
        train_samples=arguments.train_samples,
        eval_iters=_EVAL_ITERS if arguments.eval_iters is None else arguments.eval_iters,
        eval_interval=_EVAL_INTERVAL if arguments.eval_interval is None else arguments.eval_interval,
        global_batch_size=arguments.global_batch_size,
        full_validation=arguments.full_validation,
    )


def _parse_sizes(text: str) -> Sizes:
    words = [word.strip().lower() for word in text.split(",")]
    if len(words) != len(get_args(Part)) or not all(
        word == "none" or (word.isascii() and word.isdigit() and len(word) < 20) for word in words
    ):
        raise NielsCacheError(
            f'{WHERE}: --target-sizes {text!r:.60}: give the number of samples in train, valid and test, such as "800,80,none"'
        )
    return cast(Sizes, tuple(None if word == "none" else int(word) for word in words))


def _tokenizer(arguments: argparse.Namespace) -> dict[str, Any]:
    given = arguments.tokenizer_identifiers
    if (given is None) == (arguments.tokenizer_type is None):
        both = "--tokenizer-type and --tokenizer-identifiers exclude each other; give one of them"
        neither = (
            "no tokenizer is named, and file names depend on it; give --tokenizer-type as in the training run, or --tokenizer-identifiers"
        )
        raise NielsCacheError(f"{WHERE}: {neither if given is None else both}")
    if given is not None:
        return tokenizer_of_text(given, where="--tokenizer-identifiers")
    flags = dict(vars(arguments))
    if flags["tiktoken_num_special_tokens"] is None:
        flags["tiktoken_num_special_tokens"] = _TIKTOKEN_SPECIAL_TOKENS
    return tokenizer_of_flags(flags, where=WHERE)


def option_of(name: str) -> str:
    """Return the option that sets this attribute."""
    return "--data-args-path" if name == "blend" else f"--{name.replace('_', '-')}"
