"""The project, with steps that run on the workers of a Dask cluster. NIELS_CACHE_DASK is the address of its scheduler."""

import os

from dagster_dask import dask_executor

from niels_cache_assets.defs.assembly import build_defs

_ADDRESS = os.environ.get("NIELS_CACHE_DASK", "tcp://127.0.0.1:8786")

defs = build_defs(executor=dask_executor.configured({"cluster": {"existing": {"address": _ADDRESS}}}))
