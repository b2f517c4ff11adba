"""Every definition over one registry. Nothing is loaded when this module is imported: definitions.py does that for Dagster's tools."""

import logging
from collections.abc import Mapping
from typing import Any

import dagster as dg

from niels_cache_assets.config.registry import Registry, cache_root, load_registry
from niels_cache_assets.defs.assets.corpus import corpus_assets
from niels_cache_assets.defs.assets.datasets import pretrain_assets, sft_assets
from niels_cache_assets.defs.assets.index import index_assets
from niels_cache_assets.defs.assets.reports import reports_assets
from niels_cache_assets.defs.assets.tokenizer import tokenizer_asset
from niels_cache_assets.defs.assets.upstream import upstream_specs
from niels_cache_assets.defs.automation import automated, build_automation
from niels_cache_assets.defs.checks import build_checks
from niels_cache_assets.defs.jobs import build_jobs, build_schedules
from niels_cache_assets.defs.metadata.presentation import presented
from niels_cache_assets.defs.progress import ProgressSink
from niels_cache_assets.defs.resources import CacheRoot, recorded_executor, unconfigured
from niels_cache_assets.defs.sensors import build_sensors

_LOG = logging.getLogger(__name__)


def build_defs(resources: Mapping[str, Any] | None = None, *, registry: Registry | None = None) -> dg.Definitions:
    """All definitions over a registry (default: the one that the environment and the working directory give).

    `resources` replace `cache_root` (CacheRoot) and `progress_sink` (ProgressSink) by name. Raises NielsCacheError for a configuration
    that cannot be read. Where there is no configuration, the default profile stands in, and a line in the log says so.
    """
    if registry is None:
        registry = load_registry()
        for line in (*([registry.without_file] if registry.is_fallback else []), *registry.advice):
            _LOG.warning(line)
    defaults = {"cache_root": CacheRoot(root=str(cache_root(registry))), "progress_sink": ProgressSink()}
    return dg.Definitions(
        assets=automated(
            presented(
                [
                    *upstream_specs(registry),
                    tokenizer_asset(registry),
                    *corpus_assets(registry),
                    pretrain_assets(registry),
                    sft_assets(registry),
                    *index_assets(registry),
                    *reports_assets(registry),
                ],
                registry,
            ),
            registry,
        ),
        asset_checks=build_checks(registry),
        jobs=build_jobs(registry),
        sensors=[*build_sensors(registry), build_automation()],
        schedules=build_schedules(registry),
        resources={name: unconfigured(value) for name, value in {**defaults, **(resources or {})}.items()},
        executor=recorded_executor,
    )
