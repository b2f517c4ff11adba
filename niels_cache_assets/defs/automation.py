"""Automatic builds of small SFT data sets when their inputs change. The sensor `sft_automation` starts the builds. It is off by default.

The sensor compares data versions, so a retrained tokenizer with the same bytes starts no build. The sensor never starts the first build of
a data set, and ignores changes from before it was turned on. Builds of pretrain data sets take too long, so only a person starts such a
build.
"""

import warnings
from collections.abc import Sequence

import dagster as dg

from niels_cache_assets.config.problems import refuse_choice
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.defs.assets.upstream import last_observation, version_of
from niels_cache_assets.defs.keys import TRAIN_KEYS, UPSTREAM_KEYS, family_keys

AUTOMATION_SENSOR = "sft_automation"

Asset = dg.AssetsDefinition | dg.AssetSpec


class _IsOneOf(dg.AutomationCondition[dg.AssetKey]):
    """A condition that is true for the partitions with these names. Dagster's own conditions apply to all partitions of an asset."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    @property
    def description(self) -> str:
        return f"Is one of {', '.join(sorted(self._names))}"

    def evaluate(self, context: dg.AutomationContext[dg.AssetKey]) -> dg.AutomationResult[dg.AssetKey]:
        return dg.AutomationResult(context, context.candidate_subset.compute_intersection_with_partition_keys(set(self._names)))


class _UpstreamChanged(dg.AutomationCondition[dg.AssetKey]):
    """A condition that is true for a partition if a changed version of its upstream was observed after the last tick.

    Dagster's own condition on inputs considers only materializations, but a change of upstream is recorded as an observation.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    @property
    def description(self) -> str:
        return "Its upstream was observed to have changed"

    def evaluate(self, context: dg.AutomationContext[dg.AssetKey]) -> dg.AutomationResult[dg.AssetKey]:
        last, now = context.previous_max_storage_id, context.max_storage_id
        changed = set()
        if last is not None and now is not None:
            instance = context.asset_graph_view.instance
            for name in self._registry.partition_keys("sft"):
                before, after = (last_observation(instance, self._registry, name, before=tick + 1) for tick in (last, now))
                if before is not None and after is not None and version_of(before) != version_of(after):
                    changed.add(name)
        return dg.AutomationResult(context, context.candidate_subset.compute_intersection_with_partition_keys(changed))


def automated(assets: Sequence[Asset], registry: Registry) -> list[Asset]:
    """Return the assets, with an automation condition for the SFT data sets. Only one of the three SFT assets has the condition, because a
    build makes all three.

    Raises NielsCacheError if automatic_sft of [dagster] names no SFT data set.
    """
    for name in registry.dagster.automatic_sft or ():
        if name not in registry.sft:
            refuse_choice(registry.origin, "[dagster] automatic_sft names an unknown SFT data set", name, registry.sft)
    conditions = dg.AutomationCondition
    changed = conditions.any_deps_updated().replace("newly_updated", conditions.data_version_changed()) | _UpstreamChanged(registry)
    # Upstream is ignored here, because only a build records upstream as materialized.
    missing = conditions.any_deps_missing().ignore(dg.AssetSelection.assets(UPSTREAM_KEYS["sft"]))
    eager = conditions.eager().replace("any_deps_updated", changed).replace("any_deps_missing", missing)
    condition = eager & ~conditions.missing() & conditions.all_deps_blocking_checks_passed()
    if registry.dagster.automatic_sft is not None:
        condition = _IsOneOf(frozenset(registry.dagster.automatic_sft)) & condition
    key = TRAIN_KEYS["sft"]
    return [
        *dg.map_asset_specs(
            lambda spec: spec.replace_attributes(automation_condition=condition) if spec.key == key else spec,
            assets,
        )
    ]


def build_automation() -> dg.AutomationConditionSensorDefinition:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # use_user_code_server is beta, but the daemon cannot evaluate our own conditions
        return dg.AutomationConditionSensorDefinition(
            AUTOMATION_SENSOR,
            target=dg.AssetSelection.assets(*family_keys("sft")),
            default_status=dg.DefaultSensorStatus.STOPPED,
            use_user_code_server=True,
            description="Builds SFT data sets (all, or those that automatic_sft in [dagster] names) when the tokenizer or their upstream "
            "changes while this sensor is on. A change of upstream counts once it is observed, such as by the schedule nightly_upstream.",
        )
