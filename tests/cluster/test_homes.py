"""One Postgres for the records of several Dagster homes, and a Postgres that is gone for a while."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.event_log.schema import ConcurrencyLimitsTable

from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_assets.defs.part_slots import limit_parts
from tests.helpers.cluster_walk import Walk, build_all, running, wait_until
from tests.helpers.names import NAMES
from tests.helpers.parts_project import NAME, build
from tests.helpers.servers import made_postgres

pytestmark = pytest.mark.cluster

_GONE_SECONDS = 15.0
HERE = ("--set", "build.threads=1")  # a changed setting: build-all then builds the parts itself, in their runs


def runs(walk: Walk, home: Path) -> dict[str, str]:
    """The status of each run in the database, by its id."""
    with ensure_instance(home) as instance:
        return {run.run_id: run.status.value for run in instance.get_runs()}


def test_nobody_ends_the_runs_of_another_home(tmp_path: Path, tiny_model: Path, database: str) -> None:
    """Two machines with one Postgres are two homes with it. One of them dies with its run, while the other one has a run too."""
    walk = Walk(tmp_path, tiny_model, database, parts=3, cluster="at_once = 2")
    build(walk.graph, ["tokenizer", f"plan/{NAME}"])
    outputs = {home: build_all(walk, *HERE, home=home) for home in (walk.home, walk.add_home("other"))}
    with running(*outputs.values()):
        walk.wait_for_records()
        pid = walk.worker()
        killed, other = sorted(outputs, key=lambda home: outputs[home].process.pid != pid)
        assert outputs[killed].process.pid == pid
        os.kill(pid, signal.SIGSTOP)  # so that the part does not end meanwhile
        assert not (walk.long / "meta.json").exists(), "the part was too short"
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
    assert len(ended) > 3
    walk.check()


def test_two_homes_make_the_pool_at_the_same_time(tmp_path: Path, tiny_model: Path, database: str) -> None:
    """The second home looks for the pool before the first one has made it. Postgres lets it wait, and then refuses a second pool."""
    walk = Walk(tmp_path, tiny_model, database, parts=4, cluster="at_once = 3")
    with ensure_instance(walk.home) as first, ensure_instance(walk.add_home("other")) as second, ThreadPoolExecutor() as pool:
        with first.event_log_storage.index_transaction() as transaction:
            transaction.execute(
                ConcurrencyLimitsTable.insert().values(concurrency_key=NAMES.parts_pool, limit=1, using_default_limit=False)
            )
            waiting = pool.submit(limit_parts, second, walk.graph.registry)
            wait_until(lambda: is_waiting(database), 60.0)
        waiting.result(60.0)
        assert {instance.event_log_storage.get_concurrency_info(NAMES.parts_pool).limit for instance in (first, second)} == {3}


@contextmanager
def opened(database: str) -> Iterator[Any]:
    """Yield a cursor, whose changes are kept."""
    import psycopg2

    with closing(psycopg2.connect(database.replace("+psycopg2", ""))) as connection, connection, connection.cursor() as cursor:
        yield cursor


def is_waiting(database: str) -> bool:
    """Tell whether a session of this database waits for another one."""
    with opened(database) as cursor:
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
        return cursor.fetchone() is not None


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
