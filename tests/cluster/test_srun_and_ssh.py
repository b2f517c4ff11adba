"""Parts built by children of `build-all`: behind a program in place of srun, and behind ssh. test_homes.py has children without these."""

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
from tests.helpers.cluster_walk import LONG, ROOT, Walk, build_all, running
from tests.helpers.servers import processes_of, sshd

pytestmark = pytest.mark.cluster

NOTICED_SECONDS = 5.0
AGAIN = rf"part-0000{LONG}.*try 2 of 3"
RESUMED = rf"part-0000{LONG}.*resuming"


def killed_and_resumed(walk: Walk) -> None:
    """Build everything, kill the process of the long part, and check that the next try resumes it."""
    output = build_all(walk)
    with running(output):
        killed = walk.kill_in_mid_part()
        assert output.find(AGAIN) - killed < here(NOTICED_SECONDS)
        output.find(RESUMED)
        output.wait()
    walk.check()


def test_srun(tmp_path: Path, tiny_model: Path, database: str) -> None:
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nshift\n"$@"\nexit $?\n')
    srun.chmod(0o755)
    killed_and_resumed(Walk(tmp_path, tiny_model, database, parts=4, cluster=f'command = ["{srun}", "-c16"]\nat_once = 2'))


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
    killed_and_resumed(Walk(tmp_path, tiny_model, database, parts=3, cluster=over_ssh(login)))


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
    assert last is not None
    assert last.holder is not None
    assert last.holder.writer.pid == worker, "the first worker has finished the part"
    walk.check()
