"""Resources: where the caches lie, and who is told. Opening caches is the runtime's work, and settings of a data set are the registry's.

Nobody configures them: `build_defs` is given them. So they stand in no run configuration, and the launchpad offers the settings of a
build only.
"""

from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from dagster._core.definitions.definition_config_schema import DefinitionConfigSchema  # no public name

from niels_cache_assets.defs.home.abandoned import begin_step


@dataclass(frozen=True)
class CacheRoot:
    """The folder that holds tokenizer/, pretrain/ and sft/. A relative one is relative to where Dagster was started.

    `~` is a name like any other here: `registry.cache_root` expands that of NIELS_CACHE_ROOT, [build] cache_dir and --cache-dir.
    """

    root: str

    @property
    def path(self) -> Path:
        return Path(self.root).absolute()


class _NoSchema(DefinitionConfigSchema):
    """Dagster leaves out of a run configuration what has a schema that is false."""

    def __bool__(self) -> bool:
        return False


class _Unconfigured(dg.ResourceDefinition):
    """A resource that takes no configuration. Dagster's own takes any, and offers it in the launchpad."""

    @property
    def config_schema(self) -> DefinitionConfigSchema:
        return _NoSchema(dg.Field({}))

    @property
    def has_config_field(self) -> bool:
        return False


def unconfigured(value: object) -> dg.ResourceDefinition:
    """A resource that is this value. The cache root, which every op here asks for, also begins the step, before its op does."""

    def provide(context: dg.InitResourceContext) -> object:
        if isinstance(value, CacheRoot) and context.run is not None and context.instance is not None and not context.instance.is_ephemeral:
            begin_step(context.instance, context.run.run_id)
        return value

    return _Unconfigured(provide, description=(type(value).__doc__ or "").partition("\n")[0])
