"""A build of a cache that is no artifact: into any folder, as the public builders make it."""

from pathlib import Path
from typing import Any, Protocol

from niels_cache_assets.build_cache.resuming import Resume, answer_if_asked
from niels_cache_assets.disk.staging import atomic_directory
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import Meta, write_meta


class CacheBuild(Protocol):
    """A build whose settings are checked. Artifacts and the public builders write by it."""

    @property
    def identity(self) -> dict[str, Any]:
        """Return what it knows that decides the bytes, for its journal."""

    def write(self, partial: Path, resume: Resume | None) -> tuple[Meta, int]:
        """Write all but meta.json into `partial`; return meta.json, and how many of the tokens an earlier, stopped build had made."""


def build_alone(build: CacheBuild, out_dir: str, resume: Resume | None) -> int:
    """Build in the place of `out_dir`; return the tokens that an earlier, stopped build had made."""
    answer_if_asked(resume, identity=build.identity)
    with atomic_directory(out_dir, resumable=resume is not None) as partial:
        meta, resumed = build.write(partial, resume)
        write_meta(str(partial / META_NAME), meta)
    return resumed
