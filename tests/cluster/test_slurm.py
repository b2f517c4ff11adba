"""Real Slurm on this machine: the jobs of deploy/slurm/submit.py, and `srun` for each part that Dagster starts."""

import re
import sys
from pathlib import Path

import pytest

from tests.helpers.cluster_walk import LONG, RESULT, ROOT, PartsWalk, Walk, attempts, killed_and_resumed, wait_until
from tests.helpers.engines import answer, ask, slurm
from tests.helpers.parts_project import NAME

pytestmark = pytest.mark.cluster

SRUN = 'command = ["srun", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--quiet"]\nat_once = 2'


def test_array(tmp_path: Path, tiny_model: Path) -> None:
    """Slurm starts a task again when its node is lost, and a task tries again when its process is killed."""
    walk = PartsWalk(tmp_path, tiny_model)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sleep").write_text("#!/bin/sh\n")  # part.sbatch pauses for 30 seconds
    (tmp_path / "bin/sleep").chmod(0o755)
    walk.env["PATH"] = f"{tmp_path / 'bin'}:{walk.env['PATH']}"
    with slurm(walk):
        submitted = answer(walk, sys.executable, str(ROOT / "deploy/slurm/submit.py"), NAME)
        _, job, seal = re.findall(r"\d+", submitted)
        task = f"{job}_{LONG}"

        def is_restarted() -> bool:
            state = answer(walk, "squeue", "--noheader", "--format=%T", f"--jobs={task}")
            if state == "PENDING":
                ask(walk, "scontrol", "update", f"jobid={task}", "StartTime=now")  # by default, two minutes later
            for ended in () if state else (task, seal):  # the task ended before Slurm began it again, and the seal has missed it
                ask(walk, "scontrol", "requeue", ended)
            return state == "RUNNING"

        walk.kill_in_mid_part(lambda pid: answer(walk, "scontrol", "requeue", task))
        wait_until(is_restarted, pause=0.5)
        before = walk.recorded_tokens()
        walk.kill_in_mid_part(tokens=before + 1)
        wait_until(lambda: not answer(walk, "squeue", "--noheader"), pause=0.2)
        assert "JobState=COMPLETED" in answer(walk, "scontrol", "show", "job", seal)
    log = (tmp_path / f"niels-cache-{NAME}-{task}.log").read_text()
    assert re.search(RESULT, log)
    assert len(re.findall('"message": "skipped the', log)) == 2
    assert attempts(walk) == 3
    walk.check_cache()


def test_srun(tmp_path: Path, tiny_model: Path) -> None:
    walk = Walk(tmp_path, tiny_model, None, parts=4, cluster=SRUN)
    with slurm(walk):
        killed_and_resumed(walk)
    walk.check()
