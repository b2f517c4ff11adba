"""Records of engines that outlive a build, because other processes need them: small files beside caches, which decide no byte.

A *refusal* says that an engine gave other ids than the reference. Later builds in the same cache root do not use this engine in this
version for this model. A data set in parts also builds those parts again that the engine had encoded. So each part has a record of the
engines that encoded it. A part without such a record may be of any engine. A record that cannot be written is an error, because
another process would rely on it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from niels_cache_assets.disk.journal import write_whole
from niels_cache_assets.disk.space import naming
from niels_cache_assets.tokenizer.checked import EngineUse

_CONTENT = "content_sha256"


def refuse(folder: Path, use: EngineUse, *, model_sha256: str | None, found_in: str, shown: str = "") -> None:
    """Record in `folder` that an engine differed for a model. found_in: the key of the data set whose text showed it. shown: that text."""
    refusal = {"name": use.name, "version": use.version, "model_sha256": model_sha256, "found_in": found_in}
    digest = hashlib.sha256(json.dumps(refusal).encode()).hexdigest()[:16]
    # The same refusal of another process has the same file, and processes that begin together find it at the same moment.
    _write(folder / f"{digest}.json", {**refusal, "text": shown}, spare=f"{secrets.token_hex(4)}.new")


def refused(folder: Path, *, model_sha256: str | None, found_in: str | None = None) -> list[EngineUse]:
    """Return the engines that differed for a model, in all data sets or in one. A record that cannot be read is left out."""
    found = []
    for path in sorted(folder.glob("*.json")):
        said = _read(path)
        if said.get("model_sha256") == model_sha256 and found_in in (None, said.get("found_in")):
            found.append(EngineUse(name=str(said.get("name")), version=str(said.get("version")), differed=True))
    return EngineUse.joined(found)


def record_uses(path: Path, uses: Sequence[EngineUse], *, content_sha256: str) -> None:
    """Record which engines encoded a cache. content_sha256: of the cache."""
    _write(path, {_CONTENT: content_sha256, "engines": [], **EngineUse.notes(uses)})


def recorded_uses(path: Path, *, content_sha256: str) -> list[EngineUse] | None:
    """Return which engines encoded the cache with this content, or None if no record says it."""
    said = _read(path)
    return EngineUse.recorded(said) if said.get(_CONTENT) == content_sha256 else None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _write(path: Path, content: Mapping[str, Any], *, spare: str = "new") -> None:
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(content).encode(), spare=spare)
