"""The component of a `defs.yaml`: the definitions of one niels_cache.toml among those of the user's project of `dg`."""

import os
from typing import Any

import dagster as dg

from niels_cache_assets.base.defaults import CONFIG_NAME
from niels_cache_assets.defs.assembly import own_defs
from niels_cache_assets.project.component import DEFS_NAME
from niels_cache_assets.project.registry import component_tables, load_registry
from niels_cache_assets.project.tables import ComponentSettings
from niels_cache_runtime.errors import NielsCacheError

_CONFIG = """# The data sets of this component, with paths relative to this file. More data sets: niels-cache init --list

[build]
cache_dir = "{cache_dir}"

[tokenizer]
vocab_size = 4000

[pretrain.python_docs]
source = "python_docs"  # text that every machine with Python has
"""


class _ComponentScaffolder(dg.Scaffolder[Any]):
    """The writer of a defs.yaml, and of a first niels_cache.toml beside it."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        folder, name = request.target_path, request.target_path.name
        cache_dir = os.path.relpath((request.project_root or folder) / "cache" / name, folder)
        (folder / CONFIG_NAME).write_text(_CONFIG.format(cache_dir=cache_dir), encoding="utf-8")
        dg.scaffold_component(request, {"config": CONFIG_NAME, "key_prefix": name})


@dg.scaffold_with(_ComponentScaffolder)
class NielsCacheComponent(dg.Component, ComponentSettings, dg.Resolvable):
    """The assets, checks, jobs, sensors and schedules of one niels_cache.toml.

    `key_prefix` begins all their names, so that a code location can have several components and other assets. Runs use the executor of the
    code location.
    """

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions. The file is read at each load, so "Reload definitions" shows what was changed in it.

        Raises:
            NielsCacheError: If the configuration is wrong.
        """
        try:
            file, tables = component_tables(self, context.path / DEFS_NAME)
            return own_defs(load_registry(config=file, tables=tables), {}, None)
        except NielsCacheError as error:
            raise error from None  # Dagster's tools print every cause of an error, but this message is complete
