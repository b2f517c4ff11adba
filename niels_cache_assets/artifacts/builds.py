"""Functions for notebooks. Each function builds one artifact by name, in the same way as the command line and a Dagster run.

Each function returns a cache hit if the existing build is current, and builds otherwise. With `wait`, a function waits if another process
is building the same artifact; otherwise it fails. With `force`, it always builds. `log` is called with each line of the log. All functions
raise NielsCacheError if they fail. The last good build then stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import Artifact, Log, Outcome
from niels_cache_assets.artifacts.corpus import CorpusProgress
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.parts.part import Part
from niels_cache_assets.artifacts.parts.seal import Sealed
from niels_cache_assets.artifacts.parts.sharing import build_free_parts_first, passing_over
from niels_cache_assets.build_cache import OnProgress
from niels_cache_assets.config.registry import Registry


def _silent(message: str) -> None: ...


def build_tokenizer(registry: Registry, *, root: Path, force: bool = False, wait: bool = False, log: Log = _silent) -> Outcome:
    """Build `root/tokenizer/{spm.model, meta.json}`.

    Raises NielsCacheError if the model lacks the special tokens, if no source can be read, or if the vocabulary is too large for the text.
    """
    return materialize(graph(registry, root).tokenizer(), force=force, wait=wait, log=log)


def prepare_corpus(
    registry: Registry,
    name: str,
    *,
    root: Path,
    force: bool = False,
    wait: bool = False,
    processes: int | None = None,
    progress: Callable[[CorpusProgress], None] | None = None,
    log: Log = _silent,
) -> Outcome:
    """Build `corpus/<name>` under `root`.

    processes: the number of worker processes. None means the value of `threads` in [build], or one worker per core if that value is not
    set. 1 means that this process does the work.
    Raises NielsCacheError for a data set without `prepare`, for a source without a usable document, and if a worker was killed.
    """
    corpus = graph(registry, root).corpus(name, processes=processes)
    return materialize(corpus, force=force, wait=wait, on_progress=progress, log=log)


def find_duplicates(registry: Registry, *, root: Path, force: bool = False, wait: bool = False, log: Log = _silent) -> Outcome:
    """Build `duplicates/` under `root`. It lists the duplicates in the current corpora of all data sets with "dedup".

    Raises NielsCacheError if data sets use "dedup" but no data set has a corpus, and if a corpus is replaced during the search.
    """
    return materialize(graph(registry, root).duplicates(), force=force, wait=wait, log=log)


def write_report(registry: Registry, name: str, *, root: Path, force: bool = False, wait: bool = False, log: Log = _silent) -> Outcome:
    """Build `reports/corpus/<name>` under `root`.

    Raises NielsCacheError if the corpus or its drop list (the list of its duplicates) is missing or has other settings.
    """
    return materialize(graph(registry, root).report(name), force=force, wait=wait, log=log)


def build_dataset(
    registry: Registry,
    name: str,
    *,
    root: Path,
    run_settings: Mapping[str, Any] | None = None,
    force: bool = False,
    wait: bool = False,
    progress: OnProgress | None = None,
    log: Log = _silent,
) -> Outcome:
    """Build the cache of one data set under `root`. If it is in parts, first build its plan and its parts, one after the other. A part that
    another process builds comes last, and this function waits for it even without `wait`.

    run_settings: values that replace keys of the data set's table or of [build] (seed, shard_bytes, threads) for this run. A value of None
    keeps the value of the registry.
    Raises NielsCacheError if the build fails, and if the folder holds a different data set but `force` is off.
    """
    cache = graph(registry, root).cache(name, run_settings)
    if not isinstance(cache, Sealed):
        return materialize(cache, force=force, wait=wait, on_progress=progress, log=log)

    def build(step: Artifact, *, wait: bool = True) -> Outcome:
        return materialize(step, force=force, wait=wait, on_progress=progress, log=log)

    steps = cache.steps()
    for step in steps:
        if not isinstance(step, Part):
            build(step)
    parts = [step for step in steps if isinstance(step, Part)]
    build_free_parts_first(parts, passing_over(lambda part, waits: build(part, wait=waits), log=log))
    return build(cache)
