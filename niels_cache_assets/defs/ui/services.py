"""The two processes behind the web UI: a code server, and the daemon, which launches queued runs and backfills.

`dagster dev` starts the same processes. These services run in their own sessions, so that Ctrl-C in the terminal reaches only the main
process. After Ctrl-C, the main process ends the runs first and the services afterwards. The services also end whenever the main process
ends (niels_cache_assets.base.processes).
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import dagster as dg
from dagster._core.instance.ref import InstanceRef  # the class of the settings that a process reads from a home; it has no public name
from dagster._core.storage.tags import GRPC_INFO_TAG  # the default launcher records the code server of a run in this tag
from dagster._core.workspace.load_target import GrpcServerTarget
from dagster._grpc.client import DagsterGrpcClient
from dagster._grpc.server import wait_for_grpc_server

from niels_cache_assets.base.processes import attended_command
from niels_cache_assets.defs.home.instance import dagster_home
from niels_cache_runtime.errors import NielsCacheError

MODULE = "niels_cache_assets.definitions"
LOCATION = "niels_cache_assets"
DAEMON = "dagster._daemon"
STARTUP_SECONDS = 180
RUN_GRACE_SECONDS = 1.5  # time for a run to record its position; the next build repeats the work after that position
SERVICE_GRACE_SECONDS = 0.3

_IN_PROGRESS = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]


class Services:
    """The services of the UI, as a context manager.

    During the `with` block, the code server listens on a socket in `folder`. `start_daemon` adds the daemon. At the end of the block, runs
    of the code server are canceled. Queued runs stay queued until the next start.
    """

    def __init__(self, instance: dg.DagsterInstance, folder: Path) -> None:
        self._instance, self._folder = instance, folder
        self._socket = str(folder / "code_server")
        self._pipe = os.pipe()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def target(self) -> GrpcServerTarget:
        return GrpcServerTarget(host="localhost", port=None, socket=self._socket, location_name=LOCATION)

    def __enter__(self) -> "Services":
        command = ["code-server", "start", "-m", MODULE, "--location-name", LOCATION, "--socket", self._socket, "--log-level", "warning"]
        command += self._instance_option()
        try:
            process = self._start("the code server", "dagster", command)
            wait_for_grpc_server(process, DagsterGrpcClient(socket=self._socket), command, timeout=STARTUP_SECONDS)
        except BaseException as error:
            self._stop()
            if isinstance(error, Exception):
                raise NielsCacheError(f"the code server of the UI does not start: {error}") from error
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def start_daemon(self) -> None:
        """Start the daemon, which ends with the `with` block."""
        workspace = self._folder / "workspace.yaml"
        server = {"host": "localhost", "socket": self._socket, "location_name": LOCATION}
        workspace.write_text(json.dumps({"load_from": [{"grpc_server": server}]}), encoding="utf-8")  # JSON is YAML
        self._start("the daemon", DAEMON, ["run", "-w", str(workspace), "--log-level", "warning", *self._instance_option()])

    def _instance_option(self) -> list[str]:
        """Return the command line option that passes the current settings of the instance.

        Return no option if dagster.yaml has an entry for telemetry. Every user of the machine can see the settings in a command line, and
        dagster.yaml may contain a database password.
        """
        if self._instance.is_ephemeral:
            return []
        ref = self._instance.get_ref()
        is_default = InstanceRef.from_dir(str(dagster_home())) == ref
        return [] if is_default else ["--instance-ref", dg.serialize_value(ref)]

    def check(self) -> None:
        """Check that both services still run.

        Raises:
            NielsCacheError: If a service has ended.
        """
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise NielsCacheError(f"{name} of the UI ended by itself (exit code {process.returncode}); see its messages above")

    def _start(self, name: str, module: str, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
        read_end = self._pipe[0]
        self._processes[name] = subprocess.Popen(
            attended_command(read_end, module, *arguments),
            pass_fds=[read_end],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(self._folder)},  # so that files of a killed process are removed with the folder
        )
        return self._processes[name]

    def _stop(self) -> None:
        """Stop the daemon, then the runs, then the code server that executes the runs. This takes at most about two seconds."""
        # The code server ends last. The list is empty if the code server could not be started.
        processes = [*reversed(self._processes.values())]
        for process in processes[:-1]:
            process.send_signal(signal.SIGINT)
        with suppress(Exception):  # errors of the instance's storage; the processes are ended in any case
            self._cancel_runs()
        for process in processes[-1:]:
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + SERVICE_GRACE_SECONDS
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # kills the whole session, so no child process stays
            process.wait()
        for run in self._runs():
            self._instance.report_run_canceled(run, message="The UI in which it ran was stopped.")
        for end in self._pipe:
            os.close(end)

    def _cancel_runs(self) -> None:
        """Ask the runs of the code server to end, and wait until they have ended or RUN_GRACE_SECONDS are over."""
        for run in self._runs():
            with suppress(Exception):  # errors of gRPC and Dagster; a code server without an answer is killed with its runs
                self._instance.run_launcher.terminate(run.run_id)
        deadline = time.monotonic() + RUN_GRACE_SECONDS
        while time.monotonic() < deadline and self._runs():
            time.sleep(0.05)

    def _runs(self) -> list[dg.DagsterRun]:
        unfinished = self._instance.get_runs(filters=dg.RunsFilter(statuses=_IN_PROGRESS))
        return [run for run in unfinished if self._socket in run.tags.get(GRPC_INFO_TAG, "")]
