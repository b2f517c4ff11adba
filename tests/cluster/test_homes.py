"""One Postgres for the records of several Dagster homes, and a Postgres that is gone for a while."""

import os
import signal
import time
from pathlib import Path

import dagster as dg
import pytest

from niels_cache_assets.defs.home.instance import ensure_instance
from tests.cluster.servers import made_postgres
from tests.cluster.walk import Walk, build_all, running
from tests.parts_project import NAME, build

pytestmark = pytest.mark.cluster

_GONE_SECONDS = 60.0
HERE = ("--set", "build.threads=1")  # a changed setting: build-all then builds the parts itself, in their runs


def runs(walk: Walk, home: Path) -> dict[str, str]:
    """The status of each run in the database, by its id."""
    with ensure_instance(home) as instance:
        return {run.run_id: run.status.value for run in instance.get_runs()}


def test_nobody_ends_the_runs_of_another_home(tmp_path: Path, tiny_model: Path, database: str) -> None:
    """Two machines with one Postgres are two homes with it. One of them dies with its run, while the other one has a run too."""
    walk = Walk(tmp_path, tiny_model, database, parts=4, cluster="at_once = 2")
    build(walk.graph, ["tokenizer", f"plan/{NAME}"])
    outputs = {home: build_all(walk, *HERE, home=home) for home in (walk.home, walk.add_home("other"))}
    with running(*outputs.values()):
        walk.wait_for_records()
        pid = walk.worker()
        killed, other = sorted(outputs, key=lambda home: outputs[home].process.pid != pid)
        assert outputs[killed].process.pid == pid
        os.killpg(pid, signal.SIGKILL)
        [lost] = [path.name for path in (killed / ".runs").glob("*") if runs(walk, other)[path.name] == dg.DagsterRunStatus.STARTED.value]
        outputs[other].find("continuing its work")
        assert runs(walk, other)[lost] == dg.DagsterRunStatus.STARTED.value, "another home has ended it"
        again = build_all(walk, *HERE, home=killed)
        with running(again):
            again.wait()
            outputs[other].wait()
    ended = runs(walk, walk.home)
    assert ended.pop(lost) == dg.DagsterRunStatus.FAILURE.value, "its own home ends it"
    assert set(ended.values()) == {dg.DagsterRunStatus.SUCCESS.value}
    assert len(ended) > 4
    walk.check()


def test_postgres_is_gone_while_a_part_is_built(tmp_path: Path, tiny_model: Path) -> None:
    folder = tmp_path / "postgres"
    folder.mkdir()
    with made_postgres(folder) as server:
        with server.running():
            walk = Walk(tmp_path / "walk", tiny_model, server.address, parts=3, cluster="at_once = 2")
            output = build_all(walk)
            with running(output):
                walk.wait_for_records()
                pid = walk.worker()
                os.kill(pid, signal.SIGSTOP)  # so that the part does not end meanwhile
                output.find("part-00001.*built")
                output.find("part-00000.*built")
        time.sleep(_GONE_SECONDS)
        assert output.process.poll() is None, str(output)
        with server.running(), running(output):
            os.kill(pid, signal.SIGCONT)
            output.wait()
            assert set(runs(walk, walk.home).values()) == {dg.DagsterRunStatus.SUCCESS.value}
            walk.check()
