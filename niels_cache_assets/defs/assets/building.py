"""What the steps of all assets have in common that one artifact makes: building it, reporting it, and recording its result."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg

from niels_cache_assets.artifacts.base import Artifact, Outcome, listed_name
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.defs.assets.upstream import events_of_read
from niels_cache_assets.defs.config import BuildConfig
from niels_cache_assets.defs.home.found import mark_unchecked
from niels_cache_assets.defs.keys import DefinitionNames, names_of
from niels_cache_assets.defs.progress import BuildReporter, readable_failures, result_line, sink_of
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
    partitions: Sequence[str] | None = None,
    begin: Callable[[Any, BuildConfig, dg.AssetExecutionContext], object] = lambda artifact, config, context: None,
    streams: bool = False,
    is_configurable: bool = True,
    **settings: Any,
) -> dg.AssetsDefinition:
    """Return the asset that records the artifacts of a kind, one in each partition, or the only artifact with this key.

    Args:
        registry: The configuration.
        kind: The kind or the key.
        partitions: Its partitions; by default it has none.
        begin: Called before the artifact is built.
        streams: Whether a build reads the source of its partition, and so needs the slot of a stream; by default no.
        is_configurable: Whether the launchpad shows the settings of a run; by default yes.
        **settings: Arguments of `dg.asset`.
    """
    names = names_of(registry)
    key, each = names.assets[kind], None if partitions is None else dg.StaticPartitionsDefinition(partitions)

    def build(context: dg.AssetExecutionContext, config: BuildConfig) -> dg.MaterializeResult:
        with readable_failures():
            artifacts = graph(registry, root_of(context, names))
            artifact = artifacts[f"{kind}/{context.partition_key}" if each else kind]
            has_built_steps = sink_of(context, names).built.issuperset(artifacts.before(artifact.key))
            begin(artifact := replace(artifact, forces_steps=not has_built_steps), config, context)
            source = registry.pretrain[context.partition_key] if streams else None
            outcome = build_artifact(context, artifact, config, names, observed=key if each else None, source=source)
        return recorded_results(context, registry, outcome)[0]

    def build_as_configured(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        return build(context, BuildConfig(wait=False, force=False))

    asset = dg.asset(key=key, partitions_def=each, required_resource_keys=names.resources, **settings)
    return asset(build if is_configurable else build_as_configured)


def build_artifact(
    context: dg.AssetExecutionContext,
    artifact: Artifact,
    config: BuildConfig,
    names: DefinitionNames,
    *,
    observed: dg.AssetKey | None,
    source: Source | None = None,
    passes_on: tuple[type[NielsCacheError], ...] = (),
) -> Outcome:
    """Build an artifact in a step, and report its progress and its warnings.

    Args:
        context: Context of the step.
        artifact: The artifact.
        config: Run configuration.
        names: The names of the definitions.
        observed: Asset whose partition gets the progress. None: no asset gets it.
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


@readable_failures()
def recorded_results(
    context: dg.AssetExecutionContext, registry: Registry, outcome: Outcome, *, source: Source | None = None
) -> list[dg.MaterializeResult]:
    """Record the upstream that an artifact was built from, and return the results of its assets.

    The log gets the result of the step in one line, such as `notes: hit (0.1 s); 1.2 MB ...`.

    Args:
        context: Context of the step.
        registry: The configuration.
        outcome: Outcome of the build.
        source: See `records_of`.
    """
    for event in events_of_read(context.instance, registry, outcome, root=root_of(context, names_of(registry))):
        context.log_event(event)
        # Dagster has read the inputs when the step began, and must read them again: otherwise, the results would show as unsynced at once.
        context.get_step_execution_context().wipe_input_asset_version_info(event.asset_key)
    records = records_of(registry, context.instance, outcome, draw=registry.dagster.plots, source=source)
    context.log.info(f"{listed_name(outcome.key)}: {result_line(records[-1].metadata)}")
    return [record.result() for record in records]


def _describe_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as text, such as `jsonl: files = ["a.jsonl"], val_frac = 0.1`."""
    hidden = ("source", "enabled", "given", "code_version")
    entries = [f"{key} = {json.dumps(value, default=str)}" for key, value in settings.items() if key not in hidden and value is not None]
    return f"{settings['source']}{': ' if entries else ''}{', '.join(entries)}"
