"""Resources: where the caches lie. Opening them is the runtime's work, and settings of a data set are the registry's."""

from pathlib import Path

import dagster as dg
from pydantic import Field


class CacheRoot(dg.ConfigurableResource):
    """The folder that holds tokenizer/, pretrain/ and sft/. A relative one is relative to where Dagster was started.

    `~` is a name like any other here: `registry.cache_root` expands that of NIELS_CACHE_ROOT, [build] cache_dir and --cache-dir.
    """

    root: str = Field(description="Folder of all caches; the default is [build] cache_dir or NIELS_CACHE_ROOT")

    @property
    def path(self) -> Path:
        return Path(self.root).absolute()
