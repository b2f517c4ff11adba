"""The project, with steps that run on the workers of a Dask cluster. NIELS_CACHE_DASK is the address of its scheduler.

dagster-dask gives a task of Dask the name of its job and step. All parts have the same job and step, so two runs on one scheduler would
share one task, and one of the parts would not be built. The executor here adds the id of the run to the name.
"""

import copy
import os
from collections.abc import Iterator

import dagster as dg
from dagster._core.execution.context.system import PlanOrchestrationContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster_dask.executor import DaskExecutor

from niels_cache_assets.defs.assembly import build_defs


class _NamedByRun(PlanOrchestrationContext):
    @property
    def job_name(self) -> str:
        return f"{super().job_name}.{self.run_id}"


class _DaskExecutor(DaskExecutor):
    def execute(self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan) -> Iterator[dg.DagsterEvent]:
        named = copy.copy(plan_context)
        named.__class__ = _NamedByRun
        return super().execute(named, execution_plan)


@dg.executor(name="dask", requirements=dg.multiple_process_executor_requirements())
def dask_executor(context: dg.InitExecutorContext) -> dg.Executor:
    """Return the executor of one run."""
    return _DaskExecutor("existing", {"address": os.environ.get("NIELS_CACHE_DASK", "tcp://127.0.0.1:8786")})


defs = build_defs(executor=dask_executor)
