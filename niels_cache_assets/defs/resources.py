"""The resources and the executor of every run: the cache root (the folder of all caches), the progress sink, and the executor.

The resources take no run configuration, because `build_defs` gets their values. So the launchpad offers only the settings of a build. The
executor records the coordinator of a run (home/abandoned.py) before the first step begins. So every run has a record as soon as its first
step begins, whether the UI, the daemon, `dagster asset materialize` or `dg launch` launched it. `build-all` executes and records its runs
itself. If a run cannot be recorded, it is still executed, with a warning.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from dagster._core.definitions.definition_config_schema import DefinitionConfigSchema  # no public name
from dagster._core.execution.context.system import PlanOrchestrationContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode
from dagster._core.executor import in_process  # Dagster's own executors, which have no public names
from dagster._core.executor.in_process import InProcessExecutor
from dagster._core.executor.multiprocess import MultiprocessExecutor

from niels_cache_assets.defs import keys
from niels_cache_assets.defs.home.abandoned import begin_step, ending_abandoned_runs, record_run
from niels_cache_assets.defs.part_slots import PoolClaims, limit_parts
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.errors import NielsCacheError


@dataclass(frozen=True)
class CacheRoot:
    """The folder that holds tokenizer/, pretrain/ and sft/. A relative path is relative to the folder where Dagster was started.

    `~` has no special meaning here. In NIELS_CACHE_ROOT, [build] cache_dir and --cache-dir, `registry.cache_root` expands it earlier.
    """

    root: str

    @property
    def path(self) -> Path:
        return Path(self.root).absolute()


RootParam = dg.ResourceParam[CacheRoot]  # the parameter of an op that gets the resource `cache_root`


class _NoSchema(DefinitionConfigSchema):
    """A schema whose truth value is False. Dagster leaves a resource with such a schema out of the run configuration."""

    def __bool__(self) -> bool:
        return False


class _Unconfigured(dg.ResourceDefinition):
    """A resource that takes no configuration. A plain ResourceDefinition accepts any configuration, and the launchpad shows it."""

    @property
    def config_schema(self) -> DefinitionConfigSchema:
        return _NoSchema(dg.Field({}))

    @property
    def has_config_field(self) -> bool:
        return False


def unconfigured(value: object) -> dg.ResourceDefinition:
    """Return a resource with this value. Every op uses the cache root, so its resource also calls `begin_step`."""

    def provide(context: dg.InitResourceContext) -> object:
        if isinstance(value, CacheRoot) and context.run is not None and context.instance is not None and not context.instance.is_ephemeral:
            begin_step(context.instance, context.run.run_id)
        return value

    return _Unconfigured(provide, description=(type(value).__doc__ or "").partition("\n")[0])


MAX_STEPS_AT_ONCE = 2  # steps of one run: a build, then its checks in parallel
in_process.InstanceConcurrencyContext = PoolClaims  # type: ignore[misc]


class _RecordedExecutor(MultiprocessExecutor):
    """The executor of one run.

    If no launch has set the limit of the pool `parts`, the executor sets it. Otherwise Dagster would set its default limit, and two runs
    that do this at the same time fail in Postgres.
    """

    def __init__(self, registry: Registry) -> None:
        super().__init__(retries=RetryMode.ENABLED, max_concurrent=MAX_STEPS_AT_ONCE)
        self._registry = registry

    def execute(self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan) -> Iterator[dg.DagsterEvent]:
        try:
            record_run(plan_context.instance, plan_context.run_id)
        except NielsCacheError as error:  # a read-only home with its database elsewhere, or a file system without locks
            plan_context.log.warning(f"this run is not recorded, so it would still show as running if its process were killed: {error}")
        pools = [step.pool for step in execution_plan.get_steps_to_execute_in_topo_order()]
        if keys.PARTS_POOL in pools:
            limit_parts(plan_context.instance, self._registry, if_new=True)
        here = InProcessExecutor(self.retries, self.step_dependency_config)
        # The one step of a part only waits for its child. A process of its own would import Dagster again, which takes three seconds.
        execute = here.execute if pools == [keys.PARTS_POOL] else super().execute
        with ending_abandoned_runs(plan_context.instance):
            yield from execute(plan_context, execution_plan)


def recorded_executor(registry: Registry) -> dg.ExecutorDefinition:
    """Return the executor of runs."""

    @dg.executor(name="multiprocess", requirements=dg.multiple_process_executor_requirements())
    def of_one_run(context: dg.InitExecutorContext) -> dg.Executor:
        return _RecordedExecutor(registry)

    return of_one_run
