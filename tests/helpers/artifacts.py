"""A kind of artifact in one class, which is a folder with a line of text. Tests of the protocol build it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import Artifact, BuildJob, WriteResult
from niels_cache_assets.project.registry import Registry, load_registry


@dataclass(frozen=True, kw_only=True)
class Line(Artifact):
    """The artifact. Its meta.json in `folder` has the text. `before`: called before the artifact is written."""

    folder: Path
    text: str = "text"
    before: Callable[[], object] = lambda: None

    @property
    def registry(self) -> Registry:
        return load_registry(profile="quickstart")

    @property
    def key(self) -> str:
        return f"line/{self.folder.name}"

    @property
    def directory(self) -> Path:
        return self.folder

    def identity(self, revision: str | None) -> dict[str, Any]:
        return {"text": self.text}

    def write(self, work: BuildJob) -> WriteResult:
        self.before()
        return WriteResult(meta={"kind": "line", "text": self.text, "fingerprint": work.fingerprint, "files": {}})
