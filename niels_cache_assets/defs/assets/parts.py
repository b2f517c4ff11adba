"""The assets `pretrain/plan`, `pretrain/val_part` and `pretrain/parts`, which exist only with data sets in parts.

A data set whose corpus is in parts has a plan, and the parts of its corpus (assets/corpus.py).

The three assets of a data set (assets/datasets.py) depend on its parts: they join them. Parts show no plots and no samples, because there
may be thousands of them. The pool `parts` limits how many parts are built at a time in one Dagster home.

The step of a part starts `niels-cache part` as a child, here or on another machine ([cluster]). It reports what the child reports, as if
the step had done the work.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg

from niels_cache_assets.artifacts.base import Outcome, kind_of
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.build_cache import CODE_VERSIONS
from niels_cache_assets.cluster.child import BuildInChild
from niels_cache_assets.defs import keys
from niels_cache_assets.defs.assets.building import artifact_asset, build_artifact, recorded_results
from niels_cache_assets.defs.config import BuildConfig
from niels_cache_assets.defs.keys import DefinitionNames, names_of
from niels_cache_assets.defs.part_processes import build_part_in_child
from niels_cache_assets.defs.part_slots import limit_parts
from niels_cache_assets.defs.progress import BuildReporter, readable_failures, sink_of
from niels_cache_assets.defs.resources import root_of
from niels_cache_assets.parts.lease import LeaseLostError
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import BusyError

ASK_SECONDS = 5.0  # minimum time between two queries for the end of a run

_PLAN = """The plan of a data set in parts: its files at one revision, the files of each part, and the share of each part in the budgets.

`pretrain/.parts/<data set>/plan.json`. Everything that is built afterwards reads this file, and nothing lists the files again.

```python
import json
json.load(open("cache/pretrain/.parts/<data set>/plan.json"))["groups"][0]["parts"]
```"""

_VAL = """The val of a data set in parts, if val must be known before the parts.

With token budgets, it is the head of each part, before any shuffle.
With val_frac and decontaminate, it is a seeded choice from all files.
`pretrain/.parts/<data set>/val`, in the layout of a data set. meta.json says how many documents the head of each part gave.

```python
import json
json.load(open("cache/pretrain/.parts/<data set>/val/meta.json"))["part"]
```"""

_PARTS = """One part of a data set: its files as tokens, in the layout of a data set.

`pretrain/.parts/<data set>/part-00000`. The partition is the data set and the part. The data set itself joins its parts by hard links.

```python
import json
json.load(open("cache/pretrain/.parts/<data set>/part-00000/meta.json"))["train_tokens"]
```"""


def parts_assets(registry: Registry) -> list[dg.AssetsDefinition]:
    """Return the three assets, without `val_part` if no data set needs it. Corpora in parts have only a plan here."""
    names, planned = names_of(registry), keys.datasets_with_plan(registry)
    in_parts = registry.in_parts()
    with_val = [name for name in in_parts if registry.pretrain[name].has_val_part]
    of_tokens: dict[str, Any] = {"kinds": {"numpy"}, "code_version": CODE_VERSIONS["pretrain"]}
    found = []
    if planned:
        plan = artifact_asset(
            registry,
            "plan",
            partitions=planned,
            begin=lambda plan, config, context: limit_parts(context.instance, registry),  # its parts follow, and [cluster] may have changed
            deps=[keys.mapped(names.upstream["pretrain"], planned)],
            kinds={"json"},
            code_version=PartsPlan.version,
            description=_PLAN,
        )
        found.append(plan)
    if with_val:
        above = [names.tokenizer, *keys.deps_on(registry, "val_part", "plan")]
        found.append(artifact_asset(registry, "val_part", partitions=with_val, deps=above, description=_VAL, **of_tokens))
    if in_parts:
        above = [names.tokenizer, *keys.deps_on(registry, "part", "plan", "corpus", "val_part")]
        found.append(partition_asset(registry, "part", deps=above, description=_PARTS, **of_tokens))
    return found


def partition_asset(registry: Registry, kind: str, **settings: Any) -> dg.AssetsDefinition:
    """Return an asset whose partitions are built by processes of any machine: parts, parts of a corpus, or ranges of hashes.

    Args:
        registry: The configuration.
        kind: The kind of the artifacts.
        **settings: Arguments of `dg.asset`.
    """
    names = names_of(registry)
    observed, keys_of_kind = names.assets[kind], [key for key in graph(registry, "").keys if kind_of(key) == kind]
    each = dg.StaticPartitionsDefinition([key.removeprefix(f"{kind}/") for key in keys_of_kind])

    @dg.asset(
        key=observed,
        partitions_def=each,
        pool=names.parts_pool,
        output_required=False,
        required_resource_keys=names.resources,
        **settings,
    )
    def build(context: dg.AssetExecutionContext, config: BuildConfig) -> Iterator[dg.MaterializeResult]:
        sink = sink_of(context, names)
        with readable_failures():
            artifact: Any = graph(registry, root_of(context, names))[f"{kind}/{context.partition_key}"]
        try:
            if sink.builds_parts_here or config.force:
                passes_on = (BusyError, LeaseLostError) if sink.passes_over else ()
                outcome = build_artifact(context, artifact, config, names, observed=observed, passes_on=passes_on)
            else:
                outcome = _build_in_child(context, artifact, names, observed)
        except (BusyError, LeaseLostError) as other:
            context.log.info(f"passed over: {other}")
        else:
            yield from recorded_results(context, registry, outcome)

    return build


def _build_in_child(context: dg.AssetExecutionContext, part: BuildInChild, names: DefinitionNames, key: dg.AssetKey) -> Outcome:
    sink = sink_of(context, names)
    reporter = BuildReporter(context, sink, name=part.key, observed=key)
    ending = RunEndCheck(context.instance, context.run.run_id)
    with readable_failures():
        outcome = sink.outcome_of(part.key)
        if outcome is None:
            home = Path(context.instance.root_directory)
            try:
                outcome = build_part_in_child(part, home=home, on_progress=reporter.progress, log=reporter.log, is_stopping=ending)
            except KeyboardInterrupt:
                if not ending.is_true:
                    raise
                # An interrupt would also end the worker of an executor, which has other steps.
                raise NielsCacheError(f"{part.key}: its run was terminated; run it again to resume") from None
    reporter.end(outcome)
    return outcome


class RunEndCheck:
    """A check whether a run was terminated or has ended. Executors such as that of Celery send no signal to a running step.

    Args:
        instance: The instance to query, at most once every ASK_SECONDS.
        run_id: Id of the run.

    Attributes:
        is_true: The last result.
    """

    def __init__(self, instance: dg.DagsterInstance, run_id: str) -> None:
        self._instance, self._run_id = instance, run_id
        self._next = time.monotonic() + ASK_SECONDS
        self.is_true = False

    def __call__(self) -> bool:
        if not self.is_true and time.monotonic() >= self._next:
            self._next = time.monotonic() + ASK_SECONDS
            with suppress(Exception):  # a database that does not answer must not end a build; each storage has errors of its own
                run = self._instance.get_run_by_id(self._run_id)
                self.is_true = run is not None and (run.status == dg.DagsterRunStatus.CANCELING or run.is_finished)
        return self.is_true
