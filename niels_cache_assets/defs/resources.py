"""The resources and the executor of every run: the cache root (the folder of all caches), the progress sink, and the executor.

The resources take no run configuration, because `build_defs` gets their values. So the launchpad offers only the settings of a build. The
executor records the coordinator of a run (home/abandoned.py) before the first step begins. So every run has a record as soon as its first
step begins, whether the UI, the daemon, `dagster asset materialize` or `dg launch` launched it. `build-all` executes and records its runs
itself. If a run cannot be recorded, it is still executed, with a warning.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from niels_cache_assets.defs.home.abandoned import begin_step, ending_abandoned_runs, record_run
from niels_cache_assets.defs.keys import DefinitionNames, names_of
from niels_cache_assets.defs.part_slots import limit_parts
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


def root_of(context: Any, names: DefinitionNames) -> Path:
    """Return the cache root, in a step or a tick of a sensor, from its resource."""
    resource: CacheRoot = getattr(context.resources, names.cache_root)
    return resource.path


class _NoField(dg.Field):
    """A schema whose truth value is False. Dagster leaves a resource with such a schema out of the run configuration."""

    def __bool__(self) -> bool:
        return False


class _Unconfigured(dg.ResourceDefinition):
    """A resource that takes no configuration. A plain ResourceDefinition accepts any configuration, and the launchpad shows it."""

    has_config_field = False
    config_schema: Any = _NoField({})


def unconfigured(value: object) -> dg.ResourceDefinition:
    """Return a resource with this value. Every op uses the cache root, so its resource also calls `begin_step`."""

    def provide(context: dg.InitResourceContext) -> object:
        if isinstance(value, CacheRoot) and context.run is not None and context.instance is not None and not context.instance.is_ephemeral:
            begin_step(context.instance, context.run.run_id)
        return value

    return _Unconfigured(provide, description=(type(value).__doc__ or "").partition("\n")[0])


_STEPS_AT_ONCE = 2  # steps of one run: a build, then its checks in parallel


class _RecordedExecutor(dg.Executor):
    """The executor of one run.

    If no launch has set the limit of the pool `parts`, the executor sets it. Otherwise Dagster would set its default limit, and two runs
    that do this at the same time fail in Postgres.

    Args:
        registry: The configuration.
        here: Executes steps in this process.
        apart: Executes each step in a process of its own.
    """

    def __init__(self, registry: Registry, *, here: dg.Executor, apart: dg.Executor) -> None:
        self._registry, self._here, self._apart = registry, here, apart

    @property
    def retries(self) -> Any:
        return self._apart.retries

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dg.DagsterEvent]:
        try:
            record_run(plan_context.instance, plan_context.run_id)
        except NielsCacheError as error:  # a read-only home with its database elsewhere, or a file system without locks
            plan_context.log.warning(f"this run is not recorded, so it would still show as running if its process were killed: {error}")
        pools = [step.pool for step in execution_plan.get_steps_to_execute_in_topo_order()]
        names = names_of(self._registry)
        if names.parts_pool in pools:
            limit_parts(plan_context.instance, self._registry, if_new=True)
        # The one step of a part only waits for its child. A process of its own would import Dagster again, which takes three seconds.
        executor = self._here if pools == [names.parts_pool] else self._apart
        with ending_abandoned_runs(plan_context.instance):
            yield from executor.execute(plan_context, execution_plan)


def recorded_executor(registry: Registry) -> dg.ExecutorDefinition:
    """Return the executor of runs, which uses Dagster's own executors."""

    @dg.executor(name="multiprocess", requirements=dg.multiple_process_executor_requirements())
    def of_one_run(context: dg.InitExecutorContext) -> dg.Executor:
        configured = context._replace(executor_config={"retries": {"enabled": {}}, "max_concurrent": _STEPS_AT_ONCE})
        here, apart = dg.in_process_executor.executor_creation_fn, dg.multiprocess_executor.executor_creation_fn
        assert here is not None
        assert apart is not None
        return _RecordedExecutor(registry, here=here(configured), apart=apart(configured))

    return of_one_run
