"""Functions for notebooks, each of which builds one artifact by name in the same way as the command line and a Dagster run.

Each function returns a cache hit if the existing build is current, and builds otherwise. All functions raise NielsCacheError if they fail.
The last good build then stays.
"""

from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import Artifact, Outcome
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.parts.part import Part
from niels_cache_assets.artifacts.parts.seal import Sealed
from niels_cache_assets.artifacts.parts.sharing import build_free_parts_first
from niels_cache_assets.project.registry import Registry


def build_tokenizer(registry: Registry, *, root: Path, **how: Any) -> Outcome:
    """Build `root/tokenizer/{spm.model, meta.json}`.

    Args:
        registry: The configuration.
        root: The folder of the caches.
        **how: Arguments of `materialize`, such as `wait`, `force` and `log`.

    Raises:
        NielsCacheError: If the model lacks the special tokens, no source can be read, or the vocabulary is too large for the text.
    """
    return materialize(graph(registry, root).tokenizer(), **how)


def prepare_corpus(registry: Registry, name: str, *, root: Path, processes: int | None = None, **how: Any) -> Outcome:
    """Build `corpus/<name>` under `root`.

    Args:
        registry: The configuration.
        name: The name of the data set.
        root: The folder of the caches.
        processes: The number of worker processes. None: the value of `threads` in [build], or one worker per core if that value is not set.
            1: this process does the work.
        **how: Arguments of `materialize`, such as `wait`, `force` and `log`.

    Raises:
        NielsCacheError: If the data set has no `prepare`, its source has no usable document, or a worker was killed.
    """
    return materialize(graph(registry, root).corpus(name, processes=processes), **how)


def find_duplicates(registry: Registry, *, root: Path, **how: Any) -> Outcome:
    """Build `duplicates/` under `root`, which lists the duplicates in the current corpora of all data sets with "dedup".

    Args:
        registry: The configuration.
        root: The folder of the caches.
        **how: Arguments of `materialize`, such as `wait`, `force` and `log`.

    Raises:
        NielsCacheError: If data sets use "dedup" but no data set has a corpus, or a corpus is replaced during the search.
    """
    return materialize(graph(registry, root).duplicates(), **how)


def build_dataset(registry: Registry, name: str, *, root: Path, **how: Any) -> Outcome:
    """Build the cache of one data set under `root`.

    If the data set is in parts, its plan and its parts are built first, one after the other. A part that another process builds comes last,
    and this function waits for it even without `wait`.

    Args:
        registry: The configuration.
        name: The name of the data set.
        root: The folder of the caches.
        **how: Arguments of `materialize`, such as `wait`, `force` and `log`.

    Raises:
        NielsCacheError: If the build fails, or the folder holds a different data set and `force` is not set.
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
