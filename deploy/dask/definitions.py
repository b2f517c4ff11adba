"""The project, with steps that run on the workers of a Dask cluster. NIELS_CACHE_DASK is the address of its scheduler.

The executor of dagster-dask 0.29 cannot be used for parts, for two reasons. It gives a task of Dask the name of its job and step, which all
parts share. So of two runs on one scheduler, Dask would execute one, and hand its result to both. And it passes Dagster's records as
arguments, which Dask refuses since its version 2025. The executor here names the run, and passes the arguments with the function.
"""

import os
from collections.abc import Iterator
from functools import partial

import dagster as dg
from dagster._core.errors import raise_execution_interrupts
from dagster._core.execution.context.system import PlanOrchestrationContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode
from dagster._utils import iterate_with_context
from dagster_dask.executor import query_on_dask_worker
from distributed import Client, as_completed

from niels_cache_assets.defs.assembly import build_defs


class DaskExecutor(dg.Executor):
    """An executor that submits each step of a run to the scheduler at `address`, level by level."""

    def __init__(self, address: str) -> None:
        self._address = address

    @property
    def retries(self) -> RetryMode:
        return RetryMode.DISABLED  # Dask itself moves the step of a killed worker to another one

    def execute(self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan) -> Iterator[dg.DagsterEvent]:
        run, job = plan_context.dagster_run, plan_context.reconstructable_job
        shared = (plan_context.instance.get_ref(), execution_plan.known_state)
        with Client(self._address) as client:
            for level in execution_plan.get_steps_to_execute_by_level():
                futures = [
                    client.submit(
                        partial(query_on_dask_worker, [], job, run, plan_context.run_config, [step.key], *shared),
                        key=f"{run.run_id}.{step.key}",
                    )
                    for step in level
                ]
                ended = as_completed(futures, with_results=True)
                events = [event for _, result in iterate_with_context(raise_execution_interrupts, ended) for event in result]
                yield from events
                if any(event.is_step_failure for event in events):
                    return


@dg.executor(name="dask", requirements=dg.multiple_process_executor_requirements())
def dask_executor(context: dg.InitExecutorContext) -> dg.Executor:
    """Return the executor of one run."""
    return DaskExecutor(os.environ.get("NIELS_CACHE_DASK", "tcp://127.0.0.1:8786"))


defs = build_defs(executor=dask_executor)
