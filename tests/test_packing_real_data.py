"""Packing dolly and oasst1: how little of the rows is padding. NIELS_CACHE_REAL_DATA names the folder of real samples."""

import os
import warnings
from pathlib import Path

import numpy as np
import pytest

from niels_cache_assets.artifacts.builds import build_dataset, build_tokenizer
from niels_cache_assets.config.registry import load_registry
from niels_cache_runtime.loader.packing.rows import PackedExamples

pytestmark = [
    pytest.mark.walk,
    pytest.mark.real_data,
    pytest.mark.skipif("NIELS_CACHE_REAL_DATA" not in os.environ, reason="NIELS_CACHE_REAL_DATA does not name the folder of real samples"),
]

NAMES = ["dolly15k", "oasst1"]
_CONFIG = """
[tokenizer]
vocab_size = 4000
sample_bytes = 300_000
train_on = ["dolly15k", "oasst1"]
[sft.dolly15k]
files = ["$NIELS_CACHE_REAL_DATA/dolly/*.jsonl"]
[sft.oasst1]
files = ["$NIELS_CACHE_REAL_DATA/oasst1/en_trees_60.jsonl"]
split_by = "tree"
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    (folder / "niels_cache.toml").write_text(_CONFIG, encoding="utf-8")
    registry = load_registry(profile="default", config=str(folder / "niels_cache.toml"))
    build_tokenizer(registry, root=folder / "cache")
    for name in NAMES:
        build_dataset(registry, name, root=folder / "cache")
    return folder / "cache" / "sft"


def opened(root: Path, name: str, **settings: object) -> PackedExamples:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a few examples are cut before they are answered
        return PackedExamples(str(root / name / "train"), **{"T": 1024, "seed": 0, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize("overflow", ["truncate_right", "truncate_left", "drop"])
def test_less_than_two_percent_of_the_rows_is_padding(root: Path, overflow: str) -> None:
    reports = [opened(root, name, overflow=overflow).report() for name in NAMES]
    for name, report in zip(NAMES, reports, strict=True):
        print(f"{name}, {overflow}: {report}")
        assert report.rows > 50
        assert report.padding < 0.02 * report.rows * 1025
        assert report.fill > 0.98
    assert sum(report.padding for report in reports) < 0.02 * sum(report.rows for report in reports) * 1025


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_in_an_epoch_once_as_it_was_written(root: Path, name: str) -> None:
    source = opened(root, name)
    numbers = np.arange(source.samples)
    rows, origins = source.read(numbers, epoch=1), source.origins(numbers, epoch=1)
    tokens = np.fromfile(source.files[0], dtype="<u2")
    real = origins.offsets >= 0
    assert np.array_equal(rows.tokens[real], tokens[origins.offsets[real]])
    begun = origins.documents[origins.document_offsets == 0]
    report = source.report()
    assert len(begun) == len(np.unique(begun)) == report.examples == source.examples
    starts = np.load(Path(source.files[0]).with_name("train_idx.npy"))
    assert report.examples + sum(report.dropped.values()) == len(starts)
    assert report.tokens == np.minimum(np.diff(starts, append=len(tokens)), 1025)[begun].sum()
