"""The check `caches_in_sync` of each family, which shows the state of all its data sets, as Dagster's asset graph cannot.

The check is unpartitioned on purpose, because it covers every data set of the family. After a materialization, the check reads only
meta.json. If the check is executed alone, by its button, it also verifies every file, because the UI cannot run the partitioned checks of
checks/cache.py alone.
"""

from collections.abc import Sequence
from dataclasses import replace

import dagster as dg

from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.artifacts.state import CacheState
from niels_cache_assets.base.wording import UNKNOWN, file_size, format_count, format_list
from niels_cache_assets.defs.assets.upstream import last_observation, observed_revision
from niels_cache_assets.defs.checks.cache import find_problems
from niels_cache_assets.defs.keys import PARTITION_TAG, names_of
from niels_cache_assets.defs.metadata.entries import table, without_empty
from niels_cache_assets.defs.resources import root_of
from niels_cache_assets.facts.contents import budget_shares, content_cells, counts_of, total_bytes
from niels_cache_assets.facts.published import address_in_store
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.format.layout import Family
from niels_cache_runtime.verify import Finding

IN_SYNC = "caches_in_sync"


def in_sync_check(registry: Registry, family: Family) -> dg.AssetChecksDefinition:
    """Return the check of a family."""
    keys = names_of(registry)

    @dg.asset_check(
        asset=keys.meta[family],
        name=IN_SYNC,
        description="Every data set of the family is built with the current settings and tokenizer, from the last observed revision "
        "of upstream (upstream is not asked now). The table lists unsynced data sets and the reasons. "
        "If you execute the check by its button, it also reads and verifies every file of every data set.",
        required_resource_keys=keys.resources,
    )
    def caches_in_sync(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        artifacts = graph(registry, root_of(context, keys))
        states = [
            _with_revision(context.instance, artifacts, artifacts.dataset_state(name))
            for name, source in registry.datasets(family).items()
            if source.enabled
        ]
        unsynced = [state for state in states if state.needs_build]
        missing = [state.name for state in unsynced if state.condition == "missing"]
        changed = [state.name for state in unsynced if state.condition != "missing"]
        alone = PARTITION_TAG not in context.run.tags
        findings: dict[str, list[Finding]] = {}
        for state in states:
            if alone and state.state not in ("missing", "disabled", "unreadable", "not configured"):
                found, _ = find_problems(state.directory, address_in_store(registry, family, state.name))
                findings[state.name] = [each for each in found if each.kind != "tokenizer"]  # that is already a state, and not damage
        damaged = [name for name, found in findings.items() if found]
        # Data sets that need attention come first, because there may be hundreds of data sets.
        in_order = sorted(states, key=lambda state: not (state.needs_build or findings.get(state.name)))
        rows = [_row(state, findings.get(state.name), verified=alone) for state in in_order]
        kinds = (("damaged", damaged), ("not as configured", changed), ("not built yet", missing))
        problems = [f"{what}: {format_list(names)}" for what, names in kinds if names]
        verified = (
            f"every file of {format_count(len(findings), 'data set')}"
            if alone
            else "no file during a build; the button Execute reads all files"
        )
        return dg.AssetCheckResult(
            passed=not problems,
            severity=dg.AssetCheckSeverity.ERROR if damaged else dg.AssetCheckSeverity.WARN,
            description="; ".join(problems) or None,
            metadata=without_empty(
                {
                    "states": table(rows),
                    "contents": f"{len(states) - len(unsynced)} of {format_count(len(states), 'data set')} in sync",
                    "verified": verified,
                    "not_in_sync": len(unsynced),
                    "damaged": len(damaged),
                }
            ),
        )

    return caches_in_sync


def _row(state: CacheState, findings: Sequence[Finding] | None, *, verified: bool) -> dict[str, str]:
    """Return a row of the table.

    Args:
        state: State of the cache.
        findings: Findings about its files, or None if the files were not read.
        verified: Whether the check verifies files.
    """
    meta = state.meta if state.condition in ("complete", "stale") else {}
    train, val = content_cells(counts_of(meta), budget_shares(meta))
    row = {
        "data_set": state.name,
        "state": state.state,
        "advice": state.advice,
        "train": train,
        "val": val,
        "size": file_size(total_bytes(meta["files"])) if meta.get("files") else UNKNOWN,
    }
    if verified:
        row["files"] = UNKNOWN if findings is None else f"{findings[0].path}: {findings[0].problem}" if findings else "sound"
    return row


def _with_revision(instance: dg.DagsterInstance, artifacts: Graph, state: CacheState) -> CacheState:
    """Return the state, or another one if the cache matches its settings but not the last observed revision of upstream."""
    revision = observed_revision(last_observation(instance, artifacts.registry, state.name)) if state.state == "in sync" else None
    if revision is None:
        return state
    # of a corpus, because a newer revision with the same documents does not change the cache
    meta = artifacts.corpus(state.name).current() if state.name in artifacts.registry.prepared() else state.meta
    built = meta["dataset_revision"]
    advice = f"build it again: upstream was observed at {revision}, the cache has {built}"
    return state if built == revision else replace(state, state="other revision", advice=advice)
