"""Dagster's own commands on this code location, as CI calls them."""

import os
from pathlib import Path

import dagster as dg
import pytest

from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_runtime.verify import verify_cache
from tests import programs
from tests.dagster_tools import Project


@pytest.mark.slow
def test_dagster_asset_materialize_builds_and_checks_one_partition(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    project = Project(tmp_path, tiny_model)
    assert project.build_tokenizer().success
    with open(tmp_path / "niels_cache.toml", "a", encoding="utf-8") as config:
        config.write('[build]\ncache_dir = "cache"\n')
    with ensure_instance():
        pass
    run = programs.run(
        *("-m", "dagster", "asset", "materialize", "-m", "niels_cache_assets.definitions"),
        *("--select", 'key:"pretrain/*"', "--partition", "notes"),
        cwd=Path(__file__).parent.parent,
        env={
            **os.environ,
            "NIELS_CACHE_CONFIG": str(tmp_path / "niels_cache.toml"),
            "NIELS_CACHE_PROFILE": "quickstart",
        },
    )
    assert run.returncode == 0, run.stderr
    assert verify_cache(project.root) == []
    with ensure_instance() as instance:
        assert instance.get_materialized_partitions(dg.AssetKey(["pretrain", "meta_json"])) == {"notes"}
        checks = [dg.AssetCheckKey(dg.AssetKey(["pretrain", "meta_json"]), name) for name in ("files_match_meta", "caches_in_sync")]
        assert len(instance.event_log_storage.get_latest_asset_check_execution_by_key(checks)) == 2
