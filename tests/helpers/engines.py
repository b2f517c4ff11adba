"""Clusters of Slurm, Ray and Dask on this machine.

Slurm and Ray listen beyond loopback, whatever their settings say, so each runs in a network of its own with one address. Programs there
have the files and the process ids of this machine. Only root may make such a network, so other users skip the walk.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.cluster_walk import Output, PartsWalk, running, stop, wait_until
from tests.helpers.servers import ended, free_port, processes_of, program

ADDRESS, HOST = "10.77.0.1", "node1"
CORES = 4
# 127.0.0.1 alone is not enough: Slurm asks for the name of its host.
_BEGIN = (
    "ip link set lo up && ip addr add {address}/32 dev lo && hostname {host} && mount --bind {hosts} /etc/hosts && echo ready && exec cat"
)
_SLURM = f"""ClusterName=walk
SlurmctldHost={HOST}({ADDRESS})
SlurmUser=root
AuthInfo=socket={{folder}}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
StateSaveLocation={{folder}}/state
SlurmdSpoolDir={{folder}}/spool
SlurmctldPidFile={{folder}}/slurmctld.pid
SlurmdPidFile={{folder}}/slurmd.pid
KillWait=2
NodeName={HOST} NodeAddr={ADDRESS} CPUs=32 RealMemory=999999
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@contextmanager
def namespace(folder: Path) -> Iterator[list[str]]:
    """Make a namespace, and yield the words before a command that runs in it. At the end, kill what names the folder."""
    unshare, enter = program("unshare", "util-linux"), program("nsenter", "util-linux")
    program("ip", "iproute2")
    if os.geteuid() != 0:
        pytest.skip("only root may make a network and mount a file of hosts")
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{ADDRESS} {HOST}\n")
    begin = _BEGIN.format(address=ADDRESS, host=HOST, hosts=folder / "hosts")
    start = [unshare, "--net", "--uts", "--mount", "sh", "-c", begin]
    with subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process, ended(process):
        assert process.stdout is not None
        if (line := process.stdout.readline()) != b"ready\n":
            pytest.skip(f"this process may not make a network or mount a file: {line.decode().strip()}")
        try:
            yield [enter, "--target", str(process.pid), "--net", "--uts", "--mount", f"--wd={folder}"]
        finally:
            for pid in processes_of(folder):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def slurm(walk: PartsWalk) -> Iterator[None]:
    """Run munged, slurmctld and slurmd, one node that claims 32 cores. The walk's programs run where they find this cluster."""
    folder = walk.folder / "slurm"
    for name in ("", "state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o400)
    (folder / "slurm.conf").write_text(_SLURM.format(folder=folder))
    files = [f"--{name}={folder / f'munge.{name}'}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    daemons = [
        [program("munged", "munge"), "--foreground", "--force", f"--key-file={folder / 'munge.key'}", *files],
        [program("slurmctld", "slurm-wlm"), "-D", "-f", str(folder / "slurm.conf")],
        [program("slurmd", "slurm-wlm"), "-D", "-f", str(folder / "slurm.conf"), "-N", HOST],
    ]
    with namespace(walk.folder) as walk.prefix, ExitStack() as stack, open(folder / "log", "wb") as log:
        walk.env["SLURM_CONF"] = str(folder / "slurm.conf")
        for command in daemons:
            stack.enter_context(ended(subprocess.Popen([*walk.prefix, *command], stdout=log, stderr=log)))
            wait_until((folder / "munge.socket").exists, 20)
        wait_until(lambda: "idle" in answer(walk, "sinfo", "--noheader", "--format=%t"), 30, pause=0.2)
        try:
            yield
        finally:
            answer(walk, "scancel", "--user=root")


@contextmanager
def ray(walk: PartsWalk) -> Iterator[None]:
    """Run a node of Ray with four cores. The walk's programs run where they find this cluster."""
    if find_spec("ray") is None:
        pytest.skip("there is no ray: pip install -e '.[ray]'")
    # Not in the walk's folder: the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ray-") as folder, namespace(Path(folder)) as walk.prefix:
        walk.env |= {"RAY_ADDRESS": f"{ADDRESS}:6379", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_DEDUP_LOGS": "0"}
        options = {"node-ip-address": ADDRESS, "port": 6379, "num-cpus": CORES, "object-store-memory": 80_000_000, "temp-dir": folder}
        words = [f"--{name}={value}" for name, value in options.items()]
        # `ray stop` would stop every Ray of this machine.
        head = walk.start("-m", "ray.scripts.scripts", "start", "--head", "--block", "--include-dashboard=false", *words)
        with running(head), ended(head.process):
            head.find("runtime started")
            yield


@contextmanager
def dask(walk: PartsWalk) -> Iterator[Output]:
    """Run a scheduler and two workers, and yield the output of the workers. They are stopped after the block."""
    pytest.importorskip("distributed")
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    walk.env["NIELS_CACHE_DASK"] = address
    scheduler = walk.start("-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
    with running(scheduler):
        scheduler.find("Scheduler at")
        options = ["--nworkers", "2", "--nthreads", "1", "--nanny", "--no-dashboard", "--local-directory", str(walk.folder)]
        workers = walk.start("-m", "distributed.cli.dask_worker", address, *options)
        with running(workers):
            yield workers
            stop(workers, scheduler)


def answer(walk: PartsWalk, *command: str) -> str:
    """Run a program that ends by itself, and return what it prints."""
    asked = ask(walk, *command)
    asked.check_returncode()
    return asked.stdout.strip()


def ask(walk: PartsWalk, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program that may be refused because the state has changed meanwhile."""
    return subprocess.run([*walk.prefix, *command], env=walk.env, cwd=walk.folder, stdout=subprocess.PIPE, text=True, check=False)
