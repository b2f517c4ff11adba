"""A published cache: a copy of a cache in an object store. It is not in a root, so it is not an artifact that `materialize` builds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from niels_cache_assets.publish.push import Pushed, local_build, push
from niels_cache_runtime.format.layout import Family, dataset_dir


@dataclass(frozen=True, kw_only=True)
class PublishedCache:
    """The cache of a data set at its address in [publish]."""

    family: Family
    name: str
    address: str
    root: Path

    @property
    def key(self) -> str:
        return f"published/{self.family}/{self.name}"

    def inputs(self) -> Sequence[str]:
        """Return the key of the cache that is published."""
        return [f"{self.family}/{self.name}"]

    def publish(self) -> Pushed:
        """Push the cache in the root. Another build of this data set at the address is exchanged. Raises the errors of `push`."""
        build = local_build(dataset_dir(self.root, self.family, self.name))
        return push(build, self.address, replace_other=True)
