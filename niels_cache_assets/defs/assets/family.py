"""What pretrain and sft share: one streaming op writes the three assets of a data set, and reports them together at its end.

Not subsettable, because one pass makes all three. Everything is built and renamed before the first result is yielded: Dagster keeps
what was yielded before an error, and would record an asset that was forgotten as built.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.build_cache import CODE_VERSIONS
from niels_cache_assets.config.problems import refuse_choice
from niels_cache_assets.config.registry import Registry, apply_run_settings
from niels_cache_assets.config.tables import BuildSettings
from niels_cache_assets.defs.assets.failure import readable_failures
from niels_cache_assets.defs.assets.upstream import REVISION, last_observation, observe_what_was_read
from niels_cache_assets.defs.keys import META_KEYS, TRAIN_KEYS, VAL_KEYS
from niels_cache_assets.defs.metadata.builds import family_metadata, split_schema, split_version
from niels_cache_assets.defs.progress import BuildReporter, ProgressSink
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.defs.turns import StreamPlace
from niels_cache_assets.tokenizer.kinds import load_tokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Family, Split
from niels_cache_runtime.format.meta import Meta, build_id


def family_specs(family: Family, *, train: str, val: str, meta: str, above: Sequence[dg.AssetDep]) -> list[dg.AssetSpec]:
    """The specs of a family's three assets, given their descriptions and what is above all of them, in topological order."""
    shared: dict[str, Any] = {"group_name": family, "code_version": CODE_VERSIONS[family]}
    splits = [TRAIN_KEYS[family], VAL_KEYS[family]]
    columns = {"dagster/column_schema": split_schema(family)}
    return [
        dg.AssetSpec(TRAIN_KEYS[family], deps=above, description=train, kinds={"numpy"}, metadata=columns, **shared),
        dg.AssetSpec(VAL_KEYS[family], deps=above, description=val, kinds={"numpy"}, metadata=columns, **shared),
        dg.AssetSpec(META_KEYS[family], deps=[*above, *splits], description=meta, kinds={"json"}, **shared),
    ]


def stream_dataset(
    context: dg.AssetExecutionContext,
    registry: Registry,
    family: Family,
    *,
    run_settings: Mapping[str, Any],
    force: bool,
    wait: bool,
    cache_root: CacheRoot,
    sink: ProgressSink,
) -> Iterator[dg.MaterializeResult]:
    """Build the data set of this run's partition, and yield its three results."""
    name = context.partition_key
    reporter = BuildReporter(context, sink, name=name, observed=TRAIN_KEYS[family])
    with readable_failures():
        if name not in registry.partition_keys(family):  # Dagster launches a run for any partition key
            if name in registry.switched_off():
                raise NielsCacheError(f"{registry.origin}: [{family}.{name}] is switched off; set enabled = true in it to build it")
            refuse_choice(registry.origin, f"no {family} data set", name, registry.partition_keys(family))
        own = {key: value for key, value in run_settings.items() if key not in BuildSettings.model_fields}
        with StreamPlace(context, name, log=reporter.log) as place:

            def waits_its_turn() -> bool:
                if place.take():
                    return True
                reporter.note(f"building from {_in_words(apply_run_settings(registry.source(name), own).shown_settings())}")

                return False

            outcome = materialize(
                graph(registry, cache_root.path).cache(name, run_settings),
                force=force,
                wait=wait,
                on_progress=reporter.progress,
                log=reporter.log,
                waits_its_turn=waits_its_turn,
            )
        if outcome.warning:
            reporter.warn(outcome.warning)
        if not outcome.kept:
            _observe(context, registry, name, outcome.meta, root=cache_root.path)
        source = apply_run_settings(registry.source(name), own)
        tokenizer = load_tokenizer(registry, cache_root.path) if outcome.meta.get("built") else None  # not of another program's either
        shown = family_metadata(
            outcome, source.shown_settings(), tokenizer, deduplicated="dedup" in getattr(source, "prepare", ()), draw=registry.dagster.plots
        )
        reporter.tell(shown[None])
        splits: dict[Split, dg.AssetKey] = {"train": TRAIN_KEYS[family], "val": VAL_KEYS[family]}
        results: list[dg.MaterializeResult] = [
            *(
                dg.MaterializeResult(key, metadata=shown[split], data_version=split_version(outcome.meta, split))
                for split, key in splits.items()
            ),
            dg.MaterializeResult(META_KEYS[family], metadata=shown[None], data_version=dg.DataVersion(build_id(outcome.meta) or "")),
        ]
    yield from results


def _in_words(settings: Mapping[str, Any]) -> str:
    """`jsonl: files = ["a.jsonl"], val_frac = 0.1`."""
    hidden = ("source", "enabled", "given", "code_version")
    said = [f"{key} = {json.dumps(value, default=str)}" for key, value in settings.items() if key not in hidden and value is not None]
    return f"{settings['source']}{': ' if said else ''}{', '.join(said)}"


def _observe(context: dg.AssetExecutionContext, registry: Registry, name: str, meta: Meta, *, root: Path) -> None:
    """Upstream as it was built from. What is read from a corpus has not looked at it: then only the settings may be new."""
    if name in registry.prepared():
        last = last_observation(context.instance, registry, name)
        if last is not None:
            revision = last.metadata.get(REVISION)
            observe_what_was_read(context, registry, name, str(revision.value) if revision else None, root=root)
    else:
        observe_what_was_read(context, registry, name, meta["dataset_revision"], root=root)
