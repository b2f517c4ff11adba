"""The names of Dagster's definitions without a prefix."""

from niels_cache_assets.defs.keys import DefinitionNames
from niels_cache_assets.project.tables import DagsterSettings

NAMES = DefinitionNames(DagsterSettings())
