"""The executor of every run that Dagster launches here: a process for each step, and a record of who coordinates them (abandoned.py).

It is asked before the first step asks for a place in a pool. So a run that holds one has a record, whoever launched it: the UI, the daemon,
`dagster asset materialize`, `dg launch`. `build-all` executes its runs itself, and records them itself.
"""

from collections.abc import Iterator

import dagster as dg
from dagster._core.execution.context.system import PlanOrchestrationContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.multiprocess import MultiprocessExecutor  # Dagster's own; no public name

from niels_cache_assets.defs.abandoned import ending_abandoned_runs, record_run

MAX_STEPS_AT_ONCE = 2  # of one run: a build, then its checks side by side


class _RecordedExecutor(MultiprocessExecutor):
    def execute(self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan) -> Iterator[dg.DagsterEvent]:
        record_run(plan_context.instance, plan_context.run_id)
        with ending_abandoned_runs(plan_context.instance):
            yield from super().execute(plan_context, execution_plan)


@dg.executor(name="multiprocess", requirements=dg.multiple_process_executor_requirements())
def recorded_executor(context: dg.InitExecutorContext) -> dg.Executor:
    """Make the executor of one run."""
    return _RecordedExecutor(retries=RetryMode.ENABLED, max_concurrent=MAX_STEPS_AT_ONCE)
