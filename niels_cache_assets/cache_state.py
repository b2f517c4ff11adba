"""Whether the cache on disk is the one that the configuration asks for, told from meta.json alone.

Costs one or two small reads per data set: nothing is hashed and upstream is not asked, so a changed source goes unseen here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from niels_cache_assets.pipeline import cache_fingerprint
from niels_cache_assets.registry import Registry
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import META_NAME, Family, dataset_dir, tokenizer_dir
from niels_cache_runtime.meta import read_meta

State = Literal["in sync", "missing", "disabled", "not configured", "other tokenizer", "other settings", "unreadable"]


@dataclass(frozen=True, kw_only=True)
class CacheState:
    """How one data set's cache stands; `advice` says what to do, and is empty where nothing is."""

    name: str
    family: Family
    state: State
    advice: str = ""

    @property
    def needs_build(self) -> bool:
        return self.state in ("missing", "other tokenizer", "other settings", "unreadable")


def cache_state(registry: Registry, name: str, *, root: Path) -> CacheState:
    """Raises NielsCacheError only for a name that is not configured."""
    state, advice = _judge(registry, name, root)
    return CacheState(name=name, family=registry.family_of(name), state=state, advice=advice)


def _judge(registry: Registry, name: str, root: Path) -> tuple[State, str]:
    family, source = registry.family_of(name), registry.source(name)
    missing = source.missing_setting()
    if missing is not None:
        return "not configured", missing
    path = dataset_dir(root, family, name) / META_NAME
    if not path.exists():
        return "missing", "build it"
    try:
        meta = read_meta(str(path))
        tokenizer_sha256 = read_meta(str(tokenizer_dir(root) / META_NAME))["sha256"] if meta.get("built") else None
    except NielsCacheError as error:
        return "unreadable", str(error)
    if not source.enabled:
        return ("other settings", "build it: it was switched off since") if meta.get("built") else ("disabled", "")
    if not meta.get("built"):
        return "other settings", "build it: it was switched on since"
    if meta["tokenizer_sha256"] != tokenizer_sha256:
        return "other tokenizer", "build it: the tokenizer has changed since"
    revision = meta["dataset_revision"]
    expected = cache_fingerprint(registry, source, registry.build, tokenizer_sha256=tokenizer_sha256, revision=revision)
    if meta["fingerprint"] != expected:
        return "other settings", "build it: its settings have changed since, or one run used others"
    return "in sync", ""
