"""The executor of every run that Dagster launches here: a process for each step, and a record of who coordinates them (abandoned.py).

It is asked before the first step begins. So a run whose steps have begun has a record, whoever launched it: the UI, the daemon,
`dagster asset materialize`, `dg launch`. `build-all` executes its runs itself, and records them itself. A run that cannot be recorded is
executed all the same, with a warning.
"""

from collections.abc import Iterator

import dagster as dg
from dagster._core.execution.context.system import PlanOrchestrationContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.multiprocess import MultiprocessExecutor  # Dagster's own; no public name

from niels_cache_assets.defs.home.abandoned import ending_abandoned_runs, record_run
from niels_cache_runtime.errors import NielsCacheError

MAX_STEPS_AT_ONCE = 2  # of one run: a build, then its checks side by side


class _RecordedExecutor(MultiprocessExecutor):
    def execute(self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan) -> Iterator[dg.DagsterEvent]:
        try:
            record_run(plan_context.instance, plan_context.run_id)
        except NielsCacheError as error:  # a home that is read-only beside a database elsewhere, or without locks
            plan_context.log.warning(f"this run is not recorded, so it would show as running if its process were killed: {error}")
        with ending_abandoned_runs(plan_context.instance):
            yield from super().execute(plan_context, execution_plan)


@dg.executor(name="multiprocess", requirements=dg.multiple_process_executor_requirements())
def recorded_executor(context: dg.InitExecutorContext) -> dg.Executor:
    """Make the executor of one run."""
    return _RecordedExecutor(retries=RetryMode.ENABLED, max_concurrent=MAX_STEPS_AT_ONCE)
