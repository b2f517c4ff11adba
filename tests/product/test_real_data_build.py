"""Every real sample by build-all: built, verified, all there for a second run, and packed with little padding."""

import os
import re
import warnings
from pathlib import Path

import pytest

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.cli import main
from niels_cache_assets.project.registry import load_registry
from niels_cache_runtime.format.layout import FAMILIES
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.loader.packing.rows import PackedExamples
from niels_cache_runtime.verify import verify_cache
from tests.helpers.builds import build_dataset, build_tokenizer

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.slow,
    pytest.mark.skipif("NIELS_CACHE_REAL_DATA" not in os.environ, reason="NIELS_CACHE_REAL_DATA does not name the folder of real samples"),
]

NAMES = ["tokenizer", "fineweb_edu", "roam", "wikitext", "gutenberg", "wikipedia", "notes", "bulk", "mixture", "dolly15k", "oasst1"]


CONFIG = Path(__file__).parent / "real_data.toml"


@pytest.mark.walk
def test_every_real_sample_is_built_and_verified_and_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("NIELS_CACHE_PROFILE", "NIELS_CACHE_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    root = tmp_path / "cache"
    assert main(["build-all", "--config", str(CONFIG), "--cache-dir", str(root)]) == 0, capsys.readouterr().err
    states = dict(re.findall(r"^(\w+) +(built|cache hit|failed|skipped|disabled)\b", capsys.readouterr().out, re.MULTILINE))
    assert states == dict.fromkeys(NAMES, "built")
    assert verify_cache(root) == []
    metas = {path.parent.name: read_meta(str(path)) for family in FAMILIES for path in (root / family).glob("*/meta.json")}
    assert sorted(metas) == sorted(NAMES[1:])
    assert metas["fineweb_edu"]["val_tokens"] == 1000
    assert metas["wikitext"]["documents"] == {"train": 29, "val": 60}
    assert metas["gutenberg"]["documents"] == {"train": 6, "val": 1}
    assert metas["wikipedia"]["facts"]["redirects"] == 84
    corpus = read_meta(str(root / "corpus" / "wikipedia" / "meta.json"))
    assert corpus["documents"]["read"] == 63
    assert sum(metas["wikipedia"]["documents"].values()) == corpus["documents"]["kept"] > 50
    assert metas["bulk"]["train_tokens"] == 1_500_000
    assert len(list((root / "pretrain/bulk/train").iterdir())) == 3
    assert metas["oasst1"]["facts"]["straddling_groups"] == 0
    assert metas["dolly15k"]["train_examples"] + metas["dolly15k"]["val_examples"] == 2511
    assert str(tmp_path) not in (root / "pretrain/notes/meta.json").read_text()

    registry = load_registry(config=str(CONFIG))
    assert {state.condition for state in graph(registry, root).states()} == {"complete"}
    for name in NAMES[1:]:
        assert build_dataset(registry, name, root=root).state == "cache_hit"


PACKED = ["dolly15k", "oasst1"]
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
    for name in PACKED:
        build_dataset(registry, name, root=folder / "cache")
    return folder / "cache" / "sft"


def opened(root: Path, name: str, **settings: object) -> PackedExamples:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a few examples are cut before they are answered
        return PackedExamples(str(root / name / "train"), **{"T": 1024, "seed": 0, **settings})  # type: ignore[arg-type]


@pytest.mark.walk
@pytest.mark.parametrize("overflow", ["truncate_right", "truncate_left", "drop"])
def test_less_than_two_percent_of_the_rows_is_padding(root: Path, overflow: str) -> None:
    reports = [opened(root, name, overflow=overflow).report() for name in PACKED]
    for name, report in zip(PACKED, reports, strict=True):
        print(f"{name}, {overflow}: {report}")
        assert report.rows > 50
        assert report.padding < 0.02 * report.rows * 1025
        assert report.fill > 0.98
    assert sum(report.padding for report in reports) < 0.02 * sum(report.rows for report in reports) * 1025
