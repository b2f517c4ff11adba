"""`caches_in_sync`: what the graph cannot show of a partitioned asset, as one check per family.

Unpartitioned on purpose: it looks at every data set of the family. With a data set's materialization it reads meta.json only; executed
alone, by its button, it also verifies every file, because the UI cannot run the partitioned checks of cache_checks.py alone.
"""

import dagster as dg

from niels_cache_assets.cache_state import cache_state
from niels_cache_assets.defs.keys import META_KEYS
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.registry import Registry
from niels_cache_runtime.formats import META_NAME, Family, dataset_dir
from niels_cache_runtime.verify import verify_dataset

IN_SYNC = "caches_in_sync"
PARTITION_TAG = "dagster/partition"


def in_sync_check(registry: Registry, family: Family) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=META_KEYS[family],
        name=IN_SYNC,
        description="Every data set of the family is built with the current settings and tokenizer (upstream is not asked). "
        "Execute it by its button, and every file of every data set is read and verified as well.",
    )
    def caches_in_sync(context: dg.AssetCheckExecutionContext, cache_root: CacheRoot) -> dg.AssetCheckResult:
        states = [cache_state(registry, name, root=cache_root.path) for name in registry.datasets(family)]
        behind = [state.name for state in states if state.needs_build]
        alone = PARTITION_TAG not in context.run.tags
        there = {name for name in registry.datasets(family) if (dataset_dir(cache_root.path, family, name) / META_NAME).exists()}
        readable = [state.name for state in states if alone and state.name in there and state.state not in ("unreadable", "not configured")]
        findings = {
            # another tokenizer is a state already, and no damage
            name: [finding for finding in verify_dataset(dataset_dir(cache_root.path, family, name)) if finding.kind != "tokenizer"]
            for name in readable
        }
        damaged = [name for name, found in findings.items() if found]
        problems = {name: f"{found[0].path}: {found[0].problem}" if found else "none" for name, found in findings.items()}
        rows = [
            dg.TableRecord(
                {"data_set": state.name, "state": state.state, "advice": state.advice, "problem": problems.get(state.name, "not verified")}
            )
            for state in states
        ]
        columns = [dg.TableColumn(name) for name in ("data_set", "state", "advice", "problem")]
        said = [f"{what}: {', '.join(names)}" for what, names in (("damaged", damaged), ("not as configured", behind)) if names]
        return dg.AssetCheckResult(
            passed=not said,
            severity=dg.AssetCheckSeverity.ERROR if damaged else dg.AssetCheckSeverity.WARN,
            description="; ".join(said) or None,
            metadata={
                "data_sets": len(states),
                "not_in_sync": len(behind),
                "damaged": len(damaged),
                "verified": len(findings),
                "states": dg.MetadataValue.table(rows, schema=dg.TableSchema(columns)),
            },
        )

    return caches_in_sync
