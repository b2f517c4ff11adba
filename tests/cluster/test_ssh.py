"""Parts built by children of `build-all` behind ssh. test_slurm.py has them behind srun, and test_homes.py without either."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from niels_cache_assets.parts.lease import latest
from tests.helpers.children import here
from tests.helpers.cluster_walk import AGAIN, LONG, NOTICED_SECONDS, ROOT, Walk, build_all, killed_and_resumed, running
from tests.helpers.servers import processes_of, sshd

pytestmark = pytest.mark.cluster


def over_ssh(words: list[str]) -> str:
    """[cluster] for two places on this machine behind ssh, which passes on no environment variable."""
    program = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "niels_cache_assets.cli"]
    hosts = ["127.0.0.1", "localhost"]
    return f"command = {json.dumps([*words, '{host}'])}\nhosts = {json.dumps(hosts)}\nprogram = {json.dumps(program)}"


@pytest.fixture
def login(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with sshd(tmp_path_factory.mktemp("sshd")) as words:
        yield words


def test_ssh(tmp_path: Path, tiny_model: Path, database: str, login: list[str]) -> None:
    walk = Walk(tmp_path, tiny_model, database, parts=4, cluster=over_ssh(login))
    killed_and_resumed(walk)
    walk.check()


def test_ssh_is_killed_and_its_worker_lives(tmp_path: Path, tiny_model: Path, database: str, login: list[str]) -> None:
    walk = Walk(tmp_path, tiny_model, database, parts=3, cluster=over_ssh(login))
    output = build_all(walk)
    with running(output):
        walk.wait_for_records()
        worker = walk.worker()
        clients = [pid for pid, line in processes_of(tmp_path).items() if line.startswith(login[0]) and f" {LONG} --quiet" in line]
        assert len(clients) == 1
        os.kill(clients[0], signal.SIGKILL)
        killed = time.monotonic()
        assert output.find(AGAIN) - killed < here(NOTICED_SECONDS)
        assert Path(f"/proc/{worker}").exists() or (walk.long / "meta.json").exists()
        output.wait()
    last = latest(walk.long)
    assert last.holder is not None
    # the second worker may wait for the lease until the part is finished, and then finds it
    assert last.holder.writer.pid == worker or not last.holder.counts, "the first worker has finished the part"
    walk.check()
