"""Real Slurm on this machine: an array job, as in deploy/slurm, and `srun` for each part that Dagster starts."""

import re
from pathlib import Path

import pytest

from tests.helpers.cluster_walk import LONG, RESULT, PartsWalk, Walk, attempts, killed_and_resumed, wait_until
from tests.helpers.engines import answer, slurm
from tests.helpers.parts_project import NAME

pytestmark = pytest.mark.cluster

TASK = f"for attempt in 1 2 3; do niels-cache part {NAME} && exit; done; exit 1"
SRUN = 'command = ["srun", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--quiet"]\nat_once = 2'


def test_array(tmp_path: Path, tiny_model: Path) -> None:
    """Slurm starts a task again when its node is lost, and a task tries again when its process is killed."""
    walk = PartsWalk(tmp_path, tiny_model)
    with slurm(walk):
        options = ["--parsable", "--requeue", "--output=%a.log", "--open-mode=append"]
        job = answer(walk, "sbatch", *options, "--array=0-3", f"--wrap={TASK}")
        seal = answer(walk, "sbatch", *options, f"--dependency=afterany:{job}", f"--wrap=niels-cache part {NAME} --seal")
        task = f"{job}_{LONG}"

        def is_restarted() -> bool:
            state = answer(walk, "squeue", "--noheader", "--format=%T", f"--jobs={task}")
            if state == "PENDING":
                answer(walk, "scontrol", "update", f"jobid={task}", "StartTime=now")  # by default, two minutes later
            return state == "RUNNING"

        walk.kill_in_mid_part(lambda pid: answer(walk, "scontrol", "requeue", task))
        wait_until(is_restarted, pause=0.5)
        before = walk.recorded_tokens()
        walk.kill_in_mid_part(tokens=before + 1)
        wait_until(lambda: not answer(walk, "squeue", "--noheader"), pause=0.2)
        assert "JobState=COMPLETED" in answer(walk, "scontrol", "show", "job", seal)
    log = (tmp_path / f"{LONG}.log").read_text()
    assert re.search(RESULT, log)
    assert len(re.findall('"message": "skipped the', log)) == 2
    assert attempts(walk) == 3
    walk.check_cache()


def test_srun(tmp_path: Path, tiny_model: Path) -> None:
    walk = Walk(tmp_path, tiny_model, None, parts=4, cluster=SRUN)
    with slurm(walk):
        killed_and_resumed(walk)
    walk.check()
