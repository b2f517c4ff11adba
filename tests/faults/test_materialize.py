"""The command `dagster asset materialize`, and the worker of its step, killed at any moment. No process waits for dead processes, and
nothing of them stays.

The command launches its run itself, without our launcher and without a code server. Each trial draws its moment from its seed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import dagster as dg
import pytest

from niels_cache_assets.artifacts.builds import build_dataset
from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_assets.defs.keys import STREAM_POOL
from niels_cache_assets.defs.launcher import launch_builds
from niels_cache_assets.disk.staging import work_on
from niels_cache_runtime.format.commit import UNKNOWN, Writer
from niels_cache_runtime.verify import verify_cache
from tests import programs
from tests.dagster_tools import Project
from tests.faults.test_builds import drawing
from tests.test_cache_determinism import digests
from tests.test_dagster_turns import NeverWaiting
from tests.tiny import sentences
from tests.ui.running import wait_until

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


def write_notes(project: Project) -> None:
    project.write_notes(sentences(60) * 400)  # most of a second of tokenizing
    with open(project.folder / "niels_cache.toml", "a", encoding="utf-8") as config:
        config.write('[build]\ncache_dir = "cache"\n')


class Workshop:
    """One home, in which runs are killed one after the other, and the bytes of a run that is not killed."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.home = folder / "home"
        self.project = Project(folder / "project", model)
        write_notes(self.project)
        assert self.project.build_tokenizer().success
        undisturbed = folder / "undisturbed"
        undisturbed.mkdir()
        shutil.copytree(self.project.root / "tokenizer", undisturbed / "tokenizer")
        build_dataset(self.project.registry, "notes", root=undisturbed)
        self._expected = digests(undisturbed / "pretrain/notes")
        with ensure_instance(self.home):
            pass

    @cached_property
    def seconds(self) -> float:
        """Return the seconds of a run that is not killed."""
        started = time.monotonic()
        assert self.start().wait(timeout=300) == 0
        assert digests(self.target) == self._expected
        return time.monotonic() - started

    @property
    def target(self) -> Path:
        return self.project.root / "pretrain/notes"

    def start(self) -> programs.Program:
        environment = {
            **os.environ,
            "DAGSTER_HOME": str(self.home),
            "NIELS_CACHE_CONFIG": str(self.project.folder / "niels_cache.toml"),
            "NIELS_CACHE_PROFILE": "quickstart",
            "PYTHONPATH": str(REPOSITORY),
        }
        chosen = ["--select", 'key:"pretrain/*"', "--partition", "notes"]
        with open(self.home.parent / "materialize.log", "ab") as log:
            streams = (0, log.fileno(), log.fileno())
            return programs.Program("-c", COMMAND, *chosen, env=environment, cwd=self.project.folder, streams=streams)

    def check_what_is_left(self, told: str) -> None:
        """Check the files after a kill. The cache is whole or missing. The next build does not wait for dead processes, and ends in equal
        bytes.
        """
        if self.target.exists():
            assert digests(self.target) == self._expected, told
        results = launch_builds(self.project.registry, root=self.project.root, only=["notes"], listener=NeverWaiting())
        assert [result.state for result in results] in (["cache_hit", "built"], ["cache_hit", "cache_hit"]), (told, results)
        assert digests(self.target) == self._expected, told
        assert verify_cache(self.project.root) == [], told
        with ensure_instance(self.home) as instance:
            left = [run.run_id for run in instance.get_runs() if run.status in IN_PROGRESS]
            assert [run for run in left if has_begun(instance, run)] == [], told
            assert instance.event_log_storage.get_concurrency_info(STREAM_POOL).active_slot_count == 0, told


def has_begun(instance: dg.DagsterInstance, run: str) -> bool:
    """Return whether the executor of the run was reached. In the milliseconds before, a run has neither a record nor a place in the
    pool.
    """
    return bool(instance.all_logs(run, of_type=dg.DagsterEventType.ENGINE_EVENT))


def of_session(leader: int) -> list[int]:
    """Return the living processes of a session, including its leader."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()  # a name may be cut inside a character
            except OSError:
                continue  # it has ended meanwhile
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def workers_of(pid: int) -> list[int]:
    """Return the step workers among the children of a process."""
    found = []
    with suppress(OSError):  # one that has ended meanwhile
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Workshop]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NIELS_CACHE_ROOT", raising=False)
        folder = tmp_path_factory.mktemp("materialize")
        patch.setenv("DAGSTER_HOME", str(folder / "home"))
        yield Workshop(folder, tiny_model)


def end_of(workshop: Workshop, process: programs.Program, told: str) -> None:
    """Check the end of a killed command. All processes that it started end, and its files are as they should be."""
    process.wait(timeout=120)
    begin = time.monotonic()
    wait_until(lambda: not of_session(process.pid), seconds=ORPHAN_SECONDS, what=f"{told}: orphans stay")
    print(f"{told}; the last of its processes was gone {time.monotonic() - begin:.1f} s later")
    workshop.check_what_is_left(told)


def writer_of(workshop: Workshop, process: programs.Program) -> int:
    """Return the step worker, as soon as it writes the data set."""
    found: list[Writer] = []

    def writes() -> bool:
        writer = work_on(workshop.target).writer
        found.extend([writer] if writer not in (None, UNKNOWN) else [])  # unknown between its lock and its name
        return bool(found) or process.poll() is not None

    wait_until(writes, seconds=120, what="nothing is built")
    [writer] = found
    assert workers_of(process.pid) == [writer.pid]
    return writer.pid


@pytest.mark.slow
def test_a_materialize_or_its_step_that_is_killed_leaves_nobody_and_the_next_one_builds_and_checks(
    workshop: Workshop,
) -> None:
    process = workshop.start()
    writer_of(workshop, process)
    process.kill()
    process.wait(timeout=120)
    assert not workshop.target.exists()
    wait_until(lambda: not of_session(process.pid), seconds=ORPHAN_SECONDS, what="orphans of the command stay")
    process = workshop.start()
    os.kill(writer_of(workshop, process), signal.SIGKILL)
    assert process.wait(timeout=120) == 1
    wait_until(lambda: not of_session(process.pid), seconds=ORPHAN_SECONDS, what="orphans of the step stay")
    assert workshop.start().wait(timeout=300) == 0
    workshop.check_what_is_left("killed while it builds")
    with ensure_instance(workshop.home) as instance:
        key = dg.AssetKey(["pretrain", "meta_json"])
        assert instance.get_materialized_partitions(key) == {"notes"}
        checks = [dg.AssetCheckKey(key, name) for name in ("files_match_meta", "caches_in_sync")]
        assert len(instance.event_log_storage.get_latest_asset_check_execution_by_key(checks)) == 2


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(60))
def test_materializes_killed_at_any_moment_block_nothing_and_leave_nobody(workshop: Workshop, seed: int) -> None:
    after = workshop.seconds * drawing(seed)(1000) / 1000
    shutil.rmtree(workshop.target.parent, ignore_errors=True)
    process = workshop.start()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=after)
    process.kill()
    end_of(workshop, process, f"seed {seed}: killed after {after:.3f} s of {workshop.seconds:.1f}")
