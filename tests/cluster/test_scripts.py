"""The scripts deploy/ray/parts.py and deploy/dask/parts.py on real clusters. A worker is killed with the command that it runs."""

import os
import signal
from pathlib import Path

import pytest

from tests.helpers.cluster_walk import RESULT, ROOT, PartsWalk, attempts, parent_of, running
from tests.helpers.engines import dask, ray
from tests.helpers.parts_project import NAME

pytestmark = pytest.mark.cluster


def kill_with_worker(pid: int) -> None:
    for each in (parent_of(pid), pid):
        os.kill(each, signal.SIGKILL)


def test_ray(tmp_path: Path, tiny_model: Path) -> None:
    walk = PartsWalk(tmp_path, tiny_model)
    with ray(walk):
        script = walk.start(str(ROOT / "deploy/ray/parts.py"), NAME, "4")
        with running(script):
            walk.kill_in_mid_part(kill_with_worker)
            script.wait()
            script.find(RESULT)
    assert attempts(walk) == 2
    walk.check_cache()


def test_dask(tmp_path: Path, tiny_model: Path) -> None:
    walk = PartsWalk(tmp_path, tiny_model)
    with dask(walk) as workers:
        script = walk.start(str(ROOT / "deploy/dask/parts.py"), walk.env["NIELS_CACHE_DASK"], NAME, "4")
        with running(script):
            walk.kill_in_mid_part(kill_with_worker)
            script.wait()
        workers.find(RESULT)
    assert attempts(walk) == 2
    walk.check_cache()
