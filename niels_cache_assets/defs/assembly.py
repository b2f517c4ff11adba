"""All Dagster definitions for one registry (a loaded configuration). Importing this module loads no registry; definitions.py loads it.

Every asset shows the owners and tags of [dagster], its family and split as tags, the location of the caches, and links to its code and to
the tables that configure it.
"""

import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from niels_cache_assets.defs.assets.corpus import corpus_assets
from niels_cache_assets.defs.assets.datasets import dataset_assets
from niels_cache_assets.defs.assets.index import index_assets
from niels_cache_assets.defs.assets.parts import parts_assets
from niels_cache_assets.defs.assets.published import published_assets
from niels_cache_assets.defs.assets.reports import reports_assets
from niels_cache_assets.defs.assets.tokenizer import tokenizer_asset
from niels_cache_assets.defs.assets.upstream import upstream_specs
from niels_cache_assets.defs.checks import build_checks
from niels_cache_assets.defs.jobs import build_jobs, build_schedules
from niels_cache_assets.defs.keys import names_of
from niels_cache_assets.defs.progress import ProgressSink
from niels_cache_assets.defs.references import links_of, table_links
from niels_cache_assets.defs.resources import CacheRoot, recorded_executor, unconfigured
from niels_cache_assets.defs.sensors import build_sensors
from niels_cache_assets.project.registry import Registry, cache_root, load_registry
from niels_cache_runtime.format.layout import FAMILIES, SPLITS

_LOG = logging.getLogger(__name__)
Asset = dg.AssetsDefinition | dg.AssetSpec
_LINKS = "dagster/code_references"
FAMILY_TAG, SPLIT_TAG = "niels_cache/family", "niels_cache/split"
_ROOT = re.compile(r'"cache(?=[/"])')


def build_defs(
    resources: Mapping[str, Any] | None = None, *, registry: Registry | None = None, executor: dg.ExecutorDefinition | None = None
) -> dg.Definitions:
    """Return all definitions for a registry.

    If there is no configuration, the default profile is used, and a line in the log says so.

    Args:
        resources: Replacements for `cache_root` (CacheRoot) and `progress_sink` (ProgressSink) by name; by default none.
        registry: The configuration; by default it is loaded from the environment and the working directory.
        executor: Starts the steps of a run, for example on workers of Celery (deploy/); by default processes of this machine.

    Raises:
        NielsCacheError: If the configuration cannot be read.
    """
    if registry is None:
        registry = load_registry()
        for line in registry.advice:
            _LOG.warning(line)
    return own_defs(registry, resources or {}, executor or recorded_executor(registry))


def own_defs(registry: Registry, resources: Mapping[str, Any], executor: dg.ExecutorDefinition | None) -> dg.Definitions:
    """Return the definitions as `build_defs` does, but with the executor of the code location if `executor` is None."""
    names = names_of(registry)
    defaults = {"cache_root": CacheRoot(root=str(cache_root(registry))), "progress_sink": ProgressSink()}
    assets = [
        tokenizer_asset(registry),
        *corpus_assets(registry),
        *parts_assets(registry),
        *(dataset_assets(registry, family) for family in FAMILIES),
        *index_assets(registry),
        *published_assets(registry),
        *reports_assets(registry),
    ]
    return dg.Definitions(
        assets=_presented([*upstream_specs(registry), *assets], registry),
        asset_checks=build_checks(registry),
        jobs=build_jobs(registry, {key for asset in assets for key in asset.keys}),
        sensors=build_sensors(registry),
        schedules=build_schedules(names),
        resources={names.name(name): unconfigured(value) for name, value in {**defaults, **resources}.items()},
        executor=executor,
    )


def _presented(assets: Sequence[Asset], registry: Registry) -> list[Asset]:
    """Return the assets with owners, tags and links.

    In code samples of their descriptions, the real path of the cache root replaces `cache`.
    """
    settings, names, root = registry.dagster, names_of(registry), cache_root(registry).absolute().as_posix()

    def present(spec: dg.AssetSpec) -> dg.AssetSpec:
        name = spec.key.path[-1]
        family = next((each for each in FAMILIES if each in (names.kind_of(spec.key), name)), None)
        split = next((each for each in SPLITS if name.startswith(f"{each}_")), None)
        found = {key: value for key, value in ((FAMILY_TAG, family), (SPLIT_TAG, split)) if value}
        code = spec.metadata.get(_LINKS)
        links = [*(code.code_references if isinstance(code, dg.CodeReferencesMetadataValue) else []), *links_of(spec, tables)]
        located = _ROOT.sub(lambda _: f'"{root}', spec.description or "")
        return spec.replace_attributes(description=located, group_name=names.group(spec.key)).merge_attributes(
            owners=settings.owners,
            tags={**found, **settings.tags},
            metadata={_LINKS: dg.CodeReferencesMetadataValue(code_references=links)},
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # code references are a beta feature; an asset also works without them
        tables = table_links(registry)
        return list(dg.map_asset_specs(present, dg.with_source_code_references(assets)))  # type: ignore[arg-type]
