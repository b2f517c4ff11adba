"""The command `dagster asset materialize`, and the worker of its step, killed while they build. No process waits for dead processes, and
nothing of them stays.

The command launches its run itself, without our launcher and without a code server.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import dagster as dg
import pytest

from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_assets.defs.launcher import launch_builds
from niels_cache_assets.disk.build_lock import build_status
from niels_cache_runtime.format.commit import UNKNOWN, LockOwner
from niels_cache_runtime.verify import verify_cache
from tests.build_cache.test_determinism import digests
from tests.defs.test_stream_slots import NeverWaiting
from tests.helpers import programs
from tests.helpers.builds import build_dataset, build_tokenizer
from tests.helpers.dagster_tools import Project
from tests.helpers.names import NAMES
from tests.helpers.tiny import sentences
from tests.helpers.ui.running import wait_until

REPOSITORY = Path(__file__).parent.parent.parent
# In a separate session, by which all its processes are known.
COMMAND = """
import os, runpy, sys
os.setsid()
sys.argv = ["dagster", "asset", "materialize", "-m", "niels_cache_assets.definitions", *sys.argv[1:]]
runpy.run_module("dagster", run_name="__main__", alter_sys=True)
"""
ORPHAN_SECONDS = 30.0  # on a machine that is busy; 1 or 2 on one that is not
IN_PROGRESS = {dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING}


def start(project: Project) -> programs.Program:
    environment = {
        **os.environ,
        "NIELS_CACHE_CONFIG": str(project.folder / "niels_cache.toml"),
        "NIELS_CACHE_PROFILE": "quickstart",
        "PYTHONPATH": str(REPOSITORY),
    }
    chosen = ["--select", 'key:"pretrain/*"', "--partition", "notes"]
    with open(project.folder / "materialize.log", "ab") as log:
        streams = (0, log.fileno(), log.fileno())
        return programs.Program("-c", COMMAND, *chosen, env=environment, cwd=project.folder, streams=streams)


def wait_for_the_end_of_all(process: programs.Program) -> None:
    """Wait until all processes of its session have ended."""

    def of_session(status: str) -> bool:
        fields = status.rpartition(")")[2].split()
        return int(fields[3]) == process.pid and fields[0] != "Z"

    def living() -> list[str]:
        found = []
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                found.append(entry.read_text(errors="replace"))  # a name may be cut inside a character
            except OSError:
                continue  # it has ended meanwhile
        return [status for status in found if of_session(status)]

    process.wait(timeout=120)
    wait_until(lambda: not living(), seconds=ORPHAN_SECONDS, what="orphans stay")


def writer_of(target: Path, process: programs.Program) -> int:
    """Return the step worker, as soon as it writes the data set."""
    found: list[LockOwner] = []

    def writes() -> bool:
        writer = build_status(target).writer
        found.extend([writer] if writer not in (None, UNKNOWN) else [])  # unknown between its lock and its name
        return bool(found) or process.poll() is not None

    wait_until(writes, seconds=120, what="nothing is built")
    [writer] = found
    assert writer.pid != process.pid
    return writer.pid


@pytest.mark.walk  # many processes of Dagster
def test_a_materialize_or_its_step_that_is_killed_leaves_nobody_and_the_next_one_builds_and_checks(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NIELS_CACHE_ROOT", raising=False)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    project = Project(tmp_path / "project", tiny_model)
    project.write_notes(sentences(60) * 400)  # most of a second of tokenizing
    with open(project.folder / "niels_cache.toml", "a", encoding="utf-8") as config:
        config.write('[build]\ncache_dir = "cache"\n')
    for root in (project.root, tmp_path / "undisturbed"):
        build_tokenizer(project.registry, root=root)
    build_dataset(project.registry, "notes", root=tmp_path / "undisturbed")
    target = project.root / "pretrain/notes"
    with ensure_instance():
        pass

    process = start(project)
    writer_of(target, process)
    process.kill()
    wait_for_the_end_of_all(process)
    assert not target.exists()
    process = start(project)
    os.kill(writer_of(target, process), signal.SIGKILL)
    assert process.wait(timeout=120) == 1
    wait_for_the_end_of_all(process)
    assert start(project).wait(timeout=300) == 0

    assert digests(target) == digests(tmp_path / "undisturbed/pretrain/notes")
    assert verify_cache(project.root) == []
    results = launch_builds(project.registry, root=project.root, only=["notes"], listener=NeverWaiting())
    assert [result.state for result in results] == ["cache_hit", "cache_hit"]
    with ensure_instance() as instance:
        assert [run.run_id for run in instance.get_runs() if run.status in IN_PROGRESS] == []
        assert instance.event_log_storage.get_concurrency_info(NAMES.stream_pool).active_slot_count == 0
        key = dg.AssetKey(["pretrain", "meta_json"])
        assert instance.get_materialized_partitions(key) == {"notes"}
        checks = [dg.AssetCheckKey(key, name) for name in ("files_match_meta", "caches_in_sync")]
        assert len(instance.event_log_storage.get_latest_asset_check_execution_by_key(checks)) == 2
