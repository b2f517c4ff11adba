"""Steps of parts on the workers of Dask and of Celery, as the files in deploy/ start them. A worker is killed with its part."""

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_assets.defs.places import limit_parts
from niels_cache_assets.parts.lease_files import latest
from tests.cluster.servers import free_port, redis
from tests.cluster.walk import ROOT, Output, Walk, at_a_time, running, wait_until
from tests.parts_project import NAME, build, parts_of

pytestmark = pytest.mark.cluster

PARTS = 6
NOTICED_SECONDS = 5.0
VISIBILITY_SECONDS = 20.0


@pytest.fixture
def walk(tmp_path: Path, tiny_model: Path, database: str) -> Walk:
    """A walk whose tokenizer and plan are there."""
    walk = Walk(tmp_path, tiny_model, database, parts=PARTS, cluster="at_once = 2")
    build(walk.graph, ["tokenizer", f"plan/{NAME}"])
    with ensure_instance(walk.home) as instance:
        limit_parts(instance, walk.graph.registry)
    return walk


def materialize(walk: Walk, definitions: Path, number: int) -> None:
    """Run the step of a part, as the daemon does for each partition of a backfill."""
    partition = parts_of(walk.graph)[number].removeprefix("part/")
    selected = ["--select", 'key:"pretrain/parts"', "--partition", partition]
    output = walk.start("-m", "dagster", "asset", "materialize", *selected, "-f", str(definitions))
    with running(output):
        output.wait()


def build_and_kill(walk: Walk, definitions: Path, kill: Callable[[int], None]) -> None:
    """Build all parts, two at a time, and call `kill` with the process of the long part after its first record."""
    killers = [partial(kill_in_mid_part, walk, kill)]
    at_a_time(3, [*killers, *(partial(materialize, walk, definitions, number) for number in range(PARTS))])
    seal = walk.start("-m", "niels_cache_assets.cli", "parts", "seal", NAME)
    with running(seal):
        seal.wait()


def kill_in_mid_part(walk: Walk, kill: Callable[[int], None]) -> None:
    walk.wait_for_records()
    pid = walk.worker()
    os.kill(pid, signal.SIGSTOP)  # so that the part does not end meanwhile
    assert not (walk.long / "meta.json").exists(), "the part was too short"
    kill(pid)


def attempts(walk: Walk) -> int:
    last = latest(walk.long)
    return 0 if last is None else last.attempt


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def has_resumed(walk: Walk) -> bool:
    """Return whether a run has logged that the long part goes on from its records."""
    with ensure_instance(walk.home) as instance:
        found = [event.user_message for run in instance.get_runs() for event in instance.all_logs(run.run_id)]
    assert len(found) > PARTS
    return any("resuming" in message and walk.long.name in message for message in found)


def test_dask(walk: Walk) -> None:
    pytest.importorskip("dagster_dask")
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    walk.env["NIELS_CACHE_DASK"] = address
    scheduler = walk.start("-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
    with running(scheduler):
        scheduler.find("Scheduler at")
        options = ["--nworkers", "2", "--nthreads", "1", "--nanny", "--no-dashboard", "--local-directory", str(walk.folder)]
        workers = walk.start("-m", "distributed.cli.dask_worker", address, *options)
        with running(workers):

            def kill(pid: int) -> None:
                for each in (parent_of(pid), pid):
                    os.kill(each, signal.SIGKILL)
                workers.find(r"(?i)killed by signal 9|restarting worker", seconds=NOTICED_SECONDS)

            build_and_kill(walk, ROOT / "deploy/dask/definitions.py", kill)
            assert attempts(walk) > 1
            assert has_resumed(walk)
            stop(workers, scheduler)
    walk.check()


def test_celery(walk: Walk, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("dagster_celery")
    with redis(tmp_path_factory.mktemp("redis")) as broker:
        walk.env |= {"NIELS_CACHE_BROKER": broker, "NIELS_CACHE_VISIBILITY_SECONDS": str(int(VISIBILITY_SECONDS))}
        folder = ROOT / "deploy/celery"
        walk.env["PYTHONPATH"] += os.pathsep + str(folder)
        command = ["-m", "celery", "-A", "worker", "worker", "--concurrency", "1", "--loglevel", "info", "-Q", "dagster"]
        workers = [walk.start(*command, "-n", f"worker{number}@%h") for number in range(2)]
        with running(*workers):
            for worker in workers:
                worker.find("ready")

            def kill(pid: int) -> None:
                mine = next(worker for worker in workers if worker.process.pid == os.getsid(parent_of(pid)))
                os.killpg(mine.process.pid, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda: attempts(walk) > 1, VISIBILITY_SECONDS + 60)

            build_and_kill(walk, folder / "definitions.py", kill)
            assert has_resumed(walk)
            stop(*(worker for worker in workers if worker.process.poll() is None))
    walk.check()


def stop(*outputs: Output) -> None:
    for output in outputs:
        output.process.send_signal(signal.SIGTERM)
        output.process.wait(30)
