"""The runs and the records of a launch: each build is one run of Dagster in this process, and what is only found is an event without a run.

`niels-cache build-all` uses the same assets, checks, jobs and instance as the UI. It does not retry, and needs no daemon. Dagster itself
writes nothing to the console here. The launcher imports this module only if there is something to build or to record.
"""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg

from niels_cache_assets.artifacts.base import Artifact, Outcome
from niels_cache_assets.defs.assembly import build_defs
from niels_cache_assets.defs.assets.reports import report_records
from niels_cache_assets.defs.checks.sync import IN_SYNC
from niels_cache_assets.defs.home.abandoned import ending_abandoned_runs, recorded_run
from niels_cache_assets.defs.home.found import dagster_home
from niels_cache_assets.defs.home.home_errors import end_runs_that_cannot_record, home_errors, recorded_error_message
from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_assets.defs.jobs import job_of
from niels_cache_assets.defs.keys import names_of
from niels_cache_assets.defs.launch_events import LaunchListener
from niels_cache_assets.defs.part_slots import limit_parts
from niels_cache_assets.defs.private import NO_COMPUTE_LOGS, record_location
from niels_cache_assets.defs.progress import ProgressSink
from niels_cache_assets.defs.recording import record_found
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.errors import describe_error

BUILD_ALL = "build-all"
STARTED_TAG = "niels_cache/started_by"  # tag of a run that this module has started
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
# No captured compute logs, because they redirect stdout and stderr, which the progress bars of the listener need.
_INSTANCE_OVERRIDES = {"compute_logs": NO_COMPUTE_LOGS}
# A retry by the daemon would use the settings and cache root of the code server, which may differ from the settings of this program.
_TAGS = {"dagster/max_retries": "0", STARTED_TAG: BUILD_ALL, "user": BUILD_ALL}  # the UI shows the user under "Launched by"


class Runs(ProgressSink):
    """The runs of a launch, which pass everything that they report to the listener. The launch sets `built` and `builds_parts_here`."""

    def __init__(self, registry: Registry, root: Path, instance: dg.DagsterInstance, listener: LaunchListener) -> None:
        super().__init__()
        self._registry, self._root, self._instance, self.listener = registry, root, instance, listener
        self._names = names_of(registry)
        self._defs = build_defs({"cache_root": CacheRoot(root=str(root)), "progress_sink": self}, registry=registry)

    @cached_property
    def _asset_graph(self) -> Any:
        return self._defs.resolve_asset_graph()

    def record(self, outcome: Outcome) -> None:
        """Record an artifact that was found, unless the newest events of its assets do."""
        record_found(self._registry, self._instance, self._asset_graph, outcome, root=self._root, by=BUILD_ALL)

    def has_passed(self, artifact: Artifact, run_id: str) -> bool:
        """Return whether the checks of an artifact that block have passed in a run."""
        asset, partition = self._names.recorded_as(artifact.key)
        logged = self._instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
        evaluations = [entry.get_dagster_event().asset_check_evaluation_data for entry in logged]
        passed = {each.asset_check_key for each in evaluations if each.passed and each.partition == partition}
        checks = self._asset_graph.get_check_keys_for_assets({asset})
        return all(key in passed for key in checks if self._asset_graph.get(key).blocking)

    def build(self, artifact: Artifact, *, force: bool, wait: bool, passes_over: bool) -> tuple[Outcome | None, str]:
        """Execute the run of an artifact.

        Args:
            artifact: The artifact.
            force: Whether to build again what is current.
            wait: Whether to wait if another process builds it.
            passes_over: See ProgressSink.

        Returns:
            The outcome, and the failures of checks that do not block, except the check that covers all data sets. Without an outcome, the
            reason of the failure, or nothing if the run has passed over a part.

        Raises:
            KeyboardInterrupt: If the run was interrupted, which is then ended as canceled.
        """
        self.passes_over, self.outcome = passes_over, None
        asset, partition = self._names.recorded_as(artifact.key)
        op = self._names.stream_ops.get(artifact.kind) or asset.to_python_identifier()
        settings = {"ops": {op: {"config": {"force": force, "wait": wait}}}} if asset != self._names.index else {}
        run = self._finished_run(job_of(self._names, asset), partition, settings)
        if not run.success:
            return None, _failure_reason(run)
        found = [each for each in run.get_asset_check_evaluations() if not each.passed and each.check_name != IN_SYNC]
        return self.outcome, "; ".join(f"{each.check_name}: {each.description}" for each in found)

    def write_reports(self, *, in_run: bool) -> None:
        """Write the reports over everything. The listener gets only a failure, because the reports are not a data set.

        Args:
            in_run: Whether to execute a run, with its check. Otherwise, only events are recorded.
        """
        problem = None
        try:
            if not in_run:
                for record in report_records(self._registry, self._instance, root=self._root):
                    self._instance.report_runless_asset_event(record.event(self._instance, self._asset_graph, None, by=BUILD_ALL))
            elif not (run := self._finished_run(self._names.name("write_reports"), None, {})).success:
                problem = _failure_reason(run)
        except Exception as error:  # as in a run, any error of the reports
            problem = describe_error(error)
        if problem:
            self.listener.logged("reports", f"WARNING: not written: {problem}")

    def _finished_run(self, job: str, partition: str | None, run_config: Mapping[str, Any]) -> dg.ExecuteInProcessResult:
        """Execute a run and return its result."""
        run_id = str(uuid.uuid4())
        with recorded_run(self._instance, run_id):
            run = self._defs.resolve_job_def(job).execute_in_process(
                {**run_config, **_QUIET}, self._instance, partition, raise_on_error=False, run_id=run_id, tags=_TAGS
            )
            if _was_interrupted(run):
                self._instance.report_run_canceled(run.dagster_run, message="Interrupted from the terminal.")
                raise KeyboardInterrupt
        return run


@contextmanager
def open_runs(registry: Registry, root: Path, listener: LaunchListener) -> Iterator[Runs]:
    """Yield the runs of a launch in the Dagster home.

    Raises:
        NotWrittenError: If the Dagster home cannot record a run, for example because its disk is full.
    """
    home = dagster_home()
    with (
        home_errors(home),
        ensure_instance(home, overrides=_INSTANCE_OVERRIDES) as instance,
        ending_abandoned_runs(instance),
        end_runs_that_cannot_record(instance, home),
    ):
        limit_parts(instance, registry)
        record_location(instance, names_of(registry).location)
        yield Runs(registry, root, instance, listener)


def _was_interrupted(run: dg.ExecuteInProcessResult) -> bool:
    causes = (event.step_failure_data.error for event in run.all_events if event.is_step_failure)
    return any(cause is not None and cause.cls_name in ("DagsterExecutionInterruptedError", "KeyboardInterrupt") for cause in causes)


def _failure_reason(run: dg.ExecuteInProcessResult) -> str:
    """Return the reason of a failure in one line: the failure of a check, otherwise the error of the first failed step."""
    for evaluation in run.get_asset_check_evaluations():
        if not evaluation.passed and evaluation.severity == dg.AssetCheckSeverity.ERROR:
            return f"the check {evaluation.check_name} failed: {evaluation.description}; build it again with force (--force)"
    for event in run.all_events:
        if event.is_step_failure:
            failure = event.step_failure_data
            if failure.user_failure_data is not None and failure.user_failure_data.description:
                return failure.user_failure_data.description
            error = failure.error
            cause = error.cause if error is not None and error.cause is not None else error
            if cause is not None:
                return recorded_error_message(cause.message, dagster_home()) or " ".join(cause.message.split())
    return f"run {run.run_id} failed; the Dagster UI shows its log"
