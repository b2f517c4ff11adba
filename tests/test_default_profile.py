"""The whole default profile by the command of the README, with small stand-ins of its data sets on the loopback hub."""

import json
from pathlib import Path
from typing import Any

import pytest

from niels_cache_runtime.verify import find_folders, verify_cache
from tests import programs
from tests.loopback_hub import LoopbackHub

TWICE = """
import shutil, sys
from niels_cache_assets.cli import main
code = main()
shutil.copytree("cache", "first")
sys.exit(code or main())
"""
COMMAND = ["build-all", "--cache-dir", "cache", "--seed", "42"]
SMALL = ["--vocab-size", "320", "--fineweb-train-tokens", "3000", "--fineweb-val-tokens", "500", "--set", "dagster.plots=false", "--json"]
BUILT = {"tokenizer", "fineweb_edu", "wikitext", "dolly15k", "oasst1"}

Results = dict[str, dict[str, Any]]


def build_all_twice(hub: LoopbackHub, folder: Path) -> tuple[Results, Results]:
    """By name, what the command says; with a relative Dagster home, which Dagster's own programs would refuse."""
    env = {name: value for name, value in hub.env.items() if not name.startswith("NIELS_CACHE_")} | {"DAGSTER_HOME": "home"}
    env["PYTHONPATH"] = str(Path(__file__).parent.parent)
    done = programs.run("-c", TWICE, *COMMAND, *SMALL, cwd=folder, env=env, timeout=600)
    assert done.returncode == 0, done.stderr
    first, end = json.JSONDecoder().raw_decode(done.stdout)
    second = json.loads(done.stdout[end:])
    return {row["name"]: row for row in first["results"]}, {row["name"]: row for row in second["results"]}


def contents(root: Path) -> dict[str, bytes]:
    """Of all caches."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for folder in find_folders(root) for path in folder.rglob("*.*")}


@pytest.mark.walk
def test_build_all_builds_the_default_profile_and_then_finds_only_hits(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    results, again = build_all_twice(hub, folder)
    root = folder / "cache"
    states = {name: result["state"] for name, result in results.items()}
    assert states == {**dict.fromkeys(BUILT, "built"), "roam": "skipped"}
    assert "needs path" in results["roam"]["message"]
    assert {path.name for path in find_folders(root)} == BUILT
    assert verify_cache(root) == []
    built = {path.parent.name: json.loads(path.read_text()) for path in root.rglob("meta.json")}
    assert {name for name, meta in built.items() if meta["built"]} == BUILT
    assert {name: meta["seed"] for name, meta in built.items() if meta["built"]} == dict.fromkeys(BUILT, 42)
    assert (built["fineweb_edu"]["train_tokens"], built["fineweb_edu"]["val_tokens"]) == (3000, 500)
    assert built["wikitext"]["documents"] == {"train": 9, "val": 2}
    assert (built["dolly15k"]["train_examples"], built["dolly15k"]["val_examples"]) == (27, 3)
    assert built["oasst1"]["train_examples"] > 0
    assert (folder / "home/dagster.yaml").exists()

    assert {name: result["state"] for name, result in again.items()} == {**states, **dict.fromkeys(BUILT, "cache_hit")}
    assert len(contents(root)) > 20
    assert contents(root) == contents(folder / "first")
