"""All asset checks in one list for the definitions, with one module for each group of checks."""

import warnings

import dagster as dg

from niels_cache_assets.defs.checks.cache import cache_checks
from niels_cache_assets.defs.checks.corpus import corpus_checks
from niels_cache_assets.defs.checks.sync import in_sync_check
from niels_cache_assets.defs.checks.tokenizer import tokenizer_checks
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.format.layout import FAMILIES


def build_checks(registry: Registry) -> list[dg.AssetChecksDefinition]:
    """Return all checks."""
    with warnings.catch_warnings():
        # Partitioned checks are a preview in Dagster 1.13. We use them on purpose, and the user cannot act on the warning.
        warnings.filterwarnings("ignore", message=".*partitions_def", category=dg.PreviewWarning)
        return [
            tokenizer_checks(registry),
            *corpus_checks(registry),
            *(cache_checks(registry, family) for family in FAMILIES),
            *(in_sync_check(registry, family) for family in FAMILIES),
        ]
