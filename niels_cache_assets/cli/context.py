"""The start of every command: --config, --profile and --cache-dir become the registry and the cache root, in which caches are found.

The registry is the configuration, and the cache root is the folder of all caches.
"""

import argparse
import os
import shlex
from pathlib import Path
from typing import Literal, NamedTuple

from niels_cache_assets.artifacts.state import CacheState
from niels_cache_assets.cli.command import TOKENIZER
from niels_cache_assets.cli.console import PROGRAM, diagnostics, print_if_verbose, print_log_line
from niels_cache_assets.disk.build_lock import build_status
from niels_cache_assets.project.registry import Registry, cache_root, load_registry
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES, META_NAME, built_names, dataset_dir, tokenizer_dir
from niels_cache_runtime.format.meta import Meta, check_location, load_meta
from niels_cache_runtime.format.path_kind import describe

Kind = Literal["tokenizer", "pretrain", "sft"]

_KIND_NAMES: dict[Kind, str] = {"tokenizer": "the tokenizer", "pretrain": "a pretrain data set", "sft": "an SFT data set"}


class CacheLocation(NamedTuple):
    """The directory of a cache, which may not exist yet."""

    kind: Kind
    name: str
    directory: Path

    @property
    def exists(self) -> bool:
        return os.path.exists(self.directory / META_NAME)  # False for a folder that may not be read

    def meta(self) -> Meta:
        return load_meta(self.directory / META_NAME)


def open_registry(arguments: argparse.Namespace) -> tuple[Registry, Path]:
    """Return the configuration and the cache root.

    Raises:
        NielsCacheError: If the configuration is wrong, or if the cache root is a file or inside a cache.
    """
    registry = load_registry(profile=arguments.profile, config=arguments.config)
    root = cache_root(registry, arguments.cache_dir)
    found = describe(root)
    if found.kind == "file":
        raise NielsCacheError(f"{root}: is a file; choose another --cache-dir")
    if found.kind in ("dataset", "inside", "family") and found.roots:  # a build would write into a finished cache
        raise NielsCacheError(f"{root}: {found.clause}; type --cache-dir {shlex.quote(str(found.roots[0]))}")
    print_if_verbose(f"settings: {registry.settings_origin}; caches in {root.absolute()}")
    return registry, root


def refuse_path(given: str) -> None:
    """Refuse a path in place of a name. For anything else, do nothing.

    Raises:
        NielsCacheError: If a path is given. The message has the right arguments.
    """
    found = describe(given)
    if found.kind in ("missing", "nothing", "file"):
        return
    options = f"--cache-dir {shlex.quote(str(found.roots[0]))}" if found.roots else ""
    if found.dataset is not None:
        raise NielsCacheError(f"{given}: {found.clause}; type {' '.join([found.dataset.absolute().name, options]).strip()}")
    raise NielsCacheError(f"{given}: {found.clause}; give the name of a data set and the cache directory: NAME {options}")


def print_advice(registry: Registry) -> None:
    """Print advice about the configuration on stderr, one line each, or nothing with --quiet."""
    for line in registry.advice:
        print_log_line(diagnostics(), line, style="yellow")


def is_listed(state: CacheState, registry: Registry) -> bool:
    """Return whether a list without --all shows this cache.

    A list omits a cache that is switched off. Without a niels_cache.toml, a list shows only caches that are built or being built.
    """
    if state.state in ("disabled", "switched off"):
        return False
    if state.kind == "tokenizer" or not registry.is_fallback:
        return True
    work = build_status(state.directory)
    return state.state not in ("missing", "not configured") or work.is_resumable or work.writer is not None


def count_note(count: int, registry: Registry) -> str:
    """Return a note about `count` data sets that `is_listed` omits."""
    return f"--all lists {count} more, switched off{' or not built' if registry.is_fallback else ''}"


def find_caches(registry: Registry, root: Path) -> dict[str, CacheLocation]:
    """Return the directories of caches by name.

    They are the tokenizer, every configured data set in order, then further data sets that are built below `root`.
    """
    configured = [(family, name) for family in FAMILIES for name in registry.datasets(family)]
    built = [(family, name) for family in FAMILIES for name in built_names(root / family)]
    found = {TOKENIZER: CacheLocation("tokenizer", TOKENIZER, tokenizer_dir(root))}
    for family, name in (*configured, *built):
        found.setdefault(name, CacheLocation(family, name, dataset_dir(root, family, name)))
    return found


def find_cache(registry: Registry, root: Path, name: str, *, kinds: tuple[Kind, ...] = tuple(_KIND_NAMES)) -> CacheLocation:
    """Return the cache with this name, which must exist.

    Args:
        registry: The configuration.
        root: The cache root.
        name: Name of the cache.
        kinds: Kinds that it may have; by default any.

    Raises:
        NielsCacheError: If the name is unknown (the message suggests the nearest name), if the cache has a different kind, if it is not
            built (the message gives the command that builds it), or if its folder contains a different data set.
    """
    locations = find_caches(registry, root)
    found = locations.get(name)
    if found is None:
        refuse_path(name)
        registry.refuse_data_set(str(root), "no data set", name, [each.name for each in locations.values() if each.kind in kinds])
    if found.kind not in kinds:
        raise NielsCacheError(f"{name}: is {_KIND_NAMES[found.kind]}; choose {' or '.join(_KIND_NAMES[kind] for kind in kinds)}")
    if not found.exists:
        reason = registry.unconfigured().get(name)
        advice = f"it needs {reason}" if reason else f"build it: {PROGRAM} build-all --only {name}"
        if name in registry.switched_off():
            advice = f"it is switched off: set enabled = true in [{found.kind}.{name}], then {advice}"
        if not root.exists():
            advice += f"; or correct --cache-dir: {root} is missing"
        raise NielsCacheError(f"{found.directory}: not built yet; {advice}")
    if found.kind != "tokenizer":
        check_location(found.meta(), found.directory)
    return found
