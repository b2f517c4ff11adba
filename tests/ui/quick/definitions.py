"""The code location: all steps of a run are executed in its one process, which is a fork of a server that has the heavy imports."""

import multiprocessing
from multiprocessing.context import ForkServerProcess, SpawnContext
from unittest.mock import patch

import dagster as dg

from niels_cache_assets.defs import assembly

with patch.object(assembly, "recorded_executor", dg.in_process_executor):
    defs = assembly.build_defs()

# The code server starts runs in the context `spawn`, which has no other use here.
SpawnContext.Process = ForkServerProcess  # type: ignore[assignment, misc]
multiprocessing.set_forkserver_preload(
    [
        "dagster._grpc.server",
        "matplotlib.pyplot",
        "niels_cache_assets.defs.assembly",
        "numba",
        "pandas",
        "pyarrow.parquet",
        "sentencepiece",
        "torch",
    ]
)
