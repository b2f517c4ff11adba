"""What the steps of all assets have in common that one artifact makes: building it, reporting it, and recording its result."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from niels_cache_assets.artifacts.base import Artifact, Outcome, listed_name
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.defs.config import BuildConfig
from niels_cache_assets.defs.home.found import mark_unchecked
from niels_cache_assets.defs.keys import DefinitionNames, names_of
from niels_cache_assets.defs.progress import BuildReporter, ProgressSink, readable_failures, result_line, sink_of
from niels_cache_assets.defs.recording import records_of
from niels_cache_assets.defs.resources import root_of
from niels_cache_assets.defs.stream_slots import StreamSlot
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.types import Source
from niels_cache_runtime.errors import NielsCacheError


def artifact_asset(
    registry: Registry,
    kind: str,
    *,
    prepare: Callable[[Any, BuildConfig, ProgressSink], Artifact] = lambda artifact, config, sink: artifact,
    **settings: Any,
) -> dg.AssetsDefinition:
    """Return the asset that records the artifacts of a kind, one in each partition, or the only artifact with this key.

    Args:
        registry: The configuration.
        kind: The kind or the key.
        prepare: Changes the artifact before it is built.
        **settings: Arguments of `dg.asset`.
    """
    names = names_of(registry)
    observed = names.assets[kind] if "partitions_def" in settings else None

    @dg.asset(key=names.assets[kind], required_resource_keys=names.resources, **settings)
    def build(context: dg.AssetExecutionContext, config: BuildConfig) -> dg.MaterializeResult:
        with readable_failures():
            artifact = graph(registry, root_of(context, names))[f"{kind}/{context.partition_key}" if observed else kind]
            artifact = prepare(artifact, config, sink_of(context, names))
            outcome = build_artifact(context, artifact, config, names, observed=observed)
            return recorded_results(context, registry, outcome)[0]

    return build


def build_artifact(
    context: dg.AssetExecutionContext,
    artifact: Artifact,
    config: BuildConfig,
    names: DefinitionNames,
    *,
    observed: dg.AssetKey | None = None,
    source: Source | None = None,
    passes_on: tuple[type[NielsCacheError], ...] = (),
) -> Outcome:
    """Build an artifact in a step, and report its progress and its warnings.

    Args:
        context: Context of the step.
        artifact: The artifact.
        config: Run configuration.
        names: The names of the definitions.
        observed: Asset whose partition gets the progress; by default none.
        source: What a build reads while it holds the slot of a stream; by default it needs no slot.
        passes_on: Errors that are not failures of the run; by default none.
    """
    name = listed_name(artifact.key)
    mark_unchecked(artifact, context.run.run_id)
    reporter = BuildReporter(context, sink_of(context, names), name=name, observed=observed)
    with readable_failures(passes_on), StreamSlot(context, name, pool=names.stream_pool, log=reporter.log) as slot:

        def wait_for_turn() -> bool:
            if source is None:
                return False
            if slot.take():
                return True
            context.log.info(f"{name}: building from {_describe_settings(source.shown_settings())}")
            return False

        outcome = materialize(
            artifact,
            force=config.force,
            wait=config.wait,
            on_progress=reporter.progress,
            log=reporter.log,
            wait_for_turn=wait_for_turn,
        )
    reporter.end(outcome)
    return outcome


def recorded_results(
    context: dg.AssetExecutionContext, registry: Registry, outcome: Outcome, *, source: Source | None = None
) -> list[dg.MaterializeResult]:
    """Log the result of a step in one line, such as `notes: hit (0.1 s); 1.2 MB ...`, and return the results of its assets.

    Args:
        context: Context of the step.
        registry: The configuration.
        outcome: Outcome of the build.
        source: See `records_of`.

    Raises:
        NielsCacheError: If a file cannot be read.
    """
    records = records_of(registry, context.instance, outcome, draw=registry.dagster.plots, source=source)
    context.log.info(f"{listed_name(outcome.key)}: {result_line(records[-1].metadata)}")
    return [record.result() for record in records]


def _describe_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as text, such as `jsonl: files = ["a.jsonl"], val_frac = 0.1`."""
    hidden = ("source", "enabled", "given", "code_version")
    entries = [f"{key} = {json.dumps(value, default=str)}" for key, value in settings.items() if key not in hidden and value is not None]
    return f"{settings['source']}{': ' if entries else ''}{', '.join(entries)}"
