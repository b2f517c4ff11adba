"""Whether the cache on disk is the one that the configuration asks for, told from meta.json alone.

What `niels-cache list` and the check `caches_in_sync` say. Costs one or two small reads per data set: nothing is hashed and upstream is
not asked, so a changed source goes unseen here.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from niels_cache_assets.corpus.member import with_prepared
from niels_cache_assets.corpus.reading import open_prepared
from niels_cache_assets.pipeline import cache_fingerprint, is_prepared
from niels_cache_assets.registry import Registry
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import META_NAME, Family, dataset_dir, tokenizer_dir
from niels_cache_runtime.meta import Meta, read_meta

State = Literal[
    "in sync",
    "built",  # there, with no settings to compare it with: the tokenizer, and what another configuration built
    "missing",
    "disabled",
    "switched off",  # with a cache of the time before
    "not configured",
    "no tokenizer",
    "other tokenizer",
    "other settings",
    "no corpus",  # or no drop list, of its own or of a member, or one that is out of date
    "unreadable",
]

_TOKENIZER_KEYS = ("kind", "sha256", "vocab_size")
_BUILT_KEYS = ("kind", "fingerprint", "dataset_revision", "tokenizer_sha256", "train_tokens", "val_tokens")
_SFT_KEYS = ("train_examples", "val_examples")


@dataclass(frozen=True, kw_only=True)
class CacheState:
    """How one cache stands; `advice` says what to do, and is empty where nothing is."""

    name: str
    state: State
    advice: str = ""

    @property
    def needs_build(self) -> bool:
        return self.state in ("missing", "no tokenizer", "other tokenizer", "other settings", "no corpus", "unreadable")


def cache_state(registry: Registry, name: str, *, root: Path) -> CacheState:
    """Of a configured data set. Raises NielsCacheError only for a name that is not configured."""
    state, advice = _judge(registry, name, root)
    return CacheState(name=name, state=state, advice=advice)


def tokenizer_state(root: Path) -> CacheState:
    """Of the tokenizer; whether its settings have changed is not looked at."""
    path = tokenizer_dir(root) / META_NAME
    if not path.exists():
        return CacheState(name="tokenizer", state="missing", advice="build it")
    try:
        _read_with(path, _TOKENIZER_KEYS)
    except NielsCacheError as error:
        return CacheState(name="tokenizer", state="unreadable", advice=str(error))
    return CacheState(name="tokenizer", state="built")


def unlisted_state(family: Family, name: str, *, root: Path) -> CacheState:
    """Of a cache that the configuration does not name."""
    try:
        meta = _read_dataset(dataset_dir(root, family, name) / META_NAME, family)
    except NielsCacheError as error:
        return CacheState(name=name, state="unreadable", advice=str(error))
    if not meta["built"]:
        return CacheState(name=name, state="disabled")
    if meta["tokenizer_sha256"] is None:  # imported tokens of an unknown tokenizer
        return CacheState(name=name, state="built")
    state, advice = _judge_tokenizer(meta, root)
    return CacheState(name=name, state=state, advice=advice)


def _judge(registry: Registry, name: str, root: Path) -> tuple[State, str]:
    family, source = registry.family_of(name), registry.source(name)
    missing = source.missing_setting()
    if missing is not None:
        return "not configured", missing
    path = dataset_dir(root, family, name) / META_NAME
    if not path.exists():
        return ("missing", "build it") if source.enabled else ("disabled", "")
    try:
        meta = _read_dataset(path, family)
    except NielsCacheError as error:
        return "unreadable", str(error)
    if not source.enabled:
        return ("switched off", "switched off; its old cache is kept") if meta["built"] else ("disabled", "")
    if not meta["built"]:
        return "other settings", "build it: it was switched on since"
    state, advice = _judge_tokenizer(meta, root)
    if state != "built":
        return state, advice
    try:
        fingerprint = cache_fingerprint(
            registry,
            source,
            registry.build,
            tokenizer_sha256=meta["tokenizer_sha256"],
            revision=meta["dataset_revision"],
            siblings=with_prepared(registry, root),
            prepared=open_prepared(registry, name, root=root) if is_prepared(source) else None,
        )
    except NielsCacheError as error:
        return "no corpus", str(error)
    if meta["fingerprint"] != fingerprint:
        return "other settings", "build it: its settings have changed since, or one run used others"
    return "in sync", ""


def _judge_tokenizer(meta: Meta, root: Path) -> tuple[State, str]:
    try:
        tokenizer = _read_with(tokenizer_dir(root) / META_NAME, _TOKENIZER_KEYS)
    except NielsCacheError as error:
        return "no tokenizer", f"build the tokenizer first; its meta.json is missing or damaged: {error}"
    if meta["tokenizer_sha256"] != tokenizer["sha256"]:
        return "other tokenizer", "build it: the tokenizer has changed since"
    return "built", ""


def _read_dataset(path: Path, family: Family) -> Meta:
    """A meta.json with every key that is asked for here and by those who print it."""
    meta = _read_with(path, ("built",))
    return _read_with(path, (*_BUILT_KEYS, *(_SFT_KEYS if family == "sft" else ()))) if meta["built"] else meta


def _read_with(path: Path, keys: Iterable[str]) -> Meta:
    meta = read_meta(str(path))
    lacking = [key for key in keys if key not in meta]
    if lacking:
        raise NielsCacheError(f"{path}: has no {', '.join(lacking)}; build it again with force (--force)")
    return meta
