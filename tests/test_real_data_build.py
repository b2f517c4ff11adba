"""build-all over every real sample: all built, verified, and a second run is all cache hits."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from niels_cache_runtime.formats import FAMILIES
from niels_cache_runtime.meta import read_meta
from niels_cache_runtime.verify import verify_cache

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.slow,
    pytest.mark.skipif("NIELS_CACHE_REAL_DATA" not in os.environ, reason="NIELS_CACHE_REAL_DATA does not name the folder of real samples"),
]

NAMES = ["tokenizer", "fineweb_edu", "roam", "wikitext", "gutenberg", "wikipedia", "notes", "bulk", "mixture", "dolly15k", "oasst1"]


def build_all(folder: Path) -> dict[str, str]:
    """{data set: state} as the table of build-all tells it."""
    config = Path(__file__).parent / "real_data.toml"
    command = [sys.executable, "-m", "niels_cache_assets.cli", "build-all", "--config", str(config), "--cache-dir", str(folder / "cache")]
    environment = {key: value for key, value in os.environ.items() if key not in ("NIELS_CACHE_PROFILE", "NIELS_CACHE_ROOT")}
    done = subprocess.run(
        command, cwd=folder, env={**environment, "DAGSTER_HOME": str(folder / "home")}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(re.findall(r"^(\w+) +(built|cache hit|failed|skipped|disabled)\b", done.stdout, re.MULTILINE))


def test_every_real_sample_is_built_and_verified_and_built_once(tmp_path: Path) -> None:
    assert build_all(tmp_path) == dict.fromkeys(NAMES, "built")
    assert verify_cache(tmp_path / "cache") == []
    metas = {path.parent.name: read_meta(str(path)) for family in FAMILIES for path in (tmp_path / "cache" / family).glob("*/meta.json")}
    assert sorted(metas) == sorted(NAMES[1:])
    assert metas["fineweb_edu"]["val_tokens"] == 1000
    assert metas["wikitext"]["documents"] == {"train": 29, "val": 60}
    assert metas["gutenberg"]["documents"] == {"train": 6, "val": 1}
    assert metas["wikipedia"]["dropped"]["redirect"] == 84
    corpus = read_meta(str(tmp_path / "cache" / "corpus" / "wikipedia" / "meta.json"))
    assert corpus["documents"]["read"] == 147
    assert sum(metas["wikipedia"]["documents"].values()) == corpus["documents"]["kept"] > 50
    assert metas["bulk"]["train_tokens"] == 6_000_000
    assert metas["oasst1"]["facts"]["straddling_groups"] == 0
    assert metas["dolly15k"]["train_examples"] + metas["dolly15k"]["val_examples"] == 2511
    assert str(tmp_path) not in (tmp_path / "cache/pretrain/notes/meta.json").read_text()
    assert build_all(tmp_path) == dict.fromkeys(NAMES, "cache hit")
