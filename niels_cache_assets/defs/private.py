"""All uses of Dagster's private modules, each with its reason. An update of Dagster may change them, and no other module imports them."""

import subprocess
import time
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset as AssetGraphSubset  # what a backfill builds
from dagster._core.event_api import PartitionKeyFilter as PartitionKeyFilter  # of a query for the results of a check
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext
from dagster._core.executor import in_process
from dagster._core.instance.ref import InstanceRef as InstanceRef  # the documented way to open a home with settings of this process
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.storage.asset_check_execution_record import COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES
from dagster._core.storage.event_log.sqlite import sqlite_event_log as sqlite_event_log  # creates an engine for each event

DAEMON = "dagster._daemon"  # the module of the program dagster-daemon, which needs no search for the program
# Dagster's documentation names this class for dagster.yaml.
NO_COMPUTE_LOGS = {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}
CODE_SERVER_TAG = ".dagster/grpc_info"  # the default launcher records the code server of a run in this tag
COMPLETED = COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES  # leaves out the checks of killed runs, which have no result
_POLL_SECONDS = 1.0


class PoolClaims(InstanceConcurrencyContext):
    """The claims of one run for slots of pools, without two defects that waiting runs have in Dagster 1.13.

    * A run that executes its steps in its own process polled for its turn without a pause, which took a whole core.
    * A step that began to wait while the last slot was given back was never assigned one, unless another step gave one back later.
    """

    def claim(self, concurrency_key: str, step_key: str, step_priority: int = 0) -> bool:
        if super().claim(concurrency_key, step_key, step_priority):
            return True
        storage: Any = self._instance.event_log_storage  # only storages in SQL have these two methods
        if hasattr(storage, "assign_pending_steps") and storage.has_unassigned_slots(concurrency_key):
            storage.assign_pending_steps([concurrency_key])
        return False

    def interval_to_next_pending_claim_check(self) -> float:
        """Return how long a run sleeps before it polls again, in seconds. It then also checks whether it was interrupted."""
        ready = min(self._pending_timeouts.values(), default=0.0)
        return max(0.0, min(_POLL_SECONDS, ready - time.time()))


in_process.InstanceConcurrencyContext = PoolClaims  # type: ignore[misc]


def record_location(instance: dg.DagsterInstance, location: str) -> None:
    """Record a code location with every run that this instance creates. `execute_in_process` records none.

    Without it, the UI shows a run on no timeline and below no job.
    """
    create, repository = instance.create_run_for_job, RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), "__repository__")

    def create_in_location(job_def: dg.JobDefinition, **settings: Any) -> dg.DagsterRun:
        return create(job_def, **{**settings, "remote_job_origin": repository.get_job_origin(job_def.name)})

    instance.create_run_for_job = create_in_location  # type: ignore[assignment,method-assign]


def wait_for_code_server(process: "subprocess.Popen[bytes]", socket: str, *, seconds: int) -> None:
    """Wait until a code server answers. Raise an exception if it ends or takes longer. No public function asks a server."""
    from dagster._grpc.client import DagsterGrpcClient
    from dagster._grpc.server import wait_for_grpc_server

    wait_for_grpc_server(process, DagsterGrpcClient(socket=socket), ["dagster", "code-server", "start"], timeout=seconds)


def web_context(instance: dg.DagsterInstance, workspace: Path, **settings: Any) -> Any:
    """Return what the web server shows, because Dagster has no hook for a guard in front of the server that its own command starts."""
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import WorkspaceFileTarget

    return WorkspaceProcessContext(instance, workspace_load_target=WorkspaceFileTarget([str(workspace)]), **settings)
