"""The code location: all steps of a run are executed in its one process, which is a fork of a server that has the heavy imports."""

import multiprocessing
from multiprocessing.context import ForkServerProcess, SpawnContext

import dagster as dg

from niels_cache_assets.defs.assembly import build_defs

defs = build_defs(executor=dg.in_process_executor)

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
