"""Functions for notebooks. Each function builds one artifact by name, in the same way as the command line and a Dagster run.

Each function returns a cache hit if the existing build is current, and builds otherwise. The other arguments are those of `materialize`:
with `wait`, a function waits if another process is building the same artifact, with `force`, it always builds, and `log` is called with
each line of the log. `on_progress` is called with the progress. All functions raise NielsCacheError if they fail. The last good build then
stays.
"""

from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import Artifact, Outcome
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.parts.part import Part
from niels_cache_assets.artifacts.parts.seal import Sealed
from niels_cache_assets.artifacts.parts.sharing import build_free_parts_first
from niels_cache_assets.config.registry import Registry


def build_tokenizer(registry: Registry, *, root: Path, **how: Any) -> Outcome:
    """Build `root/tokenizer/{spm.model, meta.json}`.

    Raises NielsCacheError if the model lacks the special tokens, if no source can be read, or if the vocabulary is too large for the text.
    """
    return materialize(graph(registry, root).tokenizer(), **how)


def prepare_corpus(registry: Registry, name: str, *, root: Path, processes: int | None = None, **how: Any) -> Outcome:
    """Build `corpus/<name>` under `root`.

    processes: the number of worker processes. None means the value of `threads` in [build], or one worker per core if that value is not
    set. 1 means that this process does the work.
    Raises NielsCacheError for a data set without `prepare`, for a source without a usable document, and if a worker was killed.
    """
    return materialize(graph(registry, root).corpus(name, processes=processes), **how)


def find_duplicates(registry: Registry, *, root: Path, **how: Any) -> Outcome:
    """Build `duplicates/` under `root`. It lists the duplicates in the current corpora of all data sets with "dedup".

    Raises NielsCacheError if data sets use "dedup" but no data set has a corpus, and if a corpus is replaced during the search.
    """
    return materialize(graph(registry, root).duplicates(), **how)


def build_dataset(registry: Registry, name: str, *, root: Path, **how: Any) -> Outcome:
    """Build the cache of one data set under `root`. If it is in parts, first build its plan and its parts, one after the other. A part that
    another process builds comes last, and this function waits for it.

    Raises NielsCacheError if the build fails, and if the folder holds a different data set but `force` is off.
    """
    cache = graph(registry, root).cache(name)
    if not isinstance(cache, Sealed):
        return materialize(cache, **how)

    def build(step: Artifact, wait: bool) -> Outcome:
        return materialize(step, **{**how, "wait": wait})

    steps = cache.steps()
    for step in steps:
        if not isinstance(step, Part):
            build(step, True)
    build_free_parts_first([step for step in steps if isinstance(step, Part)], build, log=how.get("log", lambda line: None))
    return build(cache, True)
