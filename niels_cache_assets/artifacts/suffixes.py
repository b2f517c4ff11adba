"""The index of a data set's cache for `niels-cache find`, which exists only for the data sets that [find] names.

niels_cache_inspection/find/index.py writes it and searches in it. It belongs to the tokens of one build: when the cache is built again with
other tokens, the index is stale, and no search uses it. An interrupted build starts from the beginning.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from niels_cache_assets.artifacts.base import BuildJob, ReportedProgress, RootArtifact, WriteResult
from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.base.fingerprint import Identity
from niels_cache_assets.disk.identity import without_keys
from niels_cache_assets.disk.space import SpaceNeed
from niels_cache_assets.disk.writers import Files
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import content_sha256, read_meta
from niels_cache_runtime.format.reading import available_threads


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

    def inputs(self) -> Sequence[str]:
        return [f"{self.registry.family_of(self.name)}/{self.name}"]

    def identity(self, revision: str | None = None) -> Identity:
        return {
            "inputs": {key: read_meta(self.root / key / META_NAME)["content_sha256"] for key in self.inputs()},
            "range_tokens": self.registry.find.range_tokens,
            "code_version": self._module.CODE_VERSION,
        }

    @property
    def _module(self) -> ModuleType:
        return load_beside("inspection", "find.index")

    def owns(self, name: str) -> bool:
        return name == META_NAME or name.endswith(".bin")

    def need(self) -> SpaceNeed:
        size = self._module.index_bytes(self.root / self.inputs()[0])
        return SpaceNeed(bytes=size, reason=f"the index of {self.name}")

    def write(self, work: BuildJob) -> WriteResult:
        files: Files = {}
        counts = self._module.write_index(
            work.directory,
            cache=self.root / self.inputs()[0],
            content_sha256=work.identity["inputs"][self.inputs()[0]],
            range_tokens=self.registry.find.range_tokens,
            threads=self.registry.build.threads or available_threads(),
            files=files,
            report=lambda done, total: work.report(ReportedProgress(counts={"tokens": done}, share=done / total)),
        )
        meta = {
            "kind": self.kind,
            "built": True,
            "dataset_name": self.name,
            **without_keys(work.identity, "code_version"),
            "fingerprint": work.fingerprint,
            **counts,
            "files": files,
            "content_sha256": content_sha256(files),
        }
        return WriteResult(meta=meta)
