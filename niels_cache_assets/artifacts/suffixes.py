"""The index of a data set's cache for `niels-cache find`, which exists only for the data sets that [find] names.

niels_cache_inspection/find/index.py writes it and searches in it. It belongs to the tokens of one build: when the cache is built again with
other tokens, the index is stale, and no search uses it. An interrupted build starts from the beginning.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import BuildJob, RootArtifact, WriteResult
from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.base.fingerprint import Identity
from niels_cache_assets.disk.space import SpaceNeed
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import read_meta


def suffixes_dir(root: Path, name: str) -> Path:
    """Return the folder of the index of a data set."""
    return root / "suffixes" / name


@dataclass(frozen=True, kw_only=True)
class SuffixIndex(RootArtifact):
    """The index of one cache."""

    name: str

    @property
    def key(self) -> str:
        return f"suffixes/{self.name}"

    @property
    def directory(self) -> Path:
        return suffixes_dir(self.root, self.name)

    @property
    def cache(self) -> Path:
        """The folder of the cache."""
        return self.root / self.inputs()[0]

    def inputs(self) -> Sequence[str]:
        return [f"{self.registry.family_of(self.name)}/{self.name}"]

    def identity(self, revision: str | None = None) -> Identity:
        return {
            "inputs": {self.inputs()[0]: read_meta(self.cache / META_NAME)["content_sha256"]},
            "range_tokens": self.registry.find.range_tokens,
            "code_version": self._module.CODE_VERSION,
        }

    @property
    def _module(self) -> Any:
        return load_beside("inspection", "find.index")

    def owns(self, name: str) -> bool:
        return name == META_NAME or name.endswith(".bin")

    def need(self) -> SpaceNeed:
        return self._module.index_need(self)

    def write(self, work: BuildJob) -> WriteResult:
        return WriteResult(meta=self._module.build_index(self, work))
