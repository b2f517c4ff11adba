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

from niels_cache_assets.base.processes import attended_command
from niels_cache_assets.defs.keys import IN_PROGRESS
from niels_cache_assets.defs.private import CODE_SERVER_TAG, DAEMON, wait_for_code_server
from niels_cache_runtime.errors import NielsCacheError

MODULE = "niels_cache_assets.definitions"
STARTUP_SECONDS = 180
MAX_SOCKET_BYTES = 103  # of the path of a socket, on every system
RUN_GRACE_SECONDS = 1.5  # time for a run to record its position; the next build repeats the work after that position
SERVICE_GRACE_SECONDS = 0.3


class Services:
    """The services of the UI, as a context manager.

    During the `with` block, the code server listens on a socket in `folder`. `start_daemon` adds the daemon. At the end of the block, runs
    of the code server are canceled. Queued runs stay queued until the next start.

    Raises:
        NielsCacheError: If the path of the folder is too long for a socket, or if the code server does not start.
    """

    def __init__(self, instance: dg.DagsterInstance, folder: Path, location: str) -> None:
        self._instance, self._folder, self._location = instance, folder, location
        self._socket, self.workspace = str(folder / "code_server"), folder / "workspace.yaml"
        if len(os.fsencode(self._socket)) > MAX_SOCKET_BYTES:
            raise NielsCacheError(
                f"{self._socket}: longer than the {MAX_SOCKET_BYTES} bytes of a socket; point TMPDIR at a folder with a shorter path"
            )
        self._pipe = os.pipe()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Services":
        named = ["--location-name", self._location, "--socket", self._socket]
        command = ["code-server", "start", "-m", MODULE, *named, "--log-level", "warning"]
        server = {"host": "localhost", "socket": self._socket, "location_name": self._location}
        self.workspace.write_text(json.dumps({"load_from": [{"grpc_server": server}]}), encoding="utf-8")  # JSON is YAML
        try:
            wait_for_code_server(self._start("the code server", "dagster", command), self._socket, seconds=STARTUP_SECONDS)
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
        self._start("the daemon", DAEMON, ["run", "-w", str(self.workspace), "--log-level", "warning"])

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
        unfinished = self._instance.get_runs(filters=dg.RunsFilter(statuses=IN_PROGRESS))
        return [run for run in unfinished if self._socket in run.tags.get(CODE_SERVER_TAG, "")]
