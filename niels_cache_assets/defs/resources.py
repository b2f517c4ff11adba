"""Resources: where the caches lie. Opening them is the runtime's work, and settings of a data set are the registry's."""

from pathlib import Path

import dagster as dg
from pydantic import Field

from niels_cache_assets.defs.abandoned import begin_step


class CacheRoot(dg.ConfigurableResource):
    """The folder that holds tokenizer/, pretrain/ and sft/. A relative one is relative to where Dagster was started.

    `~` is a name like any other here: `registry.cache_root` expands that of NIELS_CACHE_ROOT, [build] cache_dir and --cache-dir.
    """

    root: str = Field(description="Folder of all caches; the default is [build] cache_dir or NIELS_CACHE_ROOT")

    @property
    def path(self) -> Path:
        return Path(self.root).absolute()

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Begin a step, before its op does: every op here has this resource."""
        if context.run is not None and context.instance is not None and not context.instance.is_ephemeral:
            begin_step(context.instance, context.run.run_id)
