"""Builds of one artifact by name, as the command line and a run of Dagster make them. `how`: the arguments of `materialize`."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import Artifact, Outcome
from niels_cache_assets.artifacts.dataset import PretrainCache
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.parts.free_parts import build_free_parts_first
from niels_cache_assets.artifacts.parts.seal import JoinedCache
from niels_cache_assets.build_cache import resume
from niels_cache_assets.project.registry import Registry

# Each build makes a schema of pydantic for the state of its journal, for 5 ms. Here, each is made once.
resume.TypeAdapter = cache(resume.TypeAdapter)  # type: ignore[misc, assignment]


def build_tokenizer(registry: Registry, *, root: Path, **how: Any) -> Outcome:
    return materialize(graph(registry, root).tokenizer(), **how)


def prepare_corpus(registry: Registry, name: str, *, root: Path, processes: int | None = None, **how: Any) -> Outcome:
    """Build a corpus on this number of processes; by default, as [build] says."""
    build = registry.build.model_copy(update={"threads": processes or registry.build.threads})
    return materialize(graph(replace(registry, build=build), root).corpus(name), **how)


def find_duplicates(registry: Registry, *, root: Path, **how: Any) -> Outcome:
    return materialize(graph(registry, root).duplicates(), **how)


def build_dataset(registry: Registry, name: str, *, root: Path, **how: Any) -> Outcome:
    """Build a cache. If it is in parts, build its plan and parts first; a part that another process builds is awaited."""
    cache = graph(registry, root).cache(name)
    if not isinstance(cache, JoinedCache):
        return materialize(cache, **how)

    def build(step: Artifact, wait: bool) -> Outcome:
        return materialize(step, **{**how, "wait": wait})

    steps = cache.steps()
    for step in steps:
        if not isinstance(step, PretrainCache):
            build(step, True)
    build_free_parts_first([step for step in steps if isinstance(step, PretrainCache)], build, log=how.get("log", lambda line: None))
    return build(cache, True)
